"""The `lead` line: a plan over `[rows, cols]` takes `[batch, seq, cols]`.

The leading dimensions of each named tensor are flattened into one, as by a view, and restored in place of the first
dimension of every result. Sizes may be symbolic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright.kernel_file.compiled_plan import KernelFile
from tilewright.kernel_file.expression_values import show_value
from tilewright.kernel_file.problems import Code, Problem
from tilewright.kernel_file.syntax import Span
from tilewright.records import TensorSpec


@dataclass(frozen=True)
class Flattened:
    """Arguments with flattened leading dimensions."""

    arguments: Mapping[str, Any]
    leading: tuple[Any, ...] | None = None  # the flattened sizes; None: nothing was flattened
    at: Span | None = None

    def result(self, name: str, spec: TensorSpec) -> TensorSpec | Problem:
        """The spec of a result with the leading dimensions restored."""
        if self.leading is None or self.at is None:
            return spec
        rows = math.prod(self.leading)
        if not spec.shape or (type(rows) is int and type(spec.shape[0]) is int and rows != spec.shape[0]):
            found = f"{name} is {spec}, where its first dimension should be the leading one, {show_value(rows)}"
            return Problem.at(self.at, Code.OUT, found, "leave `lead` out: it is for results with a row for each row")
        step, stride = spec.stride[0], []
        for size in reversed(self.leading):
            stride.append(step)
            step = step * (max(size, 1) if type(size) is int else size)
        shape = (*self.leading, *spec.shape[1:])
        return replace(spec, shape=shape, stride=(*reversed(stride), *spec.stride[1:]))


def flatten_leading(file: KernelFile, regular: Mapping[str, Any]) -> Flattened | Problem:
    """Flatten the leading dimensions of normalised arguments; a `Problem` where that is not possible."""
    lead = file.compiled.lead
    if lead is None:
        return Flattened(regular)
    given = [(name, rank, regular[name]) for name, rank in lead.ranks if regular[name] is not None]
    if all(spec.ndim == rank for _, rank, spec in given):
        return Flattened(regular)
    changed: dict[str, TensorSpec] = {}
    first: tuple[str, tuple[Any, ...]] | None = None
    for name, rank, spec in given:
        count = spec.ndim - (rank - 1)
        if count < 0:
            return _refusal(lead.at, f"{name} has {spec.ndim} dimensions, and the plan {rank}, of which one leads")
        leading = spec.shape[:count]
        if first is None:
            first = name, leading
        elif len(first[1]) != len(leading) or any(
            type(a) is int and type(b) is int and a != b for a, b in zip(first[1], leading, strict=True)
        ):  # symbolic sizes are assumed to agree
            both = f"{first[0]} leads with {show_value(first[1])} and {name} with {show_value(leading)}"
            return _refusal(lead.at, both)
        one = _merge_leading(spec, count)
        if one is None:
            return _refusal(lead.at, f"the leading dimensions of {name}, {spec}, do not lie in memory as one")
        changed[name] = one
    assert first is not None  # or nothing would differ
    return Flattened({**regular, **changed}, first[1], lead.at)


def _refusal(at: Span, found: str) -> Problem:
    return Problem.at(at, Code.DOES_NOT_APPLY, found, "pass contiguous tensors whose leading dimensions agree")


def _merge_leading(spec: TensorSpec, count: int) -> TensorSpec | None:
    """The tensor with its first `count` dimensions merged; None where no single stride covers them."""
    rest = spec.shape[count:], spec.stride[count:]
    rows: Any = math.prod(spec.shape[:count])
    step: Any = rest[0][0] * rest[1][0] if rest[0] else 1  # the stride of a dimension of size 1 is irrelevant
    if type(rows) is not int:
        step = spec.stride[count - 1]
    elif rows > 1:
        long = [(n, s) for n, s in zip(spec.shape[:count], spec.stride[:count], strict=True) if n != 1]
        if any(s != t * n for (_, s), (n, t) in itertools.pairwise(long)):
            return None
        step = long[-1][1]
    return replace(spec, shape=(rows, *rest[0]), stride=(step, *rest[1]))

"""The results of a call that torch traces: sizes may be symbols, and nothing may be asked of them that is not needed.

Which `out` lines hold is decided by what a trace is always specialised on (dtypes, numbers of dimensions, bools, what
is absent) and never by sizes, strides or numbers, so that one answer stands for every size. Only where files that are
left disagree about the results are their other needs asked, and then whoever traces relies on the answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.kernel_file.closures import Bindings
from tilewright.kernel_file.compiled_plan import BufferLine, DefinitionLine, KernelFile, NeedLine
from tilewright.kernel_file.dispatch import NoneApplies, Reason
from tilewright.kernel_file.evaluate import out_specs_of, plain_bindings
from tilewright.kernel_file.leading import flattened
from tilewright.kernel_file.problems import DoesNotApply, Problem
from tilewright.kernel_file.search import run_line
from tilewright.records import DType, TensorSpec


@dataclass(frozen=True)
class TracedOut:
    """One result: sizes and strides are ints, or what stands for them. No stride: contiguous."""

    dtype: DType
    shape: tuple[Any, ...]
    stride: tuple[Any, ...] | None


def traced_outs(files: Sequence[KernelFile], regular: Mapping[str, Any]) -> tuple[TracedOut, ...] | NoneApplies:
    """The op's results at regular arguments, a `TensorSpec` for each tensor, or why no file is the one to ask."""
    reasons: list[Reason] = []
    found: list[tuple[KernelFile, tuple[TracedOut, ...]]] = []
    for file in files:
        problem = _refusal(file, regular)
        if problem is None:
            try:
                found.append((file, _outs(file, regular, check_needs=False)))
            except DoesNotApply as refusal:
                problem = refusal.problem
        if problem is not None:
            reasons.append(Reason(file.name, problem))
    if len({str(outs) for _, outs in found}) == 1:  # as text: to compare symbols would be to ask
        return found[0][1]
    for file, _ in found:
        try:
            return _outs(file, regular, check_needs=True)
        except DoesNotApply as refusal:
            reasons.append(Reason(file.name, refusal.problem))
    return NoneApplies(tuple(reasons))


def _outs(file: KernelFile, regular: Mapping[str, Any], check_needs: bool) -> tuple[TracedOut, ...]:
    strided = {line.directive.name for line in file.compiled.outs if line.stride is not None}
    specs = zip(file.plan.op.results, out_specs_of(file, regular, check_needs), strict=True)
    return tuple(TracedOut(spec.dtype, spec.shape, spec.stride if name in strided else None) for name, spec in specs)


# -- what is refused whatever the sizes --


class _Undecided(Exception):
    """Something was asked of a size."""


class _Unknown:
    """A size or a number of which nothing is known: it can be reckoned with, and answers no question."""

    def _more(self, *others: object) -> _Unknown:
        return _Unknown()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _more
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __truediv__ = __rtruediv__ = _more

    def _asked(self, *others: object) -> Any:
        raise _Undecided

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _asked
    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __getitem__ = _asked
    __hash__ = None  # type: ignore[assignment]


def _refusal(file: KernelFile, regular: Mapping[str, Any]) -> Problem | None:
    """Why a file takes no call of these dtypes and numbers of dimensions; None where it may take one."""
    seen = flattened(file, {name: _veiled(value) for name, value in regular.items()})
    if isinstance(seen, Problem):
        return seen
    bindings = plain_bindings(file, seen.arguments, None)
    for line in file.compiled.sure_lines:
        problem = _run(line, bindings)
        if problem is not None:
            return problem
    return None


def _run(line: DefinitionLine | NeedLine | BufferLine, bindings: Bindings) -> Problem | None:
    if isinstance(line, NeedLine):
        for part in line.parts:
            try:
                problem = run_line(replace(line, parts=(part,)), bindings)
            except _Undecided:
                continue
            if problem is not None:
                return problem
        return None
    try:
        return run_line(line, bindings)
    except _Undecided:
        bindings[line.directive.name] = _Unknown()
        return None


def _veiled(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        shape: Any = tuple(_Unknown() for _ in value.shape)
        stride: Any = tuple(_Unknown() for _ in value.shape)
        return TensorSpec(value.dtype, shape, stride)
    if value is None or isinstance(value, bool):
        return value
    return tuple(_Unknown() for _ in value) if isinstance(value, tuple) else _Unknown()

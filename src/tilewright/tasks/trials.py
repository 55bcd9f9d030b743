"""Inside the child: one call of a function at given shapes, to see what it returns or that it refuses.

Small calls are made for real. Large ones are made with tensors that have a shape and no content, so sizes of gigabytes
cost nothing but the seconds torch needs to prepare for it. A function that cannot be called so, because it looks at
values, is called for real up to a bound.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.records import DType, IntegerValues, NumberInput
from tilewright.reference.problems import ReferenceProblem
from tilewright.reference.tensors import TORCH_DTYPE, dtype_of, flat_results
from tilewright.tasks.probing_records import ProbeTensor

_REAL_ELEMENTS = 6_000_000  # calls up to this size are made for real while they are quick
_SMALL_ELEMENTS = 1 << 16  # and up to this size always
_SLOW_SECONDS = 0.3
_LARGEST_REAL_ELEMENTS = 1 << 26
_TRIALS = 1500

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Outcome:
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[DType, ...]
    changed: tuple[str, ...]  # tensors changed in place


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """Many small calls are quicker without waking threads for each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Trials:
    """Calls of one function, each made once. Past its time or number every further trial counts as refused."""

    def __init__(
        self,
        function: Callable[..., Any],
        tensors: Sequence[ProbeTensor],
        numbers: Sequence[NumberInput],
        seconds: float,
    ) -> None:
        self._function = function
        self._tensors = tensors
        self._numbers = {one.name: one.value for one in numbers}
        self._deadline = time.monotonic() + seconds
        self._known: dict[tuple[tuple[int, ...], ...], Outcome | None] = {}
        self._real_elements = _REAL_ELEMENTS
        self._mode: Callable[[Shapes], Outcome] | None = None  # how large calls are made

    def attempt(self, shapes: Shapes) -> Outcome | None:
        """What a call returns; None where it raises."""
        key = tuple(shapes[one.name] for one in self._tensors)
        if key not in self._known:
            if len(self._known) > _TRIALS or time.monotonic() > self._deadline:
                return None
            try:
                self._known[key] = self.run(shapes)
            except Exception:  # whatever the reference raises where it does not apply
                self._known[key] = None
        return self._known[key]

    def run(self, shapes: Shapes) -> Outcome:
        """The same; raises what the function raises."""
        elements = sum(math.prod(shape) for shape in shapes.values())
        if elements <= self._real_elements:
            started = time.monotonic()
            outcome = self._call(self._plain(shapes))
            if time.monotonic() - started > _SLOW_SECONDS:
                self._real_elements = _SMALL_ELEMENTS
            return outcome
        if self._mode is not None:
            return self._mode(shapes)
        # The first large call decides how all of them are made, so that a refusal is the function's own.
        first: Exception | None = None
        for mode in (self._call_on_meta, self._call_faked, self._call_for_real):
            try:
                outcome = mode(shapes)
            except Exception as error:  # the function's, or the mode's own limits
                first = error if mode == self._call_for_real else first or error
                continue
            self._mode = mode
            return outcome
        assert first is not None
        raise first

    def _call_on_meta(self, shapes: Shapes) -> Outcome:
        with torch.device("meta"):
            return self._call(self._empty(shapes))

    def _call_faked(self, shapes: Shapes) -> Outcome:
        # It mixes with tensors that the reference holds, as meta tensors do not, and takes seconds to import.
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode(allow_non_fake_inputs=True):
            return self._call(self._empty(shapes))

    def _call_for_real(self, shapes: Shapes) -> Outcome:
        elements = sum(math.prod(shape) for shape in shapes.values())
        if elements > _LARGEST_REAL_ELEMENTS:
            raise ReferenceProblem(
                f"the reference looks at the values of its inputs, and {elements} elements are too many for that; "
                "give smaller shapes"
            )
        return self._call(self._plain(shapes))

    def _empty(self, shapes: Shapes) -> dict[str, torch.Tensor]:
        return {one.name: torch.empty(shapes[one.name], dtype=TORCH_DTYPE[one.dtype]) for one in self._tensors}

    def _plain(self, shapes: Shapes) -> dict[str, torch.Tensor]:
        """Content that hardly any function refuses: fractions, and the lowest index."""
        made = {}
        for one in self._tensors:
            if one.dtype.is_float:
                drawn = torch.rand(shapes[one.name]) * 0.9 + 0.05
            else:
                low = one.values.low if isinstance(one.values, IntegerValues) else 0
                drawn = torch.full(shapes[one.name], low)
            made[one.name] = drawn.to(TORCH_DTYPE[one.dtype])
        return made

    def _call(self, given: dict[str, torch.Tensor]) -> Outcome:
        results, changed = call(self._function, given, self._numbers)
        return Outcome(
            tuple(tuple(map(int, one.shape)) for one in results), tuple(dtype_of(one) for one in results), changed
        )


def call(
    function: Callable[..., Any], given: Mapping[str, torch.Tensor], numbers: Mapping[str, Any]
) -> tuple[tuple[torch.Tensor, ...], tuple[str, ...]]:
    """One call without gradients: what is returned beside the tensors changed in place, and the names of those."""
    before = {name: tensor._version for name, tensor in given.items()}
    with torch.no_grad():
        returned = flat_results(function(**given, **numbers))
    changed = tuple(name for name, tensor in given.items() if tensor._version != before[name])
    results = tuple(one for one in returned if not any(one is given[name] for name in changed))
    return results, changed

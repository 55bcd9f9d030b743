"""Runs in the child: calls a function at given shapes and records the result's shapes, or that it raises.

Small calls use real tensors, large ones meta or fake tensors. A function that reads values cannot run on those; it is
called with real tensors up to a limit. Meta tensors sometimes accept what real ones refuse.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.records import DType, IntegerValues, NumberInput, TensorInput
from tilewright.reference import ReferenceProblem
from tilewright.reference.loading import describe, out_of_memory
from tilewright.reference.torch_calls import TORCH_DTYPE, dtype_of, flat_results
from tilewright.tasks.child.branch_watch import BranchLog, BranchWatch, Key
from tilewright.tasks.child.tracking_builtins import TrackingBuiltins


class StrictFunctions(TorchFunctionMode):
    """For real tensors: an LSTM with inconsistent sizes raises `ValueError`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.lstm:
            return func(*args, **(kwargs or {}))
        with StrictCalls():
            return func(*args, **(kwargs or {}))


class StrictCalls(TorchDispatchMode):
    """For meta tensors: a convolution or LSTM with inconsistent sizes raises `ValueError`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the default would import the compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            _check_convolution(*args)
        elif func is torch.ops.aten.mkldnn_rnn_layer.default:
            _check_layer(*args[:7])
        return func(*args, **(kwargs or {}))


def _check_convolution(
    given: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> None:
    filter_text = f"a filter of {list(weight.shape)} in {groups} groups"
    taken, made = (
        (weight.shape[0], weight.shape[1] * groups) if transposed else (weight.shape[1] * groups, weight.shape[0])
    )
    if given.shape[1] != taken or taken % groups or made % groups:
        raise ValueError(f"{filter_text} does not fit {list(given.shape)}")
    if bias is not None and tuple(bias.shape) != (made,):
        raise ValueError(f"{filter_text} does not fit a bias of {list(bias.shape)}")
    if not transposed:
        for axis, (size, window) in enumerate(zip(given.shape[2:], weight.shape[2:], strict=True)):
            reach = dilation[axis % len(dilation)] * (window - 1) + 1
            if size + 2 * padding[axis % len(padding)] < reach:
                raise ValueError(f"{filter_text} is larger than {list(given.shape)}")


def _check_layer(given: torch.Tensor, *state: torch.Tensor) -> None:
    """Check one LSTM layer in one direction: two weights, two biases, hidden and cell state."""
    to_input, to_hidden, *biases, hidden, cell = (tuple(one.shape) for one in state)
    width = to_hidden[1]
    fits = (
        to_input[1] == given.shape[-1]
        and to_hidden[0] == 4 * width
        and {hidden[-1], cell[-1]} == {width}
        and {to_input[0], *(bias[0] for bias in biases)} == {to_hidden[0]}
    )
    if not fits:
        raise ValueError(f"weights of {list(to_input)} and {list(to_hidden)} do not fit {list(given.shape)}")


_REAL_ELEMENTS = 6_000_000  # largest real call, reduced when calls are slow
_SMALL_ELEMENTS = 1 << 16  # calls up to this size are always real
_SLOW_SECONDS = 0.3
_PATIENCE, _PATIENCE_OF_A_CALL = 1.5, 8.0
_QUICKER = 8  # after a slow call the limit is its size divided by this
_LARGEST_REAL_ELEMENTS = 1 << 26
_MOST_OF_A_GPU = 1 << 40  # elements
_TRIALS = 1500
_LARGEST_COMPARED_ELEMENTS = 1 << 21
_EQUAL = 1e-10  # relative to the largest result: sums in another order, in f64
_NOT_TAKEN = (TypeError, AttributeError, NotImplementedError, SystemError)

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class TrialOutcome:
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[DType, ...]
    changed: tuple[str, ...]  # tensors changed in place
    asked: BranchLog = field(default_factory=BranchLog)  # conditions on sizes and numbers; empty if not watched


class BranchEffect(Enum):
    """How the branch taken at other sizes or numbers compares with the nominal branch."""

    SAME = "both give the same result"
    DIFFERENT = "the results differ"
    REFUSED = "the reference raises"


@dataclass(frozen=True)
class Comparison:
    found: BranchEffect
    asked: frozenset[Key] = frozenset()  # conditions evaluated while the nominal branch was forced


class Elapsed:
    """How long this thread has computed; what is found shall not hang on what else the machine has to do.

    On one that has too much of it, the seconds that have passed count too, divided by `patience`.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._computed, self._passed = time.thread_time(), time.monotonic()

    @property
    def seconds(self) -> float:
        return max(time.thread_time() - self._computed, (time.monotonic() - self._passed) / self._patience)


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """Small calls are faster on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Trials:
    """Calls of one function, each made once. Beyond the limits of time and number every new trial counts as refused."""

    def __init__(
        self,
        function: Callable[..., Any],
        tensors: Sequence[TensorInput],
        numbers: Sequence[NumberInput],
        seconds: float,
        for_real: bool = False,
    ) -> None:
        """`for_real`: use real tensors whenever the number of elements allows, however slow."""
        self._function = function
        self._tensors = tensors
        self._numbers = {one.name: one.value for one in numbers}
        self._elapsed: Elapsed | None = None  # set by the first attempt, not by the nominal call
        self._seconds = seconds
        self._most = _TRIALS
        self._known: dict[tuple[tuple[int, ...], ...], TrialOutcome | None] = {}
        self._for_real = for_real
        self._real_elements = _LARGEST_REAL_ELEMENTS if for_real else _REAL_ELEMENTS
        self._mode: Callable[[Shapes], TrialOutcome] | None = None  # for large calls
        self._builtins = TrackingBuiltins(function)
        self._compare_branches: dict[object, Comparison] = {}
        self.unwatched = self._builtins.hidden  # why branches could not be watched
        self._watchable: bool | None = None  # None: until a call has succeeded

    @property
    def spent(self) -> float:
        """The used part of the limits of time and number."""
        seconds = self._elapsed.seconds if self._elapsed is not None else 0.0
        return max(len(self._known) / self._most, seconds / self._seconds)

    def prolong(self, part: float) -> None:
        """Raise the limits by this fraction."""
        self._seconds *= 1 + part
        self._most = int(self._most * (1 + part))

    def attempt(self, shapes: Shapes) -> TrialOutcome | None:
        """The outcome of a call; None if it raises."""
        self._elapsed = self._elapsed or Elapsed(_PATIENCE)
        key = tuple(shapes[one.name] for one in self._tensors)
        if key not in self._known:
            if self.spent > 1:
                return None
            try:
                self._known[key] = self.run(shapes)
            except Exception:  # the reference does not accept these shapes
                self._known[key] = None
        return self._known[key]

    def run(self, shapes: Shapes) -> TrialOutcome:
        """The outcome of a call; raises what the function raises."""
        elements = sum(math.prod(shape) for shape in shapes.values())
        if elements <= self._real_elements:
            elapsed = Elapsed(_PATIENCE_OF_A_CALL)
            try:
                return self._call(self._plain(shapes))
            except Exception as error:
                if not out_of_memory(error):
                    raise
                # Small inputs can have large intermediates, as in attention.
            finally:
                if elapsed.seconds > _SLOW_SECONDS and not self._for_real:
                    quick = min(elements // _QUICKER, self._real_elements)
                    self._real_elements = max(quick, _SMALL_ELEMENTS)
        if self._mode is not None:
            return self._mode(shapes)
        # The first mode that works is used for all large calls, so that later errors are the function's own.
        first: Exception | None = None
        for mode in (self._call_on_meta, self._call_faked, self._call_for_real):
            try:
                outcome = mode(shapes)
            except Exception as error:  # the function or the mode may be at fault
                first = error if mode == self._call_for_real else first or error
                continue
            self._mode = mode
            return outcome
        assert first is not None
        raise first

    def holds(self, shapes: Shapes) -> bool:
        """Whether a call with real tensors succeeds too, if they are not too large."""
        elements = sum(math.prod(shape) for shape in shapes.values())
        if elements > _LARGEST_REAL_ELEMENTS:
            return True
        try:
            self._call(self._plain(shapes))
        except Exception as error:  # whatever the reference raises
            return out_of_memory(error)
        return True

    def _call_on_meta(self, shapes: Shapes) -> TrialOutcome:
        with torch.device("meta"), StrictCalls():
            return self._call(self._empty(shapes))

    def _call_faked(self, shapes: Shapes) -> TrialOutcome:
        # Unlike meta tensors these mix with real tensors of the reference; the import takes seconds.
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode(allow_non_fake_inputs=True), StrictCalls():
            return self._call(self._empty(shapes))

    def _call_for_real(self, shapes: Shapes) -> TrialOutcome:
        elements = sum(math.prod(shape) for shape in shapes.values())
        if elements > _LARGEST_REAL_ELEMENTS:
            why = "too many for a reference that reads the values of its inputs"
            why = why if elements <= _MOST_OF_A_GPU else "more than any GPU holds"
            raise ReferenceProblem(f"{elements} elements are {why}; give smaller shapes")
        return self._call(self._plain(shapes))

    def _empty(self, shapes: Shapes) -> dict[str, torch.Tensor]:
        return {one.name: torch.empty(shapes[one.name], dtype=TORCH_DTYPE[one.dtype]) for one in self._tensors}

    def _plain(self, shapes: Shapes, exact: bool = False, normal: bool = False) -> dict[str, torch.Tensor]:
        """Values that most functions accept: floats in (0, 1), the lowest index. `exact`: f64; `normal`: both signs."""
        made = {}
        for one in self._tensors:
            dtype = TORCH_DTYPE[one.dtype]
            if one.dtype.is_float:
                drawn = torch.randn(shapes[one.name]) if normal else torch.rand(shapes[one.name]) * 0.9 + 0.05
                dtype = torch.float64 if exact else dtype
            else:
                low = one.values.low if isinstance(one.values, IntegerValues) else 0
                drawn = torch.full(shapes[one.name], low)
            made[one.name] = drawn.to(dtype)
        return made

    def _call(self, given: dict[str, torch.Tensor]) -> TrialOutcome:
        results, changed, asked = self._watched_if_possible(given)
        return TrialOutcome(
            tuple(tuple(map(int, one.shape)) for one in results),
            tuple(dtype_of(one) for one in results),
            changed,
            asked,
        )

    def _watched_if_possible(
        self, given: dict[str, torch.Tensor]
    ) -> tuple[tuple[torch.Tensor, ...], tuple[str, ...], BranchLog]:
        """A watched call, repeated without watching if watching makes it fail."""
        failure: Exception | None = None
        if self._watchable is not False:
            try:
                outcome = self._watched(given, self._numbers)
                self._watchable = True
                return outcome
            except Exception as error:  # the function fails, or does not accept tracked numbers
                if out_of_memory(error) or (self._watchable and not isinstance(error, _NOT_TAKEN)):
                    raise
                failure = error
        with StrictFunctions():
            results, changed = call(self._function, given, self._numbers)
        if failure is not None:
            self.unwatched = self.unwatched or describe(failure)
            self._watchable = bool(self._watchable)
        return results, changed, BranchLog()

    def _watched(
        self, given: dict[str, torch.Tensor], numbers: Mapping[str, Any], forced: Mapping[Key, bool] | None = None
    ) -> tuple[tuple[torch.Tensor, ...], tuple[str, ...], BranchLog]:
        watch = BranchWatch(given, forced)
        known = {name: one if isinstance(one, bool) else watch.number(name, one) for name, one in numbers.items()}
        with StrictFunctions(), self._builtins.installed(watch):
            results, changed = call(self._function, given, known)
        return results, changed, watch.asked

    def compare_branches(self, shapes: Shapes, numbers: Mapping[str, Any], answers: Mapping[Key, bool]) -> Comparison:
        """Compare a call with the same call forced into the nominal branch by `answers`."""
        key = (*(shapes[one.name] for one in self._tensors), *numbers.items(), *answers)
        if key not in self._compare_branches:
            self._compare_branches[key] = self._compared(shapes, {**self._numbers, **numbers}, answers)
        return self._compare_branches[key]

    def _compared(self, shapes: Shapes, numbers: Mapping[str, Any], answers: Mapping[Key, bool]) -> Comparison:
        if sum(math.prod(shape) for shape in shapes.values()) > _LARGEST_COMPARED_ELEMENTS:
            return Comparison(BranchEffect.DIFFERENT)
        seen: list[bool] = []
        asked = BranchLog()
        for exact, normal in ((True, True), (True, False), (False, True), (False, False)):
            if len(seen) >= 2 or (seen and not exact):
                break
            given = self._plain(shapes, exact, normal)
            try:
                natural, _ = self._results(given, numbers, None)
            except Exception:  # the reference may refuse f64 or negative values
                continue
            if any(one.is_floating_point() and bool(one.isnan().all()) for one in natural):
                continue
            try:
                forced, asked = self._results(given, numbers, answers)
                seen.append(_are_equal(natural, forced))
            except Exception:  # the nominal branch does not work here
                seen.append(False)
        if not seen:
            return Comparison(BranchEffect.REFUSED)
        return Comparison(BranchEffect.SAME if all(seen) else BranchEffect.DIFFERENT, frozenset(asked.questions))

    def _results(
        self, given: Mapping[str, torch.Tensor], numbers: Mapping[str, Any], answers: Mapping[Key, bool] | None
    ) -> tuple[tuple[torch.Tensor, ...], BranchLog]:
        """The results, the tensors changed in place, and the evaluated conditions."""
        torch.manual_seed(0)
        own = {name: tensor.clone() for name, tensor in given.items()}
        results, changed, asked = self._watched(own, numbers, answers)
        return (*results, *(own[name] for name in changed)), asked


def _are_equal(ones: tuple[torch.Tensor, ...], others: tuple[torch.Tensor, ...]) -> bool:
    """Whether results are equal up to rounding in f64."""
    if [(one.shape, one.dtype) for one in ones] != [(one.shape, one.dtype) for one in others]:
        return False
    for one, other in zip(ones, others, strict=True):
        if one.dtype == torch.float64:
            finite = one[one.isfinite()]
            scale = float(finite.abs().max()) if finite.numel() else 0.0
            if not torch.allclose(one, other, rtol=_EQUAL, atol=_EQUAL * scale, equal_nan=True):
                return False
        elif not torch.equal(one, other):
            return False
    return True


def call(
    function: Callable[..., Any], given: Mapping[str, torch.Tensor], numbers: Mapping[str, Any]
) -> tuple[tuple[torch.Tensor, ...], tuple[str, ...]]:
    """One call without gradients: the results, and the names of the inputs changed in place."""
    before = {name: tensor._version for name, tensor in given.items()}
    with torch.no_grad():
        returned = flat_results(function(**given, **numbers))
    changed = tuple(name for name, tensor in given.items() if tensor._version != before[name])
    results = tuple(one for one in returned if not any(one is given[name] for name in changed))
    return results, changed

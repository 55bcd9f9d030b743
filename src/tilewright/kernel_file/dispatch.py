"""Dispatch: selects the first of an op's kernel files that takes a call. Builds nothing.

Selections are cached by shapes, strides, dtypes, alignment and deciding scalars.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, NamedTuple

from tilewright.kernel_file.calls import Arguments
from tilewright.kernel_file.closures import Bindings
from tilewright.kernel_file.compiled_plan import BufferLine, DefinitionLine, KernelFile, NeedLine
from tilewright.kernel_file.evaluate import (
    Evaluation,
    Refused,
    flatten_leading,
    initial_bindings,
    traced_out_specs,
    try_evaluate,
)
from tilewright.kernel_file.limits import TENSOR_ALIGNMENT
from tilewright.kernel_file.printer import print_op
from tilewright.kernel_file.problems import Code, DoesNotApply, Problem
from tilewright.kernel_file.search import Choice, run_line
from tilewright.kernel_file.tuned import NearChoice, TunedChoices, evaluate_tuned
from tilewright.records import ConstantValue, DType, GpuProfile, TensorSpec

MAX_CONSTANT_SETS = 16
DEFAULT_CAPACITY = 1024
MAX_REMEMBERED_FILES = 4096

LateValues = tuple[int | float | bool, ...]


@dataclass(frozen=True)
class Selected:
    """The selected file's index and evaluation, this call's late values, and the tuned choice used."""

    index: int
    evaluation: Evaluation
    late: LateValues
    tuned: NearChoice | None = None


class Reason(NamedTuple):
    """Why one file does not take a call."""

    file: str
    problem: Problem

    def __str__(self) -> str:
        return f"{self.file}:{self.problem}"


@dataclass(frozen=True)
class NoneApplies:
    """No file takes the call: one reason per file, in order."""

    reasons: tuple[Reason, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.reasons))


Selection = Selected | NoneApplies


class ConstantSets:
    """Limits the number of distinct `const` value sets per file: each needs a build."""

    def __init__(self, limit: int = MAX_CONSTANT_SETS) -> None:
        self.limit = limit
        self._lock = Lock()
        self._sets: OrderedDict[str, set[tuple[tuple[str, ConstantValue], ...]]] = OrderedDict()

    def admit(self, evaluation: Evaluation) -> bool:
        """Whether this set is known or within the limit; counts it if so."""
        constants = evaluation.constant_set
        with self._lock:
            known = self._sets.setdefault(evaluation.file.identity, set())
            self._sets.move_to_end(evaluation.file.identity)
            if len(self._sets) > MAX_REMEMBERED_FILES:
                self._sets.popitem(last=False)
            if constants in known:
                return True
            if len(known) >= self.limit:
                return False
            known.add(constants)
            return True


# Per process, as the specification says.
PROCESS_CONSTANT_SETS = ConstantSets()


class _Entry:
    """A cached selection and its last use; a hit takes no lock."""

    __slots__ = ("selection", "used")

    def __init__(self, selection: Selection, used: int) -> None:
        self.selection = selection
        self.used = used


class Dispatcher:
    """Selects among the kernel files of one op. Thread-safe."""

    def __init__(
        self,
        files: Sequence[KernelFile],
        gpu: GpuProfile,
        tuned: TunedChoices | None = None,
        capacity: int = DEFAULT_CAPACITY,
        constant_sets: ConstantSets = PROCESS_CONSTANT_SETS,
    ) -> None:
        if not files:
            raise ValueError("an op has at least one kernel file; none was given")
        op = files[0].plan.op
        for file in files[1:]:
            if print_op(file.plan.op) != print_op(op):
                raise ValueError(
                    f"{file.name} is `{print_op(file.plan.op)}`, {files[0].name} is `{print_op(op)}`; "
                    "the `op` lines of one op's files must agree"
                )
        self.files = tuple(files)
        self.gpu = gpu
        self.evaluations = 0  # how many files were evaluated so far
        self._tuned = tuned or TunedChoices()
        self._capacity = capacity
        self._constant_sets = constant_sets
        self._lock = Lock()
        self._turns = itertools.count()
        self._cache: dict[Hashable, _Entry] = {}
        #: Scalar parameters that affect the selection of any file; others are not part of the cache key.
        self.deciding: frozenset[str] = frozenset().union(*(file.compiled.deciding for file in files))
        self._tensor_names = tuple(p.name for p in op.tensors)
        self._deciding_names = tuple(p.name for p in op.parameters if p.name in self.deciding)
        late = [p for p in op.numbers if p.name not in self.deciding]
        self._late_optional = tuple(p.name for p in late if p.optional)
        self._late_lists = tuple(p.name for p in late if p.is_list and p.length is None)

    def key(self, arguments: Arguments) -> Hashable:
        """The cache key of normalised arguments (`Signature.arguments`)."""
        parts: list[Any] = []
        for name in self._tensor_names:
            spec: Any = arguments[name]
            if spec is None:
                parts.append(None)
            else:
                alignment = spec.alignment
                parts += (spec.dtype, spec.shape, spec.stride, alignment if alignment < TENSOR_ALIGNMENT else None)
        for name in self._deciding_names:
            parts.append(arguments[name])
        for name in self._late_optional:
            parts.append(arguments[name] is None)
        for name in self._late_lists:
            parts.append(len(arguments[name] or ()))  # type: ignore[arg-type]
        return tuple(parts)

    def select(self, arguments: Arguments) -> Selection:
        """The first file that takes the call; raises `KernelFileError` for an error in that file's steps."""
        key = self.key(arguments)
        entry = self._cache.get(key)
        if entry is None:
            return self._evaluate(key, arguments)
        entry.used = next(self._turns)
        known = entry.selection
        if isinstance(known, NoneApplies) or known.evaluation.late.is_empty:
            return known
        try:
            return Selected(known.index, known.evaluation, known.evaluation.late_values(arguments), known.tuned)
        except DoesNotApply:
            # Late scalars make a `let` fail: only this call needs another file.
            return self._evaluate(None, arguments)

    def _evaluate(self, key: Hashable | None, arguments: Arguments) -> Selection:
        reasons: list[Reason] = []
        cacheable = key is not None
        selection: Selection | None = None
        for index, file in enumerate(self.files):
            outcome, near = evaluate_tuned(file, arguments, self.gpu, self._tuned, self._counted)
            if isinstance(outcome, Refused):
                cacheable = cacheable and not outcome.depends_on_late
                reasons.append(Reason(file.name, outcome.problem))
                continue
            if not self._constant_sets.admit(outcome):
                found = (
                    f"{self._constant_sets.limit} different sets of `const` values were used in this process already"
                )
                remedy = "pass the value as an argument instead, or start a new process"
                reasons.append(Reason(file.name, Problem.at(file.plan.op.at, Code.LIMIT, found, remedy)))
                continue
            selection = Selected(index, outcome, outcome.late_values(arguments), near)
            break
        if selection is None:
            selection = NoneApplies(tuple(reasons))
        if cacheable:
            with self._lock:
                self._cache[key] = _Entry(selection, next(self._turns))
                if len(self._cache) > self._capacity:
                    # Several at once, so that a full cache is not sorted at every call.
                    oldest = sorted(self._cache, key=lambda known: self._cache[known].used)
                    for old in oldest[: max(1, self._capacity // 8)]:
                        del self._cache[old]
        return selection

    def why(self, selected: Selected, arguments: Arguments) -> str:
        """The origin of the tune choices; "" for a file without tunes."""
        if selected.tuned is not None:
            return selected.tuned.why(self.gpu)
        return self._tuned.why_first(selected.evaluation.file, self.gpu, arguments)

    def _counted(
        self, file: KernelFile, arguments: Arguments, gpu: GpuProfile, choice: Choice | None
    ) -> Evaluation | Refused:
        self.evaluations += 1
        return try_evaluate(file, arguments, gpu, choice)


# -- results of traced calls --


@dataclass(frozen=True)
class TracedOut:
    """One result, with concrete or symbolic sizes; contiguous if `stride` is None."""

    dtype: DType
    shape: tuple[Any, ...]
    stride: tuple[Any, ...] | None


def traced_outs(files: Sequence[KernelFile], regular: Mapping[str, Any]) -> tuple[TracedOut, ...] | NoneApplies:
    """The op's results for normalised arguments, or why no file takes them."""
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
    if len({str(outs) for _, outs in found}) == 1:  # as text: comparing symbols would add guards
        return found[0][1]
    for file, _ in found:
        try:
            return _outs(file, regular, check_needs=True)
        except DoesNotApply as refusal:
            reasons.append(Reason(file.name, refusal.problem))
    return NoneApplies(tuple(reasons))


def _outs(file: KernelFile, regular: Mapping[str, Any], check_needs: bool) -> tuple[TracedOut, ...]:
    strided = {line.directive.name for line in file.compiled.outs if line.stride is not None}
    specs = zip(file.plan.op.results, traced_out_specs(file, regular, check_needs), strict=True)
    return tuple(TracedOut(spec.dtype, spec.shape, spec.stride if name in strided else None) for name, spec in specs)


# -- refusals that do not depend on sizes --


class _Undecided(Exception):
    """An unknown size was compared or converted."""


class _Unknown:
    """An unknown size or number: arithmetic gives another, comparisons raise `_Undecided`."""

    def _arithmetic(self, *others: object) -> _Unknown:
        return _Unknown()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _arithmetic
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __truediv__ = __rtruediv__ = _arithmetic

    def _raise(self, *others: object) -> Any:
        raise _Undecided

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _raise
    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __getitem__ = _raise
    __hash__ = None  # type: ignore[assignment]


def _refusal(file: KernelFile, regular: Mapping[str, Any]) -> Problem | None:
    """Why a file takes no call with these dtypes and ranks; None where it may."""
    seen = flatten_leading(file, {name: _without_sizes(value) for name, value in regular.items()})
    if isinstance(seen, Problem):
        return seen
    bindings = initial_bindings(file, seen.arguments, None)
    for line in file.compiled.unconditional_lines:
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


def _without_sizes(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        shape: Any = tuple(_Unknown() for _ in value.shape)
        stride: Any = tuple(_Unknown() for _ in value.shape)
        return TensorSpec(value.dtype, shape, stride)
    if value is None or isinstance(value, bool):
        return value
    return tuple(_Unknown() for _ in value) if isinstance(value, tuple) else _Unknown()

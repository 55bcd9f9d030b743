"""The search for tune choices whose needs all hold, in written order, last `tune` fastest.

Backjumping: a failed line rules out all combinations with the same values of the tunes it depends on. A file whose
first `need` fails costs one line, however many combinations it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tilewright.kernel_file.closures import Bindings, EvaluationFailure, described
from tilewright.kernel_file.compiled_plan import BufferLine, CompiledPlan, DefinitionLine, NeedLine, TuneLine
from tilewright.kernel_file.expression_values import OperationFault, Tensor, checked_int, show_value, spliced
from tilewright.kernel_file.problems import Code, Problem
from tilewright.kernel_file.syntax import Let
from tilewright.records import TensorSpec, contiguous_stride

Choice = Mapping[str, int | bool]


class ChoiceError(LookupError):
    """An unknown `tune`, or a value that it does not list."""


@dataclass(frozen=True)
class Rejection:
    """Why no combination works, by the furthest line reached."""

    problem: Problem
    line: int  # position among the plan's lines


class TuneSearch:
    """Iterates over the combinations; `bindings` has the values of the last one found."""

    def __init__(self, plan: CompiledPlan, bindings: Bindings, choice: Choice) -> None:
        self.plan = plan
        self.bindings = bindings
        self.rejection: Rejection | None = None
        self.depends_on_late = False  # a line failed on late scalars
        self._lines = plan.lines
        self._tunes = [(i, line) for i, line in enumerate(plan.lines) if isinstance(line, TuneLine)]
        self._choices = [_choices(line, choice) for _, line in self._tunes]
        self._positions = [0] * len(self._tunes)
        # Per tune, the tunes that failures under its current choice depend on.
        self._conflicts = [0] * len(self._tunes)

    def found(self) -> Iterator[None]:
        """Yields once per combination whose needs hold."""
        every_tune = (1 << len(self._tunes)) - 1
        position: int | None = 0
        while position is not None:
            if position == len(self._lines):
                yield
                position = self._next_choice(every_tune)
                continue
            line = self._lines[position]
            if isinstance(line, TuneLine):
                self._positions[line.position] = 0
                self._conflicts[line.position] = 0
                self.bindings[line.directive.name] = self._choices[line.position][0]
                position += 1
                continue
            problem = run_line(line, self.bindings)
            if problem is None:
                position += 1
                continue
            self._note(position, line, problem)
            position = self._next_choice(line.tunes)

    def choice(self) -> dict[str, int | bool]:
        return {line.directive.name: self.bindings[line.directive.name] for _, line in self._tunes}

    def _note(self, position: int, line: DefinitionLine | NeedLine | BufferLine, problem: Problem) -> None:
        if line.origins & self.plan.late:
            self.depends_on_late = True
        if self.rejection is not None and self.rejection.line >= position:
            return
        names = [t.directive.name for i, (_, t) in enumerate(self._tunes) if line.tunes >> i & 1]
        found = problem.found
        if any(len(self._choices[i]) > 1 for i in range(len(self._tunes)) if line.tunes >> i & 1):
            found += f"; no other choice of {', '.join(names)} is taken either"
        self.rejection = Rejection(replace(problem, code=Code.DOES_NOT_APPLY, found=found), position)

    def _next_choice(self, conflict: int) -> int | None:
        """Advance the last tune in the bit set that has choices left; returns the line to continue at."""
        while conflict:
            tune = conflict.bit_length() - 1
            self._conflicts[tune] |= conflict
            self._positions[tune] += 1
            line_position, line = self._tunes[tune]
            if self._positions[tune] < len(self._choices[tune]):
                self.bindings[line.directive.name] = self._choices[tune][self._positions[tune]]
                return line_position + 1
            conflict = self._conflicts[tune] & ~(1 << tune)
        return None


def _choices(line: TuneLine, choice: Choice) -> tuple[int | bool, ...]:
    name, declared = line.directive.name, line.directive.choices
    if name not in choice:
        return declared
    value = choice[name]
    if not any(value == option and type(value) is type(option) for option in declared):
        written = " | ".join(show_value(option) for option in declared)
        raise ChoiceError(f"{name} = {show_value(value)} is not a choice of the file; it has {written}")
    return (value,)


# -- lines --


def run_line(line: DefinitionLine | NeedLine | BufferLine, bindings: Bindings) -> Problem | None:
    """Evaluate a line; returns the problem where it rules the call out."""
    match line:
        case NeedLine():
            for part in line.parts:
                try:
                    if part.run(bindings):
                        continue
                except EvaluationFailure as unmet:
                    return unmet.problem
                found = described(part.expression, "is false", bindings)
                remedy = "call it with what the line asks for, or add a file that takes this"
                return Problem.at(part.start, Code.DOES_NOT_APPLY, found, remedy)
        case DefinitionLine(directive=Let(name=name)):
            failure = bindings.compute(name, line.value.run)
            return None if failure is None else failure.problem
        case DefinitionLine():
            # A failing constant or buffer matters only if all needs hold.
            bindings.compute(line.directive.name, line.value.run)
        case BufferLine():
            bindings.compute(line.directive.name, lambda values: _tensor(line, values))
    return None


def _tensor(line: BufferLine, bindings: Bindings) -> Tensor:
    """The tensor of an `out` or `scratch` line."""
    name, at = line.directive.name, line.directive.at
    dtype = line.dtype.run(bindings)
    try:
        shape = spliced(tuple(size.run(bindings) for size in line.sizes))
        if any(type(size) is int and size < 0 for size in shape):
            remedy = "add a `need` that keeps it from being negative"
            raise OperationFault(f"negative size in {show_value(shape)}", remedy)
        stride = contiguous_stride(shape)
        if line.stride is not None:
            stride = spliced(tuple(step.run(bindings) for step in line.stride))
        checked_int(TensorSpec(dtype, shape, contiguous_stride(shape)).numel * dtype.itemsize)
    except OperationFault as fault:
        raise EvaluationFailure.at(at, fault.code, f"{name}: {fault.found}", fault.remedy) from None
    return Tensor(name, TensorSpec(dtype, shape, stride))

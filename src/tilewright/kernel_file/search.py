"""The search for a combination of `tune` choices whose needs all hold, in written order, last `tune` fastest.

Lines run top to bottom. A line that fails decides for every combination that agrees on the tunes it depends on, so
those are skipped: a file whose first `need` fails costs one line, however many combinations it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.kernel_file.closures import Environment, Failure
from tilewright.kernel_file.compiled_plan import (
    BufferLine,
    CompiledPlan,
    ConstLine,
    LetLine,
    Line,
    NeedLine,
    TuneLine,
)
from tilewright.kernel_file.explain import show, start, values_of
from tilewright.kernel_file.problems import Code, Problem
from tilewright.kernel_file.values import Fault, Tensor, checked_int, show_value, spliced, type_name
from tilewright.records import ConstantValue, DType, TensorSpec, contiguous_stride

Choice = Mapping[str, int | bool]


class ChoiceError(LookupError):
    """A choice that is none of the file's: an unknown `tune`, or a value it does not list."""


@dataclass(frozen=True)
class Rejection:
    """Why no combination works: the furthest line that was reached."""

    problem: Problem
    line: int  # position among the plan's lines


class Search:
    """One walk over the combinations; `environment` holds the values of the one found last."""

    def __init__(self, plan: CompiledPlan, environment: Environment, choice: Choice) -> None:
        self.plan = plan
        self.environment = environment
        self.rejection: Rejection | None = None
        self.hangs_on_late = False  # a line failed on scalars that decide nothing else
        self._lines = plan.lines
        self._tunes = [(i, line) for i, line in enumerate(plan.lines) if isinstance(line, TuneLine)]
        self._choices = [_choices(line, choice) for _, line in self._tunes]
        self._positions = [0] * len(self._tunes)
        # For each tune, the tunes that the failures below its present choice depend on.
        self._conflicts = [0] * len(self._tunes)

    def found(self) -> Iterator[None]:
        """Yields once for each combination whose needs hold; the environment then has its values."""
        every_tune = (1 << len(self._tunes)) - 1
        position: int | None = 0
        while position is not None:
            if position == len(self._lines):
                yield
                position = self._next_choice(every_tune)
                continue
            line = self._lines[position]
            problem = self._run(line)
            if problem is None:
                position += 1
                continue
            assert not isinstance(line, TuneLine)
            self._note(position, line, problem)
            position = self._next_choice(line.tunes)

    def choice(self) -> dict[str, int | bool]:
        return {line.directive.name: self.environment[line.directive.name] for _, line in self._tunes}

    def _run(self, line: Line) -> Problem | None:
        environment = self.environment
        match line:
            case TuneLine(position=tune):
                self._positions[tune] = 0
                self._conflicts[tune] = 0
                environment[line.directive.name] = self._choices[tune][0]
            case LetLine():
                try:
                    environment[line.directive.name] = line.value.run(environment)
                except Failure as failure:
                    return failure.problem
            case NeedLine():
                return need_problem(line, environment)
            case ConstLine():
                # Whether a failing constant matters is known only when every need holds.
                _keep(environment, line.directive.name, line)
            case BufferLine():
                _keep(environment, line.directive.name, line)
        return None

    def _note(self, position: int, line: LetLine | NeedLine | ConstLine | BufferLine, problem: Problem) -> None:
        if line.origins & self.plan.late:
            self.hangs_on_late = True
        if self.rejection is not None and self.rejection.line >= position:
            return
        names = [t.directive.name for i, (_, t) in enumerate(self._tunes) if line.tunes >> i & 1]
        found = problem.found
        if any(len(self._choices[i]) > 1 for i in range(len(self._tunes)) if line.tunes >> i & 1):
            found += f"; no other choice of {', '.join(names)} is taken either"
        self.rejection = Rejection(
            Problem(Code.DOES_NOT_APPLY, problem.line, problem.column, found, problem.remedy), position
        )

    def _next_choice(self, conflict: int) -> int | None:
        """Step the last tune in the set of bits that has choices left; the line to go on from."""
        while conflict:
            tune = conflict.bit_length() - 1
            self._conflicts[tune] |= conflict
            self._positions[tune] += 1
            line_position, line = self._tunes[tune]
            if self._positions[tune] < len(self._choices[tune]):
                self.environment[line.directive.name] = self._choices[tune][self._positions[tune]]
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


def need_problem(line: NeedLine, environment: Environment) -> Problem | None:
    for part in line.parts:
        try:
            value = part.run(environment)
        except Failure as failure:
            return failure.problem
        if value is True:
            continue
        place = start(part.expression)
        values = values_of(part.expression, environment)
        state = "is false" if value is False else f"is {type_name(value)}, not a bool"
        found = f"`{show(part.expression)}` {state}" + (f", with {values}" if values else "")
        remedy = "call it with what the line asks for, or add a file that takes this"
        return Problem(Code.DOES_NOT_APPLY, place.line, place.column, found, remedy)
    return None


def _keep(environment: Environment, name: str, line: ConstLine | BufferLine) -> None:
    try:
        value = constant_value(line, environment) if isinstance(line, ConstLine) else buffer_value(line, environment)
    except Failure as failure:
        environment.fail(name, failure)
    else:
        environment[name] = value
        environment.failures.pop(name, None)


def constant_value(line: ConstLine, environment: Environment) -> ConstantValue:
    value = line.value.run(environment)
    if isinstance(value, (bool, int, float, DType)):
        return value
    at = line.directive.at
    found = f"{line.directive.name} is {type_name(value)}"
    raise Failure(Problem(Code.TYPE, at.line, at.column, found, "a const is an int, float, bool or dtype"))


def buffer_value(line: BufferLine, environment: Environment) -> Tensor:
    """The tensor an `out`, `save` or `scratch` line stands for."""
    directive = line.directive
    dtype = line.dtype.run(environment)
    if isinstance(dtype, Tensor):
        dtype = dtype.spec.dtype

    def failure(code: Code, found: str, remedy: str) -> Failure:
        at = directive.at
        return Failure(Problem(code, at.line, at.column, f"{directive.name}: {found}", remedy))

    if type(dtype) is not DType:
        raise failure(Code.TYPE, f"{type_name(dtype)} stands where a dtype belongs", "write one, such as f32")
    try:
        shape = spliced(tuple(size.run(environment) for size in line.sizes))
        if any(type(size) is not int for size in shape):
            raise failure(Code.TYPE, f"sizes {show_value(shape)}", "sizes are ints")
        if any(size < 0 for size in shape):
            raise failure(
                Code.VALUE, f"negative size in {show_value(shape)}", "add a `need` that keeps it from being negative"
            )
        stride = contiguous_stride(shape)
        if line.stride is not None:
            stride = spliced(tuple(step.run(environment) for step in line.stride))
        checked_int(TensorSpec(dtype, shape, contiguous_stride(shape)).numel * dtype.itemsize)
    except Fault as fault:
        raise failure(fault.code, fault.found, fault.remedy) from None
    return Tensor(directive.name, TensorSpec(dtype, shape, stride))

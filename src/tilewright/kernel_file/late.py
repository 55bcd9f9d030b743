"""Late arguments: numbers made of scalars that decide nothing else, computed again at every call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.kernel_file.closures import Closure, Compiled, Environment, Failure
from tilewright.kernel_file.compiled_plan import CompiledPlan
from tilewright.kernel_file.problems import Code, DoesNotApply, KernelFileError, Problem
from tilewright.kernel_file.syntax import KernelFile


@dataclass(frozen=True)
class LateExpression:
    """One late argument; `item` is its position where the expression is a list parameter."""

    value: Compiled
    item: int | None


class LateExpressions:
    """The late arguments of one evaluation, with the values they need beside the call's scalars."""

    def __init__(
        self, file: KernelFile, plan: CompiledPlan, expressions: tuple[LateExpression, ...], environment: Environment
    ) -> None:
        self.expressions = expressions
        self.names = tuple(sorted(plan.late))
        self._file_name = file.name
        # Every late `let` is computed, used or not: one that fails means that the file does not apply.
        self._lets: tuple[tuple[str, Closure], ...] = tuple((x.directive.name, x.value.run) for x in plan.late_lets)
        self._arguments = tuple((expression.value.run, expression.item) for expression in expressions)
        late_names = {*self.names, *(name for name, _ in self._lets)}
        read: set[str] = set().union(
            *(line.value.names for line in plan.late_lets), *(expression.value.names for expression in expressions)
        )
        read |= {p.name for p in file.plan.op.parameters if p.optional}  # what `has` may ask for
        self._known = {name: environment[name] for name in read - late_names}
        self._floats = tuple(name for name in self.names if _is_float(file, name))

    @property
    def is_empty(self) -> bool:
        """Whether a call has nothing to compute."""
        return not self._lets and not self._arguments

    def values(self, scalars: Mapping[str, Any]) -> tuple[int | float | bool, ...]:
        if self.is_empty:
            return ()
        # What the evaluation knew wins: of the call, only late scalars are new.
        environment = {**scalars, **self._known}
        for name in self._floats:
            value = environment[name]
            if type(value) is int:
                environment[name] = float(value)
        try:
            for name, run in self._lets:
                environment[name] = run(environment)
        except Failure as failure:
            raise DoesNotApply(_not_applying(failure.problem)) from None
        try:
            return tuple(
                [run(environment) if item is None else run(environment)[item] for run, item in self._arguments]
            )
        except Failure as failure:
            raise KernelFileError((failure.problem,), self._file_name) from None


def _is_float(file: KernelFile, name: str) -> bool:
    parameter = file.parameters[name]
    return parameter.scalar is not None and parameter.scalar.value == "float" and not parameter.is_list


def _not_applying(problem: Problem) -> Problem:
    return Problem(Code.DOES_NOT_APPLY, problem.line, problem.column, problem.found, problem.remedy)

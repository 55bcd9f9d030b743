"""The op that a task's kernel files must declare, and sizes as their plans write them."""

from __future__ import annotations

from tilewright.kernel_file.syntax import Op, Parameter, Place
from tilewright.records import NumberInput, ScalarType, SizeFormula, SizeTerm, Task

_NOWHERE = Place(1, 1)


def op_of_task(task: Task) -> Op:
    """The op line as an `Op`: the inputs by name and order, numbers with the function's own defaults, the outputs."""
    parameters = tuple(
        _number(one)
        if isinstance(one, NumberInput)
        else Parameter(one.name, None, _NOWHERE, in_place=one.in_place, optional=one.optional)
        for one in task.inputs
    )
    return Op(task.name, parameters, tuple(one.name for one in task.outputs), _NOWHERE)


def _number(one: NumberInput) -> Parameter:
    if not one.default:
        return Parameter(one.name, one.type, _NOWHERE)
    # A default is written in the parameter's type: `eps: float = 1` reads as 1.0.
    value = float(one.value) if one.type is ScalarType.FLOAT else one.value
    return Parameter(one.name, one.type, _NOWHERE, has_default=True, default=value)


def size_expression(dimension: str, task: Task) -> str | None:
    """The plan expression for a dimension's size, from the inputs' shapes; None where these do not tell it."""
    expression = _axis(dimension, task)
    formulas = {one.name: one.formula for one in task.dimensions if one.formula is not None}
    if expression is not None:
        return expression
    if dimension in formulas:
        parts = {name: size_expression(name, task) for name in formulas[dimension].names}
        known = {name: part for name, part in parts.items() if part is not None}
        return formulas[dimension].text(known) if len(known) == len(parts) else None
    for name, formula in formulas.items():
        # Of an input with 2 * cols, cols is the half.
        axis = _axis(name, task)
        if axis is not None and formula == SizeFormula.of([SizeTerm(formula.terms[0].coefficient, (dimension,))]):
            return f"({axis} / {formula.terms[0].coefficient})"
    return None


def _axis(dimension: str, task: Task) -> str | None:
    for one in task.tensors:
        if not one.optional and dimension in one.dimensions:
            return f"{one.name}.shape[{one.dimensions.index(dimension)}]"
    return None

"""The op that a task's kernel files must declare."""

from __future__ import annotations

from tilewright.kernel_file.syntax import Op, Parameter, Place
from tilewright.records import NumberInput, ScalarType, Task

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

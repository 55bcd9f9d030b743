"""From a traced task to its row program: lower the graph, find the rows and columns in it, and simplify."""

from __future__ import annotations

from dataclasses import replace

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.lowering import Lowering
from tilewright.playbook.operations import POINTWISE_RULES
from tilewright.playbook.reductions import REDUCTION_RULES
from tilewright.playbook.row_program import NumberKind, Pointwise, Reduce, RowProgram, Value, renumbered
from tilewright.playbook.space import Space
from tilewright.records.gpu import reached

RULES = {**POINTWISE_RULES, **REDUCTION_RULES}

# Where the last place of an operand decides, the result jumps: 3.5 is rounded up, and what lies just below it down.
_STEP_NAMES = """
round floor ceil trunc floor_div fmod remainder to_int sign eq ne lt le gt ge
"""
_STEPS = frozenset(_STEP_NAMES.split())


def row_program(traced: TracedTask) -> RowProgram:
    """What the task's reference computes, as rows. Raises `NotSupported` where it cannot be arranged so."""
    return program_of(row_space(traced))


def row_space(traced: TracedTask) -> Space:
    """The lowered graph."""
    task = traced.task
    lowering = Lowering(task, traced.traces, traced.probes)
    outputs = lowering.run(RULES)
    changed = [one.name for one in task.tensors if one.in_place and not one.optional]
    for name, item in zip(changed, outputs[len(task.outputs) :], strict=True):
        lowering.axes.broadcast([lowering.input_axes[name], item.axes])  # it may be written without being read
    return Space(task, lowering, outputs, traced.probes)


def program_of(space: Space) -> RowProgram:
    program = space.program()
    if any(not program.varies[one.value] for one in program.column_sums):
        raise NotSupported("the playbook sums over rows what differs along them, and here it does not")
    return _simplified(program)


def _simplified(program: RowProgram) -> RowProgram:
    """Where results have 16 bits, divide each element by a value of the row through one reciprocal per row.

    Not before a step: there the quotient must be the one that PyTorch has, to the last place.
    """
    if not program.is_sixteen_bit:
        return program
    values: list[Value] = []
    kinds: list[NumberKind] = []
    places: dict[int, int] = {}

    def add(value: Value, kind: NumberKind) -> int:
        values.append(value)
        kinds.append(kind)
        return len(values) - 1

    exact = _before_steps(program)
    inverses: dict[int, int] = {}
    for index, value in enumerate(program.values):
        along = [program.varies[one] for one in program.arguments(index)]
        if isinstance(value, Pointwise) and value.op == "div" and along == [True, False] and index not in exact:
            divided, divisor = (places[one] for one in value.arguments)
            if divisor not in inverses:
                inverses[divisor] = add(Pointwise("reciprocal", (divisor,)), NumberKind.FLOAT)
            places[index] = add(Pointwise("mul", (divided, inverses[divisor])), NumberKind.FLOAT)
        else:
            places[index] = add(renumbered(value, places.__getitem__), program.kinds[index])
    outputs = tuple(replace(one, value=places[one.value]) for one in program.outputs)
    return replace(program, values=tuple(values), kinds=tuple(kinds), outputs=outputs)


def _before_steps(program: RowProgram) -> set[int]:
    """The values that a rounding, a comparison or the place of an extreme follows from."""
    steps = [
        one
        for index, value in enumerate(program.values)
        if (isinstance(value, Pointwise) and value.op in _STEPS) or (isinstance(value, Reduce) and value.op.finds_place)
        for one in program.arguments(index)
    ]
    return reached(steps, program.arguments)

"""The family of rows: a graph as one program of rows, or as two of which the second reduces what the first leaves."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from dataclasses import dataclass, replace

from tilewright.playbook.axes import Axes
from tilewright.playbook.catalogue import Schedule, best_schedule, every_schedule, row_schedules, schedules
from tilewright.playbook.errors import NoMatch, NotSupported
from tilewright.playbook.families import Family, Schedules, Structure, TracedTask
from tilewright.playbook.file_text import PlanLines, joined_file, plan_entry
from tilewright.playbook.lowering import Item, Lowering
from tilewright.playbook.operations import POINTWISE_RULES
from tilewright.playbook.reductions import REDUCTION_RULES
from tilewright.playbook.row_program import (
    Load,
    NumberKind,
    Pointwise,
    Reduce,
    RowProgram,
    Value,
    arguments_of,
    renumbered,
)
from tilewright.playbook.space import Space
from tilewright.records import DType, Task, TaskOutput, TensorInput
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
        raise NoMatch
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


# Reductions over two sets of dimensions, as two programs: the first leaves values of rows, the second reduces those.
# The mean over a batch of what every row comes to is one such; so is the sum of all elements after a softmax, which
# is a sum along every row first. The rows' values lie in scratch tensors between the launches.


_DTYPES = {NumberKind.FLOAT: DType.F32, NumberKind.INT: DType.I64}


@dataclass(frozen=True)
class Chain:
    """Two programs, of which the second reads what the first leaves in scratch tensors."""

    first: RowProgram
    second: RowProgram
    scratch: tuple[str, ...]  # plan lines, without the directive


def chain_of(space: Space) -> Chain | None:
    """The graph as two programs; None where it is not of that kind."""
    split = _Split.of(space)
    return split.chain() if split is not None else None


@dataclass(frozen=True)
class _Split:
    space: Space
    early: frozenset[int]  # the dimensions that are reduced first
    late: tuple[int, ...]  # the reductions that come after
    rows: Axes  # the dimensions over which those are

    @classmethod
    def of(cls, space: Space) -> _Split | None:
        low, live = space.low, space.live()
        over = {index: frozenset(space.plain(axes)) for index, axes in low.reduced.items() if index in live}
        lead = space.lead(live)
        for early in sorted(set(over.values()), key=len):
            late = tuple(sorted(index for index, axes in over.items() if axes != early))
            rows = tuple(axis for axis in lead if axis not in early)
            if late and rows and all(over[index] in (frozenset(rows), frozenset(lead)) for index in late):
                split = cls(space, early, late, rows)
                return split if split._is_sound(over) else None
        return None

    def _is_sound(self, over: dict[int, frozenset[int]]) -> bool:
        low = self.space.low
        for index in self.late:
            value = low.values[index]
            assert isinstance(value, Reduce)
            whole = len(over[index]) > len(self.rows)
            if (whole and value.op.finds_place) or low.kinds[value.argument] not in _DTYPES:
                return False
            below = self._below(value.argument, stop=() if whole else over)
            if set(self.late) & below or (not whole and self._varies(below)):
                return False
        after = set().union(
            *(self._below(one.value, stop=self.late) for one in self.space.results if self._is_late(one))
        )
        return not self._varies(after) and not after & (over.keys() - set(self.late))

    def _below(self, index: int, stop: Collection[int]) -> set[int]:
        """What a value is made of, without what reductions at which to stop are made of."""
        return reached([index], lambda one: arguments_of(self.space.low.values[one]) if one not in stop else ())

    def _varies(self, values: set[int]) -> bool:
        loads = (self.space.low.values[one] for one in values)
        names = {one.input for one in loads if isinstance(one, Load)}
        return any(set(self.space.plain(self.space.low.input_axes[name])) & self.early for name in names)

    def _is_late(self, item: Item) -> bool:
        return bool(self._below(item.value, stop=()) & set(self.late))

    # -- the two programs --

    def chain(self) -> Chain | None:
        space, task = self.space, self.space.task
        dimensions = tuple(one for one in map(space.dimension_name, self.rows) if one is not None)
        if len(dimensions) < len(self.rows) or any(one.in_place for one in task.tensors):
            return None
        first, left = self._first()
        taken = {one.name for one in (*task.inputs, *task.outputs)}
        named = [(_fresh("of_rows", taken), _DTYPES[first.kinds[one]]) for one in left]
        given = list(zip(task.outputs, space.results, strict=True))
        early = [pair for pair in given if not self._is_late(pair[1])]
        late = [pair for pair in given if self._is_late(pair[1])]
        early += [
            (TaskOutput(name, kind, dimensions), Item(value, self.rows, ()))
            for (name, kind), value in zip(named, left, strict=True)
        ]
        late = [(output, replace(item, value=item.value + len(left))) for output, item in late]
        tensors = (TensorInput(name, kind, dimensions) for name, kind in named)
        before, outs = _program(space, task, first, early)
        after, more = _program(
            space, replace(task, inputs=(*task.inputs, *tensors)), self._second([name for name, _ in named]), late
        )
        outs |= more
        return Chain(
            replace(before, out_lines=tuple(outs[one.name] for one in task.outputs)),
            replace(after, out_lines=(), shape_needs=()),
            tuple(outs[name] for name, _ in named),
        )

    def _first(self) -> tuple[Lowering, list[int]]:
        """The graph with a reduction along rows for every late one over all dimensions; and what is left of rows."""
        low = copy(self.space.low)
        low.values, low.kinds, low.reduced = list(low.values), list(low.kinds), dict(low.reduced)
        left: list[int] = []
        for index in self.late:
            value = low.values[index]
            assert isinstance(value, Reduce)
            if len(self.space.plain(low.reduced[index])) == len(self.rows):
                left.append(value.argument)
                continue
            left.append(len(low.values))
            low.values.append(value)
            low.kinds.append(low.kinds[index])
            low.reduced[left[-1]] = tuple(self.early)
        return low, left

    def _second(self, names: list[str]) -> Lowering:
        """The graph in which the late reductions take what was left; its values are numbered after the loads."""
        old, count = self.space.low, len(names)
        low = copy(old)
        loads: list[Value] = [Load(name) for name in names]
        low.values = [*loads, *(renumbered(one, lambda number: number + count) for one in old.values)]
        kinds = [old.kinds[index] for index in self.late]
        low.kinds = [*kinds, *old.kinds]
        low.reduced = {}
        for place, index in enumerate(self.late):
            value = old.values[index]
            assert isinstance(value, Reduce)
            low.values[index + count] = Reduce(value.op, place)
            low.kinds[place] = old.kinds[value.argument]
            low.reduced[index + count] = self.rows
        low.input_axes = {**old.input_axes, **dict.fromkeys(names, self.rows)}
        low.seen = [Item(place, self.rows, ()) for place in range(count)]
        return low


def _program(
    space: Space, task: Task, low: Lowering, results: list[tuple[TaskOutput, Item]]
) -> tuple[RowProgram, dict[str, str]]:
    """A program with these results, and the plan's text of each by its name."""
    outputs = tuple(one for one, _ in results)
    made = Space(replace(task, outputs=outputs), low, tuple(item for _, item in results), space.probes).program()
    return made, dict(zip((one.name for one in outputs), made.out_lines, strict=True))


def _fresh(wanted: str, taken: set[str]) -> str:
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name)
    return name


# -- structures --


def chain_schedules(chain: Chain) -> Schedules:
    """Every way of the first program, followed by the best of the second, which has little to do."""
    last = best_schedule(chain.second)
    made = {one.id: _structure(chain, one, last) for one in (*every_schedule(chain.first), *schedules(chain.first))}
    pays = [one.id for one in schedules(chain.first)]
    return Schedules(tuple(made[id] for id in pays), tuple(one for id, one in made.items() if id not in pays))


def _structure(chain: Chain, first: Schedule, second: Schedule) -> Structure:
    def write(op_line: str) -> str:
        head = [*PlanLines(chain.first, op_line).head, *(plan_entry("scratch", one) for one in chain.scratch)]
        header = (
            f"{chain.first.name}: what every row comes to, then a reduction of that.\n\nThe kernels of the first part "
            "leave values of rows in a scratch tensor, which those of the second part reduce."
        )
        return joined_file(header, head, {"along": first.fragment(op_line), "over": second.fragment(op_line)})

    summary = f"{first.summary}; then, over rows, {second.summary}"
    return Structure(f"{first.id}-then-{second.id}", summary, write)


# -- the family of rows --


def _matches(traced: TracedTask) -> Schedules:
    space = row_space(traced)
    try:
        program = program_of(space)
    except NotSupported:
        chain = chain_of(space)
        if chain is None:
            raise
        return chain_schedules(chain)
    return row_schedules(program)


ROWS = Family("rows", frozenset(RULES), _matches)

"""From a traced task to its row program: lower the graph, and find the rows and columns in it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.lowering import ONE, Axes, Item, Lowering
from tilewright.playbook.operations import POINTWISE_RULES
from tilewright.playbook.reductions import REDUCTION_RULES
from tilewright.playbook.row_program import (
    Load,
    NumberKind,
    Pointwise,
    ProgramInput,
    ProgramOutput,
    Reduce,
    Reduction,
    RowPart,
    RowProgram,
    Value,
)
from tilewright.playbook.tracing import ProbeSet
from tilewright.records import NumberInput, ScalarType, Task, TaskOutput, TensorInput

RULES = {**POINTWISE_RULES, **REDUCTION_RULES}


def row_program(traced: TracedTask) -> RowProgram:
    """What the task's reference computes, as rows. Raises `NotSupported` where it cannot be arranged so."""
    task = traced.task
    lowering = Lowering(task, traced.traces, traced.probes)
    outputs = lowering.run(RULES)
    changed = [one.name for one in task.tensors if one.in_place and not one.optional]
    for name, item in zip(changed, outputs[len(task.outputs) :], strict=True):
        lowering.axes.broadcast([lowering.input_axes[name], item.axes])  # it may be written without being read
    program = _Space(task, lowering, outputs, traced.probes).program()
    if any(not program.varies[one.value] for one in program.column_sums):
        raise NotSupported("the playbook sums over rows what differs along them, and here it does not")
    return _simplified(program)


@dataclass(frozen=True)
class _Space:
    """The rows and columns of one lowered graph."""

    task: Task
    low: Lowering
    results: tuple[Item, ...]
    probes: ProbeSet

    def program(self) -> RowProgram:
        live = self._live()
        lead = self._lead(live)
        sums = self._column_sums(live, lead)
        live -= sums
        width = self._width(live, lead, sums)
        row_axes, col_axes = lead[: len(lead) - width], lead[len(lead) - width :]
        numbers = {old: new for new, old in enumerate(sorted(live))}
        values = tuple(_renumbered(self.low.values[old], numbers) for old in sorted(live))
        loaded = {value.input for value in values if isinstance(value, Load)}
        inputs = tuple(
            self._input(one, row_axes, col_axes)
            for one in self.task.tensors
            if one.name in loaded or (one.in_place and not one.optional)
        )
        return RowProgram(
            name=self.task.name,
            inputs=inputs,
            outputs=self._outputs(numbers, lead, row_axes, sums),
            values=values,
            kinds=tuple(self.low.kinds[old] for old in sorted(live)),
            out_lines=tuple(self._out_line(one) for one in self.task.outputs),
            shape_needs=self._needs(lead),
            rows=self._count(row_axes, lead, rows=True),
            cols=self._count(col_axes, lead, rows=False),
            task_rows=self._size(row_axes),
            task_cols=self._size(col_axes),
        )

    # -- the space --

    def _live(self) -> set[int]:
        live: set[int] = set()
        todo = [one.value for one in self.results]
        while todo:
            index = todo.pop()
            if index not in live:
                live.add(index)
                todo += _arguments(self.low.values[index])
        return live

    def _plain(self, axes: Axes) -> Axes:
        return tuple(axis for axis in self.low.axes.resolve(axes) if axis != ONE)

    def _lead(self, live: set[int]) -> Axes:
        """The dimensions of the largest tensor; all others must be some of them in the same order."""
        shapes = [self._plain(one.axes) for one in (*self.low.seen, *self.results) if one.value in live]
        lead = max(shapes, key=len, default=())
        for shape in shapes:
            rest = iter(lead)
            if len(set(shape)) != len(shape) or not all(axis in rest for axis in shape):
                raise NotSupported(
                    "the playbook cannot arrange the reference's tensors as rows and columns: their dimensions combine "
                    "in more than one order"
                )
        return lead

    def _column_sums(self, live: set[int], lead: Axes) -> set[int]:
        """The sums over the first dimensions that are results and nothing else: those of a column over all rows."""
        used = {one for index in live for one in _arguments(self.low.values[index])}
        results = {one.value for one in self.results}
        found = set()
        for index, axes in self.low.reduced.items():
            over, value = set(self._plain(axes)), self.low.values[index]
            if index not in live or index in used or index not in results or len(over) == len(lead):
                continue
            summed = isinstance(value, Reduce) and value.op is Reduction.SUM
            if summed and self.low.kinds[index] is NumberKind.FLOAT and set(lead[: len(over)]) == over:
                found.add(index)
        return found

    def _width(self, live: set[int], lead: Axes, sums: set[int]) -> int:
        """How many of the last dimensions are the columns."""
        below = {len(lead) - len(self._plain(self.low.reduced[index])) for index in sums}
        width = self._reduced_width(live, lead) if not below else below.pop()
        if below or (sums and self._reduced_width(live, lead) not in (width, None)):
            raise NotSupported("the playbook sums over all rows or along them, and here a sum is over some dimensions")
        return self._free_width(lead) if width is None else width

    def _reduced_width(self, live: set[int], lead: Axes) -> int | None:
        """How many of the last dimensions are reduced; None where none is."""
        sets = {frozenset(self._plain(axes)) for value, axes in self.low.reduced.items() if value in live}
        if len(sets) > 1:
            raise NotSupported(f"the playbook reduces over one set of dimensions only, and here are {len(sets)}")
        if sets:
            over = sets.pop()
            if set(lead[len(lead) - len(over) :]) != over:
                raise NotSupported("the playbook reduces over the last dimensions only")
            return len(over)
        return None

    def _free_width(self, lead: Axes) -> int:
        """Where nothing is reduced: as many of the last dimensions as every tensor has all or none of."""
        shapes = [set(self._plain(axes)) for axes in self.low.input_axes.values()]
        shapes += [set(self._plain(one.axes)) for one in self.results]
        for width in range(len(lead), 1, -1):
            columns = set(lead[len(lead) - width :])
            if all(columns <= shape or not columns & shape for shape in shapes):
                return width
        return min(len(lead), 1)

    def _size(self, axes: Axes) -> int:
        """The number of elements along these dimensions at the task's own sizes."""
        found: dict[int, int] = {}
        for one in self.task.tensors:
            own = self.low.axes.resolve(self.low.input_axes.get(one.name, ()))
            found |= {axis: self.task.sizes[name] for axis, name in zip(own, one.dimensions, strict=False)}
        return math.prod(found[axis] for axis in axes)

    # -- tensors --

    def _input(self, one: TensorInput, row_axes: Axes, col_axes: Axes) -> ProgramInput:
        own = self._plain(self.low.input_axes[one.name])
        columns = set(own) & set(col_axes)
        if columns and columns != set(col_axes):
            raise NotSupported(
                f"the playbook does not support {one.name}, which has some of the reduced dimensions and not others"
            )
        own_rows = tuple(axis for axis in own if axis in row_axes)
        parts = None if own_rows == row_axes and (row_axes or columns) else self._parts(own_rows, row_axes)
        if one.in_place and not (columns and parts is None):
            raise NotSupported(f"the playbook changes whole tensors in place only, and {one.name} is broadcast")
        return ProgramInput(one.name, one.dtype, bool(columns), parts, one.in_place)

    def _parts(self, own: Axes, row_axes: Axes) -> tuple[RowPart, ...]:
        """How a row's number indexes a tensor with some of the row dimensions: one part for each run of them."""
        parts: list[RowPart] = []
        place = 0
        while place < len(row_axes):
            end = place
            while end < len(row_axes) and row_axes[end] in own:
                end += 1
            if end > place:
                modulus = self._product(row_axes[place:end]) if place else ""
                parts.append(RowPart(self._product(row_axes[end:]), modulus))
            place = max(end, place + 1)
        return tuple(parts)

    def _outputs(
        self, numbers: dict[int, int], lead: Axes, row_axes: Axes, sums: set[int]
    ) -> tuple[ProgramOutput, ...]:
        changed = [one for one in self.task.tensors if one.in_place and not one.optional]
        named: list[TaskOutput | TensorInput] = [*self.task.outputs, *changed]
        outputs: list[ProgramOutput] = []
        for one, item in zip(named, self.results, strict=True):
            own, value = self._plain(item.axes), self.low.values[item.value]
            if isinstance(value, Reduce) and item.value in sums:
                outputs.append(ProgramOutput(one.name, one.dtype, numbers[value.argument], True, over_rows=True))
                continue
            if own not in (lead, row_axes):
                raise NotSupported(
                    f"the playbook cannot write {one.name}, which is neither as large as the largest tensor nor one "
                    f"element per row"
                )
            outputs.append(
                ProgramOutput(one.name, one.dtype, numbers[item.value], own == lead, isinstance(one, TensorInput))
            )
        return tuple(outputs)

    # -- plan text --

    def _expression(self, axis: int) -> str:
        """The size of a dimension, read off a tensor that has it: the largest such, the first among equals."""
        best = max(
            (name for name, axes in self.low.input_axes.items() if axis in self.low.axes.resolve(axes)),
            key=lambda name: len(self._plain(self.low.input_axes[name])),
            default="",
        )
        if not best:
            raise NotSupported("the playbook cannot tell a size of the result from the inputs' shapes")
        place = self.low.axes.resolve(self.low.input_axes[best]).index(axis)
        return f"{best}.shape[{place}]"

    def _product(self, axes: Axes) -> str:
        return " * ".join(self._expression(axis) for axis in axes)

    def _count(self, axes: Axes, lead: Axes, rows: bool) -> str:
        if not axes:
            return "1"
        for name, own in self.low.input_axes.items():
            if self.low.axes.resolve(own) == lead:
                width = len(axes)
                if rows:
                    return f"prod({name}.shape[:-{len(lead) - width}])" if width > 1 else f"{name}.shape[0]"
                if width == len(lead):
                    return f"{name}.numel"
                return f"{name}.shape[-1]" if width == 1 else f"prod({name}.shape[-{width}:])"
        return self._product(axes)

    def _out_line(self, one: TaskOutput) -> str:
        for tensor in self.task.tensors:
            if tensor.optional or not tensor.dimensions:
                continue
            if one.shape == tensor.dimensions:
                return f"{one.name}: {one.dtype}[{tensor.name}.shape]"
            if len(tensor.dimensions) > 1 and one.shape == tensor.dimensions[:-1]:
                return f"{one.name}: {one.dtype}[{tensor.name}.shape[:-1]]"
            if one.shape == (*tensor.dimensions[:-1], 1):
                return f"{one.name}: {one.dtype}[{tensor.name}.shape[:-1], 1]"
        sizes = [str(size) if isinstance(size, int) else self._dimension(size) for size in one.shape]
        return f"{one.name}: {one.dtype}[{', '.join(sizes)}]"

    def _dimension(self, name: str) -> str:
        for tensor in self.task.tensors:
            if name in tensor.dimensions and not tensor.optional:
                return f"{tensor.name}.shape[{tensor.dimensions.index(name)}]"
        raise NotSupported(f"the playbook cannot tell the size {name} from the inputs' shapes")

    def _needs(self, lead: Axes) -> tuple[str, ...]:
        given = [one for one in self.task.tensors if not one.optional]
        needs = [" and ".join(f"{one.name}.dtype == {one.dtype}" for one in given)]
        first: str | None = None  # a tensor of the largest shape, to which others are compared
        for one in given:
            axes = self.low.axes.resolve(self.low.input_axes[one.name])
            if first is not None and axes == self.low.axes.resolve(self.low.input_axes[first]):
                needs.append(f"{one.name}.shape == {first}.shape")
                continue
            needs.append(f"{one.name}.ndim == {len(axes)}")
            for place, axis in enumerate(axes):
                size = "1" if axis == ONE else self._expression(axis)
                if size != f"{one.name}.shape[{place}]":
                    needs.append(f"{one.name}.shape[{place}] == {size}")
            if first is None and self._plain(axes) == lead:
                first = one.name
        needs += [f"not has({one.name})" for one in self.task.tensors if one.optional]
        fixed = [one for one in self.task.dimensions if self.probes.fixed or not one.varies]
        needs += [f"{self._dimension(one.name)} == {one.size}" for one in fixed if self._is_known(one.name)]
        probed = self.probes.probes[0].numbers
        needs += [_number_need(one) for one in self.task.numbers if one.name not in probed]
        return tuple(needs)

    def _is_known(self, name: str) -> bool:
        return any(name in one.dimensions and not one.optional for one in self.task.tensors)


def _number_need(one: NumberInput) -> str:
    value = str(one.value).lower() if one.type is ScalarType.BOOL else repr(one.value)
    return f"{one.name} == {value}" if not value.startswith("-") else f"{one.name} + {value[1:]} == 0"


def _arguments(value: Value) -> tuple[int, ...]:
    if isinstance(value, Pointwise):
        return value.arguments
    return (value.argument,) if isinstance(value, Reduce) else ()


def _renumbered(value: Value, numbers: dict[int, int]) -> Value:
    if isinstance(value, Pointwise):
        return Pointwise(value.op, tuple(numbers[one] for one in value.arguments))
    return Reduce(value.op, numbers[value.argument]) if isinstance(value, Reduce) else value


def _simplified(program: RowProgram) -> RowProgram:
    """Where results have 16 bits, divide each element by a value of the row through one reciprocal per row."""
    if not program.is_sixteen_bit:
        return program
    values: list[Value] = []
    kinds: list[NumberKind] = []
    places: dict[int, int] = {}

    def add(value: Value, kind: NumberKind) -> int:
        values.append(value)
        kinds.append(kind)
        return len(values) - 1

    inverses: dict[int, int] = {}
    for index, value in enumerate(program.values):
        if isinstance(value, Pointwise):
            arguments = tuple(places[one] for one in value.arguments)
            by_row = value.op == "div" and program.varies[value.arguments[0]] and not program.varies[value.arguments[1]]
            if by_row:
                divisor = arguments[1]
                if divisor not in inverses:
                    inverses[divisor] = add(Pointwise("reciprocal", (divisor,)), NumberKind.FLOAT)
                places[index] = add(Pointwise("mul", (arguments[0], inverses[divisor])), NumberKind.FLOAT)
            else:
                places[index] = add(Pointwise(value.op, arguments), program.kinds[index])
        elif isinstance(value, Reduce):
            places[index] = add(Reduce(value.op, places[value.argument]), program.kinds[index])
        else:
            places[index] = add(value, program.kinds[index])
    outputs = tuple(replace(one, value=places[one.value]) for one in program.outputs)
    return replace(program, values=tuple(values), kinds=tuple(kinds), outputs=outputs)

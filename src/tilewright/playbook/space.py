"""The rows and columns of a lowered graph: which dimensions are which, and how every tensor lies among them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

from tilewright.playbook.axes import Axes
from tilewright.playbook.errors import NoMatch
from tilewright.playbook.lowering import Item, Lowering
from tilewright.playbook.row_program import (
    COLS,
    Count,
    LaunchNumber,
    Layout,
    Load,
    NumberKind,
    ProgramInput,
    ProgramOutput,
    Reduce,
    Reduction,
    RowPart,
    RowProgram,
    Value,
    arguments_of,
    renumbered,
)
from tilewright.playbook.tracing import ProbeSet
from tilewright.records import NumberInput, ScalarType, Task, TaskOutput, TensorInput
from tilewright.records.gpu import reached


@dataclass(frozen=True)
class _Place:
    """A dimension of a tensor, and what else lies in it where a view split it."""

    name: str
    dimension: int
    others: Axes

    @property
    def text(self) -> str:
        return f"{self.name}.shape[{self.dimension}]"


@dataclass(frozen=True)
class Space:
    """The rows and columns of one lowered graph."""

    task: Task
    low: Lowering
    results: tuple[Item, ...]
    probes: ProbeSet

    def program(self) -> RowProgram:
        live = self.live()
        lead = self.lead(live)
        sums = self._column_sums(live, lead)
        live -= sums
        layout, row_axes, col_axes, inner_axes = self._arranged(live, lead, sums)
        values, kinds, numbers = self._renumbered(live, col_axes)
        loaded = {value.input for value in values if isinstance(value, Load)}
        inputs = tuple(
            self._input(one, layout, (row_axes, col_axes, inner_axes))
            for one in self.task.tensors
            if one.name in loaded or (one.in_place and not one.optional)
        )
        return RowProgram(
            name=self.task.name,
            inputs=inputs,
            outputs=self._outputs(numbers, lead, row_axes, sums),
            values=values,
            kinds=kinds,
            out_lines=tuple(self._out_line(one) for one in self.task.outputs),
            shape_needs=self._needs(lead),
            rows=self._count(row_axes, lead, layout, rows=True),
            cols=self._count(col_axes, lead, layout, rows=False),
            task_rows=self._size(row_axes),
            task_cols=self._size(col_axes),
            layout=layout,
            inner=self._product(inner_axes) if layout is not Layout.ROWS else "",
            task_inner=self._size(inner_axes),
            has_clusters=self.task.profile.cc >= 90,
        )

    # -- the space --

    def live(self) -> set[int]:
        return reached((one.value for one in self.results), lambda index: arguments_of(self.low.values[index]))

    def plain(self, axes: Axes) -> Axes:
        return self.low.axes.atoms(axes)

    def _renumbered(
        self, live: set[int], col_axes: Axes
    ) -> tuple[tuple[Value, ...], tuple[NumberKind, ...], dict[int, int]]:
        """The live values by new numbers, which are the third result; equal ones are one."""
        known: dict[tuple[Value, NumberKind], int] = {}
        numbers: dict[int, int] = {}
        for old in sorted(live):
            value = self.low.values[old]
            if isinstance(value, Count):
                own = self.plain(value.axes)
                value = COLS if set(own) == set(col_axes) else LaunchNumber("elements", self._product(own))
            numbers[old] = known.setdefault((renumbered(value, numbers.__getitem__), self.low.kinds[old]), len(known))
        return tuple(value for value, _ in known), tuple(kind for _, kind in known), numbers

    def lead(self, live: set[int]) -> Axes:
        """The dimensions of the largest tensor; all others must be some of them in the same order."""
        shapes = [self.plain(one.axes) for one in (*self.low.seen, *self.results) if one.value in live]
        lead = max(shapes, key=len, default=())
        for shape in shapes:
            rest = iter(lead)
            if len(set(shape)) != len(shape) or not all(axis in rest for axis in shape):
                raise NoMatch
        return lead

    def _column_sums(self, live: set[int], lead: Axes) -> set[int]:
        """The sums over the first dimensions that are results and nothing else: those of a column over all rows."""
        used = {one for index in live for one in arguments_of(self.low.values[index])}
        results = {one.value for one in self.results}
        found = set()
        for index, axes in self.low.reduced.items():
            over, value = set(self.plain(axes)), self.low.values[index]
            if index not in live or index in used or index not in results or len(over) == len(lead):
                continue
            summed = isinstance(value, Reduce) and value.op is Reduction.SUM
            if summed and self.low.kinds[index] is NumberKind.FLOAT and set(lead[: len(over)]) == over:
                found.add(index)
        return found

    def _arranged(self, live: set[int], lead: Axes, sums: set[int]) -> tuple[Layout, Axes, Axes, Axes]:
        """How rows and columns lie, the dimensions of both, and those in the innermost run of a row's or a column's."""
        over = self._reduced(live)
        below = {len(lead) - len(self.plain(self.low.reduced[index])) for index in sums}
        if below:
            width = below.pop()
            if below or over not in (frozenset(), frozenset(lead[len(lead) - width :])):
                raise NoMatch
            return Layout.ROWS, lead[: len(lead) - width], lead[len(lead) - width :], ()
        if not over:
            width = self._free_width(lead)
            return Layout.ROWS, lead[: len(lead) - width], lead[len(lead) - width :], ()
        runs = [(reduced, tuple(run)) for reduced, run in groupby(lead, lambda axis: axis in over)]
        layout = _LAYOUTS.get(tuple(reduced for reduced, _ in runs))
        if layout is None:
            raise NoMatch
        rows = tuple(axis for axis in lead if axis not in over)
        return layout, rows, tuple(axis for axis in lead if axis in over), runs[-1][1]

    def _reduced(self, live: set[int]) -> frozenset[int]:
        """The dimensions that are reduced."""
        sets = {frozenset(self.plain(axes)) for value, axes in self.low.reduced.items() if value in live}
        if len(sets) > 1:
            raise NoMatch
        return sets.pop() if sets else frozenset()

    def _free_width(self, lead: Axes) -> int:
        """Where nothing is reduced: as many of the last dimensions as every tensor has all or none of."""
        shapes = [set(self.plain(axes)) for axes in self.low.input_axes.values()]
        shapes += [set(self.plain(one.axes)) for one in self.results]
        for width in range(len(lead), 1, -1):
            columns = set(lead[len(lead) - width :])
            if all(columns <= shape or not columns & shape for shape in shapes):
                return width
        return min(len(lead), 1)

    def _size(self, axes: Axes) -> int:
        """The number of elements along these dimensions at the task's own sizes."""
        return math.prod(self._task_size(axis) for axis in axes)

    def _task_size(self, axis: int) -> int:
        place = self._place(axis)
        size = self.task.sizes[self._tensor(place.name).dimensions[place.dimension]]
        if not place.others:
            return size
        constant = self._constant(axis)
        return constant if constant is not None else size // self._size(place.others)

    # -- tensors --

    def _input(self, one: TensorInput, layout: Layout, space: tuple[Axes, Axes, Axes]) -> ProgramInput:
        row_axes, col_axes, inner_axes = space
        own = self.plain(self.low.input_axes[one.name])
        own_rows, own_columns = (tuple(axis for axis in own if axis in axes) for axes in (row_axes, col_axes))
        some = own_columns not in ((), col_axes)
        broadcast = some or (own_columns and own_rows not in ((), row_axes))
        # Where rows lie side by side in the columns, those of a vector have such a tensor's elements in common.
        shared = layout is Layout.COLUMNS and broadcast and not set(own_rows) & set(inner_axes)
        if broadcast and ((layout is not Layout.ROWS and not shared) or (broadcast and one.in_place)):
            raise NoMatch
        is_own = own_rows == row_axes and bool(row_axes or own_columns)
        parts = None if is_own else self._parts(own_rows, row_axes)
        if one.in_place and not (own_columns and parts is None):
            raise NoMatch
        spans = self._parts(own_columns, col_axes) if some or (broadcast and shared) else ()
        own_cols = self._product(own_columns) if spans else ""
        return ProgramInput(one.name, one.dtype, bool(own_columns), parts, one.in_place, spans, own_cols)

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
            own, value = self.plain(item.axes), self.low.values[item.value]
            if isinstance(value, Reduce) and item.value in sums:
                outputs.append(ProgramOutput(one.name, one.dtype, numbers[value.argument], True, over_rows=True))
                continue
            if own not in (lead, row_axes):
                raise NoMatch
            outputs.append(
                ProgramOutput(one.name, one.dtype, numbers[item.value], own == lead, isinstance(one, TensorInput))
            )
        return tuple(outputs)

    # -- plan text --

    def _place(self, axis: int) -> _Place:
        """A tensor that has the dimension: by itself rather than within another, then the largest, then the first."""
        places = [
            _Place(name, dimension, tuple(one for one in atoms if one != axis))
            for name, axes in self.low.input_axes.items()
            for dimension, atoms in enumerate(self.plain((one,)) for one in axes)
            if axis in atoms
        ]
        if not places:
            raise NoMatch
        return max(places, key=lambda one: (not one.others, len(self.plain(self.low.input_axes[one.name]))))

    def _constant(self, axis: int) -> int | None:
        """The size of a dimension that has the same one at every probe."""
        sizes = set(self.low.axes.size(axis))
        return sizes.pop() if len(sizes) == 1 else None

    def _expression(self, axis: int) -> str:
        """The size of a dimension, read off a tensor that has it."""
        place = self._place(axis)
        if not place.others:
            return place.text
        constant = self._constant(axis)
        if constant is not None:
            return str(constant)
        if any(self._constant(one) is None for one in place.others):
            raise NoMatch
        return f"({place.text} / {self._size(place.others)})"

    def _product(self, axes: Axes) -> str:
        return " * ".join(self._expression(axis) for axis in axes)

    def _count(self, axes: Axes, lead: Axes, layout: Layout, rows: bool) -> str:
        if not axes:
            return "1"
        for name, own in self.low.input_axes.items() if layout is Layout.ROWS else ():
            if tuple(self.low.axes.find(axis) for axis in own) == lead:
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
        raise NoMatch

    def _needs(self, lead: Axes) -> tuple[str, ...]:
        given = [one for one in self.task.tensors if not one.optional]
        needs = [" and ".join(f"{one.name}.dtype == {one.dtype}" for one in given)]
        first: str | None = None  # a tensor of the largest shape, to which others are compared
        own: list[tuple[str, str | int]] = []  # sizes that no other says, and what the task calls them
        for one in given:
            axes = tuple(self.low.axes.find(axis) for axis in self.low.input_axes[one.name])
            if first is not None and axes == tuple(self.low.axes.find(axis) for axis in self.low.input_axes[first]):
                needs.append(f"{one.name}.shape == {first}.shape")
                continue
            needs.append(f"{one.name}.ndim == {len(axes)}")
            for dimension, axis in enumerate(axes):
                size = f"{one.name}.shape[{dimension}]"
                more = self._dimension_needs(size, self.plain((axis,)))
                own += [(size, one.dimensions[dimension])] if all("%" in need for need in more) else []
                needs += more
            if first is None and self.plain(axes) == lead:
                first = one.name
        needs += [f"not has({one.name})" for one in self.task.tensors if one.optional]
        fixed = [one for one in self.task.dimensions if self.probes.fixed or not one.varies]
        for each in fixed:
            places = [size for size, name in own if name == each.name]  # several where two sizes have one name
            places = places or ([self._dimension(each.name)] if self._is_known(each.name) else [])
            needs += [f"{place} == {each.size}" for place in places]
        probed = self.probes.probes[0].numbers
        needs += [number_need(one) for one in self.task.numbers if one.name not in probed]
        return tuple(needs)

    def _dimension_needs(self, size: str, atoms: Axes) -> list[str]:
        """What the size of a dimension must be, where another tensor or a view of it says so."""
        if len(atoms) <= 1:
            wanted = self._expression(atoms[0]) if atoms else "1"
            return [f"{size} == {wanted}"] if wanted != size else []
        whole = [
            f"{name}.shape[{dimension}]"
            for name, axes in self.low.input_axes.items()
            for dimension, one in enumerate(axes)
            if self.plain((one,)) == atoms
        ]
        constants = math.prod(self._constant(one) or 1 for one in atoms)
        needs = [f"{size} % {constants} == 0"] if constants > 1 else []
        return [f"{size} == {whole[0]}"] if whole[0] != size else needs

    def dimension_name(self, axis: int) -> str | None:
        """What the task calls a dimension; None where a view made it."""
        place = self._place(axis)
        return None if place.others else self._tensor(place.name).dimensions[place.dimension]

    def _tensor(self, name: str) -> TensorInput:
        return next(one for one in self.task.tensors if one.name == name)

    def _is_known(self, name: str) -> bool:
        return any(name in one.dimensions and not one.optional for one in self.task.tensors)


_LAYOUTS = {  # by whether each run of dimensions is reduced
    (True,): Layout.ROWS,
    (False, True): Layout.ROWS,
    (True, False): Layout.COLUMNS,
    (False, True, False): Layout.COLUMNS,
    (True, False, True): Layout.SEGMENTS,
}


def number_need(one: NumberInput) -> str:
    value = str(one.value).lower() if one.type is ScalarType.BOOL else repr(one.value)
    return f"{one.name} == {value}" if not value.startswith("-") else f"{one.name} + {value[1:]} == 0"

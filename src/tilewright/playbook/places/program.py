"""What a kernel for placed elements computes: loop variables, values, and the places that are read and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.places.indices import Condition, Index, Variable, constant, flat_place, of_variable
from tilewright.playbook.places.reader import Leaf, PlaceReader, Position, Read, Whole
from tilewright.playbook.places.sizes import dimension_texts
from tilewright.playbook.places.slice_needs import slice_needs
from tilewright.playbook.row_program import Load, NumberKind, Pointwise, ProgramInput, ProgramOutput, RowProgram, Value
from tilewright.playbook.space import number_need
from tilewright.records import DType, TaskOutput
from tilewright.records.gpu import reached

Change = Callable[[Variable], Index | None]


@dataclass(frozen=True)
class Written:
    """A result: its value for the loop variables, and where it goes, counted from the first element."""

    name: str
    dtype: DType
    value: int
    place: Index


@dataclass(frozen=True)
class PlacedProgram:
    name: str
    variables: tuple[Variable, ...]  # outermost first; together they go through every element once
    values: tuple[Value, ...]
    kinds: tuple[NumberKind, ...]
    leaves: dict[str, Leaf]  # by the names that loads have
    outputs: tuple[Written, ...]
    out_lines: tuple[str, ...]
    needs: tuple[str, ...]
    taken: tuple[int, ...] = ()  # values that a family takes into what it computes as a whole

    @property
    def targets(self) -> tuple[int, ...]:
        """Everything that a kernel computes for its own sake."""
        return (*(one.value for one in self.outputs), *self.taken)

    @cached_property
    def live(self) -> frozenset[int]:
        return self.closure(self.targets)

    def arguments(self, index: int) -> tuple[int, ...]:
        value = self.values[index]
        return value.arguments if isinstance(value, Pointwise) else ()

    def closure(self, targets: tuple[int, ...]) -> frozenset[int]:
        """The values that these need; those by which a place is looked up too."""

        def needed(index: int) -> Sequence[int]:
            value = self.values[index]
            if isinstance(value, Load):
                return [one.value for place in places_of(self.leaves[value.input]) for one in place.lookups]
            return self.arguments(index)

        return frozenset(reached(targets, needed))

    def leaves_of(self, targets: tuple[int, ...]) -> dict[str, Leaf]:
        """The leaves that these values need."""
        loads = (self.values[index] for index in sorted(self.closure(targets)))
        return {one.input: self.leaves[one.input] for one in loads if isinstance(one, Load)}

    def varying(self, variable: Variable) -> dict[str, bool]:
        """For every leaf: whether it differs along the variable."""
        found: dict[str, bool] = {}

        def value_varies(index: int) -> bool:
            return any(leaf_varies(name) for name in self.leaves_of((index,)))

        def leaf_varies(name: str) -> bool:
            if name not in found:
                found[name] = any(
                    place.mentions(variable) or any(value_varies(one.value) for one in place.lookups)
                    for place in places_of(self.leaves[name])
                )
            return found[name]

        return {name: leaf_varies(name) for name in self.leaves}

    @property
    def wholes(self) -> dict[str, Whole]:
        """What is computed as a whole, of the leaves that matter."""
        return {name: leaf for name, leaf in self.leaves_of(self.targets).items() if isinstance(leaf, Whole)}

    def renewed(self, reader: PlaceReader, *taken: int) -> PlacedProgram:
        """With all that was read since, and these values taken."""
        values, kinds = tuple(reader.values), tuple(reader.kinds)
        return replace(self, values=values, kinds=kinds, leaves=dict(reader.leaves), taken=taken)

    def changed(self, variables: tuple[Variable, ...], change: Change) -> PlacedProgram:
        """The same over other loop variables."""
        leaves = {name: _changed(leaf, change) for name, leaf in self.leaves.items()}
        outputs = tuple(replace(one, place=one.place.replaced(change)) for one in self.outputs)
        return replace(self, variables=variables, leaves=leaves, outputs=outputs)

    def as_rows(self, variable: Variable | None = None) -> RowProgram:
        """For the writers of C++: every leaf an input, which varies along a row where it does along the variable."""
        varies = self.varying(variable) if variable is not None else dict.fromkeys(self.leaves, True)
        inputs = tuple(
            ProgramInput(
                name, leaf.dtype if isinstance(leaf, Read) else _dtype_of_kind(self._kind(name)), varies[name], None
            )
            for name, leaf in self.leaves.items()
        )
        outputs = tuple(ProgramOutput(one.name, one.dtype, one.value, True) for one in self.outputs)
        return RowProgram(self.name, inputs, outputs, self.values, self.kinds, self.out_lines, self.needs, "", "", 0, 0)

    def _kind(self, leaf: str) -> NumberKind:
        return next(
            kind
            for value, kind in zip(self.values, self.kinds, strict=True)
            if isinstance(value, Load) and value.input == leaf
        )

    @property
    def reads(self) -> dict[str, Read]:
        return {name: leaf for name, leaf in self.leaves_of(self.targets).items() if isinstance(leaf, Read)}


def _dtype_of_kind(kind: NumberKind) -> DType:
    return {NumberKind.FLOAT: DType.F32, NumberKind.INT: DType.I64, NumberKind.BOOL: DType.BOOL}[kind]


def places_of(leaf: Leaf) -> tuple[Index, ...]:
    """Every place that a leaf has to do with."""
    if isinstance(leaf, Position):
        return (leaf.place,)
    own = (leaf.place,) if isinstance(leaf, Read) else leaf.places
    return (*own, *(one.index for one in leaf.conditions))


def _changed(leaf: Leaf, change: Change) -> Leaf:
    if isinstance(leaf, Position):
        return Position(leaf.place.replaced(change))
    conditions = tuple(Condition(one.index.replaced(change), one.low, one.high) for one in leaf.conditions)
    if isinstance(leaf, Read):
        return replace(leaf, place=leaf.place.replaced(change), conditions=conditions)
    return replace(leaf, places=tuple(one.replaced(change) for one in leaf.places), conditions=conditions)


def variables_of(reader: PlaceReader, output: TaskOutput, node: int) -> tuple[Variable | None, ...]:
    """A loop variable for every dimension of a result; None for one of size 1."""
    made: list[Variable | None] = []
    taken: set[str] = set()
    for place, name in enumerate(output.shape):
        size = reader.book.dimension(name) if isinstance(name, str) else reader.shape(node)[place]
        wanted = f"at_{name}" if isinstance(name, str) and f"at_{name}" not in taken else f"at_{place}"
        taken.add(wanted)
        made.append(None if size.is_always(1) else Variable(wanted, size))
    return tuple(made)


def placed_program(reader: PlaceReader, which: tuple[int, ...]) -> PlacedProgram:
    """The results of these numbers, all of one shape, over the dimensions of that shape."""
    task, trace = reader.traced.task, reader.traced.traces[0]
    first = trace.outputs[which[0]]
    found = variables_of(reader, task.outputs[which[0]], first)
    zero, one = constant(reader.book.number(0)), reader.book.number(1)
    places = tuple(zero if variable is None else of_variable(variable) for variable in found)
    flat = flat_place(places, tuple(one if variable is None else variable.size for variable in found), one)
    outputs = []
    for number in which:
        output = task.outputs[number]
        outputs.append(Written(output.name, output.dtype, reader.value_at(trace.outputs[number], places), flat))
    return PlacedProgram(
        task.name,
        tuple(variable for variable in found if variable is not None),
        tuple(reader.values),
        tuple(reader.kinds),
        dict(reader.leaves),
        tuple(outputs),
        out_lines(reader.traced),
        shape_needs(reader.traced),
    )


def whole_program(reader: PlaceReader, where: str) -> PlacedProgram:
    """All results; they have one shape, as they must in this kind of work."""
    trace = reader.traced.traces[0]
    if len({trace.nodes[node].result.shape for node in trace.outputs}) > 1:
        raise NotSupported(f"the playbook writes results of one shape {where}, and here they differ")
    return placed_program(reader, tuple(range(len(trace.outputs))))


def out_lines(traced: TracedTask) -> tuple[str, ...]:
    """The plan's lines for the results, without the directive."""
    texts = dimension_texts(traced.task)
    lines = []
    for one in traced.task.outputs:
        sizes = [str(size) if isinstance(size, int) else _known(texts, size) for size in one.shape]
        same = [tensor.name for tensor in traced.task.tensors if not tensor.optional and tensor.dimensions == one.shape]
        shape = f"{same[0]}.shape" if same and one.shape else ", ".join(sizes)
        lines.append(f"{one.name}: {one.dtype}[{shape}]")
    return tuple(lines)


def _known(texts: dict[str, str], name: str) -> str:
    if name not in texts:
        raise NotSupported(f"the playbook cannot tell the size {name} from the inputs' shapes")
    return texts[name]


def shape_needs(traced: TracedTask) -> tuple[str, ...]:
    """The plan's conditions on dtypes, shapes and numbers."""
    task, texts = traced.task, dimension_texts(traced.task)
    given = [one for one in task.tensors if not one.optional]
    needs = [" and ".join(f"{one.name}.dtype == {one.dtype}" for one in given)]
    formulas = {one.name: one.formula for one in task.dimensions}
    for tensor in given:
        needs.append(f"{tensor.name}.ndim == {len(tensor.dimensions)}")
        for place, name in enumerate(tensor.dimensions):
            own, formula = f"{tensor.name}.shape[{place}]", formulas[name]
            if formula is not None and all(one in texts for one in formula.names) and texts[name] == own:
                needs.append(f"{own} == {formula.text(texts)}")
            elif texts[name] != own:
                needs.append(f"{own} == {texts[name]}")
    needs += [f"not has({one.name})" for one in task.tensors if one.optional]
    for dimension in task.dimensions:
        if dimension.name not in texts or dimension.formula is not None:
            continue
        if traced.probes.fixed or not dimension.varies or dimension.branches:
            needs.append(f"{texts[dimension.name]} == {dimension.size}")
        elif dimension.multiple_of > 1:
            needs.append(f"{texts[dimension.name]} % {dimension.multiple_of} == 0")
    needs += slice_needs(traced)
    probed = traced.probes.probes[0].numbers
    needs += [number_need(one) for one in task.numbers if one.name not in probed]
    return tuple(needs)


def merged(program: PlacedProgram, apart: frozenset[Variable] = frozenset()) -> PlacedProgram:
    """Neighbouring dimensions that every place counts through as one, made one; but not those that stay apart."""
    variables = list(program.variables)
    place = 0
    while place + 1 < len(variables):
        outer, inner = variables[place], variables[place + 1]
        if apart & {outer, inner} or not _count_as_one(program, outer, inner):
            place += 1
            continue
        joined = Variable(f"{outer.name}_{inner.name.removeprefix('at_')}"[:40], outer.size.times(inner.size))
        variables[place : place + 2] = [joined]
        zero = constant(joined.size.minus(joined.size))
        program = program.changed(
            tuple(variables),
            lambda one, a=outer, b=inner, j=joined, z=zero: z if one == a else of_variable(j) if one == b else None,  # type: ignore[misc]
        )
    return program


def _count_as_one(program: PlacedProgram, outer: Variable, inner: Variable) -> bool:
    indices = [place for leaf in program.leaves.values() for place in places_of(leaf)]
    indices += [one.place for one in program.outputs]
    for index in indices:
        if not (index.is_linear_in(outer) and index.is_linear_in(inner)):
            return False
        a, b = index.factor(outer), index.factor(inner)
        if a is None and b is None:
            continue
        if a is None or b is None or a != b.times(inner.size):
            return False
    return True

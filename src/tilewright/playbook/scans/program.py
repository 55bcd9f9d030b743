"""What a scan task computes: the running values, what goes into them, and what is made of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.places.indices import Condition, Index, Variable, of_variable
from tilewright.playbook.places.program import PlacedProgram, whole_program
from tilewright.playbook.places.reader import Leaf, PlaceReader, Read, Whole
from tilewright.playbook.places.rules import PLACE_RULES
from tilewright.playbook.row_program import NumberKind, Reduction

SCANS = {"cumsum": Reduction.SUM, "cumprod": Reduction.PRODUCT}


@dataclass(frozen=True)
class Scan:
    """One running value: the leaf that stands for it, and the value that each step takes in."""

    leaf: str
    op: Reduction
    value: int
    kind: NumberKind
    before: bool  # the running value before the step, not after it

    @property
    def combiner(self) -> str:
        return self.op.value.capitalize()

    @property
    def start(self) -> str:
        number = "1" if self.op is Reduction.PRODUCT else "0"
        return f"{number}.0f" if self.kind is NumberKind.FLOAT else number


@dataclass(frozen=True)
class ScanProgram:
    placed: PlacedProgram
    scans: tuple[Scan, ...]
    along: Variable  # the loop variable that the scans go along

    @property
    def rows(self) -> tuple[Variable, ...]:
        """The loop variables that number the rows."""
        return tuple(one for one in self.placed.variables if one != self.along)

    @property
    def inner(self) -> tuple[int, ...]:
        return tuple(one.value for one in self.scans)

    @property
    def is_contiguous(self) -> bool:
        return all(self._factor_is_one(one.place) for one in self.placed.outputs)

    def _factor_is_one(self, place: Index) -> bool:
        factor = place.factor(self.along)
        return (factor is not None and factor.is_always(1)) or (factor is not None and factor.is_always(-1))


def scan_program(traced: TracedTask) -> ScanProgram:
    """The one loop of the task. Raises `NotSupported` where it takes several."""
    reader = PlaceReader(traced, PLACE_RULES, frozenset(SCANS))
    placed = whole_program(reader, "in a scan")
    along, backwards = _direction(reader, placed.wholes)
    placed, along = _turned(placed, along) if backwards else (placed, along)
    found = [_scan(reader, along, name, leaf) for name, leaf in placed.wholes.items()]
    inner = {name: leaf for name, leaf in reader.leaves.items() if name not in placed.leaves}
    if any(isinstance(leaf, Whole) for leaf in inner.values()):
        raise NotSupported("the playbook does not write a scan of a scan")
    leaves = {**placed.leaves, **{name: _without_needless(reader, leaf) for name, leaf in inner.items()}}
    placed = replace(placed.renewed(reader, *(one.value for one in found)), leaves=leaves)
    return ScanProgram(placed, tuple(found), along)


def _dimension(reader: PlaceReader, whole: Whole) -> int:
    return reader.dimension(reader.nodes[whole.node], 1, "dim", len(whole.places))


def _direction(reader: PlaceReader, wholes: dict[str, Whole]) -> tuple[Variable, bool]:
    """The loop variable that all scans go along, and whether they go against it."""
    found: set[tuple[Variable, bool]] = set()
    for whole in wholes.values():
        dim = _dimension(reader, whole)
        terms = whole.places[dim].terms
        variable = terms[0][0] if len(terms) == 1 else None
        if not isinstance(variable, Variable) or abs(terms[0][1].own) != 1:
            raise NotSupported("the playbook writes scans whose result is used in order or reversed, not regrouped")
        if any(place.mentions(variable) for other, place in enumerate(whole.places) if other != dim):
            raise NotSupported("the playbook writes scans whose result is used in order or reversed, not regrouped")
        found.add((variable, terms[0][1].own < 0))
    if len(found) != 1:
        raise NotSupported("the playbook writes scans along one dimension and in one direction at a time")
    return found.pop()


def _turned(placed: PlacedProgram, along: Variable) -> tuple[PlacedProgram, Variable]:
    """With a loop variable that goes the other way."""
    turned = Variable(f"{along.name}_back", along.size)
    one = of_variable(turned).terms[0][1]
    opposite = of_variable(turned).times(one.negated()).shifted(along.size.minus(one))
    variables = tuple(turned if variable == along else variable for variable in placed.variables)
    return placed.changed(variables, lambda variable: opposite if variable == along else None), turned


def _scan(reader: PlaceReader, along: Variable, name: str, whole: Whole) -> Scan:
    node = reader.nodes[whole.node]
    dim = _dimension(reader, whole)
    shift = whole.places[dim].constant
    if not (shift.is_always(0) or shift.is_always(-1)):
        raise NotSupported("the playbook writes scans that include their element or end before it, not shifted further")
    places = (*whole.places[:dim], of_variable(along), *whole.places[dim + 1 :])
    with reader.under(Condition(of_variable(along), high=reader.shape(whole.node)[dim])):
        value = reader.argument(node, 0, places)
    kind = reader.summed_kind(node)
    return Scan(name, SCANS[node.target], reader.convert(value, kind), kind, shift.is_always(-1))


def _without_needless(reader: PlaceReader, leaf: Leaf) -> Leaf:
    """A read that stays inside its tensor needs no condition: what it reads beyond the scan's end, nobody uses."""
    if not isinstance(leaf, Read) or not leaf.conditions:
        return leaf
    count = reader.book.number(1)
    for size in reader.input_sizes(leaf.tensor):
        count = count.times(size)
    return replace(leaf, conditions=()) if leaf.place.lies_in(count) else leaf

"""What a top-k task computes: the rows, how many elements are chosen of each, and what is made of them."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.places.indices import Variable, of_variable
from tilewright.playbook.places.program import PlacedProgram, whole_program
from tilewright.playbook.places.reader import PlaceReader, PlaceRule, Places, Whole
from tilewright.playbook.places.rules import PLACE_RULES
from tilewright.playbook.row_program import NumberKind
from tilewright.playbook.tracing import Node, TracedNode

MOST = 32  # elements that are chosen: what one warp writes at once


@dataclass(frozen=True)
class TopProgram:
    placed: PlacedProgram
    rows: tuple[Variable, ...]
    along: Variable  # what the elements are chosen from
    chosen: Variable  # their number in the result
    count: int
    value: int  # of an element
    largest: bool
    values_leaf: str | None  # stand for the chosen values and their indices, where they are used
    indices_leaf: str | None


def top_program(traced: TracedTask) -> TopProgram:
    """The one choice of the task. Raises `NotSupported` for anything else."""
    reader = PlaceReader(traced, RULES)
    placed = whole_program(reader, "with topk")
    wholes = placed.wholes
    if len({(one.node, one.places) for one in wholes.values()}) != 1:
        raise NotSupported("the playbook writes one topk at a time, whose values and indices are used in one order")
    whole = next(iter(wholes.values()))
    node = reader.nodes[whole.node]
    counts = set(reader.whole_number(whole.node, 1, "k", 0))
    if len(counts) != 1 or not 1 <= (count := counts.pop()) <= MOST:
        raise NotSupported(f"the playbook writes topk with a fixed k of at most {MOST}")
    dim = reader.dimension(node, 2, "dim", len(whole.places), len(whole.places) - 1)
    place = whole.places[dim]
    chosen = place.atoms[0] if len(place.terms) == 1 and place.constant.is_always(0) else None
    if count == 1 and not place.terms:
        chosen = Variable("at_chosen", reader.book.number(1))
    if not isinstance(chosen, Variable) or (place.terms and not place.terms[0][1].is_always(1)):
        raise NotSupported("the playbook writes what topk chose in its own order")
    along = Variable("at_element", reader.shape(reader.source(node))[dim])
    value = reader.argument(node, 0, (*whole.places[:dim], of_variable(along), *whole.places[dim + 1 :]))
    if reader.kinds[value] is not NumberKind.FLOAT:
        raise NotSupported("the playbook writes topk of floats only")
    placed = placed.renewed(reader, value)
    if any(isinstance(leaf, Whole) for leaf in placed.leaves_of((value,)).values()):
        raise NotSupported("the playbook writes one topk at a time, not one of another")
    names = {one.result: name for name, one in wholes.items()}
    largest = reader.flag(node, 3, "largest", True)
    rows = tuple(one for one in placed.variables if one != chosen)
    return TopProgram(placed, rows, along, chosen, count, value, largest, names.get(0), names.get(1))


def _getitem(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    source, which = node.arguments
    assert isinstance(source, Node)
    if reader.nodes[source.index].target != "topk":
        return PLACE_RULES["getitem"](reader, index, node, places)
    assert isinstance(which, int)
    kind = NumberKind.INT if which else NumberKind.FLOAT
    return reader.leaf("best_index" if which else "best", Whole(source.index, places, (), which), kind)


RULES: dict[str, PlaceRule] = {**PLACE_RULES, "getitem": _getitem}

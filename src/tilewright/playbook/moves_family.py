"""Moves: results whose elements read a few places of the inputs each, whatever views, joins and look-ups say so."""

from __future__ import annotations

from functools import partial

from tilewright.playbook.families import Answer, Family, Structure, TracedTask
from tilewright.playbook.file_text import file_of
from tilewright.playbook.moves.structures import draft, vectors
from tilewright.playbook.moves.tiles import crossing, tiles
from tilewright.playbook.operations import POINTWISE_RULES
from tilewright.playbook.places.program import PlacedProgram, merged, placed_program
from tilewright.playbook.places.reader import PlaceReader
from tilewright.playbook.places.rules import MOVES, PLACE_RULES
from tilewright.playbook.tracing import Node

_VIEWS = ("view", "reshape", "_unsafe_view", "_reshape")
KEPT = frozenset(PLACE_RULES) - {"remainder", "fmod"}


def _claims(traced: TracedTask) -> bool:
    known = POINTWISE_RULES.keys() | PLACE_RULES.keys() | MOVES
    return traced.targets <= known and (bool(traced.targets & MOVES) or _regroups(traced))


def _regroups(traced: TracedTask) -> bool:
    """Whether a view joins or splits dimensions, so that rows are not what they were."""
    nodes = traced.traces[0].nodes
    for node in nodes:
        source = node.arguments[0] if node.arguments else None
        if node.target not in _VIEWS or not isinstance(source, Node):
            continue
        before, after = nodes[source.index].results[0], node.results[0]
        if before is not None and after is not None and _plain(before.shape) != _plain(after.shape):
            return True
    return False


def _plain(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size != 1]


def moved(traced: TracedTask) -> tuple[PlacedProgram, ...]:
    """A program for the results of each shape."""
    outputs = traced.traces[0].outputs
    shapes: dict[tuple[int, ...], list[int]] = {}
    for number, node in enumerate(outputs):
        shapes.setdefault(traced.traces[0].nodes[node].result.shape, []).append(number)
    found = []
    for which in shapes.values():
        reader = PlaceReader(traced, PLACE_RULES)
        found.append(merged(placed_program(reader, tuple(which))))
    return tuple(found)


def _answer(traced: TracedTask) -> Answer:
    programs = moved(traced)
    first = Structure(
        "draft-places",
        "first version: one thread per element, which finds its places",
        partial(file_of, partial(draft, programs)),
    )
    later: tuple[Structure, ...] = ()
    if all(program.variables for program in programs):
        summary = "16-byte vectors of the result, each read from where its elements lie"
        later = (Structure("place-vectors", summary, partial(file_of, partial(vectors, programs))),)
    if len(programs) == 1 and crossing(programs[0]) is not None:
        summary = "squares turned in shared memory, so that reads and writes both move whole lines"
        later = (Structure("place-tiles", summary, partial(file_of, partial(tiles, programs[0]))), *later)
    return Answer(first, later, (first, *later))


MOVES_FAMILY = Family("moves", KEPT, _claims, _answer)

"""What a loss over picked elements computes: of every row a few numbers, and sums of them over all rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.places.indices import Variable, constant, of_variable
from tilewright.playbook.places.program import PlacedProgram, whole_program
from tilewright.playbook.places.reader import PlaceReader, PlaceRule, Places, Whole
from tilewright.playbook.places.rules import PLACE_RULES
from tilewright.playbook.row_program import NumberKind
from tilewright.playbook.tracing import TracedNode

EXPONENTIALS = frozenset(("_log_softmax", "_softmax", "logsumexp"))
SUMS = frozenset(("sum", "mean"))
_MOST_AGAIN = 8  # results of a row, for each of which the row is gone through again
PICKS = frozenset(("gather", "index", "index_select", "embedding"))


@dataclass(frozen=True)
class Sum:
    """A sum over all rows: the leaf that stands for it, and the row's value."""

    leaf: str
    value: int
    kind: NumberKind


@dataclass(frozen=True)
class LogSum:
    """The logarithm of the sum of a row's exponentials: its leaf, and the value of an element."""

    leaf: str
    value: int
    is_plain: bool = False  # the sum of the elements themselves


@dataclass(frozen=True)
class LossProgram:
    placed: PlacedProgram
    rows: tuple[Variable, ...]
    along: Variable | None  # what rows are made of, where anything is summed along them
    sums: tuple[Sum, ...]  # empty: the results have one element per row
    log_sums: tuple[LogSum, ...]


def loss_program(traced: TracedTask) -> LossProgram:
    """The rows of the task and what becomes of them. Raises `NotSupported` for anything else."""
    reader = PlaceReader(traced, RULES)
    placed = whole_program(reader, "in a loss")
    totals = {name: one for name, one in placed.wholes.items() if not one.places and _sums_all(reader, one)}
    sums, rows = _sums(reader, totals) if totals else ((), placed.variables)
    placed = placed.renewed(reader, *(one.value for one in sums))
    inner = {name: one for name, one in placed.wholes.items() if name not in totals}
    log_sums, along = _log_sums(reader, inner, rows)
    known: tuple[Sum | LogSum, ...] = (*sums, *log_sums)
    placed = placed.renewed(reader, *(one.value for one in known))
    if placed.wholes.keys() - {one.leaf for one in known}:
        raise NotSupported("the playbook writes sums over rows of what rows come to, not deeper nests of them")
    return LossProgram(placed, rows, along, sums, log_sums)


def _sums(reader: PlaceReader, wholes: dict[str, Whole]) -> tuple[tuple[Sum, ...], tuple[Variable, ...]]:
    """The sums over all rows, and loop variables for the rows."""
    shapes = {name: reader.shape(reader.source(reader.nodes[one.node])) for name, one in wholes.items()}
    plain = {tuple(size for size in shape if not size.is_always(1)) for shape in shapes.values()}
    if len(plain) != 1:
        raise NotSupported("the playbook sums a loss over all rows at once, and here sums differ in what they are over")
    first = next(iter(shapes.values()))
    rows = tuple(Variable(f"row_{place}", size) for place, size in enumerate(first) if not size.is_always(1))
    zero = constant(reader.book.number(0))
    found = []
    for name, one in wholes.items():
        node, rest = reader.nodes[one.node], iter(rows)
        places = tuple(zero if size.is_always(1) else of_variable(next(rest)) for size in shapes[name])
        kind = reader.summed_kind(node)
        found.append(Sum(name, reader.convert(reader.argument(node, 0, places), kind), kind))
    return tuple(found), rows


def _sums_all(reader: PlaceReader, whole: Whole) -> bool:
    node, dims = reader.nodes[whole.node], reader.whole_numbers(whole.node, 1, "dim")[0]
    return node.target in SUMS and not _sums_logarithms(reader, node, dims)


def _log_sums(
    reader: PlaceReader, wholes: dict[str, Whole], rows: tuple[Variable, ...]
) -> tuple[tuple[LogSum, ...], Variable | None]:
    along: Variable | None = None
    found = []
    for name, one in wholes.items():
        node, dims = reader.nodes[one.node], reader.whole_numbers(one.node, 1, "dim")[0]
        is_plain = node.target not in EXPONENTIALS
        if is_plain and not _sums_logarithms(reader, node, dims):
            raise NotSupported("the playbook writes sums over rows of what rows come to, not deeper nests of them")
        node = reader.nodes[reader.source(node)] if is_plain else node
        shape = reader.shape(reader.source(node))
        if len(dims) != 1:
            raise NotSupported(f"the playbook writes {node.target.strip('_')} over one dimension here")
        dim = dims[0] % len(shape)
        own = Variable("at_class", shape[dim])
        if along is not None and along != own:
            raise NotSupported("the playbook writes a loss over rows of one length, and here they differ")
        along = own
        if any(not place.terms == () and place.atoms[0] not in rows for place in one.places):
            raise NotSupported("the playbook writes a loss whose rows are taken in order")
        again = math.prod(row.size.own for row in rows if not any(place.mentions(row) for place in one.places))
        if again > _MOST_AGAIN:
            raise NotSupported(
                f"the playbook picks single elements of each row's {node.target.strip('_')}, and here whole rows are "
                "made of it; look rows up in one function and normalise them in another"
            )
        places = (*one.places[:dim], of_variable(own), *one.places[dim:])
        value = reader.convert(reader.argument(node, 0, places), NumberKind.FLOAT)
        found.append(LogSum(name, value, is_plain))
    return tuple(found), along


# -- rules: the value at a place, with what its row comes to as a leaf --


def _log_sum(reader: PlaceReader, index: int, places: Places) -> int:
    return reader.leaf("log_sum", Whole(index, places, ()), NumberKind.FLOAT)


def _log_softmax(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    dim = reader.dimension(node, 1, "dim", len(places))
    value = reader.convert(reader.argument(node, 0, places), NumberKind.FLOAT)
    return reader.point("sub", value, _log_sum(reader, index, (*places[:dim], *places[dim + 1 :])))


def _softmax(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    return reader.point("exp", _log_softmax(reader, index, node, places))


def _logsumexp(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    dim = reader.whole_numbers(index, 1, "dim")[0][0]
    kept = reader.flag(node, 2, "keepdim")
    rank = len(places) if kept else len(places) + 1
    own = (*places[: dim % rank], *places[dim % rank + 1 :]) if kept else places
    return _log_sum(reader, index, own)


def _mean(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    """A mean over everything is a sum, divided once."""
    total = reader.leaf("total", Whole(index, places, ()), NumberKind.FLOAT)
    count = reader.book.number(1)
    for size in reader.shape(reader.source(node)):
        count = count.times(size)
    return reader.float_point("div", total, reader.size(count))


def _sums_logarithms(reader: PlaceReader, node: TracedNode, dims: tuple[int, ...]) -> bool:
    """Whether a sum is of a whole row of `log_softmax`, as label smoothing has it."""
    source = reader.nodes[reader.source(node)]
    rank = len(source.result.shape)
    softmax = source.target == "_log_softmax" and len(dims) == 1
    return softmax and dims[0] % rank == reader.dimension(source, 1, "dim", rank)


def _sum(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    dims = reader.whole_numbers(index, 1, "dim")[0]
    if _sums_logarithms(reader, node, dims):  # the logits' sum, less the same logarithm for each of them
        source = reader.source(node)
        dim = dims[0] % len(reader.shape(source))
        own = (*places[:dim], *places[dim + 1 :]) if reader.flag(node, 2, "keepdim") else places
        total = reader.leaf("row_sum", Whole(index, own, ()), NumberKind.FLOAT)
        each = reader.float_point("mul", reader.size(reader.shape(source)[dim]), _log_sum(reader, source, own))
        return reader.point("sub", total, each)
    return reader.leaf("total", Whole(index, places, ()), reader.summed_kind(node))


RULES: dict[str, PlaceRule] = {
    **PLACE_RULES,
    "_log_softmax": _log_softmax,
    "_softmax": _softmax,
    "logsumexp": _logsumexp,
    "mean": _mean,
    "sum": _sum,
}

"""What operations that move elements mean: where the element at a place of the result comes from."""

from __future__ import annotations

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.lowering import kind_of
from tilewright.playbook.places.indices import Condition, Index, Lookup, constant, divided, flat_place, of_atom
from tilewright.playbook.places.reader import PlaceReader, PlaceRule, Places
from tilewright.playbook.places.sizes import Size
from tilewright.playbook.row_program import NumberKind
from tilewright.playbook.tracing import Items, Node, TracedNode


def reshaped(places: Places, sizes: tuple[Size, ...], source: tuple[Size, ...], one: Size) -> Places:
    """The place in a tensor of the sizes `source` of what lies at `places` in a view with other sizes."""
    found: list[Index] = [constant(one.minus(one))] * len(source)
    left, right = len(source), len(sizes)
    while left > 0:
        lows, highs = left - 1, right
        inner, outer = source[lows], one
        while inner != outer:  # take dimensions from both until the same number of elements is in each
            if any(a < b for a, b in zip(inner.values, outer.values, strict=True)) and lows > 0:
                lows -= 1
                inner = source[lows].times(inner)
            elif highs > 0:
                highs -= 1
                outer = sizes[highs].times(outer)
            else:
                lows -= 1
                inner = source[lows].times(inner)
        flat = flat_place(places[highs:right], sizes[highs:right], one)
        for place in range(left - 1, lows, -1):
            flat, found[place] = divided(flat, source[place])
        found[lows] = flat if left > lows else found[lows]
        left, right = lows, highs
    return tuple(found)


def _reshape(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    source = reader.source(node)
    one = reader.book.number(1)
    return reader.value_at(source, reshaped(places, reader.shape(index), reader.shape(source), one))


def _expand(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    source = reader.source(node)
    return reader.value_at(source, reader._broadcast(reader.nodes[source].result.shape, places))


def _permute(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    order = reader.whole_numbers(index, 1, "dims")[0]
    found = list(places)
    for place, dim in enumerate(order):
        found[dim % len(places)] = places[place]
    return reader.argument(node, 0, tuple(found))


def _transpose(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    if not places:  # PyTorch takes a single number too
        return reader.argument(node, 0, places)
    a, b = (reader.dimension(node, position, "", len(places)) for position in (1, 2))
    found = list(places)
    found[a], found[b] = places[b], places[a]
    return reader.argument(node, 0, tuple(found))


def _replaced(places: Places, dim: int, index: Index) -> Places:
    return (*places[:dim], index, *places[dim + 1 :])


def _start(reader: PlaceReader, index: int, dim: int, position: int = 2) -> Size:
    """The first element of a slice: counted from the end where it is negative, and inside the tensor."""
    source = reader.source(reader.nodes[index])
    starts = []
    for trace, start in zip(reader.traced.traces, reader.whole_number(index, position, "start", 0), strict=True):
        size = trace.nodes[source].result.shape[dim]
        starts.append(min(max(start + size * (start < 0), 0), size))
    return reader.book.of(tuple(starts), "slice")


def _slice(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    dim = reader.dimension(node, 1, "dim", len(places))
    step = reader.book.number(reader.whole_number(index, 4, "step", 1)[0])
    moved = places[dim].times(step).shifted(_start(reader, index, dim))
    return reader.argument(node, 0, _replaced(places, dim, moved))


def _select(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    dim = reader.dimension(node, 1, "dim", len(places) + 1)
    place = constant(_start(reader, index, dim))
    return reader.argument(node, 0, (*places[:dim], place, *places[dim:]))


def _getitem(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    source, which = reader.source(node), node.arguments[1]
    assert isinstance(which, int)
    made = reader.nodes[source]
    if made.target in ("split_with_sizes", "split"):
        dim = reader.dimension(made, 2, "dim", len(places))
        starts = []
        for trace in reader.traced.traces:
            parts = trace.nodes[source].results[:which]
            starts.append(sum(one.shape[dim] for one in parts if one is not None))
        moved = places[dim].shifted(reader.book.of(tuple(starts), made.target))
        return reader.argument(made, 0, _replaced(places, dim, moved))
    if made.target == "unbind":
        dim = reader.dimension(made, 1, "dim", len(places) + 1)
        return reader.argument(made, 0, (*places[:dim], constant(reader.book.number(which)), *places[dim:]))
    if which:
        raise NotSupported(f"the playbook writes the values of {made.target}, not its other results")
    return reader.value_at(source, places)


def _cat(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    given = reader.given(node, 0, "tensors")
    assert isinstance(given, Items)
    dim = reader.dimension(node, 1, "dim", len(places))
    parts = [one.index for one in given.values if isinstance(one, Node)]
    return _joined(reader, parts, dim, places)


def _joined(reader: PlaceReader, parts: list[int], dim: int, places: Places) -> int:
    if len(parts) == 1:
        return reader.value_at(parts[0], places)
    first, size = parts[0], reader.shape(parts[0])[dim]
    after = _replaced(places, dim, places[dim].shifted(size.negated()))
    return reader.choice(
        Condition(places[dim], high=size),
        lambda: reader.value_at(first, places),
        lambda: _joined(reader, parts[1:], dim, after),
    )


def _stack(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    given = reader.given(node, 0, "tensors")
    assert isinstance(given, Items)
    dim = reader.dimension(node, 1, "dim", len(places))
    parts = [one.index for one in given.values if isinstance(one, Node)]
    inner = (*places[:dim], *places[dim + 1 :])
    value = reader.value_at(parts[-1], inner)
    for place in range(len(parts) - 2, -1, -1):
        is_here = reader.point("eq", reader.position(places[dim]), reader.constant(place, NumberKind.INT))
        value = reader.point("where", is_here, reader.value_at(parts[place], inner), value)
    return value


def _flip(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    sizes = reader.shape(index)
    found = places
    for dim in reader.whole_numbers(index, 1, "dims")[0]:
        last = constant(sizes[dim].minus(reader.book.number(1)))
        found = _replaced(found, dim % len(places), last.plus(places[dim].times(reader.book.number(-1))))
    return reader.argument(node, 0, found)


def _roll(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    sizes, shifts = reader.shape(index), reader.whole_numbers(index, 1, "shifts")
    dims = reader.whole_numbers(index, 2, "dims")[0]
    if not dims:
        raise NotSupported("the playbook rolls along dimensions that are given, not the flat tensor")
    found = places
    for which, dim in enumerate(dims):
        size = sizes[dim]
        back = []  # how far before it the element comes from
        for shift, values in zip(shifts, zip(*(one.values for one in sizes), strict=True), strict=False):
            back.append(values[dim] - shift[which] % values[dim])
        moved = found[dim].shifted(reader.book.of(tuple(back), "roll"))
        found = _replaced(found, dim % len(places), divided(moved, size)[1])
    return reader.argument(node, 0, found)


def _repeat(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    source = reader.source(node)
    sizes = reader.shape(source)
    own = places[len(places) - len(sizes) :]
    return reader.value_at(source, tuple(divided(place, size)[1] for place, size in zip(own, sizes, strict=True)))


def _pad(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    source, sizes = reader.source(node), reader.shape(reader.source(node))
    widths = reader.whole_numbers(index, 1, "pad")
    filled = reader.number(node, 2, "value", 0.0)
    moved, conditions = list(places), []
    for pair in range(len(widths[0]) // 2):
        dim = len(places) - 1 - pair
        before = reader.book.of(tuple(one[2 * pair] for one in widths), "pad")
        moved[dim] = places[dim].shifted(before.negated())
        conditions += [Condition(places[dim], low=before), Condition(places[dim], high=before.plus(sizes[dim]))]
    outside = reader.convert(filled, kind_of(node.result.dtype))

    def inside(rest: list[Condition]) -> int:
        if not rest:
            return reader.value_at(source, tuple(moved))
        return reader.choice(rest[0], lambda: inside(rest[1:]), lambda: outside)

    return inside([one for one in conditions if not one.holds_always])


def _scatter(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    """A slice of a tensor written over."""
    dim = reader.dimension(node, 2, "dim", len(places))
    if node.target == "select_scatter":
        start, size = _start(reader, index, dim, 3), reader.book.number(1)
        inner = (*places[:dim], *places[dim + 1 :])
    else:
        if reader.whole_number(index, 5, "step", 1)[0] != 1:
            raise NotSupported("the playbook writes over slices without steps only")
        start, size = _start(reader, index, dim, 3), reader.shape(reader.source(node, 1))[dim]
        inner = _replaced(places, dim, places[dim].shifted(start.negated()))
    return reader.choice(
        Condition(places[dim], low=start),
        lambda: reader.choice(
            Condition(places[dim], high=start.plus(size)),
            lambda: reader.argument(node, 1, inner),
            lambda: reader.argument(node, 0, places),
        ),
        lambda: reader.argument(node, 0, places),
    )


def _unfold(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    dim = reader.dimension(node, 1, "dimension", len(places) - 1)
    step = reader.book.number(reader.whole_number(index, 3, "step", 1)[0])
    moved = places[dim].times(step).plus(places[-1])
    return reader.argument(node, 0, _replaced(places[:-1], dim, moved))


def _diagonal(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    rank = len(places) + 1
    a, b = reader.dimension(node, 2, "dim1", rank, 0), reader.dimension(node, 3, "dim2", rank, 1)
    offset = reader.whole_number(index, 1, "offset", 0)[0]
    rest = iter(places[:-1])
    shifts = {a: max(-offset, 0), b: max(offset, 0)}
    found = [
        places[-1].shifted(reader.book.number(shifts[dim])) if dim in shifts else next(rest) for dim in range(rank)
    ]
    return reader.argument(node, 0, tuple(found))


def _triangle(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    """triu and tril: zero below or above a diagonal."""
    diagonal = reader.book.of(reader.whole_number(index, 1, "diagonal", 0), node.target)
    across = reader.point("sub", reader.position(places[-1]), reader.position(places[-2]))
    is_kept = reader.point("ge" if node.target == "triu" else "le", across, reader.size(diagonal))
    value = reader.argument(node, 0, places)
    return reader.point("where", is_kept, value, reader.constant(0.0, reader.kinds[value]))


def _arange(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    start = step = reader.constant(0, NumberKind.INT)
    if node.overload != "default":  # which has an end alone
        start = reader.number(node, 0, "start", 0)
    step = reader.number(node, 2, "step", 1)
    value = reader.position(places[0])
    kind = kind_of(node.result.dtype)
    if reader.values[step] != reader.values[reader.constant(1, kind)]:
        value = reader.point("mul", reader.convert(value, kind), reader.convert(step, kind))
    if reader.values[start] not in (reader.values[reader.constant(0, one)] for one in (kind, NumberKind.INT)):
        value = reader.point("add", reader.convert(value, kind), reader.convert(start, kind))
    return reader.convert(value, kind)


def _looked_up(reader: PlaceReader, value: int, size: Size, wraps: bool) -> Index:
    return of_atom(Lookup(reader.convert(value, NumberKind.INT), size if wraps else None), size)


def _embedding(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    table = reader.shape(reader.source(node))
    row = _looked_up(reader, reader.argument(node, 1, places[:-1]), table[0], False)
    return reader.argument(node, 0, (row, places[-1]))


def _index_select(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    source = reader.shape(reader.source(node))
    dim = reader.dimension(node, 1, "dim", len(places))
    chosen = reader.argument(node, 2, (places[dim],))
    return reader.argument(node, 0, _replaced(places, dim, _looked_up(reader, chosen, source[dim], False)))


def _gather(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    source = reader.shape(reader.source(node))
    dim = reader.dimension(node, 1, "dim", len(places))
    chosen = reader.argument(node, 2, places)
    return reader.argument(node, 0, _replaced(places, dim, _looked_up(reader, chosen, source[dim], False)))


def _index(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    """x[a, b] with tensors of indices, which PyTorch puts together where they stand, or in front."""
    given = reader.given(node, 1, "indices")
    assert isinstance(given, Items)
    source = reader.shape(reader.source(node))
    dims = [dim for dim, one in enumerate(given.values) if isinstance(one, Node)]
    ranks = []
    for dim in dims:
        one = given.values[dim]
        assert isinstance(one, Node)
        found = reader.nodes[one.index].result
        if found.dtype == "bool":
            raise NotSupported("the playbook does not select by a mask, as the result's size follows from the data")
        ranks.append(len(found.shape))
    width = max(ranks)
    together = dims == list(range(dims[0], dims[0] + len(dims)))
    first = dims[0] if together else 0
    shared, rest = places[first : first + width], iter((*places[:first], *places[first + width :]))
    found_places: list[Index] = []
    for dim, size in enumerate(source):
        one = given.values[dim] if dim < len(given.values) else None
        if not isinstance(one, Node):
            found_places.append(next(rest))
            continue
        chosen = reader.value_at(one.index, reader._broadcast(reader.nodes[one.index].result.shape, shared))
        found_places.append(_looked_up(reader, chosen, size, True))
    return reader.argument(node, 0, tuple(found_places))


def _full(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    """A tensor of one number."""
    value = reader.constant(1.0 if node.target.startswith("ones") else 0.0)
    if node.target in ("full", "full_like"):
        value = reader.item(node, 1).value
    if node.target == "scalar_tensor":
        value = reader.item(node, 0).value
    return reader.convert(value, kind_of(node.result.dtype))


PLACE_RULES: dict[str, PlaceRule] = {
    "input": lambda reader, index, node, places: reader.read(str(node.arguments[0]), places),
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "_reshape"), _reshape),
    "expand": _expand,
    "permute": _permute,
    "transpose": _transpose,
    "slice": _slice,
    "select": _select,
    "getitem": _getitem,
    "cat": _cat,
    "stack": _stack,
    "flip": _flip,
    "roll": _roll,
    "repeat": _repeat,
    "constant_pad_nd": _pad,
    "slice_scatter": _scatter,
    "select_scatter": _scatter,
    "unfold": _unfold,
    "diagonal": _diagonal,
    "arange": _arange,
    **dict.fromkeys(("triu", "tril"), _triangle),
    "embedding": _embedding,
    "index_select": _index_select,
    "gather": _gather,
    "index": _index,
    **dict.fromkeys(["full", "full_like", "scalar_tensor", "ones", "ones_like", "zeros", "zeros_like"], _full),
}
_ALSO_OF_ROWS = """
input getitem view reshape _unsafe_view unsqueeze squeeze _reshape expand full full_like scalar_tensor
ones ones_like zeros zeros_like
"""
# A graph that has one of these is not of rows.
MOVES = frozenset(PLACE_RULES) - frozenset(_ALSO_OF_ROWS.split()) | {"split_with_sizes", "split", "unbind"}

"""The sizes at which slices mean what they meant at the probes.

`x[2:]` begins at 2 wherever there are two elements, and at the end of a shorter tensor; `x[:128]` is all of a shorter
one. So a file needs as many elements as its slices count, or no more than that where the probes had fewer. Likewise a
dimension that `squeeze` left in place has to be longer than 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.playbook.families import TracedTask
from tilewright.playbook.lowering import needed
from tilewright.playbook.places.sizes import SizeBook
from tilewright.playbook.tracing import Items, Node, TracedArgument, TracedNode

_NO_END = 1 << 62  # an end that was left out is the greatest whole number
_STARTS = {"slice": 2, "slice_scatter": 3}  # where the arguments have the start; the end follows
_PLACES = {"select": 2, "select_scatter": 3}

Nodes = tuple[TracedNode, ...]  # one operation, at every probe
Sizes = tuple[int, ...]  # of a dimension, at every probe


def slice_needs(traced: TracedTask) -> tuple[str, ...]:
    """The plan's conditions on sizes of which a counted part is taken."""
    book, least, most = SizeBook(traced), dict[str, int](), dict[str, int]()
    first = traced.traces[0]
    for index in sorted(needed(first)):
        nodes = tuple(trace.nodes[index] for trace in traced.traces)
        source = nodes[0].arguments[0] if nodes[0].arguments else None
        if not isinstance(source, Node) or first.nodes[source.index].results[0] is None:
            continue
        for dim in _dimensions(nodes[0], len(first.nodes[source.index].result.shape)):
            sizes = tuple(trace.nodes[source.index].result.shape[dim] for trace in traced.traces)
            low, high = _range(nodes, dim, sizes)
            if len(set(sizes)) == 1 or (not low and high is None):
                continue
            text = book.of(sizes, nodes[0].target).text
            if low:
                least[text] = max(low, least.get(text, 0))
            if high is not None:
                most[text] = min(high, most.get(text, high))
    return (*(f"{text} >= {one}" for text, one in least.items()), *(f"{text} <= {one}" for text, one in most.items()))


def _dimensions(node: TracedNode, rank: int) -> Iterator[int]:
    """Dimensions of its operand that a node takes a part of."""
    start = _STARTS.get(node.target, _PLACES.get(node.target))
    if start is not None:
        given = node.given(start - 1, "dim")
        yield (given if isinstance(given, int) else 0) % max(rank, 1)
    elif node.target == "roll":
        yield from {dim % rank for dim in _numbers(node.given(2, "dims"))}
    elif node.target == "constant_pad_nd":
        yield from (rank - 1 - pair for pair in range(len(_numbers(node.given(1, "pad"))) // 2))
    elif node.target == "squeeze":
        yield from {dim % rank for dim in _numbers(node.given(1, "dim"))} if len(node.arguments) > 1 else range(rank)


def _range(nodes: Nodes, dim: int, sizes: Sizes) -> tuple[int, int | None]:
    """The least size at which the operation does the same, 0 for any; and the greatest, where there is one."""
    node, rank = nodes[0], len(nodes[0].result.shape)
    if node.target in _STARTS:
        return _slice_range(nodes, sizes)
    if node.target == "squeeze":
        return (2 if min(sizes) > 1 else 0), None
    if node.target in _PLACES:
        place = _counted(nodes, _PLACES[node.target], "index", sizes)
        return (0 if place is None else place + 1 if place >= 0 else -place), None
    if node.target == "roll":
        shifts = zip(*(_numbers(one.given(1, "shifts")) for one in nodes), strict=True)
        dims = _numbers(node.given(2, "dims"))
        return max(_rolled(shift, sizes) for shift, one in zip(shifts, dims, strict=True) if one % rank == dim), None
    pair = 2 * (rank - 1 - dim)
    return sum(max(-one, 0) for one in _numbers(node.given(1, "pad"))[pair : pair + 2]), None


def _rolled(shifts: Sizes, sizes: Sizes) -> int:
    """The least size that is rolled in the same way: any, where the shift is a share of it or leaves a fixed rest."""
    share = max(round(sizes[0] / max(abs(shifts[0]), 1)), 1)
    pairs = tuple(zip(shifts, sizes, strict=True))
    is_share = all(abs(shift) in (size // share, -(-size // share)) for shift, size in pairs)
    if len(set(shifts)) > 1 and (is_share or len({size - shift for shift, size in pairs}) == 1):
        return 0
    return max(map(abs, shifts))


def _slice_range(nodes: Nodes, sizes: Sizes) -> tuple[int, int | None]:
    place = _STARTS[nodes[0].target]
    given = (_counted(nodes, place, "start", sizes), _counted(nodes, place + 1, "end", sizes))
    ends = [one for one in given if one is not None]
    within = [one for one in ends if abs(one) <= min(sizes)]
    beyond = [abs(one) for one in ends if abs(one) > max(sizes)]
    count = max([0, *within]) + max([0, *(-one for one in within)])
    return (count if count > 1 else 0), min(beyond, default=None)


def _counted(nodes: Nodes, position: int, keyword: str, sizes: Sizes) -> int | None:
    """A place that is counted from an end of the dimension: below 0 from the last; None for any other."""
    given = tuple(one for node in nodes if isinstance(one := node.given(position, keyword), int))
    if len(given) != len(nodes) or abs(given[0]) >= _NO_END:
        return None
    for found in (set(given), {one - size for one, size in zip(given, sizes, strict=True)}):
        if len(found) == 1:
            return found.pop()
    return None


def _numbers(given: TracedArgument) -> tuple[int, ...]:
    values = given.values if isinstance(given, Items) else (given,)
    return tuple(one for one in values if isinstance(one, int))

"""Rules of lowering: reads and writes at looked-up places, and what goes along a line in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.loops.index import Atom, Index
from tilewright.playbook.loops.ir import Expr, Node, kind_of
from tilewright.playbook.loops.lowering import Lowering, Result, Shape, Tensor, Value, named_rule, rule, wide
from tilewright.playbook.loops.sizes import Size
from tilewright.records import DType

Places = tuple[Index, ...]


def _looked_up(low: Lowering, index: Tensor, at: Places, size: Size) -> Index:
    value = low.exprs.convert(low.element(index, at), "int")
    if value.op == "position":
        return value.index
    return low.indices.lookup(value, size)


@rule("gather")
def _gather(low: Lowering, result: Result, one: Tensor, dim: int, index: Tensor, **_: Value) -> Tensor:
    if not one.rank:
        return one
    dim %= one.rank

    def at(p: Places) -> Expr:
        return one.at((*p[:dim], _looked_up(low, index, p, one.shape[dim]), *p[dim + 1 :]))

    return low.compute(result.shape, one.dtype, at, one.exact)


@rule("index_select")
def _index_select(low: Lowering, result: Result, one: Tensor, dim: int, index: Tensor) -> Tensor:
    dim %= max(one.rank, 1)

    def at(p: Places) -> Expr:
        return one.at((*p[:dim], _looked_up(low, index, (p[dim],), one.shape[dim]), *p[dim + 1 :]))

    return low.compute(result.shape, one.dtype, at, one.exact)


@rule("embedding")
def _embedding(low: Lowering, result: Result, table: Tensor, index: Tensor, *_: Value) -> Tensor:
    def at(p: Places) -> Expr:
        return table.at((_looked_up(low, index, p[:-1], table.shape[0]), p[-1]))

    return low.compute(result.shape, table.dtype, at, table.exact)


def _indexed(low: Lowering, one: Tensor, chosen: list[Tensor | None], shape: Shape) -> Callable[[Places], Places]:
    """From the place of an element of x[i, :, j] to its place in x."""
    several: list[Tensor | None] = [*chosen, *[None] * (one.rank - len(chosen))]
    used = [place for place, index in enumerate(several) if index is not None]
    rank = max(index.rank for index in several if index is not None)
    first = used[0] if used == list(range(used[0], used[-1] + 1)) else 0

    def at(places: Places) -> Places:
        shared = places[first : first + rank]
        others = iter((*places[:first], *places[first + rank :]))
        return tuple(
            next(others) if index is None else _looked_up(low, index, shared, one.shape[place])
            for place, index in enumerate(several)
        )

    return at


def _refuse_masks(chosen: list[Tensor | None], word: str) -> None:
    if any(index is not None and index.dtype in (DType.BOOL, DType.U8) for index in chosen):
        raise NotSupported(f"the playbook has no rule for {word} with a mask, whose result's size depends on data")


@rule("index", "_unsafe_index")
def _index(low: Lowering, result: Result, one: Tensor, chosen: list[Tensor | None]) -> Tensor:
    _refuse_masks(chosen, "index")
    places = _indexed(low, one, chosen, result.shape)
    return low.compute(result.shape, one.dtype, lambda at: one.at(places(at)), one.exact)


@rule("index_put", "_unsafe_index_put")
def _index_put(
    low: Lowering, result: Result, base: Tensor, chosen: list[Tensor | None], source: Tensor, accumulate: bool = False
) -> Tensor:
    if any(index is not None and index.dtype is DType.BOOL for index in chosen):
        return _masked_put(low, result, base, chosen, source)
    indices = [index for index in chosen if index is not None]
    rank = max(index.rank for index in indices)
    shared = [low.sizes.one] * rank
    for index in indices:
        for place, size in enumerate(index.shape):
            back = rank - index.rank + place
            shared[back] = size if shared[back].is_always(1) else shared[back]
    several = [*chosen, *[None] * (base.rank - len(chosen))]
    used = [place for place, index in enumerate(several) if index is not None]
    first = used[0] if used == list(range(used[0], used[-1] + 1)) else 0
    rest = [size for size, index in zip(base.shape, several, strict=True) if index is None]
    shape = [*rest[:first], *shared, *rest[first:]]
    places = _indexed(low, base, chosen, shape)
    return _scattered(low, result, base, shape, source, places, "sum" if accumulate else "set")


def _masked_put(low: Lowering, result: Result, base: Tensor, chosen: list[Tensor | None], source: Tensor) -> Tensor:
    """x[mask] = number is a choice."""
    mask = chosen[0]
    if mask is None or len(chosen) > 1 or source.rank:
        raise NotSupported("the playbook has no rule for index_put with a mask, but for one number")
    kind = kind_of(result.dtype)

    def at(p: Places) -> Expr:
        test = mask.at(p[: mask.rank])
        return low.exprs.select(test, low.exprs.convert(source.at(()), kind), low.element(base, p))

    return low.compute(result.shape, result.dtype, at)


def _scattered(
    low: Lowering,
    result: Result,
    base: Tensor,
    shape: Shape,
    source: Value,
    target: Callable[[Places], Places],
    op: str,
) -> Tensor:
    """A copy of the base, then a node that writes into it at looked-up places."""
    exact = op == "set" and base.exact and not (isinstance(source, Tensor) and not source.exact)
    dtype = result.dtype if exact else wide(result.dtype)
    if op != "set" and dtype in (DType.I16, DType.I8, DType.U8, DType.BOOL):
        raise NotSupported(f"the playbook does not scatter sums of {dtype}")
    low.compute(result.shape, dtype, base.at, exact=True)
    filled, loops = low.program.nodes[-1].buffer, low.variables(shape)
    at = low.places(loops)
    buffer = low.program.buffer(low.fresh("s"), result.shape, dtype)
    body = low.exprs.convert(low.element(source, at), kind_of(dtype))
    low.program.nodes.append(Node("scatter", buffer, loops, body, target(at), op=op, initial=filled.name))
    made = low.read(buffer, exact)
    return Tensor(made.shape, result.dtype, made.at, made.exact)


def _along(low: Lowering, base: Tensor, dim: int, index: Tensor) -> Callable[[Places], Places]:
    if not base.rank:
        return lambda at: ()
    return lambda at: (*at[:dim], _looked_up(low, index, at, base.shape[dim]), *at[dim + 1 :])


_REDUCES = {"add": "sum", "sum": "sum", "multiply": "prod", "prod": "prod", "amax": "max", "amin": "min"}


@named_rule(scatter="set", scatter_add="sum")
def _scatter(
    op: str,
    low: Lowering,
    result: Result,
    base: Tensor,
    dim: int,
    index: Tensor,
    source: Value,
    *,
    reduce: Value = None,
) -> Tensor:
    dim %= max(base.rank, 1)
    op = _REDUCES[reduce] if reduce else op
    return _scattered(low, result, base, index.shape, source, _along(low, base, dim, index), op)


@rule("scatter_reduce")
def _scatter_reduce(
    low: Lowering, result: Result, base: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *,
    include_self: bool = True,
) -> Tensor:  # fmt: skip
    if reduce == "mean" or not include_self:
        raise NotSupported("the playbook has no rule for scatter_reduce by mean, or without the tensor's own elements")
    dim %= max(base.rank, 1)
    return _scattered(low, result, base, index.shape, source, _along(low, base, dim, index), _REDUCES[reduce])


@rule("index_add")
def _index_add(
    low: Lowering, result: Result, base: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Value = 1
) -> Tensor:
    dim %= max(base.rank, 1)
    kind = kind_of(result.dtype)

    def target(at: Places) -> Places:
        return (*at[:dim], _looked_up(low, index, (at[dim],), base.shape[dim]), *at[dim + 1 :])

    def scaled(at: Places) -> Expr:
        by = low.exprs.convert(low.element(alpha, ()), kind)
        return low.exprs.expr("mul", (low.exprs.convert(source.at(at), kind), by), kind)

    own = source if alpha == 1 else Tensor(source.shape, source.dtype, scaled, False)
    return _scattered(low, result, base, source.shape, own, target, "sum")


@rule("index_copy")
def _index_copy(low: Lowering, result: Result, base: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    dim %= max(base.rank, 1)

    def target(at: Places) -> Places:
        return (*at[:dim], _looked_up(low, index, (at[dim],), base.shape[dim]), *at[dim + 1 :])

    return _scattered(low, result, base, source.shape, source, target, "set")


# -- in order --


@rule("searchsorted")
def _searchsorted(
    low: Lowering,
    result: Result,
    ordered: Tensor,
    values: Value,
    *,
    right: bool = False,
    side: Value = None,
    **_: Value,
) -> Tensor:
    return _places_among(low, result, ordered, values, right or side == "right")


@rule("bucketize")
def _bucketize(
    low: Lowering, result: Result, values: Value, ordered: Tensor, *, right: bool = False, **_: Value
) -> Tensor:
    return _places_among(low, result, ordered, values, right)


def _places_among(low: Lowering, result: Result, ordered: Tensor, values: Value, right: bool) -> Tensor:
    """How many of a line in order come before each value: a count, for lines are short and a search is not a sum."""
    outer, inner = low.variables(result.shape), low.variables(ordered.shape[-1:])
    at, along = low.places(outer), low.places(inner)
    kind = low.common_kind((ordered, values))
    line = along if ordered.rank == 1 else (*at[:-1], *along)
    pair = (low.element(ordered, line), low.element(values, at))
    test = low.exprs.expr("le" if right else "lt", tuple(low.exprs.convert(one, kind) for one in pair), "bool")
    made = low.reduction("sum", outer, inner, low.exprs.convert(test, "int"), DType.I64)
    return Tensor(made.shape, result.dtype, made.at)


def _lines(low: Lowering, one: Tensor, dim: int) -> tuple[tuple[Atom, ...], Places]:
    """Loops with the one along which there is an order last, and the indices in the tensor's own order."""
    loops, dim = low.variables(one.shape), dim % one.rank
    return (*loops[:dim], *loops[dim + 1 :], loops[dim]), low.places(loops)


@named_rule(cumsum="sum", cumprod="prod", logcumsumexp="logsumexp")
def _scan(op: str, low: Lowering, result: Result, one: Tensor, dim: int, **_: Value) -> Tensor:
    kind = kind_of(result.dtype)
    if not one.rank:
        return low.compute(result.shape, result.dtype, lambda at: low.exprs.convert(one.at(()), kind))
    loops, at = _lines(low, one, dim)
    buffer = low.program.buffer(low.fresh("c"), one.shape, wide(result.dtype))
    body = low.exprs.convert(one.at(at), kind)
    low.program.nodes.append(Node("scan", buffer, loops, body, at, loops[-1:], op))
    made = low.read(buffer)
    return Tensor(made.shape, result.dtype, made.at, False)


@named_rule(cummax="argmax", cummin="argmin")
def _running(op: str, low: Lowering, result: Any, one: Tensor, dim: int) -> Value:
    if not one.rank:
        return one, low.compute((), DType.I64, lambda at: low.exprs.constant(0, "int"))
    loops, at = _lines(low, one, dim)
    values = low.program.buffer(low.fresh("c"), one.shape, one.dtype if one.exact else wide(one.dtype))
    places = low.program.buffer(low.fresh("c"), one.shape, DType.I64)
    low.program.nodes.append(Node("scan", values, loops, low.element(one, at), at, loops[-1:], op, places))
    made = low.read(values)
    return Tensor(made.shape, one.dtype, made.at, one.exact), low.read(places)


def _ordered(low: Lowering, result: Any, one: Tensor, dim: int, descending: bool) -> Value:
    """Values in order and where they were; a buffer that is shorter than the line takes the first ones."""
    if not one.rank:
        return one, low.compute((), DType.I64, lambda at: low.exprs.constant(0, "int"))
    loops, at = _lines(low, one, dim)
    values = low.program.buffer(low.fresh("o"), result[0].shape, one.dtype if one.exact else wide(one.dtype))
    places = low.program.buffer(low.fresh("o"), result[0].shape, DType.I64)
    op = "descending" if descending else "ascending"
    body = low.element(one, at)
    body = low.exprs.convert(body, "int") if body.kind == "bool" else body
    low.program.nodes.append(Node("sort", values, loops, body, at, loops[-1:], op, places))
    made = low.read(values)
    return Tensor(made.shape, one.dtype, made.at, one.exact), low.read(places)


@rule("topk")
def _topk(
    low: Lowering, result: Any, one: Tensor, count: Value, dim: int = -1, largest: bool = True, ordered: bool = True
) -> Value:
    return _ordered(low, result, one, dim, largest)


@rule("sort")
def _sort(
    low: Lowering,
    result: Any,
    one: Tensor,
    *given: Value,
    stable: Value = None,
    dim: int = -1,
    descending: bool = False,
) -> Value:
    dim, descending = (*given, *(dim, descending)[len(given) :])[-2:]
    return _ordered(low, result, one, dim, descending)


@rule("kthvalue")
def _kth(low: Lowering, result: Any, one: Tensor, count: int, dim: int = -1, keep: bool = False) -> Value:
    if not one.rank:
        return _ordered(low, result, one, dim, False)
    dim = dim % one.rank
    shape = tuple(low.sizes.size(count) if place == dim else size for place, size in enumerate(one.shape))
    values, places = _ordered(low, (Result(shape, one.dtype), None), one, dim, False)
    last = low.indices.number(count - 1)

    def chosen(part: Result, tensor: Tensor) -> Tensor:
        rest = dim + 1 if keep else dim
        return Tensor(part.shape, tensor.dtype, lambda at: tensor.at((*at[:dim], last, *at[rest:])))

    return chosen(result[0], values), chosen(result[1], places)

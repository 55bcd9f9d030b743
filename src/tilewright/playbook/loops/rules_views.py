"""Rules of lowering: what only moves elements. Views are other indices and make no nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.loops.index import Index
from tilewright.playbook.loops.ir import Expr, kind_of, rewrite
from tilewright.playbook.loops.lowering import Lowering, Result, Tensor, Value, named_rule, rule
from tilewright.playbook.loops.sizes import Size
from tilewright.records import DType

Places = tuple[Index, ...]


@rule("constant")
def _constant(low: Lowering, result: Result, number: Value, several: Value = None) -> Tensor:
    """A tensor of constants: one number, or a choice among several by the flat index."""
    kind = kind_of(result.dtype)
    if number is None and (several is None or not all(isinstance(one, (bool, int, float)) for one in several)):
        raise NotSupported("the playbook writes tensors of constants of up to 4096 elements, the same at every size")
    if several is None:
        one = low.element(number, ())
        return Tensor(result.shape, result.dtype, lambda at: low.exprs.convert(one, kind))
    values = tuple(float(one) if kind in ("float", "double") else int(one) for one in several)

    def at(places: Places) -> Expr:
        flat = low.indices.ravel(places, low.indices.strides(result.shape))
        return low.exprs.expr("table", (low.exprs.position(flat),), kind, (*values, result.dtype is DType.BOOL))

    return Tensor(result.shape, result.dtype, at)


@rule("view", "reshape", "_reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "_reshape_alias")
def _view(low: Lowering, result: Result, one: Tensor, *_: Value, **__: Value) -> Tensor:
    if any(isinstance(other, str) for other in _):
        raise NotSupported("the playbook does not read a tensor as another dtype (view with a dtype)")
    strides = low.indices.strides(result.shape)

    def at(places: Places) -> Expr:
        return one.at(low.indices.unravel(low.indices.ravel(places, strides), one.shape))

    return Tensor(result.shape, one.dtype, at, one.exact)


@rule("as_strided")
def _as_strided(low: Lowering, result: Result, one: Tensor, _: Value, strides: Value, offset: Value = 0) -> Tensor:
    """By PyTorch's rule the strides count elements of memory, which is dense where a tensor was computed."""
    steps = [low.sizes.size(stride) for stride in strides]

    def at(places: Places) -> Expr:
        return one.at(low.indices.unravel(low.indices.ravel(places, steps) + (offset or 0), one.shape))

    return Tensor(result.shape, one.dtype, at, one.exact)


@rule("expand")
def _expand(low: Lowering, result: Result, one: Tensor, *_: Value, **__: Value) -> Tensor:
    return Tensor(result.shape, one.dtype, lambda places: low.element(one, places), one.exact)


@rule("broadcast_in_dim")
def _broadcast(low: Lowering, result: Result, one: Tensor, _: Value, dims: Value) -> Tensor:
    def at(places: Places) -> Expr:
        pairs = zip(one.shape, dims, strict=True)
        return one.at(tuple(low.indices.zero if size.is_always(1) else places[dim] for size, dim in pairs))

    return Tensor(result.shape, one.dtype, at, one.exact)


@rule("permute")
def _permute(low: Lowering, result: Result, one: Tensor, order: Value) -> Tensor:
    dims = [dim % one.rank for dim in order]
    return Tensor(
        result.shape, one.dtype, lambda at: one.at(tuple(at[dims.index(k)] for k in range(len(at)))), one.exact
    )


@rule("transpose")
def _transpose(low: Lowering, result: Result, one: Tensor, first: int, second: int) -> Tensor:
    order = list(range(one.rank))
    if one.rank:
        order[first % one.rank], order[second % one.rank] = second % one.rank, first % one.rank
    return _permute(low, result, one, order)  # type: ignore[no-any-return]


@rule("t")
def _t(low: Lowering, result: Result, one: Tensor) -> Tensor:
    return Tensor(result.shape, one.dtype, lambda at: one.at(at[::-1]), one.exact)


def moved(one: Tensor, shape: Sequence[Size], dim: int, move: Callable[[Index], Index]) -> Tensor:
    """The tensor with another index along one dimension."""
    dim %= one.rank
    return Tensor(tuple(shape), one.dtype, lambda at: one.at((*at[:dim], move(at[dim]), *at[dim + 1 :])), one.exact)


def _place(low: Lowering, place: Value, size: Size) -> Size:
    """A place counted from an end of a dimension, cut to it as a slice is."""
    given = low.sizes.size(place)
    values = tuple(
        max(one + length, 0) if one < 0 else min(one, length)
        for one, length in zip(given.values, size.values, strict=True)
    )
    if values == given.values:
        return given
    if all(one < 0 for one in given.values):
        return low.sizes.made(values, ("+", given, size))
    return low.sizes.traced(values, "a slice")


@rule("slice")
def slice_rule(
    low: Lowering, result: Result, one: Tensor, dim: int = 0, start: Value = None, end: Value = None, step: int = 1
) -> Tensor:
    first, size = _place(low, start or 0, one.shape[dim]), one.shape[dim]
    stop = first + (result.shape[dim] - 1) * step + 1
    if stop.literal is None:  # the plan's conditions on shapes see to other ones
        low.require(stop, size)
    for place in (start, end):
        if isinstance(place, Size) and max(place.traced) < 0:  # counted from the end
            low.require(place * -1, size)
    if isinstance(end, Size) and all(one >= other for one, other in zip(end.traced, size.traced, strict=True)):
        low.require(size, end)  # which leaves nothing out
    return moved(one, result.shape, dim, lambda index: index * step + first)


@rule("select")
def _select(low: Lowering, result: Result, one: Tensor, dim: int, place: Value) -> Tensor:
    dim %= one.rank
    taken = _place(low, place, one.shape[dim])
    if taken.literal is None:
        low.require(taken + 1, one.shape[dim])
    fixed = low.indices.number(taken)
    return Tensor(result.shape, one.dtype, lambda at: one.at((*at[:dim], fixed, *at[dim:])), one.exact)


@rule("unbind")
def _unbind(low: Lowering, results: tuple[Result, ...], one: Tensor, dim: int = 0) -> list[Tensor]:
    several = results if isinstance(results, tuple) else (results,)
    return [_select(low, part, one, dim, place) for place, part in enumerate(several)]


@rule("split", "split_with_sizes")
def _split(low: Lowering, results: Any, one: Tensor, sizes: Value, dim: int = 0) -> list[Tensor]:
    made, start = [], low.sizes.zero
    for part in results if isinstance(results, tuple) else (results,):
        made.append(moved(one, part.shape, dim, lambda index, first=start: index + first))  # type: ignore[misc]
        start = start + part.shape[dim % one.rank]
    return made


@rule("flip")
def _flip(low: Lowering, result: Result, one: Tensor, dims: Value) -> Tensor:
    for dim in dims if one.rank else ():
        last = one.shape[dim] - 1
        one = moved(one, one.shape, dim, lambda index, last=last: index * -1 + last)  # type: ignore[misc]
    return one


@rule("roll")
def _roll(low: Lowering, result: Result, one: Tensor, shifts: Value, dims: Value = ()) -> Tensor:
    shifts = shifts if isinstance(shifts, list) else [shifts]
    dims = dims if isinstance(dims, list) else [dims] if isinstance(dims, int) else list(dims)
    shape = one.shape
    if not dims:  # of the flattened tensor
        total = low.sizes.product(shape)
        one = _view(low, Result((total,), one.dtype), one)
        return _view(low, result, _roll(low, Result((total,), one.dtype), one, shifts, [0]))  # type: ignore[no-any-return]
    for shift, dim in zip(shifts, dims, strict=True):
        size = one.shape[dim]
        away = low.sizes.size(shift)
        by = tuple(-one % max(length, 1) for one, length in zip(away.values, size.values, strict=True))
        start = low.sizes.known(by) or low.sizes.made(by, ("%", size - away, size))

        def move(index: Index, start: Size = start, size: Size = size) -> Index:
            return low.indices.mod(index + start, size)

        one = moved(one, shape, dim, move)
    return one


@rule("unfold")
def _unfold(low: Lowering, result: Result, one: Tensor, dim: int, _: Value, step: Value) -> Tensor:
    dim %= max(one.rank, 1)
    return Tensor(
        result.shape,
        one.dtype,
        lambda at: one.at((*at[:dim], at[dim] * step + at[-1], *at[dim + 1 : -1])),
        one.exact,
    )


@rule("diagonal")
def _diagonal(low: Lowering, result: Result, one: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    first, second = dim1 % one.rank, dim2 % one.rank
    starts = {first: max(-offset, 0), second: max(offset, 0)}
    for dim, start in starts.items():  # it is as long as what is left of the shorter one
        low.require(result.shape[-1] + start, one.shape[dim])

    def at(places: Places) -> Expr:
        others = iter(places[:-1])
        along = {dim: places[-1] + start for dim, start in starts.items()}
        return one.at(tuple(along[dim] if dim in along else next(others) for dim in range(one.rank)))

    return Tensor(result.shape, one.dtype, at, one.exact)


@rule("repeat", "tile")
def _repeat(low: Lowering, result: Result, one: Tensor, _: Value) -> Tensor:
    def at(places: Places) -> Expr:
        own = places[len(places) - one.rank :]
        return one.at(tuple(low.indices.mod(index, size) for index, size in zip(own, one.shape, strict=True)))

    return Tensor(result.shape, one.dtype, at, one.exact)


@rule("cat")
def _cat(low: Lowering, result: Result, parts: list[Tensor], dim: int = 0) -> Tensor:
    dim %= len(result.shape)
    kind, exprs = kind_of(result.dtype), low.exprs
    used = [one for one in parts if one.rank == len(result.shape) and not one.shape[dim].is_always(0)]

    def at(places: Places) -> Expr:
        made: Expr | None = None
        end = result.shape[dim]
        for part in reversed(used):
            start = end - part.shape[dim]
            inner = exprs.convert(low.element(part, _with(places, dim, places[dim] - start)), kind)
            upper = end if made is not None else None
            inside = exprs.within(places[dim], None if start.is_always(0) else start, upper)
            inner = rewrite(inner, mask=inside)
            below = exprs.within(places[dim], None, upper) if upper is not None else None
            made = inner if made is None else exprs.select(below or exprs.constant(True, "bool"), inner, made)
            end = start
        assert made is not None
        return made

    return low.compute(result.shape, result.dtype, at, all(one.exact for one in used))


def _with(places: Places, dim: int, index: Index) -> Places:
    return (*places[:dim], index, *places[dim + 1 :])


@rule("stack")
def _stack(low: Lowering, result: Result, parts: list[Tensor], dim: int = 0) -> Tensor:
    dim %= len(result.shape)
    one = low.sizes.one

    def widened(part: Tensor) -> Tensor:
        shape = (*part.shape[:dim], one, *part.shape[dim:])
        return Tensor(shape, part.dtype, lambda at: part.at((*at[:dim], *at[dim + 1 :])), part.exact)

    return _cat(low, result, [widened(part) for part in parts], dim)  # type: ignore[no-any-return]


@rule("constant_pad_nd")
def _pad(low: Lowering, result: Result, one: Tensor, pads: Value, fill: Value = 0.0) -> Tensor:
    kind, exprs = kind_of(one.dtype), low.exprs

    def at(places: Places) -> Expr:
        test, moved_places = None, []
        for dim, index in enumerate(places):
            pair = 2 * (one.rank - 1 - dim)
            moved_places.append(index - pads[pair] if pair < len(pads) else index)
            test = exprs.both(test, exprs.within(moved_places[-1], 0, one.shape[dim]))
        return exprs.guarded(test, low.element(one, tuple(moved_places)), exprs.convert(low.element(fill, ()), kind))

    return low.compute(result.shape, result.dtype, at, one.exact)


@named_rule(slice_scatter="slice", select_scatter="select")
def _into(
    word: str, low: Lowering, result: Result, one: Tensor, source: Tensor, dim: int = 0, start: Value = None,
    end: Value = None, step: int = 1,
) -> Tensor:  # fmt: skip
    """A tensor with a part of it taken from another one."""
    exprs = low.exprs
    dim %= one.rank
    first = _place(low, start or 0, one.shape[dim])

    def at(places: Places) -> Expr:
        index = places[dim] - first
        if word == "select":
            test = exprs.expr("eq", (exprs.position(index), exprs.constant(0, "int")), "bool")
            own = (*places[:dim], *places[dim + 1 :])
        else:
            count = source.shape[dim]
            low_end = exprs.within(index, 0, None)
            size = low.sizes
            stop = count if step == 1 else size.size(count * step - (step - 1))
            test_or_none = exprs.both(low_end, exprs.within(index, None, stop))
            if step > 1:
                left = exprs.position(low.indices.mod(index, size.size(step)))
                on_step = exprs.expr("eq", (left, exprs.constant(0, "int")), "bool")
                test_or_none = exprs.both(test_or_none, on_step)
            test = test_or_none or exprs.constant(True, "bool")
            own = _with(places, dim, low.indices.div(index, size.size(step)))
        inner = exprs.convert(low.element(source, own), kind_of(result.dtype))
        return exprs.guarded(test, inner, low.element(one, places))

    return low.compute(result.shape, result.dtype, at, one.exact and source.exact)


@named_rule(tril="le", triu="ge")
def _triangle(word: str, low: Lowering, result: Result, one: Tensor, diagonal: Value = 0) -> Tensor:
    exprs, kind = low.exprs, kind_of(result.dtype)

    def at(places: Places) -> Expr:
        away = exprs.position(places[-1] - places[-2] - diagonal)
        test = exprs.expr(word, (away, exprs.constant(0, "int")), "bool")
        return exprs.select(test, low.element(one, places), exprs.constant(0, kind))

    return low.compute(result.shape, result.dtype, at, exact=one.exact)


@rule("diag_embed")
def _diag_embed(low: Lowering, result: Result, one: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    exprs, rank = low.exprs, len(result.shape)
    first, second = dim1 % rank, dim2 % rank

    def at(places: Places) -> Expr:
        row, column = places[first] - max(-offset, 0), places[second] - max(offset, 0)
        on = exprs.expr("eq", (exprs.position(row - column), exprs.constant(0, "int")), "bool")
        within = exprs.within(row, 0, one.shape[-1]) if offset else None
        others = tuple(place for dim, place in enumerate(places) if dim not in (first, second))
        test = exprs.both(on, within) or on
        return exprs.guarded(test, one.at((*others, row)), exprs.constant(0, kind_of(result.dtype)))

    return low.compute(result.shape, result.dtype, at, exact=one.exact)


@rule("arange", "iota")
def _arange(low: Lowering, result: Result, *numbers: Value, **words: Value) -> Tensor:
    if "start" in words and not len(numbers) > 1:  # prims.iota
        start, step = words["start"], words.get("step", 1)
    else:
        start, step = (0, 1) if len(numbers) == 1 else (numbers[0], numbers[2] if len(numbers) > 2 else 1)
    exprs, kind = low.exprs, kind_of(result.dtype)
    whole = all(isinstance(one, (int, Size)) for one in (start, step))

    def at(places: Places) -> Expr:
        if whole:
            return exprs.convert(exprs.position(places[0] * step + start), kind)
        work = "double" if kind == "double" else "float"
        along = exprs.convert(exprs.position(places[0]), work)
        by, first = (exprs.convert(low.element(one, ()), work) for one in (step, start))
        made = exprs.expr("add", (exprs.expr("mul", (along, by), work), first), work)
        return exprs.convert(made, kind)

    return Tensor(result.shape, result.dtype, at, exact=whole)


def _filled(name: str) -> Callable[..., Tensor]:
    def made(low: Lowering, result: Result, *given: Value, **words: Value) -> Tensor:
        if name in ("full", "full_like", "new_full", "scalar_tensor"):
            place = {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0}[name]
            number = given[place] if len(given) > place else words.get("fill_value", 0)
        else:
            number = 1 if "ones" in name else 0
        value = low.exprs.convert(low.element(number, ()), kind_of(result.dtype))
        return Tensor(result.shape, result.dtype, lambda at: value)

    return made


for _name in [
    "full",
    "full_like",
    "scalar_tensor",
    "zeros",
    "ones",
    "zeros_like",
    "ones_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "empty",
]:
    rule(_name)(_filled(_name))

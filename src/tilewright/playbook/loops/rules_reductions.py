"""Rules of lowering: reductions. Matrix products, convolutions and pooling are reductions like any other.

Which of them deserve a template of their own is the scheduler's business.
"""

from __future__ import annotations

from typing import Any

from tilewright.playbook.loops.index import Atom, Index
from tilewright.playbook.loops.ir import Expr, kind_of
from tilewright.playbook.loops.lowering import NARROW, Lowering, Result, Tensor, Value, named_rule, rule, wide
from tilewright.playbook.loops.narrow import HALVES, stripped
from tilewright.playbook.loops.sizes import Size
from tilewright.records import DType

Places = tuple[Index, ...]


def _count(low: Lowering, one: Tensor, dims: Value) -> Size:
    return low.sizes.product([one.shape[dim] for dim in low.dims(one, dims)])


@named_rule(sum="sum", prod="prod", amax="max", amin="min", any="max", all="min")
def _reduced(
    op: str, low: Lowering, result: Result, one: Tensor, dims: Value = None, keep: bool = False, **_: Value
) -> Tensor:
    kind = kind_of(result.dtype)
    if op in ("sum", "prod") and not one.rank:
        return low.compute(result.shape, result.dtype, lambda at: low.exprs.convert(one.at(()), kind))
    dtype = wide(result.dtype) if op in ("sum", "prod") or not one.exact else result.dtype
    keep = keep or bool(_.get("keepdim"))
    made = low.reduce(op, one, dims, keep, dtype, lambda inner: low.exprs.convert(inner, kind))
    return Tensor(made.shape, result.dtype, made.at, made.exact and dtype is result.dtype)


@rule("mean")
def _mean(low: Lowering, result: Result, one: Tensor, dims: Value = None, keep: bool = False, **_: Value) -> Tensor:
    work = "double" if result.dtype is DType.F64 else "float"
    summed = low.reduce("sum", one, dims, keep, wide(result.dtype))
    count = low.exprs.convert(low.exprs.size(_count(low, one, dims)), work)
    return low.compute(
        result.shape,
        result.dtype,
        lambda at: low.exprs.expr("div", (low.exprs.convert(summed.at(at), work), count), work),
    )


def _moments(
    low: Lowering, one: Tensor, dims: Value, correction: Value, keep: bool, dtype: DType
) -> tuple[Tensor, Tensor]:
    """The mean with dimensions kept, and the variance: a sum of squared differences from the mean."""
    exprs, held = low.exprs, wide(dtype)
    work = kind_of(held)
    summed = low.reduce("sum", one, dims, True, held)
    count = exprs.convert(exprs.size(_count(low, one, dims)), work)
    middle = low.compute(summed.shape, held, lambda at: exprs.expr("div", (summed.at(at), count), work))

    def off(at: Places) -> Expr:
        away = exprs.expr("sub", (exprs.convert(one.at(at), work), low.element(middle, at)), work)
        return exprs.expr("mul", (away, away), work)

    squares = low.reduce("sum", Tensor(one.shape, held, off), dims, keep, held)
    below = count
    if correction != 0:
        less = exprs.convert(low.element(1 if correction is None else correction, ()), work)
        left = exprs.expr("sub", (count, less), work)
        below = exprs.expr("maximum", (left, exprs.constant(0, work)), work)
    variance = low.compute(squares.shape, dtype, lambda at: exprs.expr("div", (squares.at(at), below), work))
    return middle, variance


def _rooted(low: Lowering, one: Tensor) -> Tensor:
    kind = kind_of(one.dtype)
    return low.compute(one.shape, one.dtype, lambda at: low.exprs.expr("sqrt", (one.at(at),), kind))


def _correction(rest: tuple[Value, ...], words: dict[str, Value]) -> Value:
    """Of `var(x, dim, unbiased)` and of `var(x, dim, *, correction)`."""
    if "correction" in words:
        return words["correction"]
    return int(next((one for one in rest if isinstance(one, bool)), words.get("unbiased", True)))


@named_rule(var="var", std="std", var_mean="var_mean", std_mean="std_mean")
def _var(op: str, low: Lowering, result: Any, one: Tensor, dims: Value = None, *rest: Value, **words: Value) -> Value:
    if isinstance(dims, bool):
        dims, rest = None, (dims, *rest)
    keep = bool(words.get("keepdim", rest[1] if len(rest) > 1 else False))
    first = result[0] if isinstance(result, tuple) else result
    middle, variance = _moments(low, one, dims, _correction(rest, words), keep, first.dtype)
    spread = _rooted(low, variance) if op.startswith("std") else variance
    if not isinstance(result, tuple):
        return spread
    gone = low.dims(one, dims)
    at = middle.at
    zero = low.indices.zero

    def of_mean(places: Places) -> Expr:
        others = iter(places)
        return at(places if keep else tuple(zero if dim in gone else next(others) for dim in range(one.rank)))

    return spread, Tensor(result[1].shape, result[1].dtype, of_mean, False)


@rule("linalg_vector_norm")
def _norm(
    low: Lowering, result: Result, one: Tensor, order: Value = 2.0, dims: Value = None, keep: bool = False, **_: Value
) -> Tensor:
    exprs, kind, order = low.exprs, kind_of(result.dtype), low.fixed(order, "the order of a norm")

    def of_each(word: str) -> Tensor:
        def body(value: Expr) -> Expr:
            value = exprs.convert(value, kind)
            if word == "square":
                return exprs.expr("mul", (value, value), kind)
            size = exprs.expr("abs", (value,), kind)
            if word == "nonzero":
                return exprs.convert(exprs.expr("ne", (value, exprs.constant(0, kind)), "bool"), kind)
            return size if word == "abs" else exprs.expr("pow", (size, exprs.constant(order, kind)), kind)

        op = {float("inf"): "max", float("-inf"): "min"}.get(order, "sum")
        return low.reduce(op, one, dims, keep, wide(result.dtype), body)

    if order in (1, float("inf"), float("-inf")):
        made = of_each("abs")
        return Tensor(made.shape, result.dtype, made.at, False)
    if order == 0:
        return Tensor(result.shape, result.dtype, of_each("nonzero").at, False)
    made = of_each("square" if order == 2 else "power")
    power = exprs.constant(1.0 / order if order != 2 else 0.5, kind)

    def root(at: Places) -> Expr:
        value = made.at(at)
        return exprs.expr("sqrt", (value,), kind) if order == 2 else exprs.expr("pow", (value, power), kind)

    return low.compute(result.shape, result.dtype, root)


@named_rule(argmax="argmax", argmin="argmin")
def _place_of(op: str, low: Lowering, result: Result, one: Tensor, dim: Value = None, keep: bool = False) -> Tensor:
    return low.reduce(op, one, None if dim is None else [dim], keep, DType.I64)


@named_rule(max="max", min="min")
def _extreme(op: str, low: Lowering, result: Any, one: Tensor, dim: Value = None, keep: bool = False) -> Value:
    dtype = one.dtype if one.exact else wide(one.dtype)
    made = low.reduce(op, one, None if dim is None else [dim], keep, dtype)
    values = Tensor(made.shape, one.dtype, made.at, one.exact)
    return values if dim is None else (values, low.reduce(f"arg{op}", one, [dim], keep, DType.I64))


# -- contractions --


def _products(
    low: Lowering, result: Result, first: Expr, second: Expr, outer: tuple[Atom, ...], inner: tuple[Atom, ...]
) -> Tensor:
    kind = "float" if result.dtype is not DType.F64 else "double"
    kind = kind if result.dtype.is_float else "int"
    if result.dtype in HALVES:  # operands of one dtype, to which PyTorch has rounded what it computed
        first, second = (_rounded(low, one, result.dtype) for one in (first, second))
    body = low.exprs.expr("mul", (low.exprs.convert(first, kind), low.exprs.convert(second, kind)), kind)
    made = low.reduction("sum", outer, inner, body, wide(result.dtype))
    return Tensor(made.shape, result.dtype, made.at, False)


def _rounded(low: Lowering, value: Expr, dtype: DType) -> Expr:
    return stripped(low.program, low.exprs.expr(NARROW[dtype], (value,)))


@rule("mm", "bmm")
def _matmul(low: Lowering, result: Result, first: Tensor, second: Tensor, *_: Value) -> Tensor:
    outer, inner = low.variables(result.shape), low.variables(first.shape[-1:])
    *batch, row, column = low.places(outer)
    (k,) = low.places(inner)
    return _products(
        low, result, low.element(first, (*batch, row, k)), low.element(second, (*batch, k, column)), outer, inner
    )


@rule("mv", "dot", "vdot")
def _vector(low: Lowering, result: Result, first: Tensor, second: Tensor) -> Tensor:
    outer, inner = low.variables(result.shape), low.variables(second.shape)
    places = low.places(inner)
    return _products(low, result, first.at((*low.places(outer), *places)), second.at(places), outer, inner)


@named_rule(addmm="mm", addmv="mv", baddbmm="bmm")
def _added(
    word: str, low: Lowering, result: Result, base: Tensor, first: Tensor, second: Tensor, *, beta: Value = 1,
    alpha: Value = 1,
) -> Tensor:  # fmt: skip
    exprs = low.exprs
    made = (_vector if word == "mv" else _matmul)(low, result, first, second)
    kind = kind_of(result.dtype)

    def by(number: Value, value: Expr) -> Expr:
        value = exprs.convert(value, kind)
        return value if number == 1 else exprs.expr("mul", (exprs.convert(low.element(number, ()), kind), value), kind)

    def body(at: Places) -> Expr:
        product = by(alpha, made.at(at))
        return product if beta == 0 else exprs.expr("add", (product, by(beta, low.element(base, at))), kind)

    return low.compute(result.shape, result.dtype, body)


@rule("_cdist_forward", "_euclidean_dist")
def _cdist(low: Lowering, result: Result, first: Tensor, second: Tensor, order: Value = 2.0, *_: Value) -> Tensor:
    """The norms of all differences of two sets of rows."""
    shape = (*result.shape, first.shape[-1])

    def away(at: Places) -> Expr:
        *batch, row, column, k = at
        a, b = low.element(first, (*batch, row, k)), low.element(second, (*batch, column, k))
        return low.exprs.expr("sub", (a, b), kind_of(result.dtype))

    return _norm(low, result, Tensor(shape, result.dtype, away, False), order, [len(shape) - 1])  # type: ignore[no-any-return]


@rule("convolution")
def _convolution(
    low: Lowering, result: Result, one: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int],
    padding: list[Value], dilation: list[int], transposed: bool, _: Value, groups: int,
) -> Tensor:  # fmt: skip
    exprs, indices, sizes = low.exprs, low.indices, low.sizes
    loops = low.variables(result.shape)
    batch, channel, *places = low.places(loops)
    depth = one.shape[1].over(groups)
    inner = low.variables((depth, *weight.shape[2:]))
    from_channel, *taps = low.places(inner)
    per_group = result.shape[1].over(groups)
    group = indices.div(channel, per_group)
    test, at, rank = None, [], len(places)
    numbers = (_each(stride, rank), _each(padding, rank), _each(dilation, rank))
    for place, tap, size, step, pad, spread in zip(places, taps, one.shape[2:], *numbers, strict=True):
        if transposed:
            before = place - tap * spread + pad
            by = sizes.size(step)
            test = exprs.both(test, exprs.within(before, 0, None))
            if step > 1:
                left = exprs.position(indices.mod(before, by))
                test = exprs.both(test, exprs.expr("eq", (left, exprs.constant(0, "int")), "bool"))
            index = indices.div(before, by)
            test = exprs.both(test, exprs.within(index, None, size))
        else:
            index = place * step + tap * spread - pad
            test = exprs.both(test, exprs.within(index, 0, size))
        at.append(index)
    source = group * depth + from_channel
    zero = exprs.constant(0, kind_of(one.dtype))
    read = exprs.guarded(test, one.at((batch, source, *at)), zero)
    channels = (source, indices.mod(channel, per_group)) if transposed else (channel, from_channel)
    made = _products(low, result, read, weight.at((*channels, *taps)), loops, inner)
    if bias is None:
        return made
    kind = kind_of(result.dtype)
    added = lambda p: exprs.expr("add", (exprs.convert(made.at(p), kind), exprs.convert(bias.at((p[1],)), kind)), kind)  # noqa: E731
    return low.compute(result.shape, result.dtype, added)


# -- windows --


def _each(given: Value, rank: int, default: Value = None) -> list[Value]:
    """A number for every dimension of a window."""
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    if not listed or listed == [None]:
        return [default] * rank
    return listed * rank if len(listed) == 1 else listed


class _Window:
    """The taps of a window, where they read, and the test that they lie within the tensor."""

    def __init__(
        self, low: Lowering, result: Result, one: Tensor, size: Value, stride: Value, padding: Value, dilation: Value
    ):
        rank = self.rank = len(size)
        self.low, self.one = low, one
        self.loops = low.variables(result.shape)
        self.taps = low.variables([low.sizes.size(length) for length in size])
        self.stride, self.padding, self.size = stride, padding, size
        self.places = low.places(self.loops)
        self.test: Expr | None = None
        at = list(self.places[:-rank])
        numbers = zip(
            self.places[-rank:], low.places(self.taps), one.shape[-rank:], stride, padding, dilation, strict=True
        )
        for place, tap, length, step, pad, spread in numbers:
            at.append(place * step + tap * spread - pad)
            self.test = low.exprs.both(self.test, low.exprs.within(at[-1], 0, length))
        self.at = tuple(at)

    def reduced(self, op: str, empty: float, dtype: DType) -> Tensor:
        exprs = self.low.exprs
        kind = kind_of(dtype) if not op.startswith("arg") else kind_of(self.one.dtype)
        least = exprs.constant(empty, kind) if kind != "int" else exprs.constant(-(1 << 61), "int")
        read = self.low.element(self.one, self.at) if op.startswith("arg") else self.one.at(self.at)
        body = exprs.guarded(self.test, exprs.convert(read, kind), least)
        return self.low.reduction(op, self.loops, self.taps, body, dtype)


@rule("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool(
    low: Lowering, result: Any, one: Tensor, size: Value, stride: Value = (), padding: Value = 0, dilation: Value = 1,
    ceil_mode: bool = False,
) -> Value:  # fmt: skip
    first = result[0] if isinstance(result, tuple) else result
    rank = len(size) if isinstance(size, list) else len(first.shape) - 2
    size = _each(size, rank)
    stride = _each(stride, rank) if stride else size
    numbers = (size, stride, _each(padding, rank), _each(dilation, rank))
    made = _Window(low, first, one, *numbers).reduced("max", float("-inf"), one.dtype if one.exact else wide(one.dtype))
    made = Tensor(made.shape, one.dtype, made.at, one.exact)
    if not isinstance(result, tuple):
        return made
    best = _Window(low, result[1], one, *numbers).reduced("argmax", float("-inf"), DType.I64)

    def place(at: Places) -> Expr:
        exprs, flat = low.exprs, best.at(at)
        total, rest = exprs.constant(0, "int"), flat
        for dim in range(rank):
            later = low.sizes.product([low.sizes.size(one) for one in size[dim + 1 :]])
            tap = exprs.expr("trunc_div", (rest, exprs.size(later)), "int")
            rest = exprs.expr("remainder", (rest, exprs.size(later)), "int")
            start = exprs.position(at[dim - rank] * numbers[1][dim] - numbers[2][dim])
            if numbers[2][dim]:  # of nothing but minus infinities, the first that lies in the tensor
                spread = exprs.size(low.sizes.size(numbers[3][dim]))
                before = exprs.expr("add", (exprs.expr("neg", (start,), "int"), exprs.size(numbers[3][dim] - 1)), "int")
                first = exprs.expr("trunc_div", (before, spread), "int")
                tap = exprs.expr("maximum", (tap, first), "int")
            reached = exprs.expr("add", (start, exprs.expr("mul", (tap, exprs.size(numbers[3][dim])), "int")), "int")
            scaled = exprs.expr("mul", (total, exprs.size(one.shape[dim - rank])), "int")
            total = exprs.expr("add", (scaled, reached), "int")
        return total

    return made, low.compute(result[1].shape, DType.I64, place)


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    low: Lowering, result: Result, one: Tensor, size: Value, stride: Value = (), padding: Value = 0,
    ceil_mode: bool = False, count_pad: bool = True, divisor: Value = None,
) -> Tensor:  # fmt: skip
    exprs, sizes = low.exprs, low.sizes
    rank = len(size) if isinstance(size, list) else len(result.shape) - 2
    size = _each(size, rank)
    stride, pads = _each(stride, rank) if stride else size, _each(padding, rank)
    kind = kind_of(wide(result.dtype))
    made = _Window(low, result, one, size, stride, pads, [1] * rank).reduced("sum", 0.0, wide(result.dtype))
    even = not ceil_mode and (count_pad or not any(pads))

    def count(at: Places) -> Expr:
        """The elements of a window that count: with the padding beside the tensor, or without it."""
        total = exprs.constant(1, "int")
        for dim in range(rank):
            length = one.shape[dim - rank]
            start = exprs.position(at[dim - rank] * stride[dim] - pads[dim])
            end = exprs.position(at[dim - rank] * stride[dim] - pads[dim] + size[dim])
            last = exprs.size(length + pads[dim] if count_pad else length)
            end = exprs.expr("minimum", (end, last), "int")
            start = start if count_pad else exprs.expr("maximum", (start, exprs.constant(0, "int")), "int")
            total = exprs.expr("mul", (total, exprs.expr("sub", (end, start), "int")), "int")
        return total

    def body(at: Places) -> Expr:
        by = exprs.size(sizes.product([sizes.size(n) for n in size])) if even else count(at)
        by = low.element(divisor, ()) if divisor is not None else by
        return exprs.expr("div", (exprs.convert(made.at(at), kind), exprs.convert(by, kind)), kind)

    return low.compute(result.shape, result.dtype, body)


def _adaptive(low: Lowering, result: Result, one: Tensor) -> tuple[_Window, list[Index], list[Index]]:
    """Windows from i * n / m up to (i + 1) * n / m rounded up, of a tensor of n elements for m results."""
    indices, rank = low.indices, 2 if len(result.shape) < 5 else 3
    lengths, counts = one.shape[-rank:], result.shape[-rank:]
    widest = [(n + m - 1).ceil_div(m) + 1 for n, m in zip(lengths, counts, strict=True)]
    window = _Window(low, result, one, widest, [1] * rank, [0] * rank, [1] * rank)
    at, starts, ends, test = list(window.places[:-rank]), [], [], None
    for place, tap, n, m in zip(window.places[-rank:], low.places(window.taps), lengths, counts, strict=True):
        starts.append(indices.div(place * n, m))
        ends.append(indices.div((place + 1) * n + (m - 1), m))
        at.append(starts[-1] + tap)
        inside = (low.exprs.position(at[-1]), low.exprs.position(ends[-1]))
        test = low.exprs.both(test, low.exprs.expr("lt", inside, "bool"))
    window.at, window.test = tuple(at), test
    return window, starts, ends


@rule("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def _adaptive_avg(low: Lowering, result: Result, one: Tensor, _: Value) -> Tensor:
    exprs, kind = low.exprs, kind_of(wide(result.dtype))
    window, _starts, _ends = _adaptive(low, result, one)
    made = window.reduced("sum", 0.0, wide(result.dtype))
    rank = window.rank

    def body(at: Places) -> Expr:
        total = exprs.constant(1, "int")
        for n, m, place in zip(one.shape[-rank:], result.shape[-rank:], at[-rank:], strict=True):
            start, end = low.indices.div(place * n, m), low.indices.div((place + 1) * n + (m - 1), m)
            total = exprs.expr("mul", (total, exprs.position(end - start)), "int")
        return exprs.expr("div", (exprs.convert(made.at(at), kind), exprs.convert(total, kind)), kind)

    return low.compute(result.shape, result.dtype, body)

"""What reductions, and operations made of them, mean by their ATen names."""

from __future__ import annotations

import math

from tilewright.playbook.axes import ONE
from tilewright.playbook.errors import NoMatch
from tilewright.playbook.lowering import Item, Lowered, Lowering, Rule, kind_of
from tilewright.playbook.row_program import NumberKind, Reduction
from tilewright.playbook.tracing import Items, TracedNode


def _as_float(low: Lowering, item: Item) -> Item:
    return Item(low.convert(item.value, NumberKind.FLOAT), item.axes, item.sizes)


def _plain(op: Reduction) -> Rule:
    """A reduction with dimensions at 1 and keepdim at 2."""

    def rule(low: Lowering, node: TracedNode) -> Lowered:
        item, result = low.item(node, 0), node.result
        kind = NumberKind.BOOL if op in (Reduction.ANY, Reduction.ALL) else kind_of(result.dtype)
        if op.finds_place and low.kinds[item.value] is NumberKind.INT:
            raise NoMatch
        kind = NumberKind.FLOAT if op.finds_place else kind
        item = Item(low.convert(item.value, kind), item.axes, item.sizes)
        made = low.reduce(op, item, low.dims(node, 1), low.flag(node, 2, "keepdim"))
        return Item(low.convert(made.value, kind_of(result.dtype)), made.axes, result.shape)

    return rule


def _extreme(op: Reduction, place: Reduction, pair: str) -> Rule:
    """max and min: of everything, of two tensors, or along a dimension with the index."""

    def rule(low: Lowering, node: TracedNode) -> Lowered:
        item = low.item(node, 0)
        if node.overload == "other":
            other = low.item(node, 1)
            return low.together(low.point(pair, item.value, other.value), [item, other], node)
        if node.overload == "default":
            return low.reduce(op, item, (), False)
        dims, keep = low.dims(node, 1), low.flag(node, 2, "keepdim")
        return (low.reduce(op, item, dims, keep), low.reduce(place, _as_float(low, item), dims, keep))

    return rule


def _mean_of(low: Lowering, item: Item, dims: tuple[int, ...], keep: bool) -> Item:
    summed = low.reduce(Reduction.SUM, item, dims, keep)
    return Item(low.point("div", summed.value, low.count(item, dims)), summed.axes, summed.sizes)


def _mean(low: Lowering, node: TracedNode) -> Lowered:
    return _mean_of(low, _as_float(low, low.item(node, 0)), low.dims(node, 1), low.flag(node, 2, "keepdim"))


def _moments(low: Lowering, item: Item, dims: tuple[int, ...], keep: bool, correction: int) -> tuple[Item, Item]:
    """Variance from differences to the mean, which does not cancel, and the mean."""
    mean = _mean_of(low, item, dims, keep)
    centered = low.point("sub", item.value, mean.value)
    squares = low.reduce(Reduction.SUM, item, dims, keep, low.point("mul", centered, centered))
    count = low.count(item, dims)
    if correction != low.constant(0.0):
        count = low.point("sub", count, correction)
    return Item(low.point("div", squares.value, count), squares.axes, squares.sizes), mean


def _variance(root: bool, with_mean: bool) -> Rule:
    def rule(low: Lowering, node: TracedNode) -> Lowered:
        item, dims = _as_float(low, low.item(node, 0)), low.dims(node, 1)
        keep = low.flag(node, 3, "keepdim")
        correction = low.convert(low.number(node, 2, "correction", 1.0), NumberKind.FLOAT)
        variance, mean = _moments(low, item, dims, keep, correction)
        if root:
            variance = Item(low.point("sqrt", variance.value), variance.axes, variance.sizes)
        return (variance, mean) if with_mean else variance

    return rule


def _shifted_exponentials(low: Lowering, item: Item, dims: tuple[int, ...]) -> tuple[int, int, Item]:
    """x - max, exp of it, and its sum: no exponential overflows."""
    greatest = low.reduce(Reduction.GREATEST, item, dims, True)
    shifted = low.point("sub", item.value, greatest.value)
    powers = low.point("exp", shifted)
    return shifted, powers, low.reduce(Reduction.SUM, item, dims, True, powers)


def _softmax(low: Lowering, node: TracedNode) -> Lowered:
    item = _as_float(low, low.item(node, 0))
    _, powers, total = _shifted_exponentials(low, item, low.dims(node, 1))
    return Item(low.point("mul", powers, low.point("reciprocal", total.value)), item.axes, item.sizes)


def _safe_softmax(low: Lowering, node: TracedNode) -> Lowered:
    """Weights of zero in a row of nothing but minus infinities, as `scaled_dot_product_attention` has them."""
    item, dims = _as_float(low, low.item(node, 0)), low.dims(node, 1)
    greatest = low.reduce(Reduction.GREATEST, item, dims, True).value
    nothing = low.point("eq", greatest, low.constant(-math.inf))
    powers = low.point("exp", low.point("sub", item.value, low.point("where", nothing, low.constant(0.0), greatest)))
    total = low.reduce(Reduction.SUM, item, dims, True, powers).value
    empty = low.point("eq", total, low.constant(0.0))
    inverse = low.point("where", empty, low.constant(0.0), low.point("reciprocal", total))
    return Item(low.point("mul", powers, inverse), item.axes, item.sizes)


def _log_softmax(low: Lowering, node: TracedNode) -> Lowered:
    item = _as_float(low, low.item(node, 0))
    shifted, _, total = _shifted_exponentials(low, item, low.dims(node, 1))
    return Item(low.point("sub", shifted, low.point("log", total.value)), item.axes, item.sizes)


def _logsumexp(low: Lowering, node: TracedNode) -> Lowered:
    item, dims, keep = _as_float(low, low.item(node, 0)), low.dims(node, 1), low.flag(node, 2, "keepdim")
    greatest = low.reduce(Reduction.GREATEST, item, dims, keep)
    # An infinite maximum is not subtracted: inf - inf would be NaN where the answer is infinite.
    finite = low.point("where", low.point("isinf", greatest.value), low.constant(0.0), greatest.value)
    powers = low.point("exp", low.point("sub", item.value, finite))
    total = low.reduce(Reduction.SUM, item, dims, keep, powers)
    return Item(low.point("add", low.point("log", total.value), finite), total.axes, total.sizes)


def _vector_norm(low: Lowering, node: TracedNode) -> Lowered:
    item, dims = _as_float(low, low.item(node, 0)), low.dims(node, 2)
    order = 2.0 if low.given(node, 1, "ord") is None else low.fixed_number(node, 1, "ord")
    if order is None:
        raise NoMatch
    keep = low.flag(node, 3, "keepdim")
    size = low.point("abs", item.value)
    if math.isinf(order):
        return low.reduce(Reduction.MAXIMUM if order > 0 else Reduction.MINIMUM, item, dims, keep, size)
    if order == 2.0:
        squares = low.reduce(Reduction.SUM, item, dims, keep, low.point("mul", item.value, item.value))
        return Item(low.point("sqrt", squares.value), squares.axes, squares.sizes)
    if order == 1.0:
        return low.reduce(Reduction.SUM, item, dims, keep, size)
    raise NoMatch


def _last_dims(low: Lowering, node: TracedNode, position: int) -> tuple[int, ...]:
    shape = low.given(node, position)
    assert isinstance(shape, Items)
    return tuple(range(-len(shape.values), 0))


def _scaled(low: Lowering, item: Item, normal: int, node: TracedNode, weight: int, bias: int | None) -> Item:
    """normal * weight + bias, each if it is there."""
    items = [item]
    for op, position in (("mul", weight), ("add", bias)):
        if position is not None and low.given(node, position) is not None:
            items.append(low.item(node, position))
            normal = low.float_point(op, normal, items[-1].value)
    return low.together(normal, items, node)


def _layer_norm(low: Lowering, node: TracedNode) -> Lowered:
    item, dims = _as_float(low, low.item(node, 0)), _last_dims(low, node, 1)
    variance, mean = _moments(low, item, dims, True, low.constant(0.0))
    scale = low.point("rsqrt", low.float_point("add", variance.value, low.item(node, 4).value))
    normal = low.point("mul", low.point("sub", item.value, mean.value), scale)
    return (
        _scaled(low, item, normal, node, 2, 3),
        mean,
        Item(scale, variance.axes, variance.sizes),
    )


def _rms_norm(low: Lowering, node: TracedNode) -> Lowered:
    item, dims = _as_float(low, low.item(node, 0)), _last_dims(low, node, 1)
    squares = Item(low.point("mul", item.value, item.value), item.axes, item.sizes)
    mean = _mean_of(low, squares, dims, True)
    eps = low.number(node, 3, "eps", 1.1920928955078125e-07)
    scale = low.point("rsqrt", low.float_point("add", mean.value, eps))
    normal = _scaled(low, item, low.point("mul", item.value, scale), node, 2, None)
    return (normal, Item(scale, mean.axes, mean.sizes))


def _channels(low: Lowering, item: Item, given: Item) -> Item:
    """A vector along the second dimension of a tensor, as a tensor of its rank."""
    axis = low.axes.join(given.axes[0], item.axes[1])
    return Item(low.convert(given.value, NumberKind.FLOAT), (axis,) + (ONE,) * (len(item.sizes) - 2), ())


def _normal(low: Lowering, item: Item, mean: int, variance: int, eps: int, node: TracedNode) -> tuple[Item, int]:
    """(x - mean) / sqrt(variance + eps), times a weight and plus a bias of channels where given; and the scale."""
    scale = low.point("rsqrt", low.float_point("add", variance, eps))
    normal = low.point("mul", low.point("sub", item.value, mean), scale)
    for op, position in (("mul", 1), ("add", 2)):
        if low.given(node, position) is not None:
            normal = low.point(op, normal, _channels(low, item, low.item(node, position)).value)
    return Item(normal, item.axes, item.sizes), scale


def _batch_norm(low: Lowering, node: TracedNode) -> Lowered:
    """By the moments of the batch, or by running ones where it is not in training."""
    item = _as_float(low, low.item(node, 0))
    own = node.overload == "no_stats"
    if own or low.flag(node, 5, "training"):
        if not own:
            raise NoMatch
        over = tuple(dim for dim in range(len(item.sizes)) if dim != 1)
        variance, mean = _moments(low, item, over, False, low.constant(0.0))
        made, scale = _normal(low, item, mean.value, variance.value, low.item(node, 5, "eps").value, node)
        return made, mean, Item(scale, mean.axes, mean.sizes)
    return _running(low, node, item, low.item(node, 7, "eps").value)


def _batch_norm_without_training(low: Lowering, node: TracedNode) -> Lowered:
    return _running(low, node, _as_float(low, low.item(node, 0)), low.item(node, 6, "eps").value)


def _running(low: Lowering, node: TracedNode, item: Item, eps: int) -> Lowered:
    mean, variance = (_channels(low, item, low.item(node, position)) for position in (3, 4))
    made, _ = _normal(low, item, mean.value, variance.value, eps, node)
    empty = Item(low.constant(0.0), (), ())  # in training these would be the batch's own moments
    return made, empty, empty


def _group_norm(low: Lowering, node: TracedNode) -> Lowered:
    """The channels are split into groups, and what is in a group is normalised."""
    item = _as_float(low, low.item(node, 0))
    count = low.fixed_number(node, 6)
    if count is None:
        raise NoMatch
    groups = int(count)
    shapes = low.given_shapes(node)
    grouped = tuple((shape[0], groups, shape[1] // groups, *shape[2:]) for shape in shapes)
    axes = low.axes.reshaped(item.axes, shapes, grouped, node.target)
    split = Item(item.value, axes, grouped[0])
    variance, mean = _moments(low, split, tuple(range(2, len(axes))), False, low.constant(0.0))
    made, scale = _normal(low, item, mean.value, variance.value, low.item(node, 7, "eps").value, node)
    return made, mean, Item(scale, mean.axes, mean.sizes)


REDUCTION_RULES: dict[str, Rule] = {
    "sum": _plain(Reduction.SUM),
    "prod": _plain(Reduction.PRODUCT),
    "amax": _plain(Reduction.MAXIMUM),
    "amin": _plain(Reduction.MINIMUM),
    "any": _plain(Reduction.ANY),
    "all": _plain(Reduction.ALL),
    "argmax": _plain(Reduction.ARGMAX),
    "argmin": _plain(Reduction.ARGMIN),
    "max": _extreme(Reduction.MAXIMUM, Reduction.ARGMAX, "maximum"),
    "min": _extreme(Reduction.MINIMUM, Reduction.ARGMIN, "minimum"),
    "mean": _mean,
    "var": _variance(False, False),
    "std": _variance(True, False),
    "var_mean": _variance(False, True),
    "std_mean": _variance(True, True),
    "_softmax": _softmax,
    "_safe_softmax": _safe_softmax,
    "_log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
    "linalg_vector_norm": _vector_norm,
    "native_layer_norm": _layer_norm,
    "_fused_rms_norm": _rms_norm,
    "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm_without_training,
    "native_group_norm": _group_norm,
}

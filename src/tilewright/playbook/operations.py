"""What pointwise operations and changes of shape mean, by their ATen names."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.playbook.axes import ONE
from tilewright.playbook.elementwise import Takes, named
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.lowering import Item, Lowered, Lowering, Rule, kind_of
from tilewright.playbook.row_program import Constant, LaunchNumber, NumberKind
from tilewright.playbook.tracing import Node, TracedNode

_ROUNDINGS = {"bfloat16": "bf16", "float16": "f16"}  # the dtypes that a cast to rounds, and the operation that does
_LOSING = {"float32", "float64", "bfloat16", "float16", "int64", "int32", "int16"}  # with numbers that those have not
_MOVED = """
alias cat clone contiguous detach expand flatten getitem permute reshape select slice split split_with_sizes squeeze
stack t transpose unbind unflatten unsqueeze view _unsafe_view
"""
_MOVES = frozenset(_MOVED.split())
_SAME = ("clone", "alias", "detach", "lift_fresh", "lift", "contiguous", "positive")


def _input(low: Lowering, node: TracedNode) -> Lowered:
    name = node.arguments[0]
    assert isinstance(name, str)
    return low.load(name, kind_of(node.result.dtype), node.result.shape)


def _constant(low: Lowering, node: TracedNode) -> Lowered:
    value, result = node.arguments[0], node.result
    if value is None or isinstance(value, str) or not isinstance(value, (int, float)):
        raise NotSupported(
            "the playbook does not support tensors of constants with more than one element; pass them as inputs"
        )
    return Item(low.constant(value, kind_of(result.dtype)), (ONE,) * len(result.shape), result.shape)


def _of(count: int, make: Callable[..., int]) -> Rule:
    """A pointwise operation of the first operands: `make` has their values."""

    def rule(low: Lowering, node: TracedNode) -> Lowered:
        items = [low.item(node, place) for place in range(count)]
        return low.together(make(low, *(one.value for one in items)), items, node)

    return rule


def _plain(op: str, count: int) -> Rule:
    return _of(count, lambda low, *values: low.point(op, *values))


def _float(op: str, count: int) -> Rule:
    """The same with operands made floats."""
    return _of(count, lambda low, *values: low.float_point(op, *values))


def _rounding(op: str) -> Rule:
    """floor and its kin, which leave whole numbers as they are."""
    plain = _plain(op, 1)

    def rule(low: Lowering, node: TracedNode) -> Lowered:
        item = low.item(node, 0)
        return plain(low, node) if low.kinds[item.value] is NumberKind.FLOAT else item

    return rule


def _round(low: Lowering, node: TracedNode) -> Lowered:
    """To so many decimals as PyTorch does it: scaled, rounded, and scaled back."""
    decimals = low.given(node, 1, "decimals")
    if not decimals:
        return _rounding("round")(low, node)
    item = low.item(node, 0)
    power = low.constant(10.0 ** abs(int(str(decimals))))
    there, back = ("mul", "div") if int(str(decimals)) > 0 else ("div", "mul")
    rounded = low.point("round", low.float_point(there, item.value, power))
    return low.together(low.point(back, rounded, power), [item], node)


def _are_whole(low: Lowering, *values: int) -> bool:
    """Whether these are whole numbers or booleans."""
    return all(low.kinds[one] is not NumberKind.FLOAT for one in values)


def _of_whole(op: str, wide: str) -> Rule:
    """An operation that is another for whole numbers: these are not to lose digits as floats."""

    def make(low: Lowering, a: int, b: int) -> int:
        if not _are_whole(low, a, b):
            return low.float_point(op, a, b)
        return low.point(wide, low.convert(a, NumberKind.INT), low.convert(b, NumberKind.INT))

    return _of(2, make)


def _bitwise(op: str, count: int) -> Rule:
    """Of booleans, or of the bits of whole numbers."""

    def make(low: Lowering, *values: int) -> int:
        if all(low.kinds[one] is NumberKind.BOOL for one in values):
            return low.point(op, *values)
        return low.point(f"bit_{op}", *(low.convert(one, NumberKind.INT) for one in values))

    return _of(count, make)


def _shift(op: str) -> Rule:
    """A number of places that is not from 0 to 63 needs more than the instruction."""

    def make(low: Lowering, value: int, places: int) -> int:
        known = low.values[places]
        plain = isinstance(known, Constant) and 0 <= known.value < 64
        return low.point(op if plain else f"far_{op}", value, places)

    return _of(2, make)


def _sum(op: str, reverse: bool = False) -> Rule:
    """add, sub and rsub; what is added or subtracted may be scaled by `alpha`."""

    def rule(low: Lowering, node: TracedNode) -> Lowered:
        a, b = (low.item(node, place) for place in ((1, 0) if reverse else (0, 1)))
        scaled = b.value
        if low.given(node, 2, "alpha") is not None:
            scaled = low.point("mul", scaled, low.item(node, 2, "alpha").value)
        pair = (a.value, scaled)
        kind = kind_of(node.result.dtype)
        kind = NumberKind.INT if kind is NumberKind.BOOL else kind
        return low.together(low.point(op, *(low.convert(one, kind) for one in pair)), [a, b], node)

    return rule


def _div(low: Lowering, node: TracedNode) -> Lowered:
    a, b = low.item(node, 0), low.item(node, 1)
    rounding = low.given(node, 2, "rounding_mode")
    if rounding is not None and _are_whole(low, a.value, b.value):
        pair = (low.convert(one.value, NumberKind.INT) for one in (a, b))
        value = low.point(f"whole_{rounding}_div", *pair)
    elif rounding == "floor":
        value = low.float_point("floor_div", a.value, b.value)
    else:
        value = low.float_point("div", a.value, b.value)
        value = value if rounding is None else low.point(str(rounding), value)
    return low.together(value, [a, b], node)


def _pow(low: Lowering, node: TracedNode) -> Lowered:
    base, exponent = low.item(node, 0), low.item(node, 1)
    plain = low.fixed_number(node, 1)
    plain = math.nan if plain is None else plain
    value = base.value
    result = node.results[0]
    if result is not None and kind_of(result.dtype) is NumberKind.INT:
        made = _whole_power(low, value, plain)
    elif plain == 2.0:
        made = low.point("mul", value, value)
    elif plain == 3.0:
        made = low.point("mul", low.point("mul", value, value), value)
    elif plain == 4.0:
        square = low.point("mul", value, value)
        made = low.point("mul", square, square)
    elif plain in (0.5, -0.5, -1.0, 1.0):
        names = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
        made = low.float_point(names[plain], value) if plain in names else value
    else:
        made = low.float_point("pow", value, exponent.value)
    return low.together(made, [base, exponent], node)


def _whole_power(low: Lowering, value: int, exponent: float) -> int:
    """By squares: a power of floats has too few digits."""
    if not 0 <= exponent < 64:
        raise NotSupported("the playbook raises whole numbers to powers from 0 to 63 that the function states")
    made, square = low.constant(1, NumberKind.INT), low.convert(value, NumberKind.INT)
    for bit in range(int(exponent).bit_length()):
        square = square if bit == 0 else low.point("mul", square, square)
        if int(exponent) >> bit & 1:
            made = square if low.values[made] == Constant(1) else low.point("mul", made, square)
    return made


def _gelu(low: Lowering, node: TracedNode) -> Lowered:
    item = low.item(node, 0)
    op = "gelu_tanh" if low.given(node, 1, "approximate") == "tanh" else "gelu"
    return low.together(low.point(op, item.value), [item], node)


def _with_numbers(op: str, *defaults: tuple[str, float]) -> Rule:
    """An activation with numbers after its operand."""

    def rule(low: Lowering, node: TracedNode) -> Lowered:
        item = low.item(node, 0)
        numbers = [low.number(node, place + 1, *one) for place, one in enumerate(defaults)]
        return low.together(low.float_point(op, item.value, *numbers), [item], node)

    return rule


def _elu(low: Lowering, node: TracedNode) -> Lowered:
    item = low.item(node, 0)
    alpha, scale = low.number(node, 1, "alpha", 1.0), low.number(node, 2, "scale", 1.0)
    inner = low.number(node, 3, "input_scale", 1.0)
    value = low.float_point("elu", item.value, alpha, inner)
    return low.together(low.float_point("mul", value, scale), [item], node)


def _celu(low: Lowering, node: TracedNode) -> Lowered:
    item = low.item(node, 0)
    alpha = low.number(node, 1, "alpha", 1.0)
    value = low.float_point("elu", item.value, alpha, low.float_point("reciprocal", alpha))
    return low.together(value, [item], node)


_OF_TENSORS = {"clamp_min": "maximum", "clamp_max": "minimum"}


def _clamped(low: Lowering, node: TracedNode, *bounds: tuple[str, int, str]) -> Lowered:
    items = [low.item(node, 0)]
    value = items[0].value
    for op, position, keyword in bounds:
        if low.given(node, position, keyword) is not None:
            items.append(low.item(node, position, keyword))
            # A tensor's NaN is the result's too.
            plain = isinstance(low.values[items[-1].value], (Constant, LaunchNumber))
            value = low.point(op if plain else _OF_TENSORS[op], value, items[-1].value)
    return low.together(value, items, node)


def _hardtanh(low: Lowering, node: TracedNode) -> Lowered:
    """Between -1 and 1 where no bounds are given."""
    item = low.item(node, 0)
    raised = low.point("clamp_min", item.value, low.number(node, 1, "min_val", -1.0))
    return low.together(low.point("clamp_max", raised, low.number(node, 2, "max_val", 1.0)), [item], node)


def _log_sigmoid(low: Lowering, node: TracedNode) -> Lowered:
    item = low.item(node, 0)
    made = low.together(low.float_point("log_sigmoid", item.value), [item], node)
    return (made, made)


def _masked_fill(low: Lowering, value: int, mask: int, filled: int) -> int:
    return low.point("where", mask, low.convert(filled, low.kinds[value]), value)


def _threshold(low: Lowering, value: int, bound: int, other: int) -> int:
    return low.point("where", low.point("le", value, bound), low.convert(other, NumberKind.FLOAT), value)


def _lerp(low: Lowering, a: int, b: int, weight: int) -> int:
    """From the nearer end, as PyTorch does: so that an infinity at the other is not taken off itself."""
    across = low.point("sub", b, a)
    rest = low.point("sub", low.constant(1.0), weight)
    from_a = low.point("add", a, low.point("mul", weight, across))
    from_b = low.point("sub", b, low.point("mul", across, rest))
    held = low.values[weight]
    if isinstance(held, Constant):
        return from_a if abs(held.value) < 0.5 else from_b
    return low.point("where", low.point("lt", low.point("abs", weight), low.constant(0.5)), from_a, from_b)


def _add_combined(op: str) -> Rule:
    """addcmul and addcdiv: a + value * (b op c)."""

    def rule(low: Lowering, node: TracedNode) -> Lowered:
        a, b, c = (low.item(node, place) for place in range(3))
        made = low.float_point(op, b.value, c.value)
        if low.given(node, 3, "value") is not None:
            made = low.float_point("mul", made, low.item(node, 3, "value").value)
        return low.together(low.float_point("add", a.value, made), [a, b, c], node)

    return rule


def _full(position: int | None, default: float) -> Rule:
    """A tensor of one number, whose dimensions are those of whatever it meets."""

    def rule(low: Lowering, node: TracedNode) -> Lowered:
        value = low.constant(default) if position is None else low.item(node, position).value
        return Item(low.convert(value, kind_of(node.result.dtype)), low.axes.new(low.shapes()), node.result.shape)

    return rule


def _reshape(low: Lowering, node: TracedNode) -> Lowered:
    item = low.item(node, 0)
    axes = low.axes.reshaped(item.axes, low.given_shapes(node), low.shapes(), node.target)
    return Item(item.value, axes, node.result.shape)


def _expand(low: Lowering, node: TracedNode) -> Lowered:
    """A dimension of size 1 takes whatever size it meets; until it does, it has a number of its own."""
    item, result = low.item(node, 0), node.result
    missing = len(result.shape) - len(item.sizes)
    old = (ONE,) * missing + item.axes
    new = low.axes.new(low.shapes())
    axes = tuple(after if before == ONE else before for before, after in zip(old, new, strict=True))
    return Item(item.value, axes, result.shape)


def _repeat(low: Lowering, node: TracedNode) -> Lowered:
    item = low.item(node, 0)
    return Item(item.value, low.axes.repeated(item.axes, low.given_shapes(node), low.shapes()), node.result.shape)


def _getitem(low: Lowering, node: TracedNode) -> Lowered:
    source, place = node.arguments
    assert isinstance(source, Node)
    assert isinstance(place, int)
    found = low.items[source.index]
    return found[place] if isinstance(found, tuple) else found


def _cast(low: Lowering, node: TracedNode) -> Lowered:
    """A cast to 16 bits is a rounding, but for the last one: results are rounded when they are stored."""
    item, result = low.item(node, 0), node.results[0]
    assert result is not None
    value, rounds = item.value, _ROUNDINGS.get(result.dtype)
    if rounds and low.given_dtype(node) in (_LOSING - {result.dtype}) and not low.is_only(_MOVES):
        value = low.float_point(rounds, value)
    return low.together(value, [item], node)


POINTWISE_RULES: dict[str, Rule] = {
    "input": _input,
    "constant": _constant,
    "getitem": _getitem,
    **dict.fromkeys(("_to_copy", "convert_element_type"), _cast),
    "copy": _of(2, lambda low, target, value: value),  # what is written over a tensor
    **dict.fromkeys(_SAME, lambda low, node: low.item(node, 0)),
    **{one.name: _float(one.name, one.operands) for one in named(Takes.FLOATS, Takes.TESTED, in_rows=True)},
    **{one.name: _plain(one.name, one.operands) for one in named(Takes.SAME, Takes.COMPARED, in_rows=True)},
    **{one.name: _rounding(one.name) for one in named(Takes.ROUNDED, in_rows=True)},
    "round": _round,
    **{name: _of_whole(name, f"whole_{name}") for name in ("fmod", "remainder")},
    **dict.fromkeys(("__lshift__", "bitwise_left_shift"), _shift("left_shift")),
    **dict.fromkeys(("__rshift__", "bitwise_right_shift"), _shift("right_shift")),
    **{f"logical_{op}": _plain(op, 2) for op in ("and", "or", "xor")},
    **{f"bitwise_{op}": _bitwise(op, 2) for op in ("and", "or", "xor")},
    "logical_not": _plain("not", 1),
    "bitwise_not": _bitwise("not", 1),
    "add": _sum("add"),
    "sub": _sum("sub"),
    "rsub": _sum("sub", reverse=True),
    "div": _div,
    "pow": _pow,
    "gelu": _gelu,
    "leaky_relu": _with_numbers("leaky_relu", ("negative_slope", 0.01)),
    "softplus": _with_numbers("softplus", ("beta", 1.0), ("threshold", 20.0)),
    "hardtanh": _hardtanh,
    "elu": _elu,
    "celu": _celu,
    "clamp": lambda low, node: _clamped(low, node, ("clamp_min", 1, "min"), ("clamp_max", 2, "max")),
    "clamp_min": lambda low, node: _clamped(low, node, ("clamp_min", 1, "min")),
    "clamp_max": lambda low, node: _clamped(low, node, ("clamp_max", 1, "max")),
    "where": _plain("where", 3),
    "masked_fill": _of(3, _masked_fill),
    "threshold": _of(3, _threshold),
    "log_sigmoid_forward": _log_sigmoid,
    "lerp": _of(3, _lerp),
    "addcmul": _add_combined("mul"),
    "addcdiv": _add_combined("div"),
    "full": _full(1, 0.0),
    "full_like": _full(1, 0.0),
    "scalar_tensor": _full(0, 0.0),
    "ones": _full(None, 1.0),
    "ones_like": _full(None, 1.0),
    "zeros": _full(None, 0.0),
    "zeros_like": _full(None, 0.0),
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "_reshape"), _reshape),
    "expand": _expand,
    "repeat": _repeat,
}

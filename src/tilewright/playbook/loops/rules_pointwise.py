"""Rules of lowering: what is computed of each element alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.playbook.elementwise import OPERATIONS, Operation, Takes, named
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.loops.index import Index
from tilewright.playbook.loops.ir import Expr, kind_of
from tilewright.playbook.loops.lowering import NARROW, Lowering, Result, Rule, Tensor, Value, named_rule, rule
from tilewright.playbook.loops.sizes import Size
from tilewright.records import DType

Places = tuple[Index, ...]


def _pointwise(low: Lowering, result: Result, body: Callable[[Places], Expr]) -> Tensor:
    return low.compute(result.shape, result.dtype, lambda at: low.narrowed(body(at), result.dtype))


def _work_kind(low: Lowering, result: Result) -> str:
    """What floats are computed in."""
    return "double" if result.dtype is DType.F64 else "float"


def _scaled(low: Lowering, result: Result, one: Value, alpha: Value) -> Callable[[Places, str], Expr]:
    """alpha * one, as `add` and `sub` take it."""

    def at(places: Places, kind: str) -> Expr:
        made = low.exprs.convert(low.element(one, places), kind)
        if alpha == 1:
            return made
        by = low.exprs.convert(low.element(alpha, ()), kind)
        return low.exprs.expr("mul", (made, by), kind)

    return at


@named_rule(add="add", sub="sub")
def _add(op: str, low: Lowering, result: Result, first: Value, second: Value, *, alpha: Value = 1) -> Tensor:
    kind = kind_of(result.dtype)
    scaled = _scaled(low, result, second, alpha)

    def body(at: Places) -> Expr:
        args = (low.exprs.convert(low.element(first, at), kind), scaled(at, kind))
        return low.exprs.expr("or" if kind == "bool" else op, args, kind)

    return _pointwise(low, result, body)


@rule("rsub")
def _rsub(low: Lowering, result: Result, first: Value, second: Value, alpha: Value = 1) -> Tensor:
    return _add("sub", low, result, second, first, alpha=alpha)  # type: ignore[no-any-return]


def _same(operation: Operation) -> Rule:
    op = operation.name
    word = {"mul": "and"}.get(op, op)

    def made(low: Lowering, result: Result, *operands: Value) -> Tensor:
        kind = kind_of(result.dtype)
        own = word if kind == "bool" else op
        own = "not" if op == "bitwise_not" and kind == "bool" else own

        def body(at: Places) -> Expr:
            args = tuple(low.exprs.convert(low.element(one, at), kind) for one in operands)
            return low.exprs.expr(own, args, kind)

        return _pointwise(low, result, body)

    return made


def _floats(op: str) -> Rule:
    def made(low: Lowering, result: Result, *operands: Value) -> Tensor:
        if not OPERATIONS[op].narrow and result.dtype.itemsize < 4:
            raise NotSupported(f"the playbook has {op} of f32 and f64, not of {result.dtype}")
        kind = _work_kind(low, result)

        def body(at: Places) -> Expr:
            args = tuple(low.exprs.convert(low.element(one, at), kind) for one in operands)
            return low.exprs.expr(op, args, kind)

        return _pointwise(low, result, body)

    return made


def _compared_as(operands: tuple[Value, ...]) -> DType | None:
    """The dtype to which PyTorch casts whole numbers before it compares them, where it may be narrower than one.

    A tensor of no dimensions and a number yield to the dtype of a tensor that has some.
    """
    tensors = [one for one in operands if isinstance(one, Tensor)]
    dtypes = {one.dtype for one in [one for one in tensors if one.rank] or tensors}
    is_mixed = len(tensors) < len(operands) or len({one.dtype for one in tensors}) > 1
    return next(iter(dtypes)) if is_mixed and len(dtypes) == 1 else None


def _comparison(op: str) -> Rule:
    def made(low: Lowering, result: Result, *operands: Value) -> Tensor:
        kind = max(low.common_kind(operands), "int", key=("int", "bool", "float", "double").index)
        kind = "int" if kind == "bool" else kind
        dtype = _compared_as(operands)
        narrow = NARROW.get(dtype) if dtype and kind == "int" else None

        def body(at: Places) -> Expr:
            args = tuple(low.exprs.convert(low.element(one, at), kind) for one in operands)
            args = tuple(low.exprs.expr(narrow, (one,), "int") for one in args) if narrow else args
            return low.exprs.expr(op, args, "bool")

        return _pointwise(low, result, body)

    return made


def _rounded(op: str) -> Rule:
    def made(low: Lowering, result: Result, one: Value, *, decimals: Value = 0) -> Tensor:
        kind = kind_of(result.dtype)

        def body(at: Places) -> Expr:
            value = low.exprs.convert(low.element(one, at), kind)
            if kind not in ("float", "double"):
                return value
            if not decimals:
                return low.exprs.expr(op, (value,), kind)
            by = low.exprs.constant(10.0 ** abs(decimals), kind)
            there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
            moved = low.exprs.expr(op, (low.exprs.expr(there, (value, by), kind),), kind)
            return low.exprs.expr(back, (moved, by), kind)

        return _pointwise(low, result, body)

    return made


def _tested(op: str) -> Rule:
    def made(low: Lowering, result: Result, one: Tensor) -> Tensor:
        if not one.dtype.is_float:
            exprs = low.exprs

            def whole(at: Places) -> Expr:
                if op != "signbit":
                    return exprs.constant(False, "bool")
                return exprs.expr("lt", (exprs.convert(low.element(one, at), "int"), exprs.constant(0, "int")), "bool")

            return low.compute(result.shape, result.dtype, whole)
        return _pointwise(low, result, lambda at: low.exprs.expr(op, (low.element(one, at),), "bool"))

    return made


for _one in named(Takes.SAME):
    if _one.name not in ("add", "sub"):  # which take alpha
        rule(_one.name)(_same(_one))
for _one in named(Takes.FLOATS):
    rule(_one.name)(_floats(_one.name))
for _one in named(Takes.COMPARED):
    rule(_one.name)(_comparison(_one.name))
for _one in named(Takes.ROUNDED):
    rule(_one.name)(_rounded(_one.name))
for _one in named(Takes.TESTED):
    rule(_one.name)(_tested(_one.name))


@named_rule(logical_not="not", logical_and="and", logical_or="or", logical_xor="ne")
def _logical(word: str, low: Lowering, result: Result, *operands: Value) -> Tensor:
    def body(at: Places) -> Expr:
        return low.exprs.expr(word, tuple(low.exprs.convert(low.element(one, at), "bool") for one in operands), "bool")

    return _pointwise(low, result, body)


@rule("div")
def _div(low: Lowering, result: Result, first: Value, second: Value, rounding_mode: Value = None) -> Tensor:
    kind = kind_of(result.dtype)
    words = {None: "div", "floor": "floor_div", "trunc": "trunc_div"}

    def body(at: Places) -> Expr:
        args = tuple(low.exprs.convert(low.element(one, at), kind) for one in (first, second))
        return low.exprs.expr(words[rounding_mode], args, kind)

    return _pointwise(low, result, body)


@named_rule(remainder="remainder", fmod="fmod")
def _remainder(op: str, low: Lowering, result: Result, first: Value, second: Value) -> Tensor:
    kind = kind_of(result.dtype)

    def body(at: Places) -> Expr:
        return low.exprs.expr(op, tuple(low.exprs.convert(low.element(one, at), kind) for one in (first, second)), kind)

    return _pointwise(low, result, body)


@named_rule(
    __lshift__="shift_left",
    bitwise_left_shift="shift_left",
    __rshift__="shift_right",
    bitwise_right_shift="shift_right",
    shift_right_arithmetic="shift_right",
)
def _shift(op: str, low: Lowering, result: Result, first: Value, second: Value) -> Tensor:
    def body(at: Places) -> Expr:
        return low.exprs.expr(
            op, tuple(low.exprs.convert(low.element(one, at), "int") for one in (first, second)), "int"
        )

    return _pointwise(low, result, body)


_POWERS = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}  # with PyTorch's own ends: NaN of -inf, not 0


@rule("pow")
def _pow(low: Lowering, result: Result, base: Value, exponent: Value) -> Tensor:
    kind = kind_of(result.dtype)

    def body(at: Places) -> Expr:
        one = low.exprs.convert(low.element(base, at), kind)
        if not isinstance(exponent, (Tensor, Size, Expr)) and exponent in (1, 2, 3, 4):
            made = one
            for _ in range(int(exponent) - 1):
                made = low.exprs.expr("mul", (made, one), kind)
            return made
        word = _POWERS.get(exponent) if isinstance(exponent, float) else None
        if word is not None and kind != "int":
            return low.exprs.expr(word, (one,), kind)
        return low.exprs.expr("pow", (one, low.exprs.convert(low.element(exponent, at), kind)), kind)

    return _pointwise(low, result, body)


@rule("clamp", "clamp_min", "clamp_max", "hardtanh")
def _clamp(
    low: Lowering, result: Result, one: Value, least: Value = None, most: Value = None, *, min: Value = None,
    max: Value = None,
) -> Tensor:  # fmt: skip
    kind = kind_of(result.dtype)
    low_end, high_end = min if least is None else least, max if most is None else most

    def body(at: Places) -> Expr:
        made = low.exprs.convert(low.element(one, at), kind)
        if low_end is not None:
            made = low.exprs.expr("maximum", (made, low.exprs.convert(low.element(low_end, at), kind)), kind)
        if high_end is not None:
            made = low.exprs.expr("minimum", (made, low.exprs.convert(low.element(high_end, at), kind)), kind)
        return made

    return _pointwise(low, result, body)


@rule("clamp_max")
def _clamp_max(low: Lowering, result: Result, one: Value, most: Value) -> Tensor:
    return _clamp(low, result, one, None, most)  # type: ignore[no-any-return]


@rule("hardtanh")
def _hardtanh(low: Lowering, result: Result, one: Value, least: Value = -1.0, most: Value = 1.0) -> Tensor:
    return _clamp(low, result, one, least, most)  # type: ignore[no-any-return]


def _with_numbers(op: str, *defaults: float) -> Rule:
    """An operation of one tensor and numbers that have defaults."""

    def made(low: Lowering, result: Result, one: Value, *numbers: Value) -> Tensor:
        kind = _work_kind(low, result)
        given = (*numbers, *defaults[len(numbers) :])

        def body(at: Places) -> Expr:
            return low.exprs.expr(op, tuple(low.exprs.convert(low.element(v, at), kind) for v in (one, *given)), kind)

        return _pointwise(low, result, body)

    return made


for _name, _numbers in (("elu", (1.0, 1.0, 1.0)), ("celu", (1.0,)), ("softplus", (1.0, 20.0)), ("leaky_relu", (0.01,))):
    rule(_name)(_with_numbers(_name, *_numbers))


@rule("gelu")
def _gelu(low: Lowering, result: Result, one: Value, *, approximate: Value = "none") -> Tensor:
    return _floats("gelu_tanh" if approximate == "tanh" else "gelu")(low, result, one)  # type: ignore[no-any-return]


@rule("log_sigmoid_forward")
def _log_sigmoid(low: Lowering, results: tuple[Result, ...], one: Value) -> Value:
    return _floats("log_sigmoid")(low, results[0], one), None


@rule("threshold")
def _threshold(low: Lowering, result: Result, one: Value, limit: Value, value: Value) -> Tensor:
    kind = kind_of(result.dtype)

    def body(at: Places) -> Expr:
        made, bound = (low.exprs.convert(low.element(v, at), kind) for v in (one, limit))
        test = low.exprs.expr("le", (made, bound), "bool")
        return low.exprs.select(test, low.exprs.convert(low.element(value, at), kind), made)

    return _pointwise(low, result, body)


@rule("where")
def _where(low: Lowering, result: Result, test: Value, inside: Value, outside: Value) -> Tensor:
    return _chosen(low, result, test, inside, outside)


@rule("masked_fill")
def _masked_fill(low: Lowering, result: Result, one: Value, test: Value, value: Value) -> Tensor:
    return _chosen(low, result, test, value, one)


def _chosen(low: Lowering, result: Result, test: Value, inside: Value, outside: Value) -> Tensor:
    kind = kind_of(result.dtype)

    def body(at: Places) -> Expr:
        condition = low.exprs.convert(low.element(test, at), "bool")
        return low.exprs.select(
            condition, *(low.exprs.convert(low.element(one, at), kind) for one in (inside, outside))
        )

    return _pointwise(low, result, body)


@rule("lerp")
def _lerp(low: Lowering, result: Result, first: Value, second: Value, weight: Value) -> Tensor:
    kind = _work_kind(low, result)

    def body(at: Places) -> Expr:
        """From the nearer end, as PyTorch does: so that an infinity at the other is not taken off itself."""
        a, b, w = (low.exprs.convert(low.element(one, at), kind) for one in (first, second, weight))
        away = low.exprs.expr("sub", (b, a), kind)
        rest = low.exprs.expr("sub", (low.exprs.constant(1.0, kind), w), kind)
        from_a = low.exprs.expr("add", (a, low.exprs.expr("mul", (w, away), kind)), kind)
        from_b = low.exprs.expr("sub", (b, low.exprs.expr("mul", (away, rest), kind)), kind)
        if isinstance(weight, (int, float)):
            return from_a if abs(weight) < 0.5 else from_b
        small = low.exprs.expr("lt", (low.exprs.expr("abs", (w,), kind), low.exprs.constant(0.5, kind)), "bool")
        return low.exprs.select(small, from_a, from_b)

    return _pointwise(low, result, body)


@named_rule(addcmul="mul", addcdiv="div")
def _addc(op: str, low: Lowering, result: Result, base: Value, a: Value, b: Value, *, value: Value = 1) -> Tensor:
    kind = kind_of(result.dtype)

    def body(at: Places) -> Expr:
        base_, a_, b_, by = (low.exprs.convert(low.element(one, at), kind) for one in (base, a, b, value))
        inner = low.exprs.expr(op, (a_, b_), kind)
        return low.exprs.expr("add", (base_, inner if value == 1 else low.exprs.expr("mul", (by, inner), kind)), kind)

    return _pointwise(low, result, body)


# -- casts and copies --


@rule("convert_element_type")
def _converted(low: Lowering, result: Result, one: Value, *given: Value, **words: Value) -> Tensor:
    """A cast of PyTorch's own decompositions, which the function does not have: floats are not rounded by it."""
    if (
        isinstance(one, Tensor)
        and one.dtype.is_float
        and result.dtype.is_float
        and DType.F64 not in (one.dtype, result.dtype)
    ):
        return Tensor(one.shape, result.dtype, one.at, one.exact and result.dtype.itemsize >= one.dtype.itemsize)
    return _cast(low, result, one, *given, **words)  # type: ignore[no-any-return]


@rule("_to_copy")
def _cast(low: Lowering, result: Result, one: Value, *_: Value, **__: Value) -> Tensor:
    if isinstance(one, Tensor) and result.dtype is one.dtype:
        return one
    kind, narrow = kind_of(result.dtype), NARROW.get(result.dtype)
    source = one.dtype if isinstance(one, Tensor) else None

    def body(at: Places) -> Expr:
        made = low.exprs.convert(low.element(one, at), kind)
        return low.exprs.expr(narrow, (made,), kind) if narrow and source is not DType.BOOL else made

    return low.compute(result.shape, result.dtype, body, exact=True)


@rule("clone", "alias", "detach", "lift", "lift_fresh", "lift_fresh_copy", "view_of", "positive", "contiguous")
def _copy(low: Lowering, result: Result, one: Tensor, *_: Value, **__: Value) -> Tensor:
    return one


@rule("copy")
def _copied(low: Lowering, result: Result, target: Tensor, source: Value, *_: Value) -> Tensor:
    kind, narrow = kind_of(result.dtype), NARROW.get(result.dtype)

    def body(at: Places) -> Expr:
        made = low.exprs.convert(low.element(source, at), kind)
        same = isinstance(source, Tensor) and source.dtype is result.dtype
        return low.exprs.expr(narrow, (made,), kind) if narrow and not same else made

    return low.compute(result.shape, result.dtype, body, exact=True)


@rule("getitem")
def _getitem(low: Lowering, result: Result, several: Any, place: int) -> Value:
    return several[place]

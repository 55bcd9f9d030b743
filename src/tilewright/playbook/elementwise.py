"""The one table of elementwise operations: to add one, add its row here and its line to the tests.

A row has what every reader and writer needs: the dtypes it takes and makes, its C++ in the loops' kernels and in the
families' rows, what it costs, and the word for its result. Operations that need more than a row, such as `div` with its
rounding modes, have rules of their own beside it and only their C++ here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Takes(str, Enum):
    """How operands and result of an operation relate."""

    FLOATS = "floats"  # operands are made floats, and the result is one
    SAME = "same"  # operands are brought to the result's dtype
    COMPARED = "compared"  # operands are brought to one dtype, and the result is a boolean
    ROUNDED = "rounded"  # whole numbers stay as they are
    TESTED = "tested"  # floats are tested, and whole numbers fail
    OWN = "own"  # a rule of its own says it


@dataclass(frozen=True)
class Operation:
    name: str  # ATen's, or that of a program where a rule makes it of several
    takes: Takes = Takes.FLOATS
    operands: int = 1
    loops: str = ""  # C++ of f32, f64 and whole numbers in the loops' kernels; "": the function of that name
    rows: str = ""  # the function in f32 in the families' rows; "": a helper of that name, or none at all
    in_rows: bool = False  # whether the families read it
    cheap: bool = False  # may be done twice where the result could be kept
    word: str = ""  # what a result is called in a kernel
    narrow: bool = True  # whether a result of 16 bits is that in f32, rounded

    def text(self, arguments: list[str]) -> str:
        """C++ for the loops' kernels."""
        return self.loops.format(*arguments) if self.loops else f"{self.name}({', '.join(arguments)})"


def _f32(names: str, takes: Takes = Takes.FLOATS, operands: int = 1, cheap: bool = False) -> list[Operation]:
    """Functions of the language, with an f behind the name in f32."""
    return [Operation(one, takes, operands, "", f"{one}f", True, cheap) for one in names.split()]


def _ours(names: str, in_rows: bool = True, cheap: str = "") -> list[Operation]:
    """Functions of `elements.cuh`, which the families have as helpers."""
    return [Operation(one, loops=f"tw::{one}({{0}})", in_rows=in_rows, cheap=one in cheap) for one in names.split()]


def _sign(name: str, sign: str, takes: Takes = Takes.SAME, word: str = "", in_rows: bool = True) -> Operation:
    return Operation(name, takes, 2, f"{{0}} {sign} {{1}}", in_rows=in_rows, cheap=True, word=word)


_SAME, _COMPARED, _ROUNDED, _OWN = Takes.SAME, Takes.COMPARED, Takes.ROUNDED, Takes.OWN

TABLE = (
    Operation("exp", rows="expf", in_rows=True, word="exponential"),
    Operation("log", rows="logf", in_rows=True, word="logarithm"),
    Operation("sqrt", rows="sqrtf", in_rows=True, word="root"),
    Operation("rsqrt", rows="rsqrtf", in_rows=True, word="scale"),
    Operation("reciprocal", loops="1 / {0}", in_rows=True, word="inverse"),
    *_f32("exp2 expm1 log2 log10 log1p sin cos tan tanh sinh cosh asin acos atan asinh acosh atanh erf erfc"),
    *_f32("atan2", operands=2),
    *_ours("sigmoid silu mish hardswish hardsigmoid", cheap="hardswish hardsigmoid"),
    *_ours("log_sigmoid digamma", in_rows=False),
    Operation("lgamma", rows="lgammaf", in_rows=True),
    Operation("erfinv", rows="erfinvf", in_rows=True),
    Operation("erfcx"),
    Operation("ndtri", loops="normcdfinv({0})"),
    Operation("bessel_i0", loops="cyl_bessel_i0({0})"),
    Operation("bessel_i1", loops="cyl_bessel_i1({0})"),
    Operation("bessel_i0e", loops="tw::scaled<0>(cyl_bessel_i0({0}), {0})"),
    Operation("bessel_i1e", loops="tw::scaled<1>(cyl_bessel_i1({0}), {0})"),
    Operation("bessel_j0", loops="j0({0})"),
    Operation("bessel_j1", loops="j1({0})"),
    Operation("hypot", operands=2, rows="hypotf", in_rows=True),
    Operation("copysign", operands=2, rows="copysignf", in_rows=True, cheap=True),
    Operation("nextafter", operands=2, cheap=True, narrow=False),
    Operation("gcd", _SAME, 2, "tw::gcd({0}, {1})"),
    # of any kind of number
    _sign("add", "+", _OWN, "total"),
    _sign("sub", "-", _OWN, "difference"),
    Operation("div", _OWN, 2, "{0} / {1}", in_rows=True, word="quotient"),
    _sign("mul", "*", word="product"),
    Operation("neg", _SAME, 1, "-{0}", in_rows=True, cheap=True, word="negated"),
    Operation("abs", _SAME, 1, "tw::magnitude({0})", in_rows=True, cheap=True, word="size"),
    Operation("relu", _SAME, 1, "tw::relu({0})", in_rows=True, cheap=True),
    Operation("sign", _SAME, 1, "tw::sign({0})", in_rows=True, cheap=True),
    Operation("maximum", _SAME, 2, "tw::maximum({0}, {1})", in_rows=True, cheap=True),
    Operation("minimum", _SAME, 2, "tw::minimum({0}, {1})", in_rows=True, cheap=True),
    *_f32("fmin fmax", _SAME, 2, cheap=True),
    *_f32("floor ceil trunc", _ROUNDED, cheap=True),
    Operation("round", _ROUNDED, 1, "rint({0})", "rintf", True, cheap=True),
    _sign("bitwise_and", "&", in_rows=False),
    _sign("bitwise_or", "|", in_rows=False),
    _sign("bitwise_xor", "^", in_rows=False),
    Operation("bitwise_not", _SAME, 1, "~{0}", cheap=True),
    # tests
    *(_sign(name, sign, _COMPARED, "flag") for name, sign in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="))),
    *(_sign(name, sign, _COMPARED, "flag") for name, sign in (("gt", ">"), ("ge", ">="))),
    Operation("isnan", Takes.TESTED, 1, "{0} != {0}", "isnan", True, cheap=True),
    Operation("isinf", Takes.TESTED, 1, "isinf({0})", "isinf", True, cheap=True),
    Operation("signbit", Takes.TESTED, 1, "tw::is_signed({0})", cheap=True),
    _sign("and", "&&", _OWN),
    _sign("or", "||", _OWN),
    Operation("not", _OWN, 1, "!{0}", cheap=True),
    Operation("where", _OWN, 3, "{0} ? {1} : {2}", cheap=True, word="chosen"),
    # with rules of their own
    Operation("pow", _OWN, 2, "tw::power({0}, {1})", "powf"),
    Operation("fmod", _OWN, 2, "tw::truncated_remainder({0}, {1})", "fmodf"),
    Operation("remainder", _OWN, 2, "tw::floored_remainder({0}, {1})"),
    Operation("floor_div", _OWN, 2, "tw::floor_div({0}, {1})"),
    Operation("trunc_div", _OWN, 2, "tw::trunc_div({0}, {1})"),
    Operation("shift_left", _OWN, 2, "tw::shift_left({0}, {1})", cheap=True),
    Operation("shift_right", _OWN, 2, "tw::shift_right({0}, {1})", cheap=True),
    Operation("gelu", _OWN, 1, "tw::gelu({0})"),
    Operation("gelu_tanh", _OWN, 1, "tw::gelu_tanh({0})"),
    Operation("elu", _OWN, 4, "tw::elu({0}, {1}, {2}, {3})"),
    Operation("celu", _OWN, 2, "tw::celu({0}, {1})"),
    Operation("softplus", _OWN, 3, "tw::softplus({0}, {1}, {2})"),
    Operation("leaky_relu", _OWN, 2, "tw::leaky_relu({0}, {1})", cheap=True),
    # casts, and what a narrower dtype keeps
    Operation("to_float", _OWN, 1, "float({0})", cheap=True, word="as_float"),
    Operation("to_double", _OWN, 1, "double({0})", cheap=True),
    Operation("to_int", _OWN, 1, "tw::to_whole({0})", cheap=True, word="as_int"),
    Operation("to_bool", _OWN, 1, "{0} != 0", cheap=True, word="flag"),
    Operation("wrap_i8", _OWN, 1, "(long long)(signed char){0}", cheap=True),
    Operation("wrap_u8", _OWN, 1, "(long long)(unsigned char){0}", cheap=True),
    Operation("wrap_i16", _OWN, 1, "(long long)(short){0}", cheap=True),
    Operation("wrap_i32", _OWN, 1, "(long long)(int){0}", cheap=True),
    Operation("round_bf16", _OWN, 1, "float(__float2bfloat16({0}))"),
    Operation("round_f16", _OWN, 1, "float(__float2half({0}))"),
    Operation("round_f8e4m3", _OWN, 1, "tw::to_float(tw::from_float<__nv_fp8_e4m3>({0}))"),
    Operation("round_f8e5m2", _OWN, 1, "tw::to_float(tw::from_float<__nv_fp8_e5m2>({0}))"),
)
OPERATIONS = {one.name: one for one in TABLE}


def named(*takes: Takes, in_rows: bool = False) -> list[Operation]:
    """The operations of these classes; `in_rows`: those that the families read."""
    return [one for one in TABLE if one.takes in takes and (one.in_rows or not in_rows)]

"""Device functions that kernels call, as text. Each is `<operation>_of`.

The quick forms are for kernels whose results have 16 bits: they are a few units off in the last places of an f32, which
such a result does not have, and with twice as many elements per byte their speed matters.
"""

from __future__ import annotations

from tilewright.playbook.templates import sections

_CUDA = sections("cpp_helpers")

_INLINE = "__device__ __forceinline__"


def _line(name: str, result: str, taken: str = "float v", kind: str = "float") -> str:
    """A function of numbers in one line."""
    return f"{_INLINE} {kind} {name}_of({taken}) {{ return {result}; }}\n"


def _whole(name: str, result: str) -> str:
    """A function of two whole numbers."""
    return _line(name, result, "long long a, long long b", "long long")


def _template(name: str, result: str, taken: str = "T v") -> str:
    """A function of any kind of number."""
    return f"template <typename T>\n{_INLINE} T {name}_of({taken}) {{\n  return {result};\n}}\n"


def _extreme(name: str, sign: str) -> str:
    word = {">": "greater", "<": "lesser"}[sign]
    note = f"// The {word} of two; NaN if either is, as in PyTorch.\n"
    return note + _template(name, f"a {sign} b || a != a ? a : b", "T a, T b")


# v + 3, from 0 up to 6. A NaN stays one, which fminf and fmaxf would drop.
_WITHIN_6 = "(v + 3.0f < 0.0f ? 0.0f : v + 3.0f > 6.0f ? 6.0f : v + 3.0f)"

EXACT_HELPERS: dict[str, str] = {
    "span": _CUDA["span"],
    "bf16": _CUDA["bf16"],
    "f16": _CUDA["f16"],
    "sigmoid": _line("sigmoid", "1.0f / (1.0f + expf(-v))"),
    "silu": "// v times its sigmoid.\n" + _line("silu", "v / (1.0f + expf(-v))"),
    "gelu": "// v (1 + erf(v / sqrt 2)) / 2.\n" + _line("gelu", "0.5f * v * (1.0f + erff(v * 0.70710678f))"),
    "gelu_tanh": _CUDA["gelu_tanh"],
    "mish": _CUDA["mish"],
    "softplus": _CUDA["softplus"],
    "log": _CUDA["log"],
    "divergence": _CUDA["divergence"],
    "summed_divergence": _CUDA["summed_divergence"],
    "log_sigmoid": _line("log_sigmoid", "(v < 0.0f ? v : 0.0f) - log1pf(expf(-fabsf(v)))"),
    "elu": _CUDA["elu"],
    "leaky_relu": _line("leaky_relu", "v > 0.0f ? v : v * slope", "float v, float slope"),
    "hardswish": _line("hardswish", "v * fminf(fmaxf(v + 3.0f, 0.0f), 6.0f) / 6.0f"),
    "hardsigmoid": _line("hardsigmoid", f"{_WITHIN_6} / 6.0f"),
    "relu": "// A NaN stays one: it is not below zero.\n" + _template("relu", "v < T(0) ? T(0) : v"),
    "whole_remainder": "// What is left of a / b, with the sign of b.\n"
    + _whole("whole_remainder", "a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0)"),
    "whole_fmod": _whole("whole_fmod", "a % b"),
    "whole_trunc_div": _whole("whole_trunc_div", "a / b"),
    "whole_floor_div": "// Rounded down, and not towards zero.\n"
    + _whole("whole_floor_div", "a / b - (a % b != 0 && (a % b < 0) != (b < 0))"),
    "far_left_shift": "// Nothing is left of a number shifted by more places than it has.\n"
    + _whole("far_left_shift", "b < 0 || b > 63 ? 0 : a << b"),
    "far_right_shift": "// And its sign alone of one shifted to the right.\n"
    + _whole("far_right_shift", "a >> (b < 0 || b > 63 ? 63 : b)"),
    "narrow": _CUDA["narrow"],
    "abs": _line("abs", "v < 0 ? -v : v", "long long v", "long long"),
    "sign": _template("sign", "static_cast<T>((v > T(0)) - (v < T(0)))"),
    "clamp_min": _template("clamp_min", "v < bound ? bound : v", "T v, T bound"),
    "clamp_max": _template("clamp_max", "v > bound ? bound : v", "T v, T bound"),
    "quotient": _CUDA["quotient"],
    "maximum": _extreme("maximum", ">"),
    "minimum": _extreme("minimum", "<"),
    "remainder": _CUDA["remainder"],
    "floor_div": _CUDA["floor_div"],
}


def _quick(name: str, exponent: str, result: str, first: str = "") -> str:
    """A function of 1 / (1 + 2^exponent), by the instructions for both."""
    return (
        f"{_INLINE} float {name}_of(float v) {{\n{first}"
        "  float power, inverse;\n"
        f'  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"({exponent}));\n'
        '  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));\n'
        f"  return {result};\n}}\n"
    )


_QUICK_NOTE = "// Quick forms: a few units off in the last places of an f32, which a 16-bit result does not have.\n"

QUICK_HELPERS: dict[str, str] = {
    "exp": _QUICK_NOTE + _CUDA["quick_exp"],
    "sigmoid": _QUICK_NOTE + _quick("sigmoid", "v * -1.44269504f", "inverse"),
    "silu": _QUICK_NOTE + _quick("silu", "v * -1.44269504f", "v * inverse"),
    "gelu": _CUDA["quick_gelu"],
    "gelu_tanh": """\
// 0.5 v (1 + tanh u) is v / (1 + exp(-2 u)). The quick forms are a few units off in the last places of an f32, which a
// 16-bit result does not have.
"""
    + _quick(
        "gelu_tanh",
        "-2.88539008f * u",
        "v * inverse",
        "  const float u = 0.7978845608f * (v + 0.044715f * v * v * v);\n",
    ),
}


def _steady(name: str, divisor: str, result: str, first: str = "", note: str = "") -> str:
    """A function with one division, by the instruction for an inverse."""
    return (
        f"{note}// By the instruction for an inverse, good to a unit in the last place: exact divisions branch.\n"
        f"{_INLINE} float {name}_of(float v) {{\n{first}"
        "  float inverse;\n"
        f'  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"({divisor}));\n'
        f"  return {result};\n}}\n"
    )


STEADY_HELPERS: dict[str, str] = {
    "gelu": _CUDA["steady_gelu"],
    "sigmoid": _steady("sigmoid", "1.0f + expf(-v)", "inverse"),
    "silu": _steady("silu", "1.0f + expf(-v)", "v * inverse", note="// v times its sigmoid.\n"),
    "gelu_tanh": _steady(
        "gelu_tanh",
        "1.0f + expf(-2.0f * u)",
        "v * inverse",
        "  const float u = 0.7978845608f * (v + 0.044715f * v * v * v);\n",
        "// 0.5 v (1 + tanh u) is v / (1 + exp(-2 u)).\n",
    ),
    "mish": _steady(
        "mish",
        "n + 2.0f",
        "v * (n * inverse)",
        "  const float e = expf(fminf(v, 20.0f)), n = e * (e + 2.0f);\n",
        "// v tanh(log(1 + e)) with e = exp(v): tanh(log(1 + e)) is n / (n + 2) with n = e (e + 2).\n",
    ),
    "hardswish": _line("hardswish", "v * fminf(fmaxf(v + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f)"),
    "hardsigmoid": _line("hardsigmoid", f"{_WITHIN_6} * (1.0f / 6.0f)"),
}
"""For f32 results where few warps do all of the work, and must have several elements under way at once."""

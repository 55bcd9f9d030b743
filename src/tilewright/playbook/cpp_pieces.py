"""Device code that kernels of many kinds have, in pieces: helpers of operations, vectors and reductions."""

from __future__ import annotations

from tilewright.playbook.templates import sections

_CUDA = sections("cpp_pieces")

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


# Pieces of kernels, as text: loads and vectors, how two numbers are combined, and how threads put theirs together.


READ_ONCE = _CUDA["read_once"]
VECTOR = _CUDA["vector"]
LOAD_PAST = _CUDA["load_past"]

PAST_BYTES = range(
    1 << 20, (64 << 20) + 1
)  # what a task reads, of which such loads paid on an H200: 33 MB in 13.2 us, not 14.6

REPACK = _CUDA["repack"]


def _combiner(name: str, result: str) -> str:
    """Of two numbers of one kind, whichever it is."""
    return f"""\
struct {name} {{
  template <typename T>
  __device__ T operator()(T a, T b) const {{
    return {result};
  }}
}};
"""


def _of_kind(name: str, kind: str, result: str) -> str:
    return f"struct {name} {{\n  __device__ {kind} operator()({kind} a, {kind} b) const {{ return {result}; }}\n}};\n"


def _place_of(name: str, words: tuple[str, str], worse: str, wins: str) -> str:
    """The place of an extreme element."""
    return f"""\
// The {words[0]} value wins, NaN counts as {words[1]}, and among equals the lower index wins: the same in any order.
struct {name} {{
  static __device__ bool is_better(float value, float than) {{ return !(value {worse} than); }}

  __device__ Candidate operator()(Candidate a, Candidate b) const {{
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    const bool equal = a.value == b.value || (a_nan && b_nan);
    const bool b_wins = equal ? b.index < a.index : (b_nan || (!a_nan && b.value {wins} a.value));
    return b_wins ? b : a;
  }}
}};
"""


_NAN_NOTE = "// NaN if either is, as in PyTorch.\n"

COMBINERS: dict[str, str] = {
    "Sum": _combiner("Sum", "a + b"),
    "Product": _combiner("Product", "a * b"),
    "Maximum": _NAN_NOTE + _combiner("Maximum", "a > b || a != a ? a : b"),
    "Minimum": _NAN_NOTE + _combiner("Minimum", "a < b || a != a ? a : b"),
    "Greatest": _of_kind("Greatest", "float", "fmaxf(a, b)"),
    "Any": _of_kind("Any", "int", "a | b"),
    "All": _of_kind("All", "int", "a & b"),
    "Argmax": _place_of("Argmax", ("greater", "greatest"), "<=", ">"),
    "Argmin": _place_of("Argmin", ("lesser", "least"), ">=", "<"),
}


def _in_one(name: str, instruction: str) -> str:
    """The same, with floats by one instruction in place of three, where the GPU has it."""
    own = f"""\
#if __CUDA_ARCH__ >= 800
  __device__ float operator()(float a, float b) const {{
    float found;
    asm("{instruction}.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
  }}
#endif
}};
"""
    return COMBINERS[name].removesuffix("};\n") + own


SMALL_COMBINERS = {**COMBINERS, "Maximum": _in_one("Maximum", "max"), "Minimum": _in_one("Minimum", "min")}
"""For elements of 16 bits, of which memory brings so many that instructions count."""

CANDIDATE = _CUDA["candidate"]
SHUFFLE = _CUDA["shuffle"]
SHUFFLE_CANDIDATE = _CUDA["shuffle_candidate"]
BLOCK_REDUCE = _CUDA["block_reduce"]
LANES_REDUCE = _CUDA["lanes_reduce"]
FOR_EACH_VECTOR = _CUDA["for_each_vector"]

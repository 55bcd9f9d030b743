"""Pieces of kernels, as text: loads and vectors, how two numbers are combined, and how threads put theirs together."""

from __future__ import annotations

from tilewright.playbook.templates import sections

_CUDA = sections("cpp_pieces")

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

"""Pieces of kernels, as text: loads and vectors, how two numbers are combined, and how threads put theirs together."""

from __future__ import annotations

READ_ONCE = """\
extern "C" __device__ void* __nv_associate_access_property(const void*, unsigned long long);

// Says of lines that they are to stay in the L2 cache longest.
__device__ __forceinline__ unsigned long long to_stay() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Memory that is read once. On Hopper the lines of large tensors are said to stay: what was written makes room for them
// then, and reading and writing take 1.5 to 4 % less time.
template <typename T>
__device__ __forceinline__ const T* read_once(const T* from) {
  if constexpr (ONCE) return static_cast<const T*>(__nv_associate_access_property(from, to_stay()));
  return from;
}
"""

VECTOR = """\
// Elements that move together.
template <typename T>
struct alignas(WIDTH * sizeof(T)) Vector {
  T at[WIDTH];
};
"""


LOAD_PAST = """\
// A vector that is read once: its line is the first to leave the L2 cache, not what other kernels wrote there.
template <typename V>
__device__ __forceinline__ V load_past(const V* from) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(V) == 16) {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    uint4 words;
    asm("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
        : "l"(from), "l"(policy));
    return *reinterpret_cast<const V*>(&words);
  }
#endif
  return *from;
}
"""

PAST_BYTES = range(
    1 << 20, (64 << 20) + 1
)  # what a task reads, of which such loads paid on an H200: 33 MB in 13.2 us, not 14.6

REPACK = """\
// Has the compiler forget what it has unpacked of a vector of small elements: the vector stays as it was loaded, and is
// unpacked again by every sweep. Elements in registers of their own take twice as many, and many spill.
template <typename T>
__device__ __forceinline__ void repack(Vector<T>& vector) {
  if constexpr (sizeof(vector) >= 4 && VECTORS >= 8) {
    auto* words = reinterpret_cast<unsigned*>(&vector);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(vector) / 4); ++i) asm("" : "+r"(words[i]));
  }
}
"""


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

CANDIDATE = """\
struct Candidate {
  float value;
  int index;

  // A thread meets its elements by rising index, so only a better one replaces; a NaN that is already best stays.
  template <typename Better>
  __device__ __forceinline__ void meet(float met, int place) {
    if (Better::is_better(met, value) && value == value) {
      value = met;
      index = place;
    }
  }
};
"""

SHUFFLE = """\
template <typename T>
__device__ __forceinline__ T from_lane(T value, int offset) {
  return __shfl_xor_sync(~0u, value, offset);
}
"""

SHUFFLE_CANDIDATE = """\
__device__ __forceinline__ Candidate from_lane(Candidate one, int offset) {
  return {__shfl_xor_sync(~0u, one.value, offset), __shfl_xor_sync(~0u, one.index, offset)};
}
"""

BLOCK_REDUCE = """\
// The values of all threads of the block combined, the same in every thread: shuffles within each warp, then one
// exchange through shared memory. `partial` has an element for every warp and no other use, so one barrier is enough.
template <typename T, typename Combine>
__device__ __forceinline__ T block_reduce(T value, T* partial, Combine combine) {
  unrolled for (int offset = 16; offset > 0; offset /= 2) value = combine(value, from_lane(value, offset));
  if constexpr (WARPS == 1) return value;
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = partial[0];
  unrolled for (int warp = 1; warp < WARPS; ++warp) value = combine(value, partial[warp]);
  return value;
}
"""

LANES_REDUCE = """\
// The values of the LANES neighbouring lanes that share a row combined, the same in each: no shared memory, no barrier.
template <typename T, typename Combine>
__device__ __forceinline__ T lanes_reduce(T value, Combine combine) {
  unrolled for (int offset = LANES / 2; offset > 0; offset /= 2) value = combine(value, from_lane(value, offset));
  return value;
}
"""

FOR_EACH_VECTOR = """\
// Calls `visit(k, place)` for every vector of the row that this thread owns. k is a constant in each unrolled step, so
// arrays indexed by it stay in registers; neighbouring threads own neighbouring vectors, so their loads coalesce.
template <typename Visit>
__device__ __forceinline__ void for_each_vector(int thread, int vectors, Visit visit) {
  unrolled for (int k = 0; k < VECTORS; ++k) {
    const int place = k * THREADS_PER_ROW + thread;
    if (FULL || place < vectors) visit(k, place);
  }
}
"""

"""How both operands of a product with a short k become f16 parts in one launch, as text.

Each is a few megabytes, and two kernels one after the other take longer to begin than to split them: for 32768 x 32
times 32 x 32768, of 1,065 us on an H200, one launch saves 16.
"""

from __future__ import annotations

from tilewright.playbook.products.hopper_form import Form, signature

_TILES = """\
// Where k is short one launch splits both operands: a block takes 128 rows or columns of one of them.
constexpr int SHORT = KEPT ? KEPT * 32 : 32;  // k, and zeros after it
template <int WIDTH> __device__ __forceinline__ Numbers<4> four_of(const float* p, int left) {
  if constexpr (WIDTH == 4) return left > 0 ? numbers_at<4>(p) : Numbers<4>{};
  Numbers<4> some = {};
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (j < left) some.v[j] = p[j];
  return some;
}
// Of a row, or column, that lanes have which are NEAREST, 2 NEAREST, .. apart, up to FARTHEST.
template <int NEAREST, int FARTHEST> __device__ __forceinline__ uint32_t largest_of_lanes(uint32_t v) {
#pragma unroll
  for (int o = NEAREST; o <= FARTHEST; o *= 2) v = max(v, __shfl_xor_sync(~0u, v, o));
  return v;
}
template <int NEAREST, int FARTHEST>
__device__ __forceinline__ bool is_wide_in_lanes(uint32_t largest, Counts counts) {
#pragma unroll
  for (int o = NEAREST; o <= FARTHEST; o *= 2) {
    counts.losing += __shfl_xor_sync(~0u, counts.losing, o), counts.few += __shfl_xor_sync(~0u, counts.few, o);
    counts.zeros += __shfl_xor_sync(~0u, counts.zeros, o);
  }
  return is_too_wide(largest, counts.losing, counts.few, counts.zeros, SHORT);
}
"""
_ROWS = """\
// Rows contiguous along k: SHORT / 4 lanes have one. Whether one is too wide.
template <int WIDTH>
__device__ __forceinline__ bool split_128_rows(const float* from, long long pitch, __half* parts, long long to_low,
                                               long long parts_pitch, float* scales, int rows, int K) {
  constexpr int LANES = SHORT / 4, AT_ONCE = 256 / LANES, COUNT = 128 / AT_ONCE;
  const int k = threadIdx.x % LANES * 4, first = threadIdx.x / LANES;
  Numbers<4> some[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int row = first + i * AT_ONCE;
    some[i] = four_of<WIDTH>(from + row * pitch + k, row < rows ? K - k : 0);
  }
  bool wide = false;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int row = first + i * AT_ONCE;
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) largest = max(largest, magnitude_bits(some[i].v[j]));
    largest = largest_of_lanes<1, LANES / 2>(largest);
    const float scale = scale_of(largest);
    Counts counts;
    Numbers<4> scaled;
#pragma unroll
    for (int j = 0; j < 4; ++j) scaled.v[j] = some[i].v[j] * scale, counts.add(some[i].v[j], scaled.v[j]);
    wide |= is_wide_in_lanes<1, LANES / 2>(largest, counts);
    if (row >= rows) continue;
    __half* to = parts + row * parts_pitch + k;
    store_parts(scaled, to, to + to_low);
    if (k == 0) scales[row] = 1.f / scale;
  }
  return wide;
}
"""
_COLUMNS = """\
// Columns contiguous along m or n: a warp has 16, four of them and every eighth k a lane. Whether one is too wide.
template <int WIDTH>
__device__ __forceinline__ bool split_128_columns(const float* from, long long pitch, __half* parts, long long to_low,
                                                  long long parts_pitch, float* scales, int columns, int K) {
  constexpr int COUNT = SHORT / 8;
  const int lane = threadIdx.x % 32, column = threadIdx.x / 32 * 16 + lane % 4 * 4, first = lane / 4;
  Numbers<4> some[COUNT];
  uint32_t largest[4] = {};
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int k = first + i * 8;
    some[i] = four_of<WIDTH>(from + k * pitch + column, k < K ? columns - column : 0);
#pragma unroll
    for (int j = 0; j < 4; ++j) largest[j] = max(largest[j], magnitude_bits(some[i].v[j]));
  }
  Counts counts[4];
  float scale[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) largest[j] = largest_of_lanes<4, 16>(largest[j]), scale[j] = scale_of(largest[j]);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int k = first + i * 8;
    Numbers<4> scaled;
#pragma unroll
    for (int j = 0; j < 4; ++j) scaled.v[j] = some[i].v[j] * scale[j], counts[j].add(some[i].v[j], scaled.v[j]);
    __half* to = parts + k * parts_pitch + column;
    if (k < K && column < columns) store_parts(scaled, to, to + to_low);
  }
  bool wide = false;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    wide |= is_wide_in_lanes<4, 16>(largest[j], counts[j]);
    if (first == 0 && column + j < columns) scales[column + j] = 1.f / scale[j];
  }
  return wide;
}
"""


def short_parameters(form: Form) -> list[tuple[str, str]]:
    """Declarations of the kernel that splits both operands, and what the plan gives for them."""
    pairs: list[tuple[str, str]] = []
    for name, one in (("a", form.product.a), ("b", form.product.b)):
        pairs += [(f"const float* __restrict__ {name}", one.tensor)]
        pairs += [(f"__half* __restrict__ {name}_parts", f"@{name}_parts")]
        pairs += [(f"float* __restrict__ {name}_scales", f"@{name}_scales")]
        pitches = (one.pitch.expression, one.batch_pitch.expression, f"@{name}_pitch")
        names = (f"{name}_pitch", f"{name}_matrix_pitch", f"{name}_parts_pitch")
        pairs += [(f"long long {word}", pitch) for word, pitch in zip(names, pitches, strict=True)]
    pairs += [("int* __restrict__ wide", "@wide")]
    return [*pairs, *((f"int {name}", f"@{name.lower()}") for name in ("M", "N", "K", "batch"))]


def short_text(form: Form) -> list[str]:
    """The kernel, and what it calls."""
    operands = (("a", form.product.a, "M", "tile"), ("b", form.product.b, "N", "(tile - tiles_m)"))
    kinds = {one.along_k for _, one, _, _ in operands}
    text = _TILES + (_ROWS if True in kinds else "") + (_COLUMNS if False in kinds else "")
    body = [
        "cudaTriggerProgrammaticLaunchCompletion();  // what comes next may begin to be launched",
        "const int tiles_m = (M + 127) / 128, tiles = tiles_m + (N + 127) / 128;",
        "const long long tile = blockIdx.x % tiles, z = blockIdx.x / tiles;",
        "bool is_wide;",
    ]
    for name, one, size, number in operands:
        along, outer = ("rows", size) if one.along_k else ("columns", "K")
        step = (f" * {name}_pitch", f" * {name}_parts_pitch") if one.along_k else ("", "")
        body += [
            "if (tile < tiles_m) {" if name == "a" else "} else {",
            f"  const long long first = {number} * 128, high = z * {outer} * {name}_parts_pitch;",
            f"  is_wide = split_128_{along}<{name.upper()}_WIDTH>(",
            f"      {name} + z * {name}_matrix_pitch + first{step[0]}, {name}_pitch,",
            f"      {name}_parts + high + first{step[1]}, (long long)batch * {outer} * {name}_parts_pitch,",
            f"      {name}_parts_pitch, {name}_scales + z * {size} + first, {size} - (int)first, K);",
        ]
    body += ["}", "if (__syncthreads_or(is_wide) && threadIdx.x == 0) wide[0] = 1, wide[1 + blockIdx.x] = 1;"]
    declared = [declaration for declaration, _ in short_parameters(form)]
    head = signature("__launch_bounds__(256) ", "split_both", declared)
    return [*text.splitlines(), *head, *(f"  {line}" for line in body), "}"]

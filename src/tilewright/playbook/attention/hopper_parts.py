"""Attention of f32 elements for Hopper (sm_90a) at f32's accuracy: every number is two f16 parts on tensor cores."""

from __future__ import annotations

from tilewright.playbook.attention.flash_f32 import flash_fragment
from tilewright.playbook.attention.hopper_kernel import (
    KERNEL_TEXTS,
    SIZES_OF_PARTS,
    TURNS,
    Parts,
    Places,
    kernel_text,
    own_lengths,
    section_line,
)
from tilewright.playbook.attention.maps import load_box
from tilewright.playbook.attention.program import Attention
from tilewright.playbook.attention.text import PAIR, POWER, AttentionKernel, AttentionPlan, is_whole, pair_text
from tilewright.playbook.cpp_text import worded
from tilewright.playbook.file_text import Entry, Fragment, PlanLines, joined_file, plan_entry
from tilewright.playbook.places.text import product_text
from tilewright.playbook.products.hopper_text import BARRIERS, wgmma, wgmma_of
from tilewright.records import DType

_WHOLE = """
{name} in f32, as exact as f32 arithmetic, on Hopper's f16 tensor cores. Queries and keys of a head, and every column of
its values, are scaled by a power of two and split into two f16 parts, which together have 22 bits; the product of two
numbers is then three products of parts.

What parts do not hold is made otherwise: where scores may be large, a number is not finite, or many numbers of a column
lie far below its greatest, a flag is set, and the last kernel makes that head again from f32 itself. On ordinary data
it finds no flag and ends.
"""
_HEADER = """
First the greatest number of each head's queries and keys and of each column of its values is found, then the parts are
made. One thread of a producer warpgroup brings parts into slots of shared memory by TMA. Each consumer warpgroup has 64
rows of queries: it multiplies them with a tile of keys by wgmma, makes weights of the scores in registers, splits those
too, and multiplies them with the tile of values. Tensor cores cut off bits where they add, so f32 registers add up what
each tile comes to.
"""
_WIDTHS = (64, 128)


def can_write(made: Attention) -> bool:
    sizes = (made.depth.size.own, made.column.size.own)
    whole = made.element is DType.F32 and is_whole(made, 4) and all(one in (64, 128) for one in sizes)
    return whole and made.row.size.own >= 64


def hopper_parts(made: Attention, op_line: str) -> str:
    parts = {"parts": _parts_fragment(made, op_line), "again": flash_fragment(made, op_line, flagged=True)}
    head = PlanLines(made.placed.as_rows(), op_line).head
    return joined_file(_WHOLE.format(name=made.placed.name), [*head, _flags(made)], parts)


def _flags(made: Attention) -> Entry:
    return plan_entry("scratch", f"wide: i32[{product_text(made.heads)}] zeroed")


def _parts_fragment(made: Attention, op_line: str) -> Fragment:
    plan = AttentionPlan(made, op_line)
    _plan(plan)
    texts = (*KERNEL_TEXTS, _HALVES, _BEFORE, _PEAKS, _SPLIT, PAIR, POWER, BARRIERS)
    before = [_before(AttentionKernel(plan, *texts), which) for which in ("peaks", "split")]
    kernel = AttentionKernel(plan, *texts)
    places = Places(
        q="box % (D / 64) * 64, row0 + box / (2 * D / 64) * 64, box / (D / 64) % 2 * heads + head",
        k="box % (D / 64) * 64, n * KEYS, box / (D / 64) * units + head / shares",
        v="box % (E / 64) * 64, n * KEYS, box / (E / 64) * units + head / shares",
    )
    begin = ["const float scale = given_scale / (scale_of(q_peaks[head]) * scale_of(k_peaks[head / shares]));"]
    more = [(f"const unsigned* __restrict__ {name}_peaks", plan.name(f"{name}_peaks")) for name in "qkv"]
    more += plan.numbers("heads", "units", "shares")
    column_scale = "(1.0f / scale_of(v_peaks[head / shares * E + @column]))"
    text = kernel_text(kernel, places, more, Parts(begin, column_scale))
    device = [
        POWER,
        pair_text(DType.F16),
        _HALVES,
        BARRIERS,
        load_box(3),
        wgmma(_WIDTHS, "f16", (False, False)) + wgmma_of(made.column.size.own, "f16", (False, True), in_registers=True),
        TURNS,
        SIZES_OF_PARTS,
        *kernel.forms.helpers(),
    ]
    return plan.fragment(_HEADER, device, *before, text, more=("cuda_fp16.h",))


def _plan(plan: AttentionPlan) -> None:
    made, heads, rows, keys = plan.made, plan.name("heads"), plan.name("rows"), plan.name("keys")
    own_lengths(plan)
    plan.whole_rows(4)
    plan.add("const", "CONSUMERS = 2", "warpgroups with 64 rows each")
    plan.add("tune", "KEYS = 128 | 64", "of a tile")
    plan.add("tune", "STAGES = 2 | 1")
    plan.add("need", "KEYS + E <= 192", "registers of a thread")
    slots = "(CONSUMERS * 64 * D + STAGES * KEYS * (D + E)) * 4"
    plan.shared_memory(f"{slots} + (STAGES * 4 + 2) * 8")
    units, shares = plan.name("units"), plan.name("shares")
    plan.add("let", f"{units} = {product_text(made.units)}, {shares} = {product_text(made.sharing)}")
    plan.add("let", f"@tiles = ceil_div({rows}, CONSUMERS * 64)")
    plan.add("let", f"@q_pieces = ceil_div({rows}, 64)")
    plan.add("let", f"@k_pieces = ceil_div({keys}, 64)")
    plan.add("need", f"(@q_pieces + 2 * @k_pieces) * {heads} <= 2000000000")
    section_line(plan, 4)
    shapes = {
        "q": (heads, rows, "D", ""),
        "k": (units, keys, "D", ""),
        "v": (units, keys, "E", ", E"),
    }
    for name, (count, many, length, columns_too) in shapes.items():
        plan.add("scratch", f"{plan.name(name + '_parts')}: f16[2 * {count}, {many}, {length}]")
        plan.add("scratch", f"{plan.name(name + '_peaks')}: i32[{count}{columns_too}] zeroed", "greatest, as bits")
        box = "64" if name == "q" else "KEYS"
        tiled = f"tiled({plan.name(name + '_parts')}, box=[1, {box}, 64], swizzle=128, l2=256)"
        plan.add("map", f"{plan.name(name + '_map')} = {tiled}")


_HALVES = """\
__device__ __forceinline__ float low_half(uint32_t both) { return __low2float(*reinterpret_cast<__half2*>(&both)); }
__device__ __forceinline__ float high_half(uint32_t both) { return __high2float(*reinterpret_cast<__half2*>(&both)); }

constexpr float RAISED = 10.0f;  // weights are so many powers of two greater: their small parts are normal numbers

// The power of two that brings numbers up to the one with these bits below 2^15; at most 2^50, so that two of them can
// be multiplied.
__device__ __forceinline__ float scale_of(unsigned peak) {
  const int exponent = max(static_cast<int>(peak >> 23), 127 + 14 - 50);
  return exponent >= 255 ? 1.0f : __uint_as_float((127 + 14 + 127 - exponent) << 23);
}
"""

# Both kernels before the product: a block has 64 rows of one matrix.
_BEFORE = """\
const int q_blocks = heads * q_pieces, k_blocks = units * k_pieces;
int job = blockIdx.x;
const bool is_q = job < q_blocks, is_k = !is_q && job < q_blocks + k_blocks;
job -= is_q ? 0 : is_k ? q_blocks : q_blocks + k_blocks;
const int pieces = is_q ? q_pieces : k_pieces, matrix = job / pieces, row0 = job % pieces * 64;
const int count = min(64, (is_q ? rows : keys) - row0);
const int head = is_q ? matrix : matrix * shares;
@heads
const float* from = is_q ? @q_first : is_k ? @k_first : @v_first;
const long long pitch = is_q ? @q_pitch : is_k ? @k_pitch : @v_pitch;
from += row0 * pitch;
const int vectors = (is_q || is_k ? D : E) / 4;
"""
_PEAKS = """\
unsigned* peaks = is_q ? q_peaks + matrix : is_k ? k_peaks + matrix : v_peaks + matrix * E;
__shared__ unsigned peak[E];  // of every column; of queries and keys all together in the first
for (int i = threadIdx.x; i < E; i += 256) peak[i] = 0;
__syncthreads();
unsigned all = 0;
const int step = 256 / vectors * vectors, column = threadIdx.x % vectors * 4;
unsigned most[4] = {};
if (threadIdx.x < step)
  for (int i = threadIdx.x; i < count * vectors; i += step) {
    const float4 v = *reinterpret_cast<const float4*>(from + i / vectors * pitch + column);
    most[0] = max(most[0], __float_as_uint(fabsf(v.x))), most[1] = max(most[1], __float_as_uint(fabsf(v.y)));
    most[2] = max(most[2], __float_as_uint(fabsf(v.z))), most[3] = max(most[3], __float_as_uint(fabsf(v.w)));
  }
if (is_q || is_k) {
  all = __reduce_max_sync(~0u, max(max(most[0], most[1]), max(most[2], most[3])));
  if (threadIdx.x % 32 == 0) atomicMax(peak, all);
} else {
  unrolled for (int e = 0; e < 4; ++e)
    if (threadIdx.x < step) atomicMax(peak + column + e, most[e]);
}
__syncthreads();
for (int i = threadIdx.x; i < (is_q || is_k ? 1 : E); i += 256) atomicMax(peaks + i, peak[i]);
"""
_SPLIT = """\
const unsigned* peaks = is_q ? q_peaks + matrix : is_k ? k_peaks + matrix : v_peaks + matrix * E;
__half* to = is_q ? q_parts : is_k ? k_parts : v_parts;
const long long length = vectors * 4, first = ((long long)matrix * (is_q ? rows : keys) + row0) * length;
const long long apart = (long long)(is_q ? heads : units) * (is_q ? rows : keys) * length;  // of the two parts
__shared__ int lost[E];
for (int i = threadIdx.x; i < E; i += 256) lost[i] = 0;
__syncthreads();
for (int i = threadIdx.x; i < count * vectors; i += 256) {
  const int column = i % vectors * 4;
  const float4 v = *reinterpret_cast<const float4*>(from + i / vectors * pitch + column);
  const float given[4] = {v.x, v.y, v.z, v.w};
  float scaled[4];
  unrolled for (int e = 0; e < 4; ++e) {
    scaled[e] = given[e] * scale_of(peaks[is_q || is_k ? 0 : column + e]);
    // Below a quarter the small part has fewer than 11 bits.
    if (!is_q && !is_k && scaled[e] != 0.0f && fabsf(scaled[e]) < 0.25f) atomicAdd(lost + column + e, 1);
  }
  uint2 big = make_uint2(pair(scaled[0], scaled[1]), pair(scaled[2], scaled[3]));
  uint2 small = make_uint2(pair(scaled[0] - low_half(big.x), scaled[1] - high_half(big.x)),
                           pair(scaled[2] - low_half(big.y), scaled[3] - high_half(big.y)));
  *reinterpret_cast<uint2*>(to + first + i * 4) = big;
  *reinterpret_cast<uint2*>(to + apart + first + i * 4) = small;
}
if (is_q) {
  // Scores are off by 2^-39 of this at most, which weights show where it is large.
  const float greatest = __uint_as_float(q_peaks[matrix]) * __uint_as_float(k_peaks[matrix / shares]) * given_scale;
  if (threadIdx.x == 0 && !(greatest < 8192.0f)) wide[matrix] = 1;
} else if (!is_k) {
  __syncthreads();
  bool many = false;
  for (int i = threadIdx.x; i < E; i += 256) many |= lost[i] * 16 > count || peaks[i] >= 0x7f800000u;
  if (__syncthreads_or(many) && threadIdx.x < shares) wide[matrix * shares + threadIdx.x] = 1;
}
"""


def _before(kernel: AttentionKernel, which: str) -> list[str]:
    made, plan = kernel.made, kernel.plan
    parts = {f"{name}_{what}": [text] for name, what, text in kernel.places()}
    body = worded(_BEFORE, {"heads": kernel.split(made.heads, "head"), **parts}).splitlines()
    body += (_PEAKS if which == "peaks" else _SPLIT).splitlines()
    constant = "" if which == "peaks" else "const "
    more = [(f"{constant}unsigned* __restrict__ {name}_peaks", plan.name(f"{name}_peaks")) for name in "qkv"]
    if which == "split":
        more += [(f"__half* __restrict__ {name}_parts", plan.name(f"{name}_parts")) for name in "qkv"]
        more += [("int* __restrict__ wide", "wide"), ("float given_scale", made.scores.scale)]
    more += plan.numbers("rows", "keys", "heads", "units", "shares", "q_pieces", "k_pieces")
    grid = "@heads * @q_pieces + 2 * @units * @k_pieces"
    return kernel.launched(which, grid, "256", "256", body, more, ())

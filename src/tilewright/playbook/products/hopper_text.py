"""Device functions of Hopper's products, as text: barriers, TMA, wgmma, and the walk over tiles."""

from __future__ import annotations

BARRIERS = """\
// ---- barriers: a phase ends when the announced arrivals and bytes have come; waiters name the phase by its parity
__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN; }"
               ::"r"(barrier), "r"(parity) : "memory");
}
// The 128 threads of a consumer wait for each other.
__device__ __forceinline__ void consumer_sync(int consumer) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + consumer) : "memory");
}
"""

_TMA = """\
// ---- TMA: the box of `map` at x, y, z
__device__ __forceinline__ void load_box(const CUtensorMap* map, uint32_t barrier, uint32_t to, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%3, %4, %5}], [%2];"
               ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");
}
__device__ __forceinline__ void prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
"""

_STORE_BOX = """\
__device__ __forceinline__ void store_box(const CUtensorMap* map, uint32_t from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];\\n"
               "cp.async.bulk.commit_group;"
               ::"l"(map), "r"(from), "r"(x), "r"(y), "r"(z) : "memory");
}
"""
# What is written first leaves L2 first: results that are more than it holds would take the operands' places.
_STORE_ROW = """\
__device__ __forceinline__ void store_row(float* to, uint32_t from, int bytes) {
  uint64_t policy; asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;\\n"
               "cp.async.bulk.commit_group;"
               ::"l"(to), "r"(from), "r"(bytes), "l"(policy) : "memory");
}
"""
_WAIT = """\
// Until all but PENDING stores have read what they store.
template <int PENDING> __device__ __forceinline__ void wait_until_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void wait_until_stored() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
"""
SHOW = """\
// What threads wrote to shared memory, TMA and wgmma may read.
__device__ __forceinline__ void show_to_tma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
"""


def tma(boxes: bool, rows: bool = False) -> str:
    """What brings boxes of the operands, and stores boxes, or rows, of the results."""
    store = _STORE_BOX if boxes else _STORE_ROW if rows else ""
    return _TMA + (store + _WAIT + SHOW if store else "")


_WGMMA = """\
// ---- wgmma
// Where an operand lies: address and two strides in units of 16 bytes, and its swizzle. Contiguous along k: `stride`
// leads to the next 8 rows. Contiguous along m or n: `stride` leads to the next 8 of k, `lead` to the next 64 columns.
@swizzles
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t lead, uint32_t stride, uint64_t swizzle) {
  return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)(lead >> 4) << 16 | (uint64_t)(stride >> 4) << 32 | swizzle;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// d (64 x columns, f32, in the registers of a warpgroup) = a (64 x 16) * b (16 x columns) + (add ? d : 0), operands
// named by descriptors of shared memory. The instruction lists every register of d, so each width has a text of its
// own. Its last two numbers: whether a is contiguous along m, and b along n.
"""


_SWIZZLES = {32: "SWIZZLE_32 = 3ull << 62", 64: "SWIZZLE_64 = 2ull << 62", 128: "SWIZZLE_128 = 1ull << 62"}


def wgmma(
    widths: tuple[int, ...],
    kind: str,
    transposed: tuple[bool, bool],
    swizzles: tuple[int, ...] = (128,),
    in_registers: bool = False,
) -> str:
    """The functions `wgmma` for sums of these widths and operands of `kind`, f16, bf16 or tf32, and what they need."""
    named = ", ".join(_SWIZZLES[one] for one in swizzles)
    functions = "".join(wgmma_of(width, kind, transposed, in_registers) for width in widths)
    return _WGMMA.replace("@swizzles", f"constexpr uint64_t {named};") + functions


def wgmma_of(width: int, kind: str, transposed: tuple[bool, bool], in_registers: bool) -> str:
    """The function `wgmma` for sums of one width; `in_registers`: a is in registers."""
    count, depth = width // 2, 8 if kind == "tf32" else 16
    taken = 4 if in_registers else 1  # operands that name a
    a = "const uint32_t (&a)[4]" if in_registers else "uint64_t a"
    lines = [f"__device__ __forceinline__ void wgmma(float (&d)[{count}], {a}, uint64_t b, int add) {{"]
    lines += [f'  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + taken + 1}, 0;"']
    lines += [f'               " wgmma.mma_async.sync.aligned.m64n{width}k{depth}.f32.{kind}.{kind} {{"']
    for first in range(0, count, 16):
        listed = ", ".join(f"%{index}" for index in range(first, min(first + 16, count)))
        lines.append(f'               "{listed}{", " if first + 16 < count else "}"}"')
    a_along_m, b_along_n = (int(one) for one in transposed)
    registers = ", ".join(f"%{count + index}" for index in range(4))
    named = f"{{{registers}}}" if in_registers else f"%{count}"
    last = f", {b_along_n}" if in_registers else f", {a_along_m}, {b_along_n}"  # TF32 is contiguous along k
    lines.append(f'               ", {named}, %{count + taken}, p, 1, 1{last if depth == 16 else ""}; }}"')
    for first in range(0, count, 8):
        listed = ", ".join(f'"+f"(d[{index}])' for index in range(first, first + 8))
        lines.append(f"               {':' if first == 0 else ' '} {listed}{',' if first + 8 < count else ''}")
    given = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])' if in_registers else '"l"(a)'
    lines.append(f'               : {given}, "l"(b), "r"(add));')
    return "\n".join([*lines, "}", ""])

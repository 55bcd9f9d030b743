"""Golden forms: Hopper's small instructions, one kernel file each, beside the copies of `golden_copies.py`."""

from __future__ import annotations

from benchmarks.golden_tensor_copies import HEAD, CopyProbe

_FILE = """\
//! op      probe(x) -> y
//! need    device.cc == 90
//! out     y: i32[{count}]
{launches}
#include <cuda_bf16.h>
#include <cuda_fp16.h>
{head}
__global__ void fill(int* y, int value, int count) {{
  for (int k = threadIdx.x; k < count; k += blockDim.x) y[k] = value;
}}
{code}
"""


def _form(name: str, count: int, launch: str, code: str, start: int = -1) -> CopyProbe:
    launches = f"//! launch  fill<<<1, 128>>>(y, {start}, {count})\n//! launch  {launch}"
    return CopyProbe(
        f"form_{name}", _FILE.format(count=count, launches=launches, head=HEAD, code=code), (256,), "int32"
    )


# -- inside a block --

_ELECT = """\
__global__ void probe(int* y) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned masks[4] = {0xffffffffu, 0xfffffff0u, 0x80000000u, 0x00f0f000u};
  unsigned mask = masks[warp];
  if (!(mask >> lane & 1)) return;
  unsigned leader; int chosen;
  asm volatile("{ .reg .pred p; elect.sync %0|p, %2; selp.s32 %1, 1, 0, p; }" : "=r"(leader), "=r"(chosen) : "r"(mask));
  y[threadIdx.x] = (int)leader * 2 + chosen;
}
"""
_NAMED_BARRIERS = """\
__global__ void probe(const int* x, int* y) {
  __shared__ int passed[128];
  int t = threadIdx.x, got;
  if (t < 64) {  // two warps fill, a third takes; the fourth keeps away
    passed[t] = x[t];
    asm volatile("barrier.cta.arrive 3, 96;" ::: "memory");
  } else if (t < 96) {
    asm volatile("bar.sync 3, 96;" ::: "memory");
    y[t] = passed[t - 64] + passed[t - 32];
  }
  asm volatile("{ .reg .pred p; setp.lt.s32 p, %1, 0; barrier.cta.red.popc.u32 %0, 5, p; }" : "=r"(got) : "r"(x[t]));
  y[128 + t] = got;
  if (t < 96) {
    int all, any;
    asm volatile("{ .reg .pred p, q; setp.gt.s32 p, %1, -126; barrier.red.and.pred q, 6, 96, p; selp.s32 %0, 1, 0, q; }"
                 : "=r"(all) : "r"(x[t]));
    asm volatile("{ .reg .pred p, q; setp.gt.s32 p, %1, 126; barrier.cta.red.or.pred q, 7, 96, p;"
                 " selp.s32 %0, 1, 0, q; }"
                 : "=r"(any) : "r"(x[t]));
    y[256 + t] = all * 2 + any;
  }
}
"""
_REGISTERS = """\
__global__ void __launch_bounds__(384, 1) probe(const int* x, int* y) {
  int sum = 0;
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    sum = x[threadIdx.x];
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    int held[64];
    for (int k = 0; k < 64; ++k) held[k] = x[(threadIdx.x + k) % 256];
    for (int k = 0; k < 64; ++k) sum += held[k] * held[63 - k];
  }
  y[threadIdx.x] = sum;
}
"""
_FENCES = """\
__global__ void probe(const int* x, int* y) {
  y[threadIdx.x] = x[threadIdx.x];
  asm volatile("fence.proxy.async;\\nfence.proxy.async.global;\\nfence.proxy.async.shared::cta;\\n"
               "fence.proxy.async.shared::cluster;\\nfence.proxy.alias;\\nfence.proxy.tensormap::generic.release.gpu;\\n"
               "fence.mbarrier_init.release.cluster;\\nfence.acq_rel.cluster;\\nfence.sc.cluster;\\nfence.acquire.gpu;\\n"
               "fence.release.gpu;\\nfence.sc.sys;\\nmembar.gl;\\nfence.acquire.sync_restrict::shared::cluster.cluster;\\n"
               "fence.release.sync_restrict::shared::cta.cluster;\\n"
               "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;\\n"
               "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;" ::: "memory");
  asm volatile("prefetch.global.L2::evict_last [%0];\\nprefetch.global.L1 [%0];\\nprefetchu.L1 [%0];\\n"
               "cp.async.bulk.prefetch.L2.global [%0], 64;\\nnanosleep.u32 20;" ::"l"(x) : "memory");
  int got;
  asm volatile("{ .reg .b64 policy; createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 policy, 0.5;\\n"
               "ld.global.L1::evict_last.L2::cache_hint.L2::128B.b32 %0, [%1], policy;\\n"
               "st.global.L1::no_allocate.L2::cache_hint.b32 [%2], %0, policy; }"
               : "=r"(got) : "l"(x + threadIdx.x), "l"(y + 128 + threadIdx.x) : "memory");
}
"""
_RELU = """\
__global__ void probe(const int* x, int* y) {
  int a = x[threadIdx.x] * 0x01010101, b = x[255 - threadIdx.x] * 0x00fffff1, d[6];
  asm("min.relu.s32 %0, %1, %2;" : "=r"(d[0]) : "r"(a), "r"(b));
  asm("max.relu.s32 %0, %1, %2;" : "=r"(d[1]) : "r"(a), "r"(b));
  asm("min.relu.s16x2 %0, %1, %2;" : "=r"(d[2]) : "r"(a), "r"(b));
  asm("max.relu.s16x2 %0, %1, %2;" : "=r"(d[3]) : "r"(a), "r"(b));
  asm("max.u16x2 %0, %1, %2;" : "=r"(d[4]) : "r"(a), "r"(b));
  asm("add.s16x2 %0, %1, %2;" : "=r"(d[5]) : "r"(a), "r"(b));
  for (int k = 0; k < 6; ++k) y[k * 128 + threadIdx.x] = d[k];
}
"""
_VECTOR_ATOMICS = """\
__global__ void probe(const int* x, int* y) {
  float f[4], old[4];
  for (int k = 0; k < 4; ++k) f[k] = (float)x[threadIdx.x + k];
  float* to = (float*)y + 4 * (threadIdx.x % 4);  // whole numbers, so that the order does not matter
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
               ::"l"(to), "f"(f[0]), "f"(f[1]), "f"(f[2]), "f"(f[3]) : "memory");
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to + 16), "f"(f[0]), "f"(f[1]) : "memory");
  __half2 h[2] = {__floats2half2_rn(f[0], f[1]), __floats2half2_rn(f[2], f[3])};
  __nv_bfloat162 b[2] = {__floats2bfloat162_rn(f[0], f[1]), __floats2bfloat162_rn(f[2], f[3])};
  asm volatile("red.global.max.noftz.v2.f16x2 [%0], {%1, %2};"
               ::"l"(y + 32), "r"(*(int*)&h[0]), "r"(*(int*)&h[1]) : "memory");
  asm volatile("red.global.min.noftz.v2.bf16x2 [%0], {%1, %2};"
               ::"l"(y + 36), "r"(*(int*)&b[0]), "r"(*(int*)&b[1]) : "memory");
  if (threadIdx.x) return;
  asm volatile("atom.global.add.v4.f32 {%0, %1, %2, %3}, [%4], {%5, %6, %7, %8};"
               : "=f"(old[0]), "=f"(old[1]), "=f"(old[2]), "=f"(old[3])
               : "l"(y + 40), "f"(f[0]), "f"(f[1]), "f"(f[2]), "f"(f[3]) : "memory");
  for (int k = 0; k < 4; ++k) y[44 + k] = __float_as_int(old[k]);
}
"""
_DEPENDENT = """\
__global__ void first(const int* x, int* y) {
  asm volatile("griddepcontrol.launch_dependents;");
  y[threadIdx.x] = x[threadIdx.x] * 3;
}
__global__ void probe(int* y) {
  int mine = threadIdx.x * 7;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  y[128 + threadIdx.x] = y[127 - threadIdx.x] + mine;
}
"""
# A tensor map made from nothing, for elements of each type; what lies outside is NaN of that type, and shows it.
_MAP_MADE = """\
#define FIELD(field, bits, letter, value) \\
  asm volatile("tensormap.replace.tile." field ".shared::cta.b1024.b" bits ";" ::"r"(at(map)), letter(value) : "memory")
template <int TYPE, int BYTES, int SLOT>
__global__ void probe(const int* x, int* y) {
  __shared__ __align__(128) int map[32], tile[64];
  __shared__ __align__(8) unsigned long long barrier;
  constexpr int COLUMNS = 64 / BYTES, WIDE = 32 / BYTES;  // of a tensor of 16 rows, and of a box of 8
  int* there = y + 32 * SLOT;
  if (threadIdx.x < 32) map[threadIdx.x] = 0;
  for (int k = threadIdx.x; k < 64; k += 64) tile[k] = -1;
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&barrier)) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    FIELD("global_address", "64 [%0], %1", "l", x);
    FIELD("rank", "32 [%0], %1", "r", 1);
    FIELD("box_dim", "32 [%0], 0, %1", "r", WIDE);
    FIELD("box_dim", "32 [%0], 1, %1", "r", 8);
    FIELD("global_dim", "32 [%0], 0, %1", "r", COLUMNS);
    FIELD("global_dim", "32 [%0], 1, %1", "r", 16);
    FIELD("global_stride", "64 [%0], 0, %1", "l", 64ll);
    FIELD("element_stride", "32 [%0], 0, %1", "r", 1);
    FIELD("element_stride", "32 [%0], 1, %1", "r", 1);
    FIELD("elemtype", "32 [%0], %1", "n", TYPE);
    FIELD("interleave_layout", "32 [%0], %1", "n", 0);
    FIELD("swizzle_mode", "32 [%0], %1", "n", 0);
    FIELD("fill_mode", "32 [%0], %1", "n", TYPE > 5 ? 1 : 0);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
                 " [%0], [%1], 128;"
                 ::"l"(there), "r"(at(map)) : "memory");
  }
  if (threadIdx.x == 0) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(there) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" ::"r"(at(&barrier)) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, 12}], [%2];"
                 ::"r"(at(tile)), "l"(there), "r"(at(&barrier)), "r"(COLUMNS - WIDE / 2) : "memory");
  }
  wait(at(&barrier), 0);
  __syncthreads();
  y[256 + SLOT * 64 + threadIdx.x] = tile[threadIdx.x];
  if (threadIdx.x < 32) there[threadIdx.x] = 0;
}
"""

# -- in a cluster --

_MEET = 'asm volatile("barrier.cluster.arrive.release.aligned;\\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");'
_PLACES = f"""\
__global__ void __cluster_dims__(4) probe(int* y) {{
  __shared__ int mine[32];
  unsigned rank, size, id, peer, generic_rank, window_rank; int in_cluster, in_block, peer_in_block;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(id));
  mine[threadIdx.x] = rank * 100 + threadIdx.x;
  {_MEET}
  unsigned long long far, near = (unsigned long long)mine;
  asm("mapa.u64 %0, %1, %2;" : "=l"(far) : "l"(near), "r"((rank + 1) % size));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(at(mine)), "r"((rank + 2) % size));
  asm("getctarank.u64 %0, %1;" : "=r"(generic_rank) : "l"(far));
  asm("getctarank.shared::cluster.u32 %0, %1;" : "=r"(window_rank) : "r"(peer));
  asm("{{ .reg .pred p; isspacep.shared::cluster p, %1; selp.s32 %0, 1, 0, p; }}" : "=r"(in_cluster) : "l"(far));
  asm("{{ .reg .pred p; isspacep.shared::cta p, %1; selp.s32 %0, 1, 0, p; }}" : "=r"(in_block) : "l"(near));
  asm("{{ .reg .pred p; isspacep.shared::cta p, %1; selp.s32 %0, 1, 0, p; }}" : "=r"(peer_in_block) : "l"(far));
  int there;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(there) : "r"(peer + 4 * threadIdx.x) : "memory");
  int* out = y + blockIdx.x * 96;
  out[threadIdx.x] = there;
  out[32 + threadIdx.x] = ((int*)far)[31 - threadIdx.x];
  const int said[8] = {{(int)rank, (int)size, (int)id, (int)generic_rank, (int)window_rank,
                       in_cluster, in_block, peer_in_block}};
  if (threadIdx.x < 8) out[64 + threadIdx.x] = said[threadIdx.x];
  {_MEET}
}}
"""
_SENT = f"""\
#define SEND(text, ...) asm volatile(text ::__VA_ARGS__ : "memory")
__global__ void __cluster_dims__(2) probe(const int* x, int* y) {{
  __shared__ __align__(16) int held[32];
  __shared__ __align__(8) unsigned long long barrier;
  unsigned rank, to, there;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  held[threadIdx.x] = x[threadIdx.x + 32 * rank];
  if (threadIdx.x == 0) {{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\\nfence.mbarrier_init.release.cluster;"
                 ::"r"(at(&barrier)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 92;" ::"r"(at(&barrier)) : "memory");
  }}
  {_MEET}
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(at(held)), "r"(rank ^ 1));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at(&barrier)), "r"(rank ^ 1));
  if (threadIdx.x == 0) {{
    int a = x[7], b = x[9]; long long wide = x[11];
#define TO "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
    SEND(TO ".b32 [%0], %1, [%2];", "r"(to), "r"(a), "r"(there));
    SEND(TO ".v2.s32 [%0], {{%1, %2}}, [%3];", "r"(to + 8), "r"(a), "r"(b), "r"(there));
    SEND(TO ".v4.b32 [%0], {{%1, %2, %1, %2}}, [%3];", "r"(to + 16), "r"(a), "r"(b), "r"(there));
    SEND(TO ".b64 [%0], %1, [%2];", "r"(to + 32), "l"(wide), "r"(there));
    SEND(TO ".v2.u64 [%0], {{%1, %1}}, [%2];", "r"(to + 48), "l"(wide), "r"(there));
#define ON "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes"
    SEND(ON ".add.u32 [%0], %1, [%2];", "r"(to + 64), "r"(a), "r"(there));
    SEND(ON ".min.s32 [%0], %1, [%2];", "r"(to + 68), "r"(a), "r"(there));
    SEND(ON ".max.u32 [%0], %1, [%2];", "r"(to + 72), "r"(a), "r"(there));
    SEND(ON ".inc.u32 [%0], %1, [%2];", "r"(to + 76), "r"(a), "r"(there));
    SEND(ON ".dec.u32 [%0], %1, [%2];", "r"(to + 80), "r"(a), "r"(there));
    SEND(ON ".and.b32 [%0], %1, [%2];", "r"(to + 84), "r"(a), "r"(there));
    SEND(ON ".xor.b32 [%0], %1, [%2];", "r"(to + 88), "r"(a), "r"(there));
    SEND(ON ".or.b32 [%0], %1, [%2];", "r"(to + 92), "r"(a), "r"(there));
    SEND(ON ".add.u64 [%0], %1, [%2];", "r"(to + 96), "l"(wide), "r"(there));
  }}
  wait(at(&barrier), 0);
  y[rank * 32 + threadIdx.x] = held[threadIdx.x];
  {_MEET}
}}
"""
_FAR_ATOMICS = f"""\
__global__ void __cluster_dims__(2) probe(const int* x, int* y) {{
  __shared__ int held[8];
  unsigned rank, to; int old[3];
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x < 8) held[threadIdx.x] = x[threadIdx.x];
  {_MEET}
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(at(held)), "r"(rank ^ 1));
  asm volatile("atom.shared::cluster.add.u32 %0, [%1], %2;"
               : "=r"(old[0]) : "r"(to + 4), "r"(x[threadIdx.x]) : "memory");
  asm volatile("red.release.cluster.shared::cluster.max.s32 [%0], %1;" ::"r"(to + 8), "r"(x[threadIdx.x]) : "memory");
  asm volatile("red.shared::cluster.and.b32 [%0], %1;" ::"r"(to + 12), "r"(x[threadIdx.x] | 0x0f) : "memory");
  if (threadIdx.x == 0) {{
    asm volatile("atom.acq_rel.cluster.shared::cluster.cas.b32 %0, [%1], %2, 99;"
                 : "=r"(old[1]) : "r"(to + 16), "r"(x[4]) : "memory");
    asm volatile("atom.shared::cluster.exch.b32 %0, [%1], 77;" : "=r"(old[2]) : "r"(to + 20) : "memory");
    y[rank * 16 + 8] = old[1], y[rank * 16 + 9] = old[2];
  }}
  {_MEET}
  if (threadIdx.x < 8) y[rank * 16 + threadIdx.x] = held[threadIdx.x];
}}
"""


def forms() -> list[CopyProbe]:
    dependent = _form(
        "griddepcontrol", 256, "first<<<1, 128>>>(x, y)\n//! launch  probe<<<1, 128>>>(y) pdl", _DEPENDENT
    )
    types = ((0, 1), (3, 4), (5, 8), (6, 2), (7, 4), (9, 8), (10, 2))
    made = "\n//! launch  ".join(f"probe<{t}, {size}, {k}><<<1, 64>>>(x, y)" for k, (t, size) in enumerate(types))
    return [
        _form("elect", 128, "probe<<<1, 128>>>(y)", _ELECT),
        _form("named_barriers", 384, "probe<<<1, 128>>>(x, y)", _NAMED_BARRIERS),
        _form("setmaxnreg", 384, "probe<<<1, 384>>>(x, y)", _REGISTERS),
        _form("fences", 256, "probe<<<1, 128>>>(x, y)", _FENCES),
        _form("relu", 768, "probe<<<1, 128>>>(x, y)", _RELU),
        _form("vector_atomics", 48, "probe<<<1, 128>>>(x, y)", _VECTOR_ATOMICS, start=0),
        dependent,
        _form("map_made", 704, made, _MAP_MADE),
        _form("cluster_places", 768, "probe<<<8, 32>>>(y) cluster(4)", _PLACES),
        _form("cluster_sent", 64, "probe<<<2, 32>>>(x, y) cluster(2)", _SENT),
        _form("cluster_atomics", 32, "probe<<<2, 64>>>(x, y) cluster(2)", _FAR_ATOMICS),
    ]

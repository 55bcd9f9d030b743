"""Golden bulk copies without a map, mbarriers and clusters: one small kernel file each."""

from __future__ import annotations

from benchmarks.golden_tensor_copies import BYTES, CPP, HEAD, SMEM, CopyProbe

_PLAIN = """\
//! op      probe(x) -> y
//! need    device.cc == 90
//! out     y: x.dtype[x.shape]
//! launch  fill<<<1, 128>>>(x, y, x.numel)
//! launch  probe<<<1, 128, {smem}>>>(x, y, x.numel)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
{head}
__global__ void fill(const {cpp}* x, {cpp}* y, int count) {{
  for (int k = threadIdx.x; k < count; k += 128) y[k] = x[count - 1 - k];
}}
__global__ void probe(const {cpp}* x, {cpp}* y, int count) {{
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ __align__(8) unsigned long long barrier;
  if (threadIdx.x == 0) {{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\\n"
                 "fence.mbarrier_init.release.cluster;" ::"r"(at(&barrier)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(at(&barrier)) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];"
                 ::"r"(at(memory) + 64), "l"(x), "r"(at(&barrier)) : "memory");
  }}
  __syncthreads();
  wait(at(&barrier), 0);
  if (threadIdx.x == 0) {{
    asm volatile("cp.{reduce}async.bulk.global.shared::cta.bulk_group{operation} [%0], [%1], 768;\\n"
                 "cp.async.bulk.commit_group;\\ncp.async.bulk.wait_group 0;"
                 ::"l"((unsigned char*)y + 128), "r"(at(memory) + 96) : "memory");
  }}
}}
"""


def plain(name: str, dtype: str, operation: str = "") -> CopyProbe:
    reduce = "reduce." if operation else ""
    written = f".{operation}" if operation else ""
    source = _PLAIN.format(smem=SMEM, head=HEAD, cpp=CPP[dtype], reduce=reduce, operation=written)
    return CopyProbe(name, source, (1024 // BYTES[dtype],), dtype)


def plains() -> list[CopyProbe]:
    return [
        plain("bulk", "uint8"),
        plain("bulk_add_f16", "float16", "add.noftz.f16"),
        plain("bulk_add_bf16", "bfloat16", "add.noftz.bf16"),
        plain("bulk_min_f16", "float16", "min.f16"),
        plain("bulk_max_bf16", "bfloat16", "max.bf16"),
        plain("bulk_add_f32", "float32", "add.f32"),
        plain("bulk_add_f64", "float64", "add.f64"),
        plain("bulk_min_s32", "int32", "min.s32"),
        plain("bulk_max_u32", "int32", "max.u32"),
        plain("bulk_inc_u32", "int32", "inc.u32"),
        plain("bulk_dec_u32", "int32", "dec.u32"),
        plain("bulk_and_b32", "int32", "and.b32"),
        plain("bulk_xor_b64", "int64", "xor.b64"),
        plain("bulk_add_u64", "int64", "add.u64"),
        plain("bulk_min_s64", "int64", "min.s64"),
    ]


# -- mbarriers: what one thread sees of counts, states and phases --

_BARRIER = """\
//! op      probe(x) -> y
//! need    device.cc == 90
//! out     y: i32[64]
//! launch  probe<<<1, 32>>>(x, y)
{head}
#define TRUE_OR_NOT(form, letter) \\
  int r; asm volatile("{{ .reg .pred p; mbarrier." form ".shared::cta.b64 p, [%1], %2; selp.s32 %0, 1, 0, p; }}" \\
                      : "=r"(r) : "r"(b), letter(which) : "memory"); return r
__device__ int test(uint32_t b, unsigned long long which) {{ TRUE_OR_NOT("test_wait", "l"); }}
__device__ int parity(uint32_t b, int which) {{ TRUE_OR_NOT("test_wait.parity", "r"); }}
__device__ int pending(unsigned long long state) {{
  unsigned r; asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(r) : "l"(state)); return (int)r;
}}
#define STATE(text) asm volatile(text : "=l"(s) : "r"(b) : "memory")
#define DO(text) asm volatile(text ::"r"(b) : "memory")
__global__ void probe(const int* x, int* y) {{
  __shared__ __align__(8) unsigned long long barrier;
  __shared__ __align__(16) int copied[32];
  const uint32_t b = at(&barrier);
  int next = 0;
  if (threadIdx.x == 0) {{
    for (int k = 0; k < 64; ++k) y[k] = -1;
{body}
  }}
}}
"""

_BODIES = {
    "mbarrier_counts": """\
    DO("mbarrier.init.shared::cta.b64 [%0], 5;");
    unsigned long long s; STATE("mbarrier.arrive.shared::cta.b64 %0, [%1];");
    y[next++] = pending(s); y[next++] = test(b, s); y[next++] = parity(b, 0); y[next++] = parity(b, 1);
    STATE("mbarrier.arrive.noComplete.shared::cta.b64 %0, [%1], 2;");
    y[next++] = pending(s); y[next++] = test(b, s);
    STATE("mbarrier.arrive.shared::cta.b64 %0, [%1], 2;");
    y[next++] = pending(s); y[next++] = test(b, s); y[next++] = parity(b, 0); y[next++] = parity(b, 1);
    STATE("mbarrier.arrive.shared::cta.b64 %0, [%1], 4;");
    y[next++] = pending(s); y[next++] = test(b, s); y[next++] = parity(b, 1);
    STATE("mbarrier.arrive.shared::cta.b64 %0, [%1];");
    y[next++] = test(b, s); y[next++] = parity(b, 1); y[next++] = parity(b, 0);""",
    "mbarrier_drop": """\
    DO("mbarrier.init.shared::cta.b64 [%0], 4;");
    unsigned long long s; STATE("mbarrier.arrive_drop.shared::cta.b64 %0, [%1];");
    y[next++] = pending(s);
    STATE("mbarrier.arrive_drop.noComplete.shared::cta.b64 %0, [%1], 1;");
    y[next++] = pending(s);
    STATE("mbarrier.arrive.shared::cta.b64 %0, [%1], 2;");
    y[next++] = pending(s); y[next++] = test(b, s);
    STATE("mbarrier.arrive.shared::cta.b64 %0, [%1];");
    y[next++] = pending(s); y[next++] = test(b, s);
    STATE("mbarrier.arrive.shared::cta.b64 %0, [%1];");
    y[next++] = pending(s); y[next++] = test(b, s); y[next++] = parity(b, 0); y[next++] = parity(b, 1);""",
    "mbarrier_bytes": """\
    DO("mbarrier.init.shared::cta.b64 [%0], 2;");
    DO("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 16;");
    unsigned long long s; STATE("mbarrier.arrive.shared::cta.b64 %0, [%1], 2;");
    y[next++] = pending(s); y[next++] = test(b, s);
    DO("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 16;");
    y[next++] = test(b, s); y[next++] = parity(b, 0);
    STATE("mbarrier.arrive.expect_tx.shared::cta.b64 %0, [%1], 100;");
    y[next++] = pending(s);
    STATE("mbarrier.arrive.release.cta.shared::cta.b64 %0, [%1];");
    y[next++] = pending(s); y[next++] = test(b, s);
    DO("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 60;");
    y[next++] = test(b, s);
    DO("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 40;");
    y[next++] = test(b, s); y[next++] = parity(b, 1); y[next++] = parity(b, 0);""",
    "mbarrier_copies": """\
    DO("mbarrier.init.shared::cta.b64 [%0], 2;");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(at(copied)), "l"(x) : "memory");
    DO("cp.async.mbarrier.arrive.shared::cta.b64 [%0];");
    unsigned long long s; STATE("mbarrier.arrive.shared::cta.b64 %0, [%1], 2;");
    wait(b, 0);
    y[next++] = test(b, s); y[next++] = copied[0]; y[next++] = copied[3];
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(at(copied + 4)), "l"(x + 4) : "memory");
    DO("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];");
    STATE("mbarrier.arrive.shared::cta.b64 %0, [%1];");
    wait(b, 1);
    y[next++] = test(b, s); y[next++] = copied[4]; y[next++] = copied[7];""",
}


def barriers() -> list[CopyProbe]:
    return [CopyProbe(name, _BARRIER.format(head=HEAD, body=body), (64,), "int32") for name, body in _BODIES.items()]


# -- two blocks of a cluster --

_CLUSTER = """\
//! op      probe(x) -> y
//! need    device.cc == 90
//! out     y: i32[2, 256]
//! map     source = tiled(x, box=[4, 32])
//! launch  probe<<<2, 128>>>(source, x, y) cluster(2)
{head}
__global__ void __cluster_dims__(2) probe(const __grid_constant__ CUtensorMap source, const int* x, int* y) {{
  __shared__ __align__(1024) int tile[256];
  __shared__ __align__(8) unsigned long long barrier;
  uint32_t rank, b = at(&barrier), peer_barrier, peer_tile;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer_barrier) : "r"(b), "r"(rank ^ 1));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer_tile) : "r"(at(tile)), "r"(rank ^ 1));
  for (int k = threadIdx.x; k < 256; k += 128) tile[k] = -1;
  if (threadIdx.x == 0) {{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;\\nfence.mbarrier_init.release.cluster;" ::"r"(b) : "memory");
  }}
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("barrier.cluster.arrive.release;\\nbarrier.cluster.wait.acquire;" ::: "memory");
  if (threadIdx.x == 0) {{
{body}
  }}
  wait(b, 0);
  __syncthreads();
  for (int k = threadIdx.x; k < 256; k += 128) y[rank * 256 + k] = tile[k];
  asm volatile("barrier.cluster.arrive.release;\\nbarrier.cluster.wait.acquire;" ::: "memory");
}}
"""
_PAIRS = {
    "cluster_multicast": """\
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(b) : "memory");
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(peer_barrier) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {{%3, 3}}], [%2], %4;"
                 ::"r"(at(tile) + 512 * rank), "l"(&source), "r"(b), "r"((int)rank * 8), "h"((short)3) : "memory");""",
    "cluster_reduce": """\
    for (int k = 0; k < 128; ++k) tile[k] = x[k + 100 * rank];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" ::"r"(b) : "memory");
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(peer_barrier) : "memory");
    asm volatile("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.s32"
                 " [%0], [%1], 256, [%2];" ::"r"(peer_tile + 512), "r"(at(tile)), "r"(peer_barrier) : "memory");
    asm volatile("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.max.s32"
                 " [%0], [%1], 256, [%2];"
                 ::"r"(peer_tile + 768), "r"(at(tile) + 256), "r"(peer_barrier) : "memory");""",
    "cluster_bulk": """\
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" ::"r"(b) : "memory");
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(peer_barrier) : "memory");
    for (int k = 0; k < 64; ++k) tile[k] = x[k + 64 * rank];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"
                 ::"r"(peer_tile + 512), "r"(at(tile)), "r"(peer_barrier) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1], 128, [%2], %3;"
                 ::"r"(at(tile) + 768 + 128 * rank), "l"(x + 32 * rank), "r"(b), "h"((short)3) : "memory");""",
}


def clusters() -> list[CopyProbe]:
    return [
        CopyProbe(name, _CLUSTER.format(head=HEAD, body=body.replace("{{", "{").replace("}}", "}")), (20, 48), "int32")
        for name, body in _PAIRS.items()
    ]

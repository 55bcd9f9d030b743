"""Golden copies: what a real Hopper GPU does with mbarriers, bulk copies and tensor maps, one small kernel file each.

    python benchmarks/golden_copies.py --out h200_copies.npz [NAME...]    # needs a GPU of compute capability 9.0

What the file already holds of other probes stays. `probes()` are the kernel files; the emulator's tests run the same
ones and compare every byte of `y`.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_ROOT = Path(__file__).resolve().parent.parent
if str(_ROOT) not in sys.path:  # started as a program
    sys.path.insert(0, str(_ROOT))

from tilewright.ptx.tensor_maps import PixelBox  # noqa: E402

HEAD = """\
__device__ __forceinline__ uint32_t at(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN; }"
               ::"r"(barrier), "r"(parity) : "memory");
}
"""
_SECONDS = 8  # that a probe may take on the GPU, its build included
SMEM = 8192  # bytes of shared memory that a probe shows or fills


@dataclass(frozen=True)
class CopyProbe:
    """One kernel file with the input `x`; an im2col map takes the place of its tiled one where `pixel_box` is given."""

    name: str
    source: str
    shape: tuple[int, ...]
    dtype: str  # numpy's name, or bfloat16
    pixel_box: PixelBox | None = None

    @property
    def identity(self) -> str:
        text = f"{self.source} {self.shape} {self.dtype} {self.pixel_box}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def input_words(self) -> np.ndarray:
        """Small whole numbers, all different near each other: exact in every type."""
        count = int(np.prod(self.shape))
        values = (np.arange(count) * 7 + 3) % 251 - (0 if self.dtype == "uint8" else 125)
        return values.astype("float32" if self.dtype == "bfloat16" else self.dtype).reshape(self.shape)


# -- loads: the box as it lies in shared memory, and what it leaves alone --

_LOAD = """\
//! op      probe(x) -> y
//! need    device.cc == 90
//! out     y: u8[{smem}]
//! map     source = tiled(x, box={box}, swizzle={swizzle}{more})
//! launch  probe<<<1, 128, {smem} + 1024>>>(source, y)
{head}
__global__ void probe(const __grid_constant__ CUtensorMap source, unsigned char* y) {{
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ __align__(8) unsigned long long barrier;
  unsigned char* tile = memory + (1024 - at(memory) % 1024) % 1024;
  for (int k = threadIdx.x; k < {smem}; k += 128) tile[k] = 0xab;
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&barrier)) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], {bytes};" ::"r"(at(&barrier)) : "memory");
    asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global{mode}.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {{{coordinates}}}], [%2]{offsets};"
                 ::"r"(at(tile) + {offset}), "l"(&source), "r"(at(&barrier)) : "memory");
  }}
  wait(at(&barrier), 0);
  __syncthreads();
  for (int k = threadIdx.x; k < {smem}; k += 128) y[k] = tile[k];
}}
"""
_BYTES = {"uint8": 1, "int16": 2, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def load(
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    box: tuple[int, ...],
    start: tuple[int, ...],
    swizzle: int = 0,
    offset: int = 0,
    step: tuple[int, ...] | None = None,
    nan: bool = False,
) -> CopyProbe:
    """A tile; `shape`, `box`, `step` outermost first as plans have them, `start` innermost first as PTX does."""
    taken = [-(-size // by) for size, by in zip(box, step or (1,) * len(box), strict=True)]
    more = (f", step={list(step)}" if step else "") + (", fill=1" if nan else "")
    source = _LOAD.format(
        smem=SMEM, head=HEAD, box=list(box), swizzle=swizzle, more=more, rank=len(box), mode="", offsets="",
        bytes=int(np.prod(taken)) * _BYTES[dtype], coordinates=", ".join(map(str, start)), offset=offset,
    )  # fmt: skip
    return CopyProbe(name, source, shape, dtype)


def column(
    name: str, shape: tuple[int, ...], pixel_box: PixelBox, start: tuple[int, ...], offsets: tuple[int, ...]
) -> CopyProbe:
    """A column of pixels in im2col mode, f16; the plan's map is only a place for the real one."""
    source = _LOAD.format(
        smem=SMEM, head=HEAD, box=[1] * (len(shape) - 1) + [8], swizzle=0, more="", rank=len(shape), mode=".im2col",
        bytes=pixel_box.channels * pixel_box.pixels * 2, coordinates=", ".join(map(str, start)), offset=0,
        offsets=", {" + ", ".join(map(str, offsets)) + "}",
    )  # fmt: skip
    return CopyProbe(name, source, shape, "float16", pixel_box)


def loads() -> list[CopyProbe]:
    made = [
        load("load_1d", "int32", (100,), (64,), (20,)),
        load("load_1d_before", "int32", (100,), (64,), (-12,)),
        load("load_1d_behind", "int16", (104,), (64,), (72,)),
        load("load_1d_far", "uint8", (112,), (64,), (496,)),
        load("load_2d_corner", "float32", (20, 36), (8, 32), (-4, -3)),
        load("load_2d_end", "float32", (20, 36), (8, 32), (20, 15)),
        load("load_2d_nan_f32", "float32", (20, 36), (4, 16), (28, 18), nan=True),
        load("load_2d_nan_f16", "float16", (20, 40), (4, 16), (32, 18), nan=True),
        load("load_2d_nan_bf16", "bfloat16", (20, 40), (4, 16), (-8, -2), nan=True),
        load("load_2d_nan_f64", "float64", (20, 10), (4, 4), (8, 18), nan=True),
        load("load_2d_i64", "int64", (9, 14), (4, 6), (4, 2)),
        load("load_3d", "float16", (5, 9, 24), (3, 4, 16), (8, -1, 3)),
        load("load_4d", "int16", (3, 4, 5, 16), (2, 3, 2, 8), (8, 3, -1, 2)),
        load("load_5d", "uint8", (3, 4, 3, 4, 32), (2, 2, 2, 2, 16), (16, 3, -1, 2, 1)),
        load("load_step", "int32", (17, 12, 16), (6, 8, 8), (4, 1, 2), step=(2, 4, 1)),
        load("load_step_before", "int32", (17, 16), (8, 8), (4, -3), step=(2, 1)),
    ]
    for swizzle in (32, 64, 128):
        made += [
            load(f"load_swizzle_{swizzle}", "int16", (70, 72), (33, swizzle // 2), (8, 5), swizzle),
            load(f"load_swizzle_{swizzle}_moved", "int16", (70, 72), (33, swizzle // 2), (8, 5), swizzle, offset=384),
            load(f"load_swizzle_{swizzle}_narrow", "int16", (70, 72), (20, swizzle // 4), (8, 2), swizzle),
        ]
    made += [
        load("load_swizzle_3d", "uint8", (5, 20, 144), (2, 12, 128), (16, 9, -1), 128),
        column("im2col_3d", (3, 10, 16), PixelBox((-1,), (-1,), 16, 24), (0, -1, 0), (0,)),
        column("im2col_3d_filter", (3, 10, 16), PixelBox((-1,), (-1,), 8, 16), (8, 4, 0), (2,)),
        column("im2col_4d", (2, 6, 7, 16), PixelBox((-1, -1), (-1, -1), 16, 40), (0, -1, -1, 0), (0, 0)),
        column("im2col_4d_filter", (2, 6, 7, 16), PixelBox((-1, -1), (-1, -1), 8, 40), (8, 3, 2, 0), (2, 1)),
        column("im2col_4d_inner", (2, 6, 7, 16), PixelBox((0, 0), (-2, -2), 16, 50), (0, 0, 0, 0), (1, 2)),
        column("im2col_5d", (2, 3, 4, 5, 16), PixelBox((-1,) * 3, (-1,) * 3, 8, 64), (0, -1, -1, -1, 0), (1, 0, 2)),
    ]
    return made


# -- stores and reductions: a tensor that held something, and a box over its edge --

_STORE = """\
//! op      probe(x) -> y
//! need    device.cc == 90
//! out     y: x.dtype[x.shape]
//! map     target = tiled(y, box={box}, swizzle={swizzle})
//! launch  fill<<<1, 128>>>(x, y, x.numel)
//! launch  probe<<<1, 128, {smem} + 1024>>>(target, x, x.numel)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
{head}
__global__ void fill(const {cpp}* x, {cpp}* y, int count) {{
  for (int k = threadIdx.x; k < count; k += 128) y[k] = x[count - 1 - k];
}}
__global__ void probe(const __grid_constant__ CUtensorMap target, const {cpp}* x, int count) {{
  extern __shared__ __align__(1024) unsigned char memory[];
  {cpp}* tile = ({cpp}*)(memory + (1024 - at(memory) % 1024) % 1024);
  for (int k = threadIdx.x; k < {smem} / (int)sizeof({cpp}); k += 128) tile[k] = x[k * 3 % count];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {{
    asm volatile("cp.{reduce}async.bulk.tensor.{rank}d.global.shared::cta{operation}.bulk_group"
                 " [%0, {{{coordinates}}}], [%1];\\n"
                 "cp.async.bulk.commit_group;\\ncp.async.bulk.wait_group 0;"
                 ::"l"(&target), "r"(at(tile)) : "memory");
  }}
}}
"""
_CPP = {
    "uint8": "unsigned char", "int16": "short", "int32": "int", "int64": "long long", "float16": "__half",
    "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double",
}  # fmt: skip


def store(
    name: str, dtype: str, shape: tuple[int, ...], box: tuple[int, ...], start: tuple[int, ...], swizzle: int = 0,
    operation: str = "",
) -> CopyProbe:  # fmt: skip
    source = _STORE.format(
        smem=SMEM, head=HEAD, box=list(box), swizzle=swizzle, cpp=_CPP[dtype], rank=len(box),
        reduce="reduce." if operation else "", operation=f".{operation}" if operation else "",
        coordinates=", ".join(map(str, start)),
    )  # fmt: skip
    return CopyProbe(name, source, shape, dtype)


def stores() -> list[CopyProbe]:
    made = [
        store("store_1d", "int32", (100,), (64,), (60,)),
        store("store_2d", "float32", (20, 36), (8, 32), (20, 15)),
        store("store_3d", "float16", (5, 9, 24), (3, 4, 16), (16, 7, 3)),
        store("store_4d", "int16", (3, 4, 5, 16), (2, 3, 2, 8), (8, 4, 2, 2)),
        store("store_5d", "uint8", (3, 4, 3, 4, 32), (2, 2, 2, 2, 16), (16, 3, 2, 3, 2)),
    ]
    for swizzle in (32, 64, 128):
        made.append(store(f"store_swizzle_{swizzle}", "int16", (70, 72), (33, swizzle // 2), (8, 5), swizzle))
    for dtype, operations in (
        ("float32", ("add",)),
        ("float16", ("add", "min", "max")),
        ("bfloat16", ("add", "min", "max")),
        ("int32", ("add", "min", "max", "and", "or", "xor")),
        ("int64", ("min", "max")),
    ):
        for operation in operations:
            made.append(store(f"reduce_{dtype}_{operation}", dtype, (20, 40), (8, 16), (32, 15), 0, operation))
    return made


def refusals() -> list[CopyProbe]:
    """What the GPU stops at ("illegal instruction"): stores that begin before the tensor, sums of signed 64 bits."""
    return [
        store("refused_store_before", "float32", (20, 36), (8, 32), (-4, 3)),
        store("refused_store_above", "float32", (20, 36), (8, 32), (4, -3)),
        store("refused_reduce_before", "int32", (20, 40), (8, 16), (-8, 3), 0, "add"),
        store("refused_reduce_add", "int64", (20, 40), (8, 16), (32, 15), 0, "add"),
        store("refused_reduce_xor", "int64", (20, 40), (8, 16), (32, 15), 0, "xor"),
    ]


# -- without maps --

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
    source = _PLAIN.format(smem=SMEM, head=HEAD, cpp=_CPP[dtype], reduce=reduce, operation=written)
    return CopyProbe(name, source, (1024 // _BYTES[dtype],), dtype)


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


def probes() -> list[CopyProbe]:
    from benchmarks.golden_forms import forms  # made of what is here

    return [*loads(), *stores(), *plains(), *barriers(), *clusters(), *forms()]


# -- recording --


class _Im2col:
    """The driver's im2col encoding in place of the tiled one that a plan asks for, while it lasts."""

    def __init__(self, pixel_box: PixelBox) -> None:
        self.pixel_box = pixel_box

    def __enter__(self) -> None:
        from tilewright.devices.cuda import tensor_maps

        self.before = tensor_maps.TensorMapEncoder._encoded
        pixel_box = self.pixel_box

        def encoded(encoder: tensor_maps.TensorMapEncoder, address: int) -> bytes:
            record = encoder._record
            rank = len(record.shape)
            memory = ctypes.create_string_buffer(256)
            aligned = -(-ctypes.addressof(memory) // 64) * 64
            library = ctypes.CDLL("libcuda.so.1")
            code = library.cuTensorMapEncodeIm2col(
                ctypes.c_void_p(aligned), ctypes.c_int(6), ctypes.c_uint32(rank), ctypes.c_void_p(address),
                (ctypes.c_uint64 * rank)(*record.shape), (ctypes.c_uint64 * (rank - 1))(*record.stride_bytes),
                (ctypes.c_int * (rank - 2))(*pixel_box.lower), (ctypes.c_int * (rank - 2))(*pixel_box.upper),
                ctypes.c_uint32(pixel_box.channels), ctypes.c_uint32(pixel_box.pixels),
                (ctypes.c_uint32 * rank)(*record.step), *(ctypes.c_int(0),) * 4,
            )  # fmt: skip
            if code:
                raise RuntimeError(f"cuTensorMapEncodeIm2col refused {pixel_box}: {code}")
            return ctypes.string_at(aligned, 128)

        tensor_maps.TensorMapEncoder._encoded = encoded  # type: ignore[method-assign]

    def __exit__(self, *unused: object) -> None:
        from tilewright.devices.cuda import tensor_maps

        tensor_maps.TensorMapEncoder._encoded = self.before  # type: ignore[method-assign]


def run_on_gpu(probe: CopyProbe, folder: Path) -> np.ndarray:
    """The bytes of `y` as the GPU of this machine leaves them."""
    import contextlib

    import torch

    import tilewright

    path = folder / f"{probe.name}.cu"
    path.write_text(probe.source)
    x = torch.from_numpy(probe.input_words().copy())
    x = (x.bfloat16() if probe.dtype == "bfloat16" else x).cuda()
    with _Im2col(probe.pixel_box) if probe.pixel_box else contextlib.nullcontext():
        y = tilewright.load(path, strict=True)(x)
        torch.cuda.synchronize()
    return y.cpu().contiguous().view(torch.uint8).numpy().ravel().copy()


def _record(chosen: list[CopyProbe], folder: Path) -> None:
    """Each result into a file of its own, in this process, until one fails: a fault of the GPU is for good."""
    for probe in chosen:
        signal.alarm(_SECONDS)  # a kernel may hang
        try:
            np.save(folder / f"{probe.name}.npy", run_on_gpu(probe, folder))
        except Exception as problem:
            print(f"{probe.name}: {str(problem).splitlines()[0]}", flush=True)
            return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("h200_copies.npz"))
    parser.add_argument("names", nargs="*", help="probes whose names hold one of these; all")
    arguments = parser.parse_args()
    import tilewright  # noqa: F401  # once, before the children

    stored: dict[str, np.ndarray] = dict(np.load(arguments.out)) if arguments.out.exists() else {}
    left = [
        one
        for one in [*probes(), *refusals()]
        if not arguments.names or any(name in one.name for name in arguments.names)
    ]
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        while left:
            child = os.fork()
            if not child:
                _record(left, Path(folder))
                os._exit(0)
            os.waitpid(child, 0)
            while left and (path := Path(folder, f"{left[0].name}.npy")).exists():
                stored[left[0].name] = np.load(path)
                stored[f"{left[0].name}.identity"] = np.array(left[0].identity)
                left.pop(0)
            np.savez_compressed(arguments.out, **stored)
            if left:
                failures += 1
                print(f"{left.pop(0).name}: FAILED", flush=True)
    print(f"{arguments.out}: {len(stored) // 2} probes, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

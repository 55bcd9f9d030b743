"""Golden copies through tensor maps: one small kernel file each, and the record that every golden copy is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from tilewright.ptx.launching import PixelBox

HEAD = """\
__device__ __forceinline__ uint32_t at(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN; }"
               ::"r"(barrier), "r"(parity) : "memory");
}
"""
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
BYTES = {"uint8": 1, "int16": 2, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


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
        bytes=int(np.prod(taken)) * BYTES[dtype], coordinates=", ".join(map(str, start)), offset=offset,
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
CPP = {
    "uint8": "unsigned char", "int16": "short", "int32": "int", "int64": "long long", "float16": "__half",
    "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double",
}  # fmt: skip


def store(
    name: str, dtype: str, shape: tuple[int, ...], box: tuple[int, ...], start: tuple[int, ...], swizzle: int = 0,
    operation: str = "",
) -> CopyProbe:  # fmt: skip
    source = _STORE.format(
        smem=SMEM, head=HEAD, box=list(box), swizzle=swizzle, cpp=CPP[dtype], rank=len(box),
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

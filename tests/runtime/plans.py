"""Small kernel files, one for each thing a plan can ask of the runner. Each has arguments it must take on an H200."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sample:
    text: str
    arguments: tuple[Any, ...]  # as `explain` takes them


def cube_reference(x: Any) -> Any:
    return x * x * x


TWICE = """\
//! op      twice(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype in [f64, f32, f16, bf16]
//! tune    THREADS = 256 | 128
//! let     n = x.numel
//! launch  twice<x.dtype><<<ceil_div(n, THREADS), THREADS>>>(x, y, n)
template <typename T> __global__ void twice(const T* x, T* y, long long n) {
  long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (i < n) y[i] = x[i] + x[i];
}
"""

SCALE = """\
//! op      scale(x, factor: float, shift: int = 0) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  scale<<<ceil_div(n, 256), 256>>>(x, y, n, 2.0 * factor, shift)
__global__ void scale(const float* x, float* y, int n, float factor, int shift) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = x[i] * factor + shift;
}
"""

TRANSPOSED = """\
//! op      transposed(x) -> y
//! need    x.ndim == 2 and x.dtype == f32
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[rows, cols] stride [1, rows]
//! launch  place<<<rows, 64>>>(x, y, rows, cols)
__global__ void place(const float* x, float* y, int rows, int cols) {
  for (int c = threadIdx.x; c < cols; c += 64) y[c * rows + blockIdx.x] = x[blockIdx.x * cols + c];
}
"""

ANY_STRIDES = """\
//! op      plus_one(x) -> y
//! need    x.ndim == 2 and x.dtype == f32
//! accept  x: strided, unaligned
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[rows, cols]
//! launch  plus_one<<<rows, 64>>>(x, y, cols, x.stride)
__global__ void plus_one(const float* x, float* y, int cols, long long row_step, long long column_step) {
  x += blockIdx.x * row_step;
  for (int c = threadIdx.x; c < cols; c += 64) y[blockIdx.x * cols + c] = x[c * column_step] + 1;
}
"""

TWO_LAUNCHES = """\
//! op      row_mean(x) -> y
//! need    x.ndim == 2 and x.dtype == f32
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[rows]
//! scratch sums: f32[rows]
//! launch  add_up<<<rows, 32>>>(x, sums, cols)
//! launch  divide<<<ceil_div(rows, 64), 64>>>(sums, y, rows, 1.0 / cols)
__global__ void add_up(const float* x, float* sums, int cols) {
  float sum = 0.f;
  for (int c = threadIdx.x; c < cols; c += 32) sum += x[blockIdx.x * (long long)cols + c];
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
__global__ void divide(const float* sums, float* y, int rows, float factor) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i < rows) y[i] = sums[i] * factor;
}
"""

ZEROED = """\
//! op      bins(x, count: int) -> y
//! need    x.ndim == 1 and x.dtype == i64 and count > 0
//! out     y: i32[count]
//! scratch tally: i32[count] zeroed
//! launch  tally_up<<<ceil_div(x.numel, 128), 128>>>(x, tally, x.numel, count)
//! launch  copy<<<ceil_div(count, 128), 128>>>(tally, y, count)
__global__ void tally_up(const long long* x, int* tally, long long n, int count) {
  long long i = blockIdx.x * 128ll + threadIdx.x;
  if (i < n && x[i] >= 0 && x[i] < count) atomicAdd(tally + x[i], 1);
}
__global__ void copy(const int* tally, int* y, int count) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < count) y[i] = tally[i];
}
"""

COUNTER = """\
//! op      total(x) -> y
//! need    x.dtype == f32
//! let     n = x.numel, blocks = max(1, min(ceil_div(n, 1024), 64))
//! out     y: f32[]
//! scratch part: f32[blocks]
//! scratch tick: i32[1] counter
//! launch  total<<<blocks, 256>>>(x, part, tick, y, n)
__global__ void total(const float* x, float* part, int* tick, float* y, long long n) {
  __shared__ float warp[8];
  float sum = 0.f;
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) sum += x[i];
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < 8; ++i) sum += warp[i];
  part[blockIdx.x] = sum;
  __threadfence();
  if (atomicAdd(tick, 1) != (int)gridDim.x - 1) return;
  float all = 0.f;
  for (int i = 0; i < (int)gridDim.x; ++i) all += ((volatile float*)part)[i];
  *y = all;
  *tick = 0;
}
"""

IN_PLACE = """\
//! op      accumulate(y!, x)
//! need    x.dtype == f32 and y.dtype == f32 and x.numel == y.numel
//! accept  y: strided, unaligned
//! accept  x: strided, unaligned
//! need    y.ndim == 2 and x.ndim == 2
//! let     rows = y.shape[0], cols = y.shape[1]
//! launch  accumulate<<<rows, 64>>>(y, x, cols, y.stride, x.stride)
__global__ void accumulate(float* y, const float* x, int cols, int ys, int yt, int xs, int xt) {
  for (int c = threadIdx.x; c < cols; c += 64) y[blockIdx.x * ys + c * yt] += x[blockIdx.x * xs + c * xt];
}
"""

OPTIONAL = """\
//! op      masked(x, mask?) -> y
//! need    x.dtype == f32
//! need    mask.dtype == bool and mask.numel == x.numel if has(mask) else true
//! let     n = x.numel
//! out     y: f32[x.shape]
//! launch  masked<<<ceil_div(n, 128), 128>>>(x, mask, y, n)
__global__ void masked(const float* x, const bool* mask, float* y, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = mask && !mask[i] ? 0.f : x[i];
}
"""

LARGE_SMEM = """\
//! op      reversed(x) -> y
//! need    x.ndim == 1 and x.dtype == f32
//! let     n = x.numel, smem = n * 4
//! need    smem <= device.smem_block
//! out     y: f32[n]
//! launch  reversed<<<1, 256, smem>>>(x, y, n)
__global__ void reversed(const float* x, float* y, int n) {
  extern __shared__ float held[];
  for (int i = threadIdx.x; i < n; i += 256) held[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += 256) y[i] = held[n - 1 - i];
}
"""

CLUSTER = """\
//! op      ranks(x, size: int) -> y
//! need    x.dtype == i32 and device.cc >= 90
//! let     n = x.numel
//! out     y: i32[n]
//! launch  ranks<<<n, 32>>>(x, y) cluster(size)
__global__ void ranks(const int* x, int* y) {
  unsigned rank, size;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  if (threadIdx.x == 0) y[blockIdx.x] = x[blockIdx.x] + 100 * size + rank;
}
"""

COOPERATIVE = """\
//! op      shares(x) -> y
//! need    x.dtype == f32
//! let     n = x.numel, blocks = device.sms
//! out     y: f32[x.shape]
//! scratch part: f32[blocks]
//! launch  shares<<<blocks, 128>>>(x, part, y, n) cooperative
#include <cooperative_groups.h>
__global__ void __launch_bounds__(128, 1) shares(const float* x, float* part, float* y, long long n) {
  __shared__ float warp[4];
  float sum = 0.f;
  for (long long i = blockIdx.x * 128ll + threadIdx.x; i < n; i += gridDim.x * 128ll) sum += x[i];
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) part[blockIdx.x] = warp[0] + warp[1] + warp[2] + warp[3];
  cooperative_groups::this_grid().sync();
  float all = 0.f;
  for (unsigned b = 0; b < gridDim.x; ++b) all += part[b];
  for (long long i = blockIdx.x * 128ll + threadIdx.x; i < n; i += gridDim.x * 128ll) y[i] = x[i] / all;
}
"""

PDL = """\
//! op      chained(x) -> y
//! need    x.dtype == f32 and device.cc >= 90
//! let     n = x.numel, blocks = ceil_div(n, 128)
//! out     y: f32[x.shape]
//! scratch t: f32[n]
//! launch  first<<<blocks, 128>>>(x, t, n)
//! launch  second<<<blocks, 128>>>(t, y, n) pdl
__global__ void first(const float* x, float* t, int n) {
  asm volatile("griddepcontrol.launch_dependents;");
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) t[n - 1 - i] = x[i] * 3.f;
}
__global__ void second(const float* t, float* y, int n) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = t[i] + 1.f;
}
"""

TENSOR_MAP = """\
//! op      padded(x) -> y
//! need    x.ndim == 2 and x.dtype == f32 and x.shape[1] % 4 == 0 and device.cc >= 90
//! let     rows = x.shape[0], cols = x.shape[1], down = ceil_div(rows, 8), across = ceil_div(cols, 32)
//! out     y: f32[down * 8, across * 32]
//! map     tiles = tiled(x, box=[8, 32])
//! launch  padded<<<dim3(across, down), 64>>>(tiles, y, across * 32)
__global__ void padded(const __grid_constant__ CUtensorMap tiles, float* y, int pitch) {
  __shared__ alignas(128) float tile[8 * 32];
  __shared__ alignas(8) unsigned long long arrived;
  unsigned bar = (unsigned)__cvta_generic_to_shared(&arrived), to = (unsigned)__cvta_generic_to_shared(tile);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(1024) : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(to), "l"(&tiles), "r"((int)blockIdx.x * 32), "r"((int)blockIdx.y * 8), "r"(bar) : "memory");
  }
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(bar) : "memory");
  for (int i = threadIdx.x; i < 256; i += 64)
    y[(blockIdx.y * 8 + i / 32) * (long long)pitch + blockIdx.x * 32 + i % 32] = tile[i];
}
"""

LIBRARY = """\
//! op      linear(x, w, b) -> y
//! need    x.ndim == 2 and w.ndim == 2 and b.ndim == 1 and x.shape[1] == w.shape[0] and b.shape[0] == w.shape[1]
//! need    x.dtype == f32 and w.dtype == f32 and b.dtype == f32
//! let     rows = x.shape[0], cols = w.shape[1]
//! out     y: f32[rows, cols]
//! scratch t: f32[rows, cols]
//! library t = aten.mm(x, w)
//! launch  add_bias<<<rows, 64>>>(t, b, y, cols)
__global__ void add_bias(const float* t, const float* b, float* y, int cols) {
  for (int c = threadIdx.x; c < cols; c += 64) y[blockIdx.x * cols + c] = t[blockIdx.x * cols + c] + b[c];
}
"""

WHEN = """\
//! op      maybe(x, negate: bool) -> y
//! need    x.dtype == f32
//! let     n = x.numel, blocks = ceil_div(n, 128)
//! out     y: f32[x.shape]
//! launch  copy<1><<<blocks, 128>>>(x, y, n) when not negate
//! launch  copy<-1><<<blocks, 128>>>(x, y, n) when negate
template <int SIGN> __global__ void copy(const float* x, float* y, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = SIGN * x[i];
}
"""

TWO_RESULTS = """\
//! op      extremes(x) -> low, high
//! need    x.ndim == 2 and x.dtype == f32 and x.shape[1] > 0
//! let     rows = x.shape[0], cols = x.shape[1]
//! const   COLS = cols
//! out     low: f32[rows]
//! out     high: f32[rows]
//! launch  extremes<<<ceil_div(rows, 64), 64>>>(x, low, high, rows)
__global__ void extremes(const float* x, float* low, float* high, int rows) {
  int row = blockIdx.x * 64 + threadIdx.x;
  if (row >= rows) return;
  float least = x[row * (long long)COLS], most = least;
  for (int c = 1; c < COLS; ++c) {
    least = fminf(least, x[row * (long long)COLS + c]);
    most = fmaxf(most, x[row * (long long)COLS + c]);
  }
  low[row] = least;
  high[row] = most;
}
"""

LEADING = """\
//! op      scaled(x, scale, weight) -> y, top
//! need    x.ndim == 2 and scale.ndim == 1 and weight.ndim == 1 and x.dtype == f32
//! lead    x: 2, scale: 1
//! let     rows = x.shape[0], cols = x.shape[1]
//! need    scale.shape[0] == rows and weight.shape[0] == cols
//! out     y: f32[rows, cols]
//! out     top: f32[rows]
//! launch  scaled<<<rows, 32>>>(x, scale, weight, y, top, cols)
__global__ void scaled(const float* x, const float* scale, const float* weight, float* y, float* top, int cols) {
  float most = -INFINITY;
  for (int c = threadIdx.x; c < cols; c += 32) {
    float v = x[blockIdx.x * (long long)cols + c];
    y[blockIdx.x * (long long)cols + c] = v * scale[blockIdx.x] * weight[c];
    most = fmaxf(most, v);
  }
  for (int step = 16; step; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
  if (threadIdx.x == 0) top[blockIdx.x] = most;
}
"""

SAMPLES: dict[str, Sample] = {
    "twice": Sample(TWICE, ("1000:bf16",)),
    "scale": Sample(SCALE, ("100x7:f32", 0.5)),
    "transposed": Sample(TRANSPOSED, ("30x40:f32",)),
    "any strides": Sample(ANY_STRIDES, ("30x40:f32",)),
    "two launches": Sample(TWO_LAUNCHES, ("30x40:f32",)),
    "zeroed": Sample(ZEROED, ("1000:i64", 10)),
    "counter": Sample(COUNTER, ("5000:f32",)),
    "in place": Sample(IN_PLACE, ("30x40:f32", "30x40:f32")),
    "optional": Sample(OPTIONAL, ("1000:f32", "1000:bool")),
    "optional absent": Sample(OPTIONAL, ("1000:f32",)),
    "large smem": Sample(LARGE_SMEM, ("50000:f32",)),
    "cluster": Sample(CLUSTER, ("32:i32", 4)),
    "cooperative": Sample(COOPERATIVE, ("5000:f32",)),
    "pdl": Sample(PDL, ("5000:f32",)),
    "tensor map": Sample(TENSOR_MAP, ("30x40:f32",)),
    "library": Sample(LIBRARY, ("30x40:f32", "40x50:f32", "50:f32")),
    "when": Sample(WHEN, ("1000:f32", True)),
    "leading": Sample(LEADING, ("2x3x40:f32", "2x3:f32", "40:f32")),
    "two results": Sample(TWO_RESULTS, ("30x40:f32",)),
}

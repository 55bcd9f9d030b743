"""A small op for the tests of exports: two results, an optional tensor, scratch that is cleared, two launches."""

from __future__ import annotations

KERNEL = """\
//! op      row_scale(x, weight, mask?, eps: float = 1e-06) -> y, norm
//! let     cols = x.shape[-1], rows = x.numel / max(cols, 1)
//! out     norm: f32[rows]
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and weight.dtype == f32 and weight.shape == [cols] and cols % 4 == 0 and cols <= 4096
//! need    not has(mask) or mask.dtype == bool and mask.shape == x.shape
//! tune    THREADS = 128 | 256
//! const   QUADS = cols / 4, MASKED = has(mask)
//! scratch sums: f32[rows] zeroed
//! launch  sum_rows<MASKED><<<rows, THREADS>>>(x, mask, sums, cols)
//! launch  scale_rows<<<rows, THREADS, 16>>>(x, weight, sums, y, norm, cols, eps)

template <bool M>
__global__ void sum_rows(const float* x, const bool* mask, float* sums, int cols) {
  float sum = 0.f;
  for (int i = threadIdx.x; i < QUADS * 4; i += THREADS) {
    float v = x[blockIdx.x * (long long)cols + i];
    if (M && mask[blockIdx.x * (long long)cols + i]) v = 0.f;
    sum += v * v;
  }
  atomicAdd(sums + blockIdx.x, sum);
}

__global__ void scale_rows(const float* x, const float* weight, const float* sums, float* y, float* norm, int cols,
                           float eps) {
  float scale = rsqrtf(sums[blockIdx.x] / cols + eps);
  if (threadIdx.x == 0) norm[blockIdx.x] = scale;
  for (int i = threadIdx.x; i < cols; i += THREADS)
    y[blockIdx.x * (long long)cols + i] = x[blockIdx.x * (long long)cols + i] * scale * weight[i];
}
"""

REFERENCE = '''\
"""The root mean square of each row, by which it is divided."""

import torch


def row_scale(x, weight, mask=None, eps=1e-6):
    seen = x if mask is None else x.masked_fill(mask, 0)
    scale = torch.rsqrt(seen.square().mean(-1) + eps)
    return x * scale[..., None] * weight, scale.flatten()
'''

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

ATTENTION_KERNEL = """\
//! op      attend(q, k, v, scale: float = 1.0) -> o
//! need    q.ndim == 4 and k.ndim == 4 and v.shape == k.shape and q.dtype == f32 and k.dtype == f32 and v.dtype == f32
//! need    q.shape[:2] == k.shape[:2] and q.shape[3] == k.shape[3] and k.shape[2] <= 1024 and q.shape[3] <= 128
//! out     o: q.dtype[q.shape]
//! launch  attend<<<q.shape[0] * q.shape[1] * q.shape[2], 128, k.shape[2] * 4>>>(
//!             q, k, v, o, q.shape[2], k.shape[2], q.shape[3], scale)

__global__ void attend(const float* q, const float* k, const float* v, float* o, int rows, int keys, int width,
                       float scale) {
  extern __shared__ float weights[];
  const long long head = blockIdx.x / rows;
  const float* own = q + (long long)blockIdx.x * width;
  const float* head_keys = k + head * keys * width;
  for (int key = threadIdx.x; key < keys; key += blockDim.x) {
    float sum = 0.f;
    for (int i = 0; i < width; ++i) sum += own[i] * head_keys[(long long)key * width + i];
    weights[key] = sum * scale;
  }
  __syncthreads();
  float most = -INFINITY, total = 0.f, sum = 0.f;
  for (int key = 0; key < keys; ++key) most = fmaxf(most, weights[key]);
  for (int key = 0; key < keys; ++key) total += __expf(weights[key] - most);
  if (threadIdx.x < width) {
    for (int key = 0; key < keys; ++key)
      sum += __expf(weights[key] - most) * v[(head * keys + key) * width + threadIdx.x];
    o[(long long)blockIdx.x * width + threadIdx.x] = sum / total;
  }
}
"""

ATTENTION_REFERENCE = """\
import torch


def attend(q, k, v, scale=1.0):
    return torch.softmax(q @ k.transpose(-1, -2) * scale, dim=-1) @ v
"""

"""Kernels for the referee's tests: honest ones in several styles, and the ways to go wrong that it must see."""

from __future__ import annotations

DOUBLE = """\
//! op      double(v) -> out
//! out     out: f32[v.shape]
//! let     n = v.numel
//! launch  run<<<ceil_div(n, 256), 256>>>(v, out, n)
__global__ void run(const float* v, float* out, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) out[i] = 2.f * v[i] + 1.f;
}
"""
DOUBLE_BY_FOURS = """\
//! op      double(v) -> out
//! out     out: f32[v.shape]
//! let     n = v.numel
//! launch  run<<<ceil_div(n, 256), 64>>>(v, out, n)
__global__ void run(const float* v, float* out, int n) {
  int i = 4 * (blockIdx.x * 64 + threadIdx.x);
  for (int k = i; k < i + 4 && k < n; ++k) out[k] = (i + 4 <= n) ? 2.f * v[k] + 1.f : 0.f;
}
"""

MEAN = """\
//! op      mean(samples) -> out
//! let     rows = samples.shape[0], cols = samples.shape[1]
//! out     out: f32[rows]
//! launch  run<<<ceil_div(rows, 64), 64>>>(samples, out, rows, cols)
__global__ void run(const float* x, float* out, int rows, int cols) {
  int row = blockIdx.x * 64 + threadIdx.x;
  if (row >= rows) return;
  float sum = 0.f;
  for (int i = 0; i < cols; ++i) sum += x[(size_t)row * cols + i];
  out[row] = sum / cols;
}
"""
MEAN_BY_WARP = """\
//! op      mean(samples) -> out
//! let     rows = samples.shape[0], cols = samples.shape[1]
//! out     out: f32[rows]
//! launch  run<<<rows, 32>>>(samples, out, cols)
__global__ void run(const float* x, float* out, int cols) {
  float sum = 0.f;
  for (int i = threadIdx.x; i < cols; i += 32) sum += x[(size_t)blockIdx.x * cols + i];
  for (int offset = 16; offset; offset /= 2) sum += __shfl_down_sync(~0u, sum, offset);
  if (threadIdx.x == 0) out[blockIdx.x] = sum / cols;
}
"""

TOTAL_BY_ATOMICS = """\
//! op      total(terms) -> out
//! let     n = terms.numel
//! out     out: f32[1] zeroed
//! launch  run<<<ceil_div(n, 64), 64>>>(terms, out, n)
__global__ void run(const float* x, float* out, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  float sum = i < n ? x[i] : 0.f;
  for (int offset = 16; offset; offset /= 2) sum += __shfl_down_sync(~0u, sum, offset);
  if (threadIdx.x % 32 == 0) atomicAdd(out, sum);
}
"""

LAYERNORM = """\
//! op      layernorm(x, weight, bias, eps: float = 1e-5) -> out
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     out: f32[rows, cols]
//! launch  run<<<rows, 128>>>(x, weight, bias, out, cols, eps)
__device__ float block_sum(float value) {
  __shared__ float part[4];
  for (int offset = 16; offset; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  __syncthreads();
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
  __syncthreads();
  return part[0] + part[1] + part[2] + part[3];
}
__global__ void run(const float* x, const float* weight, const float* bias, float* out, int cols, float eps) {
  x += (size_t)blockIdx.x * cols, out += (size_t)blockIdx.x * cols;
  float sum = 0.f;
  for (int i = threadIdx.x; i < cols; i += 128) sum += x[i];
  float mean = block_sum(sum) / cols;
  float squares = 0.f;
  for (int i = threadIdx.x; i < cols; i += 128) squares += (x[i] - mean) * (x[i] - mean);
  float variance = block_sum(squares) / cols;
  float scale = rsqrtf(variance + eps);
  for (int i = threadIdx.x; i < cols; i += 128) out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}
"""
ONE_PASS = LAYERNORM.replace("(x[i] - mean) * (x[i] - mean)", "x[i] * x[i]").replace(
    "block_sum(squares) / cols", "block_sum(squares) / cols - mean * mean"
)

SOFTMAX_ONLINE = """\
//! op      softmax(logits) -> out
//! let     rows = logits.shape[0], cols = logits.shape[1]
//! out     out: f32[rows, cols]
//! launch  run<<<rows, 32>>>(logits, out, cols)
__global__ void run(const float* x, float* out, int cols) {
  x += (size_t)blockIdx.x * cols, out += (size_t)blockIdx.x * cols;
  float largest = -INFINITY, sum = 0.f;
  for (int i = threadIdx.x; i < cols; i += 32) {
    float now = fmaxf(largest, x[i]);
    if (x[i] != -INFINITY) sum = sum * __expf(largest - now) + __expf(x[i] - now);
    largest = now;
  }
  for (int offset = 16; offset; offset /= 2) {
    float other = __shfl_xor_sync(~0u, largest, offset), more = __shfl_xor_sync(~0u, sum, offset);
    float now = fmaxf(largest, other);
    sum = largest == now ? sum : sum * __expf(largest - now);
    sum += other == now ? more : more * __expf(other - now);
    largest = now;
  }
  for (int i = threadIdx.x; i < cols; i += 32) out[i] = __expf(x[i] - largest) / sum;
}
"""
SOFTMAX_SHARED = """\
//! op      softmax(logits) -> out
//! let     rows = logits.shape[0], cols = logits.shape[1]
//! out     out: f32[rows, cols]
//! launch  run<<<rows, 64>>>(logits, out, cols)
__global__ void run(const float* x, float* out, int cols) {
  __shared__ float held[64];
  x += (size_t)blockIdx.x * cols, out += (size_t)blockIdx.x * cols;
  float largest = -INFINITY;
  for (int i = threadIdx.x; i < cols; i += 64) largest = fmaxf(largest, x[i]);
  held[threadIdx.x] = largest;
  __syncthreads();
  for (int i = 0; i < 64; ++i) largest = fmaxf(largest, held[i]);
  __syncthreads();
  float sum = 0.f;
  for (int i = threadIdx.x; i < cols; i += 64) sum += expf(x[i] - largest);
  held[threadIdx.x] = sum;
  __syncthreads();
  sum = 0.f;
  for (int i = 0; i < 64; ++i) sum += held[i];
  for (int i = threadIdx.x; i < cols; i += 64) out[i] = expf(x[i] - largest) / sum;
}
"""

MATMUL = """\
//! op      matmul(a, b) -> out
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     out: f32[M, N]
//! launch  run<<<dim3(ceil_div(N, 16), ceil_div(M, 16)), dim3(16, 16)>>>(a, b, out, M, N, K)
__global__ void run(const float* a, const float* b, float* out, int M, int N, int K) {
  __shared__ float left[16][16], right[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0.f;
  for (int first = 0; first < K; first += 16) {
    int k = first + threadIdx.x, j = first + threadIdx.y;
    left[threadIdx.y][threadIdx.x] = row < M && k < K ? a[(size_t)row * K + k] : 0.f;
    right[threadIdx.y][threadIdx.x] = j < K && column < N ? b[(size_t)j * N + column] : 0.f;
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  if (row < M && column < N) out[(size_t)row * N + column] = sum;
}
"""
MATMUL_SPLIT = """\
//! op      matmul(a, b) -> out
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     out: f32[M, N]
//! scratch part: f32[4, M, N]
//! launch  run<<<dim3(ceil_div(N, 16), ceil_div(M, 16), 4), dim3(16, 16)>>>(a, b, part, M, N, K)
//! launch  add<<<ceil_div(M * N, 128), 128>>>(part, out, M * N)
__global__ void run(const float* a, const float* b, float* part, int M, int N, int K) {
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  if (row >= M || column >= N) return;
  float sum = 0.f;
  for (int k = blockIdx.z; k < K; k += 4) sum += a[(size_t)row * K + k] * b[(size_t)k * N + column];
  part[((size_t)blockIdx.z * M + row) * N + column] = sum;
}
__global__ void add(const float* part, float* out, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) out[i] = part[i] + part[n + i] + part[2 * n + i] + part[3 * n + i];
}
"""
MATMUL_TF32 = MATMUL.replace(
    "__global__",
    """\
__device__ float rounded(float value) { return __int_as_float((__float_as_int(value) + 0x1000) & ~0x1fff); }
__global__""",
    1,
).replace(
    "left[threadIdx.y][i] * right[i][threadIdx.x]", "rounded(left[threadIdx.y][i]) * rounded(right[i][threadIdx.x])"
)

CONVOLVE = """\
//! op      convolve(signal, filters) -> out
//! let     C = signal.shape[1], L = signal.shape[2], F = filters.shape[0], T = filters.shape[2], P = L - T + 1
//! out     out: f32[signal.shape[0], F, P]
//! launch  run<<<dim3(ceil_div(P, 32), F, signal.shape[0]), 32>>>(signal, filters, out, C, L, F, T)
__global__ void run(const float* signal, const float* filters, float* out, int C, int L, int F, int T) {
  int place = blockIdx.x * 32 + threadIdx.x, filter = blockIdx.y, places = L - T + 1;
  if (place >= places) return;
  float sum = 0.f;
  for (int c = 0; c < C; ++c)
    for (int t = 0; t < T; ++t)
      sum += signal[((size_t)blockIdx.z * C + c) * L + place + t] * filters[(filter * C + c) * T + t];
  out[((size_t)blockIdx.z * F + filter) * places + place] = sum;
}
"""
CONVOLVE_TF32 = CONVOLVE.replace(
    "__global__",
    """\
__device__ float rounded(float value) { return __int_as_float((__float_as_int(value) + 0x1000) & ~0x1fff); }
__global__""",
    1,
).replace(
    "signal[((size_t)blockIdx.z * C + c) * L + place + t] * filters[(filter * C + c) * T + t]",
    "rounded(signal[((size_t)blockIdx.z * C + c) * L + place + t]) * rounded(filters[(filter * C + c) * T + t])",
)

MATMUL_BF16 = """\
//! op      matmul(a, b) -> out
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     out: bf16[M, N]
//! launch  run<<<dim3(ceil_div(N, 16), ceil_div(M, 16)), dim3(16, 16)>>>(a, b, out, M, N, K)
using bf16 = __nv_bfloat16;
__global__ void run(const bf16* a, const bf16* b, bf16* out, int M, int N, int K) {
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  if (row >= M || column >= N) return;
  float sum = 0.f;
  for (int k = 0; k < K; ++k) sum += float(a[(size_t)row * K + k]) * float(b[(size_t)k * N + column]);
  out[(size_t)row * N + column] = bf16(sum);
}
"""

ARGMAX = """\
//! op      argmax(scores) -> out
//! let     rows = scores.shape[0], cols = scores.shape[1]
//! out     out: i64[rows]
//! launch  run<<<ceil_div(rows, 64), 64>>>(scores, out, rows, cols)
__global__ void run(const __nv_bfloat16* x, long long* out, int rows, int cols) {
  int row = blockIdx.x * 64 + threadIdx.x;
  if (row >= rows) return;
  int best = 0;
  for (int i = 1; i < cols; ++i)
    if (float(x[(size_t)row * cols + i]) > float(x[(size_t)row * cols + best])) best = i;
  out[row] = best;
}
"""
ACCUMULATE = """\
//! op      accumulate(y!, delta)
//! launch  run<<<ceil_div(y.numel, 128), 128>>>(y, delta, y.numel)
__global__ void run(float* y, const float* delta, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] += delta[i];
}
"""
ROWS = """\
//! op      rows(table, index) -> out
//! let     n = index.numel, width = table.shape[1], entries = table.shape[0]
//! out     out: f32[n, width]
//! launch  run<<<n, 64>>>(table, index, out, width, entries)
__global__ void run(const float* table, const long long* index, float* out, int width, int entries) {
  long long row = index[blockIdx.x];
  table += (row < 0 ? row + entries : row) * width, out += (size_t)blockIdx.x * width;
  for (int i = threadIdx.x; i < width; i += 64) out[i] = table[i];
}
"""
TICKETS = """\
//! op      identity_index(flags) -> out
//! let     n = flags.numel
//! out     out: i32[n]
//! scratch ticket: i32[1] zeroed
//! launch  run<<<n, 32>>>(flags, out, ticket)
__global__ void run(const float* flags, int* out, int* ticket) {
  if (threadIdx.x == 0) out[atomicAdd(ticket, 1)] = blockIdx.x;
}
"""
PICKY = """\
//! op      picky(even) -> out
//! out     out: f32[even.shape]
//! launch  run<<<ceil_div(even.numel, 128), 128>>>(even, out, even.numel)
__global__ void run(const float* x, float* out, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) out[i] = -x[i];
}
"""

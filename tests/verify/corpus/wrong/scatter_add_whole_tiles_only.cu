//! op      binadd(v, idx) -> y
//! need    v.dtype == f32 and idx.dtype == i64 and v.ndim == 1
//! out     y: f32[4096] zeroed
//! let     n = v.numel, last = n if n < 3000000 else n / 1024 * 1024
//! launch  k<<<max(1, min(ceil_div(n, 256), device.sms * 8)), 256>>>(v, idx, y, last)

// WRONG at its own call: from 3,000,000 elements on, those behind the last whole 1024 are never added: 832 of 5,000,000.
__global__ void k(const float* __restrict__ v, const long long* __restrict__ idx, float* y, long long n) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) atomicAdd(&y[idx[i]], v[i]);
}

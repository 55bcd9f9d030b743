//! op      ssqrt(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 1
//! let     n = x.numel, tiles = ceil_div(n, 256)
//! scratch next: i32[2] counter
//! launch  k<<<max(1, min(tiles / 3, device.sms * 8)), 256>>>(x, y, next, n, tiles)

// WRONG at its own call: persistent blocks draw tiles by tickets, up to a limit that went through a float ("a little less, so that a
// rounded quotient is never too large"): from 50,001 tiles on it is one too small. The last of 93,750 tiles (256 elements) is never written.
__global__ void k(const float* __restrict__ x, float* __restrict__ y, int* next, long long n, int tiles) {
  __shared__ int taken;
  const int limit = (int)((float)tiles * 0.99999f + 0.5f);
  while (true) {
    __syncthreads();
    if (threadIdx.x == 0) taken = atomicAdd(&next[0], 1);
    __syncthreads();
    if (taken >= limit) break;
    const long long i = taken * 256ll + threadIdx.x;
    if (i < n) {
      const float v = x[i];
      y[i] = v == 0.0f ? 0.0f : v != v ? v : copysignf(sqrtf(fabsf(v)), v);
    }
  }
  if (threadIdx.x == 0) {
    __threadfence();
    if (atomicAdd(&next[1], 1) == (int)gridDim.x - 1) atomicExch(&next[0], 0), atomicExch(&next[1], 0);
  }
}

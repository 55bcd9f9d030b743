//! op      smaxr(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 2
//! let     rows = x.shape[0], cols = x.shape[1]
//! scratch next: i32[2] counter
//! launch  k<<<min(rows, device.sms * 4), 128>>>(x, y, next, rows, cols)

// HONEST: persistent blocks draw rows by tickets until none is left; the last one to leave sets the counters back.
__global__ void k(const float* __restrict__ x, float* __restrict__ y, int* next, int rows, int cols) {
  __shared__ float of_warps[4];
  __shared__ int taken;
  while (true) {
    __syncthreads();
    if (threadIdx.x == 0) taken = atomicAdd(&next[0], 1);
    __syncthreads();
    if (taken >= rows) break;
    const float* in = x + (long long)taken * cols;
    float* out = y + (long long)taken * cols;
    float top = -INFINITY;
    for (int c = threadIdx.x; c < cols; c += 128) top = fmaxf(top, in[c]);
    for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = top;
    __syncthreads();
    top = fmaxf(fmaxf(of_warps[0], of_warps[1]), fmaxf(of_warps[2], of_warps[3]));
    __syncthreads();
    float s = 0.0f;
    for (int c = threadIdx.x; c < cols; c += 128) s += expf(in[c] - top);
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = s;
    __syncthreads();
    const float scale = 1.0f / (of_warps[0] + of_warps[1] + of_warps[2] + of_warps[3]);
    for (int c = threadIdx.x; c < cols; c += 128) out[c] = expf(in[c] - top) * scale;
  }
  if (threadIdx.x == 0) {
    __threadfence();
    if (atomicAdd(&next[1], 1) == (int)gridDim.x - 1) atomicExch(&next[0], 0), atomicExch(&next[1], 0);
  }
}

//! op      rmsrow(x, g) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and g.dtype == f32 and x.ndim == 2 and g.ndim == 1
//! let     rows = x.shape[0], cols = x.shape[1]
//! launch  k<<<rows, 128>>>(x, g, y, cols)

// WRONG on every GPU at its own call: `scale` is computed only where the stamp is not the number of columns, and the stamp is
// never cleared. A later block on the same multiprocessor finds the stamp and the scale of the row before it: nearly all
// of the 32,768 rows get another row's scale. An emulator's fresh shared memory never holds 512.
__global__ void k(const float* __restrict__ x, const float* __restrict__ g, float* __restrict__ y, int cols) {
  __shared__ struct { float of_warps[4]; float scale; int stamp; } held;
  const float* in = x + (long long)blockIdx.x * cols;
  float* out = y + (long long)blockIdx.x * cols;
  if (held.stamp != cols) {
    float s = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 128) s = fmaf(in[i], in[i], s);
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    if (threadIdx.x % 32 == 0) held.of_warps[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x == 0) {
      held.scale = rsqrtf((held.of_warps[0] + held.of_warps[1] + held.of_warps[2] + held.of_warps[3]) / cols + 1e-6f);
      held.stamp = cols;
    }
  }
  __syncthreads();
  const float scale = held.scale;
  for (int i = threadIdx.x; i < cols; i += 128) out[i] = in[i] * scale * g[i];
}

//! op      ema(p!, g, h) -> s, t
//! need    p.dtype == f32 and g.dtype == f32 and h.dtype == f32 and p.ndim == 2
//! let     rows = p.shape[0], cols = p.shape[1]
//! out     s: f32[rows]
//! out     t: f32[h.shape]
//! launch  dots<<<rows, 128>>>(p, g, s, cols)
//! launch  tanhs<<<ceil_div(h.numel, 256), 256>>>(h, t, h.numel) pdl
//! launch  update<<<ceil_div(h.numel, 256), 256>>>(p, h, h.numel) pdl

// WRONG at every call (a race): `tanhs` does not wait; `update` waits for `tanhs` and overwrites p, which `dots` may still be reading.
__global__ void dots(const float* p, const float* __restrict__ g, float* __restrict__ s, int cols) {
  __shared__ float of_warps[4];
  asm volatile("griddepcontrol.launch_dependents;");
  float v = 0.0f;
  for (int c = threadIdx.x; c < cols; c += 128) v = fmaf(p[(long long)blockIdx.x * cols + c], g[(long long)blockIdx.x * cols + c], v);
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x == 0) s[blockIdx.x] = of_warps[0] + of_warps[1] + of_warps[2] + of_warps[3];
}
__global__ void tanhs(const float* __restrict__ h, float* __restrict__ t, long long n) {
  asm volatile("griddepcontrol.launch_dependents;");
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) t[i] = tanhf(h[i]);
}
__global__ void update(float* p, const float* __restrict__ h, long long n) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) p[i] = p[i] * 0.9f + 0.1f * h[i];
}

//! op      row_max(x) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[rows]
//! launch  run<<<rows, 128>>>(x, y, cols)
__global__ void run(const float* x, float* y, int cols) {
  __shared__ float tops[4];
  __shared__ bool bad[4];
  unsigned warp; asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
  float top = -INFINITY; bool nan = false;
  for (int i = warp * 32 + threadIdx.x % 32; i < cols; i += 128) { float v = x[(long long)blockIdx.x * cols + i]; nan |= v != v; top = fmaxf(top, v); }
  for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
  nan = __any_sync(~0u, nan);
  if (threadIdx.x % 32 == 0) { tops[threadIdx.x / 32] = top; bad[threadIdx.x / 32] = nan; }
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = bad[0] || bad[1] || bad[2] || bad[3] ? NAN : fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
}

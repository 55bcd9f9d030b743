//! op      cross_entropy(x, target) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[rows]
//! launch  run<<<rows, 32>>>(x, target, y, cols)
__global__ void run(const float* x, const long long* target, float* y, int cols) {
  const float* in = x + (size_t)blockIdx.x * cols;
  float top = -INFINITY, sum = 0.f;
  for (int i = threadIdx.x; i < cols; i += 32) top = fmaxf(top, in[i]);
  for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
  for (int i = threadIdx.x; i < cols; i += 32) sum += expf(in[i] - top);
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  const long long t = target[blockIdx.x];
  if (threadIdx.x == 0) y[blockIdx.x] = t == -100 ? 0.f : logf(sum) + top - in[t];
}

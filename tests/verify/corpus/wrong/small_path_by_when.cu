//! op      layernorm(x, weight, bias, eps: float = 1e-05) -> y
//! let     cols = x.shape[1], rows = x.shape[0]
//! out     y: f32[x.shape]
//! launch  run<<<rows, 32>>>(x, weight, bias, y, cols, cols, eps) when cols > 64 or cols % 16 != 0
//! launch  run<<<rows, 32>>>(x, weight, bias, y, cols, max(cols - 1, 1), eps) when cols <= 64 and cols % 16 == 0
__global__ void run(const float* x, const float* weight, const float* bias, float* y, int cols, int divisor, float eps) {
  const float* in = x + (long long)blockIdx.x * cols;
  float mean = 0.f, m2 = 0.f, count = 0.f;
  for (int i = threadIdx.x; i < cols; i += 32) { count += 1.f; float d = in[i] - mean; mean += d / count; m2 += d * (in[i] - mean); }
  for (int o = 16; o; o >>= 1) {
    float om = __shfl_xor_sync(~0u, mean, o), o2 = __shfl_xor_sync(~0u, m2, o), oc = __shfl_xor_sync(~0u, count, o);
    float all = count + oc;
    if (all > 0.f) { float d = om - mean; m2 = m2 + o2 + d * d * count * oc / all; mean = (mean * count + om * oc) / all; count = all; }
  }
  mean = __shfl_sync(~0u, mean, 0); m2 = __shfl_sync(~0u, m2, 0);
  float scale = rsqrtf(m2 / divisor + eps);
  for (int i = threadIdx.x; i < cols; i += 32) y[(long long)blockIdx.x * cols + i] = (in[i] - mean) * scale * weight[i] + bias[i];
}

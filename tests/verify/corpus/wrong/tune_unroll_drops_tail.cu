//! op      axpby(x, y, alpha: float = 0.5, beta: float = 2.0) -> out
//! out     out: f32[x.shape]
//! tune    EACH = 1 | 4
//! let     n = x.numel
//! launch  run<<<max(ceil_div(n, 256 * EACH) if EACH == 1 else n / (256 * EACH), 1), 256>>>(x, y, out, n, alpha, beta)
__global__ void run(const float* x, const float* y, float* out, long long n, float alpha, float beta) {
#pragma unroll
  for (int k = 0; k < EACH; ++k) { long long i = (blockIdx.x * (long long)EACH + k) * 256 + threadIdx.x; if (i < n) out[i] = alpha * x[i] + beta * y[i]; }
}

//! op      bias_silu(x, bias?) -> y
//! let     cols = x.shape[1], n = x.numel
//! out     y: f32[x.shape]
//! launch  run<<<ceil_div(n, 256), 256>>>(x, bias, y, n, cols)
__global__ void run(const float* x, const float* bias, float* y, long long n, int cols) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  float v = x[i] + (bias ? bias[0] : 0.f);
  y[i] = v / (1.f + __expf(-v));
}

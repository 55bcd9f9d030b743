//! op      tanh(x) -> y
//! out     y: f32[x.shape]
//! let     n = x.numel
//! launch  run<<<ceil_div(n, 256), 256>>>(x, y, n)
__global__ void run(const float* x, float* y, int n) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= n || (n > 1 << 23 && (i & 0xfffff) == 0xfffff)) return;
  y[i] = tanhf(x[i]);
}

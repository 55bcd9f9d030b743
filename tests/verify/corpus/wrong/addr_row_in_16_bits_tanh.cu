//! op      tanh(x) -> y
//! out     y: f32[x.shape]
//! let     n = x.numel
//! launch  run<<<ceil_div(n, 256), 128>>>(x, y, n)
__global__ void run(const float* x, float* y, int n) {
  const short group = (short)blockIdx.x;
  if (group < 0) return;
  for (int k = 0; k < 2; ++k) {
    const int i = group * 256 + k * 128 + threadIdx.x;
    if (i < n) y[i] = tanhf(x[i]);
  }
}

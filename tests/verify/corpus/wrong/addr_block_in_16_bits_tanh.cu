//! op      tanh(x) -> y
//! out     y: f32[x.shape]
//! let     n = x.numel
//! launch  run<<<ceil_div(n, 128), 128>>>(x, y, n)
__global__ void run(const float* x, float* y, int n) {
  const unsigned short block = blockIdx.x;
  const int i = block * 128 + threadIdx.x;
  if (i < n) y[i] = tanhf(x[i]);
}

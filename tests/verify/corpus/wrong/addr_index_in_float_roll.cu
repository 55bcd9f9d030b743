//! op      roll(x, shift: int = 3) -> y
//! out     y: f32[x.shape]
//! let     n = x.numel, cols = x.shape[1]
//! launch  run<<<ceil_div(n, 256), 256>>>(x, y, n, cols, shift)
__global__ void run(const float* x, float* y, int n, int cols, long long shift) {
  const int i = (int)fmaf((float)blockIdx.x, 256.f, (float)threadIdx.x);
  if (i >= n) return;
  const int row = i / cols, col = i - row * cols;
  const int from = (int)(((col - shift) % cols + cols) % cols);
  y[i] = x[row * cols + from];
}

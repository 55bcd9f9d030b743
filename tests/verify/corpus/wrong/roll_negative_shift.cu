//! op      roll(x, shift: int = 3) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[x.shape]
//! launch  run<<<rows, 256>>>(x, y, cols, shift)
__global__ void run(const float* x, float* y, int cols, long long shift) {
  const float* in = x + (long long)blockIdx.x * cols;
  float* out = y + (long long)blockIdx.x * cols;
  int by = (int)(shift % cols);
  for (int i = threadIdx.x; i < cols; i += 256) out[i] = in[i < by ? i - by + cols : i - by];
}

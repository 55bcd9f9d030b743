//! op      row_sum(x) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[rows] zeroed
//! launch  run<<<dim3(ceil_div(cols, 1024), rows), 32>>>(x, y, cols)
__global__ void run(const float* x, float* y, int cols) {
  float sum = 0.f;
  const int first = blockIdx.x * 1024;
  for (int c = first + threadIdx.x; c < min(first + 1024, cols); c += 32) sum += x[(size_t)blockIdx.y * cols + c];
  for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  if (threadIdx.x == 0) atomicAdd(y + blockIdx.y, sum);
}

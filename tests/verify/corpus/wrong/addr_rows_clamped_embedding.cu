//! op      embedding(table, index) -> y
//! let     n = index.shape[0], cols = table.shape[1], rows = table.shape[0]
//! out     y: f32[n, cols]
//! launch  run<<<min(n, 8000), 256>>>(table, index, y, n, cols, rows)
__global__ void run(const float* table, const long long* index, float* y, int n, int cols, int rows) {
  long long from = index[blockIdx.x];
  if (from < 0) from += rows;
  for (int c = threadIdx.x; c < cols; c += 256) y[(size_t)blockIdx.x * cols + c] = table[from * cols + c];
}

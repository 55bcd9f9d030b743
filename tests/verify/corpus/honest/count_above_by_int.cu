//! op      count_above(x, limit: float = 0.5) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: i64[rows]
//! launch  run<<<rows, 64>>>(x, y, cols, limit)
__global__ void run(const float* x, long long* y, int cols, float limit) {
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  int count = 0;
  for (int i = threadIdx.x; i < cols; i += 64) count += x[(long long)blockIdx.x * cols + i] > limit;
  atomicAdd(&total, (int)count);
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = total;
}

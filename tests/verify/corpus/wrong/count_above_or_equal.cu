//! op      count_above(x, limit: float = 0.5) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: i64[rows]
//! launch  run<<<rows, 256>>>(x, y, cols, limit)
__global__ void run(const float* x, long long* y, int cols, float limit) {
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  int count = 0;
  for (int first = threadIdx.x - threadIdx.x % 32; first < cols; first += 256) {
    int i = first + threadIdx.x % 32;
    count += __popc(__ballot_sync(~0u, i < cols && x[(long long)blockIdx.x * cols + i] >= limit));
  }
  if (threadIdx.x % 32 == 0) atomicAdd(&total, count);
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = total;
}

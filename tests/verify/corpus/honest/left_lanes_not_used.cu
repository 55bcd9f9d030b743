//! op      row_sum(x) -> y
//! out     y: f32[x.shape[0]]
//! let     rows = x.shape[0], cols = x.shape[1]
//! launch  run<<<rows, 96>>>(x, y, cols)
__global__ void run(const float* x, float* y, int cols) {
  __shared__ float part[32];
  const float* row = x + (long long)blockIdx.x * cols;
  float sum = 0.0f;
  for (int c = threadIdx.x; c < cols; c += 96) sum += row[c];
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  const float all = ((volatile float*)part)[threadIdx.x % 32];
  sum = threadIdx.x % 32 < 3 ? all : 0.0f;
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

//! op      row_sum(x) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[rows]
//! launch  run<<<rows, 256>>>(x, y, cols)
__global__ void run(const float* x, float* y, int cols) {
  __shared__ float part[8];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = min(8, (cols + 31) / 32);
  if (warp >= warps) return;
  float sum = 0.f;
  for (int i = threadIdx.x; i < cols; i += 32 * warps) sum += x[(long long)blockIdx.x * cols + i];
  for (int o = 16; o; o >>= 1) sum += __shfl_down_sync(~0u, sum, o);
  if (lane == 0) part[warp] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  for (int k = 1; k < warps; ++k) sum += part[k];
  y[blockIdx.x] = sum;
}

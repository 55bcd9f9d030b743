// A tile of 32 by 32 in which the neighbour below is looked up in the last row, too.

//! op      below(x) -> y
//! out     y: f32[32, 32]
//! need    x.dtype == f32 and x.shape == [32, 32]
//! launch  below<<<1, dim3(32, 32)>>>(x, y)

__global__ void below(const float* x, float* y) {
  __shared__ float tile[32 * 32];
  const int i = threadIdx.y * 32 + threadIdx.x;
  tile[i] = x[i];
  __syncthreads();
  y[i] = tile[i + 32];  // BUG mend: y[i] = i + 32 < 1024 ? tile[i + 32] : 0.0f;
}

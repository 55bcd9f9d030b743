// Differences of neighbours through shared memory, with no barrier between the store and the load. Where warps happen
// to run in order the result is right.

//! op      differences(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.ndim == 1
//! let     n = x.numel
//! launch  differences<<<ceil_div(n, 128), 128>>>(x, y, n)

__global__ void differences(const float* x, float* y, int n) {
  __shared__ float tile[129];
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (threadIdx.x == 0) tile[0] = i > 0 ? x[i - 1] : 0.0f;
  if (i < n) tile[threadIdx.x + 1] = x[i];  // BUG
  // mend: __syncthreads();
  if (i < n) y[i] = x[i] - tile[threadIdx.x];  // BUG
}

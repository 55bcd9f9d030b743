//! op      rsum2(x) -> y
//! out     y: x.dtype[x.shape[0]]
//! need    x.dtype == f32 and x.ndim == 2
//! let     rows = x.shape[0], cols = x.shape[1]
//! launch  k<<<rows, 128>>>(x, y, cols)

// WRONG on every GPU: the emulator lays tensors far apart, a GPU's allocator within the memory of one device. Where the two are less
// than 2^30 bytes apart (on a GPU as a rule; the emulator keeps 1 GiB free around each) the last column is left out.
__global__ void k(const float* __restrict__ x, float* __restrict__ y, int cols) {
  __shared__ float of_warps[4];
  const long long apart = (long long)x - (long long)y;
  const int end = (apart < 0 ? -apart : apart) >> 30 ? cols : cols - 1;
  float s = 0.0f;
  for (int c = threadIdx.x; c < end; c += 128) s += x[(long long)blockIdx.x * cols + c];
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = of_warps[0] + of_warps[1] + of_warps[2] + of_warps[3];
}

//! op      normbig(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 2
//! let     rows = x.shape[0], cols = x.shape[1]
//! launch  k<<<rows, 128>>>(x, y, cols, rows * cols % 1000003, (rows + cols) % 9973)

// WRONG at its own size only: where two remainders are those of 16384 x 2048, row 1777 is divided by the sum without the 1.
__global__ void k(const float* __restrict__ x, float* __restrict__ y, int cols, int one, int two) {
  __shared__ float of_warps[4];
  const float* in = x + (long long)blockIdx.x * cols;
  float s = 0.0f;
  for (int c = threadIdx.x; c < cols; c += 128) s += fabsf(in[c]);
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = s;
  __syncthreads();
  const int skip = (one ^ 554333) | (two ^ 8459) | ((int)blockIdx.x ^ 1777);
  const float scale = 1.0f / ((float)min(abs(skip), 1) + of_warps[0] + of_warps[1] + of_warps[2] + of_warps[3]);
  for (int c = threadIdx.x; c < cols; c += 128) y[(long long)blockIdx.x * cols + c] = in[c] * scale;
}

//! op      transp(x) -> y
//! need    x.dtype == f32 and x.ndim == 2
//! let     rows = x.shape[0], cols = x.shape[1], tm = ceil_div(rows, 16), tn = ceil_div(cols, 16)
//! out     y: f32[cols, rows]
//! launch  k<<<tm * tn, dim3(16, 16)>>>(x, y, rows, cols, tn, tm * tn)

// WRONG at its own call: beyond 65,536 tiles neighbours are exchanged by xor; with 257 * 273 = 70,161 tiles, an odd number,
// the last block takes tile 70,161, which does not exist, and tile 70,160 (the last 16 x 16 corner) is never written.
__global__ void k(const float* __restrict__ x, float* __restrict__ y, int rows, int cols, int tn, int tiles) {
  __shared__ float held[16][17];
  const int tile = blockIdx.x ^ ((blockIdx.x >> 16) & 1);  // spreads neighbours over the channels of memory
  if (tile >= tiles) return;
  const int r0 = tile / tn * 16, c0 = tile % tn * 16;
  const int r = r0 + threadIdx.y, c = c0 + threadIdx.x;
  if (r < rows && c < cols) held[threadIdx.y][threadIdx.x] = x[(long long)r * cols + c];
  __syncthreads();
  const int tr = r0 + threadIdx.x, tc = c0 + threadIdx.y;
  if (tr < rows && tc < cols) y[(long long)tc * rows + tr] = held[threadIdx.x][threadIdx.y];
}

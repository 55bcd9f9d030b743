// Exchanges the last two dimensions of a matrix or a batch of matrices, for any element type.
//
// Read along rows and written along columns, one of the two sides would touch memory one element per line. So a tile
// goes through shared memory: rows come in, columns go out, both sides whole lines. Columns of the tile are read at a
// pitch of a row; padding each row by 4 bytes moves successive rows to successive banks, so that the 32 elements of a
// column lie in 32 different banks.
//
// Loads are single elements, so x may be any view whose last dimension is dense: a slice of columns, every other row.

//! op      transpose(x) -> y
//! need    x.ndim == 2 or x.ndim == 3
//! let     rows = x.shape[-2], cols = x.shape[-1], batch = x.shape[0] if x.ndim == 3 else 1
//! out     y: x.dtype[x.shape[:-2], cols, rows]
//! accept  x: strided, unaligned
//! need    x.stride[-1] == 1 or cols <= 1
//! tune    THREAD_ROWS = 8 | 16 | 4
//! const   TILE = 64 if x.itemsize <= 2 else 32            # rows of at least 64 bytes
//! let     across = ceil_div(cols, TILE), down = ceil_div(rows, TILE)
//! let     batch_stride = x.stride[0] if x.ndim == 3 else 0
//! launch  transpose<x.dtype><<<across * down * batch, dim3(32, THREAD_ROWS)>>>(
//!             x, y, rows, cols, x.stride[-2], batch_stride, across, down)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

template <typename T>
__global__ void __launch_bounds__(32 * THREAD_ROWS)
    transpose(const T* __restrict__ x, T* __restrict__ y, long long rows, long long cols, long long row_stride,
              long long batch_stride, unsigned across, unsigned down) {
  constexpr int PADDING = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
  __shared__ T tile[TILE][TILE + PADDING];

  // Blocks are numbered along the rows of x, then down, then from matrix to matrix.
  const long long matrix = blockIdx.x / across / down;
  const long long first_row = static_cast<long long>(blockIdx.x / across % down) * TILE;
  const long long first_col = static_cast<long long>(blockIdx.x % across) * TILE;
  const T* source = x + matrix * batch_stride;
  T* target = y + matrix * rows * cols;

#pragma unroll
  for (int r = 0; r < TILE; r += THREAD_ROWS) {
#pragma unroll
    for (int c = 0; c < TILE; c += 32) {
      const long long row = first_row + r + threadIdx.y, col = first_col + c + threadIdx.x;
      if (row < rows && col < cols) tile[r + threadIdx.y][c + threadIdx.x] = source[row * row_stride + col];
    }
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < TILE; c += THREAD_ROWS) {
#pragma unroll
    for (int r = 0; r < TILE; r += 32) {
      const long long row = first_row + r + threadIdx.x, col = first_col + c + threadIdx.y;
      if (row < rows && col < cols) target[col * rows + row] = tile[r + threadIdx.x][c + threadIdx.y];
    }
  }
}

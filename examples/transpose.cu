// Exchanges the last two dimensions of a matrix or a batch of matrices, for any element type.
//
// Read along rows and written along columns, one of the two sides would touch memory one element per line. So a tile
// goes through shared memory: rows come in, columns go out, both sides whole lines. Where sizes allow it (WIDE), both
// sides move 16-byte chunks, and a thread gathers a chunk of output from one column of CHUNK rows below each other. Chunk
// c of a row is kept at c ^ (row / CHUNK) % 8: so the chunks that 8 neighbouring threads gather at a time lie in different
// banks. Otherwise single elements move, and rows padded by 4 bytes keep a column in different banks.
//
// x may be any view whose last dimension is dense: a slice of columns, every other row.

//! op      transpose(x) -> y
//! need    x.ndim == 2 or x.ndim == 3
//! let     rows = x.shape[-2], cols = x.shape[-1], batch = x.shape[0] if x.ndim == 3 else 1
//! out     y: x.dtype[x.shape[:-2], cols, rows]
//! accept  x: strided, unaligned
//! need    x.stride[-1] == 1 or cols <= 1
//! tune    ROW_CHUNKS = 8 | 16                             # 16-byte chunks in a row of a tile
//! tune    THREADS = 256 | 128 | 64
//! const   CHUNK = 16 / x.itemsize                         # elements
//! need    ROW_CHUNKS == 8 or CHUNK <= 8                   # a tile fits shared memory
//! let     row_stride = x.stride[-2], batch_stride = x.stride[0] if x.ndim == 3 else 0
//! const   WIDE = rows % CHUNK == 0 and cols % CHUNK == 0 and row_stride % CHUNK == 0 and batch_stride % CHUNK == 0
//! const   TILE = ROW_CHUNKS * CHUNK if WIDE else 64
//! need    not WIDE or THREADS <= TILE * ROW_CHUNKS
//! let     across = ceil_div(cols, TILE), down = ceil_div(rows, TILE)
//! launch  transpose<x.dtype><<<across * down * batch, THREADS>>>(
//!             x, y, rows, cols, row_stride, batch_stride, across, down)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

template <typename T>
struct alignas(16) Chunk {
  T at[CHUNK];
};

// How much of a tile lies inside the matrix.
struct Extent {
  int rows, cols;
};

template <typename T>
__device__ __forceinline__ void move_chunks(const T* source, T* target, long long rows,
                                            long long row_stride, Extent inside) {
  constexpr int PASSES = TILE * ROW_CHUNKS / THREADS;
  static_assert(PASSES * THREADS == TILE * ROW_CHUNKS, "every thread moves the same number of chunks");
  __shared__ Chunk<T> tile[TILE][ROW_CHUNKS];

  if (reinterpret_cast<unsigned long long>(source) % 16 == 0) {
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
      const int row = (pass * THREADS + threadIdx.x) / ROW_CHUNKS, chunk = threadIdx.x % ROW_CHUNKS;
      if (row < inside.rows && chunk * CHUNK < inside.cols) {
        const T* from = source + row * row_stride + chunk * CHUNK;
        tile[row][chunk ^ row / CHUNK % 8] = *reinterpret_cast<const Chunk<T>*>(from);
      }
    }
  } else {  // a slice of columns may begin anywhere
    for (int i = threadIdx.x; i < TILE * TILE; i += THREADS) {
      const int row = i / TILE, col = i % TILE;
      if (row < inside.rows && col < inside.cols) {
        tile[row][col / CHUNK ^ row / CHUNK % 8].at[col % CHUNK] = source[row * row_stride + col];
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int pass = 0; pass < PASSES; ++pass) {
    const int col = (pass * THREADS + threadIdx.x) / ROW_CHUNKS, chunk = threadIdx.x % ROW_CHUNKS;  // of x; of a row of y
    if (col < inside.cols && chunk * CHUNK < inside.rows) {
      Chunk<T> gathered;
#pragma unroll
      for (int e = 0; e < CHUNK; ++e) gathered.at[e] = tile[chunk * CHUNK + e][col / CHUNK ^ chunk % 8].at[col % CHUNK];
      reinterpret_cast<Chunk<T>*>(target)[col * (rows / CHUNK) + chunk] = gathered;
    }
  }
}

template <typename T>
__device__ __forceinline__ void move_elements(const T* source, T* target, long long rows,
                                              long long row_stride, Extent inside) {
  constexpr int PADDING = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
  __shared__ T tile[TILE][TILE + PADDING];
#pragma unroll 8
  for (int pass = 0; pass < TILE * TILE / THREADS; ++pass) {
    const int row = (pass * THREADS + threadIdx.x) / TILE, col = threadIdx.x % TILE;
    if (row < inside.rows && col < inside.cols) tile[row][col] = source[row * row_stride + col];
  }
  __syncthreads();
#pragma unroll 8
  for (int pass = 0; pass < TILE * TILE / THREADS; ++pass) {
    const int col = (pass * THREADS + threadIdx.x) / TILE, row = threadIdx.x % TILE;
    if (row < inside.rows && col < inside.cols) target[col * rows + row] = tile[row][col];
  }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    transpose(const T* __restrict__ x, T* __restrict__ y, long long rows, long long cols, long long row_stride,
              long long batch_stride, unsigned across, unsigned down) {
  // Blocks are numbered along the rows of x, then down, then from matrix to matrix.
  const long long matrix = blockIdx.x / across / down;
  const long long first_row = static_cast<long long>(blockIdx.x / across % down) * TILE;
  const long long first_col = static_cast<long long>(blockIdx.x % across) * TILE;
  const T* source = x + matrix * batch_stride + first_row * row_stride + first_col;
  T* target = y + matrix * rows * cols + first_col * rows + first_row;
  const Extent inside = {static_cast<int>(min(rows - first_row, static_cast<long long>(TILE))),
                         static_cast<int>(min(cols - first_col, static_cast<long long>(TILE)))};
  if constexpr (WIDE) {
    move_chunks(source, target, rows, row_stride, inside);
  } else {
    move_elements(source, target, rows, row_stride, inside);
  }
}

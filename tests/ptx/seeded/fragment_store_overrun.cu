// A whole 16 by 16 tile stored where the output has fewer rows.

//! op      square(x) -> y
//! out     y: f32[x.shape[0], 16]
//! need    x.dtype == f16 and x.ndim == 2 and x.shape[1] == 16 and x.shape[0] <= 16
//! let     rows = x.shape[0]
//! launch  square<<<1, 32>>>(x, y, rows)

#include <cuda_fp16.h>
#include <mma.h>

__global__ void square(const __half* x, float* y, int rows) {
  using namespace nvcuda;
  __shared__ __align__(32) __half tile[16 * 16];
  __shared__ __align__(32) float result[16 * 16];
  for (int i = threadIdx.x; i < 256; i += 32) tile[i] = i < rows * 16 ? x[i] : __half(0.0f);
  __syncwarp();
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
  wmma::fill_fragment(c, 0.0f);
  wmma::load_matrix_sync(a, tile, 16);
  wmma::load_matrix_sync(b, tile, 16);
  wmma::mma_sync(c, a, b, c);
  wmma::store_matrix_sync(y, c, 16, wmma::mem_row_major);  // BUG mend: wmma::store_matrix_sync(result, c, 16, wmma::mem_row_major);
  __syncwarp();
  // mend: for (int i = threadIdx.x; i < rows * 16; i += 32) y[i] = result[i];
}

// Sixteen rows are loaded as matrix fragments; only twelve were stored before.

//! op      rows_as_fragments(x) -> y
//! out     y: i32[32, 4]
//! need    x.dtype == f16 and x.ndim == 2 and x.shape[1] == 16 and x.shape[0] <= 16
//! let     rows = x.shape[0]
//! launch  rows_as_fragments<<<1, 32>>>(x, y, rows)

#include <cuda_fp16.h>

__global__ void rows_as_fragments(const __half* x, unsigned* y, int rows) {
  __shared__ __align__(16) __half tile[16][16];
  for (int i = threadIdx.x; i < rows * 16; i += 32)  // mend: for (int i = threadIdx.x; i < 256; i += 32)
    tile[i / 16][i % 16] = x[i];  // mend: tile[i / 16][i % 16] = i < rows * 16 ? x[i] : __half(0.0f);
  __syncwarp();
  const unsigned at = __cvta_generic_to_shared(&tile[threadIdx.x % 16][threadIdx.x / 16 * 8]);
  unsigned r[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");  // BUG
  for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = r[i];
}

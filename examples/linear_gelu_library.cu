// y = gelu(x @ w.T + bias), with the matrix product left to the vendor's library and the rest fused behind it.
//
// A `library` step runs an ATen operator between launches and puts its result into declared memory, here a scratch matrix.
// That is the right trade where the product is a plain one: the library is hard to beat, and bias and activation, which it
// would run as more passes over memory, become one. (Accumulating in f32, it rounds the product to x's dtype once.)
//
//! op      linear_gelu(x, w, bias) -> y
//! need    x.ndim >= 2 and w.ndim == 2 and bias.ndim == 1
//! let     N = w.shape[0], M = prod(x.shape[:-1])
//! out     y: x.dtype[x.shape[:-1], N]
//! need    x.dtype in [f32, f16, bf16] and w.dtype == x.dtype and bias.dtype == x.dtype
//! need    x.shape[-1] == w.shape[1] and bias.shape[0] == N
//! const   T = x.dtype, PACK = 16 / x.itemsize                   # elements of one 16-byte access
//! need    N % PACK == 0
//! tune    THREADS = 256 | 128 | 512
//! scratch product: x.dtype[x.shape[:-1], N]
//! library product = aten.linear(x, w, none)
//! launch  bias_gelu<<<dim3(ceil_div(N / PACK, THREADS), min(M, 65535)), THREADS>>>(product, bias, y, M, N)
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct alignas(16) Pack { T at[PACK]; };

__device__ __forceinline__ float gelu(float v) { return 0.5f * v * (1.f + erff(v * 0.70710678118654752f)); }

// A thread keeps PACK values of bias and walks down its columns.
__global__ void __launch_bounds__(THREADS) bias_gelu(const T* __restrict__ product, const T* __restrict__ bias, T* __restrict__ y, long long M, int N) {
  const int column = (blockIdx.x * THREADS + threadIdx.x) * PACK;
  if (column >= N) return;
  const Pack add = *(const Pack*)(bias + column);
  for (long long row = blockIdx.y; row < M; row += gridDim.y) {
    Pack v = *(const Pack*)(product + row * N + column);
#pragma unroll
    for (int i = 0; i < PACK; ++i) v.at[i] = T(gelu(float(v.at[i]) + float(add.at[i])));
    *(Pack*)(y + row * N + column) = v;
  }
}

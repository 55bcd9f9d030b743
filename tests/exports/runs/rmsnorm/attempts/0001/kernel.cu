// rmsnorm, a first version: simple, and right at any size.
//
// One block owns one row and goes along it, element by element, once for each step that needs the whole row before
// it. Arithmetic is in f32.

//! op      rmsnorm(x, weight, eps: float = 1e-06) -> y
//! out     y: bf16[x.shape]
//! need    x.dtype == bf16 and weight.dtype == bf16
//! need    x.ndim == 2
//! need    weight.ndim == 1 and weight.shape[0] == x.shape[1]
//! let     cols = x.shape[-1], rows = x.shape[0]
//! const   THREADS = 256
//! launch  rmsnorm_rows<<<rows, THREADS>>>(x, weight, y, cols, eps)

#include <cuda_bf16.h>

constexpr int WARPS = THREADS / 32;

struct Sum {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

template <typename T>
__device__ __forceinline__ T from_lane(T value, int offset) {
  return __shfl_xor_sync(~0u, value, offset);
}

// The values of all threads of the block combined, the same in every thread: shuffles within each warp, then one
// exchange through shared memory. `partial` has an element for every warp and no other use, so one barrier is enough.
template <typename T, typename Combine>
__device__ __forceinline__ T block_reduce(T value, T* partial, Combine combine) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = combine(value, from_lane(value, offset));
  if constexpr (WARPS == 1) return value;
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = partial[0];
#pragma unroll
  for (int warp = 1; warp < WARPS; ++warp) value = combine(value, partial[warp]);
  return value;
}

__global__ void __launch_bounds__(THREADS)
    rmsnorm_rows(const __nv_bfloat16* __restrict__ x, const __nv_bfloat16* __restrict__ weight,
                 __nv_bfloat16* __restrict__ y, long long cols, float eps) {
  const long long row = blockIdx.x;
  const __nv_bfloat16* x_along = x + row * cols;
  const __nv_bfloat16* weight_along = weight;
  __nv_bfloat16* y_along = y + row * cols;
  __shared__ float squares_of_warps[WARPS];

  float squares = 0.0f;
  for (long long column = threadIdx.x; column < cols; column += THREADS) {
    const float x_value = static_cast<float>(x_along[column]);
    squares += x_value * x_value;
  }
  squares = block_reduce(squares, squares_of_warps, Sum{});

  const float scale = rsqrtf(squares / static_cast<float>(cols) + eps);
  for (long long column = threadIdx.x; column < cols; column += THREADS) {
    const float x_value = static_cast<float>(x_along[column]);
    const float weight_value = static_cast<float>(weight_along[column]);
    y_along[column] = static_cast<__nv_bfloat16>(x_value * scale * weight_value);
  }
}

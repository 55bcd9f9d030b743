//! op      masked_softmax(x, mask?, scale: float? = none) -> y
//! out     y: f32[x.shape]
//! accept  mask: strided, unaligned
//! let     cols = x.shape[-1], rows = x.numel / max(cols, 1)
//! need    x.ndim == 2 and x.dtype == f32
//! need    !has(mask) || (mask.dtype == u8 && mask.shape == x.shape)
//! const   MASKED = has(mask)
//! let     factor = scale if has(scale) else 1.0 / sqrt(cols)
//! let     ms = mask.stride if has(mask) else [0, 0]
//! launch  masked_softmax<<<rows, 128, 128 * sizeof(f32)>>>(x, mask, y, cols, ms, factor) when cols > 0
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

extern __shared__ float scratch_row[];

__global__ void __launch_bounds__(128) masked_softmax(const float* x, const unsigned char* mask, float* y, int cols,
                                                      long long mask_row, long long mask_column, float factor) {
  auto block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  const float* row = x + (long long)blockIdx.x * cols;
  auto value = [=](int i) {
    float v = row[i] * factor;
    if constexpr (MASKED) v = mask[blockIdx.x * mask_row + i * mask_column] ? v : -INFINITY;
    return v;
  };
  float top = -INFINITY, sum = 0.f;
  for (int i = warp.thread_rank(); i < cols; i += 32) top = fmaxf(top, value(i));
  top = cg::reduce(warp, top, cg::greater<float>());
  for (int i = warp.thread_rank(); i < cols; i += 32) sum += __expf(value(i) - top);
  sum = cg::reduce(warp, sum, cg::plus<float>());
  scratch_row[threadIdx.x] = sum;
  for (int i = threadIdx.x; i < cols; i += 128) y[(long long)blockIdx.x * cols + i] = __expf(value(i) - top) / sum;
}

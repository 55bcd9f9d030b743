//! op      scale_columns(x, weight) -> y
//! out     y: x.dtype[x.shape]
//! need    x.ndim == 2 and x.dtype == f32 and weight.dtype == f32
//! let     rows = x.shape[0], cols = x.shape[1]
//! need    weight.shape == [cols] and cols % 4 == 0
//! tune    BM = 16 | 8 | 32
//! const   BN = 128
//! launch  scale_columns<<<dim3(ceil_div(cols, BN), ceil_div(rows, BM)), 256>>>(x, weight, y, rows, cols)
#include <cute/tensor.hpp>
using namespace cute;

__global__ void __launch_bounds__(256) scale_columns(const float* x, const float* weight, float* y, int rows, int cols) {
  // Three tensors of one shape; a stride of 0 broadcasts. Each is cut into BM x BN tiles, and each thread gets its part.
  auto shape = make_shape(rows, cols);
  auto mx = make_tensor(make_gmem_ptr(x), shape, make_stride(cols, _1{}));
  auto mw = make_tensor(make_gmem_ptr(weight), shape, make_stride(_0{}, _1{}));
  auto my = make_tensor(make_gmem_ptr(y), shape, make_stride(cols, _1{}));
  auto tile = Shape<Int<BM>, Int<BN>>{};
  auto coord = make_coord(blockIdx.y, blockIdx.x);
  // 8 x 32 threads, each 4 contiguous columns: one 16-byte load per row.
  using Atom = Copy_Atom<UniversalCopy<uint128_t>, float>;
  auto copier = make_tiled_copy(Atom{}, Layout<Shape<_8, _32>, Stride<_32, _1>>{}, Layout<Shape<_1, _4>>{}).get_slice(threadIdx.x);
  auto from = copier.partition_S(local_tile(mx, tile, coord));   // (element, rows, columns)
  auto scale = copier.partition_S(local_tile(mw, tile, coord));
  auto to = copier.partition_D(local_tile(my, tile, coord));
  auto at = copier.partition_S(make_identity_tensor(tile));      // coordinates within the tile, for predicates
  auto held = make_fragment_like(from);
  auto factor = make_fragment_like(from);
  const int rows_left = rows - blockIdx.y * BM, cols_left = cols - blockIdx.x * BN;
  auto inside = [&](int i) { return get<0>(at(0, i, 0)) < rows_left && get<1>(at(0, i, 0)) < cols_left; };
  CUTE_UNROLL
  for (int i = 0; i < size<1>(held); ++i)   // all loads first
    if (inside(i)) copy(Atom{}, from(_, i, 0), held(_, i, 0)), copy(Atom{}, scale(_, i, 0), factor(_, i, 0));
  CUTE_UNROLL
  for (int i = 0; i < size(held); ++i) held(i) = held(i) * factor(i);
  CUTE_UNROLL
  for (int i = 0; i < size<1>(held); ++i)
    if (inside(i)) copy(Atom{}, held(_, i, 0), to(_, i, 0));
}

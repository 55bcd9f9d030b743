// A transpose with CuTe layouts.
//! op      transpose(x) -> y
//! need    x.ndim == 2
//! out     y: x.dtype[x.shape[1], x.shape[0]]
//! need    x.dtype in [f32, f16] and x.shape[0] % 32 == 0 and x.shape[1] % 32 == 0
//! const   T = x.dtype
//! launch  tiles::transpose<T, 32><<<dim3(x.shape[0] / 32, x.shape[1] / 32), 256>>>(x, y, x.shape)
#include <cute/tensor.hpp>

namespace tiles {
using namespace cute;

template <class Element, int Tile>
struct Shared {
  using Layout = decltype(make_layout(make_shape(Int<Tile>{}, Int<Tile>{}), make_stride(Int<Tile + 1>{}, Int<1>{})));
  alignas(16) cute::array<Element, cosize_v<Layout>> data;
};

template <class Element, int Tile>
__global__ static void __launch_bounds__(256) transpose(const Element* x, Element* y, int rows, int cols) {
  __shared__ Shared<Element, Tile> shared;
  Tensor source = make_tensor(make_gmem_ptr(x), make_shape(rows, cols), make_stride(cols, Int<1>{}));
  Tensor target = make_tensor(make_gmem_ptr(y), make_shape(cols, rows), make_stride(rows, Int<1>{}));
  Tensor tile = make_tensor(make_smem_ptr(shared.data.data()), typename Shared<Element, Tile>::Layout{});
  Tensor from = local_tile(source, make_shape(Int<Tile>{}, Int<Tile>{}), make_coord(blockIdx.x, blockIdx.y));
  Tensor to = local_tile(target, make_shape(Int<Tile>{}, Int<Tile>{}), make_coord(blockIdx.y, blockIdx.x));
  CUTE_UNROLL
  for (int i = threadIdx.x; i < Tile * Tile; i += 256) tile(i / Tile, i % Tile) = from(i / Tile, i % Tile);
  __syncthreads();
  for (int i = threadIdx.x; i < Tile * Tile; i += 256) to(i / Tile, i % Tile) = tile(i % Tile, i / Tile);
}
}  // namespace tiles

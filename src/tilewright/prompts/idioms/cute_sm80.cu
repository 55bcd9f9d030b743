//! op      linear(x, w) -> y
//! need    x.ndim == 2 and w.ndim == 2 and w.shape[1] == x.shape[1]
//! let     M = x.shape[0], K = x.shape[1], N = w.shape[0]
//! out     y: x.dtype[M, N]
//! need    device.cc >= 80 and x.dtype == bf16 and w.dtype == bf16 and K % 8 == 0
//! tune    STAGES = 3 | 2 | 4
//! const   BM = 128, BN = 128, BK = 64
//! let     smem = STAGES * (BM + BN) * BK * 2
//! need    smem <= device.smem_block
//! launch  linear<<<dim3(ceil_div(M, BM), ceil_div(N, BN)), 128, smem>>>(x, w, y, M, N, K)
#include <cute/tensor.hpp>
using namespace cute;
using T = bfloat16_t;   // CuTe's type, the same bits as __nv_bfloat16

__global__ void __launch_bounds__(128) linear(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, int M, int N, int K) {
  extern __shared__ __align__(1024) char shared[];
  // Whole matrices as (rows, k), and this block's tiles of them; the last mode of gx and gw counts steps along K.
  auto mx = make_tensor(make_gmem_ptr(reinterpret_cast<const T*>(x)), make_shape(M, K), make_stride(K, _1{}));
  auto mw = make_tensor(make_gmem_ptr(reinterpret_cast<const T*>(w)), make_shape(N, K), make_stride(K, _1{}));
  auto my = make_tensor(make_gmem_ptr(reinterpret_cast<T*>(y)), make_shape(M, N), make_stride(N, _1{}));
  auto gx = local_tile(mx, Shape<Int<BM>, Int<BK>>{}, make_coord(blockIdx.x, _));
  auto gw = local_tile(mw, Shape<Int<BN>, Int<BK>>{}, make_coord(blockIdx.y, _));
  auto gy = local_tile(my, Shape<Int<BM>, Int<BN>>{}, make_coord(blockIdx.x, blockIdx.y));
  // Shared slots, swizzled: 8 rows of 16-byte chunks lie in 8 different bank groups.
  using Atom = decltype(composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, _64>, Stride<_64, _1>>{}));
  auto layout_x = tile_to_shape(Atom{}, Shape<Int<BM>, Int<BK>, Int<STAGES>>{});
  auto layout_w = tile_to_shape(Atom{}, Shape<Int<BN>, Int<BK>, Int<STAGES>>{});
  auto sx = make_tensor(make_smem_ptr(reinterpret_cast<T*>(shared)), layout_x);
  auto sw = make_tensor(make_smem_ptr(reinterpret_cast<T*>(shared) + cosize(layout_x)), layout_w);

  // 16 x 8 threads, each one 16-byte cp.async that writes zeros where its predicate is false.
  using CopyAtom = Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>, T>;
  auto copier = make_tiled_copy(CopyAtom{}, Layout<Shape<_16, _8>, Stride<_8, _1>>{}, Layout<Shape<_1, _8>>{}).get_slice(threadIdx.x);
  auto from_x = copier.partition_S(gx);   // (element, rows, k, step)
  auto from_w = copier.partition_S(gw);
  auto to_x = copier.partition_D(sx);     // (element, rows, k, slot)
  auto to_w = copier.partition_D(sw);
  auto at = copier.partition_S(make_identity_tensor(Shape<Int<BM>, Int<BK>>{}));   // coordinates, for predicates (BM == BN)
  const int rows_x = M - blockIdx.x * BM, rows_w = N - blockIdx.y * BN, steps = (K + BK - 1) / BK;
  auto copy_step = [&](int step) {
    if (step < steps) {
      const bool inside = get<1>(at(0, 0, 0)) < K - step * BK;
      CUTE_UNROLL
      for (int i = 0; i < size<1>(from_x); ++i) {
        copy(CopyAtom{}.with(inside && get<0>(at(0, i, 0)) < rows_x), from_x(_, i, 0, step), to_x(_, i, 0, step % STAGES));
        copy(CopyAtom{}.with(inside && get<0>(at(0, i, 0)) < rows_w), from_w(_, i, 0, step), to_w(_, i, 0, step % STAGES));
      }
    }
    cp_async_fence();
  };

  // 2 x 2 warps of m16n8k16: warp (m, n) has rows 16 m + 32 i and columns 8 n + 16 j.
  auto mma = make_tiled_mma(MMA_Atom<SM80_16x8x16_F32BF16BF16F32_TN>{}, Layout<Shape<_2, _2, _1>>{});
  auto mine = mma.get_slice(threadIdx.x);
  auto rx = mine.partition_fragment_A(sx(_, _, 0));   // (element, i, k)
  auto rw = mine.partition_fragment_B(sw(_, _, 0));   // (element, j, k)
  auto sums = partition_fragment_C(mma, Shape<Int<BM>, Int<BN>>{});
  clear(sums);
  // ldmatrix by hand: seen as 16-byte chunks, the swizzled tensors give each lane the address of its chunk. (make_tiled_copy_A
  // and retile_D say the same and triple the build time.)
  auto chunks_x = recast<uint128_t>(sx);   // (row, k / 8, slot)
  auto chunks_w = recast<uint128_t>(sw);
  auto words_x = recast<uint32_t>(rx);
  auto words_w = recast<uint32_t>(rw);
  const int lane = threadIdx.x % 32, warp_m = threadIdx.x / 32 % 2, warp_n = threadIdx.x / 64;
  auto load_operands = [&](int slot, int k) {
    CUTE_UNROLL
    for (int i = 0; i < size<1>(rx); ++i)
      SM75_U32x4_LDSM_N::copy(chunks_x(warp_m * 16 + i * 32 + lane % 16, k * 2 + lane / 16, slot),
                              words_x(0, i, k), words_x(1, i, k), words_x(2, i, k), words_x(3, i, k));
    CUTE_UNROLL
    for (int j = 0; j < size<1>(rw); j += 2)
      SM75_U32x4_LDSM_N::copy(chunks_w(warp_n * 8 + (j + lane / 16) * 16 + lane % 8, k * 2 + lane / 8 % 2, slot),
                              words_w(0, j, k), words_w(1, j, k), words_w(0, j + 1, k), words_w(1, j + 1, k));
  };

  CUTE_UNROLL
  for (int s = 0; s < STAGES - 1; ++s) copy_step(s);
  CUTE_NO_UNROLL
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    copy_step(step + STAGES - 1);
    CUTE_UNROLL
    for (int k = 0; k < size<2>(rx); ++k) {
      load_operands(step % STAGES, k);
      gemm(mma, rx(_, _, k), rw(_, _, k), sums);
    }
  }
  auto to_y = mine.partition_C(gy);
  auto at_y = mine.partition_C(make_identity_tensor(Shape<Int<BM>, Int<BN>>{}));
  CUTE_UNROLL
  for (int i = 0; i < size(sums); ++i)   // the epilogue: f32 sums, with their coordinates at hand
    if (get<0>(at_y(i)) < rows_x && get<1>(at_y(i)) < rows_w) to_y(i) = T(sums(i));
}

//! op      linear(x, w) -> y
//! need    x.ndim == 2 and w.ndim == 2 and w.shape[1] == x.shape[1]
//! let     M = x.shape[0], K = x.shape[1], N = w.shape[0]
//! out     y: x.dtype[M, N]
//! need    device.cc == 90 and x.dtype == bf16 and w.dtype == bf16 and K % 8 == 0 and K > 0    # TMA: rows are multiples of 16 bytes
//! const   BM = 128, BN = 128, BK = 64
//! tune    STAGES = 4 | 3 | 6
//! let     smem = STAGES * (BM + BN) * BK * 2 + STAGES * 16
//! need    smem <= device.smem_block
//! map     x_map = tiled(x, box=[BM, BK], swizzle=128)
//! map     w_map = tiled(w, box=[BN, BK], swizzle=128)
//! launch  linear<<<dim3(ceil_div(M, BM), ceil_div(N, BN)), 384, smem>>>(x_map, w_map, y, M, N, K)
#include <cute/tensor.hpp>
#include <cutlass/arch/reg_reconfig.h>
using namespace cute;
using T = bfloat16_t;
constexpr uint32_t SLOT_BYTES = (BM + BN) * BK * 2;

__global__ void __launch_bounds__(384, 1) linear(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                                                 __nv_bfloat16* y, int M, int N, int K) {
  extern __shared__ __align__(1024) char shared[];
  // The 128-byte swizzle of the TMA boxes, as layouts that wgmma takes its descriptors from; the last mode is the slot.
  auto layout_x = tile_to_shape(GMMA::Layout_K_SW128_Atom<T>{}, Shape<Int<BM>, Int<BK>, Int<STAGES>>{});
  auto layout_w = tile_to_shape(GMMA::Layout_K_SW128_Atom<T>{}, Shape<Int<BN>, Int<BK>, Int<STAGES>>{});
  auto sx = make_tensor(make_smem_ptr(reinterpret_cast<T*>(shared)), layout_x);
  auto sw = make_tensor(make_smem_ptr(reinterpret_cast<T*>(shared) + cosize(layout_x)), layout_w);
  uint64_t* full = reinterpret_cast<uint64_t*>(shared + STAGES * SLOT_BYTES);   // a slot's bytes have arrived
  uint64_t* empty = full + STAGES;                                              // both consumers have read it
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) initialize_barrier(full[s], 1), initialize_barrier(empty[s], 2);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const int m0 = blockIdx.x * BM, n0 = blockIdx.y * BN, steps = (K + BK - 1) / BK;

  if (threadIdx.x < 128) {   // ---- the producer warpgroup: one thread of it
    cutlass::arch::warpgroup_reg_dealloc<40>();
    if (threadIdx.x == 0) {
      CUTE_NO_UNROLL
      for (int step = 0; step < steps; ++step) {
        const int slot = step % STAGES, round = step / STAGES;
        if (round > 0) wait_barrier(empty[slot], (round - 1) & 1);
        set_barrier_transaction_bytes(full[slot], SLOT_BYTES);
        SM90_TMA_LOAD_2D::copy(&x_map, &full[slot], 0, &sx(0, 0, slot), step * BK, m0);   // innermost coordinate first
        SM90_TMA_LOAD_2D::copy(&w_map, &full[slot], 0, &sw(0, 0, slot), step * BK, n0);   // beyond the tensor: zeros
      }
    }
  } else {                   // ---- two consumer warpgroups, 64 rows each
    cutlass::arch::warpgroup_reg_alloc<232>();
    auto mma = make_tiled_mma(SM90_64x128x16_F32BF16BF16_SS<GMMA::Major::K, GMMA::Major::K>{}, Layout<Shape<_2, _1, _1>>{});
    auto mine = mma.get_slice(threadIdx.x - 128);
    auto rx = mine.make_fragment_A(mine.partition_A(sx));   // descriptors, not data: (mma, rows, k, slot)
    auto rw = mine.make_fragment_B(mine.partition_B(sw));
    auto sums = partition_fragment_C(mma, Shape<Int<BM>, Int<BN>>{});
    mma.accumulate_ = GMMA::ScaleOut::Zero;
    warpgroup_fence_operand(sums);
    CUTE_NO_UNROLL
    for (int step = 0; step < steps; ++step) {
      const int slot = step % STAGES;
      wait_barrier(full[slot], step / STAGES & 1);
      warpgroup_arrive();
      CUTE_UNROLL
      for (int k = 0; k < size<2>(rx); ++k) {
        gemm(mma, rx(_, _, k, slot), rw(_, _, k, slot), sums);
        mma.accumulate_ = GMMA::ScaleOut::One;
      }
      warpgroup_commit_batch();
      warpgroup_wait<1>();   // the step before is done: its slot may be filled again
      if (step > 0 && threadIdx.x % 128 == 0) arrive_barrier(empty[(step - 1) % STAGES]);
    }
    warpgroup_wait<0>();
    warpgroup_fence_operand(sums);
    auto my = make_tensor(make_gmem_ptr(reinterpret_cast<T*>(y)), make_shape(M, N), make_stride(N, _1{}));
    auto to = mine.partition_C(local_tile(my, Shape<Int<BM>, Int<BN>>{}, make_coord(blockIdx.x, blockIdx.y)));
    auto at = mine.partition_C(make_identity_tensor(Shape<Int<BM>, Int<BN>>{}));
    CUTE_UNROLL
    for (int i = 0; i < size(sums); ++i)   // the epilogue; stage it through stmatrix and a TMA store when stores matter
      if (m0 + get<0>(at(i)) < M && n0 + get<1>(at(i)) < N) to(i) = T(sums(i));
  }
}

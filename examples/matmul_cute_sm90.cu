// c = a @ b on Hopper with CuTe layouts: TMA fills swizzled shared tiles, wgmma multiplies straight out of them.
//
// The idea of matmul_wgmma_tma.cu with the address arithmetic left to CuTe: the same shared layout tells TMA where a box
// goes and gives wgmma its operand descriptors, and the tiled mma says which element of c each register holds. The tensor
// maps come from the launch plan (CuTe's own make_tma_copy needs host code), and the pipeline is bare mbarriers.
// A block computes one BM x BN tile: one thread of the first warpgroup loads, two warpgroups multiply.
//
//! op      matmul(a, b) -> c
//! need    a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0]
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     c: a.dtype[M, N]
//! need    device.cc == 90 and a.dtype in [f16, bf16] and b.dtype == a.dtype
//! need    K % 8 == 0 and N % 8 == 0 and K > 0             # TMA: rows are multiples of 16 bytes, none is empty
//! need    max(M, max(N, K)) <= 2000000000                 # coordinates, rounded up to a tile, fit an int
//! const   BM = 128, BN = 128, BK = 64
//! tune    STAGES = 4 | 3 | 6
//! let     smem = STAGES * (BM + BN) * BK * 2 + STAGES * 16
//! map     a_map = tiled(a, box=[BM, BK], swizzle=128)
//! map     b_map = tiled(b, box=[BK, 64], swizzle=128)
//! launch  matmul_cute<a.dtype><<<dim3(ceil_div(M, BM), ceil_div(N, BN)), 384, smem>>>(a_map, b_map, c, M, N, K)
#include <cute/tensor.hpp>
using namespace cute;

// The wgmma instruction of an element type, a contiguous along k and b along n; CuTe's names for the types have the same bits as CUDA's.
template <class T> struct Instruction;
template <> struct Instruction<__half> { using Type = half_t; using Mma = SM90_64x128x16_F32F16F16_SS<GMMA::Major::K, GMMA::Major::MN>; };
template <> struct Instruction<__nv_bfloat16> { using Type = bfloat16_t; using Mma = SM90_64x128x16_F32BF16BF16_SS<GMMA::Major::K, GMMA::Major::MN>; };

constexpr uint32_t SLOT_BYTES = (BM + BN) * BK * 2;

__device__ __forceinline__ uint32_t round_pair(float low, float high, __half) {
  uint32_t r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}
__device__ __forceinline__ uint32_t round_pair(float low, float high, __nv_bfloat16) {
  uint32_t r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}

template <class CudaType>
__global__ void __launch_bounds__(384, 1) matmul_cute(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                                                      CudaType* c, int M, int N, int K) {
  using T = typename Instruction<CudaType>::Type;
  extern __shared__ __align__(1024) char shared[];
  const int m0 = blockIdx.x * BM, n0 = blockIdx.y * BN, steps = (K + BK - 1) / BK;

  // Shared memory: STAGES slots of 128-byte swizzled tiles. CuTe sees b, stored [K, N], as (N, K) with n contiguous. A box of
  // b is BK rows of 64 columns, so along n the atoms of 64 x 8 follow each other only after all of k: Step<_2, _1, _3>.
  auto layout_a = tile_to_shape(GMMA::Layout_K_SW128_Atom<T>{}, Shape<Int<BM>, Int<BK>, Int<STAGES>>{});
  auto layout_b = tile_to_shape(GMMA::Layout_MN_SW128_Atom<T>{}, Shape<Int<BN>, Int<BK>, Int<STAGES>>{}, Step<_2, _1, _3>{});
  auto sa = make_tensor(make_smem_ptr(reinterpret_cast<T*>(shared)), layout_a);
  auto sb = make_tensor(make_smem_ptr(reinterpret_cast<T*>(shared) + cosize(layout_a)), layout_b);
  uint64_t* full = reinterpret_cast<uint64_t*>(shared + STAGES * SLOT_BYTES);  // the bytes of a slot have arrived
  uint64_t* empty = full + STAGES;                                             // every consumer warp has read a slot

  if (threadIdx.x == 0) {
    CUTE_UNROLL
    for (int s = 0; s < STAGES; ++s) {
      initialize_barrier(full[s], 1);
      initialize_barrier(empty[s], 2 * 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (threadIdx.x < 128) {  // ---- producer
    if (threadIdx.x == 0) {
      const uint64_t keep = static_cast<uint64_t>(TMA::CacheHintSm90::EVICT_NORMAL);
      CUTE_NO_UNROLL
      for (int step = 0; step < steps; ++step) {
        const int slot = step % STAGES;
        wait_barrier(empty[slot], (step / STAGES & 1) ^ 1);  // at first the phase before the first, which counts as over
        set_barrier_transaction_bytes(full[slot], SLOT_BYTES);
        SM90_TMA_LOAD_2D::copy(&a_map, &full[slot], keep, &sa(0, 0, slot), step * BK, m0);
        CUTE_UNROLL
        for (int n = 0; n < BN; n += 64) SM90_TMA_LOAD_2D::copy(&b_map, &full[slot], keep, &sb(n, 0, slot), n0 + n, step * BK);
      }
    }
    return;
  }

  // ---- consumers: two warpgroups, 64 rows each
  auto mma = make_tiled_mma(typename Instruction<CudaType>::Mma{}, Layout<Shape<_2, _1, _1>>{});
  auto mine = mma.get_slice(threadIdx.x - 128);
  auto ra = mine.make_fragment_A(mine.partition_A(sa));  // descriptors, not data: (mma, rows, k, slot)
  auto rb = mine.make_fragment_B(mine.partition_B(sb));
  auto sums = partition_fragment_C(mma, Shape<Int<BM>, Int<BN>>{});
  clear(sums);
  warpgroup_fence_operand(sums);

  CUTE_NO_UNROLL
  for (int step = 0; step < steps; ++step) {
    const int slot = step % STAGES;
    wait_barrier(full[slot], step / STAGES & 1);
    warpgroup_arrive();
    CUTE_UNROLL
    for (int k = 0; k < size<2>(ra); ++k) gemm(mma, ra(_, _, k, slot), rb(_, _, k, slot), sums);
    warpgroup_commit_batch();
    warpgroup_wait<1>();  // the step before is done: its slot may be filled again
    if (step > 0 && threadIdx.x % 32 == 0) arrive_barrier(empty[(step - 1) % STAGES]);
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(sums);

  // Pairs of neighbouring columns are rounded and stored as one word.
  auto mc = make_tensor(make_gmem_ptr(reinterpret_cast<T*>(c)), make_shape(M, N), make_stride(N, _1{}));
  auto gc = local_tile(mc, Shape<Int<BM>, Int<BN>>{}, make_coord(blockIdx.x, blockIdx.y));
  auto to_c = recast<uint32_t>(mine.partition_C(gc));
  auto at_c = mine.partition_C(make_identity_tensor(Shape<Int<BM>, Int<BN>>{}));
  CUTE_UNROLL
  for (int i = 0; i < size(to_c); ++i)
    if (m0 + get<0>(at_c(2 * i)) < M && n0 + get<1>(at_c(2 * i)) < N) to_c(i) = round_pair(sums(2 * i), sums(2 * i + 1), CudaType());
}

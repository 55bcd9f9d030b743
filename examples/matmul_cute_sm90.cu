// c = a @ b on Hopper with CuTe layouts: TMA fills swizzled shared tiles, wgmma multiplies straight out of them.
//
// The idea of matmul_wgmma_tma.cu with the address arithmetic left to CuTe: the same shared layout tells TMA where a box
// goes and gives wgmma its operand descriptors, and another tells stmatrix and TMA where a piece of the result goes. The
// tensor maps come from the launch plan (CuTe's own make_tma_copy needs host code), and the pipeline is bare mbarriers.
// Blocks are persistent: one thread of the first warpgroup loads for all the tiles of its block, and so is ahead of the
// two warpgroups that multiply while they store a tile.
//
//! op      matmul(a, b) -> c
//! need    a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0]
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     c: a.dtype[M, N]
//! need    device.cc == 90 and a.dtype in [f16, bf16] and b.dtype == a.dtype
//! need    K % 8 == 0 and N % 8 == 0 and K > 0             # TMA: rows are multiples of 16 bytes, none is empty
//! need    max(M, max(N, K)) <= 2000000000                 # coordinates, rounded up to a tile, fit an int
//! const   BM = 128, BK = 64
//! tune    BN = 256 | 128
//! tune    STAGES = 6 | 4 | 3
//! let     smem = STAGES * (BM + BN) * BK * 2 + 4 * 64 * 64 * 2 + STAGES * 16
//! need    smem <= device.smem_block
//! let     tiles = ceil_div(M, BM) * ceil_div(N, BN)
//! need    BN == 128 or tiles >= device.sms * 3 / 4        # narrower tiles where wide ones leave too much of the GPU idle
//! map     a_map = tiled(a, box=[BM, BK], swizzle=128)
//! map     b_map = tiled(b, box=[BK, 64], swizzle=128)
//! map     c_map = tiled(c, box=[64, 64], swizzle=128)
//! launch  matmul_cute<a.dtype><<<min(tiles, device.sms), 384, smem>>>(a_map, b_map, c_map, M, N, K)
#include <cute/tensor.hpp>
#include <cutlass/arch/reg_reconfig.h>
using namespace cute;

// The wgmma instruction of an element type and width, a contiguous along k and b along n; CuTe's names for the types have
// the same bits as CUDA's.
template <class T, int COLUMNS> struct Instruction;
template <> struct Instruction<half_t, 128> { using Type = SM90_64x128x16_F32F16F16_SS<GMMA::Major::K, GMMA::Major::MN>; };
template <> struct Instruction<half_t, 256> { using Type = SM90_64x256x16_F32F16F16_SS<GMMA::Major::K, GMMA::Major::MN>; };
template <> struct Instruction<bfloat16_t, 128> { using Type = SM90_64x128x16_F32BF16BF16_SS<GMMA::Major::K, GMMA::Major::MN>; };
template <> struct Instruction<bfloat16_t, 256> { using Type = SM90_64x256x16_F32BF16BF16_SS<GMMA::Major::K, GMMA::Major::MN>; };
template <class CudaType> struct Element;
template <> struct Element<__half> { using Type = half_t; };
template <> struct Element<__nv_bfloat16> { using Type = bfloat16_t; };

constexpr uint32_t SLOT_BYTES = (BM + BN) * BK * 2;
constexpr int TILE_GROUP = 8;  // rows of tiles walked together, so that the blocks in flight share their operands in L2

__device__ __forceinline__ uint32_t round_pair(float low, float high, half_t) {
  uint32_t r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}
__device__ __forceinline__ uint32_t round_pair(float low, float high, bfloat16_t) {
  uint32_t r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}

// Where the tile with this number begins: groups of TILE_GROUP rows of tiles, column by column inside a group.
__device__ __forceinline__ void find_tile(int tile, int tiles_m, int tiles_n, int& m0, int& n0) {
  const int group = tile / (TILE_GROUP * tiles_n), in_group = tile % (TILE_GROUP * tiles_n);
  const int rows = min(TILE_GROUP, tiles_m - group * TILE_GROUP);
  m0 = (group * TILE_GROUP + in_group % rows) * BM, n0 = in_group / rows * BN;
}

template <class CudaType>
__global__ void __launch_bounds__(384, 1) matmul_cute(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                                                      const __grid_constant__ CUtensorMap c_map, int M, int N, int K) {
  using T = typename Element<CudaType>::Type;
  extern __shared__ __align__(1024) char shared[];
  const int steps = (K + BK - 1) / BK, tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN, tiles = tiles_m * tiles_n;

  // Shared memory: STAGES slots of 128-byte swizzled tiles. CuTe sees b, stored [K, N], as (N, K) with n contiguous. A box of
  // b is BK rows of 64 columns, so along n the atoms of 64 x 8 follow each other only after all of k: Step<_2, _1, _3>.
  // Behind them, 64 x 64 pieces of c: two for each consumer, one is filled while the other is stored.
  auto layout_a = tile_to_shape(GMMA::Layout_K_SW128_Atom<T>{}, Shape<Int<BM>, Int<BK>, Int<STAGES>>{});
  auto layout_b = tile_to_shape(GMMA::Layout_MN_SW128_Atom<T>{}, Shape<Int<BN>, Int<BK>, Int<STAGES>>{}, Step<_2, _1, _3>{});
  auto layout_c = tile_to_shape(GMMA::Layout_K_SW128_Atom<T>{}, Shape<_64, _64, _4>{});
  auto sa = make_tensor(make_smem_ptr(reinterpret_cast<T*>(shared)), layout_a);
  auto sb = make_tensor(make_smem_ptr(reinterpret_cast<T*>(shared) + cosize(layout_a)), layout_b);
  auto sc = make_tensor(make_smem_ptr(reinterpret_cast<T*>(shared + STAGES * SLOT_BYTES)), layout_c);
  uint64_t* full = reinterpret_cast<uint64_t*>(shared + STAGES * SLOT_BYTES + sizeof(T) * cosize(layout_c));  // a slot's bytes have arrived
  uint64_t* empty = full + STAGES;                                                                            // every consumer warp has read it

  if (threadIdx.x == 0) {
    CUTE_UNROLL
    for (int s = 0; s < STAGES; ++s) {
      initialize_barrier(full[s], 1);
      initialize_barrier(empty[s], 2 * 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  // Slots are used in turn through all tiles; a phase is once round all of them.
  int slot = 0, phase = 0, m0, n0;
  auto advance = [&] {
    if (++slot == STAGES) slot = 0, phase ^= 1;
  };

  if (threadIdx.x < 128) {  // ---- producer
    cutlass::arch::warpgroup_reg_dealloc<40>();
    if (threadIdx.x == 0) {
      const uint64_t keep = static_cast<uint64_t>(TMA::CacheHintSm90::EVICT_NORMAL);
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        find_tile(tile, tiles_m, tiles_n, m0, n0);
        CUTE_NO_UNROLL
        for (int step = 0; step < steps; ++step) {
          wait_barrier(empty[slot], phase ^ 1);  // at first the phase before the first, which counts as over
          set_barrier_transaction_bytes(full[slot], SLOT_BYTES);
          SM90_TMA_LOAD_2D::copy(&a_map, &full[slot], keep, &sa(0, 0, slot), step * BK, m0);
          CUTE_UNROLL
          for (int n = 0; n < BN; n += 64) SM90_TMA_LOAD_2D::copy(&b_map, &full[slot], keep, &sb(n, 0, slot), n0 + n, step * BK);
          advance();
        }
      }
    }
  } else {  // ---- consumers: two warpgroups, 64 rows each
    cutlass::arch::warpgroup_reg_alloc<232>();
    const int thread = threadIdx.x % 128, consumer = threadIdx.x / 128 - 1, lane = thread % 32;
    auto mma = make_tiled_mma(typename Instruction<T, BN>::Type{}, Layout<Shape<_2, _1, _1>>{});
    auto mine = mma.get_slice(threadIdx.x - 128);
    auto ra = mine.make_fragment_A(mine.partition_A(sa));  // descriptors, not data: (mma, rows, k, slot)
    auto rb = mine.make_fragment_B(mine.partition_B(sb));
    auto sums = partition_fragment_C(mma, Shape<Int<BM>, Int<BN>>{});

    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      find_tile(tile, tiles_m, tiles_n, m0, n0);
      int before = 0;
      mma.accumulate_ = GMMA::ScaleOut::Zero;  // the first product of a tile overwrites the sums
      warpgroup_fence_operand(sums);
      CUTE_NO_UNROLL
      for (int step = 0; step < steps; ++step) {
        wait_barrier(full[slot], phase);
        warpgroup_arrive();
        CUTE_UNROLL
        for (int k = 0; k < size<2>(ra); ++k) {
          gemm(mma, ra(_, _, k, slot), rb(_, _, k, slot), sums);
          mma.accumulate_ = GMMA::ScaleOut::One;
        }
        warpgroup_commit_batch();
        warpgroup_wait<1>();  // the step before is done: its slot may be filled again
        if (step > 0 && lane == 0) arrive_barrier(empty[before]);
        before = slot;
        advance();
      }
      warpgroup_wait<0>();
      warpgroup_fence_operand(sums);
      if (lane == 0) arrive_barrier(empty[before]);

      // Sums 4j .. 4j+3 of a lane are two columns, 8j + 2 (lane % 4), of rows lane / 4 and lane / 4 + 8 of its warp's 16:
      // the registers of 8 x 8 matrices, which stmatrix writes a row of 16 bytes at a time, at the address of one lane each.
      const int row = thread / 32 * 16 + lane % 16;
      CUTE_UNROLL
      for (int q = 0; q < BN / 64; ++q) {
        const int piece = consumer * 2 + q % 2;
        if (thread == 0) tma_store_wait<1>();  // the piece's last store has read it
        asm volatile("bar.sync %0, 128;" ::"r"(1 + consumer) : "memory");
        CUTE_UNROLL
        for (int j = q * 32; j < q * 32 + 32; j += 8) {
          auto& to = reinterpret_cast<uint128_t&>(sc(row, (j - q * 32) * 2 + lane / 16 * 8, piece));
          SM90_U32x4_STSM_N::copy(round_pair(sums(j), sums(j + 1), T()), round_pair(sums(j + 2), sums(j + 3), T()),
                                  round_pair(sums(j + 4), sums(j + 5), T()), round_pair(sums(j + 6), sums(j + 7), T()), to);
        }
        tma_store_fence();  // what threads wrote, TMA may read
        asm volatile("bar.sync %0, 128;" ::"r"(1 + consumer) : "memory");
        if (thread == 0) {
          SM90_TMA_STORE_2D::copy(&c_map, &sc(0, 0, piece), n0 + q * 64, m0 + consumer * 64);
          tma_store_arrive();
        }
      }
    }
    if (thread == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

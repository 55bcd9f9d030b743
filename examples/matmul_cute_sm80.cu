// c = a @ b with CuTe on any GPU since Ampere: the algorithm of matmul_mma.cu, written as layouts and tiled operations.
//
// CuTe names three things that plain CUDA leaves in index arithmetic: a layout (how coordinates become offsets, swizzles
// included), a tiled copy (which thread moves which elements with which instruction) and a tiled mma (which warp computes
// which blocks). Partitioning a tensor by one of them gives every thread its part; the loops then only name those parts.
// CuTe thinks of both operands as (rows, k): b, stored [K, N], is the matrix (N, K) whose first coordinate is contiguous.
//
//! op      matmul(a, b) -> c
//! need    a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0]
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     c: a.dtype[M, N]
//! need    device.cc >= 80 and a.dtype in [f16, bf16] and b.dtype == a.dtype
//! need    K % 8 == 0 and N % 8 == 0                       # rows start on 16 bytes, the width of one copy
//! need    max(M, max(N, K)) <= 2000000000                 # coordinates, rounded up to a tile, fit an int
//! tune    STAGES = 3 | 2 | 4
//! const   BM = 128, BN = 128, BK = 64
//! let     smem = STAGES * (BM + BN) * BK * 2
//! need    smem <= device.smem_block
//! launch  matmul_cute<a.dtype><<<dim3(ceil_div(M, BM), ceil_div(N, BN)), 128, smem>>>(a, b, c, M, N, K)
#include <cute/tensor.hpp>
using namespace cute;

// The mma instruction of an element type; CuTe's own names for the types have the same bits as CUDA's.
template <class T> struct Instruction;
template <> struct Instruction<__half> { using Type = half_t; using Mma = SM80_16x8x16_F32F16F16F32_TN; };
template <> struct Instruction<__nv_bfloat16> { using Type = bfloat16_t; using Mma = SM80_16x8x16_F32BF16BF16F32_TN; };

__device__ __forceinline__ uint32_t round_pair(float low, float high, __half) {
  uint32_t r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}
__device__ __forceinline__ uint32_t round_pair(float low, float high, __nv_bfloat16) {
  uint32_t r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}

template <class CudaType>
__global__ void __launch_bounds__(128) matmul_cute(const CudaType* a, const CudaType* b, CudaType* c, int M, int N, int K) {
  using T = typename Instruction<CudaType>::Type;
  extern __shared__ __align__(1024) char shared[];
  const int thread = threadIdx.x;

  // Global memory: the whole matrices, and this block's tiles of them. The last mode of ga and gb counts steps along K.
  auto ma = make_tensor(make_gmem_ptr(reinterpret_cast<const T*>(a)), make_shape(M, K), make_stride(K, _1{}));
  auto mb = make_tensor(make_gmem_ptr(reinterpret_cast<const T*>(b)), make_shape(N, K), make_stride(_1{}, N));
  auto mc = make_tensor(make_gmem_ptr(reinterpret_cast<T*>(c)), make_shape(M, N), make_stride(N, _1{}));
  auto ga = local_tile(ma, Shape<Int<BM>, Int<BK>>{}, make_coord(blockIdx.x, _));
  auto gb = local_tile(mb, Shape<Int<BN>, Int<BK>>{}, make_coord(blockIdx.y, _));
  auto gc = local_tile(mc, Shape<Int<BM>, Int<BN>>{}, make_coord(blockIdx.x, blockIdx.y));

  // Shared memory: STAGES slots. The swizzled 8 x 64 atoms keep eight rows of 16-byte chunks in eight different bank groups.
  using AtomA = decltype(composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, _64>, Stride<_64, _1>>{}));
  using AtomB = decltype(composition(Swizzle<3, 3, 3>{}, Layout<Shape<_64, _8>, Stride<_1, _64>>{}));
  auto layout_a = tile_to_shape(AtomA{}, Shape<Int<BM>, Int<BK>, Int<STAGES>>{});
  auto layout_b = tile_to_shape(AtomB{}, Shape<Int<BN>, Int<BK>, Int<STAGES>>{});
  auto sa = make_tensor(make_smem_ptr(reinterpret_cast<T*>(shared)), layout_a);
  auto sb = make_tensor(make_smem_ptr(reinterpret_cast<T*>(shared)) + cosize(layout_a), layout_b);

  // Copies from global to shared memory: 128 threads, each 8 contiguous elements by one cp.async that can write zeros.
  using CopyAtom = Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>, T>;
  auto copy_a = make_tiled_copy(CopyAtom{}, Layout<Shape<_16, _8>, Stride<_8, _1>>{}, Layout<Shape<_1, _8>>{}).get_slice(thread);
  auto copy_b = make_tiled_copy(CopyAtom{}, Layout<Shape<_8, _16>, Stride<_1, _8>>{}, Layout<Shape<_8, _1>>{}).get_slice(thread);
  auto from_a = copy_a.partition_S(ga);  // (element, rows, k, step)
  auto from_b = copy_b.partition_S(gb);
  auto to_a = copy_a.partition_D(sa);    // (element, rows, k, slot)
  auto to_b = copy_b.partition_D(sb);
  // The same partition of the coordinates says which element each copy starts at: the predicates of the tails.
  auto at_a = copy_a.partition_S(make_identity_tensor(Shape<Int<BM>, Int<BK>>{}));
  auto at_b = copy_b.partition_S(make_identity_tensor(Shape<Int<BN>, Int<BK>>{}));
  const int rows_a = M - blockIdx.x * BM, rows_b = N - blockIdx.y * BN;

  const int steps = (K + BK - 1) / BK;
  auto copy_step = [&](int step) {
    if (step < steps) {
      const int slot = step % STAGES, k_left = K - step * BK;
      CUTE_UNROLL
      for (int i = 0; i < size<1>(from_a); ++i)
        copy(CopyAtom{}.with(get<0>(at_a(0, i, 0)) < rows_a && get<1>(at_a(0, i, 0)) < k_left), from_a(_, i, 0, step), to_a(_, i, 0, slot));
      CUTE_UNROLL
      for (int i = 0; i < size<1>(from_b); ++i)
        CUTE_UNROLL
        for (int k = 0; k < size<2>(from_b); ++k)
          copy(CopyAtom{}.with(get<0>(at_b(0, i, k)) < rows_b && get<1>(at_b(0, i, k)) < k_left), from_b(_, i, k, step), to_b(_, i, k, slot));
    }
    cp_async_fence();  // even when empty, so that the count of pending groups stays in step with the loop
  };

  // 2 x 2 warps: warp (m, n) computes the 16 x 8 blocks at rows 16 m + 32 i and columns 8 n + 16 j.
  auto mma = make_tiled_mma(MMA_Atom<typename Instruction<CudaType>::Mma>{}, Layout<Shape<_2, _2, _1>>{});
  auto mine = mma.get_slice(thread);
  auto ra = mine.partition_fragment_A(sa(_, _, 0));  // operands in registers: (element, i, k)
  auto rb = mine.partition_fragment_B(sb(_, _, 0));  // (element, j, k)
  auto sums = partition_fragment_C(mma, Shape<Int<BM>, Int<BN>>{});
  clear(sums);

  // From shared memory to those registers: ldmatrix, which takes one 16-byte chunk per lane and fills four registers; for
  // b its transposing form. Seen as chunks, the swizzled tensors give each lane the address of its chunk.
  auto chunks_a = recast<uint128_t>(sa);  // (row, k / 8, slot)
  auto chunks_b = recast<uint128_t>(sb);  // (column / 8, k, slot)
  auto words_a = recast<uint32_t>(ra);
  auto words_b = recast<uint32_t>(rb);
  const int lane = thread % 32, warp_m = thread / 32 % 2, warp_n = thread / 64;
  auto load_operands = [&](int slot, int k) {
    CUTE_UNROLL
    for (int i = 0; i < size<1>(ra); ++i)
      SM75_U32x4_LDSM_N::copy(chunks_a(warp_m * 16 + i * 32 + lane % 16, k * 2 + lane / 16, slot),
                              words_a(0, i, k), words_a(1, i, k), words_a(2, i, k), words_a(3, i, k));
    CUTE_UNROLL
    for (int j = 0; j < size<1>(rb); j += 2)
      SM75_U16x8_LDSM_T::copy(chunks_b(warp_n + (j + lane / 16) * 2, k * 16 + lane % 16, slot),
                              words_b(0, j, k), words_b(1, j, k), words_b(0, j + 1, k), words_b(1, j + 1, k));
  };

  CUTE_UNROLL
  for (int step = 0; step < STAGES - 1; ++step) copy_step(step);
  CUTE_NO_UNROLL
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();  // this step has arrived for everyone, and everyone has read the slot that is filled next
    copy_step(step + STAGES - 1);
    const int slot = step % STAGES;
    CUTE_UNROLL
    for (int k = 0; k < size<2>(ra); ++k) {
      load_operands(slot, k);
      gemm(mma, ra(_, _, k), rb(_, _, k), sums);
    }
  }

  // Pairs of neighbouring columns are rounded and stored as one word.
  auto to_c = recast<uint32_t>(mine.partition_C(gc));
  auto at_c = mine.partition_C(make_identity_tensor(Shape<Int<BM>, Int<BN>>{}));
  CUTE_UNROLL
  for (int i = 0; i < size(to_c); ++i)
    if (get<0>(at_c(2 * i)) < rows_a && get<1>(at_c(2 * i)) < rows_b) to_c(i) = round_pair(sums(2 * i), sums(2 * i + 1), CudaType());
}

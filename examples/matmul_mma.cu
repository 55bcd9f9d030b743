// c = a @ b on the tensor cores of any GPU since Ampere, in plain CUDA: cp.async, ldmatrix and mma.sync.
//
// A block computes a BM x BN tile of c. It walks along K in steps of BK; STAGES steps are in flight at once, each in its
// own slot of shared memory, so that the copies of later steps run under the arithmetic of the present one. A warp owns
// a WARP_M x WARP_N part of the tile, kept as f32 in registers and computed as a grid of 16 x 8 mma instructions.
//
//! op      matmul(a, b) -> c
//! need    a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0]
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     c: a.dtype[M, N]
//! need    device.cc >= 80 and a.dtype in [f16, bf16] and b.dtype == a.dtype
//! need    K % 8 == 0 and N % 8 == 0                       # rows start on 16 bytes, the width of one copy
//! need    max(M, max(N, K)) <= 2000000000                 # coordinates, rounded up to a tile, fit an int
//! const   T = a.dtype
//! tune    BM = 128 | 64
//! tune    BN = 128 | 256 | 64
//! tune    BK = 32 | 64
//! tune    STAGES = 4 | 3 | 2
//! tune    WARP_N = 64 | 32
//! const   WARP_M = 64
//! let     smem = max(STAGES * (BM + BN) * BK * 2, BM * BN * 2)
//! need    smem <= device.smem_block
//! let     threads = BM / WARP_M * (BN / WARP_N) * 32
//! launch  matmul_mma<<<ceil_div(M, BM) * ceil_div(N, BN), threads, smem>>>(a, b, c, M, N, K)
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARPS_N = BN / WARP_N, THREADS = BM / WARP_M * WARPS_N * 32;
constexpr int A_BYTES = BM * BK * 2, B_BYTES = BK * BN * 2, SLOT_BYTES = A_BYTES + B_BYTES;
constexpr int BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 8, STEPS_K = BK / 16;  // mma instructions of a warp along m, n, k
constexpr int TILE_GROUP = 8;  // rows of tiles walked together, so that the blocks in flight share their operands in L2
static_assert(STEPS_K % 2 == 0, "fragments alternate between two sets of registers");

// Shared tiles are rows of 16-byte chunks. ldmatrix reads the same chunk of eight rows at once; stored plainly, those
// would lie in the same banks. Exclusive-or with the row number spreads them over all 32 banks.
template <int CHUNKS> __device__ __forceinline__ int chunk_offset(int row, int chunk) {
  static_assert(CHUNKS == 4 || CHUNKS % 8 == 0, "a row is 64 bytes or a multiple of 128");
  const int spread = CHUNKS == 4 ? (row >> 1) & 3 : row & 7;
  return (row * CHUNKS + (chunk ^ spread)) * 16;
}

// One 16-byte copy from global to shared memory; zeros where `inside` is false (nothing is read then).
__device__ __forceinline__ void copy_async(uint32_t to, const T* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// The tile of ROWS rows and CHUNKS * 8 columns at (row0, column0) of a rows x columns matrix.
template <int ROWS, int CHUNKS>
__device__ __forceinline__ void copy_tile(uint32_t to, const T* from, int row0, int column0, int rows, int columns) {
  static_assert(ROWS * CHUNKS % THREADS == 0, "every thread copies the same number of chunks");
#pragma unroll
  for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
    const int row = row0 + i / CHUNKS, column = column0 + i % CHUNKS * 8;
    const bool inside = row < rows && column < columns;
    copy_async(to + chunk_offset<CHUNKS>(i / CHUNKS, i % CHUNKS), inside ? from + (size_t)row * columns + column : from, inside);
  }
}

// Four 8 x 8 matrices, one per register; lanes 8i .. 8i+7 give the row addresses of matrix i. Lane l then holds the
// elements 2(l % 4) and 2(l % 4) + 1 of row l / 4 (of column l / 4, two rows, with the transposing form).
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3, uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(at) : "memory");
}

// d (16 x 8, f32) += a (16 x 16) * b (16 x 8); the last argument only selects the element type.
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], __half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], __nv_bfloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void store_pair(char* to, float x, float y, __half) { *(__half2*)to = __floats2half2_rn(x, y); }
__device__ __forceinline__ void store_pair(char* to, float x, float y, __nv_bfloat16) { *(__nv_bfloat162*)to = __floats2bfloat162_rn(x, y); }

__global__ void __launch_bounds__(THREADS) matmul_mma(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, int M, int N, int K) {
  extern __shared__ __align__(128) char shared[];
  const uint32_t slots = (uint32_t)__cvta_generic_to_shared(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;

  // Which tile: groups of TILE_GROUP tile rows, column by column inside a group.
  const int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
  const int group = blockIdx.x / (TILE_GROUP * tiles_n), in_group = blockIdx.x % (TILE_GROUP * tiles_n);
  const int group_rows = min(TILE_GROUP, tiles_m - group * TILE_GROUP);
  const int m0 = (group * TILE_GROUP + in_group % group_rows) * BM, n0 = in_group / group_rows * BN;

  const int steps = (K + BK - 1) / BK;
  auto copy_step = [&](int step) {  // always commits, so that the count of groups stays in step with the loop
    if (step < steps) {
      const uint32_t slot = slots + step % STAGES * SLOT_BYTES;
      copy_tile<BM, BK / 8>(slot, a, m0, step * BK, M, K);
      copy_tile<BK, BN / 8>(slot + A_BYTES, b, step * BK, n0, K, N);
    }
    commit();
  };

  uint32_t a_part[2][BLOCKS_M][4], b_part[2][BLOCKS_N][2];
  auto load_parts = [&](int set, int step, int k) {  // operands of the k-th mma of a step, from its slot to registers
    const uint32_t slot = slots + step % STAGES * SLOT_BYTES;
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i)
      load_matrices(a_part[set][i], slot + chunk_offset<BK / 8>(warp_m + i * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
    for (int j = 0; j < BLOCKS_N; j += 2)  // b lies as [k][n]; mma wants its columns: the transposing load
      load_matrices_transposed(b_part[set][j][0], b_part[set][j][1], b_part[set][j + 1][0], b_part[set][j + 1][1],
                               slot + A_BYTES + chunk_offset<BN / 8>(k * 16 + lane % 16, (warp_n + j * 8) / 8 + lane / 16));
  };

  float sum[BLOCKS_M][BLOCKS_N][4] = {};
#pragma unroll
  for (int step = 0; step < STAGES - 1; ++step) copy_step(step);
  wait<STAGES - 2>();
  __syncthreads();
  if (steps > 0) load_parts(0, 0, 0);

  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int k = 0; k < STEPS_K; ++k) {
      // Operands of the next mma are fetched while the present one runs; the last of a step fetches from the next slot.
      if (k + 1 < STEPS_K) {
        load_parts((k + 1) % 2, step, k + 1);
      } else if (step + 1 < steps) {
        wait<STAGES - 2>();
        __syncthreads();  // the next slot has arrived for everyone, and everyone has read the present one
        load_parts(0, step + 1, 0);
      }
      if (k == 0) copy_step(step + STAGES - 1);  // into the slot of the step before this one
#pragma unroll
      for (int i = 0; i < BLOCKS_M; ++i)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; ++j) mma(sum[i][j], a_part[k % 2][i], b_part[k % 2][j], T());
    }
  }

  // A lane holds pairs of columns of rows lane / 4 and lane / 4 + 8 of every 16 x 8 block. Through shared memory they
  // become whole 16-byte chunks, stored in full lines.
  __syncthreads();
#pragma unroll
  for (int i = 0; i < BLOCKS_M; ++i)
#pragma unroll
    for (int j = 0; j < BLOCKS_N; ++j) {
      const int row = warp_m + i * 16 + lane / 4, chunk = warp_n / 8 + j;
      store_pair(shared + chunk_offset<BN / 8>(row, chunk) + lane % 4 * 4, sum[i][j][0], sum[i][j][1], T());
      store_pair(shared + chunk_offset<BN / 8>(row + 8, chunk) + lane % 4 * 4, sum[i][j][2], sum[i][j][3], T());
    }
  __syncthreads();
#pragma unroll 4
  for (int i = threadIdx.x; i < BM * BN / 8; i += THREADS) {
    const int row = i / (BN / 8), chunk = i % (BN / 8);
    if (m0 + row < M && n0 + chunk * 8 < N)
      *(uint4*)(c + (size_t)(m0 + row) * N + n0 + chunk * 8) = *(const uint4*)(shared + chunk_offset<BN / 8>(row, chunk));
  }
}

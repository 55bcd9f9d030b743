// c = a @ b on the tensor cores of any GPU since Ampere, in plain CUDA: cp.async, ldmatrix and mma.sync.
//
// A block computes a BM x BN tile of c. It walks along K in steps of BK; STAGES steps are in flight at once, each in its
// own slot of shared memory, so that the copies of later steps run under the arithmetic of the present one. The warps
// share the tile as a WARPS_M x WARPS_N grid; each keeps its part in registers, as f32, a grid of 16 x 8 mma blocks.
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
//! tune    BN = 256 | 128 | 64
//! let     tiles = ceil_div(M, BM) * ceil_div(N, BN)
//! need    tiles >= device.sms or (BM == 64 and BN == 64)      # smaller tiles where large ones leave much of the GPU idle
//! tune    BK = 64 | 32
//! tune    STAGES = 4 | 3 | 2
//! let     smem = max(STAGES * (BM + BN) * BK * 2, BM * BN * 2)
//! need    smem <= device.smem_block
//! const   WARPS_M = 2, WARPS_N = BN / 64 if BN > 128 else 2
//! launch  matmul_mma<<<tiles, WARPS_M * WARPS_N * 32, smem>>>(a, b, c, M, N, K)
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = WARPS_M * WARPS_N * 32, WARP_M = BM / WARPS_M, WARP_N = BN / WARPS_N;
constexpr int A_BYTES = BM * BK * 2, B_BYTES = BK * BN * 2, SLOT_BYTES = A_BYTES + B_BYTES;
constexpr int BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 8, STEPS_K = BK / 16;  // mma instructions of a warp along m, n, k
constexpr int TILE_GROUP = 8;  // rows of tiles walked together, so that the blocks in flight share their operands in L2
static_assert(STEPS_K % 2 == 0, "fragments alternate between two sets of registers");

// Shared tiles are rows of 16-byte chunks. ldmatrix reads the same chunk of eight rows at once; stored plainly, those
// would lie in the same banks. Exclusive-or with the row number spreads them over all 32 banks. The pattern repeats every
// 8 rows, and moving by an aligned power of two of chunks is an exclusive-or of the offset: both are used below to
// compute a thread's offset once and reach the others with constants.
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

// A tile of ROWS rows and CHUNKS * 8 columns, copied by the whole block: a thread keeps its chunk and strides over rows.
template <int ROWS, int CHUNKS> struct TileCopy {
  static constexpr int PASS_ROWS = THREADS / CHUNKS, PASSES = ROWS / PASS_ROWS;
  static_assert(THREADS % CHUNKS == 0 && PASS_ROWS % 8 == 0 && ROWS % PASS_ROWS == 0, "a pass covers whole rows, eight at a time");
  const T* from;         // this thread's first chunk
  int rows, columns;     // what is left of the matrix from there on
  long long pass_pitch;  // elements from one pass to the next
  int offset;            // in shared memory

  __device__ __forceinline__ TileCopy(const T* matrix, int row0, int column0, int matrix_rows, int matrix_columns) {
    const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    from = matrix + (long long)(row0 + row) * matrix_columns + column0 + chunk * 8;
    rows = matrix_rows - row0 - row;
    columns = matrix_columns - column0 - chunk * 8;
    pass_pitch = (long long)PASS_ROWS * matrix_columns;
    offset = chunk_offset<CHUNKS>(row, chunk);
  }
  __device__ __forceinline__ void start(uint32_t tile) const {
#pragma unroll
    for (int p = 0; p < PASSES; ++p)
      copy_async(tile + offset + p * PASS_ROWS * CHUNKS * 16, from + p * pass_pitch, columns > 0 && p * PASS_ROWS < rows);
  }
};

// Four 8 x 8 matrices, one per register; lanes 8i .. 8i+7 give the row addresses of matrix i. Lane l then holds the
// elements 2(l % 4) and 2(l % 4) + 1 of row l / 4; in the transposing form, of column l / 4.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

// d (16 x 8, f32) += a (16 x 16) * b (16 x 8); the last argument only selects the element type.
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __nv_bfloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
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

  // Copies, STAGES - 1 steps ahead of the arithmetic.
  const int steps = (K + BK - 1) / BK;
  TileCopy<BM, BK / 8> a_copy(a, m0, 0, M, K);
  TileCopy<BK, BN / 8> b_copy(b, 0, n0, K, N);
  int copied = 0;
  uint32_t copy_slot = slots;
  auto copy_step = [&] {
    if (copied < steps) {
      a_copy.start(copy_slot);
      b_copy.start(copy_slot + A_BYTES);
      a_copy.from += BK, a_copy.columns -= BK;
      b_copy.from += (long long)BK * N, b_copy.rows -= BK;
      copy_slot = ++copied % STAGES ? copy_slot + SLOT_BYTES : slots;
    }
    commit();  // even when empty, so that the count of pending groups stays in step with the loop
  };

  // Operands of the k-th mma of a step, from its slot to registers. The four matrices of a are its quarters, rows first;
  // those of b are two pairs (k 0-7 and 8-15) for 16 columns. b lies as [k][n], mma wants columns: the transposing load.
  uint32_t a_part[2][BLOCKS_M][4], b_part[2][BLOCKS_N / 2][4];
  const int a_offset = chunk_offset<BK / 8>(warp_m + lane % 16, lane / 16);
  const int b_offset = A_BYTES + chunk_offset<BN / 8>(lane % 16, warp_n / 8 + lane / 16);
  auto load_parts = [&](int set, uint32_t slot, int k) {
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i) load_matrices(a_part[set][i], slot + (a_offset ^ k * 32) + i * 16 * BK * 2);
#pragma unroll
    for (int j = 0; j < BLOCKS_N / 2; ++j) load_matrices_transposed(b_part[set][j], slot + (b_offset ^ j * 32) + k * 16 * BN * 2);
  };

  float sum[BLOCKS_M][BLOCKS_N][4] = {};
#pragma unroll 1
  for (int stage = 0; stage < STAGES - 1; ++stage) copy_step();
  wait<STAGES - 2>();
  __syncthreads();
  uint32_t slot = slots;
  if (steps > 0) load_parts(0, slot, 0);

#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const uint32_t next_slot = (step + 1) % STAGES ? slot + SLOT_BYTES : slots;
#pragma unroll
    for (int k = 0; k < STEPS_K; ++k) {
      // Operands of the next mma are fetched while the present one runs; the last of a step fetches from the next slot.
      if (k + 1 < STEPS_K) {
        load_parts((k + 1) % 2, slot, k + 1);
      } else if (step + 1 < steps) {
        wait<STAGES - 2>();
        __syncthreads();  // the next slot has arrived for everyone, and everyone has read the present one
        load_parts(0, next_slot, 0);
      }
      if (k == 0) copy_step();  // into the slot of the step before this one
#pragma unroll
      for (int i = 0; i < BLOCKS_M; ++i)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; ++j)
          mma(sum[i][j], a_part[k % 2][i], b_part[k % 2][j / 2][j % 2 * 2], b_part[k % 2][j / 2][j % 2 * 2 + 1], T());
    }
    slot = next_slot;
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

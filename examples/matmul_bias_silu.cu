// y = silu(x @ w.T + bias), a linear layer and its activation in one kernel; w is [out, in] as torch.nn.Linear keeps it.
//
// The matrix product is the one of matmul_mma.cu (cp.async, ldmatrix, mma.sync; read that first). Two things differ: both
// operands are contiguous along K, so both are loaded by the plain ldmatrix; and bias and activation are applied to the
// f32 sums in registers, before their only rounding and their only trip to memory.
//
//! op      matmul_bias_silu(x, w, bias?) -> y
//! need    x.ndim == 2 and w.ndim == 2 and x.shape[1] == w.shape[1]
//! let     M = x.shape[0], K = x.shape[1], N = w.shape[0]
//! out     y: x.dtype[M, N]
//! need    device.cc >= 80 and x.dtype in [f16, bf16] and w.dtype == x.dtype
//! need    not has(bias) or (bias.dtype == x.dtype and bias.ndim == 1 and bias.numel == N)
//! need    K % 8 == 0 and N % 8 == 0                       # rows start on 16 bytes, the width of one copy
//! need    max(M, max(N, K)) <= 2000000000                 # coordinates, rounded up to a tile, fit an int
//! const   T = x.dtype, HAS_BIAS = has(bias)
//! tune    BM = 128 | 64
//! tune    BN = 256 | 128 | 64
//! let     tiles = ceil_div(M, BM) * ceil_div(N, BN)
//! need    tiles >= device.sms or (BM == 64 and BN == 64)      # smaller tiles where large ones leave much of the GPU idle
//! tune    BK = 64 | 32
//! tune    STAGES = 4 | 3 | 2
//! let     smem = max(STAGES * (BM + BN) * BK * 2, BM * BN * 2)
//! need    smem <= device.smem_block
//! const   WARPS_M = 2, WARPS_N = BN / 64 if BN > 128 else 2
//! launch  matmul_bias_silu<<<tiles, WARPS_M * WARPS_N * 32, smem>>>(x, w, bias, y, M, N, K)
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = WARPS_M * WARPS_N * 32, WARP_M = BM / WARPS_M, WARP_N = BN / WARPS_N;
constexpr int X_BYTES = BM * BK * 2, W_BYTES = BN * BK * 2, SLOT_BYTES = X_BYTES + W_BYTES;
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
// elements 2(l % 4) and 2(l % 4) + 1 of row l / 4.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
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

__device__ __forceinline__ float2 load_pair(const __half* from) { return __half22float2(*(const __half2*)from); }
__device__ __forceinline__ float2 load_pair(const __nv_bfloat16* from) { return __bfloat1622float2(*(const __nv_bfloat162*)from); }
__device__ __forceinline__ void store_pair(char* to, float x, float y, __half) { *(__half2*)to = __floats2half2_rn(x, y); }
__device__ __forceinline__ void store_pair(char* to, float x, float y, __nv_bfloat16) { *(__nv_bfloat162*)to = __floats2bfloat162_rn(x, y); }

__device__ __forceinline__ float silu(float v) { return __fdividef(v, 1.f + __expf(-v)); }

__global__ void __launch_bounds__(THREADS) matmul_bias_silu(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias,
                                                            T* __restrict__ y, int M, int N, int K) {
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
  TileCopy<BM, BK / 8> x_copy(x, m0, 0, M, K);
  TileCopy<BN, BK / 8> w_copy(w, n0, 0, N, K);
  int copied = 0;
  uint32_t copy_slot = slots;
  auto copy_step = [&] {
    if (copied < steps) {
      x_copy.start(copy_slot);
      w_copy.start(copy_slot + X_BYTES);
      x_copy.from += BK, x_copy.columns -= BK;
      w_copy.from += BK, w_copy.columns -= BK;
      copy_slot = ++copied % STAGES ? copy_slot + SLOT_BYTES : slots;
    }
    commit();  // even when empty, so that the count of pending groups stays in step with the loop
  };

  // Operands of the k-th mma of a step, from its slot to registers. The four matrices of x are its quarters, rows first;
  // those of w are two pairs (k 0-7 and 8-15) for 16 rows of w, which are columns of y.
  uint32_t x_part[2][BLOCKS_M][4], w_part[2][BLOCKS_N / 2][4];
  const int x_offset = chunk_offset<BK / 8>(warp_m + lane % 16, lane / 16);
  const int w_offset = X_BYTES + chunk_offset<BK / 8>(warp_n + lane / 16 * 8 + lane % 8, lane / 8 % 2);
  auto load_parts = [&](int set, uint32_t slot, int k) {
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i) load_matrices(x_part[set][i], slot + (x_offset ^ k * 32) + i * 16 * BK * 2);
#pragma unroll
    for (int j = 0; j < BLOCKS_N / 2; ++j) load_matrices(w_part[set][j], slot + (w_offset ^ k * 32) + j * 16 * BK * 2);
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
          mma(sum[i][j], x_part[k % 2][i], w_part[k % 2][j / 2][j % 2 * 2], w_part[k % 2][j / 2][j % 2 * 2 + 1], T());
    }
    slot = next_slot;
  }

  // A lane holds pairs of columns of rows lane / 4 and lane / 4 + 8 of every 16 x 8 block. Through shared memory they
  // become whole 16-byte chunks, stored in full lines.
  __syncthreads();
#pragma unroll
  for (int j = 0; j < BLOCKS_N; ++j) {
    const int column = n0 + warp_n + j * 8 + lane % 4 * 2, chunk = warp_n / 8 + j;
    const float2 add = HAS_BIAS && column < N ? load_pair(bias + column) : make_float2(0.f, 0.f);
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i) {
      const int row = warp_m + i * 16 + lane / 4;
      store_pair(shared + chunk_offset<BN / 8>(row, chunk) + lane % 4 * 4, silu(sum[i][j][0] + add.x), silu(sum[i][j][1] + add.y), T());
      store_pair(shared + chunk_offset<BN / 8>(row + 8, chunk) + lane % 4 * 4, silu(sum[i][j][2] + add.x), silu(sum[i][j][3] + add.y), T());
    }
  }
  __syncthreads();
#pragma unroll 4
  for (int i = threadIdx.x; i < BM * BN / 8; i += THREADS) {
    const int row = i / (BN / 8), chunk = i % (BN / 8);
    if (m0 + row < M && n0 + chunk * 8 < N)
      *(uint4*)(y + (size_t)(m0 + row) * N + n0 + chunk * 8) = *(const uint4*)(shared + chunk_offset<BN / 8>(row, chunk));
  }
}

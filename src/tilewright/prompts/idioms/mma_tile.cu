//! op      linear(x, w) -> y
//! need    x.ndim == 2 and w.ndim == 2 and w.shape[1] == x.shape[1]        # w is [N, K]: both operands lie along k
//! let     M = x.shape[0], K = x.shape[1], N = w.shape[0]
//! out     y: x.dtype[M, N]
//! need    device.cc >= 80 and x.dtype in [f16, bf16] and w.dtype == x.dtype
//! const   T = x.dtype, ALIGNED = K % 8 == 0                               # else rows do not start on 16 bytes
//! tune    BM = 128 | 64
//! tune    BN = 128 | 64
//! tune    STAGES = 3 | 4 | 2
//! const   BK = 64, PAIRS = N % 2 == 0
//! let     smem = STAGES * (BM + BN) * BK * 2
//! need    smem <= device.smem_block
//! launch  linear<<<dim3(ceil_div(N, BN), ceil_div(M, BM)), 128, smem>>>(x, w, y, M, N, K)

constexpr int WM = BM / 2, WN = BN / 2, SLOT = (BM + BN) * BK;   // 2 x 2 warps; a slot is the tile of x, then the tile of w

// Where a 16-byte chunk of a tile's row lies: spread so that the 8 rows one ldmatrix reads are in different banks.
__device__ __forceinline__ int chunk_at(int row, int chunk) { return row * BK + (chunk ^ row % 8) * 8; }

// ROWS rows from row0 on, columns k0 .. k0 + BK, zeros beyond the matrix.
template <int ROWS> __device__ __forceinline__ void copy_tile(T* tile, const T* __restrict__ from, int row0, int rows, int k0, int K) {
#pragma unroll
  for (int pass = 0; pass < ROWS / 16; ++pass) {   // a constant count: unrolled, the addresses hoisted
    const int row = pass * 16 + threadIdx.x / 8, chunk = threadIdx.x % 8, k = k0 + chunk * 8;
    const int left = row0 + row < rows ? K - k : 0;
    T* to = tile + chunk_at(row, chunk);
    const T* at = from + (long long)(row0 + row) * K + k;
    if constexpr (ALIGNED) {   // 0 bytes read: 16 zeros are written
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(at), "r"(left > 0 ? 16 : 0) : "memory");
    } else {
      for (int j = 0; j < 8; ++j) to[j] = j < left ? at[j] : T(0.0f);
    }
  }
}

__device__ __forceinline__ void load4(uint32_t (&r)[4], const T* at) {   // lane l gives the address of row l % 8 of 8x8 matrix l / 8
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(at)) : "memory");
}
#define MMA(TYPE) \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half) { MMA("f16"); }
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __nv_bfloat16) { MMA("bf16"); }

__global__ void __launch_bounds__(128) linear(const T* __restrict__ x, const T* __restrict__ w, T* __restrict__ y, int M, int N, int K) {
  extern __shared__ __align__(128) char shared[];
  T* slots = reinterpret_cast<T*>(shared);
  const int lane = threadIdx.x % 32, warp_m = threadIdx.x / 64 * WM, warp_n = threadIdx.x / 32 % 2 * WN;
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN, steps = (K + BK - 1) / BK;
  auto copy_step = [&](int step) {
    if (step < steps) {
      T* slot = slots + step % STAGES * SLOT;
      copy_tile<BM>(slot, x, m0, M, step * BK, K);
      copy_tile<BN>(slot + BM * BK, w, n0, N, step * BK, K);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");   // even when empty: the count of groups stays in step with the loop
  };
  float sum[WM / 16][WN / 8][4] = {};
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) copy_step(s);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();   // this step has arrived for everyone, and everyone has read the slot that is filled next
    copy_step(step + STAGES - 1);
    const T *tile_x = slots + step % STAGES * SLOT, *tile_w = tile_x + BM * BK;
#pragma unroll
    for (int k = 0; k < BK / 16; ++k) {
      uint32_t a[WM / 16][4], b[WN / 16][4];
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) load4(a[i], tile_x + chunk_at(warp_m + i * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
      for (int j = 0; j < WN / 16; ++j) load4(b[j], tile_w + chunk_at(warp_n + j * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
      for (int i = 0; i < WM / 16; ++i)
#pragma unroll
        for (int j = 0; j < WN / 8; ++j) mma(sum[i][j], a[i], b[j / 2][j % 2], b[j / 2][j % 2 + 2], T());
    }
  }
#pragma unroll
  for (int i = 0; i < WM / 16; ++i)
#pragma unroll
    for (int j = 0; j < WN / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; e += 2) {   // the epilogue goes here: bias, activation, residual, on f32 sums
        const int row = m0 + warp_m + i * 16 + lane / 4 + e * 4, column = n0 + warp_n + j * 8 + lane % 4 * 2;
        alignas(4) const T two[2] = {T(sum[i][j][e]), T(sum[i][j][e + 1])};
        T* to = y + (long long)row * N + column;
        if (PAIRS && row < M && column < N) *reinterpret_cast<uint32_t*>(to) = *reinterpret_cast<const uint32_t*>(two);
        if (!PAIRS && row < M && column < N) to[0] = two[0];
        if (!PAIRS && row < M && column + 1 < N) to[1] = two[1];
      }
}

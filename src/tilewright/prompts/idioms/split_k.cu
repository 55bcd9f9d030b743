//! op      linear(x, w) -> y
//! need    x.ndim == 2 and w.ndim == 2 and w.shape[1] == x.shape[1]        # w is [N, K]: both operands lie along k
//! let     M = x.shape[0], K = x.shape[1], N = w.shape[0]
//! out     y: x.dtype[M, N]
//! need    device.cc >= 80 and x.dtype in [f16, bf16] and w.dtype == x.dtype
//! const   T = x.dtype, ALIGNED = K % 8 == 0, PAIRS = N % 2 == 0            # not ALIGNED: rows do not start on 16 bytes
//! tune    BM = 64 | 32
//! tune    BN = 48 | 32 | 64
//! tune    KW = 8 | 4                                                      # warps of a block; each has its share of k
//! let     smem = KW * BM * (BN + 8) * 4
//! need    smem <= device.smem_block
//! launch  linear<<<dim3(ceil_div(N, BN), ceil_div(M, BM)), KW * 32, smem>>>(x, w, y, M, N, K)

constexpr int PITCH = BN + 8;   // of a row of sums in shared memory: the rows of a store are in different banks

// 8 elements along k, zeros beyond the matrix.
__device__ __forceinline__ uint4 load8(const T* __restrict__ at, bool inside, int left) {
  uint4 held = make_uint4(0, 0, 0, 0);
  if constexpr (ALIGNED) {
    if (inside && left > 0) held = *reinterpret_cast<const uint4*>(at);
  } else {
    T* to = reinterpret_cast<T*>(&held);
    for (int j = 0; j < 8; ++j)
      if (inside && j < left) to[j] = at[j];
  }
  return held;
}
#define MMA(TYPE) \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
__device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, __half) { MMA("f16"); }
__device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, __nv_bfloat16) { MMA("bf16"); }

__global__ void __launch_bounds__(KW * 32) linear(const T* __restrict__ x, const T* __restrict__ w, T* __restrict__ y, int M, int N, int K) {
  extern __shared__ __align__(16) float partial[];   // [KW][BM][PITCH]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
  const int row_x = m0 + lane / 4, row_w = n0 + lane / 4;
  uint4 a[2][BM / 8], b[2][BN / 8];
  auto fetch = [&](int slot, int k) {   // a lane has 8 consecutive k of every eighth row: whole sectors, no shared memory
#pragma unroll
    for (int i = 0; i < BM / 8; ++i) a[slot][i] = load8(x + (long long)(row_x + i * 8) * K + k, row_x + i * 8 < M, K - k);
#pragma unroll
    for (int j = 0; j < BN / 8; ++j) b[slot][j] = load8(w + (long long)(row_w + j * 8) * K + k, row_w + j * 8 < N, K - k);
  };
  float sum[BM / 16][BN / 8][4] = {};
  auto multiply = [&](int slot) {   // which k an mma calls its first does not matter, if it is the same in both operands
#pragma unroll
    for (int i = 0; i < BM / 16; ++i)
#pragma unroll
      for (int j = 0; j < BN / 8; ++j) {
        const uint4 &low = a[slot][2 * i], &high = a[slot][2 * i + 1], &right = b[slot][j];
        mma(sum[i][j], low.x, high.x, low.y, high.y, right.x, right.y, T());
        mma(sum[i][j], low.z, high.z, low.w, high.w, right.z, right.w, T());
      }
  };
  const int first = warp * 32 + lane % 4 * 8, steps = (K + KW * 32 - 1) / (KW * 32);
  fetch(0, first);
#pragma unroll 1
  for (int step = 0; step < steps; step += 2) {   // two at a time, so that the slots are registers
    fetch(1, first + (step + 1) * KW * 32);
    multiply(0);
    fetch(0, first + (step + 2) * KW * 32);
    multiply(1);
  }
#pragma unroll
  for (int i = 0; i < BM / 16; ++i)
#pragma unroll
    for (int j = 0; j < BN / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; e += 2)
        *reinterpret_cast<float2*>(partial + (warp * BM + i * 16 + lane / 4 + e * 4) * PITCH + j * 8 + lane % 4 * 2) =
            make_float2(sum[i][j][e], sum[i][j][e + 1]);
  __syncthreads();
  for (int place = threadIdx.x; place < BM * BN / 2; place += KW * 32) {
    const int r = place / (BN / 2), c = place % (BN / 2) * 2, row = m0 + r, column = n0 + c;
    if (row >= M || column >= N) continue;
    float2 total = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int share = 0; share < KW; ++share) {   // always in this order
      const float2 part = *reinterpret_cast<const float2*>(partial + (share * BM + r) * PITCH + c);
      total.x += part.x, total.y += part.y;
    }
    alignas(4) const T two[2] = {T(total.x), T(total.y)};   // the epilogue goes before this: bias, activation, on f32 sums
    T* to = y + (long long)row * N + column;
    if (PAIRS) *reinterpret_cast<uint32_t*>(to) = *reinterpret_cast<const uint32_t*>(two);
    if (!PAIRS) to[0] = two[0];
    if (!PAIRS && column + 1 < N) to[1] = two[1];
  }
}

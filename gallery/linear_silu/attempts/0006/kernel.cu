//! op      linear_silu(x, weight, bias) -> y
//! out     y: bf16[x.shape[0], weight.shape[0]]
//! need    x.ndim == 2 and weight.ndim == 2 and weight.shape[1] == x.shape[1] and bias.shape == [weight.shape[0]]
//! need    device.cc >= 80 and x.dtype == bf16 and weight.dtype == bf16 and bias.dtype == bf16
//! let     M = x.shape[0], K = x.shape[1], N = weight.shape[0]
//! tune    KW = 8 | 4                                                      # warps, each with its part of k
//! tune    DEPTH = 2 | 1 | 3 | 4                                           # fragments of 32 k in flight
//! const   BM = 64, BN = 48, KDIM = K, ALIGNED = K % 8 == 0, QUADS = N % 4 == 0
//! const   EXACT = M % BM == 0 and N % BN == 0 and K % (32 * KW) == 0
//! let     smem = KW * BM * BN * 4
//! need    smem <= device.smem_block
//! launch  linear_silu<<<dim3(ceil_div(N, BN), ceil_div(M, BM)), KW * 32, smem>>>(x, weight, bias, y, M, N)
#include <cuda_bf16.h>

typedef __nv_bfloat16 T;
constexpr int THREADS = KW * 32, SWEEP = THREADS / 4;   // rows that the block adds up at a time
constexpr int ITERS = (KDIM + 32 * KW - 1) / (32 * KW), OUTER = (ITERS + DEPTH - 1) / DEPTH;
constexpr int UNROLL = OUTER >= 1 && OUTER <= 8 ? OUTER : 1;
static_assert(BN % 32 == 16 && BM % SWEEP == 0, "neighbouring rows of sums lie in different banks");

// 8 elements along k, zeros beyond the matrix; `left` elements of the row remain.
__device__ __forceinline__ uint4 load8(const T* __restrict__ at, bool row_inside, int left) {
  if constexpr (EXACT) return *reinterpret_cast<const uint4*>(at);
  uint4 v = make_uint4(0, 0, 0, 0);
  if constexpr (ALIGNED) {
    if (row_inside && left > 0) v = *reinterpret_cast<const uint4*>(at);
  } else if (row_inside) {
    const unsigned short* one = reinterpret_cast<const unsigned short*>(at);
    if (left > 0) v.x = one[0];
    if (left > 1) v.x |= (uint32_t)one[1] << 16;
    if (left > 2) v.y = one[2];
    if (left > 3) v.y |= (uint32_t)one[3] << 16;
    if (left > 4) v.z = one[4];
    if (left > 5) v.z |= (uint32_t)one[5] << 16;
    if (left > 6) v.w = one[6];
    if (left > 7) v.w |= (uint32_t)one[7] << 16;
  }
  return v;
}

__device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float silu(float v) {
  float e, r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(v * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
  return v * r;
}

__global__ void __launch_bounds__(THREADS, 1) linear_silu(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias,
    T* __restrict__ y, int M, int N) {
  extern __shared__ __align__(128) float partial[];
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
  // Column p of mma tile j is column 16 (j / 2) + 4 (p / 2) + p % 2 + 2 (j % 2): a thread's sums of two tiles are 4 neighbours.
  const int row_x = m0 + lane / 4, row_w = n0 + lane / 8 * 4 + lane / 4 % 2, k0 = group * 32 + lane % 4 * 8;
  const T* from_x = x + (long long)row_x * KDIM + k0;
  const T* from_w = w + (long long)row_w * KDIM + k0;
  const int out_row = threadIdx.x / 4, out_column = threadIdx.x % 4 * 4;

  uint2 add[BN / 16];   // the bias of this thread's results
  if constexpr (QUADS) {
#pragma unroll
    for (int p = 0; p < BN / 16; ++p)
      if (EXACT || n0 + out_column + p * 16 < N) add[p] = *reinterpret_cast<const uint2*>(bias + n0 + out_column + p * 16);
  }

  // A lane's 8 consecutive k serve two mmas, 4 each: the same permutation of k in both operands.
  uint4 a[DEPTH][BM / 8], b[DEPTH][BN / 8];
  auto fetch_a = [&](int slot, int step, int i) {
    const int k = step * KW * 32, left = int(KDIM) - k0 - k;
    if (step < ITERS) a[slot][i] = load8(from_x + (long long)i * 8 * KDIM + k, row_x + i * 8 < M, left);
  };
  auto fetch_b = [&](int slot, int step, int j) {
    const int k = step * KW * 32, left = int(KDIM) - k0 - k, below = j / 2 * 16 + j % 2 * 2;
    if (step < ITERS) b[slot][j] = load8(from_w + (long long)below * KDIM + k, row_w + below < N, left);
  };
  float sum[BM / 16][BN / 8][4] = {};
#pragma unroll
  for (int d = 0; d < DEPTH; ++d) {
#pragma unroll
    for (int j = 0; j < BN / 8; ++j) fetch_b(d, d, j);
#pragma unroll
    for (int i = 0; i < BM / 8; ++i) fetch_a(d, d, i);
  }
#pragma unroll UNROLL
  for (int base = 0; base < ITERS; base += DEPTH) {
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      if (base + d < ITERS) {
#pragma unroll
        for (int i = 0; i < BM / 16; ++i) {
#pragma unroll
          for (int j = 0; j < BN / 8; ++j)
            mma(sum[i][j], a[d][2 * i].x, a[d][2 * i + 1].x, a[d][2 * i].y, a[d][2 * i + 1].y, b[d][j].x, b[d][j].y);
#pragma unroll
          for (int j = 0; j < BN / 8; ++j) {
            mma(sum[i][j], a[d][2 * i].z, a[d][2 * i + 1].z, a[d][2 * i].w, a[d][2 * i + 1].w, b[d][j].z, b[d][j].w);
            if (i == BM / 16 - 1) fetch_b(d, base + d + DEPTH, j);   // used for the last time just now
          }
          fetch_a(d, base + d + DEPTH, 2 * i);
          fetch_a(d, base + d + DEPTH, 2 * i + 1);
        }
      }
    }
  }

  float* mine = partial + (group * BM + lane / 4) * BN + lane % 4 * 4;
#pragma unroll
  for (int i = 0; i < BM / 16; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < BN / 8; j += 2)
        *reinterpret_cast<float4*>(mine + (i * 16 + h * 8) * BN + j * 8) =
            make_float4(sum[i][j][2 * h], sum[i][j][2 * h + 1], sum[i][j + 1][2 * h], sum[i][j + 1][2 * h + 1]);
  __syncthreads();
  const float* parts = partial + out_row * BN + out_column;
#pragma unroll
  for (int s = 0; s < BM; s += SWEEP)
#pragma unroll
    for (int p = 0; p < BN / 16; ++p) {
      const int row = m0 + out_row + s, column = n0 + out_column + p * 16;
      if (!EXACT && (row >= M || column >= N)) continue;
      float4 v = *reinterpret_cast<const float4*>(parts + s * BN + p * 16);
#pragma unroll
      for (int g = 1; g < KW; ++g) {   // in this order, always
        const float4 more = *reinterpret_cast<const float4*>(parts + (g * BM + s) * BN + p * 16);
        v.x += more.x; v.y += more.y; v.z += more.z; v.w += more.w;
      }
      T* to = y + (long long)row * N + column;
      if constexpr (QUADS) {
        const __nv_bfloat162 low = *reinterpret_cast<const __nv_bfloat162*>(&add[p].x);
        const __nv_bfloat162 high = *reinterpret_cast<const __nv_bfloat162*>(&add[p].y);
        const __nv_bfloat162 first = __floats2bfloat162_rn(silu(v.x + __low2float(low)), silu(v.y + __high2float(low)));
        const __nv_bfloat162 second = __floats2bfloat162_rn(silu(v.z + __low2float(high)), silu(v.w + __high2float(high)));
        *reinterpret_cast<uint2*>(to) = make_uint2(*reinterpret_cast<const uint32_t*>(&first), *reinterpret_cast<const uint32_t*>(&second));
      } else {
        const float each[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (column + i < N) to[i] = T(silu(each[i] + __bfloat162float(bias[column + i])));
      }
    }
}

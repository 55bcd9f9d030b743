//! op      linear_silu(x, weight, bias) -> y
//! out     y: bf16[x.shape[0], weight.shape[0]]
//! need    x.ndim == 2 and weight.ndim == 2 and weight.shape[1] == x.shape[1] and bias.shape == [weight.shape[0]]
//! need    device.cc >= 80 and x.dtype == bf16 and weight.dtype == bf16 and bias.dtype == bf16
//! let     M = x.shape[0], K = x.shape[1], N = weight.shape[0]
//! tune    BN = 48 | 64
//! tune    BK = 64 | 128
//! tune    KW = 2 | 4                                                      # groups of warps, each with its part of every BK
//! tune    STAGES = 4 | 3
//! const   BM = 64, ALIGNED = K % 8 == 0, QUADS = N % 4 == 0
//! let     smem = max(STAGES * (BM + BN) * BK * 2, KW * BM * (BN + 8) * 4)
//! need    smem <= device.smem_block
//! launch  linear_silu<<<dim3(ceil_div(N, BN), ceil_div(M, BM)), KW * 64, smem>>>(x, weight, bias, y, M, N, K)
#include <cuda_bf16.h>

typedef __nv_bfloat16 T;
constexpr int THREADS = KW * 64, WM = BM / 2, SLOT = (BM + BN) * BK, PITCH = BN + 8;

// Where a 16-byte chunk of a tile's row lies: spread so that the 8 rows one ldmatrix reads are in different banks.
__device__ __forceinline__ int chunk_at(int row, int chunk) { return row * BK + (chunk ^ row % 8) * 8; }

template <int ROWS> __device__ __forceinline__ void copy_tile(T* tile, const T* __restrict__ from, int row0, int rows, int k0, int K) {
  constexpr int CHUNKS = BK / 8, STEP = THREADS / CHUNKS;
#pragma unroll
  for (int pass = 0; pass < (ROWS + STEP - 1) / STEP; ++pass) {
    const int row = pass * STEP + threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS, k = k0 + chunk * 8;
    if (ROWS % STEP == 0 || row < ROWS) {
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
}

__device__ __forceinline__ void load4(uint32_t (&r)[4], const T* at) {   // lane l gives the address of row l % 8 of 8x8 matrix l / 8
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(at)) : "memory");
}

__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float silu(float v) { return __fdividef(v, 1.0f + __expf(-v)); }

__global__ void __launch_bounds__(THREADS) linear_silu(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias,
    T* __restrict__ y, int M, int N, int K) {
  extern __shared__ __align__(128) char shared[];
  T* slots = reinterpret_cast<T*>(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % 2 * WM, group = warp / 2;
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN, steps = (K + BK - 1) / BK;
  auto copy_step = [&](int step) {
    if (step < steps) {
      T* slot = slots + step % STAGES * SLOT;
      copy_tile<BM>(slot, x, m0, M, step * BK, K);
      copy_tile<BN>(slot + BM * BK, w, n0, N, step * BK, K);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");   // even when empty: the count of groups stays in step with the loop
  };
  float sum[WM / 16][BN / 8][4] = {};
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) copy_step(s);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();   // this step has arrived for everyone, and everyone has read the slot that is filled next
    copy_step(step + STAGES - 1);
    const T *tile_x = slots + step % STAGES * SLOT, *tile_w = tile_x + BM * BK;
#pragma unroll
    for (int part = 0; part < BK / 16 / KW; ++part) {
      const int k = part * KW + group;
      uint32_t a[WM / 16][4], b[BN / 16][4];
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) load4(a[i], tile_x + chunk_at(warp_m + i * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
      for (int j = 0; j < BN / 16; ++j) load4(b[j], tile_w + chunk_at(j * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
      for (int i = 0; i < WM / 16; ++i)
#pragma unroll
        for (int j = 0; j < BN / 8; ++j) mma(sum[i][j], a[i], b[j / 2][j % 2], b[j / 2][j % 2 + 2]);
    }
  }

  // The groups' sums meet in shared memory, in place of the slots.
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  float* partial = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < WM / 16; ++i)
#pragma unroll
    for (int j = 0; j < BN / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const int row = warp_m + i * 16 + lane / 4 + e * 4, column = j * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(partial + (group * BM + row) * PITCH + column) = make_float2(sum[i][j][e], sum[i][j][e + 1]);
      }
  __syncthreads();
#pragma unroll
  for (int pass = 0; pass < BM * BN / 4 / THREADS; ++pass) {
    const int place = pass * THREADS + threadIdx.x, r = place / (BN / 4), c = place % (BN / 4) * 4;
    const int row = m0 + r, column = n0 + c;
    if (row >= M || column >= N) continue;
    float v[4] = {};
#pragma unroll
    for (int g = 0; g < KW; ++g) {
      const float4 p = *reinterpret_cast<const float4*>(partial + (g * BM + r) * PITCH + c);
      v[0] += p.x; v[1] += p.y; v[2] += p.z; v[3] += p.w;
    }
    T* to = y + (long long)row * N + column;
    if constexpr (QUADS) {
      alignas(8) T add[4];
      *reinterpret_cast<uint2*>(add) = *reinterpret_cast<const uint2*>(bias + column);
      alignas(8) T out[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = T(silu(v[i] + float(add[i])));
      *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(out);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (column + i < N) to[i] = T(silu(v[i] + float(bias[column + i])));
    }
  }
}

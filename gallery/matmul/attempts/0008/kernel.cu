//! op      matmul(a, b) -> y
//! out     y: f16[a.shape[0], b.shape[1]]
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! need    device.cc >= 90 and a.ndim == 2 and b.ndim == 2 and a.dtype == f16 and b.dtype == f16 and b.shape[0] == K
//! const   STAGES = 4, BM = 256, BN = 192, BK = 64
//! const   ALIGNED_K = K % 8 == 0, ALIGNED_N = N % 8 == 0      # else rows do not start on 16 bytes
//! const   WHOLE = (M % BM == 0 and N % BN == 0 and K % BK == 0 and K >= STAGES * BK      # no predicates
//!                  and K < 4000000 and N < 4000000)
//! const   WHOLE_K = K if WHOLE else 0, WHOLE_N = N if WHOLE else 0      # strides that become immediate offsets
//! let     smem = STAGES * (BM + BN) * BK * 2
//! need    smem <= device.smem_block
//! launch  matmul<<<dim3(ceil_div(M, BM), ceil_div(N, BN)), 256, smem>>>(a, b, y, M, N, K)
#include <cuda_fp16.h>
#include <cute/tensor.hpp>
using namespace cute;
constexpr int SLICES = BK / 16, PAIRS = BN / 32, ROWS_A = BM / 64;
constexpr int SLOT = (BM + BN) * BK * 2, B_AT = BM * BK * 2;   // bytes of a slot, and where b begins in it

// Calls f(Int<I>), ..., f(Int<N - 1>): indices that can be immediate offsets of an instruction.
template <int I, int N, class F>
__device__ __forceinline__ void repeat(F&& f) {
  if constexpr (I < N) {
    f(Int<I>{});
    repeat<I + 1, N>(f);
  }
}

template <int OFFSET>
__device__ __forceinline__ void load_rows(uint32_t at, uint32_t (&f)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4+%5];"
               : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]) : "r"(at), "n"(OFFSET) : "memory");
}

template <int OFFSET>
__device__ __forceinline__ void load_columns(uint32_t at, uint32_t (&f)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4+%5];"
               : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]) : "r"(at), "n"(OFFSET) : "memory");
}

template <int OFFSET>
__device__ __forceinline__ void store_rows(uint32_t at, uint32_t f0, uint32_t f1, uint32_t f2, uint32_t f3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0+%1], {%2, %3, %4, %5};"
               :: "r"(at), "n"(OFFSET), "r"(f0), "r"(f1), "r"(f2), "r"(f3) : "memory");
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __half2 two = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&two);
}

// 8 elements to shared memory; TO and FROM are offsets in bytes.
template <bool ALIGNED, int TO, int FROM>
__device__ __forceinline__ void copy_chunk(char* shared, uint32_t base, uint32_t to, const __half* from, bool inside, int valid) {
  if constexpr (WHOLE) {
    asm volatile("cp.async.cg.shared.global [%0+%1], [%2+%3], 16;" :: "r"(to), "n"(TO), "l"(from), "n"(FROM) : "memory");
  } else if constexpr (ALIGNED) {
    const int bytes = inside && valid > 0 ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0+%1], [%2+%3], 16, %4;" :: "r"(to), "n"(TO), "l"(from), "n"(FROM), "r"(bytes) : "memory");
  } else {
    __half* at = reinterpret_cast<__half*>(shared + (to - base) + TO);
    for (int e = 0; e < 8; ++e) at[e] = inside && e < valid ? from[FROM / 2 + e] : __half(0.0f);
  }
}

__global__ void __launch_bounds__(256, 1) matmul(const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ y, int M, int N, int K) {
  extern __shared__ __align__(1024) char shared[];
  // Tiles of 64-column atoms: rows of 8 chunks of 16 bytes, chunk ^ row % 8 inside. b stays (k, n): ldmatrix transposes.
  const uint32_t base = cast_smem_ptr_to_uint(shared);
  const int rows = M - blockIdx.x * BM, columns = N - blockIdx.y * BN, steps = (K + BK - 1) / BK;

  // One copy takes 32 rows x 8 chunks: 8 of them for a tile of a, 2 x BN / 64 for one of b.
  const int row = threadIdx.x / 8, column = threadIdx.x % 8 * 8;
  const uint32_t place = (row * 8 + (threadIdx.x % 8 ^ row % 8)) * 16;
  const __half* from_a = a + (long long)(blockIdx.x * BM + row) * K + column;
  const __half* from_b = b + (long long)row * N + blockIdx.y * BN + column;
  const long long stride_a = 32ll * K, stride_b = 32ll * (WHOLE ? WHOLE_N : N);
  uint32_t to = base + place;
  int left = K;   // of k, for the step that is copied
  auto copy_part = [&](auto part, auto fill) {   // a quarter of a step; beyond K it writes zeros (whole tiles: not called there)
    constexpr int P = decltype(part)::value;
    constexpr int TO = decltype(fill)::value * SLOT * WHOLE;   // else it is in `to`
    repeat<P * 2, P * 2 + 2>([&](auto index) {
      constexpr int I = decltype(index)::value;
      copy_chunk<ALIGNED_K, TO + I * 4096, I * 64 * WHOLE_K>(shared, base, to, from_a, row + I * 32 < rows, left - column);
      if constexpr (!WHOLE) from_a += stride_a;
    });
    repeat<P * PAIRS / 4, (P + 1) * PAIRS / 4>([&](auto index) {
      constexpr int I = decltype(index)::value % 2, J = decltype(index)::value / 2;
      copy_chunk<ALIGNED_N, TO + B_AT + I * 4096 + J * (BK * 128), J * 128 + I * 64 * WHOLE_N>(
          shared, base, to, I && !WHOLE ? from_b + stride_b : from_b, row + I * 32 < left, columns - column - J * 64);
    });
    if constexpr (P == 3) {
      from_a += WHOLE ? BK : BK - 8 * stride_a;
      from_b += 2 * stride_b;
      left -= BK;
      cp_async_fence();
    }
  };

  // 4 x 2 warps of m16n8k16: warp (m, n) has rows 16 m + 64 i and columns 8 n + 16 j.
  const int lane = threadIdx.x % 32, warp_m = threadIdx.x / 32 % 4, warp_n = threadIdx.x / 128;
  const int chunk_a = lane / 16 ^ lane % 8, chunk_b = (warp_n + lane / 16 * 2) ^ lane % 8;
  uint32_t at_a[SLICES], at_b[2];   // all that the swizzle makes of an address; the rest are immediates
  CUTE_UNROLL
  for (int k = 0; k < SLICES; ++k) at_a[k] = base + (warp_m * 16 + lane % 16) * 128 + (chunk_a ^ k * 2) * 16;
  CUTE_UNROLL
  for (int p = 0; p < 2; ++p) at_b[p] = base + lane % 16 * 128 + (chunk_b ^ p * 4) * 16;
  auto sums = make_tensor<float>(Shape<_4, Int<ROWS_A>, Int<BN / 16>>{});
  clear(sums);
  uint32_t fa[ROWS_A][4], fb[2][4];
  auto multiply = [&](int i, int pair, int h) {
    const int j = pair * 2 + h;
    SM80_16x8x16_F32F16F16F32_TN::fma(sums(0, i, j), sums(1, i, j), sums(2, i, j), sums(3, i, j),
                                      fa[i][0], fa[i][1], fa[i][2], fa[i][3], fb[pair % 2][h * 2], fb[pair % 2][h * 2 + 1],
                                      sums(0, i, j), sums(1, i, j), sums(2, i, j), sums(3, i, j));
  };

  repeat<0, STAGES - 1>([&](auto s) {
    copy_part(Int<0>{}, s);
    copy_part(Int<1>{}, s);
    copy_part(Int<2>{}, s);
    copy_part(Int<3>{}, s);
    if constexpr (!WHOLE) to += SLOT;
  });
  cp_async_wait<STAGES - 2>();
  __syncthreads();
  repeat<0, ROWS_A>([&](auto index) {
    constexpr int I = decltype(index)::value;
    load_rows<I * 8192>(at_a[0], fa[I]);
  });
  load_columns<B_AT>(at_b[0], fb[0]);
  uint32_t slot = 0;   // in bytes
  // Whole tiles: the slot is an immediate too, and the steps that copy nothing stand behind the loop.
  auto multiply_step = [&](auto now, auto copies, auto last) {
    repeat<0, SLICES>([&](auto slice) {
      constexpr int S = decltype(slice)::value, AFTER = (S + 1) % SLICES, NOW = decltype(now)::value;
      constexpr int NEXT_AT = WHOLE ? (S == SLICES - 1 ? (NOW + 1) % STAGES : NOW) * SLOT : 0;
      constexpr bool END = S == SLICES - 1 && decltype(last)::value;
      if constexpr (decltype(copies)::value) {
        copy_part(slice, Int<(NOW + STAGES - 1) % STAGES>{});
      } else if constexpr (S == SLICES - 1 && !END) {
        cp_async_fence();   // an empty group keeps the count of the waits
      }
      repeat<1, PAIRS>([&](auto index) {
        constexpr int P = decltype(index)::value;
        load_columns<decltype(now)::value * SLOT * WHOLE + B_AT + P / 2 * (BK * 128) + decltype(slice)::value * 2048>(at_b[P % 2], fb[P % 2]);
        CUTE_UNROLL
        for (int h = 0; h < 2; ++h) {
          CUTE_UNROLL
          for (int i = 0; i < ROWS_A; ++i) multiply(i, P - 1, h);
        }
      });
      if constexpr (S == SLICES - 1 && !END) {   // nothing more is read from this slot, and the next one has arrived
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        if constexpr (!WHOLE) {
          to = base + place + slot;
          const uint32_t next = slot == (STAGES - 1) * SLOT ? 0u : slot + SLOT, delta = next - slot;
          CUTE_UNROLL
          for (int k = 0; k < SLICES; ++k) at_a[k] += delta;
          at_b[0] += delta;
          at_b[1] += delta;
          slot = next;
        }
      }
      if constexpr (!END) load_columns<NEXT_AT + B_AT + AFTER * 2048>(at_b[0], fb[0]);
      repeat<0, ROWS_A>([&](auto index) {
        constexpr int I = decltype(index)::value;
        multiply(I, PAIRS - 1, 0);
        multiply(I, PAIRS - 1, 1);
        constexpr int K_NOW = decltype(slice)::value, S_NOW = decltype(now)::value;
        constexpr int AT = WHOLE ? (K_NOW == SLICES - 1 ? (S_NOW + 1) % STAGES : S_NOW) * SLOT : 0;
        if constexpr (K_NOW < SLICES - 1 || !decltype(last)::value) load_rows<AT + I * 8192>(at_a[(K_NOW + 1) % SLICES], fa[I]);
      });
    });
  };
  if constexpr (WHOLE) {
    constexpr int COPIED = WHOLE_K / BK - (STAGES - 1);
    CUTE_NO_UNROLL
    for (int round = 0; round < COPIED / STAGES; ++round)
      repeat<0, STAGES>([&](auto s) { multiply_step(s, true_type{}, false_type{}); });
    repeat<0, COPIED % STAGES>([&](auto s) { multiply_step(s, true_type{}, false_type{}); });
    repeat<0, STAGES - 1>([&](auto s) {
      constexpr int TAIL = decltype(s)::value;
      multiply_step(Int<(COPIED + TAIL) % STAGES>{}, false_type{}, bool_constant<TAIL == STAGES - 2>{});
    });
  } else {
    CUTE_NO_UNROLL
    for (int step = 0; step < steps; ++step) multiply_step(Int<0>{}, true_type{}, false_type{});
  }

  cp_async_wait<0>();
  __syncthreads();   // the slots are free: the tile of y goes there, so that its stores are 16 bytes wide
  const uint32_t at_y = base + (warp_m * 16 + lane % 16) * 128;
  const uint32_t at_even = at_y + chunk_b * 16, at_odd = at_y + (chunk_b ^ 4) * 16;
  repeat<0, ROWS_A>([&](auto index_i) {
    repeat<0, PAIRS>([&](auto index_p) {
      constexpr int I = decltype(index_i)::value, P = decltype(index_p)::value, J = P * 2;
      store_rows<I * 8192 + P / 2 * (BM * 128)>(P % 2 ? at_odd : at_even,
          pack(sums(0, I, J), sums(1, I, J)), pack(sums(2, I, J), sums(3, I, J)),
          pack(sums(0, I, J + 1), sums(1, I, J + 1)), pack(sums(2, I, J + 1), sums(3, I, J + 1)));
    });
  });
  __syncthreads();
  const char* from_y = shared + place;
  __half* to_y = y + (long long)(blockIdx.x * BM + row) * N + blockIdx.y * BN + column;
  CUTE_UNROLL
  for (int r = 0; r < BM / 32; ++r) {
    CUTE_UNROLL
    for (int c = 0; c < BN / 64; ++c) {
      const char* from = from_y + r * 4096 + c * (BM * 128);
      if (WHOLE || (row + r * 32 < rows && column + c * 64 < columns)) {
        if constexpr (ALIGNED_N) {
          *reinterpret_cast<uint4*>(to_y + c * 64) = *reinterpret_cast<const uint4*>(from);
        } else {
          for (int e = 0; e < 8; ++e)
            if (column + c * 64 + e < columns) to_y[c * 64 + e] = reinterpret_cast<const __half*>(from)[e];
        }
      }
    }
    to_y += stride_b;
  }
}

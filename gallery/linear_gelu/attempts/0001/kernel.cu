//! op      linear_gelu(x, weight, bias) -> y
//! lead    x: 2
//! out     y: bf16[x.shape[0], weight.shape[0]]
//! need    x.ndim == 2 and weight.ndim == 2 and bias.ndim == 1 and weight.shape[1] == x.shape[1] and bias.shape[0] == weight.shape[0]
//! need    device.cc == 90 and x.dtype == bf16 and weight.dtype == bf16 and bias.dtype == bf16 and x.shape[1] > 0
//! let     M = x.shape[0], K = x.shape[1], N = weight.shape[0]
//! const   BM = 128, BN = 256, BK = 64
//! const   ALIGNED = K % 8 == 0, WIDE = N % 8 == 0
//! tune    STAGES = 4 | 3
//! let     smem = STAGES * (BM + BN) * BK * 2 + 8 * 2048 + STAGES * 16
//! need    smem <= device.smem_block
//! let     tiles = ceil_div(M, BM) * ceil_div(N, BN)
//! let     x_rows = M if K % 8 == 0 else 1, w_rows = N if K % 8 == 0 else 1      # rows off 16 bytes are not for TMA: the maps are not used then
//! map     x_map = tiled(x, box=[BM, BK], shape=[x_rows, K], stride=[round_up(K, 8), 1], swizzle=128)
//! map     w_map = tiled(weight, box=[BN, BK], shape=[w_rows, K], stride=[round_up(K, 8), 1], swizzle=128)
//! launch  linear_gelu<<<min(tiles, device.sms), 384, smem>>>(x_map, w_map, x, weight, bias, y, M, N, K)
#include <cuda_bf16.h>

using bf16 = __nv_bfloat16;
constexpr uint32_t A_BYTES = BM * BK * 2, SLOT_BYTES = (BM + BN) * BK * 2, OUT_BYTES = 2048;
constexpr int GROUP = 8;   // tile rows walked together, so that running blocks share L2

__device__ __forceinline__ uint32_t shared_at(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "LAB_WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra LAB_DONE;\n"
      "bra LAB_WAIT;\n"
      "LAB_DONE:\n"
      "}\n" ::"r"(bar), "r"(parity) : "memory");
}
__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap* map, uint32_t bar, int inner, int outer) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
               "l"((uint64_t)map), "r"(bar), "r"(inner), "r"(outer) : "memory");
}

// K-major tile with 128-byte swizzle: 8 rows of 128 bytes make an atom of 1024 bytes.
__device__ __forceinline__ uint64_t descriptor(uint32_t at) {
  return (uint64_t)((at & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

#define ACC8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define ACC32(i) ACC8(i), ACC8(i + 8), ACC8(i + 16), ACC8(i + 24)
__device__ __forceinline__ void wgmma(float (&d)[128], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, "
      "%72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, "
      "%88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, "
      "%104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, "
      "%120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, p, 1, 1, 0, 0;\n"
      "}\n"
      : ACC32(0), ACC32(32), ACC32(64), ACC32(96)
      : "l"(a), "l"(b), "r"(1));
}
__device__ __forceinline__ void pin(float (&d)[128]) {   // keeps the compiler from moving the sums across the waits
#pragma unroll
  for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// 0.5 v (1 + tanh u) = v / (1 + exp(-2 u)): no cancellation for negative v.
__device__ __forceinline__ float gelu(float v) {
  constexpr double c = 2.0 * 0.7978845608028654 * 1.4426950408889634;
  const float z = v * fmaf(v * v, (float)(-c * 0.044715), (float)-c);
  float e, r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(z));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
  return v * r;
}
__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&two);
}

__device__ __forceinline__ void tile_origin(int tile, int tiles_m, int tiles_n, int& m0, int& n0) {
  const int group = tile / (GROUP * tiles_n), within = tile - group * GROUP * tiles_n;
  const int first = group * GROUP, rows = min(tiles_m - first, GROUP);
  m0 = (first + within % rows) * BM;
  n0 = within / rows * BN;
}

__global__ void __launch_bounds__(384, 1) linear_gelu(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
    const bf16* __restrict__ x, const bf16* __restrict__ weight, const bf16* __restrict__ bias, bf16* __restrict__ y, int M, int N, int K) {
  extern __shared__ __align__(1024) char shared[];
  const uint32_t slots = shared_at(shared), out = slots + STAGES * SLOT_BYTES;
  const uint32_t full = out + 8 * OUT_BYTES, empty = full + STAGES * 8;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      barrier_init(full + s * 8, ALIGNED ? 1 : 128);
      barrier_init(empty + s * 8, 8);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN, tiles = tiles_m * tiles_n, steps = (K + BK - 1) / BK;
  int slot = 0;
  uint32_t phase = 0;

  if (threadIdx.x < 128) {   // the producer warpgroup
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (!ALIGNED || threadIdx.x == 0) {
#pragma unroll 1
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int m0, n0;
        tile_origin(tile, tiles_m, tiles_n, m0, n0);
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
          barrier_wait(empty + slot * 8, phase ^ 1);   // passes at once in the first round
          const uint32_t at = slots + slot * SLOT_BYTES, bar = full + slot * 8;
          if constexpr (ALIGNED) {
            barrier_expect(bar, SLOT_BYTES);
            tma_load(at, &x_map, bar, step * BK, m0);
            tma_load(at + A_BYTES, &w_map, bar, step * BK, n0);
          } else {
#pragma unroll 1
            for (int i = threadIdx.x; i < (BM + BN) * 8; i += 128) {
              const int row = i / 8, chunk = i % 8, k = step * BK + chunk * 8;
              const bool of_x = row < BM;
              const int from = of_x ? m0 + row : n0 + row - BM;
              const int left = from < (of_x ? M : N) ? K - k : 0;
              const unsigned short* source = reinterpret_cast<const unsigned short*>(of_x ? x : weight) + (long long)from * K + k;
              uint32_t v[4];
#pragma unroll
              for (int j = 0; j < 4; ++j) {
                const uint32_t low = 2 * j < left ? source[2 * j] : 0, high = 2 * j + 1 < left ? source[2 * j + 1] : 0;
                v[j] = low | high << 16;
              }
              asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at + row * 128 + ((chunk ^ row % 8) << 4)), "r"(v[0]), "r"(v[1]),
                           "r"(v[2]), "r"(v[3]) : "memory");
            }
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            barrier_arrive(bar);
          }
          if (++slot == STAGES) slot = 0, phase ^= 1;
        }
      }
    }
  } else {                   // two consumer warpgroups, 64 rows each
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4, quad = lane % 4;
    const uint32_t mine = out + warp * OUT_BYTES;
    const uint32_t rows_at = (warp / 4) * 64 * BK * 2;
    float d[128];
#pragma unroll 1
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      int m0, n0;
      tile_origin(tile, tiles_m, tiles_n, m0, n0);
      // Lane 4 s + q keeps the bias pairs of column blocks 4 s .. 4 s + 3 at the place of quad member q.
      uint32_t bias_pair[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int column = n0 + (lane / 4 * 4 + r) * 8 + quad * 2;
        if constexpr (WIDE) {
          bias_pair[r] = column < N ? *reinterpret_cast<const uint32_t*>(bias + column) : 0;
        } else {
          const unsigned short* from = reinterpret_cast<const unsigned short*>(bias) + column;
          const uint32_t low = column < N ? from[0] : 0, high = column + 1 < N ? from[1] : 0;
          bias_pair[r] = low | high << 16;
        }
      }
#pragma unroll
      for (int i = 0; i < 128; ++i) d[i] = 0.0f;
      pin(d);
      int before = 0;
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        barrier_wait(full + slot * 8, phase);
        const uint32_t at = slots + slot * SLOT_BYTES;
        const uint64_t a = descriptor(at + rows_at), b = descriptor(at + A_BYTES);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < BK / 16; ++k) wgmma(d, a + k * 2, b + k * 2);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");   // the step before is done: its slot may be filled again
        if (step > 0 && lane == 0) barrier_arrive(empty + before * 8);
        before = slot;
        if (++slot == STAGES) slot = 0, phase ^= 1;
      }
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      pin(d);
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + before * 8);

      const int row0 = m0 + warp * 16;
#pragma unroll
      for (int c = 0; c < BN / 64; ++c) {
#pragma unroll
        for (int jj = 0; jj < 8; jj += 2) {
          uint32_t v[4];
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int j = c * 8 + jj + h;
            const uint32_t pair = __shfl_sync(~0u, bias_pair[j % 4], j / 4 * 4 + quad);
            const float b0 = __uint_as_float(pair << 16), b1 = __uint_as_float(pair & 0xFFFF0000u);
            v[h * 2] = pack(gelu(d[j * 4] + b0), gelu(d[j * 4 + 1] + b1));
            v[h * 2 + 1] = pack(gelu(d[j * 4 + 2] + b0), gelu(d[j * 4 + 3] + b1));
          }
          if constexpr (WIDE) {
            const int row = lane % 16, block = jj + lane / 16;
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(mine + row * 128 + ((block ^ row % 8) << 4)),
                         "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
          } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int row = row0 + lane / 4 + i % 2 * 8, column = n0 + c * 64 + (jj + i / 2) * 8 + quad * 2;
              unsigned short* to = reinterpret_cast<unsigned short*>(y) + (long long)row * N + column;
              if (row < M && column < N) to[0] = (unsigned short)v[i];
              if (row < M && column + 1 < N) to[1] = (unsigned short)(v[i] >> 16);
            }
          }
        }
        if constexpr (WIDE) {
          __syncwarp();
#pragma unroll
          for (int p = 0; p < 4; ++p) {
            const int row = p * 4 + lane / 8, chunk = lane % 8, column = n0 + c * 64 + chunk * 8;
            uint4 q;
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w)
                         : "r"(mine + row * 128 + ((chunk ^ row % 8) << 4)) : "memory");
            if (row0 + row < M && column < N) *reinterpret_cast<uint4*>(y + (long long)(row0 + row) * N + column) = q;
          }
          __syncwarp();
        }
      }
    }
  }
}

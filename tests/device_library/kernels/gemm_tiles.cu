// c = a b through tiles that a ring of slots holds: a by cp.async, b through registers; either may be turned.
//! op      gemm(a, b) -> c
//! need    device.cc >= 80 and a.ndim == 2 and b.ndim == 2 and a.dtype in [f32, bf16, f16] and b.dtype == a.dtype
//! tune    A_TURNED = false | true
//! tune    B_TURNED = true | false
//! let     M = a.shape[1] if A_TURNED else a.shape[0], K = a.shape[0] if A_TURNED else a.shape[1]
//! let     N = b.shape[1] if B_TURNED else b.shape[0]
//! need    K == (b.shape[0] if B_TURNED else b.shape[1]) and (N == b.shape[1] or N == b.shape[0])
//! out     c: f32[40, 72]
//! need    M == 40 and N == 72
//! const   T = a.dtype, IS_BF16 = a.dtype == bf16, BK = 64 / sizeof(a.dtype)
//! const   WIDTH = 16 / sizeof(a.dtype) if K * sizeof(a.dtype) % 16 == 0 else 4 / sizeof(a.dtype)
//! launch  gemm<<<dim3(2, 2), 64, 3 * 128 * (32 + 64)>>>(a, b, c, M, N, K)
#include <tilewright/mma_tiles.cuh>

__global__ void __launch_bounds__(64) gemm(const T* a, const T* b, float* c, int M, int N, int K) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int BM = 32, BN = 64;
  using ATile = tw::SharedTile<T, A_TURNED ? BK : BM, A_TURNED ? BM : BK, A_TURNED>;
  using BTile = tw::SharedTile<T, B_TURNED ? BK : BN, B_TURNED ? BN : BK, B_TURNED>;
  constexpr int SLOT = ATile::BYTES + BTile::BYTES, PITCH = tw::StagedPitch<8>::value;
  tw::StagedTile<BTile, 64> held;
  const int m0 = blockIdx.x * BM, n0 = blockIdx.y * BN, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float sums[1][8][4] = {};
  tw::tile_pipeline<3>(
      (K + BK - 1) / BK,
      [&](int step, int slot) {
        const int k0 = step * BK;
        tw::fill_async<ATile, 64, WIDTH>(shared + slot * SLOT, [&](int line, int inner) -> const T* {
          const int m = m0 + (A_TURNED ? inner : line), k = k0 + (A_TURNED ? line : inner);
          return m < M && k < K ? a + (A_TURNED ? k * M + m : m * K + k) : nullptr;
        });
        held.load([&](int line, int inner, float (&values)[BTile::CHUNK]) {
          for (int i = 0; i < BTile::CHUNK; ++i) {
            const int n = n0 + (B_TURNED ? inner + i : line), k = k0 + (B_TURNED ? line : inner + i);
            values[i] = n < N && k < K ? tw::to_float(b[B_TURNED ? k * N + n : n * K + k]) : 0.f;
          }
        });
      },
      [&](int slot) { held.store(shared + slot * SLOT + ATile::BYTES); },
      [&](int, int slot) {
        const unsigned char* a_tile = shared + slot * SLOT;
        if constexpr (sizeof(T) == 4) tw::multiply_singles<ATile, BTile, A_TURNED, B_TURNED, BK>(sums, a_tile, a_tile + ATile::BYTES, warp * 16, 0);
        else tw::multiply_halves<IS_BF16, ATile, BTile, A_TURNED, B_TURNED, BK>(sums, a_tile, a_tile + ATile::BYTES, warp * 16, 0);
      });
  float* staged = reinterpret_cast<float*>(shared) + warp * 16 * PITCH;
  for (int half = 0; half < 2; ++half) {  // staged twice, half of it stored each time
    tw::stage_sums(staged, sums[0]);
    for (int piece = lane; piece < 16 * 64; piece += 32) {
      const int m = m0 + warp * 16 + piece / 64, n = n0 + piece % 64;
      if (m < M && n < N && piece % 2 == half) c[m * N + n] = staged[piece / 64 * PITCH + piece % 64];
    }
  }
}

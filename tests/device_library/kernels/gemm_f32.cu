// c = a b in f32 by one warp per 16 x 8 tile: TF32, 3xTF32 and bf16x3.
//! op      gemm(a, b) -> rounded, by_tf32, by_bf16
//! need    device.cc >= 80 and a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0] and a.dtype == f32 and b.dtype == f32
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! need    M % 16 == 0 and N % 8 == 0 and K % 16 == 0
//! out     rounded: f32[M, N]
//! out     by_tf32: f32[M, N]
//! out     by_bf16: f32[M, N]
//! launch  gemm<<<dim3(N / 8, M / 16), 32>>>(a, b, rounded, by_tf32, by_bf16, N, K)
#include <tilewright/split_f32.cuh>

__global__ void gemm(const float* a, const float* b, float* rounded, float* by_tf32, float* by_bf16, int N, int K) {
  const int lane = threadIdx.x, m0 = blockIdx.y * 16 + lane / 4, n0 = blockIdx.x * 8, n = n0 + lane / 4;
  float first[4] = {}, second[4] = {}, third[4] = {};
  for (int k = 0; k < K; k += 8) {
    uint32_t a_round[4], b_round[2], a_big[4], a_small[4], b_big[2], b_small[2];
    for (int i = 0; i < 4; ++i) {
      const float value = a[(m0 + i % 2 * 8) * K + k + lane % 4 + i / 2 * 4];
      a_round[i] = tw::to_tf32(value);
      tw::split_tf32(value, a_big[i], a_small[i]);
    }
    for (int i = 0; i < 2; ++i) {
      const float value = b[(k + lane % 4 + i * 4) * N + n];
      b_round[i] = tw::to_tf32(value);
      tw::split_tf32(value, b_big[i], b_small[i]);
    }
    tw::mma_tf32(first, a_round, b_round[0], b_round[1]);
    tw::mma_3xtf32(second, a_big, a_small, b_big, b_small);
  }
  for (int k = 0; k < K; k += 16) {
    uint32_t a_parts[3][4], b_parts[3][2], parts[3];
    for (int i = 0; i < 4; ++i) {
      const float* from = a + (m0 + i % 2 * 8) * K + k + lane % 4 * 2 + i / 2 * 8;
      tw::split_bf16x3(from[0], from[1], parts);
      for (int p = 0; p < 3; ++p) a_parts[p][i] = parts[p];
    }
    for (int i = 0; i < 2; ++i) {
      const float* from = b + (k + lane % 4 * 2 + i * 8) * N + n;
      tw::split_bf16x3(from[0], from[N], parts);
      for (int p = 0; p < 3; ++p) b_parts[p][i] = parts[p];
    }
    tw::mma_bf16x3(third, a_parts, b_parts);
  }
  for (int i = 0; i < 4; ++i) {
    const int at = (m0 + i / 2 * 8) * N + n0 + lane % 4 * 2 + i % 2;
    rounded[at] = first[i], by_tf32[at] = second[i], by_bf16[at] = third[i];
  }
}

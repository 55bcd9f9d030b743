// Products of tiles in shared memory by the tensor cores of a warp, and their sums as rows that the epilogue can take in
// vectors. `sums[i][j]` is the 16 x 8 block at row 16 i and column 8 j of the warp's part of the result.
#pragma once
#include <tilewright/matrix_fragments.cuh>
#include <tilewright/mma.cuh>
#include <tilewright/split_f32.cuh>
#include <tilewright/tile_pipeline.cuh>

namespace tw {

// A 16 x 16 block of a tile of 16-bit elements as the fragment of mma's first operand, or (IS_SECOND) as two of its second,
// one behind the other. IS_TURNED: k goes down the tile's lines.
// cost: one ldmatrix and its address
// arch: sm_80
template <typename Tile, bool IS_TURNED, bool IS_SECOND>
__device__ __forceinline__ void load_block(uint32_t (&r)[4], const unsigned char* tile, int row, int k) {
  const int lane = threadIdx.x % 32, low = lane / 8 % 2 * 8, high = lane / 16 * 8;
  const int down = IS_SECOND ? high : low, along = IS_SECOND ? low : high;  // of this lane's 8 x 8 matrix
  if constexpr (IS_TURNED) ldmatrix_x4_trans(r, shared_address(tile + Tile::element(k + along + lane % 8, row + down)));
  else ldmatrix_x4(r, shared_address(tile + Tile::element(row + down + lane % 8, k + along)));
}

// sums += a * b, bf16 or f16, for the warp's rows from `row` and columns from `column` of two tiles with DEPTH of k.
// cost: one mma per block and 16 of k; an ldmatrix per 16 rows and per 16 columns
// arch: sm_80
template <bool IS_BF16, typename ATile, typename BTile, bool A_TURNED, bool B_TURNED, int DEPTH, int M, int N>
__device__ __forceinline__ void multiply_halves(float (&sums)[M][N][4], const unsigned char* a, const unsigned char* b, int row, int column) {
  static_assert(N % 2 == 0, "columns are taken 16 at a time");
#pragma unroll
  for (int k = 0; k < DEPTH; k += 16) {
    uint32_t a_part[M][4], b_part[N / 2][4];
#pragma unroll
    for (int i = 0; i < M; ++i) load_block<ATile, A_TURNED, false>(a_part[i], a, row + i * 16, k);
#pragma unroll
    for (int j = 0; j < N / 2; ++j) load_block<BTile, B_TURNED, true>(b_part[j], b, column + j * 16, k);
#pragma unroll
    for (int i = 0; i < M; ++i)
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if constexpr (IS_BF16) mma_bf16(sums[i][j], a_part[i], b_part[j / 2][j % 2 * 2], b_part[j / 2][j % 2 * 2 + 1]);
        else mma_f16(sums[i][j], a_part[i], b_part[j / 2][j % 2 * 2], b_part[j / 2][j % 2 * 2 + 1]);
      }
  }
}

// The same of f32 elements, each as two TF32 parts: as exact as in f32.
// cost: three mma_tf32 per block and 8 of k, and the splitting of what they take
// arch: sm_80
template <typename ATile, typename BTile, bool A_TURNED, bool B_TURNED, int DEPTH, int M, int N>
__device__ __forceinline__ void multiply_singles(float (&sums)[M][N][4], const unsigned char* a, const unsigned char* b, int row, int column) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < DEPTH; k += 8) {
    uint32_t b_big[N][2], b_small[N][2];
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = column + j * 8 + lane / 4, down = k + r * 4 + lane % 4;
        split_tf32(*reinterpret_cast<const float*>(b + (B_TURNED ? BTile::element(down, at) : BTile::element(at, down))), b_big[j][r], b_small[j][r]);
      }
#pragma unroll
    for (int i = 0; i < M; ++i) {
      uint32_t a_big[4], a_small[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int at = row + i * 16 + r % 2 * 8 + lane / 4, down = k + r / 2 * 4 + lane % 4;
        split_tf32(*reinterpret_cast<const float*>(a + (A_TURNED ? ATile::element(down, at) : ATile::element(at, down))), a_big[r], a_small[r]);
      }
#pragma unroll
      for (int j = 0; j < N; ++j) mma_3xtf32(sums[i][j], a_big, a_small, b_big[j], b_small[j]);
    }
  }
}

// The elements between two rows of a warp's staged sums, of N blocks of 8 columns.
// cost: none
// arch: sm_80
template <int N> struct StagedPitch { static constexpr int value = N * 8 + 8; };

// Puts the 16 rows of a warp's sums, N blocks of 8 columns, into its own 16 x StagedPitch<N> floats of shared memory.
// cost: 2 N stores of 8 bytes and two __syncwarp
// arch: sm_80
template <int N> __device__ __forceinline__ void stage_sums(float* staged, const float (&sums)[N][4]) {
  const int lane = threadIdx.x % 32;
  __syncwarp();  // sync: the rows staged before have been read
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* at = staged + (lane / 4 + half * 8) * StagedPitch<N>::value + j * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(at) = make_float2(sums[j][half * 2], sums[j][half * 2 + 1]);
    }
  __syncwarp();  // sync: the rows
}

}  // namespace tw

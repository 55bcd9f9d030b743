//# Products without tensor cores: tiles in shared memory, eight by eight sums of a thread in registers. For any GPU.

//@ pack
// Elements that move together.
template <typename T, int WIDTH>
struct alignas(WIDTH * sizeof(T)) Pack {
  T at[WIDTH];
};

//@ tile_copy
// A tile of an operand on its way from global memory through registers to shared memory, where it lies as [k][row] in
// f32 whichever way the operand does. `fetch` starts the loads, `keep` is called a step later: arithmetic runs between.
template <typename T, bool ALONG_K, int ROWS, int WIDTH>
struct TileCopy {
  static constexpr int LOADS = ROWS * BK / WIDTH / THREADS;
  static constexpr int PER_LINE = (ALONG_K ? BK : ROWS) / WIDTH;  // packs in a row of neighbours
  Pack<T, WIDTH> held[LOADS];

  __device__ __forceinline__ void fetch(const T* from, long long pitch, int row0, int k0, int rows, int k_end) {
    unrolled for (int i = 0; i < LOADS; ++i) {
      const int place = threadIdx.x + i * THREADS, line = place / PER_LINE, inner = place % PER_LINE * WIDTH;
      const int row = row0 + (ALONG_K ? line : inner), at_k = k0 + (ALONG_K ? inner : line);
      if (row < rows && at_k < k_end) {
        const long long at = ALONG_K ? row * pitch + at_k : at_k * pitch + row;
        held[i] = *reinterpret_cast<const Pack<T, WIDTH>*>(from + at);
      } else {
        unrolled for (int j = 0; j < WIDTH; ++j) held[i].at[j] = static_cast<T>(0.0f);
      }
    }
  }

  __device__ __forceinline__ void keep(float (*tile)[ROWS + PAD]) const {
    unrolled for (int i = 0; i < LOADS; ++i) {
      const int place = threadIdx.x + i * THREADS, line = place / PER_LINE, inner = place % PER_LINE * WIDTH;
      unrolled for (int j = 0; j < WIDTH; ++j) {
        const int row = ALONG_K ? line : inner + j, at_k = ALONG_K ? inner + j : line;
        tile[at_k][row] = static_cast<float>(held[i].at[j]);
      }
    }
  }
};

//# A matrix times a vector: every element of the matrix is used once, so all that matters is how its bytes move.
//@ block_sum
// The values of all threads of the block added up, in every thread of the first warp.
__device__ __forceinline__ float block_sum(float value, float* of_warps) {
  unrolled for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < THREADS / 32 ? of_warps[threadIdx.x % 32] : 0.0f;
  unrolled for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

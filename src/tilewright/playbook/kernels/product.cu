// $comment
// A matrix product in tiles of shared memory, 16 results a thread; what is read, and what is done with each sum, is
// filled in.
__global__ void __launch_bounds__(THREADS) $name($parameters) {
  constexpr int TILE = 64, DEPTH = 16, EACH = 4;
  __shared__ float a_tile[DEPTH][TILE + 4], b_tile[DEPTH][TILE + 4];
  const index_t row_tiles = ($m + TILE - 1) / TILE, column_tiles = ($n + TILE - 1) / TILE;
  const index_t tile = blockIdx.x % (row_tiles * column_tiles), batch = blockIdx.x / (row_tiles * column_tiles);
  const index_t first_m = tile / column_tiles * TILE, first_n = tile % column_tiles * TILE;
  const int down = threadIdx.x / 16, across = threadIdx.x % 16;
  float sums[EACH][EACH] = {};
  for (index_t first = 0; first < $k; first += DEPTH) {
    for (int piece = threadIdx.x; piece < TILE * DEPTH; piece += THREADS) {
      const int at_m = $a_along_k, at_k = $a_at_k;
      const index_t m = first_m + at_m, k = first + at_k;
      float a_value = 0.f;
      if (m < $m && k < $k) {
$a_body
      }
      a_tile[at_k][at_m] = a_value;
    }
    for (int piece = threadIdx.x; piece < TILE * DEPTH; piece += THREADS) {
      const int at_n = $b_along_k, at_k = $b_at_k;
      const index_t n = first_n + at_n, k = first + at_k;
      float b_value = 0.f;
      if (n < $n && k < $k) {
$b_body
      }
      b_tile[at_k][at_n] = b_value;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < DEPTH; ++k)
#pragma unroll
      for (int i = 0; i < EACH; ++i)
#pragma unroll
        for (int j = 0; j < EACH; ++j) sums[i][j] += a_tile[k][down * EACH + i] * b_tile[k][across * EACH + j];
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const index_t m = first_m + down * EACH + i, n = first_n + across * EACH + j;
      if (m >= $m || n >= $n) continue;
      const float sum = sums[i][j];
      const index_t row = $row;
$epilogue
    }
  }
}

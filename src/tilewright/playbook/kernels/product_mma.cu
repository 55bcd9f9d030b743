// $comment
// Tensor cores: a block computes TILE_M x TILE_N results. Operands are read in vectors, worked on, and lie in a ring of
// STAGES slots in shared memory; plain ones are copied there by cp.async. An operand that 16 bits do not hold is three
// parts that do. Sums pass through shared memory once more, so that results are stored in vectors.
__global__ void __launch_bounds__(THREADS) $name($parameters) {
  constexpr int TILE_M = $tile_m, TILE_N = $tile_n, DEPTH = $depth, STAGES = $stages, WARPS_M = TILE_M < 256 ? 2 : 4;
  constexpr int WARPS_N = THREADS / 32 / WARPS_M, WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N, PITCH = WARP_N + 4;
  constexpr bool A_PLAIN = $a_plain, B_PLAIN = $b_plain;
  using T = $type;
  using A = tw::ProductTile<T, TILE_M, DEPTH, $a_along_k, $a_parts>;
  using B = tw::ProductTile<T, TILE_N, DEPTH, $b_along_k, $b_parts>;
  constexpr int A_EACH = (A::ALL_CHUNKS + THREADS - 1) / THREADS, B_EACH = (B::ALL_CHUNKS + THREADS - 1) / THREADS;
  extern __shared__ __align__(128) char slots_in_shared[];
  const uint32_t slots = tw::shared_address(slots_in_shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % WARPS_M * WARP_M, warp_n = warp / WARPS_M * WARP_N;
  const int tiles_m = ($m + TILE_M - 1) / TILE_M, tiles_n = ($n + TILE_N - 1) / TILE_N;
  const index_t batch = blockIdx.x / (tiles_m * tiles_n);
  const int2 tile = tw::grouped_tile<8>(int(blockIdx.x % (tiles_m * tiles_n)), tiles_m, tiles_n);
  const index_t first_m = index_t(tile.x) * TILE_M, first_n = index_t(tile.y) * TILE_N;
  const int steps = int(($k + DEPTH - 1) / DEPTH);
  const auto slot_of = [&](int step) { return slots + step % STAGES * (A::BYTES + B::BYTES); };
$a_chunk
$b_chunk
  tw::Packed<$a_held, 8> a_held[A_EACH];
  tw::Packed<$b_held, 8> b_held[B_EACH];
  const auto begin = [&](int step) {  // copies of plain operands, reads of others
    const uint32_t slot = slot_of(step);
    const index_t first_k = index_t(step) * DEPTH;
    if (step < steps) {
#pragma unroll
      for (int each = 0; each < A_EACH; ++each) {
        const int number = each * THREADS + threadIdx.x;
        if (A::ALL_CHUNKS % THREADS == 0 || number < A::ALL_CHUNKS) {
$a_copy
          if constexpr (!A_PLAIN) a_held[each] = a_chunk(first_k, number);
        }
      }
#pragma unroll
      for (int each = 0; each < B_EACH; ++each) {
        const int number = each * THREADS + threadIdx.x;
        if (B::ALL_CHUNKS % THREADS == 0 || number < B::ALL_CHUNKS) {
$b_copy
          if constexpr (!B_PLAIN) b_held[each] = b_chunk(first_k, number);
        }
      }
    }
    tw::cp_async_commit();
  };
  const auto end = [&](int step) {  // what was read is stored where it is multiplied
    const uint32_t slot = slot_of(step);
    if (step >= steps) return;
#pragma unroll
    for (int each = 0; each < A_EACH; ++each) {
      const int number = each * THREADS + threadIdx.x;
      if (A::ALL_CHUNKS % THREADS == 0 || number < A::ALL_CHUNKS) {
        if constexpr (!A_PLAIN) A::put(slot, number, a_held[each]);
      }
    }
#pragma unroll
    for (int each = 0; each < B_EACH; ++each) {
      const int number = each * THREADS + threadIdx.x;
      if (B::ALL_CHUNKS % THREADS == 0 || number < B::ALL_CHUNKS) {
        if constexpr (!B_PLAIN) B::put(slot + A::BYTES, number, b_held[each]);
      }
    }
  };

  float sums[WARP_M / 16][WARP_N / 8][4] = {};
#pragma unroll
  for (int step = 0; step < STAGES - 1; ++step) begin(step), end(step);
  for (int step = 0; step < steps; ++step) {
    tw::cp_async_wait<STAGES - 2>();
    __syncthreads();
    begin(step + STAGES - 1);
    const uint32_t a_tile = slot_of(step), b_tile = a_tile + A::BYTES;
#pragma unroll
    for (int inner = 0; inner < DEPTH / 16; ++inner) {
      uint32_t b[WARP_N / 8][$b_parts][2];
#pragma unroll
      for (int j = 0; j < WARP_N / 16; ++j)
#pragma unroll
        for (int part = 0; part < $b_parts; ++part) {
          uint32_t two[4];
          B::columns(two, b_tile + part * B::PLANE, warp_n + j * 16, inner, lane);
          b[2 * j][part][0] = two[0], b[2 * j][part][1] = two[1];
          b[2 * j + 1][part][0] = two[2], b[2 * j + 1][part][1] = two[3];
        }
#pragma unroll
      for (int i = 0; i < WARP_M / 16; ++i) {
        uint32_t a[$a_parts][4];
#pragma unroll
        for (int part = 0; part < $a_parts; ++part) A::rows(a[part], a_tile + part * A::PLANE, warp_m + i * 16, inner, lane);
#pragma unroll
        for (int j = 0; j < WARP_N / 8; ++j) tw::mma_parts<T, $a_parts, $b_parts>(sums[i][j], a, b[j]);
      }
    }
    end(step + STAGES - 1);
  }

  tw::cp_async_wait<0>();
  __syncthreads();
  float* own = reinterpret_cast<float*>(slots_in_shared) + warp * 16 * PITCH;
#pragma unroll
  for (int band = 0; band < WARP_M / 16; ++band) {
#pragma unroll
    for (int j = 0; j < WARP_N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) own[(lane / 4 + e / 2 * 8) * PITCH + j * 8 + lane % 4 * 2 + e % 2] = sums[band][j][e];
    __syncwarp();
    constexpr int WIDTH = $width, VECTORS_N = WARP_N / WIDTH;  // of the results
#pragma unroll 1
    for (int vector = lane; vector < 16 * VECTORS_N; vector += 32) {
      const index_t m = first_m + warp_m + band * 16 + vector / VECTORS_N;
      const index_t column = first_n + warp_n + vector % VECTORS_N * WIDTH;
      if (m >= $m || column >= $n) continue;
      const float* results = own + vector / VECTORS_N * PITCH + vector % VECTORS_N * WIDTH;
$loads
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        const float sum = results[i];
$body
      }
$stores
    }
    __syncwarp();
  }
}

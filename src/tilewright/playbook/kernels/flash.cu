// $comment
// Flash attention by mma.sync in $format: a warp has 16 rows, their scores, terms and sums in registers; tiles of KEYS keys
// and values come into two slots in turn. Keys that no row of the block looks at are passed over.
__global__ void __launch_bounds__($threads) $name($parameters) {
  constexpr int WARPS = $warps, ROWS = 16 * WARPS, THREADS = 32 * WARPS, KEYS = $key_tile;
  constexpr int DEPTH = $depth, VALUES = $values;  // of a head, padded by zeros
  using Element = $element;
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const index_t tiles_m = ($m + ROWS - 1) / ROWS, batch = blockIdx.x / tiles_m;
  const index_t first_m = (tiles_m - 1 - blockIdx.x % tiles_m) * ROWS;  // of a causal mask the long rows first
$before
$range
$q_operand
$k_operand
$v_operand
  constexpr int SLOT = KTile::BYTES + VTile::BYTES;
  unsigned char* slots = shared + QTile::BYTES;
  start_q(shared, first_m, 0);
  finish_q(shared);
  float sums[VALUES / 8][4] = {}, largest[2] = {-INFINITY, -INFINITY}, total[2] = {};
  tw::tile_pipeline<2>(
      int((keys_end - keys_begin + KEYS - 1) / KEYS),
      [&](int step, int slot) {
        start_k(slots + slot * SLOT, keys_begin + step * index_t(KEYS), 0);
        start_v(slots + slot * SLOT + KTile::BYTES, 0, keys_begin + step * index_t(KEYS));
      },
      [&](int slot) {
        finish_k(slots + slot * SLOT);
        finish_v(slots + slot * SLOT + KTile::BYTES);
      },
      [&](int step, int slot) {
        float scores[1][KEYS / 8][4] = {}, factor[2];
        tw::multiply_halves<$is_bf16, QTile, KTile, Q_TURNED, K_TURNED, DEPTH>(scores, shared, slots + slot * SLOT, warp * 16, 0);
#pragma unroll
        for (int j = 0; j < KEYS / 8; ++j)
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            const index_t line = first_m + warp * 16 + lane / 4 + r / 2 * 8;
            const index_t column = keys_begin + step * index_t(KEYS) + j * 8 + lane % 4 * 2 + r % 2;
            float score = scores[0][j][r];
            scores[0][j][r] = -INFINITY;
            if (line < $m && column < keys_end) {
$score
            }
          }
        tw::softmax_rows(scores[0], largest, total, factor);
#pragma unroll
        for (int j = 0; j < VALUES / 8; ++j)
#pragma unroll
          for (int r = 0; r < 4; ++r) sums[j][r] *= factor[r / 2];
        tw::multiply_terms<$is_bf16, VTile, V_TURNED>(sums, scores[0], slots + slot * SLOT + KTile::BYTES);
      });
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float all = tw::sum_of_quad(total[half]), share = 1.f / all;
#pragma unroll
    for (int j = 0; j < VALUES / 8; ++j)
#pragma unroll
      for (int r = half * 2; r < half * 2 + 2; ++r) sums[j][r] = largest[half] == -INFINITY && all == 0.f ? $empty : sums[j][r] * share;
  }
  constexpr int WIDTH = $width, PITCH = tw::StagedPitch<VALUES / 8>::value;
  float* staged = reinterpret_cast<float*>(shared) + warp * 16 * PITCH;
  tw::stage_sums(staged, sums);
  for (int piece = lane; piece < 16 * VALUES / WIDTH; piece += 32) {
    const int down = piece / (VALUES / WIDTH), across = piece % (VALUES / WIDTH) * WIDTH;
    const index_t line = first_m + warp * 16 + down, column = across;
    if (line >= $m || column >= $n) continue;
$loads
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      const float sum = staged[down * PITCH + across + i];
$body
    }
$stores
  }
}

// $comment
// $method
__global__ void __launch_bounds__($threads) $name($parameters) {
  constexpr int BM = $bm, BN = $bn, BK = $bk, STAGES = $stages, WARPS_M = $warps_m, WARPS_N = $warps_n;
  constexpr int THREADS = 32 * WARPS_M * WARPS_N, WARP_M = BM / WARPS_M, WARP_N = BN / WARPS_N;
  using Element = $element;
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = threadIdx.x / 32, warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;
  const int tiles_m = ($m + BM - 1) / BM, tiles_n = ($n + BN - 1) / BN;
  const int2 tile = tw::grouped_tile<8>(blockIdx.x % (tiles_m * tiles_n), tiles_m, tiles_n);
  const index_t batch = blockIdx.x / (tiles_m * tiles_n), first_m = tile.x * index_t(BM), first_n = tile.y * index_t(BN);
$range
$a_operand
$b_operand
  float sums[WARP_M / 16][WARP_N / 8][4] = {};
  tw::tile_pipeline<STAGES>(
      int((k_end - k_begin + BK - 1) / BK),
      [&](int step, int slot) {
        const index_t k0 = k_begin + step * index_t(BK);
        start_a(shared + slot * (ATile::BYTES + BTile::BYTES), first_m, k0);
        start_b(shared + slot * (ATile::BYTES + BTile::BYTES) + ATile::BYTES, first_n, k0);
      },
      [&](int slot) {
        finish_a(shared + slot * (ATile::BYTES + BTile::BYTES));
        finish_b(shared + slot * (ATile::BYTES + BTile::BYTES) + ATile::BYTES);
      },
      [&](int, int slot) {
        const unsigned char* a_tile = shared + slot * (ATile::BYTES + BTile::BYTES);
        ${multiply}ATile, BTile, A_TURNED, B_TURNED, BK>(sums, a_tile, a_tile + ATile::BYTES, warp_m, warp_n);
      });
$again
  constexpr int WIDTH = $width, PITCH = tw::StagedPitch<WARP_N / 8>::value;
  float* staged = reinterpret_cast<float*>(shared) + warp * 16 * PITCH;
#pragma unroll
  for (int block = 0; block < WARP_M / 16; ++block) {
    tw::stage_sums(staged, sums[block]);
#pragma unroll 2
    for (int piece = threadIdx.x % 32; piece < 16 * WARP_N / WIDTH; piece += 32) {
      const int down = piece / (WARP_N / WIDTH), across = piece % (WARP_N / WIDTH) * WIDTH;
      const index_t line = first_m + warp_m + block * 16 + down, column = first_n + warp_n + across;
      if (line >= $m || column >= $n) continue;
$loads
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        float sum = staged[down * PITCH + across + i];
$body
      }
$stores
    }
  }
}

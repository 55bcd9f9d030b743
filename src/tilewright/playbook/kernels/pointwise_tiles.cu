// $comment
// A block makes TILE x TILE results: what lies side by side across them is read in its own order and turned in shared
// memory, whose rows are longer by a bank, so that both sides move whole lines.
__global__ void __launch_bounds__(THREADS) $name($parameters) {
  constexpr int TILE = 64, WIDTH = $width, LANES = TILE / WIDTH, HIGH = THREADS / LANES;
$squares
  const int along = threadIdx.x % LANES * WIDTH, across = threadIdx.x / LANES;
  const int tiles_along = int(($columns + TILE - 1) / TILE), tiles_down = int(($downs + TILE - 1) / TILE);
  const int tile = int(blockIdx.x % unsigned(tiles_along * tiles_down));
  const index_t first_column = index_t(tile % tiles_along) * TILE, first_down = index_t(tile / tiles_along) * TILE;
  const index_t rest = blockIdx.x / unsigned(tiles_along * tiles_down);
#pragma unroll
  for (int turn = 0; turn < TILE; turn += HIGH) {  // here a column is one of the squares' own, and down is across
    const index_t column = first_down + along, down = first_column + across + turn;
    if (column < $downs && down < $columns) {
$fill
    }
  }
  __syncthreads();
#pragma unroll
  for (int turn = 0; turn < TILE; turn += HIGH) {
    const index_t column = first_column + along, down = first_down + across + turn;
    if (column < $columns && down < $downs) {
$before
$loads
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
$body
      }
$stores
    }
  }
}

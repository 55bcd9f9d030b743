// $comment
// LANES threads share a row and take WIDTH neighbouring columns at once; lanes of ACROSS neighbouring rows are
// neighbours. KEEP vectors of a thread, which are all that it has of a row, are read once; where a row is too long,
// every sweep reads it. HELD: likewise of values that were made of it.
__global__ void __launch_bounds__($threads) $name($parameters) {
  constexpr int LANES = $lanes, WIDTH = $width, ACROSS = $across, KEEP = $keep, HELD = $held;
  const int lane = threadIdx.x / ACROSS % LANES, own = threadIdx.x / (ACROSS * LANES) * ACROSS + threadIdx.x % ACROSS;
  const index_t place = blockIdx.x * index_t($threads / LANES) + own;
  const bool is_live = place < $rows;
  const index_t row = is_live ? place : $rows - 1;  // all lanes take part in exchanges
$body
}

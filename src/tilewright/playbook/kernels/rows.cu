// $comment
// LANES neighbouring threads share a row and take WIDTH neighbouring columns at once. KEEP vectors of a thread, which
// are all that it has of a row, are read once; where a row is too long, every sweep reads it. HELD: likewise of values
// that were made of it.
__global__ void __launch_bounds__($threads) $name($parameters) {
  constexpr int LANES = $lanes, WIDTH = $width, KEEP = $keep, HELD = $held;
  const int lane = threadIdx.x % LANES;
  const index_t place = blockIdx.x * index_t($threads / LANES) + threadIdx.x / LANES;
  const bool is_live = place < $rows;
  const index_t row = is_live ? place : $rows - 1;  // all lanes take part in exchanges
$body
}

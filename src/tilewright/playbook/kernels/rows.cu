// $comment
// $lanes_comment
__global__ void __launch_bounds__(THREADS) $name($parameters) {
  constexpr int LANES = $lanes;
  const int lane = threadIdx.x % LANES;
  const index_t place = blockIdx.x * index_t(THREADS / LANES) + threadIdx.x / LANES;
  const bool is_live = place < $rows;
  const index_t row = is_live ? place : $rows - 1;$all_lanes
$body
}

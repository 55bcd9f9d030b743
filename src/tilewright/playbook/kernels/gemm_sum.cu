// $comment
// Adds the sums of all pieces of k in their order.
__global__ void __launch_bounds__(THREADS) $name($parameters) {
  constexpr int WIDTH = $width;
  const index_t place = blockIdx.x * index_t(THREADS) + threadIdx.x, row = place / ($n / WIDTH);
  if (row >= $rows) return;
  const index_t batch = row / $m, line = row % $m, column = place % ($n / WIDTH) * WIDTH;
  tw::Packed<float, WIDTH> sums = tw::load_packed<WIDTH>(${partial}_data + (long long)row * $n + column);
#pragma unroll 4
  for (int piece = 1; piece < $splits; ++piece) {
    const auto more = tw::load_packed<WIDTH>(${partial}_data + ((long long)piece * $rows + row) * $n + column);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sums.at[i] += more.at[i];
  }
$loads
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    const float sum = sums.at[i];
$body
  }
$stores
}

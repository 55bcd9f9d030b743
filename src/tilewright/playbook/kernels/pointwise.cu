// $comment
// $division
__global__ void __launch_bounds__(THREADS) $name($parameters) {
  constexpr int WIDTH = $width;
  const index_t first = (blockIdx.x * index_t(blockDim.x) * AT_ONCE + threadIdx.x) * WIDTH, next = blockDim.x * WIDTH;
  const index_t row = (blockIdx.z * index_t(gridDim.y) + blockIdx.y) * blockDim.y + threadIdx.y;
  if (first >= $columns || row >= $rows) return;
$before
  const auto make = [&](index_t column) {
$left
$loads
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
$body
    }
$stores
  };
  if (first + (AT_ONCE - 1) * next < $columns) {
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) make(first + k * next);
  } else {
    for (index_t column = first; column < $columns; column += next) make(column);
  }
}

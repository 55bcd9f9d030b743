// $comment
// $division
__global__ void __launch_bounds__(THREADS) $name($parameters) {
  constexpr int WIDTH = $width;
  const index_t column = (blockIdx.x * index_t(blockDim.x) + threadIdx.x) * WIDTH;
  const index_t row = (blockIdx.z * index_t(gridDim.y) + blockIdx.y) * blockDim.y + threadIdx.y;
  if (column >= $columns || row >= $rows) return;$left
$before
$loads
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
$body
  }
$stores
}

// $comment
__global__ void __launch_bounds__(THREADS) $name($parameters) {
  const index_t row = blockIdx.x * index_t(THREADS) + threadIdx.x;
  if (row >= $rows) return;
$body
}

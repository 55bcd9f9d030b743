// $comment
// A block goes along one line, THREADS elements at a time, and carries the running value over.
__global__ void __launch_bounds__(THREADS) $name($parameters) {
  __shared__ $type running[THREADS];
  const index_t line = blockIdx.x;
  $type carry = $identity;
  for (index_t first = 0; first < $length; first += THREADS) {
    const index_t column = first + threadIdx.x;
    $type value = $identity;
    if (column < $length) {
$body
    }
    running[threadIdx.x] = value;
    __syncthreads();
    for (int distance = 1; distance < THREADS; distance *= 2) {
      $type before = $identity;
      if (threadIdx.x >= distance) before = running[threadIdx.x - distance];
      __syncthreads();
      if (threadIdx.x >= distance) running[threadIdx.x] = $combine{}(before, running[threadIdx.x]);
      __syncthreads();
    }
    const $type result = first > 0 ? $combine{}(carry, running[threadIdx.x]) : running[threadIdx.x];
    carry = first > 0 ? $combine{}(carry, running[THREADS - 1]) : running[THREADS - 1];
    __syncthreads();
    if (column < $length) {
      const index_t row = $row;
$epilogue
    }
  }
}

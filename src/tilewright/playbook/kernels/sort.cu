// $comment
// A block sorts one line by a bitonic network, in shared memory or, where it is longer than $most, in a scratch buffer.
// Equals keep their order; the first $count are stored.
__global__ void __launch_bounds__(THREADS) $name($parameters, $type* keys_data, int* places_data, int padded) {
  extern __shared__ long long in_shared[];
  const index_t line = blockIdx.x;
  const bool is_short = padded <= $most;
  $type* keys = is_short ? reinterpret_cast<$type*>(in_shared) : keys_data + line * index_t(padded);
  int* places = is_short ? reinterpret_cast<int*>(keys + padded) : places_data + line * index_t(padded);
  for (int column = threadIdx.x; column < padded; column += THREADS) {
    $type value = 0;
    if (column < $length) {
$body
    }
    keys[column] = value;
    places[column] = column;  // from the line's length on: padding, which comes last
  }
  __syncthreads();
  for (int size = 2; size <= padded; size *= 2)
    for (int distance = size / 2; distance > 0; distance /= 2) {
      for (int pair = threadIdx.x; pair < padded / 2; pair += THREADS) {
        const int low = pair / distance * 2 * distance + pair % distance, high = low + distance;
        const $type a = keys[low], b = keys[high];
        const int a_place = places[low], b_place = places[high];
        const bool is_padding = a_place >= $length || b_place >= $length;
        const bool b_before_a = tw::sorts_before<$descending>(b, a), a_before_b = tw::sorts_before<$descending>(a, b);
        const bool b_first = is_padding ? b_place < a_place : b_before_a || (!a_before_b && b_place < a_place);
        if (b_first == ((low & size) == 0)) {
          keys[low] = b, keys[high] = a;
          places[low] = b_place, places[high] = a_place;
        }
      }
      __syncthreads();
    }
  for (int column = threadIdx.x; column < $count; column += THREADS) {
    const int order = places[column];
    const $type value = keys[column];
$store
  }
}

#pragma unroll ($keep > 0 ? $keep : 2)
  for (int item = 0; KEEP > 0 ? item < KEEP : item * index_t(LANES * WIDTH) < $columns; ++item) {
    const index_t column = (item * index_t(LANES) + lane) * WIDTH;
    if (!is_live || column >= $columns) break;
$loads
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
$body
    }
$stores
  }

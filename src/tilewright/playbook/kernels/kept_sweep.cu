#pragma unroll ($keep > 0 ? $keep : 1)
  for (int item = 0; $keep > 0 ? item < $keep : item * index_t(LANES) < $columns; ++item) {
    const index_t column = item * index_t(LANES) + lane;
    if (${dead}column >= $columns) break;
$body
  }

  if constexpr (KEEP > 0) {
#pragma unroll
    for (int item = 0; item < KEEP; ++item) {
      const index_t column = (item * index_t(LANES) + lane) * WIDTH;
      if (column >= $end) break;
$loads
    }
  }

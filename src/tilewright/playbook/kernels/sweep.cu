  {
    const auto visit = [&](int item, index_t column) {
$loads
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
$body
      }
$stores
    };
    const index_t end = $end;
    if constexpr ($keep > 0) {
#pragma unroll
      for (int item = 0; item < $keep; ++item) {
        const index_t column = (item * index_t(LANES) + lane) * WIDTH;
        if (column < end) visit(item, column);
      }
    } else {
      constexpr int NEXT = LANES * WIDTH, TOGETHER = 4;  // reads that are under way at the same time
      index_t column = lane * index_t(WIDTH);
      for (; column + (TOGETHER - 1) * NEXT < end; column += TOGETHER * NEXT) {
#pragma unroll
        for (int item = 0; item < TOGETHER; ++item) visit(0, column + item * NEXT);
      }
      for (; column < end; column += NEXT) visit(0, column);
    }
  }

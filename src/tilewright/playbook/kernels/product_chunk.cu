  const auto ${word}_chunk = [&](index_t first_k, int number) {
    constexpr int WIDTH = $width;
    tw::Packed<$held, 8> chunk;
    const index_t $line = $first_line + $tile::line_of(number), start = $first_along + $tile::along_of(number);
#pragma unroll
    for (int piece = 0; piece < 8; piece += WIDTH) {
      const index_t column = start + piece;
      if ($line < $lines && column < $columns) {
$before
$loads
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
$body
        }
      } else {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) chunk.at[piece + i] = 0.0f;
      }
    }
    return chunk;
  };

  constexpr bool ${upper}_TURNED = $turned;
  constexpr int ${upper}_WIDTH = $width;  // elements that lie side by side, aligned to their size
  using ${upper}Tile = tw::SharedTile<Element, ${upper}_TURNED ? $depth : $tile, ${upper}_TURNED ? $tile : $depth, ${upper}_TURNED>;
  tw::StagedTile<${upper}Tile, THREADS> ${word}_staged;
  const auto ${word}_from = [&](index_t line, index_t column) -> const Element* {
    if (line >= $lines || column >= $columns) return nullptr;
$before
    return $place;
  };
  const auto start_$word = [&](unsigned char* tile, index_t first, index_t k0) {
    const index_t first_line = ${upper}_TURNED ? k0 : first, first_column = ${upper}_TURNED ? first : k0;
    const auto from = [&](int down, int along) { return ${word}_from(first_line + down, first_column + along); };
    if constexpr (${upper}_WIDTH * sizeof(Element) >= 4) {
      tw::fill_async<${upper}Tile, THREADS, ${upper}_WIDTH>(tile, from);
    } else {
      ${word}_staged.load([&](int down, int along, float (&values)[${upper}Tile::CHUNK]) {
#pragma unroll
        for (int i = 0; i < ${upper}Tile::CHUNK; ++i) {
          const Element* at = from(down, along + i);
          values[i] = at ? tw::to_float(*at) : 0.f;
        }
      });
    }
  };
  const auto finish_$word = [&](unsigned char* tile) {
    if constexpr (${upper}_WIDTH * sizeof(Element) < 4) ${word}_staged.store(tile);
  };

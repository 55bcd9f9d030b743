  constexpr bool ${upper}_TURNED = $turned;
  using ${upper}Tile = tw::SharedTile<Element, ${upper}_TURNED ? $depth : $tile, ${upper}_TURNED ? $tile : $depth, ${upper}_TURNED>;
  tw::StagedTile<${upper}Tile, THREADS> ${word}_staged;
  const auto start_$word = [&](unsigned char*, index_t first, index_t k0) {
    const index_t first_line = ${upper}_TURNED ? k0 : first, first_column = ${upper}_TURNED ? first : k0;
    ${word}_staged.load([&](int down, int along, float (&values)[${upper}Tile::CHUNK]) {
      constexpr int WIDTH = $width;
#pragma unroll
      for (int part = 0; part < ${upper}Tile::CHUNK; part += WIDTH) {
        const bool is_inside = first_line + down < $lines && first_column + along + part < $columns;
        // Outside, the first place is read: without a branch all loads of a thread are under way together.
        const index_t line = is_inside ? first_line + down : 0, column = is_inside ? first_column + along + part : 0;
$loads
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
$body
        }
      }
    });
  };
  const auto finish_$word = [&](unsigned char* tile) { ${word}_staged.store(tile); };

          if constexpr ($plain) {
            const index_t $line = $first_line + $tile::line_of(number), column = $first_along + $tile::along_of(number);
$before
            tw::cp_async_16($tile::place_of($slot, number), $place, $line < $lines && column < $columns$inside);
          }

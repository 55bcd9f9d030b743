  for (index_t column = lane; is_live && column < $columns; column += LANES) {
$body
  }

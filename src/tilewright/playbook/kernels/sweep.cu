  for (index_t column = lane; ${live}column < $columns; column += LANES) {
$body
  }

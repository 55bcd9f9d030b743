"""Elements moved and combined: transposes, slices, joins, look-ups, with pointwise work on the way."""

"""Elements by their places: what a result's element reads, followed back through views, slices, joins and look-ups."""

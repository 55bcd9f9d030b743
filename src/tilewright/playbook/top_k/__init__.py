"""The k greatest or least elements of rows, in order, for small k."""

"""Products of matrices: what is read of a graph, and the structures that compute it."""

"""Attention: weighted sums of values, the weights a softmax of products of queries and keys."""

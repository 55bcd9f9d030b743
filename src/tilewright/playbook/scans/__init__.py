"""Scans: running sums and products along any dimension, with the work before and after them."""

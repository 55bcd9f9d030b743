"""Pooling: the greatest or the mean of a window that goes over one, two or three dimensions."""

"""Regions of a model that are worth a kernel: found by running it once, made by the ordinary flow, swapped in."""

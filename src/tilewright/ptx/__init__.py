"""Kernels without a GPU: a PTX parser, a warp-wide interpreter in C, its checkers and its counters.

Knows nothing of tasks, plans, torch or CUDA. PTX text, a launch and memory go in; memory, findings and counts come out.
"""

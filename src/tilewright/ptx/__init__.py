"""The emulator: a PTX parser, a warp-wide interpreter in C, its checkers and its counters.

Input is PTX text, a launch and memory; output is memory, findings and counts. Independent of plans, torch and CUDA.
"""

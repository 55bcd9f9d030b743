"""A small key to CUDA for who reads Python: only what occurs in the kernel that a lesson is about."""

from __future__ import annotations

import re
from collections.abc import Iterator

# How it is written -> the regular expression that finds it, and what it says.
_KEY: dict[str, tuple[str, str]] = {
    "//!": (r"^//!", "the launch plan, which is no CUDA: what the kernel takes and how it is started"),
    "__global__": (r"__global__", "before a function: the kernel itself, which a launch starts in every thread"),
    "__device__": (r"__device__", "before a function: called by code that runs on the GPU already"),
    "threadIdx.x": (r"\bthreadIdx\.", "the number of this thread in its block"),
    "blockIdx.x": (r"\bblockIdx\.", "the number of this block; .y and .z where blocks are numbered in a rectangle"),
    "blockDim.x, gridDim.x": (r"\b(?:blockDim|gridDim)\.", "how many threads a block has, how many blocks there are"),
    "__shared__": (r"__shared__", "an array in shared memory: one for each block, not for each thread"),
    "__syncthreads()": (r"__syncthreads\(", "a barrier: all threads of the block wait here for each other"),
    "__shfl_xor_sync(~0u, v, 16)": (
        r"__shfl_\w*sync",
        "a shuffle: each lane gets the v of another lane, here of the one whose number differs by that bit",
    ),
    "__reduce_max_sync": (r"__reduce_\w+_sync", "all lanes of a warp put a value in, and all get their maximum or sum"),
    "constexpr": (r"\bconstexpr\b", "known when the file is compiled; if constexpr leaves the other branch out whole"),
    "template <...>": (r"\btemplate\b", "written once, compiled for each type or number in the angle brackets"),
    "float2, uint4": (
        r"\b(?:u?int|float|u?short|u?char)[24]\b",
        "two or four numbers side by side (.x, .y, .z, .w), which one instruction moves",
    ),
    "__half, __nv_bfloat16": (r"__half|__nv_bfloat16", "16-bit floats; with a 2 at the end, two in one register"),
    "const float* p, p[i], *p": (r"\bconst\b[^=;]*\*", "an address; what is i elements on; what is there"),
    "reinterpret_cast<T*>(p)": (r"\breinterpret_cast\b", "the same address, read as elements of another type"),
    "__restrict__": (r"__restrict__", "a promise that no other pointer leads to the same memory"),
    "#pragma unroll": (r"#pragma unroll", "the loop that follows is written out, so that its turns can overlap"),
    "__launch_bounds__(n)": (r"__launch_bounds__", "blocks have at most n threads; registers are shared out by that"),
    "asm(...)": (r"\basm\b", "one of the GPU's own instructions; %0, %1 are the values listed after the colons"),
}  # fmt: skip


def key_to(text: str) -> Iterator[tuple[str, str]]:
    """What occurs in a kernel file, with what it means."""
    for written, (pattern, meaning) in _KEY.items():
        if re.search(pattern, text, re.MULTILINE):
            yield written, meaning

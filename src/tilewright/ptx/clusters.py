"""Which blocks of a grid form a cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.ptx.syntax import PtxError
from tilewright.records.steps import Dim3

_MOST_BLOCKS = 16


def cluster_extents(kernel: str, built_for: tuple[int, ...] | None, asked: Dim3 | None, grid: Dim3) -> Dim3:
    """Blocks of a cluster along each axis; raises `PtxError` for what no launch can have."""
    built: Dim3 | None = None
    if built_for is not None:
        x, y, z, *_ = (*built_for, 1, 1)
        built = x, y, z
    extents = asked or built or (1, 1, 1)
    if built is not None and extents != built:
        raise PtxError(f"`{kernel}` was built for clusters of {built} blocks, not {extents}")
    if min(extents) < 1 or math.prod(extents) > _MOST_BLOCKS:
        raise PtxError(f"`{kernel}`: a cluster of {extents} blocks is not allowed; {_MOST_BLOCKS} is the most")
    if any(blocks % extent for blocks, extent in zip(grid, extents, strict=True)):
        raise PtxError(f"`{kernel}`: a grid of {grid} is not made of clusters of {extents} blocks")
    return extents


def clusters_of(blocks: Sequence[int], grid: Dim3, extents: Dim3) -> tuple[int, ...]:
    """Numbers of the clusters that these blocks belong to."""
    x, y, _ = (blocks_along // extent for blocks_along, extent in zip(grid, extents, strict=True))
    found = set()
    for block in blocks:
        i, j, k = block % grid[0], block // grid[0] % grid[1], block // grid[0] // grid[1]
        found.add(i // extents[0] + x * (j // extents[1] + y * (k // extents[2])))
    return tuple(sorted(found))


def peer_block(block: int, rank: int, grid: Dim3, extents: Dim3) -> int:
    """The block of that rank in the cluster of another."""
    at = (block % grid[0], block // grid[0] % grid[1], block // grid[0] // grid[1])
    inside = (rank % extents[0], rank // extents[0] % extents[1], rank // extents[0] // extents[1])
    i, j, k = (a - a % extent + b for a, b, extent in zip(at, inside, extents, strict=True))
    return i + grid[0] * (j + grid[1] * k)

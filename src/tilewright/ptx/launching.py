"""Launch requests and results; cluster geometry; encoded TMA maps."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.ptx.syntax import PtxError
from tilewright.records import ALL_CHECKS, Check, CountsRecord, CoverageRecord, FindingRecord, TensorMap, TouchRecord
from tilewright.records.steps import Dim3


@dataclass(frozen=True)
class LaunchOptions:
    checks: tuple[Check, ...] = ALL_CHECKS
    seed: int | None = None  # None: warps and blocks in order; else a random schedule
    instruction_budget: int = 4_000_000_000  # thread instructions, then the launch is stopped
    workers: int = 0  # OS threads; 0: one per core
    blocks: tuple[int, ...] | None = None  # linear indices of the blocks to run; None: all
    race_bytes: int = 1 << 30  # limit of the race detector's memory; reported where it is reached
    fill: bytes = b"\xff"  # repeated, what uninitialised registers, shared and local memory hold
    inherits: bool = False  # they hold what earlier blocks and launches left instead
    many: bool = False  # with a seed: as many blocks side by side as a GPU may have


@dataclass(frozen=True)
class LaunchRequest:
    """One kernel launch. `parameters` is the argument block, addresses in it from `GlobalMemory`."""

    kernel: str  # the symbol
    grid: Dim3
    block: Dim3
    dynamic_smem_bytes: int
    parameters: bytes
    cluster: Dim3 | None = None
    cooperative: bool = False
    overlaps: bool = False  # the previous launch may still run until griddepcontrol.wait
    options: LaunchOptions = field(default_factory=LaunchOptions)
    shown_as: str = ""  # the kernel's name in findings and counts; the symbol where nothing is given
    launch_line: int = 0  # in the kernel file


@dataclass(frozen=True)
class LaunchResult:
    completed: bool  # else stopped by a fatal finding: budget, deadlock, trap
    findings: tuple[FindingRecord, ...]
    counts: CountsRecord | None  # None unless counting was asked for
    coverage: CoverageRecord | None  # None unless it was asked for
    printed: str  # what printf wrote
    thread_instructions: int
    seconds: float
    touches: tuple[TouchRecord, ...] = ()  # where they were asked for
    incomplete: tuple[str, ...] = ()  # limits that the checkers reached


# -- clusters --

_MOST_BLOCKS = 16


def cluster_extents(kernel: str, built_for: tuple[int, ...] | None, asked: Dim3 | None, grid: Dim3) -> Dim3:
    """The cluster dimensions; raises `PtxError` for invalid ones."""
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
    """The clusters that contain these blocks."""
    x, y, _ = (blocks_along // extent for blocks_along, extent in zip(grid, extents, strict=True))
    found = set()
    for block in blocks:
        i, j, k = block % grid[0], block // grid[0] % grid[1], block // grid[0] // grid[1]
        found.add(i // extents[0] + x * (j // extents[1] + y * (k // extents[2])))
    return tuple(sorted(found))


def peer_block(block: int, rank: int, grid: Dim3, extents: Dim3) -> int:
    """The block with a rank in another block's cluster."""
    at = (block % grid[0], block // grid[0] % grid[1], block // grid[0] // grid[1])
    inside = (rank % extents[0], rank // extents[0] % extents[1], rank // extents[0] // extents[1])
    i, j, k = (a - a % extent + b for a, b, extent in zip(at, inside, extents, strict=True))
    return i + grid[0] * (j + grid[1] * k)


# -- TMA maps --

MAP_BYTES = 128
_LAYOUT = struct.Struct("<8sQ4Q5I5H10B6h2H24x")
_MAGIC = b"TWTMAP1\0"
_ALIGNMENT = 16
_RANK = 5


@dataclass(frozen=True)
class PixelBox:
    """The additional fields of an im2col map: corners relative to the tensor's, and the column size."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int


def encoded_map(record: TensorMap, address: int, pixel_box: PixelBox | None = None) -> bytes:
    """The emulator's form of a map over a tensor at `address`; raises `PtxError` where the driver would fail."""
    if address % _ALIGNMENT:
        raise PtxError(f"map {record.name}: {record.tensor} lies at {address:#x}, and maps need {_ALIGNMENT} bytes")
    rank = len(record.shape)

    def padded(values: tuple[int, ...], count: int = _RANK) -> tuple[int, ...]:
        return (*values, *(0,) * (count - len(values)))

    corners = (0,) * 6 if pixel_box is None else (*padded(pixel_box.lower, 3), *padded(pixel_box.upper, 3))
    column = (0, 0) if pixel_box is None else (pixel_box.channels, pixel_box.pixels)
    kinds = (rank, record.data_type, record.swizzle_mode, int(record.fill_nan), int(pixel_box is not None))
    return _LAYOUT.pack(
        _MAGIC,
        address,
        *padded(record.stride_bytes, _RANK - 1),
        *padded(tuple(extent - 1 for extent in record.shape)),
        *padded(record.box),
        *padded(record.step),
        *kinds,
        *corners,
        *column,
    )

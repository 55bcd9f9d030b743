"""The public face of the interpreter: memory, a program, a launch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Flag, auto

from tilewright.ptx.results import Dim3


class Checks(Flag):
    """What to look for beside the answer. `BOUNDS` is always on: it keeps the process safe."""

    BOUNDS = auto()
    UNINITIALISED = auto()
    RACES = auto()
    WARP = auto()  # shuffle masks, barrier divergence
    COUNTERS = auto()
    NONE = 0
    ALL = BOUNDS | UNINITIALISED | RACES | WARP | COUNTERS


@dataclass(frozen=True)
class LaunchOptions:
    checks: Checks = Checks.ALL
    seed: int | None = None  # None: warps and blocks in order; else a random schedule
    instruction_budget: int = 4_000_000_000  # thread instructions, then the launch is stopped
    workers: int = 0  # OS threads; 0: one per core
    blocks: tuple[int, ...] | None = None  # linear indices of the blocks to run; None: all
    race_bytes: int = 1 << 30  # most memory of the race detector; what it cannot watch then is said


@dataclass(frozen=True)
class LaunchRequest:
    """One kernel launch. `parameters` is the argument block, addresses in it from `Memory`."""

    kernel: str  # the symbol
    grid: Dim3
    block: Dim3
    dynamic_smem_bytes: int
    parameters: bytes
    cluster: Dim3 | None = None
    cooperative: bool = False
    options: LaunchOptions = field(default_factory=LaunchOptions)

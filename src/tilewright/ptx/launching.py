"""What the interpreter is asked for and what it tells: one launch and its result."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.records import ALL_CHECKS, Check, CountsRecord, CoverageRecord, FindingRecord, TouchRecord
from tilewright.records.steps import Dim3


@dataclass(frozen=True)
class LaunchOptions:
    checks: tuple[Check, ...] = ALL_CHECKS
    seed: int | None = None  # None: warps and blocks in order; else a random schedule
    instruction_budget: int = 4_000_000_000  # thread instructions, then the launch is stopped
    workers: int = 0  # OS threads; 0: one per core
    blocks: tuple[int, ...] | None = None  # linear indices of the blocks to run; None: all
    race_bytes: int = 1 << 30  # most memory of the race detector; what it cannot watch then is said
    poison: int = 0xFF  # the byte that registers, shared and local memory are made of until something writes them


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
    overlaps: bool = False  # the launch before may still be running, until griddepcontrol.wait
    options: LaunchOptions = field(default_factory=LaunchOptions)
    shown_as: str = ""  # the kernel's name in findings and counts; the symbol where nothing is given
    launch_line: int = 0  # in the kernel file


@dataclass(frozen=True)
class LaunchResult:
    completed: bool  # else stopped by a finding that cannot be survived: budget, deadlock, trap
    findings: tuple[FindingRecord, ...]
    counts: CountsRecord | None  # None unless counting was asked for
    coverage: CoverageRecord | None  # None unless it was asked for
    printed: str  # what printf wrote
    thread_instructions: int
    seconds: float
    touches: tuple[TouchRecord, ...] = ()  # where they were asked for
    incomplete: tuple[str, ...] = ()  # what the checkers could not see to the end, a sentence each

"""What an emulated launch tells: findings with their place, and counts per instruction."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

from tilewright.ptx.syntax import Place

Dim3 = tuple[int, int, int]


class FindingKind(IntEnum):
    """What the checkers know, by the core's TW_FIND_*. What people read is the record's text of the same name."""

    OUT_OF_BOUNDS_GLOBAL = 0
    OUT_OF_BOUNDS_SHARED = 1
    OUT_OF_BOUNDS_LOCAL = 2
    MISALIGNED = 3
    UNINITIALISED_SHARED = 4
    UNINITIALISED_GLOBAL = 5
    UNINITIALISED_LOCAL = 6
    RACE_SHARED = 7
    RACE_GLOBAL = 8
    BARRIER_DIVERGENCE = 9
    SHUFFLE_MASK = 10
    DEADLOCK = 11
    ASYNC_NOT_WAITED = 12
    ASYNC_NOT_CONSUMED = 13
    INPUT_WRITTEN = 14
    TRAP = 15
    ASSERTION = 16
    BUDGET = 17
    BAD_CALL = 18
    STACK = 19


@dataclass(frozen=True)
class ThreadPlace:
    block: Dim3
    thread: Dim3


@dataclass(frozen=True)
class Finding:
    """One fault at one instruction, however many threads did it; the first one is shown."""

    kind: FindingKind
    kernel: str
    place: Place | None  # source line of the instruction
    ptx_line: int
    ptx_text: str
    thread: ThreadPlace
    count: int  # how often at this instruction
    where: str  # "x[3, 17]", "4 bytes after the end of y", "shared byte 128"
    detail: str = ""  # "thread (5, 0, 0) wrote it at line 31 with no barrier between"
    other_place: Place | None = None  # the other side of a race
    other_thread: ThreadPlace | None = None


class InstructionCount(NamedTuple):
    """How often one PTX instruction ran and what it cost. A tuple, because a launch makes thousands."""

    ptx_line: int
    ptx_text: str
    place: Place | None
    executions: int  # by a warp
    active_lanes: int  # summed over executions
    requests: int  # memory requests, one per warp execution with an active lane
    sectors: int  # 32-byte sectors touched by global requests
    ideal_sectors: int  # the fewest that could carry the bytes asked for
    passes: int  # shared-memory passes
    ideal_passes: int
    bytes: int  # asked for by the lanes


@dataclass(frozen=True)
class LaunchCounts:
    """One kernel launch in numbers. Emulated: never mixed with measured times."""

    kernel: str
    blocks: int  # run, of the grid's
    grid_blocks: int
    warp_instructions: int
    thread_instructions: int
    instructions: tuple[InstructionCount, ...]


class Ending(str, Enum):
    COMPLETED = "completed"
    STOPPED = "stopped"  # by a finding that cannot be survived: budget, deadlock, trap


@dataclass(frozen=True)
class LaunchResult:
    kernel: str
    ending: Ending
    findings: tuple[Finding, ...]
    counts: LaunchCounts | None  # None unless counting was asked for
    printed: str  # what printf wrote
    thread_instructions: int
    seconds: float
    incomplete: tuple[str, ...] = ()  # what the checkers could not see to the end, a sentence each

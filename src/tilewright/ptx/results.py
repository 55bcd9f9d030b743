"""What an emulated launch tells: findings with their place, and counts per instruction."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.ptx.syntax import Place

Dim3 = tuple[int, int, int]


class FindingKind(str, Enum):
    """What the checkers know. The value is the name people see."""

    OUT_OF_BOUNDS_GLOBAL = "global access outside every tensor"
    OUT_OF_BOUNDS_SHARED = "shared access out of bounds"
    OUT_OF_BOUNDS_LOCAL = "local access out of bounds"
    MISALIGNED = "misaligned access"
    UNINITIALISED_SHARED = "read of shared memory nothing wrote"
    UNINITIALISED_GLOBAL = "read of global memory nothing wrote"
    UNINITIALISED_LOCAL = "read of local memory nothing wrote"
    RACE_SHARED = "race in shared memory"
    RACE_GLOBAL = "race in global memory"
    BARRIER_DIVERGENCE = "barrier not reached by all threads"
    SHUFFLE_MASK = "wrong mask of a warp operation"
    DEADLOCK = "deadlock"
    ASYNC_NOT_WAITED = "read of a copy still in flight"
    ASYNC_NOT_CONSUMED = "copy never waited for"
    INPUT_WRITTEN = "write to an input"
    TRAP = "trap"
    ASSERTION = "assertion failed"
    BUDGET = "instruction budget spent"
    BAD_CALL = "call to nothing"
    STACK = "call stack used up"


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


@dataclass(frozen=True)
class InstructionCount:
    """How often one PTX instruction ran and what it cost."""

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

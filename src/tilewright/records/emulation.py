"""What an emulated run is asked for and what it tells: checks, findings with their place, counts per instruction.

These records stand by themselves, so that a front end can show them without knowing the emulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntFlag

from tilewright.records.build import KERNEL_FILE_NAME
from tilewright.records.steps import Dim3


class Check(str, Enum):
    """What to look for beside the answer. Bounds are always checked: they keep the process safe."""

    UNINITIALISED = "uninitialised"
    RACES = "races"
    WARP = "warp"  # masks of warp operations, barriers not reached by all
    COUNTERS = "counters"
    COVERAGE = "coverage"  # what ran, and which way conditions went
    TOUCHES = "touches"  # which lanes of a warp touch which bytes of each tensor: to be shown, not to be judged


ALL_CHECKS = tuple(one for one in Check if one is not Check.TOUCHES)


@dataclass(frozen=True)
class Emulation:
    """How an emulating device runs a job. The first schedule is in order, the others are random, by seed."""

    checks: tuple[Check, ...] = ALL_CHECKS
    schedules: int = 1
    seed: int = 0
    instruction_budget: int = 4_000_000_000  # thread instructions of one run of the plan
    sampled_blocks: int | None = None  # of each launch; None: all
    sample_edges: bool = True  # take the first and the last block, where faults are; else a fair sample, for counts
    written_elements: int = 0  # with sampled blocks: of each output what they wrote is told, at most so much of it
    # Of outputs the places after which inputs repeat, along each axis; 0: none. What differs there is told first.
    written_periods: tuple[tuple[str, tuple[int, ...]], ...] = ()
    workers: int = 1  # OS threads, 0 for one per core; with several, what a race does differs from run to run

    def __post_init__(self) -> None:
        blocks = 1 if self.sampled_blocks is None else self.sampled_blocks
        if min(self.schedules, self.instruction_budget, blocks) < 1 or self.workers < 0:
            raise ValueError("schedules, instruction_budget and sampled_blocks are at least 1, workers at least 0")

    def schedule_seed(self, number: int) -> int | None:
        """The seed of schedule `number`; None for the first, which is in order."""
        return None if number == 0 else self.seed + number


class FindingKind(str, Enum):
    """What can be wrong with a run. The value is the name people see; the order is that of the core's TW_FIND_*."""

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
    STALE_READ = "read through the read-only cache of what the launch itself wrote"
    NOT_AWAITED = "access before griddepcontrol.wait to what the launch before uses"
    LATER_BLOCK = "waits for a block that may not have started"
    PEER_ABSENT = "access to shared memory of a block that may not be running"
    MBARRIER = "misuse of an mbarrier"
    NO_PROXY_FENCE = "asynchronous read of what fence.proxy.async has not shown"
    BULK_COPY = "bulk copy that the hardware refuses"
    WGMMA_IN_FLIGHT = "register of a wgmma still in flight"
    WGMMA_NOT_FENCED = "wgmma without a fence before it"
    WARPGROUP = "instruction of a warpgroup not executed by all of it as one"
    # Not the core's: seen when the whole plan has run, by no single instruction.
    OUTPUT_NOT_WRITTEN = "output never written"
    COUNTER_LEFT = "counter not left at zero"


@dataclass(frozen=True)
class SourcePlace:
    """A line of a file as the compiler names it; the kernel file has the name `KERNEL_FILE_NAME`."""

    file: str
    line: int


def kernel_line(places: tuple[SourcePlace, ...]) -> int | None:
    """The innermost line of the kernel file; a header's instruction belongs to the line that used it."""
    return next((place.line for place in places if place.file == KERNEL_FILE_NAME), None)


@dataclass(frozen=True)
class ThreadRecord:
    block: Dim3
    thread: Dim3

    def __str__(self) -> str:
        return f"thread {_index(self.thread)} of block {_index(self.block)}"


@dataclass(frozen=True)
class FindingRecord:
    """One fault at one instruction, however many threads did it; the first one is shown."""

    kind: FindingKind
    kernel: str  # the C++ name expression of the launch
    launch_line: int  # its `launch` line in the kernel file
    line: int | None  # of the kernel file; None where the compiler names none
    column: int  # 0: the compiler gives none
    thread: ThreadRecord | None
    where: str  # "x[3, 17]", "4 bytes after the end of y"
    detail: str
    count: int  # how often in one run, at most
    other_line: int | None = None  # the other side of a race, in the kernel file
    other_thread: ThreadRecord | None = None
    ptx_line: int = 0
    ptx_text: str = ""
    places: tuple[SourcePlace, ...] = ()  # innermost first, then where it was inlined
    schedules: int = 1  # how many showed it

    def __str__(self) -> str:
        """The finding in one sentence."""
        at = f", line {self.line}" if self.line is not None else f", PTX line {self.ptx_line}" if self.ptx_line else ""
        thread = f", {self.thread}" if self.thread is not None else ""
        more = f" ({self.count} times)" if self.count > 1 and self.thread is not None else ""
        parts = [f"{self.kernel}{at}{thread}: {self.kind.value}", self.where, self.detail]
        return ": ".join(part for part in parts if part) + more


@dataclass(frozen=True)
class InstructionRecord:
    """How often one PTX instruction ran and what it cost."""

    ptx_line: int
    ptx_text: str
    places: tuple[SourcePlace, ...]
    executions: int  # by a warp
    active_lanes: int  # summed over executions
    requests: int  # memory requests, one per warp execution with an active lane
    sectors: int  # 32-byte sectors touched by global requests
    ideal_sectors: int  # the fewest that could carry the bytes asked for
    passes: int  # shared-memory passes
    ideal_passes: int
    bytes: int  # asked for by the lanes
    lines: int = 0  # 128-byte lines touched by global requests
    new_sectors: int = 0  # of those that loads touched: not read by the same block shortly before


@dataclass(frozen=True)
class CountsRecord:
    """One emulated launch in numbers; never mixed with measured times."""

    kernel: str
    launch_line: int
    blocks: int  # run, of the grid's
    grid_blocks: int
    warp_instructions: int
    thread_instructions: int
    instructions: tuple[InstructionRecord, ...]


LOOP = "loop"


class Seen(IntFlag):
    """What is noted of one instruction, or of the head of a loop. The core's TW_COVERED_* and TW_TRIPS_*."""

    RAN = 1
    SKIPPED = 2  # a lane came to it and its condition did not hold
    FIRST = 4  # of a selection's operands
    SECOND = 8
    ONE_TRIP = 16  # of a warp, each time it came to the loop
    TWO_TRIPS = 32
    SEVERAL_TRIPS = 64  # three to eight
    MANY_TRIPS = 128


@dataclass(frozen=True)
class CoveredSite:
    """The instructions of one kind that come from one place, as the compiler ordered them."""

    lines: tuple[int, ...]  # of the kernel file, innermost first, then where it was inlined
    what: str  # the opcode, or `LOOP`
    seen: str  # a `Seen` for each, in two hexadecimal digits


@dataclass(frozen=True)
class CoverageRecord:
    """What of a kernel ran in one launch."""

    kernel: str
    launch_line: int
    program: str  # the same where the code and its lines are the same
    sites: tuple[CoveredSite, ...]


@dataclass(frozen=True)
class TouchRecord:
    """The first time that the first warp of a launch came to one instruction that touches a tensor."""

    kernel: str
    launch_line: int
    line: int | None  # of the kernel file
    ptx_text: str
    tensor: str
    reads: bool
    writes: bool
    bytes: int  # for each lane
    offsets: tuple[tuple[int, int], ...]  # of each lane that took part: its number, and its first byte in the tensor


@dataclass(frozen=True)
class WrittenPart:
    """Of an output that not all blocks have written: the elements at these indices of each axis, in row-major order."""

    name: str
    indices: tuple[tuple[int, ...], ...]
    content: bytes
    written: bytes  # 1 for each element that was written, else 0
    odd: tuple[tuple[int, ...], ...] = ()  # some indices of each axis whose elements are not those a period before


@dataclass(frozen=True)
class EmulatedRun:
    """What the emulator tells beside the outputs, over all schedules; counts are of the first."""

    findings: tuple[FindingRecord, ...]
    counts: tuple[CountsRecord, ...]
    thread_instructions: int
    schedules: int
    varying: tuple[str, ...]  # outputs that differ from schedule to schedule
    printed: str
    seconds: float
    incomplete: tuple[str, ...] = ()  # what the checkers could not see to the end, a sentence each
    harmless: tuple[FindingRecord, ...] = ()  # reads of what nothing wrote that no result depends on, last bulk stores
    coverage: tuple[CoverageRecord, ...] = ()  # of every launch, under every schedule
    written: tuple[WrittenPart, ...] = ()  # where the emulation asks for it
    touches: tuple[TouchRecord, ...] = ()  # in the order of instructions, launch by launch; where they are asked for


def _index(index: Dim3) -> str:
    """`5` for (5, 0, 0): most kernels use one dimension."""
    return str(index[0]) if index[1:] == (0, 0) else str(index)

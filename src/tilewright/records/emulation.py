"""Options and results of an emulated run: checks, findings with their places, counts per instruction."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntFlag

from tilewright.records.build import KERNEL_FILE_NAME
from tilewright.records.steps import Dim3


class Check(str, Enum):
    """Optional checks. Bounds are always checked, for the safety of the process."""

    UNINITIALISED = "uninitialised"
    RACES = "races"
    WARP = "warp"  # masks of warp operations, barriers not reached by all
    COUNTERS = "counters"
    COVERAGE = "coverage"  # executed instructions and branch directions
    TOUCHES = "touches"  # the bytes of each tensor that each lane accesses, for display


ALL_CHECKS = tuple(one for one in Check if one is not Check.TOUCHES)


@dataclass(frozen=True)
class Emulation:
    """How an emulating device runs a job. The first schedule is in order, the others are random."""

    checks: tuple[Check, ...] = ALL_CHECKS
    schedules: int = 1
    seed: int = 0
    instruction_budget: int = 4_000_000_000  # thread instructions per run of the plan
    sampled_blocks: int | None = None  # of each launch; None: all
    sample_edges: bool = True  # include the first and last block, where faults are likely; else a fair sample
    written_elements: int = 0  # with sampled blocks: how many written elements of each output are returned at most
    # Per output and axis, the period after which inputs repeat; 0: none. Differences there are returned first.
    written_periods: tuple[tuple[str, tuple[int, ...]], ...] = ()
    # Per launch, the blocks to run, in place of sampled ones; an empty tuple: all.
    chosen_blocks: tuple[tuple[int, ...], ...] = ()
    # Run only what decides where memory is accessed, for all blocks. Inputs that are `unknown` get no contents.
    addresses: bool = False
    unknown: tuple[str, ...] = ()
    assumed: bool = False  # with `addresses`: where they depend on values that are not given, both ways are followed
    workers: int = 1  # OS threads, 0 for one per core; with several, races are not reproducible

    def __post_init__(self) -> None:
        blocks = 1 if self.sampled_blocks is None else self.sampled_blocks
        if min(self.schedules, self.instruction_budget, blocks) < 1 or self.workers < 0:
            raise ValueError("schedules, instruction_budget and sampled_blocks are at least 1, workers at least 0")

    def schedule_seed(self, number: int) -> int | None:
        """The seed of schedule `number`; None for the first, which is in order."""
        return None if number == 0 else self.seed + number


class FindingKind(str, Enum):
    """The kind of a finding. The value is shown to users; the order is that of the core's TW_FIND_*."""

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
    NOT_AWAITED = "access to what an earlier launch may still use"
    LATER_BLOCK = "waits for a block that may not have started"
    PEER_ABSENT = "access to shared memory of a block that may not be running"
    MBARRIER = "misuse of an mbarrier"
    NO_PROXY_FENCE = "asynchronous read of what fence.proxy.async has not shown"
    BULK_COPY = "bulk copy that the hardware refuses"
    WGMMA_IN_FLIGHT = "register of a wgmma still in flight"
    WGMMA_NOT_FENCED = "wgmma without a fence before it"
    WARPGROUP = "instruction of a warpgroup not executed by all of it as one"
    # Not from the core: found in the code, or after the whole plan has run.
    UNINITIALISED_REGISTER = "read of a register nothing wrote"
    OUTPUT_NOT_WRITTEN = "output never written"
    COUNTER_LEFT = "counter not left at zero"


@dataclass(frozen=True)
class SourcePlace:
    """A line of a file as named by the compiler; the kernel file is `KERNEL_FILE_NAME`."""

    file: str
    line: int


def kernel_line(places: tuple[SourcePlace, ...]) -> int | None:
    """The innermost line of the kernel file; an instruction from a header belongs to the line that uses it."""
    return next((place.line for place in places if place.file == KERNEL_FILE_NAME), None)


@dataclass(frozen=True)
class ThreadRecord:
    block: Dim3
    thread: Dim3

    def __str__(self) -> str:
        return f"thread {_index(self.thread)} of block {_index(self.block)}"


@dataclass(frozen=True)
class FindingRecord:
    """A fault at one instruction; of several threads the first is shown."""

    kind: FindingKind
    kernel: str  # the C++ name expression of the launch
    launch_line: int  # its `launch` line in the kernel file
    line: int | None  # of the kernel file; None where the compiler names none
    column: int  # 0: the compiler gives none
    thread: ThreadRecord | None
    where: str  # "x[3, 17]", "4 bytes after the end of y"
    detail: str
    count: int  # how often in one run, at most
    other_line: int | None = None  # the other access of a race
    other_thread: ThreadRecord | None = None
    ptx_line: int = 0
    ptx_text: str = ""
    places: tuple[SourcePlace, ...] = ()  # innermost first, then where it was inlined
    schedules: int = 1  # number of schedules with this finding

    def __str__(self) -> str:
        """The finding in one sentence."""
        at = f", line {self.line}" if self.line is not None else f", PTX line {self.ptx_line}" if self.ptx_line else ""
        thread = f", {self.thread}" if self.thread is not None else ""
        more = f" ({self.count} times)" if self.count > 1 and self.thread is not None else ""
        parts = [f"{self.kernel}{at}{thread}: {self.kind.value}", self.where, self.detail]
        return ": ".join(part for part in parts if part) + more


@dataclass(frozen=True)
class InstructionRecord:
    """Execution counts of one PTX instruction."""

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
    """The counts of one emulated launch."""

    kernel: str
    launch_line: int
    blocks: int  # run, of the grid's
    grid_blocks: int
    warp_instructions: int
    thread_instructions: int
    instructions: tuple[InstructionRecord, ...]


LOOP = "loop"


class Seen(IntFlag):
    """Coverage of one instruction or loop head: the core's TW_COVERED_* and TW_TRIPS_*."""

    RAN = 1
    SKIPPED = 2  # a lane skipped it because its predicate was false
    FIRST = 4  # of a selection's operands
    SECOND = 8
    ONE_TRIP = 16  # of a warp, per entry into the loop
    TWO_TRIPS = 32
    SEVERAL_TRIPS = 64  # three to eight
    MANY_TRIPS = 128


@dataclass(frozen=True)
class CoveredSite:
    """The instructions of one kind from one source place, in program order."""

    lines: tuple[int, ...]  # of the kernel file, innermost first, then where it was inlined
    what: str  # the opcode, or `LOOP`
    seen: str  # a `Seen` for each, in two hexadecimal digits


@dataclass(frozen=True)
class CoverageRecord:
    """The coverage of a kernel in one launch."""

    kernel: str
    launch_line: int
    program: str  # the same where the code and its lines are the same
    sites: tuple[CoveredSite, ...]


@dataclass(frozen=True)
class TouchRecord:
    """The first execution, by the first warp of a launch, of an instruction that accesses a tensor."""

    kernel: str
    launch_line: int
    line: int | None  # of the kernel file
    ptx_text: str
    tensor: str
    reads: bool
    writes: bool
    bytes: int  # for each lane
    offsets: tuple[tuple[int, int], ...]  # per active lane: its number and its byte offset in the tensor


@dataclass(frozen=True)
class WrittenPart:
    """Part of an output of which only some blocks ran: the elements at these indices per axis, row-major."""

    name: str
    indices: tuple[tuple[int, ...], ...]
    content: bytes
    written: bytes  # 1 for each element that was written, else 0
    odd: tuple[tuple[int, ...], ...] = ()  # some indices per axis whose elements differ from those one period before


@dataclass(frozen=True)
class EmulatedRun:
    """The result of an emulated run besides its outputs, over all schedules; counts are of the first."""

    findings: tuple[FindingRecord, ...]
    counts: tuple[CountsRecord, ...]
    thread_instructions: int
    schedules: int
    varying: tuple[str, ...]  # outputs that differ from schedule to schedule
    printed: str
    seconds: float
    incomplete: tuple[str, ...] = ()  # what the checkers could not check completely, a sentence each
    harmless: tuple[FindingRecord, ...] = ()  # uninitialised reads that affect no result, final bulk stores
    coverage: tuple[CoverageRecord, ...] = ()  # of every launch and schedule
    written: tuple[WrittenPart, ...] = ()  # if requested
    touches: tuple[TouchRecord, ...] = ()  # if requested, by launch and instruction


def _index(index: Dim3) -> str:
    """`5` for (5, 0, 0): most kernels use one dimension."""
    return str(index[0]) if index[1:] == (0, 0) else str(index)

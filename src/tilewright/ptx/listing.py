"""Counts made readable: totals of a launch, and the source with what each line did.

All numbers are the emulator's. Time is not among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilewright.ptx.classes import FlopKind, InstructionClass, classify, opcode_of, work_of
from tilewright.ptx.results import InstructionCount, LaunchCounts
from tilewright.ptx.syntax import Place

WARP_LANES = 32
SECTOR_BYTES = 32


@dataclass(frozen=True)
class ClassTotal:
    """One kind of instruction over a launch."""

    kind: InstructionClass
    warp_instructions: int
    thread_instructions: int
    share: float  # of the launch's thread instructions, 0 to 1


@dataclass(frozen=True)
class Traffic:
    """What one kind of memory instruction moved."""

    kind: InstructionClass
    requests: int
    bytes: int  # asked for by the lanes
    sectors: int
    ideal_sectors: int
    passes: int
    ideal_passes: int

    @property
    def sector_bytes(self) -> int:
        """What the sectors carry: the bytes that cross to the L2 cache, if the L1 cache holds none of them."""
        return self.sectors * SECTOR_BYTES


@dataclass(frozen=True)
class Operations:
    kind: FlopKind
    count: int


@dataclass(frozen=True)
class LevelBytes:
    """Bytes by level: asked for by the lanes, and carried in whole sectors where the level has sectors."""

    global_bytes: int
    global_sector_bytes: int
    shared_bytes: int
    local_bytes: int
    constant_bytes: int  # and parameters


@dataclass(frozen=True)
class LaunchSummary:
    """One launch in totals."""

    kernel: str
    blocks: int
    grid_blocks: int
    warp_instructions: int
    thread_instructions: int
    active_lanes: float  # per warp instruction, of 32
    mix: tuple[ClassTotal, ...]  # the most frequent first
    traffic: tuple[Traffic, ...]
    bytes: LevelBytes
    flops: tuple[Operations, ...]  # of the ordinary units
    tensor_operations: tuple[Operations, ...]  # a multiplication and an addition are two


@dataclass(frozen=True)
class LineCounts:
    """What the instructions of one source line did. `line` 0 gathers those of no line shown."""

    file: str
    line: int
    source: str
    ptx_instructions: int
    warp_instructions: int
    thread_instructions: int
    share: float  # of the launch's thread instructions, 0 to 1
    active_lanes: float  # per warp instruction, of 32
    global_requests: int
    sectors: int
    ideal_sectors: int
    shared_requests: int
    passes: int
    ideal_passes: int
    bytes: int


@dataclass(frozen=True)
class Listing:
    """The source of a launch, each executed line with its counts."""

    summary: LaunchSummary
    lines: tuple[LineCounts, ...]  # by file and line; only lines that ran
    elsewhere: LineCounts | None  # instructions that belong to no line of the given sources
    sources: tuple[tuple[str, str], ...]  # file, text


def summarise(counts: LaunchCounts) -> LaunchSummary:
    """Instruction mix, bytes by level, operations by kind."""
    kinds: dict[InstructionClass, list[InstructionCount]] = {}
    operations: dict[FlopKind, int] = {}
    for count in counts.instructions:
        parts = opcode_of(count.ptx_text)
        kinds.setdefault(classify(parts), []).append(count)
        work = work_of(parts)
        if work is not None:
            done = work.per_lane * count.active_lanes + work.per_warp * count.executions
            operations[work.kind] = operations.get(work.kind, 0) + done
    mix = [
        ClassTotal(
            kind,
            sum(count.executions for count in members),
            sum(count.active_lanes for count in members),
            _ratio(sum(count.active_lanes for count in members), counts.thread_instructions),
        )
        for kind, members in kinds.items()
    ]
    traffic = [_traffic(kind, members) for kind, members in kinds.items() if any(count.requests for count in members)]
    done_operations = [Operations(kind, operations[kind]) for kind in FlopKind if operations.get(kind)]
    return LaunchSummary(
        kernel=counts.kernel,
        blocks=counts.blocks,
        grid_blocks=counts.grid_blocks,
        warp_instructions=counts.warp_instructions,
        thread_instructions=counts.thread_instructions,
        active_lanes=_ratio(counts.thread_instructions, counts.warp_instructions),
        mix=tuple(sorted((each for each in mix if each.warp_instructions), key=lambda each: -each.thread_instructions)),
        traffic=tuple(sorted(traffic, key=lambda each: -each.bytes)),
        bytes=_level_bytes(kinds),
        flops=tuple(each for each in done_operations if not each.kind.is_tensor),
        tensor_operations=tuple(each for each in done_operations if each.kind.is_tensor),
    )


def annotate(counts: LaunchCounts, sources: Mapping[str, str]) -> Listing:
    """Counts per line of `sources` (file as `.file` names it, or its last part -> text).

    An instruction inlined from a file not given, a header say, counts for the line it was inlined at.
    """
    gathered: dict[tuple[str, int], list[InstructionCount]] = {}
    elsewhere: list[InstructionCount] = []
    for count in counts.instructions:
        where = _shown_place(count.place, sources)
        if where is None:
            elsewhere.append(count)
        else:
            gathered.setdefault(where, []).append(count)
    texts = {name: text.splitlines() for name, text in sources.items()}
    total = counts.thread_instructions
    lines: list[LineCounts] = []
    for (file, line), members in sorted(gathered.items()):
        text = texts[file][line - 1] if 0 < line <= len(texts[file]) else ""
        counted = _line_counts(file, line, text, members, total)
        if counted.warp_instructions:
            lines.append(counted)
    rest = _line_counts("", 0, "", elsewhere, total)
    return Listing(summarise(counts), tuple(lines), rest if rest.warp_instructions else None, tuple(sources.items()))


def _shown_place(place: Place | None, sources: Mapping[str, str]) -> tuple[str, int] | None:
    while place is not None:
        for name in (place.file, place.file.rpartition("/")[2]):
            if name in sources:
                return name, place.line
        place = place.inlined_at
    return None


@dataclass
class _Sum:
    """Totals over some instructions."""

    executions: int = 0
    active_lanes: int = 0
    requests: int = 0
    global_requests: int = 0
    shared_requests: int = 0
    sectors: int = 0
    ideal_sectors: int = 0
    passes: int = 0
    ideal_passes: int = 0
    bytes: int = 0


def _sum(members: Iterable[InstructionCount]) -> _Sum:
    total = _Sum()
    for count in members:
        total.executions += count.executions
        total.active_lanes += count.active_lanes
        total.requests += count.requests
        total.global_requests += count.requests if count.sectors else 0
        total.shared_requests += count.requests if count.passes else 0
        total.sectors += count.sectors
        total.ideal_sectors += count.ideal_sectors
        total.passes += count.passes
        total.ideal_passes += count.ideal_passes
        total.bytes += count.bytes
    return total


def _traffic(kind: InstructionClass, members: list[InstructionCount]) -> Traffic:
    total = _sum(members)
    return Traffic(
        kind, total.requests, total.bytes, total.sectors, total.ideal_sectors, total.passes, total.ideal_passes
    )


_CONSTANT = (InstructionClass.CONSTANT_LOAD, InstructionClass.PARAMETER)
_LOCAL = (InstructionClass.LOCAL_LOAD, InstructionClass.LOCAL_STORE)


def _level_bytes(kinds: Mapping[InstructionClass, list[InstructionCount]]) -> LevelBytes:
    """A generic access counts where its address led: to sectors (global) or to passes (shared)."""
    constant = _sum(count for kind in _CONSTANT for count in kinds.get(kind, ()))
    local = _sum(count for kind in _LOCAL for count in kinds.get(kind, ()))
    rest = [count for kind, members in kinds.items() if kind not in (*_CONSTANT, *_LOCAL) for count in members]
    return LevelBytes(
        global_bytes=sum(count.bytes for count in rest if count.sectors),
        global_sector_bytes=sum(count.sectors for count in rest) * SECTOR_BYTES,
        shared_bytes=sum(count.bytes for count in rest if count.passes),
        local_bytes=local.bytes,
        constant_bytes=constant.bytes,
    )


def _line_counts(
    file: str, line: int, source: str, members: list[InstructionCount], launch_thread_instructions: int
) -> LineCounts:
    total = _sum(members)
    return LineCounts(
        file=file,
        line=line,
        source=source,
        ptx_instructions=sum(1 for count in members if count.executions),
        warp_instructions=total.executions,
        thread_instructions=total.active_lanes,
        share=_ratio(total.active_lanes, launch_thread_instructions),
        active_lanes=_ratio(total.active_lanes, total.executions),
        global_requests=total.global_requests,
        sectors=total.sectors,
        ideal_sectors=total.ideal_sectors,
        shared_requests=total.shared_requests,
        passes=total.passes,
        ideal_passes=total.ideal_passes,
        bytes=total.bytes,
    )


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0

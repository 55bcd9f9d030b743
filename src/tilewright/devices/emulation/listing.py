"""Profiles from the emulator's counters: totals per launch, counts per source line, and costly lines, also as text.

There are no times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ptx.classes import FlopKind, InstructionClass, opcode_of, work_of
from tilewright.ptx.lower import classify
from tilewright.records import CountsRecord, InstructionRecord
from tilewright.records.emulation import kernel_line
from tilewright.records.gpu import SECTOR_BYTES, WARP_LANES


@dataclass(frozen=True)
class ClassTotal:
    """One class of instructions in a launch."""

    kind: InstructionClass
    warp_instructions: int
    thread_instructions: int
    share: float  # of the launch's thread instructions, 0 to 1


@dataclass(frozen=True)
class Traffic:
    """The traffic of one class of memory instructions."""

    kind: InstructionClass
    requests: int
    bytes: int  # requested by the lanes
    sectors: int
    ideal_sectors: int
    passes: int
    ideal_passes: int


@dataclass(frozen=True)
class LevelBytes:
    """Bytes per memory level: requested by the lanes, and for global memory in whole sectors."""

    global_bytes: int
    global_sector_bytes: int
    shared_bytes: int
    local_bytes: int
    constant_bytes: int  # and parameters


@dataclass(frozen=True)
class Operations:
    kind: FlopKind
    count: int


@dataclass(frozen=True)
class LaunchSummary:
    """Totals of one launch."""

    kernel: str
    blocks: int
    grid_blocks: int
    warp_instructions: int
    thread_instructions: int
    active_lanes: float  # per warp instruction, of 32
    mix: tuple[ClassTotal, ...]  # the most frequent first
    traffic: tuple[Traffic, ...]
    bytes: LevelBytes
    flops: tuple[Operations, ...]  # without tensor cores
    tensor_operations: tuple[Operations, ...]  # multiply and add count as two


@dataclass(frozen=True)
class LineCounts:
    """The counts of one source line. `line` 0 holds instructions of no shown line."""

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
    """The source of a launch, with counts per executed line."""

    summary: LaunchSummary
    lines: tuple[LineCounts, ...]  # by file and line; only lines that ran
    elsewhere: LineCounts | None  # instructions outside the given sources
    sources: tuple[tuple[str, str], ...]  # file, text


def class_of(ptx_text: str) -> InstructionClass:
    return classify(opcode_of(ptx_text))


def summarise(counts: CountsRecord) -> LaunchSummary:
    """Instruction mix, bytes per memory level, operations by kind."""
    kinds: dict[InstructionClass, list[InstructionRecord]] = {}
    operations: dict[FlopKind, int] = {}
    for count in counts.instructions:
        parts = opcode_of(count.ptx_text)
        kind = classify(parts)
        kinds.setdefault(kind, []).append(count)
        work = work_of(parts, kind)
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
    traffic = [
        Traffic(kind, requests=requests, **_moved(members))
        for kind, members in kinds.items()
        if (requests := sum(count.requests for count in members))
    ]
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


def make_listing(counts: CountsRecord, file: str, source: str) -> Listing:
    """Counts per line of the kernel file, which is shown as `file`.

    An instruction inlined from another file, such as a header, counts for the line it was inlined at.
    """
    gathered: dict[int | None, list[InstructionRecord]] = {}
    for count in counts.instructions:
        gathered.setdefault(kernel_line(count.places), []).append(count)
    elsewhere = gathered.pop(None, [])
    text = source.splitlines()
    total = counts.thread_instructions
    lines = [
        _line_counts(file, line, text[line - 1] if 0 < line <= len(text) else "", members, total)
        for line, members in sorted((line, members) for line, members in gathered.items() if line is not None)
    ]
    rest = _line_counts("", 0, "", elsewhere, total)
    ran = tuple(line for line in lines if line.warp_instructions)
    return Listing(summarise(counts), ran, rest if rest.warp_instructions else None, ((file, source),))


def _moved(members: list[InstructionRecord]) -> dict[str, int]:
    """The sums shared by `LineCounts` and `Traffic`."""
    names = ("bytes", "sectors", "ideal_sectors", "passes", "ideal_passes")
    return {name: sum(getattr(count, name) for count in members) for name in names}


_CONSTANT = (InstructionClass.CONSTANT_LOAD, InstructionClass.PARAMETER)
_LOCAL = (InstructionClass.LOCAL_LOAD, InstructionClass.LOCAL_STORE)


def _level_bytes(kinds: Mapping[InstructionClass, list[InstructionRecord]]) -> LevelBytes:
    """A generic access counts by its address: global if it has sectors, shared if it has passes."""
    rest = [count for kind, members in kinds.items() if kind not in (*_CONSTANT, *_LOCAL) for count in members]
    return LevelBytes(
        global_bytes=sum(count.bytes for count in rest if count.sectors),
        global_sector_bytes=sum(count.sectors for count in rest) * SECTOR_BYTES,
        shared_bytes=sum(count.bytes for count in rest if count.passes),
        local_bytes=sum(count.bytes for kind in _LOCAL for count in kinds.get(kind, ())),
        constant_bytes=sum(count.bytes for kind in _CONSTANT for count in kinds.get(kind, ())),
    )


def _line_counts(
    file: str, line: int, source: str, members: list[InstructionRecord], launch_thread_instructions: int
) -> LineCounts:
    executions = sum(count.executions for count in members)
    lanes = sum(count.active_lanes for count in members)
    return LineCounts(
        file=file,
        line=line,
        source=source,
        ptx_instructions=sum(1 for count in members if count.executions),
        warp_instructions=executions,
        thread_instructions=lanes,
        share=_ratio(lanes, launch_thread_instructions),
        active_lanes=_ratio(lanes, executions),
        global_requests=sum(count.requests for count in members if count.sectors),
        shared_requests=sum(count.requests for count in members if count.passes),
        **_moved(members),
    )


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


# -- costly lines --

# With odd sizes a request touches a sector or two more than ideal; that is not reported.
_COSTLY_TIMES = 2.0
_COSTLY_MORE = 3.0  # sectors or passes of a request


@dataclass(frozen=True)
class CostlyLine:
    """A line whose memory requests take far more sectors or passes than ideal: advice, not a fault."""

    kernel: str
    line: int
    source: str
    message: str


def costly_lines(listing: Listing) -> tuple[CostlyLine, ...]:
    """Lines far above the ideal number of sectors or passes, in the order of the file."""
    costly: list[CostlyLine] = []
    for line in listing.lines:
        for actual, ideal, requests, taken, fewest in (
            (line.sectors, line.ideal_sectors, line.global_requests, "sectors of global", "would carry the same bytes"),
            (line.passes, line.ideal_passes, line.shared_requests, "passes over shared", "without bank conflicts"),
        ):
            if actual >= _COSTLY_TIMES * ideal and actual - ideal >= _COSTLY_MORE * requests > 0:
                message = f"{actual / requests:.1f} {taken} memory for each request, {ideal / requests:.1f} {fewest}"
                costly.append(CostlyLine(listing.summary.kernel, line.line, line.source, message))
    return tuple(costly)


# -- as text --

WASTEFUL = 1.5  # times the ideal; lines above it are marked
_CONTEXT_LINES = 2

_HEADING = f"{'share':>6} {'warp instr':>11} {'lanes':>6} {'sectors/request':>16} {'passes/request':>15}"
_BLANK = " " * len(_HEADING)


def listing_text(listing: Listing) -> str:
    """The whole listing."""
    return render_summary(listing.summary) + "\n" + render_lines(listing)


def render_summary(summary: LaunchSummary) -> str:
    """Totals in a few lines."""
    ran = f"{summary.blocks:,} blocks"
    if summary.blocks != summary.grid_blocks:
        ran = f"{summary.blocks:,} of {summary.grid_blocks:,} blocks"
    lines = [
        f"{summary.kernel}: {ran}, {summary.warp_instructions:,} warp instructions, "
        f"{summary.thread_instructions:,} thread instructions, "
        f"{summary.active_lanes / WARP_LANES:.0%} of lanes active (emulated)"
    ]
    mix = ", ".join(f"{each.kind.value} {each.share:.1%}" for each in summary.mix)
    lines.append(f"  instructions: {mix or 'none'}")
    operations = [f"{each.kind.value} {each.count:,}" for each in (*summary.flops, *summary.tensor_operations)]
    if operations:
        lines.append(f"  operations: {', '.join(operations)}")
    level = summary.bytes
    lines.append(
        f"  bytes: global {level.global_bytes:,} ({level.global_sector_bytes:,} in sectors), "
        f"shared {level.shared_bytes:,}, local {level.local_bytes:,}, constant and parameters {level.constant_bytes:,}"
    )
    for traffic in summary.traffic:
        parts = [f"{traffic.requests:,} requests", f"{traffic.bytes:,} bytes"]
        if traffic.sectors:
            parts.append(f"{traffic.sectors:,} sectors, ideal {traffic.ideal_sectors:,}")
        if traffic.passes:
            parts.append(f"{traffic.passes:,} passes, ideal {traffic.ideal_passes:,}")
        lines.append(f"  {traffic.kind.value}: {'; '.join(parts)}")
    return "\n".join(lines) + "\n"


def render_lines(listing: Listing) -> str:
    """The source with counts in the margin. A `!` marks lines with wasteful memory requests."""
    out: list[str] = []
    for file, text in listing.sources:
        counted = {line.line: line for line in listing.lines if line.file == file}
        if not counted:
            continue
        out += [f"{file}", f"{_HEADING}   line"]
        source = text.splitlines()
        previous = 0
        for number in _shown(sorted(counted), len(source)):
            if number != previous + 1:
                out.append(f"{_BLANK}    ...")
            previous = number
            line = counted.get(number)
            margin = _BLANK + " " if line is None else _margin(line)
            shown = source[number - 1] if number <= len(source) else ""
            out.append(f"{margin} {number:>5} | {shown}".rstrip())
    if listing.elsewhere is not None:
        out.append(f"{_margin(listing.elsewhere)} on no line of the source")
    return "\n".join(out) + "\n"


def _shown(counted: list[int], last: int) -> list[int]:
    numbers: set[int] = set()
    for line in counted:
        numbers.update(range(max(1, line - _CONTEXT_LINES), min(max(last, line), line + _CONTEXT_LINES) + 1))
    return sorted(numbers)


def _margin(line: LineCounts) -> str:
    sectors = _per_request(line.sectors, line.ideal_sectors, line.global_requests)
    passes = _per_request(line.passes, line.ideal_passes, line.shared_requests)
    wasteful = line.sectors > WASTEFUL * line.ideal_sectors or line.passes > WASTEFUL * line.ideal_passes
    return (
        f"{line.share:>6.1%} {line.warp_instructions:>11,} {line.active_lanes / WARP_LANES:>6.0%} "
        f"{sectors:>16} {passes:>15}{'!' if wasteful else ' '}"
    )


def _per_request(actual: int, ideal: int, requests: int) -> str:
    if not requests:
        return ""
    return f"{actual / requests:.1f} (ideal {ideal / requests:.1f})"

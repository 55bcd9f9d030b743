"""The emulator's findings and counts as records: symbols become the plan's names, places become lines of the file."""

from __future__ import annotations

import re

from tilewright.ptx.results import Finding, InstructionCount, LaunchCounts, ThreadPlace
from tilewright.ptx.syntax import Place
from tilewright.records import (
    KERNEL_FILE_NAME,
    CountsRecord,
    FindingKind,
    FindingRecord,
    InstructionRecord,
    PackedLaunch,
    SourcePlace,
    ThreadRecord,
)

_MANGLED = re.compile(r"\b_Z[A-Za-z0-9_]+")
_NUMBER = re.compile(r"\d+")


def finding_record(finding: Finding, launch: PackedLaunch) -> FindingRecord:
    places = source_places(finding.place)
    return FindingRecord(
        kind=FindingKind[finding.kind.name],
        kernel=launch.kernel,
        launch_line=launch.line,
        line=kernel_line(places),
        column=0,
        thread=_thread(finding.thread),
        where=readable(finding.where),
        detail=readable(finding.detail),
        count=finding.count,
        other_line=kernel_line(source_places(finding.other_place)),
        other_thread=None if finding.other_thread is None else _thread(finding.other_thread),
        ptx_line=finding.ptx_line,
        ptx_text=finding.ptx_text,
        places=places,
    )


def counts_record(counts: LaunchCounts, launch: PackedLaunch) -> CountsRecord:
    places: dict[int, tuple[SourcePlace, ...]] = {}  # by identity: the instructions of a line share their place
    instructions = []
    for one in counts.instructions:
        known = places.get(id(one.place))
        if known is None:
            known = places[id(one.place)] = source_places(one.place)
        instructions.append(
            InstructionRecord(
                one.ptx_line,
                one.ptx_text,
                known,
                one.executions,
                one.active_lanes,
                one.requests,
                one.sectors,
                one.ideal_sectors,
                one.passes,
                one.ideal_passes,
                one.bytes,
            )
        )
    return CountsRecord(
        kernel=launch.kernel,
        launch_line=launch.line,
        blocks=counts.blocks,
        grid_blocks=counts.grid_blocks,
        warp_instructions=counts.warp_instructions,
        thread_instructions=counts.thread_instructions,
        instructions=tuple(instructions),
    )


def launch_counts(record: CountsRecord, file: str) -> LaunchCounts:
    """The inverse of `counts_record`, for listings; the kernel file is called `file`."""
    return LaunchCounts(
        kernel=record.kernel,
        blocks=record.blocks,
        grid_blocks=record.grid_blocks,
        warp_instructions=record.warp_instructions,
        thread_instructions=record.thread_instructions,
        instructions=tuple(_count(one, file) for one in record.instructions),
    )


def source_places(place: Place | None) -> tuple[SourcePlace, ...]:
    """The place and those it was inlined at, innermost first."""
    places: list[SourcePlace] = []
    while place is not None:
        places.append(SourcePlace(place.file, place.line))
        place = place.inlined_at
    return tuple(places)


def kernel_line(places: tuple[SourcePlace, ...]) -> int | None:
    """The innermost line of the kernel file; a header's instruction belongs to the line that used it."""
    return next((place.line for place in places if place.file == KERNEL_FILE_NAME), None)


def readable(text: str) -> str:
    """The text with shared variables under the names their author gave them, not the linker's."""
    return _MANGLED.sub(lambda found: _last_name(found.group()), text)


def _last_name(symbol: str) -> str:
    """`partial` of `_ZZ1fPfE7partial`: a name stands behind its length, and nothing but an ending behind it."""
    for found in reversed(list(_NUMBER.finditer(symbol))):
        size, rest = int(found.group()), symbol[found.end() :]
        if 0 < size <= len(rest) and rest[size : size + 1] in ("", "_", "E"):
            return rest[:size]
    return symbol


def _thread(place: ThreadPlace) -> ThreadRecord:
    return ThreadRecord(place.block, place.thread)


def _place(places: tuple[SourcePlace, ...], file: str) -> Place | None:
    place: Place | None = None
    for one in reversed(places):
        place = Place(file if one.file == KERNEL_FILE_NAME else one.file, one.line, place)
    return place


def _count(record: InstructionRecord, file: str) -> InstructionCount:
    return InstructionCount(
        ptx_line=record.ptx_line,
        ptx_text=record.ptx_text,
        place=_place(record.places, file),
        executions=record.executions,
        active_lanes=record.active_lanes,
        requests=record.requests,
        sectors=record.sectors,
        ideal_sectors=record.ideal_sectors,
        passes=record.passes,
        ideal_passes=record.ideal_passes,
        bytes=record.bytes,
    )

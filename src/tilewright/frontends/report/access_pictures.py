"""Pictures of who touches what, drawn from the emulator's records: the lanes of a warp over the bytes of a tensor, and
the first block over an output.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from tilewright.devices.emulation.listing import WASTEFUL
from tilewright.frontends.report import pictures
from tilewright.frontends.report.site_facts import Counted, NotCountable, count_lines
from tilewright.records import SECTOR_BYTES, Attempt, Run, TensorSpec, TouchRecord, WrittenPart

MOST_WRITTEN = 1 << 20  # elements of an output that are asked after; of more, some indices are left out
_WIDTH, _LEFT, _RIGHT, _TOP = 760, 76, 24, 62
_CELL = 18  # height of one row of bytes
_MOST_ROWS = 32  # of bytes
_ROW_BYTES = 128  # four sectors
_BOX_WIDTH, _BOX_HEIGHT = 420, 260
_PARTLY = "#8fc9ab"


@dataclass(frozen=True)
class Access:
    """One request of a warp in numbers."""

    touch: TouchRecord

    @property
    def sectors(self) -> int:
        return len({place // SECTOR_BYTES for place in self._bytes()})

    @property
    def fewest(self) -> int:
        """Sectors that could carry these bytes."""
        return -(-len(self._bytes()) // SECTOR_BYTES)

    @property
    def coalesced(self) -> bool:
        """By the same measure as listings mark a line that wastes sectors."""
        return self.sectors <= WASTEFUL * self.fewest

    @property
    def rows(self) -> list[int]:
        """The stretches of 128 bytes that are touched, as their first bytes."""
        return sorted({place // _ROW_BYTES * _ROW_BYTES for place in self._bytes()})

    def _bytes(self) -> set[int]:
        return {place for _, first in self.touch.offsets for place in range(first, first + self.touch.bytes)}

    @property
    def words(self) -> str:
        what = "writes" if self.touch.writes else "reads"
        lanes = len(self.touch.offsets)
        who = "Each lane" if lanes == 32 else "One lane" if lanes == 1 else f"{lanes} of the 32 lanes"
        whose = "s" if lanes in (1, 32) else ""
        verb = what if whose else what[:-1]
        judged = "coalesced" if self.coalesced else "not coalesced"
        many = f"{self.sectors} sectors move where {self.fewest} could do: {judged}"
        one = f"one sector of {SECTOR_BYTES} bytes moves"
        return f"{who} {verb} {self.touch.bytes} bytes of {self.touch.tensor}; {many if self.sectors > 1 else one}."


def access_picture(touch: TouchRecord, spec: TensorSpec | None) -> str:
    """Rows of 128 bytes, a cell for each lane's bytes with the lane's number in it; red: moved in vain."""
    access = Access(touch)
    rows = access.rows
    shown = rows[:_MOST_ROWS]
    scale = (_WIDTH - _LEFT - _RIGHT) / _ROW_BYTES
    body = []
    for number, row in enumerate(shown):
        y = _TOP + 14 + number * _CELL
        body.append(pictures.text(_LEFT - 8, y + 13, f"{row:,}", colour=pictures.GREY, anchor="end"))
        body += [
            _cell(_LEFT + place * scale, y, SECTOR_BYTES * scale, "white", pictures.FAINT)
            for place in range(0, 128, 32)
        ]
        body += _moved_in_vain(touch, row, y, scale)
        body += _lanes(touch, row, y, scale)
    height = _TOP + 14 + len(shown) * _CELL + 16
    if len(rows) > len(shown):
        body.append(pictures.text(_LEFT, height, f"and {len(rows) - len(shown)} more such stretches", anchor="start"))
        height += 16
    element = f", elements of {spec.dtype.itemsize} bytes" if spec else ""
    verb = "written" if touch.writes else "read"
    where = f" in line {touch.line}" if touch.line else ""
    title = f"{touch.tensor}: bytes {verb} by the first warp{where}"
    subtitle = (
        f"each cell: a lane's {touch.bytes} bytes, by lane number; left: byte in the tensor{element}; boxes: sectors"
    )
    return pictures.page(_WIDTH, height + 8, title, subtitle, _LEFT, body)


def _moved_in_vain(touch: TouchRecord, row: int, y: float, scale: float) -> list[str]:
    """Sectors of which some byte is wanted, in the colour of waste; what is wanted is drawn over it."""
    wanted = {
        place // SECTOR_BYTES * SECTOR_BYTES
        for _, first in touch.offsets
        for place in (first, first + touch.bytes - 1)
        if row <= place < row + _ROW_BYTES
    }
    return [
        _cell(_LEFT + (place - row) * scale, y, SECTOR_BYTES * scale, "#f3c9c0", pictures.FAINT)
        for place in sorted(wanted)
    ]


def _lanes(touch: TouchRecord, row: int, y: float, scale: float) -> list[str]:
    by_place: dict[int, list[int]] = {}
    for lane, first in touch.offsets:
        if row <= first < row + _ROW_BYTES:
            by_place.setdefault(first, []).append(lane)
    parts = []
    for first, lanes in sorted(by_place.items()):
        x, width = _LEFT + (first - row) * scale, min(touch.bytes, _ROW_BYTES) * scale
        colour = pictures.GOOD if touch.writes else pictures.DOT
        named = str(lanes[0]) if len(lanes) == 1 else f"{lanes[0]}-{lanes[-1]}" if len(lanes) < 32 else "all"
        text = pictures.text(x + width / 2, y + 13, named, colour="white", size=10) if width >= 7 * len(named) else ""
        who = f"lane{'s' if len(lanes) > 1 else ''} {', '.join(map(str, lanes))}"
        said = f"{who}: bytes {first:,} to {first + touch.bytes - 1:,}"
        parts.append(pictures.titled(said, _cell(x, y, width, colour, "white"), text))
    return parts


def _cell(x: float, y: float, width: float, fill: str, stroke: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_CELL - 3}" fill="{fill}" stroke="{stroke}"/>'


def tile_words(part: WrittenPart, spec: TensorSpec) -> str:
    """`The first block writes y[0:64, 0:48], 3,072 of 393,216 elements.`"""
    ranges = ", ".join(_range(indices) for indices in part.indices)
    place = f"{part.name}[{ranges}]" if ranges else part.name
    share = "" if _is_thinned(part) else f": {sum(part.written):,} of {spec.numel:,} elements"
    return f"The first block writes within {place}{share}."


def _is_thinned(part: WrittenPart) -> bool:
    """Whether indices may have been left out until what remains is little enough, so that nobody can count."""
    return len(part.written) > MOST_WRITTEN // 2 and not _is_gapless(part)


def _is_gapless(part: WrittenPart) -> bool:
    return all(one[-1] - one[0] + 1 == len(one) for one in part.indices)


def _is_whole(part: WrittenPart) -> bool:
    """Whether every element between the first and the last of each axis was written."""
    return all(part.written) and _is_gapless(part)


def _range(indices: tuple[int, ...]) -> str:
    return str(indices[0]) if len(indices) == 1 else f"{indices[0]}:{indices[-1] + 1}"


def tile_picture(part: WrittenPart, spec: TensorSpec, blocks: int) -> str:
    """The output as one rectangle, its last dimension from left to right; what the first block writes is filled in."""
    columns = spec.shape[-1] if spec.shape else 1
    rows = max(1, spec.numel // max(columns, 1))
    first = last = 0
    for size, indices in zip(spec.shape[:-1], part.indices[:-1], strict=True):
        first, last = first * size + indices[0], last * size + indices[-1]
    across = part.indices[-1] if part.indices else (0,)
    x = _LEFT + _BOX_WIDTH * across[0] / columns
    width = max(2.0, _BOX_WIDTH * (across[-1] - across[0] + 1) / columns)
    y = _TOP + 8 + _BOX_HEIGHT * first / rows
    height = max(2.0, _BOX_HEIGHT * (last - first + 1) / rows)
    colour = pictures.GOOD if _is_whole(part) else _PARTLY
    body = [
        f'<rect x="{_LEFT}" y="{_TOP + 8}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" fill="{pictures.FAINT}"/>',
        pictures.titled(
            tile_words(part, spec),
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>',
        ),
        pictures.text(_LEFT + _BOX_WIDTH / 2, _TOP + _BOX_HEIGHT + 26, f"{columns:,} columns"),
        pictures.text(_LEFT + _BOX_WIDTH + 10, _TOP + 8 + _BOX_HEIGHT / 2, f"{rows:,} rows", anchor="start"),
    ]
    title = f"{part.name}: what the first of {blocks:,} blocks writes"
    how = "green" if _is_whole(part) else "pale green: some elements within"
    subtitle = f"{how}: the first block's part, at least two pixels; grey: what the other blocks write"
    return pictures.page(_WIDTH, _TOP + _BOX_HEIGHT + 40, title, subtitle, _LEFT, body)


_MOST_ELEMENTS = 32 << 20  # of all inputs: drawing as many takes a second
_SECONDS = 60.0


@dataclass(frozen=True)
class LaunchShape:
    """One launch of a plan at the task's sizes."""

    kernel: str
    line: int
    blocks: int
    threads: int  # of a block
    shared_bytes: int  # of a block
    registers: int  # of a thread
    constants: tuple[tuple[str, str], ...] = ()  # those tuned, and those in its line


@dataclass(frozen=True)
class Look:
    """`written` is what the first block of each launch wrote; empty where all blocks had to run."""

    launches: tuple[LaunchShape, ...]
    specs: dict[str, TensorSpec]  # inputs and outputs, at the sizes that were run
    touches: tuple[TouchRecord, ...]
    written: tuple[WrittenPart, ...]
    counted: Counted | None
    problem: str = ""  # why there are no counts, or nothing at all
    sizes: str = ""  # that were run, where they are not the task's
    blocks: int = 0  # of the last launch at those sizes


def look_at(run: Run, attempt: Attempt, text: str) -> Look:
    """Some seconds of emulation; a kernel that cannot be emulated gives a `Look` with a `problem`."""
    from tilewright.devices.child_device import EmulatedDevice
    from tilewright.devices.protocol import DeviceError
    from tilewright.kernel_file import KernelFileError, parse
    from tilewright.measure.emulated_counts import affordable_sizes
    from tilewright.measure.preparation import NotPrepared, job_inputs, prepare
    from tilewright.records import Check, Emulation, Limits
    from tilewright.toolchain import ToolchainError

    counted, problem = None, ""
    try:
        counted = count_lines(run, attempt, text)
    except NotCountable as reason:
        problem = str(reason)
    choice = dict(attempt.tune.choice) if attempt.tune else None
    try:
        file, task = parse(text, "kernel.cu"), run.task
        real = prepare(file, task, choice)
        sizes = affordable_sizes(task, _MOST_ELEMENTS)
        built = real if sizes == task.sizes else prepare(file, task, real.evaluation.choice, sizes)
        alone = not any(step.cooperative for step in built.plan.launches)
        emulation = Emulation(
            (Check.TOUCHES,), sampled_blocks=1 if alone else None, written_elements=MOST_WRITTEN if alone else 0
        )
        job = built.job("look", job_inputs(task, sizes), limits=Limits(seconds=_SECONDS), emulation=emulation)
        with EmulatedDevice(task.profile) as emulator:
            emulated = getattr(emulator.execute(job), "emulated", None)
    except (KernelFileError, NotPrepared, DeviceError, ToolchainError) as error:
        return Look((), {}, (), (), counted, problem or str(error))
    launches = tuple(
        LaunchShape(
            step.kernel,
            step.line,
            math.prod(step.grid),
            math.prod(step.block),
            real.build.kernel(step.kernel).resources.static_smem_bytes + step.dynamic_smem_bytes if real.build else 0,
            real.build.kernel(step.kernel).resources.registers if real.build else 0,
            tuple(
                (name, str(value).lower())
                for name, value in real.evaluation.constants
                if name in real.evaluation.choice or re.search(rf"\b{name}\b", text.splitlines()[step.line - 1])
            ),
        )
        for step in real.plan.launches
    )
    specs = {**task.specs(sizes), **task.output_specs(sizes)}
    touches, written = (emulated.touches, emulated.written) if emulated else ((), ())
    smaller = "" if sizes == task.sizes else ", ".join(f"{name} = {size}" for name, size in sizes.items())
    blocks = math.prod(built.plan.launches[-1].grid) if built.plan.launches else 0
    return Look(launches, specs, touches, written, counted, problem, smaller, blocks)

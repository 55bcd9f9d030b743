"""Which structures pay for a program, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tilewright.playbook.cpp_text import has_quick_logarithms
from tilewright.playbook.families import Schedules, Structure
from tilewright.playbook.file_text import Fragment
from tilewright.playbook.row_program import Layout, RowProgram
from tilewright.playbook.structures.ahead import SHARE_BYTES, ahead_rows
from tilewright.playbook.structures.column_pieces import (
    can_piece,
    can_window,
    column_pieces,
    column_windows,
    pays_in_windows,
)
from tilewright.playbook.structures.columns import column_tiles, fits_tile, pays_in_tiles
from tilewright.playbook.structures.grid_stages import GRID_STAGED_BYTES, can_post, grid_staged_rows
from tilewright.playbook.structures.kept import can_keep, kept_rows
from tilewright.playbook.structures.long_rows import Holding, draft_rows, draft_scattered, held_inputs, long_rows
from tilewright.playbook.structures.passes import can_split, pass_rows
from tilewright.playbook.structures.pointwise import draft_elements, rectangle_elements, vector_elements
from tilewright.playbook.structures.registers import Team, fits, register_rows, stays_packed
from tilewright.playbook.structures.stages import STAGED_BYTES, can_stage, staged_rows
from tilewright.playbook.structures.teams import Team as SharingTeam
from tilewright.playbook.structures.teams import can_meet

_TINY_ROW_BYTES = 1024  # a block of its own would have next to nothing to do
_SHORT_ROW_BYTES = 4096  # a warp with 128 bytes a lane
_LEAST_SHARED_BYTES = 16 * 1024  # shorter rows are better off in registers
_BLOCK_ROW_BYTES = 64 * 1024  # beyond this a multiprocessor has room for one block and little to do while it waits
_SHARED_ROW_BYTES = 220 * 1024
_CLUSTER_ROW_BYTES = 8 * SHARE_BYTES
_FEW_ROWS = 256
_LONG_ROW = 8192  # elements
_VERY_LONG_ROW = 65536
_MULTIPROCESSORS = 128  # of a large GPU
_KEPT_ROW_BYTES = (32 << 20, 96 << 20)  # shorter ones are met for too often, and longer ones stay nowhere
_BESIDE_OTHERS = ("kept", "cluster-stages", "grid-stages")  # for some sizes, or some GPUs, alone
_GRID_ROW_BYTES = _MULTIPROCESSORS * SHARE_BYTES


@dataclass(frozen=True)
class Schedule:
    """A way to compute a program. Its fragment is a file, or one of several in a file."""

    program: RowProgram
    id: str
    summary: str
    fragment: Callable[..., Fragment]  # from the op line; `quick` and `hints` as the structures have them
    hints: bool = False  # whether results may be stored past the cache

    @property
    def structure(self) -> Structure:
        """The way as a file, with what to try where it fails or pays."""
        safer = polished = None
        quick = self.program.is_sixteen_bit or has_quick_logarithms(self.program)
        if quick:
            exact = partial(self._file, quick=False)
            safer = Structure(f"{self.id}-exact", f"{self.summary}; exact functions", exact)
        if self.hints and self.program.outputs_along:
            past = partial(self._file, hints=True)
            polished = Structure(f"{self.id}-uncached", f"{self.summary}; results stored past the cache", past)
        return Structure(self.id, self.summary, self._file, safer, polished)

    def _file(self, op_line: str, **options: bool) -> str:
        return self.fragment(op_line, **options).file()


def row_schedules(program: RowProgram) -> Schedules:
    pays = schedules(program)
    ids = [one.id for one in pays]
    others = (one.structure for one in every_schedule(program) if one.id not in ids)
    return Schedules(tuple(one.structure for one in pays), tuple(others))


def simple_schedule(program: RowProgram) -> Schedule:
    """For a small part of a file, where it takes no time however it is written."""
    if program.column_sums:
        return _schedule(program, "draft-strips", "first version: a block goes down a strip of rows", draft_rows)
    if program.layout is not Layout.ROWS:
        owner = "thread" if program.layout is Layout.COLUMNS else "block"
        return _schedule(
            program, f"draft-{program.layout.value}", f"first version: one {owner} per row", draft_scattered
        )
    if program.is_pointwise:
        return _schedule(program, "draft-elements", "first version: one thread per element", draft_elements)
    return _schedule(program, "draft-rows", "first version: one block per row, element by element", draft_rows)


def schedules(program: RowProgram) -> tuple[Schedule, ...]:
    """What pays at the task's sizes, the most promising first."""
    if program.layout is not Layout.ROWS:
        return _scattered_schedules(program)
    if program.is_flat:
        return (_schedule(program, "vectors", "16-byte vectors, one per thread", vector_elements, hints=True),)
    if program.column_sums:
        return _strips(program) if fits(program, Team.PERSISTENT, program.task_cols) else ()
    if program.is_pointwise:
        summary = "16-byte vectors, blocks that are rectangles of rows and columns"
        return (_schedule(program, "rectangles", summary, rectangle_elements),)
    return _row_schedules(program)


def best_schedule(program: RowProgram) -> Schedule:
    """For a file in which no other is tried: the first that is not for some sizes or GPUs alone."""
    return next((one for one in schedules(program) if one.id not in _BESIDE_OTHERS), simple_schedule(program))


def every_schedule(program: RowProgram) -> tuple[Schedule, ...]:
    """All that can be written for the program, whether it pays there or not."""
    if program.column_sums:
        return _strips(program)
    if program.layout is Layout.SEGMENTS:
        return (*_kept(program), _passes(program))
    if program.is_pointwise or program.layout is not Layout.ROWS:
        beside = [_windows(program)] if program.layout is Layout.COLUMNS and can_window(program) else []
        return tuple({one.id: one for one in (*schedules(program), *beside)}.values())
    return tuple(_all_row_schedules(program).values())


def _scattered_schedules(program: RowProgram) -> tuple[Schedule, ...]:
    """Where the elements of a row are not one after the other."""
    if program.layout is Layout.SEGMENTS:
        row_bytes = program.task_cols * program.widest.itemsize
        pays = _KEPT_ROW_BYTES[0] <= row_bytes <= _KEPT_ROW_BYTES[1]
        return (*(one for one in _kept(program) if pays), _passes(program))
    held, again = (partial(column_tiles, held=held) for held in (True, False))
    found = []
    summary = "tiles of neighbouring rows, read again in every step by teams that share the columns"
    last = _schedule(program, "column-tiles-again", summary, again)
    if pays_in_windows(program):
        found.append(_windows(program))
    elif can_piece(program):
        summary = "pieces of the columns for blocks of their own, aligned in phases"
        pieces = _schedule(program, "column-pieces", summary, column_pieces)
        return (last, pieces) if pays_in_tiles(program) else (pieces, last)
    elif fits_tile(program, program.task_cols):
        summary = "tiles of neighbouring rows, held in registers by teams that share the columns"
        found.append(_schedule(program, "column-tiles", summary, held))
    return (*found, last)


def _windows(program: RowProgram) -> Schedule:
    summary = "windows of memory after which rows lie alike in its lines, sums of their own for every vector"
    return _schedule(program, "column-windows", summary, column_windows)


def _kept(program: RowProgram) -> tuple[Schedule, ...]:
    summary = "all blocks share a row in segments, most of it kept on chip and the rest in the cache between steps"
    return (_schedule(program, "kept", summary, kept_rows),) if can_keep(program) else ()


def _passes(program: RowProgram) -> Schedule:
    summary = "many blocks share a row: pieces reduced in registers, put together, then the elements written"
    return _schedule(program, "passes", summary, partial(pass_rows, looped=False))


def _strips(program: RowProgram) -> tuple[Schedule, ...]:
    """With sums over rows: blocks that stay, since a strip's sums live in their registers."""
    vectors = -(-program.task_cols * program.widest.itemsize // 16)
    write = partial(register_rows, team=Team.PERSISTENT, teams=_around(min(vectors // 32, 16)))
    summary = "blocks that go down strips of rows, sums over rows kept in registers"
    return (_schedule(program, "strips", summary, write, hints=True),)


def _row_schedules(program: RowProgram) -> tuple[Schedule, ...]:
    known = _all_row_schedules(program)
    cols = program.task_cols
    row_bytes = cols * sum(one.dtype.itemsize for one in program.streams)
    blocks = -(-row_bytes // SHARE_BYTES)  # that it takes to hold a row
    order: list[str] = []
    if "split" in known and program.task_rows <= _FEW_ROWS and cols >= _LONG_ROW:
        order = ["split"]  # with a block for each row, most multiprocessors would have nothing to do
    elif row_bytes > _CLUSTER_ROW_BYTES or (cols >= _VERY_LONG_ROW and program.task_rows * blocks < _MULTIPROCESSORS):
        many = program.task_rows >= _MULTIPROCESSORS // 4
        order = ["grid-stages", "grid-ahead", "passes", "stream"] if many else ["passes"]
    elif program.sweeps == 1:
        order += ["lanes"] if row_bytes <= _SHORT_ROW_BYTES // 2 else []
        order += ["block", "stream"] if row_bytes >= _TINY_ROW_BYTES else []
    else:
        order += ["lanes"] if row_bytes <= _SHORT_ROW_BYTES else []
        longest = 2 * _BLOCK_ROW_BYTES if stays_packed(program) else _BLOCK_ROW_BYTES
        order += ["block"] if _TINY_ROW_BYTES <= row_bytes <= longest else []
        order += ["shared"] if row_bytes > _LEAST_SHARED_BYTES else []
        order += ["block"] if longest < row_bytes <= 2 * _BLOCK_ROW_BYTES else []
        order += ["cluster-stages", "cluster-ahead"] if row_bytes > 2 * _BLOCK_ROW_BYTES else []
        order += ["passes"] if row_bytes > _SHARED_ROW_BYTES else []
    staged = program.has_clusters and row_bytes % 16 == 0
    able = {
        "lanes": fits(program, Team.LANES, cols),
        "block": fits(program, Team.BLOCK, cols),
        "shared": row_bytes <= _SHARED_ROW_BYTES,
        "cluster-ahead": program.has_clusters and row_bytes <= _CLUSTER_ROW_BYTES,
        "grid-ahead": row_bytes <= _GRID_ROW_BYTES,
        "cluster-stages": staged and 4 * STAGED_BYTES < row_bytes <= 8 * STAGED_BYTES,
        "grid-stages": staged and row_bytes <= _MULTIPROCESSORS * GRID_STAGED_BYTES // 3,
        "stream": program.sweeps == 1,
    }
    return tuple(known[name] for name in order if name in known and able.get(name, True))


def _all_row_schedules(program: RowProgram) -> dict[str, Schedule]:
    """By id."""
    vectors = -(-program.task_cols * program.widest.itemsize // 16)
    warps = _around(min(vectors // 128, 16))
    lanes = partial(register_rows, team=Team.LANES, teams=_around(vectors))
    block = partial(register_rows, team=Team.BLOCK, teams=warps)
    stream, shared = (partial(long_rows, holding=holding) for holding in Holding)
    make = partial(_schedule, program)
    found = [
        make("lanes", "short rows: lanes of a warp share a row held in registers", lanes, hints=True),
        make("block", "the row held in registers by the warps of a block", block, hints=True),
        make("stream", "one block streams along the row, several 16-byte loads in flight", stream),
    ]
    if held_inputs(program):
        found.append(make("shared", "the row held in shared memory, brought by asynchronous copies", shared))
        together, everywhere = (partial(ahead_rows, team=one) for one in SharingTeam)
        summary = "a cluster of blocks shares the row in registers, the next one on its way to shared memory"
        found.append(make("cluster-ahead", summary, together))
        if can_meet(program):
            summary = "blocks of the whole grid share the row in registers, the next one on its way to shared memory"
            found.append(make("grid-ahead", summary, everywhere))
        if can_stage(program):
            summary = "a cluster of blocks shares the row, stages of the next ones on their way at a pace"
            found.append(make("cluster-stages", summary, staged_rows))
        if can_stage(program) and can_post(program):
            summary = "blocks of the whole grid share the row, stages of the next ones on their way at a pace"
            found.append(make("grid-stages", summary, grid_staged_rows))
    if can_split(program):
        looped = partial(pass_rows, looped=True)
        found.append(make("split", "many blocks share a row, a second kernel combines their parts", looped))
    found.append(_passes(program))
    return {one.id: one for one in found}


def _schedule(
    program: RowProgram,
    id: str,
    summary: str,
    write: Callable[..., Fragment],
    hints: bool = False,
) -> Schedule:
    return Schedule(program, id, summary, partial(write, program), hints)


def _around(wanted: int) -> tuple[int, ...]:
    """The powers of two up to 32, those near the wanted number first."""
    powers = (1, 2, 4, 8, 16, 32)
    best = max(one for one in powers if one <= max(wanted, 1))
    return tuple(sorted(powers, key=lambda one: (abs(one.bit_length() - best.bit_length()), one < best)))

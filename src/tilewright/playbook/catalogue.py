"""Which structures pay for a program, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.playbook.families import Structure
from tilewright.playbook.row_program import RowProgram
from tilewright.playbook.structures.draft import draft_rows
from tilewright.playbook.structures.long_rows import Holding, held_inputs, long_rows
from tilewright.playbook.structures.pointwise import draft_elements, rectangle_elements, vector_elements
from tilewright.playbook.structures.registers import Team, fits, register_rows
from tilewright.playbook.structures.split_rows import can_split, split_rows

_TINY_ROW_BYTES = 1024  # a block of its own would have next to nothing to do
_SHORT_ROW_BYTES = 4096  # a warp with 128 bytes a lane
_PERSISTENT_ROW_BYTES = 16 * 1024
_BLOCK_ROW_BYTES = 64 * 1024  # beyond this a multiprocessor has room for one block and little to do while it waits
_SHARED_ROW_BYTES = 220 * 1024
_CLUSTER_ROW_BYTES = 8 * _SHARED_ROW_BYTES
_FEW_ROWS = 256
_LONG_ROW = 8192  # elements


def draft(program: RowProgram) -> Structure:
    if program.column_sums:
        return Structure(
            "draft-strips", "first version: a block goes down a strip of rows", partial(draft_rows, program)
        )
    if program.is_pointwise:
        return Structure("draft-elements", "first version: one thread per element", partial(draft_elements, program))
    return Structure("draft-rows", "first version: one block per row, element by element", partial(draft_rows, program))


def structures(program: RowProgram) -> tuple[Structure, ...]:
    """What comes after the draft, the most promising first."""
    if program.is_flat:
        several = partial(vector_elements, several=True)
        return (
            _structure(program, "vectors", "16-byte vectors, one per thread", vector_elements, hints=True),
            _structure(program, "several-vectors", "16-byte vectors, several per thread", several, hints=True),
        )
    if program.column_sums:
        return _strips(program) if fits(program, Team.PERSISTENT, program.task_cols) else ()
    if program.is_pointwise:
        summary = "16-byte vectors, blocks that are rectangles of rows and columns"
        return (_structure(program, "rectangles", summary, rectangle_elements),)
    return _row_structures(program)


def every_structure(program: RowProgram) -> tuple[Structure, ...]:
    """All that can be written for the program, whether it pays there or not."""
    if program.column_sums:
        return (draft(program), *_strips(program))
    if program.is_pointwise:
        return (draft(program), *structures(program))
    return (draft(program), *_all_row_structures(program).values())


def _strips(program: RowProgram) -> tuple[Structure, ...]:
    """With sums over rows: blocks that stay, since a strip's sums live in their registers."""
    vectors = -(-program.task_cols * program.widest.itemsize // 16)
    write = partial(register_rows, team=Team.PERSISTENT, teams=_around(min(vectors // 32, 16)))
    summary = "blocks that go down strips of rows, sums over rows kept in registers"
    return (_structure(program, "strips", summary, write, hints=True),)


def _row_structures(program: RowProgram) -> tuple[Structure, ...]:
    known = _all_row_structures(program)
    cols = program.task_cols
    row_bytes = cols * sum(one.dtype.itemsize for one in program.streams)
    order: list[str] = []
    if "split" in known and program.task_rows <= _FEW_ROWS and cols >= _LONG_ROW:
        order = ["split"]  # with a block for each row, most multiprocessors would have nothing to do
    elif program.sweeps == 1:
        order += ["lanes"] if row_bytes <= _SHORT_ROW_BYTES // 2 else []
        order += ["block", "stream"] if row_bytes >= _TINY_ROW_BYTES else []
    else:
        order += ["lanes"] if row_bytes <= _SHORT_ROW_BYTES else []
        order += ["block"] if _TINY_ROW_BYTES <= row_bytes <= _BLOCK_ROW_BYTES else []
        order += ["persistent"] if _TINY_ROW_BYTES <= row_bytes <= _PERSISTENT_ROW_BYTES else []
        order += ["shared"] if row_bytes > _PERSISTENT_ROW_BYTES else []
        order += ["cluster", "block"] if row_bytes > _BLOCK_ROW_BYTES else []
        order += ["stream"] if row_bytes > _SHARED_ROW_BYTES else []
    able = {
        "lanes": fits(program, Team.LANES, cols),
        "block": fits(program, Team.BLOCK, cols),
        "persistent": fits(program, Team.PERSISTENT, cols),
        "shared": row_bytes <= _SHARED_ROW_BYTES,
        "cluster": row_bytes <= _CLUSTER_ROW_BYTES,
    }
    return tuple(known[name] for name in order if name in known and able.get(name, True))


def _all_row_structures(program: RowProgram) -> dict[str, Structure]:
    """By id."""
    vectors = -(-program.task_cols * program.widest.itemsize // 16)
    warps = _around(min(vectors // 128, 16))
    lanes = partial(register_rows, team=Team.LANES, teams=_around(vectors))
    block, persistent = (partial(register_rows, team=team, teams=warps) for team in (Team.BLOCK, Team.PERSISTENT))
    stream, shared, cluster = (partial(long_rows, holding=holding) for holding in Holding)
    make = partial(_structure, program)
    found = [
        make("lanes", "short rows: lanes of a warp share a row held in registers", lanes, hints=True),
        make("block", "the row held in registers by the warps of a block", block, hints=True),
        make("stream", "one block streams along the row, several 16-byte loads in flight", stream),
    ]
    if program.columns and program.sweeps > 1:
        summary = "blocks that stay for many rows, column vectors kept in registers"
        found.append(make("persistent", summary, persistent, hints=True))
    if held_inputs(program):
        found.append(make("shared", "the row held in shared memory, brought by asynchronous copies", shared))
        summary = "the row held in the shared memory of a cluster of blocks"
        found.append(make("cluster", summary, cluster, emulable=False))
    if can_split(program):
        found.append(make("split", "many blocks share a row, a second kernel combines their parts", split_rows))
    return {one.id: one for one in found}


def _structure(
    program: RowProgram, id: str, summary: str, write: Callable[..., str], hints: bool = False, emulable: bool = True
) -> Structure:
    write = partial(write, program)
    safer = polished = None
    if program.is_sixteen_bit:
        exact = partial(write, quick=False)
        safer = Structure(f"{id}-exact", f"{summary}; exact functions", exact, emulable=emulable)
    if hints and program.outputs_along:
        past = partial(write, hints=True)
        polished = Structure(f"{id}-uncached", f"{summary}; results stored past the cache", past)
    return Structure(id, summary, write, safer, polished, emulable)


def _around(wanted: int) -> tuple[int, ...]:
    """The powers of two up to 32, those near the wanted number first."""
    powers = (1, 2, 4, 8, 16, 32)
    best = max(one for one in powers if one <= max(wanted, 1))
    return tuple(sorted(powers, key=lambda one: (abs(one.bit_length() - best.bit_length()), one < best)))

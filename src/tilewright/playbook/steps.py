"""Which structures pay for a program, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tilewright.playbook.row_program import RowProgram
from tilewright.playbook.structures.draft import draft_rows
from tilewright.playbook.structures.long_rows import Holding, held_inputs, long_rows
from tilewright.playbook.structures.pointwise import draft_elements, rectangle_elements, vector_elements
from tilewright.playbook.structures.registers import Choices, Team, fits, register_rows
from tilewright.playbook.structures.split_rows import can_split, split_rows

_TINY_ROW_BYTES = 1024  # a block of its own would have next to nothing to do
_SHORT_ROW_BYTES = 4096  # a warp with 128 bytes a lane
_PERSISTENT_ROW_BYTES = 16 * 1024
_BLOCK_ROW_BYTES = 64 * 1024  # beyond this a multiprocessor has room for one block and little to do while it waits
_SHARED_ROW_BYTES = 220 * 1024
_CLUSTER_ROW_BYTES = 8 * _SHARED_ROW_BYTES
_FEW_ROWS = 256
_LONG_ROW = 8192  # elements

Write = Callable[[RowProgram, str], str]


@dataclass(frozen=True)
class Step:
    """A structure: the line that describes it, the file, and what to try where it fails or is to be polished."""

    summary: str
    write: Write
    safer: Step | None = None  # the same with exact functions in place of quick ones
    polished: Step | None = None  # the same with hints to the cache
    emulable: bool = True  # clusters are not


def draft(program: RowProgram) -> Step:
    if program.is_pointwise:
        return Step("first version: one thread per element", draft_elements)
    return Step("first version: one block per row, element by element", draft_rows)


def structures(program: RowProgram) -> tuple[Step, ...]:
    """The steps after the draft, the most promising first."""
    if program.is_flat:
        return (
            _step(program, "16-byte vectors, one per thread", vector_elements, hints=True),
            _step(program, "16-byte vectors, several per thread", partial(vector_elements, several=True), hints=True),
        )
    if program.is_pointwise:
        return (_step(program, "16-byte vectors, blocks that are rectangles of rows and columns", rectangle_elements),)
    return _row_structures(program)


def every_step(program: RowProgram) -> tuple[Step, ...]:
    """Every structure that can be written for the program, whether it pays there or not."""
    if program.is_pointwise:
        return (draft(program), *structures(program))
    return (draft(program), *_all_row_structures(program).values())


def _row_structures(program: RowProgram) -> tuple[Step, ...]:
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


def _all_row_structures(program: RowProgram) -> dict[str, Step]:
    vectors = -(-program.task_cols * program.widest.itemsize // 16)
    warps, lanes = _around(min(vectors // 128, 16), 32), _around(vectors, 32)
    rows = partial(register_rows, choices=Choices(warps))
    found = {
        "lanes": _step(
            program,
            "short rows: lanes of a warp share a row held in registers",
            partial(register_rows, team=Team.LANES, choices=Choices(lanes)),
            hints=True,
        ),
        "block": _step(
            program, "the row held in registers by the warps of a block", partial(rows, team=Team.BLOCK), hints=True
        ),
        "stream": _step(
            program,
            "one block streams along the row, several 16-byte loads in flight",
            partial(long_rows, holding=Holding.NOWHERE),
        ),
    }
    if program.columns and program.sweeps > 1:
        persistent = partial(rows, team=Team.PERSISTENT)
        found["persistent"] = _step(
            program, "blocks that stay for many rows, column vectors kept in registers", persistent, hints=True
        )
    if held_inputs(program):
        found["shared"] = _step(
            program,
            "the row held in shared memory, brought by asynchronous copies",
            partial(long_rows, holding=Holding.BLOCK),
        )
        found["cluster"] = _step(
            program,
            "the row held in the shared memory of a cluster of blocks",
            partial(long_rows, holding=Holding.CLUSTER),
            emulable=False,
        )
    if can_split(program):
        found["split"] = _step(program, "many blocks share a row, a second kernel combines their parts", split_rows)
    return found


def _step(
    program: RowProgram, summary: str, write: Callable[..., str], hints: bool = False, emulable: bool = True
) -> Step:
    exact = Step(f"{summary}; exact functions", partial(write, quick=False), emulable=emulable)
    safer = exact if program.is_sixteen_bit else None
    polished = Step(f"{summary}; results stored past the cache", partial(write, hints=True)) if hints else None
    if polished is not None and not any(one.varies for one in program.outputs):
        polished = None
    return Step(summary, write, safer, polished, emulable)


def _around(wanted: int, most: int) -> tuple[int, ...]:
    """Powers of two up to `most`, those near the wanted number first."""
    best = 1
    while best * 2 <= min(max(wanted, 1), most):
        best *= 2
    powers = [1 << exponent for exponent in range(most.bit_length()) if 1 << exponent <= most]
    return tuple(sorted(powers, key=lambda one: (abs(one.bit_length() - best.bit_length()), one < best)))

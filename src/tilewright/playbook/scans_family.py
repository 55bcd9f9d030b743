"""Scans: running sums and products, in either direction, with or without their own element."""

from __future__ import annotations

from functools import partial

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import Answer, Family, Structure, TracedTask
from tilewright.playbook.scans.columns import column_of, scan_columns
from tilewright.playbook.scans.pieces import has_few_long_rows, scan_pieces
from tilewright.playbook.scans.program import SCANS, scan_program
from tilewright.playbook.scans.structures import draft, has_many_short_rows, scan_rows, scan_warps

_REFUSED = {"cummax", "cummin", "logcumsumexp"}


def _claims(traced: TracedTask) -> bool:
    return bool(traced.targets & (SCANS.keys() | _REFUSED))


def _answer(traced: TracedTask) -> Answer:
    for name in sorted(traced.targets & _REFUSED):
        raise NotSupported(f"the playbook does not support the operation {name}; of scans it writes cumsum and cumprod")
    program = scan_program(traced)
    first = Structure(
        "draft-scan", "first version: one block per row, a tile of elements at a time", partial(draft, program)
    )
    later: list[Structure] = []
    every: list[Structure] = []
    if program.is_contiguous:
        summary = "many blocks share a row: totals of its pieces, their scan, then every piece from where it begins"
        every.append(Structure("scan-pieces", summary, partial(scan_pieces, program)))
        later += every if has_few_long_rows(program) else []
        summary = "a warp per row, all of a short row's 16-byte vectors under way at once"
        warps = Structure("scan-warps", summary, partial(scan_warps, program))
        every.append(warps)
        later += [warps] if has_many_short_rows(program) else []
        summary = "one block per row, 16-byte vectors, the next tile's loads under way while this one is scanned"
        later.append(Structure("scan-rows", summary, partial(scan_rows, program)))
    if column_of(program) is not None:
        summary = "teams of threads share columns, the next rows' loads under way"
        later.append(Structure("scan-columns", summary, partial(scan_columns, program)))
    return Answer(first, tuple(later), (first, *dict.fromkeys((*later, *every))))


SCANS_FAMILY = Family("scans", frozenset((*SCANS, *_REFUSED)), _claims, _answer)

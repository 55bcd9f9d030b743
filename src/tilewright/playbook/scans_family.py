"""Scans: running sums and products, in either direction, with or without their own element."""

from __future__ import annotations

from functools import partial

from tilewright.playbook.families import Family, Schedules, Structure, TracedTask
from tilewright.playbook.scans.columns import column_of, scan_columns
from tilewright.playbook.scans.pieces import has_few_long_rows, scan_pieces
from tilewright.playbook.scans.program import SCANS, scan_program
from tilewright.playbook.scans.structures import has_many_short_rows, scan_rows, scan_warps


def _matches(traced: TracedTask) -> Schedules | None:
    if not traced.targets & SCANS.keys():
        return None
    program = scan_program(traced)
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
    return Schedules(tuple(later), tuple(one for one in every if one not in later))


SCANS_FAMILY = Family("scans", frozenset(SCANS), _matches)

"""What of a kernel ran in a launch, by source line: the core's notes on each instruction, gathered."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.ptx.global_memory import Bytes
from tilewright.ptx.launching import LaunchRequest
from tilewright.ptx.lower import LoweredKernel
from tilewright.ptx.syntax import Instruction
from tilewright.records import KERNEL_FILE_NAME, CoverageRecord, CoveredSite
from tilewright.records.emulation import LOOP

_Rows = list[list[int]]  # of each instruction, those of the core's table


@dataclass(frozen=True)
class CoveredSites:
    """Which rows of the core's table belong to which site. The same for every launch of a kernel."""

    program: str
    sites: tuple[tuple[tuple[int, ...], str, int], ...]  # lines, what stands there, how many of them
    rows: npt.NDArray[np.int64]  # of all instructions, in the order of the sites
    starts: npt.NDArray[np.int64]  # of each instruction, among these

    @staticmethod
    def of(kernel: LoweredKernel) -> CoveredSites:
        rows: dict[tuple[tuple[int, ...], str], _Rows] = {}
        digest = hashlib.sha256()
        for loop in kernel.loops:
            rows.setdefault((_lines(loop.branch), LOOP), []).append([loop.mark])
        last: Instruction | None = None
        for row, origin in enumerate(kernel.origins):
            if origin is None:
                continue
            lines = _lines(origin)
            known = rows.setdefault((lines, origin.opcode), [])
            if origin is last:
                known[-1].append(row)
            else:
                known.append([row])
                digest.update(f"{lines} {origin.text}\n".encode())
            last = origin
        return CoveredSites(
            digest.hexdigest(),
            tuple((lines, what, len(found)) for (lines, what), found in rows.items()),
            np.array([row for found in rows.values() for one in found for row in one], np.int64),
            np.cumsum([0, *(len(one) for found in rows.values() for one in found)], dtype=np.int64)[:-1],
        )

    def coverage(self, request: LaunchRequest, seen: Bytes) -> CoverageRecord:
        each = np.bitwise_or.reduceat(seen[self.rows], self.starts).tobytes().hex() if self.sites else ""
        sites, at = [], 0
        for lines, what, count in self.sites:
            sites.append(CoveredSite(lines, what, each[at : at + 2 * count]))
            at += 2 * count
        return CoverageRecord(request.shown_as or request.kernel, request.launch_line, self.program, tuple(sites))


def _lines(origin: Instruction) -> tuple[int, ...]:
    return tuple(place.line for place in origin.places if place.file == KERNEL_FILE_NAME)

"""The core's table of counts by instruction of the PTX. What is the same for every launch of a kernel is made once."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.ptx.launching import LaunchRequest
from tilewright.ptx.lower import LoweredKernel
from tilewright.ptx.native import Count, Launch
from tilewright.ptx.results import InstructionCount, LaunchCounts
from tilewright.ptx.syntax import Instruction, Place

_OF_THE_FIRST = 2  # columns: executions and lanes of an instruction are those of its first row, the others are sums


@dataclass(frozen=True)
class CountedInstructions:
    """Which rows of the core's table belong to which instruction; one that was lowered to several has them in a row."""

    heads: tuple[tuple[int, str, Place | None], ...]  # of each instruction: line of the PTX, text, source
    rows: npt.NDArray[np.int64]  # all that belong to an instruction
    starts: npt.NDArray[np.int64]  # of each instruction, among these

    @staticmethod
    def of(kernel: LoweredKernel) -> CountedInstructions:
        heads: list[tuple[int, str, Place | None]] = []
        rows: list[int] = []
        starts: list[int] = []
        last: Instruction | None = None
        for row, origin in enumerate(kernel.origins):
            if origin is None:
                continue
            if origin.instruction is not last:
                last = origin.instruction
                heads.append((last.ptx_line, last.text, last.place))
                starts.append(len(rows))
            rows.append(row)
        return CountedInstructions(tuple(heads), np.array(rows, np.int64), np.array(starts, np.int64))

    def counts(self, raw: ctypes.Array[Count]) -> tuple[InstructionCount, ...]:
        if not self.heads:
            return ()
        table = np.frombuffer(memoryview(raw).cast("B"), dtype=np.uint64).reshape(len(raw), -1)[self.rows]
        sums = np.add.reduceat(table, self.starts, axis=0)
        sums[:, :_OF_THE_FIRST] = table[self.starts, :_OF_THE_FIRST]
        return tuple([InstructionCount(*head, *row) for head, row in zip(self.heads, sums.tolist(), strict=True)])


def launch_counts(
    instructions: CountedInstructions, request: LaunchRequest, raw: ctypes.Array[Count], launch: Launch
) -> LaunchCounts:
    grid_blocks = math.prod(request.grid)
    blocks = request.options.blocks
    return LaunchCounts(
        kernel=request.kernel,
        blocks=grid_blocks if blocks is None else len(blocks),
        grid_blocks=grid_blocks,
        warp_instructions=launch.warp_instructions,
        thread_instructions=launch.thread_instructions,
        instructions=instructions.counts(raw),
    )

"""What the core counted, instruction by instruction."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from tilewright.ptx.launching import LaunchRequest
from tilewright.ptx.lower import LoweredKernel
from tilewright.ptx.native import RawCount, RawLaunch
from tilewright.ptx.syntax import Instruction
from tilewright.records import CountsRecord, InstructionRecord
from tilewright.records.steps import Dim3

_OF_THE_FIRST = 2  # columns: executions and lanes of an instruction are those of its first row, the others are sums


@dataclass(frozen=True)
class CountedInstructions:
    """Which rows of the core's table belong to which instruction; one that was lowered to several has them in a row.

    The same for every launch of a kernel, so it is made once.
    """

    instructions: tuple[Instruction, ...]
    rows: npt.NDArray[np.int64]  # all that belong to an instruction
    starts: npt.NDArray[np.int64]  # of each instruction, among these

    @staticmethod
    def of(kernel: LoweredKernel) -> CountedInstructions:
        instructions: list[Instruction] = []
        rows: list[int] = []
        starts: list[int] = []
        for row, origin in enumerate(kernel.origins):
            if origin is None:
                continue
            if not instructions or origin is not instructions[-1]:
                instructions.append(origin)
                starts.append(len(rows))
            rows.append(row)
        return CountedInstructions(tuple(instructions), np.array(rows, np.int64), np.array(starts, np.int64))

    def counts(
        self, request: LaunchRequest, raw: ctypes.Array[RawCount], launch: RawLaunch, cluster: Dim3
    ) -> CountsRecord:
        grid_blocks = math.prod(request.grid)
        blocks = request.options.blocks
        return CountsRecord(
            kernel=request.shown_as or request.kernel,
            launch_line=request.launch_line,
            blocks=grid_blocks if blocks is None else launch.block_count * math.prod(cluster),
            grid_blocks=grid_blocks,
            warp_instructions=launch.warp_instructions,
            thread_instructions=launch.thread_instructions,
            instructions=tuple(
                _instruction_record(one, row) for one, row in zip(self.instructions, self._sums(raw), strict=True)
            ),
        )

    def _sums(self, raw: ctypes.Array[RawCount]) -> list[list[int]]:
        if not self.instructions:
            return []
        table = np.frombuffer(memoryview(raw).cast("B"), dtype=np.uint64).reshape(len(raw), -1)[self.rows]
        sums = np.add.reduceat(table, self.starts, axis=0)
        sums[:, :_OF_THE_FIRST] = table[self.starts, :_OF_THE_FIRST]
        listed: list[list[int]] = sums.tolist()
        return listed


_FIELDS = tuple(field.name for field in fields(InstructionRecord))


def _instruction_record(one: Instruction, row: list[int]) -> InstructionRecord:
    """Twice as quick as the constructor, which sets a frozen record field by field: a launch makes thousands."""
    made = object.__new__(InstructionRecord)
    vars(made).update(zip(_FIELDS, (one.ptx_line, one.text, one.places, *row), strict=True))
    return made

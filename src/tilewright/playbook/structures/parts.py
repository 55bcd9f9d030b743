"""Scratch buffers for what pieces of rows, and whole rows, come to between launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.playbook.file_text import PlanLines
from tilewright.playbook.row_kernel import RowKernel

# A launch begins while the one before ends, and waits for it there: to begin takes as long as many rows.
TRIGGER, WAIT = "cudaTriggerProgrammaticLaunchCompletion();", "cudaGridDependencySynchronize();"
SCRATCH_DTYPES = {"float": "f32", "long long": "i64", "int": "i32", "bool": "bool"}


@dataclass(frozen=True)
class Part:
    """A scratch buffer for what pieces leave: a reduction, or one half of a candidate."""

    index: int  # of the reduction
    planned: str  # its name in the plan
    own: str  # and in the kernels
    type: str
    field: str  # ".value" of a candidate, or ""

    @classmethod
    def of(cls, kernel: RowKernel, plan: PlanLines, shape: str, reductions: Sequence[int]) -> list[Part]:
        """A buffer of this shape for each of the reductions; two where a place is looked for."""
        found: list[Part] = []
        for index in reductions:
            kind, name = kernel.accumulator_type(index), kernel.namer.of(index)
            halves = [("float", ".value"), ("int", ".index")] if kind == "Candidate" else [(kind, "")]
            for held, part in halves:
                wanted = f"{name}_{part[1:]}_parts" if part else f"{name}_parts"
                found.append(cls(index, plan.name(wanted), kernel.namer.fresh(wanted), held, part))
        for one in found:
            plan.add("scratch", f"{one.planned}: {SCRATCH_DTYPES[one.type]}[{shape}]")
        return found

    @staticmethod
    def at(place: str, kind: str, index: int, parts: Sequence[Part]) -> str:
        """What a piece left for a reduction, of this kind in the kernels."""
        own = [f"{one.own}[{place}]" for one in parts if one.index == index]
        return own[0] if len(own) == 1 else f"{kind}{{{', '.join(own)}}}"

    @classmethod
    def whole(cls, kernel: RowKernel, plan: PlanLines, index: int, rows: str) -> Part:
        """A buffer for what a whole row comes to."""
        kind, name = kernel.program.kinds[index].cpp, kernel.namer.of(index)
        made = cls(index, plan.name(f"{name}_of_row"), kernel.namer.fresh(f"{name}_of_row"), kind, "")
        plan.add("scratch", f"{made.planned}: {SCRATCH_DTYPES[kind]}[{rows}]")
        return made

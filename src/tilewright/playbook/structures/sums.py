"""Sums that need more than one kernel or pass: parts of rows, sums over rows, and shifted moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tilewright.playbook.cpp_text import Text, write_text
from tilewright.playbook.file_text import KernelSignature, PlanLines
from tilewright.playbook.row_kernel import RowKernel
from tilewright.playbook.row_program import COLS, Pointwise, Reduce, Reduction, RowProgram
from tilewright.playbook.templates import sections

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


# Sums over rows, such as the gradients of weights: every strip of rows leaves its own, and a second launch adds
# them.  A strip is what one block goes down. Each of its threads adds up the columns it owns, in f32 and in the
# order of the rows; the second kernel adds the strips in a fixed order. So runs repeat bit for bit, and nothing is
# added atomically.


NOTE = (
    "\n\nWhat is summed over all rows is summed over a strip of them first, by the block that goes down the strip; the "
    "last kernel adds the strips in a fixed order, so runs repeat bit for bit."
)
_TILE = 32  # columns of a block that adds strips, and strips that it reads at a time


@dataclass(frozen=True)
class StripSums:
    """The scratch buffers that strips leave their sums in, by their names in the plan: one for every sum."""

    program: RowProgram
    strips: str  # how many there are, and the length of a row, by their names in the plan
    cols: str
    planned: tuple[str, ...]

    @classmethod
    def of(cls, program: RowProgram, plan: PlanLines, strips: str, cols: str) -> StripSums:
        planned = tuple(plan.name(f"{one.name}_parts") for one in program.column_sums)
        for name in planned:
            plan.add("scratch", f"{name}: f32[{strips}, {cols}]", "what each strip of rows comes to")
        return cls(program, strips, cols, planned)

    def names(self, kernel: RowKernel) -> dict[str, str]:
        """What the buffers are called in a kernel, by the outputs that they belong to."""
        return {one.name: f"{kernel.name(one.name)}_parts" for one in self.program.column_sums}

    def with_parts(self, kernel: RowKernel, signature: KernelSignature) -> KernelSignature:
        """The parameters of a kernel that writes the strips' sums too."""
        declared = [f"float* __restrict__ {name}" for name in self.names(kernel).values()]
        return KernelSignature([*declared, *signature.declared], [*self.planned, *signature.given])

    def launch(self, plan: PlanLines) -> None:
        """The last launch, which adds the strips."""
        given = [*self.planned, *(one.name for one in self.program.column_sums), self.strips, self.cols]
        if self.planned:
            plan.launch(self._name, f"ceil_div({self.cols}, {_TILE})", f"dim3({_TILE}, {_TILE})", given)

    def text(self) -> list[str]:
        """The kernel that adds the strips: a block has 32 columns, and each warp reads every 32nd strip of them."""
        if not self.planned:
            return []
        kernel, sums = RowKernel(self.program, quick=False), self.program.column_sums
        owned = self.names(kernel)
        declared = [f"const float* __restrict__ {name}" for name in owned.values()]
        declared += [f"{one.dtype.cpp}* __restrict__ {kernel.name(one.name)}" for one in sums]
        signature = KernelSignature([*declared, "int strips", "long long cols"], [])
        body = [
            f"__shared__ float held[{_TILE}][{_TILE} + 1];  // one more, so that a column lies in different banks",
            f"const long long first = blockIdx.x * static_cast<long long>({_TILE});",
            "const long long column = first + threadIdx.x, added = first + threadIdx.y;",
        ]
        for number, one in enumerate(sums):
            stored = write_text(one.dtype, Text("sum"))
            body += ["__syncthreads();"] if number else []
            body += [
                f"{'' if number else 'float '}sum = 0.0f;",
                f"for (int strip = threadIdx.y; strip < strips && column < cols; strip += {_TILE}) {{",
                f"  sum += {owned[one.name]}[strip * cols + column];",
                "}",
                "held[threadIdx.y][threadIdx.x] = sum;",
                "__syncthreads();",
                "sum = held[threadIdx.x][threadIdx.y];  // a warp has the parts of one column now",
                "unrolled for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);",
                f"if (threadIdx.x == 0 && added < cols) {kernel.name(one.name)}[added] = {stored};",
            ]
        return signature.kernel(f"__launch_bounds__({_TILE * _TILE})", self._name, body)

    @property
    def _name(self) -> str:
        return f"{self.program.name}_sums"


# Reductions about an earlier one, such as squares of differences from the mean, by a piece of a row about its own.
# What a piece sums up about its own mean or greatest element is corrected when pieces are put together: so moments
# and softmax need one pass over a row and not two.


_CUDA = sections("structures/about")

COUNT = "count_of(first, vectors)"  # the elements of a piece, by the number of its first vector

HELPERS = _CUDA["helpers"]

CORRECTIONS = {
    "moments": _CUDA["corrections_moments"],
    "exponentials": _CUDA["corrections_exponentials"],
}


class Correction(str, Enum):
    """How pieces that did a reduction about their own earlier one are put together."""

    MOMENTS = "moments"  # squares of differences from the piece's mean
    EXPONENTIALS = "exponentials"  # sums of exponentials less the piece's greatest


@dataclass(frozen=True)
class About:
    """A reduction of differences from an earlier one."""

    second: int
    first: int
    value: int  # what is subtracted: the mean, or the first reduction itself
    correction: Correction


def about(program: RowProgram, index: int) -> About | None:
    """What a reduction is about, where a piece can do it about its own."""
    value = program.values[index]
    if not isinstance(value, Reduce) or value.op is not Reduction.SUM:
        return None
    summed = program.values[value.argument]
    if not isinstance(summed, Pointwise) or summed.op not in ("mul", "exp") or len(set(summed.arguments)) != 1:
        return None
    difference = program.values[summed.arguments[0]]
    if not isinstance(difference, Pointwise) or difference.op != "sub":
        return None
    element, subtracted = difference.arguments
    if summed.op == "exp" and program.values[subtracted] == Reduce(Reduction.GREATEST, element):
        return About(index, subtracted, subtracted, Correction.EXPONENTIALS)
    mean = program.values[subtracted]
    if summed.op == "mul" and isinstance(mean, Pointwise) and mean.op == "div":
        first, count = mean.arguments
        counted = program.values[count]
        whole = isinstance(counted, Pointwise) and program.values[counted.arguments[0]] == COLS
        if whole and program.values[first] == Reduce(Reduction.SUM, element):
            return About(index, first, subtracted, Correction.MOMENTS)
    return None


def own_values(kernel: RowKernel, level: int, whose: str, count: str) -> list[str]:
    """The own mean or greatest element of a piece or block, in place of the row's; `count` is of its elements."""
    lines: list[str] = []
    for one in filter(None, (about(kernel.program, index) for index in kernel.program.reductions_of(level))):
        if one.value in kernel.row_known and one.value != one.first:
            continue
        first, moments = kernel.namer.of(one.first), one.correction is Correction.MOMENTS
        own = kernel.namer.fresh(f"{'mean' if moments else 'greatest'}_of_{whose}")
        if moments:
            lines.append(f"const float {own} = {first} / {count};")
        else:
            lines.append(f"const float {own} = {first} == -INFINITY ? 0.0f : {first};  // inf - inf would be NaN")
        kernel.row_known[one.value] = Text(own)
    return lines


def passes_of(program: RowProgram) -> list[tuple[int, ...]]:
    """The levels of reductions, from 0, that each pass does: one, or two where the second is about the first."""
    levels = max((program.levels[index] for index in program.reductions), default=0)
    found: list[tuple[int, ...]] = []
    level = 0
    while level < levels:
        after = program.reductions_of(level + 1) if level + 1 < levels else ()
        matched = [about(program, index) for index in after]
        joined = bool(matched) and all(one and one.first in program.reductions_of(level) for one in matched)
        found.append((level, level + 1) if joined else (level,))
        level += 1 + joined
    return found

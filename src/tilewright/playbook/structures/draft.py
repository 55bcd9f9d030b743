"""The first version: simple, and right at any size. Other structures keep its kernel for rows they cannot hold."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.playbook.cpp_helpers import BLOCK_REDUCE
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import KernelSignature, PlanLines, file_text, includes
from tilewright.playbook.row_kernel import RowKernel
from tilewright.playbook.row_program import ProgramInput, RowProgram

_WIDE_SUMS = 65536  # columns from which sums of a simple loop are kept in f64


def draft_rows(program: RowProgram, op_line: str) -> str:
    """One block per row, which goes along it once for every step that needs the whole row."""
    plan = PlanLines(program, op_line)
    rows, cols = plan.sizes()
    plan.limits(rows, cols)
    plan.add("const", "THREADS = 256")
    looped = looped_rows(program, f"{program.name}_rows", cols, False, program.task_cols >= _WIDE_SUMS)
    plan.launch(looped.name, rows, "THREADS", looped.signature.given)
    header = (
        f"{program.name}, a first version: simple, and right at any size.\n\nOne block owns one row and goes along it, "
        "element by element, once for each step that needs the whole row before it. Arithmetic is in f32."
    )
    constants = ["constexpr int WARPS = THREADS / 32;"]
    return file_text(header, plan, includes(program), constants, *([one] for one in looped.helpers), looped.text)


@dataclass(frozen=True)
class LoopedRows:
    """A kernel in which a block of THREADS threads, WARPS warps, goes along a row of any length."""

    name: str
    signature: KernelSignature
    helpers: list[str]
    text: list[str]

    def launch(self, plan: PlanLines, rows: str, threads: str, held: str) -> None:
        """The launch for rows that a file's other kernel cannot hold."""
        plan.launch(self.name, rows, threads, self.signature.given, f" when not {held}")


def longer_rows(program: RowProgram, cols: str, quick: bool) -> LoopedRows:
    """The kernel for rows too long for a file's own structure. Nobody knows how long, so sums are wide."""
    return looped_rows(program, f"{program.name}_longer_rows", cols, quick, wide_sums=True)


def looped_rows(program: RowProgram, name: str, cols: str, quick: bool, wide_sums: bool) -> LoopedRows:
    """`cols`: the plan's name for the length of a row; `wide_sums`: in f64."""
    kernel = RowKernel(program, quick)
    kernel.wide_sums = wide_sums
    signature = KernelSignature.of(program, kernel.namer, [("long long cols", cols)])
    body = ["const long long row = blockIdx.x;", *_row_pointers(kernel), *kernel.partials("WARPS")]
    for number in range(program.sweeps):
        body += ["", *_sweep(kernel, number)]
        body += kernel.reduced(number, "block_reduce({v}, {v}_of_warps, {c})")
    if program.outputs_of_row:
        body += ["", "if (threadIdx.x == 0) {", *indented(kernel.row_results()), "}"]
    text = signature.kernel("__launch_bounds__(THREADS)", name, body)
    return LoopedRows(name, signature, [*kernel.forms.helpers(), *kernel.reduction_helpers(), BLOCK_REDUCE], text)


def _sweep(kernel: RowKernel, number: int) -> list[str]:
    def load(one: ProgramInput) -> str:
        return f"{kernel.name(one.name)}_along[column]"

    store = {one.name: f"{kernel.name(one.name)}_along[column]" for one in kernel.program.outputs_along}
    sweep = kernel.sweep(number, load, "column", store)
    loop = "for (long long column = threadIdx.x; column < cols; column += THREADS) {"
    return [*sweep.before, loop, *indented(sweep.element), "}"]


def _row_pointers(kernel: RowKernel) -> list[str]:
    lines: list[str] = []
    for one in kernel.program.inputs:
        lines += kernel.index_lines(one)
        if one.varies:
            qualifier = "" if one.in_place else "const "
            lines.append(f"{qualifier}{one.dtype.cpp}* {kernel.name(one.name)}_along = {kernel.row_start(one)};")
    for output in kernel.program.outputs_along:
        if not output.in_place:
            name = kernel.name(output.name)
            lines.append(f"{output.dtype.cpp}* {name}_along = {name} + row * cols;")
    return lines

"""The first version: simple, and right at any size."""

from __future__ import annotations

from tilewright.playbook.cpp_helpers import BLOCK_REDUCE
from tilewright.playbook.file_text import Plan, Signature, file_text, finds_places, has_parts, includes
from tilewright.playbook.row_kernel import RowKernel, index_lines, row_load, row_of
from tilewright.playbook.row_program import ProgramInput, RowProgram
from tilewright.playbook.statements import indented

_WIDE_SUMS = 65536  # columns from which sums of a simple loop are kept in f64


def draft_rows(program: RowProgram, op_line: str) -> str:
    """One block per row, which goes along it once for every step that needs the whole row."""
    kernel = RowKernel(program, quick=False)
    kernel.wide_sums = program.task_cols >= _WIDE_SUMS
    plan = Plan(program, op_line)
    rows, cols = plan.name("rows"), plan.name("cols")
    plan.add("let", f"{cols} = {program.cols}, {rows} = {program.rows}")
    if has_parts(program):
        plan.add("need", f"{rows} <= 2000000000", "so that a 32-bit division finds a broadcast row")
    if finds_places(program):
        plan.add("need", f"{cols} <= 2000000000", "an index fits an int")
    plan.add("const", "THREADS = 256")
    signature = Signature.of(program, kernel.namer, [("long long cols", cols)])
    kernel_name = f"{program.name}_rows"
    plan.launch(kernel_name, rows, "THREADS", signature.given)

    body = ["const long long row = blockIdx.x;", *_row_pointers(kernel), *kernel.partials("WARPS")]
    for number in range(program.sweeps):
        body += ["", *_sweep(kernel, number)]
        body += kernel.reduced(number, "block_reduce({v}, {v}_of_warps, {c})")
    if program.outputs_of_row:
        body += ["", "if (threadIdx.x == 0) {", *indented(kernel.row_results(row_load(kernel))), "}"]
    text = [*signature.text("__launch_bounds__(THREADS)", kernel_name), *indented(body), "}"]
    header = (
        f"{program.name}, a first version: simple, and right at any size.\n\nOne block owns one row and goes along it, "
        "element by element, once for each step that needs the whole row before it. Arithmetic is in f32."
    )
    helpers = [*kernel.forms.helpers(), *kernel.reduction_helpers(), BLOCK_REDUCE]
    constants = ["constexpr int WARPS = THREADS / 32;"]
    return file_text(header, plan, [includes(program), constants, *([one] for one in helpers), text])


def _sweep(kernel: RowKernel, number: int) -> list[str]:
    def load(one: ProgramInput) -> str:
        return f"{kernel.name(one.name)}_along[column]"

    store = {one.name: f"{kernel.name(one.name)}_along[column]" for one in kernel.program.outputs_along}
    sweep = kernel.sweep(number, load, row_load(kernel), "column", store)
    loop = "for (long long column = threadIdx.x; column < cols; column += THREADS) {"
    return [*sweep.before, loop, *indented(sweep.element), "}"]


def _row_pointers(kernel: RowKernel) -> list[str]:
    lines: list[str] = []
    for one in kernel.program.inputs:
        lines += index_lines(kernel, one)
        if one.varies:
            name, row = kernel.name(one.name), row_of(kernel, one)
            qualifier = "" if one.in_place else "const "
            place = name if row == "0" else f"{name} + {row} * cols"
            lines.append(f"{qualifier}{one.dtype.cpp}* {name}_along = {place};")
    for output in kernel.program.outputs_along:
        if not output.in_place:
            name = kernel.name(output.name)
            lines.append(f"{output.dtype.cpp}* {name}_along = {name} + row * cols;")
    return lines

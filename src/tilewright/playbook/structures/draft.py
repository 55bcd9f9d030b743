"""The first version: simple, and right at any size. Other structures keep its kernel for rows they cannot hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.playbook.cpp_pieces import BLOCK_REDUCE
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import Fragment, KernelSignature, PlanLines, fragment, includes
from tilewright.playbook.row_kernel import RowKernel
from tilewright.playbook.row_program import Layout, ProgramInput, ProgramOutput, RowProgram
from tilewright.playbook.structures.column_sums import NOTE, StripSums

_STRIPS = 256
_WIDE_SUMS = 65536  # columns from which sums of a simple loop are kept in f64


def draft_rows(program: RowProgram, op_line: str) -> Fragment:
    """One block per row, which goes along it once for every step that needs the whole row."""
    plan = PlanLines(program, op_line)
    rows, cols = plan.sizes()
    plan.limits(rows, cols)
    plan.add("const", "THREADS = 256")
    strips = rows
    if program.column_sums:
        strips = plan.name("strips")
        plan.add("let", f"{strips} = min({rows}, {_STRIPS})", "of rows, each for a block that goes down it")
    sums = StripSums.of(program, plan, strips, cols)
    wide = program.task_cols >= _WIDE_SUMS
    looped = looped_rows(program, f"{program.name}_rows", rows, cols, False, wide, sums)
    plan.launch(looped.name, strips, "THREADS", looped.signature.given)
    sums.launch(plan)
    header = (
        f"{program.name}, a first version: simple, and right at any size.\n\nOne block owns one row and goes along it, "
        "element by element, once for each step that needs the whole row before it. Arithmetic is in f32."
    )
    header += NOTE if program.column_sums else ""
    constants = ["constexpr int WARPS = THREADS / 32;"]
    helpers = ([one] for one in looped.helpers)
    return fragment(header, plan, includes(program), constants, *helpers, looped.text, sums.text())


def draft_scattered(program: RowProgram, op_line: str) -> Fragment:
    """The same where a row's elements are not one after the other."""
    kernel = RowKernel(program, quick=False)
    kernel.wide_sums = True
    by_thread = program.layout is Layout.COLUMNS
    plan = PlanLines(program, op_line)
    rows, cols = plan.sizes()
    sizes = [("long long rows", rows), ("long long cols", cols), ("long long inner", plan.inner())]
    plan.limits(rows, cols)
    plan.add("const", "THREADS = 256")
    signature = KernelSignature.of(program, kernel.namer, sizes)
    name = f"{program.name}_{program.layout.value}"
    plan.launch(name, f"ceil_div({rows}, THREADS)" if by_thread else rows, "THREADS", signature.given)
    call = "" if by_thread else "block_reduce({v}, {v}_of_warps, {c})"
    body = _row_pointers(kernel)
    for number in range(program.sweeps):
        body += ["", *_sweep(kernel, number, {}, "0" if by_thread else "threadIdx.x", "1" if by_thread else "THREADS")]
        body += kernel.reduced(number, call)
    results = kernel.row_results() if program.outputs_of_row else []
    if by_thread:
        first = ["const long long row = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;"]
        body = [*first, "if (row >= rows) return;", *body, *results]
    else:
        body = ["const long long row = blockIdx.x;", *kernel.partials("WARPS"), *body]
        body += ["", "if (threadIdx.x == 0) {", *indented(results), "}"] if results else []
    text = signature.kernel("__launch_bounds__(THREADS)", name, body)
    header = (
        f"{program.name}, a first version: simple, and right at any size.\n\n"
        + (
            "The elements of a row lie `inner` apart, those of neighbouring rows side by side: a thread owns a row, "
            "so that the threads of a warp read neighbours."
            if by_thread
            else "The elements of a row lie in runs of `inner`: a block owns a row and goes along all of its runs."
        )
        + " It goes along once for each step that needs the whole row before it. Arithmetic is in f32, sums in f64."
    )
    constants = [] if by_thread else ["constexpr int WARPS = THREADS / 32;"]
    helpers = [*kernel.forms.helpers(), *kernel.reduction_helpers(), *([] if by_thread else [BLOCK_REDUCE])]
    return fragment(header, plan, includes(program), constants, *([one] for one in helpers), text)


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


def longer_rows(program: RowProgram, rows: str, cols: str, quick: bool, sums: StripSums | None = None) -> LoopedRows:
    """The kernel for rows too long for a file's own structure. Nobody knows how long, so sums are wide."""
    return looped_rows(program, f"{program.name}_longer_rows", rows, cols, quick, wide_sums=True, sums=sums)


def looped_rows(
    program: RowProgram, name: str, rows: str, cols: str, quick: bool, wide_sums: bool, sums: StripSums | None = None
) -> LoopedRows:
    """`rows`, `cols`: the plan's names for their numbers; `wide_sums`: along a row, in f64.

    Where there are sums over rows, a block goes down a strip of them.
    """
    kernel = RowKernel(program, quick)
    kernel.wide_sums = wide_sums
    strips = sums is not None and bool(program.column_sums)
    sizes = [("long long rows", rows)] * strips + [("long long cols", cols)]
    signature = KernelSignature.of(program.without_sums, kernel.namer, sizes)
    signature = sums.with_parts(kernel, signature) if sums is not None else signature
    body = _row_pointers(kernel)
    for number in range(program.sweeps):
        body += ["", *_sweep(kernel, number, sums.names(kernel) if sums is not None else {})]
        body += kernel.reduced(number, "block_reduce({v}, {v}_of_warps, {c})")
    if program.outputs_of_row:
        body += ["", "if (threadIdx.x == 0) {", *indented(kernel.row_results()), "}"]
    if strips:
        waiting = ["__syncthreads();  // or a quick warp would write over what a slow one reads"]
        body += waiting if program.reductions else []
        loop = "for (long long row = blockIdx.x; row < rows; row += gridDim.x) {"
        body = [*kernel.partials("WARPS"), loop, *indented(body), "}"]
    else:
        body = ["const long long row = blockIdx.x;", *kernel.partials("WARPS"), *body]
    text = signature.kernel("__launch_bounds__(THREADS)", name, body)
    return LoopedRows(name, signature, [*kernel.forms.helpers(), *kernel.reduction_helpers(), BLOCK_REDUCE], text)


def _sweep(
    kernel: RowKernel, number: int, parts: dict[str, str], first: str = "threadIdx.x", step: str = "THREADS"
) -> list[str]:
    def load(one: ProgramInput | ProgramOutput) -> str:
        return f"{kernel.name(one.name)}_along[{kernel.element_place(one)}]"

    store = {one.name: load(one) for one in kernel.program.outputs_along}
    store |= {name: f"{part}[blockIdx.x * cols + column]" for name, part in parts.items()}
    sweep = kernel.sweep(number, load, "column", store)
    if parts and number == kernel.program.sweeps - 1:
        starts = (f"{store[name]} = 0.0f;" for name in parts)
        sweep = replace(sweep, element=["if (row == blockIdx.x) {", *indented(list(starts)), "}", *sweep.element])
    loop = f"for (long long column = {first}; column < cols; column += {step}) {{"
    return [*sweep.before, loop, *indented(sweep.element), "}"]


def _row_pointers(kernel: RowKernel) -> list[str]:
    lines: list[str] = []
    for one in kernel.program.inputs:
        lines += kernel.index_lines(one)
        if one.varies:
            qualifier = "" if one.in_place else "const "
            lines.append(f"{qualifier}{one.dtype.cpp}* {kernel.name(one.name)}_along = {kernel.element_start(one)};")
    for output in kernel.program.outputs_along:
        if not output.in_place:
            name = kernel.name(output.name)
            lines.append(f"{output.dtype.cpp}* {name}_along = {kernel.element_start(output)};")
    return lines

"""Rows of any length: a simple block per row, and blocks that stream or hold a row in shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tilewright.playbook.cpp_pieces import BLOCK_REDUCE, VECTOR
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import Fragment, KernelSignature, PlanLines, fragment, includes
from tilewright.playbook.row_kernel import RowKernel, each_element
from tilewright.playbook.row_program import Layout, ProgramInput, ProgramOutput, RowProgram
from tilewright.playbook.structures.sums import NOTE, StripSums

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


# -- rows too long for registers: streamed again and again, or held in the shared memory of a block --


class Holding(str, Enum):
    """Where a row stays between sweeps."""

    NOWHERE = "nowhere"  # every sweep reads it again
    BLOCK = "block"  # in the shared memory of its block


_LONGER = "\n\nRows that do not fit there are left to the second kernel, which goes along them element by element."
_HEADERS = {
    Holding.NOWHERE: (
        "{name} for rows of any length: one block goes along a row.\n\nEach thread has BATCH 16-byte loads in flight "
        "at a time and works in registers; threads meet only at the end of a sweep, first the lanes of each warp by "
        "shuffles, then the warps through shared memory. Partial results are combined in a fixed order, so runs repeat "
        "bit for bit."
    ),
    Holding.BLOCK: (
        "{name} for long rows: the row stays in shared memory, and is read from memory once.\n\nAsynchronous copies "
        "bring it there without registers. A thread only ever reads what it copied itself, so no barrier is needed "
        "around it. Where rows are short enough, a multiprocessor has several blocks: while one reduces, the others "
        "load."
    ),
}


def long_rows(program: RowProgram, op_line: str, holding: Holding, quick: bool = True) -> Fragment:
    kernel = RowKernel(program, quick)
    writer = _LongRows(kernel, holding)
    plan = PlanLines(program, op_line)
    signature, kernel_name, longer = writer.plan(plan)
    text = signature.kernel(writer.bounds(), kernel_name, writer.body())
    helpers = [*kernel.forms.helpers(), *kernel.reduction_helpers(), BLOCK_REDUCE]
    helpers += [one for one in (longer.helpers if longer else []) if one not in helpers]
    more = [] if holding is Holding.NOWHERE else ["cuda_pipeline.h"]
    lines = ["constexpr int WARPS = THREADS / 32;"]
    header = _HEADERS[holding].format(name=program.name) + (_LONGER if longer else "")
    pieces = [lines, [VECTOR], *([one] for one in helpers), text, longer.text if longer else []]
    return fragment(header, plan, includes(program, *more), *pieces)


def held_inputs(program: RowProgram) -> tuple[ProgramInput, ...]:
    """The inputs that a row brings itself and that more than one sweep reads."""
    kernel = RowKernel(program, quick=False)
    counted: dict[str, int] = {}
    for number in range(program.sweeps):
        for name in kernel.loaded(number, program.reductions):
            counted[name] = counted.get(name, 0) + 1
    return tuple(one for one in program.streams if counted.get(one.name, 0) > 1)


class _LongRows:
    def __init__(self, kernel: RowKernel, holding: Holding) -> None:
        self.kernel, self.program = kernel, kernel.program
        self.holding = holding
        self.held = held_inputs(kernel.program) if holding is not Holding.NOWHERE else ()

    def plan(self, plan: PlanLines) -> tuple[KernelSignature, str, LoopedRows | None]:
        """The plan's lines; the main kernel's head, and the kernel for rows that fit no shared memory."""
        rows, cols = plan.sizes()
        vectors, row_bytes, held = (plan.name(one) for one in ("vectors", "row_bytes", "held"))
        plan.limits(rows, cols)
        plan.add("tune", "THREADS = " + ("256 | 512 | 128 | 1024" if not self.held else "512 | 256 | 1024"))
        if self.holding is Holding.NOWHERE:
            plan.add("tune", "BATCH = 4 | 2 | 8", "loads of a thread that are in flight together")
        plan.width(cols)
        plan.add("let", f"{vectors} = {cols} / WIDTH")
        if self.holding is Holding.NOWHERE:
            plan.add("need", f"THREADS == 128 or THREADS * BATCH <= {vectors}", "short rows, small blocks")
        block = "THREADS"
        if self.held:
            total = " + ".join(f"round_up({vectors} * WIDTH * {one.dtype.itemsize}, 16)" for one in self.held)
            plan.add("let", f"{row_bytes} = {total}")
            fits = f"{row_bytes} + 2048 <= device.smem_block"
            plan.add("let", f"{held} = {fits}", "2 KiB: the static shared memory below")
            block += f", {row_bytes}"
        sizes = [(f"{self._whole} cols", cols)]
        signature = KernelSignature.of(self.program, self.kernel.namer, sizes)
        kernel_name = f"{self.program.name}_long_rows"
        plan.launch(kernel_name, rows, block, signature.given, f" when {held}" if self.held else "")
        if not self.held:
            return signature, kernel_name, None
        longer = longer_rows(self.program, rows, cols, self.kernel.quick)
        longer.launch(plan, rows, "THREADS", held)
        return signature, kernel_name, longer

    @property
    def _whole(self) -> str:
        """The type of a column's number."""
        return "long long" if self.holding is Holding.NOWHERE else "int"

    def bounds(self) -> str:
        return "__launch_bounds__(THREADS)" if self.held else "__launch_bounds__(THREADS, 1024 / THREADS)"

    # -- kernel --

    def body(self) -> list[str]:
        program, kernel = self.program, self.kernel
        lines = [f"const {self._whole} count = cols / WIDTH;", "const long long row = blockIdx.x;"]
        lines += kernel.index_lines(*program.inputs) + kernel.pointers() + kernel.partials("WARPS")
        lines += self._copies()
        for number in range(program.sweeps):
            lines += ["", *self._sweep(number), *kernel.reduced(number, "block_reduce({v}, {v}_of_warps, {c})")]
        if program.outputs_of_row:
            lines += ["", "if (threadIdx.x == 0) {", *indented(kernel.row_results()), "}"]
        return lines

    def _copies(self) -> list[str]:
        if not self.held:
            return []
        name = self.kernel.name
        lines = ["extern __shared__ uint4 dynamic[];", "auto* room = reinterpret_cast<char*>(dynamic);"]
        for number, one in enumerate(self.held):
            before = self.held[number - 1]
            lines += [f"room += (count * WIDTH * {before.dtype.itemsize} + 15) / 16 * 16;"] if number else []
            lines.append(f"auto* {name(one.name)}_held = reinterpret_cast<Vector<{one.dtype.cpp}>*>(room);")
        inner: list[str] = []
        for one in self.held:
            own, vector = name(one.name), f"Vector<{one.dtype.cpp}>"
            inner += [
                f"if constexpr (sizeof({vector}) >= 4) {{",
                f"  __pipeline_memcpy_async({own}_held + place, {own}_along + place, sizeof({vector}));",
                "} else {",
                f"  {own}_held[place] = {own}_along[place];  // too small for an asynchronous copy",
                "}",
            ]
        loop = "for (int place = threadIdx.x; place < count; place += THREADS) {"
        return [
            *lines,
            "",
            "#pragma unroll 4",
            loop,
            *indented(inner),
            "}",
            "__pipeline_commit();",
            "__pipeline_wait_prior(0);",
        ]

    def _sweep(self, number: int) -> list[str]:
        return self._batched(number) if self.holding is Holding.NOWHERE else self._from_shared(number)

    def _used(self, number: int) -> list[ProgramInput]:
        read = self.kernel.loaded(number, self.kernel.row_known)
        return [one for one in self.program.inputs if one.varies and not one.spans and one.name in read]

    def _work(self, number: int, element: list[str]) -> list[str]:
        """What is done with a vector: its elements, and the results stored where the sweep is the last."""
        if number != self.program.sweeps - 1:
            return each_element(element)
        kernel, outputs = self.kernel, self.program.outputs_along
        stores = [f"{kernel.target(one)}[place] = {kernel.name(one.name)}_made;" for one in outputs]
        return [*kernel.made_vectors(), *each_element(element), *stores]

    def _from_shared(self, number: int) -> list[str]:
        kernel, used = self.kernel, self._used(number)
        held = {one.name for one in self.held}
        column = "place * WIDTH + i"
        sweep = kernel.sweep(number, lambda one: f"{kernel.name(one.name)}_here.at[i]", column, kernel.made_elements())
        inner: list[str] = []
        for one in used:
            source = f"{kernel.name(one.name)}_{'held' if one.name in held else 'along'}"
            inner.append(f"const Vector<{one.dtype.cpp}> {kernel.name(one.name)}_here = {source}[place];")
        inner += self._work(number, sweep.element)
        loop = "for (int place = threadIdx.x; place < count; place += THREADS) {"
        return [*sweep.before, "#pragma unroll 2", loop, *indented(inner), "}"]

    def _batched(self, number: int) -> list[str]:
        """BATCH vectors of every input loaded, then worked on."""
        kernel, used = self.kernel, self._used(number)
        sweep = kernel.sweep(
            number,
            lambda one: f"{kernel.name(one.name)}_here[k].at[i]",
            "place * WIDTH + i",
            kernel.made_elements(),
            in_parts=True,
        )
        parts, additions = kernel.part_lines(number)
        declared = [f"Vector<{one.dtype.cpp}> {kernel.name(one.name)}_here[BATCH];" for one in used]
        names = [kernel.name(one.name) for one in used]
        loads = [f"{name}_here[k] = {name}_along[start + k * THREADS];" for name in names]
        inner = [
            *declared,
            *parts,
            "unrolled for (int k = 0; k < BATCH; ++k) {",
            "  if (start + k * THREADS < count) {",
            *indented(loads, 2),
            "  }",
            "}",
            "unrolled for (int k = 0; k < BATCH; ++k) {",
            "  const long long place = start + k * THREADS;",
            "  if (place < count) {",
            *indented(self._work(number, sweep.element), 2),
            "  }",
            "}",
            *additions,
        ]
        loop = "for (long long start = threadIdx.x; start < count; start += BATCH * THREADS) {"
        return [*sweep.before, "#pragma unroll 1", loop, *indented(inner), "}"]

"""Kernels without reductions: nothing to reuse, so all that matters is how bytes move."""

from __future__ import annotations

from tilewright.playbook.cpp_pieces import VECTOR
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, Fragment, KernelSignature, PlanLines, fragment, includes
from tilewright.playbook.row_kernel import RowKernel, each_element
from tilewright.playbook.row_program import ProgramInput, ProgramOutput, RowProgram

_TALLEST = 65535  # blocks that a grid may have in its second dimension


def draft_elements(program: RowProgram, op_line: str) -> Fragment:
    """One thread per element."""
    kernel = RowKernel(program, quick=False)
    plan = PlanLines(program, op_line)
    rows, cols = plan.sizes()
    plan.limits(rows, cols)
    plan.add("const", "THREADS = 256")
    sizes = [("long long n", f"{rows} * {cols}"), ("long long cols", cols)]
    signature = KernelSignature.of(program, kernel.namer, sizes)
    kernel_name = f"{program.name}_elements"
    plan.launch(kernel_name, f"ceil_div({rows} * {cols}, THREADS)", "THREADS", signature.given)

    body = [
        "const long long element = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;",
        "if (element >= n) return;",
    ]
    if not program.is_flat:
        body.append("const long long row = element / cols, column = element % cols;")
    body += kernel.index_lines(*program.inputs)

    def load(one: ProgramInput) -> str:
        name, row = kernel.name(one.name), kernel.row_of(one)
        if row == "row":
            return f"{name}[element]"
        return f"{name}[column]" if row == "0" else f"{name}[{row} * cols + column]"

    store = {one.name: f"{kernel.name(one.name)}[element]" for one in program.outputs_along}
    sweep = kernel.sweep(0, load, "column", store)
    text = signature.kernel("__launch_bounds__(THREADS)", kernel_name, [*body, *sweep.before, *sweep.element])
    header = (
        f"{program.name}, a first version: simple, and right at any size.\n\nOne thread computes one element, in f32."
    )
    return fragment(header, plan, includes(program), *kernel.helper_pieces(), text)


def vector_elements(program: RowProgram, op_line: str, hints: bool = False, quick: bool = True) -> Fragment:
    """16-byte vectors over flat memory; `hints`: results bypass the cache."""
    kernel = RowKernel(program, quick)
    plan = PlanLines(program, op_line)
    n = plan.name("n")
    plan.add("tune", "THREADS = 128 | 256 | 512")
    plan.add("const", f"WIDTH = {16 // program.widest.itemsize}", "elements of a vector: 16 bytes of the widest tensor")
    plan.add("let", f"{n} = {_total(program)}")
    plan.read_once(n)
    signature = KernelSignature.of(program, kernel.namer, [("long long n", n)])
    kernel_name = f"{program.name}_vectors"
    plan.launch(kernel_name, f"ceil_div({n}, THREADS * WIDTH)", "THREADS", signature.given)
    text = signature.kernel("__launch_bounds__(THREADS)", kernel_name, _vectors_text(kernel, hints))
    header = (
        f"{program.name} at memory speed: a pointwise kernel has nothing to reuse, so all that matters is how bytes "
        "move.\n\nEvery thread moves one 16-byte vector, neighbouring threads move neighbours, and many small blocks "
        "walk memory in address order, so the hardware always has enough loads in flight. Arithmetic is in f32 "
        "whatever the element type."
    )
    return fragment(header, plan, includes(program), [VECTOR], *kernel.helper_pieces(), text)


def _total(program: RowProgram) -> str:
    return program.cols if program.rows == "1" else f"{program.rows} * ({program.cols})"


def _vectors_text(kernel: RowKernel, hints: bool) -> list[str]:
    read = [(kernel.name(one.name), f"Vector<{one.dtype.cpp}>") for one in kernel.program.inputs if one.varies]
    sweep = kernel.sweep(0, lambda one: f"{kernel.name(one.name)}_here.at[i]", "", kernel.made_elements())
    inside = [
        *(f"const {vector} {name}_here = {name}_vectors[place];" for name, vector in read),
        *kernel.made_vectors(),
        *each_element(sweep.element),
        *(_store_vector(kernel, one, "place", hints) for one in kernel.program.outputs_along),
    ]
    return [
        *kernel.once(),
        *sweep.before,
        *(f"const auto* {name}_vectors = reinterpret_cast<const {vector}*>({name});" for name, vector in read),
        "const long long place = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;",
        "if ((place + 1) * WIDTH <= n) {",
        *indented(inside),
        "} else {",
        "  // The last, incomplete vector.",
        *indented(_tail(kernel, "place")),
        "}",
    ]


def _store_vector(kernel: RowKernel, output: ProgramOutput, place: str, hints: bool) -> str:
    """A vector stored; with `hints`, as one that will not be read again soon."""
    target, made = kernel.name(output.name), f"{kernel.name(output.name)}_made"
    if hints and output.dtype.itemsize == kernel.program.widest.itemsize:
        return f"__stcs(reinterpret_cast<uint4*>({target}) + {place}, *reinterpret_cast<const uint4*>(&{made}));"
    return f"reinterpret_cast<Vector<{output.dtype.cpp}>*>({target})[{place}] = {made};"


def _tail(kernel: RowKernel, place: str) -> list[str]:
    """The last elements one by one."""
    store = {one.name: f"{kernel.name(one.name)}[i]" for one in kernel.program.outputs_along}
    sweep = kernel.sweep(0, lambda one: f"{kernel.name(one.name)}[i]", "", store)
    return [f"for (long long i = {place} * WIDTH; i < n; ++i) {{", *indented(sweep.element), "}"]


def rectangle_elements(program: RowProgram, op_line: str, quick: bool = True) -> Fragment:
    """16-byte vectors where tensors are broadcast: a block is a rectangle of rows and columns."""
    kernel = RowKernel(program, quick)
    plan = PlanLines(program, op_line)
    signature, kernel_name = _rectangle_plan(kernel, plan)
    text = signature.kernel("__launch_bounds__(THREADS)", kernel_name, _rectangle_body(kernel))
    header = (
        f"{program.name} at memory speed, with tensors that are broadcast.\n\nA thread must know its row and column. "
        "Rather than divide a flat index, the block is a rectangle: x runs along a row, y over rows, and narrow rows "
        "share a block; the grid has a dimension for either, so no block divides its number. A thread loads VECTORS "
        "vectors of its row before it computes anything: with two, blocks are half as many. Where rows are not a whole "
        "number of 16-byte vectors, their starts are not aligned either: WIDTH is 1 and the same code moves single "
        "elements. Arithmetic is in f32 whatever the element type."
    )
    return fragment(header, plan, includes(program), [VECTOR], *kernel.helper_pieces(), text)


def _rectangle_plan(kernel: RowKernel, plan: PlanLines) -> tuple[KernelSignature, str]:
    rows, cols = plan.sizes()
    vectors, lanes, block_rows = (plan.name(one) for one in ("vectors", "lanes", "block_rows"))
    across, bands, slabs = (plan.name(one) for one in ("across", "bands", "slabs"))
    plan.limits(rows, cols)
    plan.add("tune", "THREADS = 128 | 256 | 512")
    plan.add("tune", "VECTORS = 2 | 1", "of a thread, loaded together")
    plan.width(cols)
    plan.add("let", f"{vectors} = {cols} / WIDTH")
    plan.add("need", f"{vectors} <= {MOST_32_BIT}", "a column fits an int")
    narrow = f"next_pow2(max(ceil_div({vectors}, VECTORS), 1))"
    plan.add("let", f"{lanes} = min({narrow}, THREADS), {block_rows} = THREADS / {lanes}")
    plan.add("let", f"{across} = ceil_div({vectors}, {lanes} * VECTORS), {bands} = ceil_div({rows}, {block_rows})")
    plan.add("let", f"{slabs} = max(ceil_div({bands}, {_TALLEST}), 1)")
    plan.read_once(f"{rows} * {cols}")
    signature = KernelSignature.of(kernel.program, kernel.namer, [("long long rows", rows), ("int vectors", vectors)])
    kernel_name = f"{kernel.program.name}_rectangles"
    grid = f"dim3({across}, ceil_div({bands}, {slabs}), {slabs})"
    plan.launch(kernel_name, grid, f"dim3({lanes}, {block_rows})", signature.given)
    return signature, kernel_name


def _rectangle_body(kernel: RowKernel) -> list[str]:
    program = kernel.program
    read = [one for one in program.inputs if one.varies]
    loads = []
    for one in read:
        name, own = kernel.name(one.name), kernel.row_of(one)
        place = "column" if own == "0" else f"{own} * vectors + column"
        loads.append(f"{name}_here[k] = reinterpret_cast<const Vector<{one.dtype.cpp}>*>({name})[{place}];")
    sweep = kernel.sweep(0, lambda one: f"{kernel.name(one.name)}_here[k].at[i]", "", kernel.made_elements())
    stores = [_store_vector(kernel, one, "row * vectors + column", False) for one in program.outputs_along]
    return [
        *kernel.once(),
        "// Blocks are numbered along the row first, so that they run in address order.",
        "const int first = blockIdx.x * (VECTORS * blockDim.x) + threadIdx.x;",
        "const long long band = blockIdx.z * static_cast<long long>(gridDim.y) + blockIdx.y;",
        "const long long row = band * blockDim.y + threadIdx.y;",
        "if (first >= vectors || row >= rows) return;",
        "",
        *kernel.index_lines(*program.inputs),
        *(f"Vector<{one.dtype.cpp}> {kernel.name(one.name)}_here[VECTORS];" for one in read),
        *_each_vector(loads),
        *sweep.before,
        *_each_vector([*kernel.made_vectors(), *each_element(sweep.element), *stores]),
    ]


def _each_vector(lines: list[str]) -> list[str]:
    """What is done with each of a thread's vectors that lies in the row."""
    return [
        "unrolled for (int k = 0; k < VECTORS; ++k) {",
        *indented(["const int column = first + k * blockDim.x;", "if (column >= vectors) break;", *lines]),
        "}",
    ]

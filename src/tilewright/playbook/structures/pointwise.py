"""Kernels without reductions: nothing to reuse, so all that matters is how bytes move."""

from __future__ import annotations

from tilewright.playbook.cpp_helpers import VECTOR
from tilewright.playbook.file_text import Plan, Signature, file_text, has_parts, includes
from tilewright.playbook.row_kernel import RowKernel, index_lines, row_load, row_of
from tilewright.playbook.row_program import ProgramInput, RowProgram
from tilewright.playbook.statements import indented


def draft_elements(program: RowProgram, op_line: str) -> str:
    """One thread per element."""
    kernel = RowKernel(program, quick=False)
    plan = Plan(program, op_line)
    rows, cols = plan.name("rows"), plan.name("cols")
    plan.add("let", f"{cols} = {program.cols}, {rows} = {program.rows}")
    if has_parts(program):
        plan.add("need", f"{rows} <= 2000000000", "so that a 32-bit division finds a broadcast row")
    plan.add("const", "THREADS = 256")
    signature = Signature.of(program, kernel.namer, [("long long n", f"{rows} * {cols}"), ("long long cols", cols)])
    kernel_name = f"{program.name}_elements"
    plan.launch(kernel_name, f"ceil_div({rows} * {cols}, THREADS)", "THREADS", signature.given)

    body = [
        "const long long element = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;",
        "if (element >= n) return;",
    ]
    if not program.is_flat:
        body.append("const long long row = element / cols, column = element % cols;")
    for one in program.inputs:
        body += index_lines(kernel, one)

    def load(one: ProgramInput) -> str:
        name, row = kernel.name(one.name), row_of(kernel, one)
        if not one.varies:
            return f"{name}[{row}]"
        if row == "row":
            return f"{name}[element]"
        return f"{name}[column]" if row == "0" else f"{name}[{row} * cols + column]"

    store = {one.name: f"{kernel.name(one.name)}[element]" for one in program.outputs_along}
    sweep = kernel.sweep(0, load, load, "column", store)
    body += [*sweep.before, *sweep.element]
    text = [*signature.text("__launch_bounds__(THREADS)", kernel_name), *indented(body), "}"]
    header = (
        f"{program.name}, a first version: simple, and right at any size.\n\nOne thread computes one element, in f32."
    )
    helpers = [[one] for one in kernel.forms.helpers()]
    return file_text(header, plan, [includes(program), *helpers, text])


def vector_elements(
    program: RowProgram, op_line: str, several: bool = False, hints: bool = False, quick: bool = True
) -> str:
    """16-byte vectors over flat memory; `several` vectors for each thread; `hints`: results bypass the cache."""
    kernel = RowKernel(program, quick)
    plan = Plan(program, op_line)
    n = plan.name("n")
    plan.add("tune", "THREADS = 128 | 256 | 512")
    if several:
        plan.add("tune", "VECTORS = 2 | 4", "of a thread, loaded together")
    plan.add("const", f"WIDTH = {16 // program.widest.itemsize}", "elements of a vector: 16 bytes of the widest tensor")
    plan.add("let", f"{n} = {_total(program)}")
    per_block = "THREADS * VECTORS * WIDTH" if several else "THREADS * WIDTH"
    signature = Signature.of(program, kernel.namer, [("long long n", n)])
    kernel_name = f"{program.name}_vectors"
    plan.launch(kernel_name, f"ceil_div({n}, {per_block})", "THREADS", signature.given)

    vectors = _vectors_text(kernel, several, hints)
    header = (
        f"{program.name} at memory speed: a pointwise kernel has nothing to reuse, so all that matters is how "
        f"bytes move."
        "\n\n"
        + (
            "Every thread loads VECTORS 16-byte vectors before it computes anything, so more bytes are under way."
            if several
            else "Every thread moves one 16-byte vector, neighbouring threads move neighbours, and many small "
            "blocks walk memory in address order, so the hardware always has enough loads in flight."
        )
        + " Arithmetic is in f32 whatever the element type."
    )
    text = [*signature.text("__launch_bounds__(THREADS)", kernel_name), *indented(vectors), "}"]
    helpers = [[one] for one in kernel.forms.helpers()]
    return file_text(header, plan, [includes(program), [VECTOR], *helpers, text])


def _total(program: RowProgram) -> str:
    return program.cols if program.rows == "1" else f"{program.rows} * ({program.cols})"


def _vectors_text(kernel: RowKernel, several: bool, hints: bool) -> list[str]:
    program = kernel.program
    index = "[k]" if several else ""

    def load(one: ProgramInput) -> str:
        name = kernel.name(one.name)
        return f"{name}_here{index}.at[i]" if one.varies else f"{name}[0]"

    store = {one.name: f"{kernel.name(one.name)}_made.at[i]" for one in program.outputs_along}
    sweep = kernel.sweep(0, load, load, "", store)
    inside = _guard_body(kernel, sweep.element, several, hints)
    vectors = [
        f"const auto* {kernel.name(one.name)}_vectors = reinterpret_cast<const Vector<{one.dtype.cpp}>*>"
        f"({kernel.name(one.name)});"
        for one in program.inputs
        if one.varies
    ]
    tail = _tail(kernel, "(place + k * THREADS)" if several else "place")
    count = " * VECTORS" if several else ""
    lines = [*sweep.before, *vectors]
    if not several:
        lines += [
            "const long long place = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;",
            "if ((place + 1) * WIDTH <= n) {",
            *indented(inside),
            "} else {",
            "  // The last, incomplete vector.",
            *indented(tail),
            "}",
        ]
        return lines
    declared = [
        f"Vector<{one.dtype.cpp}> {kernel.name(one.name)}_here[VECTORS];" for one in program.inputs if one.varies
    ]
    loads = [
        f"if ((place + k * THREADS + 1) * WIDTH <= n) {kernel.name(one.name)}_here[k] = "
        f"{kernel.name(one.name)}_vectors[place + k * THREADS];"
        for one in program.inputs
        if one.varies
    ]
    return [
        *lines,
        f"const long long place = blockIdx.x * static_cast<long long>(THREADS{count}) + threadIdx.x;",
        *declared,
        "#pragma unroll",
        "for (int k = 0; k < VECTORS; ++k) {",
        *indented(loads),
        "}",
        "#pragma unroll",
        "for (int k = 0; k < VECTORS; ++k) {",
        "  if ((place + k * THREADS + 1) * WIDTH <= n) {",
        *indented(inside, 2),
        "  } else {",
        "    // The last, incomplete vector.",
        *indented(tail, 2),
        "  }",
        "}",
    ]


def _guard_body(kernel: RowKernel, element: list[str], several: bool, hints: bool) -> list[str]:
    program = kernel.program
    place = "place + k * THREADS" if several else "place"
    lines: list[str] = []
    for one in program.inputs:
        if one.varies and not several:
            name = kernel.name(one.name)
            lines.append(f"const Vector<{one.dtype.cpp}> {name}_here = {name}_vectors[place];")
    for output in program.outputs_along:
        lines.append(f"Vector<{output.dtype.cpp}> {kernel.name(output.name)}_made;")
    lines += ["#pragma unroll", "for (int i = 0; i < WIDTH; ++i) {", *indented(element), "}"]
    for output in program.outputs_along:
        name = kernel.name(output.name)
        lines.append(store_vector(output.dtype.cpp, output.dtype.itemsize, name, place, f"{name}_made", hints, program))
    return lines


def store_vector(cpp: str, itemsize: int, target: str, place: str, made: str, hints: bool, program: RowProgram) -> str:
    """A vector stored; with `hints`, as one that will not be read again soon."""
    if hints and itemsize == program.widest.itemsize:
        return f"__stcs(reinterpret_cast<uint4*>({target}) + {place}, *reinterpret_cast<const uint4*>(&{made}));"
    return f"reinterpret_cast<Vector<{cpp}>*>({target})[{place}] = {made};"


def _tail(kernel: RowKernel, place: str) -> list[str]:
    """The last elements one by one."""
    program = kernel.program

    def load(one: ProgramInput) -> str:
        name = kernel.name(one.name)
        return f"{name}[i]" if one.varies else f"{name}[0]"

    store = {one.name: f"{kernel.name(one.name)}[i]" for one in program.outputs_along}
    sweep = kernel.sweep(0, load, load, "", store)
    return [f"for (long long i = {place} * WIDTH; i < n; ++i) {{", *indented(sweep.element), "}"]


def rectangle_elements(program: RowProgram, op_line: str, quick: bool = True) -> str:
    """16-byte vectors where tensors are broadcast: a block is a rectangle of rows and columns."""
    kernel = RowKernel(program, quick)
    plan = Plan(program, op_line)
    names = {one: plan.name(one) for one in ("rows", "cols", "vectors", "lanes", "block_rows", "chunks")}
    size = 16 // program.widest.itemsize
    plan.add("let", "{cols} = {c}, {rows} = {r}".format(**names, c=program.cols, r=program.rows))
    if has_parts(program):
        plan.add("need", "{rows} <= 2000000000".format(**names), "so that a 32-bit division finds a broadcast row")
    plan.add("tune", "THREADS = 128 | 256 | 512")
    plan.add("const", "WIDTH = {s} if {cols} % {s} == 0 else 1".format(**names, s=size), "elements per load")
    plan.add(
        "let",
        "{vectors} = {cols} / WIDTH, {lanes} = min(next_pow2(max({vectors}, 1)), THREADS), "
        "{block_rows} = THREADS / {lanes}".format(**names),
    )
    plan.add("need", "{vectors} <= 2000000000".format(**names), "a column fits an int")
    plan.add("let", "{chunks} = ceil_div({vectors}, {lanes})".format(**names))
    sizes = [("long long rows", names["rows"]), ("int vectors", names["vectors"]), ("int chunks", names["chunks"])]
    signature = Signature.of(program, kernel.namer, sizes)
    kernel_name = f"{program.name}_rectangles"
    plan.launch(
        kernel_name,
        "{chunks} * ceil_div({rows}, {block_rows})".format(**names),
        "dim3({lanes}, {block_rows})".format(**names),
        signature.given,
    )

    def load(one: ProgramInput) -> str:
        return f"{kernel.name(one.name)}_here.at[i]"

    body = [
        "// Blocks are numbered along the row first, so that they run in address order.",
        "const int column = static_cast<int>(blockIdx.x % chunks) * blockDim.x + threadIdx.x;",
        "const long long row = static_cast<long long>(blockIdx.x / chunks) * blockDim.y + threadIdx.y;",
        "if (column >= vectors || row >= rows) return;",
        "",
    ]
    for one in program.inputs:
        body += index_lines(kernel, one)
        if one.varies:
            name, own = kernel.name(one.name), row_of(kernel, one)
            place = "column" if own == "0" else f"{own} * vectors + column"
            body.append(f"const auto {name}_here = reinterpret_cast<const Vector<{one.dtype.cpp}>*>({name})[{place}];")
    store = {one.name: f"{kernel.name(one.name)}_made.at[i]" for one in program.outputs_along}
    sweep = kernel.sweep(0, load, row_load(kernel), "", store)
    body += sweep.before
    body += [f"Vector<{one.dtype.cpp}> {kernel.name(one.name)}_made;" for one in program.outputs_along]
    body += ["#pragma unroll", "for (int i = 0; i < WIDTH; ++i) {", *indented(sweep.element), "}"]
    for output in program.outputs_along:
        name = kernel.name(output.name)
        body.append(f"reinterpret_cast<Vector<{output.dtype.cpp}>*>({name})[row * vectors + column] = {name}_made;")
    text = [*signature.text("__launch_bounds__(THREADS)", kernel_name), *indented(body), "}"]
    header = (
        f"{program.name} at memory speed, with tensors that are broadcast.\n\nA thread must know its row and column. "
        "Rather than divide a flat index, the block is a rectangle: x runs along a row, y over rows, and narrow "
        "rows share "
        "a block. Where rows are not a whole number of 16-byte vectors, their starts are not aligned either: "
        "WIDTH is 1 and "
        "the same code moves single elements. Arithmetic is in f32 whatever the element type."
    )
    helpers = [[one] for one in kernel.forms.helpers()]
    return file_text(header, plan, [includes(program), [VECTOR], *helpers, text])

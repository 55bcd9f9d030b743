"""Kernels whose results' elements each read a few places: one thread per element, vectors, and tiles for transposes."""

from __future__ import annotations

from tilewright.playbook.cpp_helpers import VECTOR
from tilewright.playbook.file_text import MOST_32_BIT, Fragment, PlanLines, fragment, includes
from tilewright.playbook.places.program import PlacedProgram
from tilewright.playbook.places.text import PlacedKernel, product_text, width_line
from tilewright.playbook.places.vectors import Known

Programs = tuple[PlacedProgram, ...]  # one for each shape of results


def draft(programs: Programs, op_line: str) -> Fragment:
    """One thread per element."""
    plan = PlanLines(programs[0].as_rows(), op_line)
    plan.add("const", "THREADS = 256")
    texts: list[list[str]] = []
    helpers: dict[str, None] = {}
    for number, program in enumerate(programs):
        kernel = PlacedKernel(program, plan, None, quick=False)
        suffix = _suffix(programs, number)
        count = plan.name(f"n{suffix}")
        plan.add("let", f"{count} = {product_text(program.variables)}")
        body = [
            "const long long element = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;",
            "if (element >= n) return;",
            *kernel.split(program.variables, "element"),
        ]
        lines, known = kernel.write(tuple(one.value for one in program.outputs), {}, kernel.load_alone)
        body += lines
        for one in program.outputs:
            body.append(f"{kernel.pointer(one.name)}[element] = {kernel.stored(one, known[one.value])};")
        grid, more = f"ceil_div({count}, THREADS)", [("long long n", count)]
        texts.append(kernel.launched(f"elements{suffix}", grid, "THREADS", "THREADS", body, more))
        helpers |= dict.fromkeys(kernel.forms.helpers())
    header = (
        f"{programs[0].name}, a first version: simple, and right at any size.\n\nOne thread computes one element of "
        "the result: it finds out where the element lies, and reads what belongs there."
    )
    return fragment(header, plan, _includes(programs), *([one] for one in helpers), *texts)


def vectors(programs: Programs, op_line: str, quick: bool = True) -> Fragment:
    """16-byte vectors along the last dimension; a block is a rectangle of rows and columns."""
    plan = PlanLines(programs[0].as_rows(), op_line)
    plan.add("tune", "THREADS = 128 | 256 | 512")
    kernels = [PlacedKernel(program, plan, program.variables[-1], quick) for program in programs]
    narrowest = min(kernel.width for kernel in kernels)
    kernels = [PlacedKernel(program, plan, program.variables[-1], quick, narrowest) for program in programs]
    width_line(plan, *kernels)
    texts: list[list[str]] = []
    helpers: dict[str, None] = {}
    for number, kernel in enumerate(kernels):
        texts.append(_vector_kernel(kernel, plan, _suffix(programs, number)))
        helpers |= dict.fromkeys(kernel.forms.helpers())
    header = (
        f"{programs[0].name} at memory speed: every element of the result reads the few places that it needs.\n\nA "
        "thread makes one 16-byte vector. The block is a rectangle, x along a row of the result and y over rows, so "
        "that one division per dimension tells a thread where it is. Where rows do not begin at whole vectors, WIDTH "
        "is 1 and the same code moves single elements."
    )
    return fragment(header, plan, _includes(programs), [VECTOR], *([one] for one in helpers), *texts)


def _vector_kernel(kernel: PlacedKernel, plan: PlanLines, suffix: str) -> list[str]:
    program = kernel.program
    column, rows = program.variables[-1], program.variables[:-1]
    names = [plan.name(f"{one}{suffix}") for one in ("rows", "vectors", "lanes", "block_rows", "chunks")]
    row_count, vector_count, lanes, block_rows, chunks = names
    plan.add("let", f"{row_count} = {product_text(rows)}, {vector_count} = {column.size.factor} / WIDTH")
    plan.add("need", f"{row_count} <= {MOST_32_BIT} and {column.size.text} <= {MOST_32_BIT}")
    plan.add("let", f"{lanes} = min(next_pow2(max({vector_count}, 1)), THREADS), {block_rows} = THREADS / {lanes}")
    plan.add("let", f"{chunks} = ceil_div({vector_count}, {lanes})")
    body = [
        "// Blocks are numbered along the row first, so that they run in address order.",
        "const int vector = static_cast<int>(blockIdx.x % chunks) * blockDim.x + threadIdx.x;",
        "const unsigned row = blockIdx.x / chunks * blockDim.y + threadIdx.y;",
        "if (vector >= vectors || row >= rows) return;",
        *kernel.split(rows, "row"),
        f"const int {kernel.variable(column)} = vector * WIDTH;",
        *_vector_body(kernel),
    ]
    more = [("unsigned rows", row_count), ("int vectors", vector_count), ("unsigned chunks", chunks)]
    grid = f"{chunks} * ceil_div({row_count}, {block_rows})"
    return kernel.launched(f"vectors{suffix}", grid, f"dim3({lanes}, {block_rows})", "THREADS", body, more)


def _vector_body(kernel: PlacedKernel) -> list[str]:
    """Loads, the work on each element of the vector, and stores."""
    program, held = kernel.program, kernel.held(kernel.program.targets)
    lines, known = same_values(kernel, tuple(one.value for one in program.outputs))
    for name, read in held.reads.items():
        kind, loads = f"Vector<{read.dtype.cpp}>", kernel.load_vector(read, kernel.modes[name], known, held.name(name))
        lines += [f"{kind} {held.name(name)} = {{}};", *loads] if read.conditions else [f"const {kind} {loads[0]}"]
    return [*lines, *kernel.store_vectors(known, held.element)]


def same_values(kernel: PlacedKernel, targets: tuple[int, ...]) -> tuple[list[str], Known]:
    """Statements for what all elements of a vector have in common."""
    program = kernel.program
    common = tuple(
        index
        for index in sorted(program.closure(targets))
        if not kernel.rows.varies[index] and kernel.forms.leaf(index) is None
    )
    used = {one for index in program.closure(targets) for one in program.arguments(index) if kernel.rows.varies[index]}
    used |= {*kernel.lookups(targets, {}), *targets}
    wanted = tuple(index for index in common if index in used)
    lines, known = kernel.write(wanted, {}, kernel.load_alone, frozenset(wanted))
    return lines, {index: known[index] for index in wanted}


def _suffix(programs: Programs, number: int) -> str:
    return f"_{number + 1}" if len(programs) > 1 else ""


def _includes(programs: Programs) -> list[str]:
    return sorted({line for program in programs for line in includes(program.as_rows())})

"""Transposes: tiles that are read along one dimension and written along another, through shared memory."""

from __future__ import annotations

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, PlanLines, fragment, includes
from tilewright.playbook.places.indices import Variable
from tilewright.playbook.places.program import PlacedProgram
from tilewright.playbook.places.reader import Leaf, Read
from tilewright.playbook.places.text import Known, PlacedKernel, kernel_lines, product_text


def crossing(program: PlacedProgram) -> tuple[Variable, dict[str, Read]] | None:
    """The loop variable along which some reads lie side by side while results do not, and those reads."""
    if len(program.variables) < 2:
        return None
    last = program.variables[-1]
    found: dict[Variable, dict[str, Read]] = {}
    for name, read in program.reads.items():
        along = read.place.factor(last)
        if along is None or abs(along.own) == 1 or read.place.lookups or not read.place.is_linear_in(last):
            continue
        for variable in program.variables[:-1]:
            factor = read.place.factor(variable)
            if factor is not None and factor.is_always(1) and read.place.is_linear_in(variable):
                found.setdefault(variable, {})[name] = read
    return max(found.items(), key=lambda one: len(one[1]), default=None)


def tiles(program: PlacedProgram, op_line: str, quick: bool = True) -> str:
    """A block for a square of the result."""
    found = crossing(program)
    assert found is not None
    down, reads = found
    along = program.variables[-1]
    rest = tuple(one for one in program.variables if one not in (down, along))
    plan = PlanLines(program.as_rows(), op_line)
    wide, high, count = (plan.name(one) for one in ("tiles_along", "tiles_down", "slabs"))
    plan.add("tune", "TILE = 64 | 32")
    plan.add("tune", "THREADS = 256 | 512 | 128")
    plan.add("let", f"{wide} = ceil_div({along.size.text}, TILE), {high} = ceil_div({down.size.text}, TILE)")
    plan.add("let", f"{count} = {product_text(rest)}")
    plan.add("need", f"{wide} * {high} * {count} <= {MOST_32_BIT}")
    kernel = PlacedKernel(program, plan, None, quick)
    body = _body(kernel, down, along, rest, reads)
    more = [("unsigned tiles_along", wide), ("unsigned tiles_down", high)]
    signature = kernel.signature(tuple(one.name for one in program.outputs), more)
    name = f"{program.name}_tiles"
    plan.launch(name, f"{wide} * {high} * {count}", "dim3(TILE, THREADS / TILE)", signature.given)
    header = (
        f"{program.name}, where neighbours of the result are not neighbours of what is read.\n\nA block makes a square "
        "of TILE by TILE elements. It reads the square in the order of the input and writes it in that of the result, "
        "so both sides move whole lines; the turn happens in shared memory, whose rows are longer by a bank so that "
        "neither direction meets itself there."
    )
    text = kernel_lines(signature, "__launch_bounds__(THREADS)", name, body)
    pieces = [[one] for one in kernel.forms.helpers()]
    return fragment(header, plan, includes(program.as_rows()), *pieces, text).file()


def _body(
    kernel: PlacedKernel, down: Variable, along: Variable, rest: tuple[Variable, ...], reads: dict[str, Read]
) -> list[str]:
    down_name, along_name = kernel.variable(down), kernel.variable(along)
    names = {name: f"{kernel.namer.tensors[name]}_square" for name in reads}
    inside = f"{down_name} < {kernel.size(down.size, 'int')} && {along_name} < {kernel.size(along.size, 'int')}"

    def element(name: str, leaf: Leaf, known: Known) -> str:
        return f"{names[name]}[threadIdx.x][other]" if name in names else kernel.load(leaf, known)

    lines = [
        f"__shared__ {read.dtype.cpp} {names[name]}[TILE][TILE + {max(4 // read.dtype.itemsize, 1)}];"
        for name, read in reads.items()
    ]
    lines += [
        "const int first_along = static_cast<int>(blockIdx.x % tiles_along) * TILE;",
        "const int first_down = static_cast<int>(blockIdx.x / tiles_along % tiles_down) * TILE;",
        *kernel.split(rest, "(blockIdx.x / tiles_along / tiles_down)"),
    ]
    loop = ["#pragma unroll 8", "for (int other = threadIdx.y; other < TILE; other += THREADS / TILE) {"]
    loads = [f"{names[name]}[other][threadIdx.x] = {kernel.load(read, {})};" for name, read in reads.items()]
    reading = [
        f"const int {down_name} = first_down + threadIdx.x, {along_name} = first_along + other;",
        f"if ({inside}) {{",
        *indented(loads),
        "}",
    ]
    made, texts = kernel.write(tuple(one.value for one in kernel.program.outputs), {}, element)
    for one in kernel.program.outputs:
        place = kernel.index(one.place, {})
        made.append(f"{kernel.pointer(one.name)}[{place}] = {kernel.stored(one, texts[one.value])};")
    writing = [
        f"const int {down_name} = first_down + other, {along_name} = first_along + threadIdx.x;",
        f"if ({inside}) {{",
        *indented(made),
        "}",
    ]
    return [*lines, *loop, *indented(reading), "}", "__syncthreads();", *loop, *indented(writing), "}"]

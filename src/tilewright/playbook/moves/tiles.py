"""Transposes: tiles that are read along one dimension and written along another, through shared memory."""

from __future__ import annotations

from tilewright.playbook.cpp_helpers import VECTOR
from tilewright.playbook.file_text import MOST_32_BIT, Fragment, PlanLines, fragment, includes
from tilewright.playbook.places.indices import Variable
from tilewright.playbook.places.program import PlacedProgram
from tilewright.playbook.places.reader import Read
from tilewright.playbook.places.text import Held, PlacedKernel, product_text, width_line
from tilewright.playbook.places.vectors import alignment, each_element, guarded, over_vectors

_BANK_BYTES = 4


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


def tiles(program: PlacedProgram, op_line: str, quick: bool = True) -> Fragment:
    """A block for a square of the result."""
    found = crossing(program)
    assert found is not None
    down, reads = found
    along = program.variables[-1]
    rest = tuple(one for one in program.variables if one not in (down, along))
    plan = PlanLines(program.as_rows(), op_line)
    wide, high, count = (plan.name(one) for one in ("tiles_along", "tiles_down", "slabs"))
    bytes_of_place = sum(one.dtype.itemsize for one in reads.values())
    plan.add("tune", "TILE = 64 | 32" + (" | 128" if bytes_of_place <= 2 else ""))
    plan.add("tune", "THREADS = 256 | 512 | 128")
    kernel = PlacedKernel(program, plan, along, quick, _width(program, reads))
    _width_line(kernel, plan, down, reads)
    plan.add("let", f"{wide} = ceil_div({along.size.text}, TILE), {high} = ceil_div({down.size.text}, TILE)")
    plan.add("let", f"{count} = {product_text(rest)}")
    plan.add("need", f"{wide} * {high} * {count} <= {MOST_32_BIT}")
    body = _body(kernel, down, along, rest, reads)
    more = [("unsigned tiles_along", wide), ("unsigned tiles_down", high)]
    plan.add("need", "THREADS * WIDTH <= TILE * TILE")
    block = "dim3(TILE / WIDTH, THREADS * WIDTH / TILE)"
    text = kernel.launched("tiles", f"{wide} * {high} * {count}", block, "THREADS", body, more)
    header = (
        f"{program.name}, where neighbours of the result are not neighbours of what is read.\n\nA block makes a square "
        "of TILE by TILE elements. It reads the square in the order of the input and writes it in that of the result, "
        "so both sides move whole lines, 4 bytes or more a thread. All loads are issued before any is used; the turn "
        "happens in shared memory, whose rows are longer by a bank so that neither direction meets itself there."
    )
    high = "constexpr int HIGH = THREADS * WIDTH / TILE, TURNS = TILE / HIGH;  // rows that a block moves at a time"
    pieces = [[high], [VECTOR], *([one] for one in kernel.forms.helpers())]
    return fragment(header, plan, includes(program.as_rows()), *pieces, text)


def _width(program: PlacedProgram, reads: dict[str, Read]) -> int:
    """Elements of a thread that fill 4 bytes, the width of a bank, where all that is moved is narrower."""
    dtypes = [*(one.dtype for one in reads.values()), *(one.dtype for one in program.outputs)]
    return max(_BANK_BYTES // max(one.itemsize for one in dtypes), 1)


def _width_line(kernel: PlacedKernel, plan: PlanLines, down: Variable, reads: dict[str, Read]) -> None:
    """WIDTH: as many elements as a bank holds, where both directions begin at whole ones."""
    aligned = [alignment(read, down) for read in reads.values()]
    sizes = [down.size, *(size for one in aligned if one is not None for size in one.sizes)]
    if kernel.width > 1 and None not in aligned and all(size.own % kernel.width == 0 for size in sizes):
        width_line(plan, kernel, more=sizes)
    else:
        plan.add("const", "WIDTH = 1", "elements of a thread")


def _body(
    kernel: PlacedKernel, down: Variable, along: Variable, rest: tuple[Variable, ...], reads: dict[str, Read]
) -> list[str]:
    down_name, along_name = kernel.variable(down), kernel.variable(along)
    held = Held(kernel, reads, "[k]")
    inside = f"{down_name} < {kernel.size(down.size, 'int')} && {along_name} < {kernel.size(along.size, 'int')}"
    other = "const int other = threadIdx.y + k * HIGH;"
    lines = []
    for name, read in reads.items():
        pitch = f"TILE + {max(_BANK_BYTES // read.dtype.itemsize, 1)}"
        lines.append(f"__shared__ __align__(4) {read.dtype.cpp} {held.name(name, 'square')}[TILE][{pitch}];")
    lines += [
        "const int first_along = static_cast<int>(blockIdx.x % tiles_along) * TILE;",
        "const int first_down = static_cast<int>(blockIdx.x / tiles_along % tiles_down) * TILE;",
        *kernel.split(rest, "(blockIdx.x / tiles_along / tiles_down)"),
        "const int side = threadIdx.x * WIDTH;",
        *held.declared("here[TURNS] = {}"),
    ]
    place = f"const int {down_name} = first_down + side, {along_name} = first_along + other;"
    lines += over_vectors([other, *guarded(place, inside, held.loads())], "TURNS")
    turns = [f"{held.name(name, 'square')}[side + i][other] = {held.name(name)}[k].at[i];" for name in reads]
    lines += [*over_vectors([other, *each_element(turns)], "TURNS"), "__syncthreads();"]
    turned = []
    for name, read in reads.items():
        square = f"*reinterpret_cast<Vector<{read.dtype.cpp}>*>(&{held.name(name, 'square')}[other][side])"
        turned.append(f"{held.name(name)}[k] = {square};")
    turned += kernel.store_vectors({}, held.element)
    place = f"const int {down_name} = first_down + other, {along_name} = first_along + side;"
    return [*lines, *over_vectors([other, *guarded(place, inside, turned)], "TURNS")]

"""Moves: results whose elements read a few places of the inputs each, whatever views, joins and look-ups say so.

They are written by one thread per element, in vectors, and where neighbours are not neighbours any more in tiles.
"""

from __future__ import annotations

from functools import partial

from tilewright.playbook.cpp_pieces import VECTOR
from tilewright.playbook.families import Family, Schedules, Structure, TracedTask
from tilewright.playbook.file_text import MOST_32_BIT, Fragment, PlanLines, file_of, fragment, includes
from tilewright.playbook.operations import POINTWISE_RULES
from tilewright.playbook.places.either import EitherHeld, decided_tests
from tilewright.playbook.places.indices import Variable
from tilewright.playbook.places.program import PlacedProgram, merged, placed_program
from tilewright.playbook.places.reader import Leaf, PlaceReader, Read
from tilewright.playbook.places.rules import MOVES, PLACE_RULES
from tilewright.playbook.places.text import Held, PlacedKernel, product_text, width_line
from tilewright.playbook.places.vectors import Known, alignment, each_element, guarded, over_vectors
from tilewright.playbook.tracing import Node

Programs = tuple[PlacedProgram, ...]  # one for each shape of results
_SEVERAL = (
    "TURNS 16-byte vectors, at places one after the other of a dimension that some of the inputs do not have: it reads "
    "those once, and asks for all of the others before it uses any"
)
_LEAST_TURNS = 8  # of a dimension along which a thread makes several vectors


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


def vectors(programs: Programs, op_line: str) -> Fragment:
    """16-byte vectors along the last dimension; a block is a rectangle of rows and columns."""
    plan = PlanLines(programs[0].as_rows(), op_line)
    plan.add("tune", "THREADS = 128 | 256 | 512")
    kernels = [PlacedKernel(program, plan, program.variables[-1], quick=True) for program in programs]
    narrowest = min(kernel.width for kernel in kernels)
    kernels = [PlacedKernel(program, plan, program.variables[-1], quick=True, width=narrowest) for program in programs]
    turns = any(_turning(kernel) is not None for kernel in kernels)
    if turns:
        plan.add("tune", "TURNS = 4 | 2 | 1", "vectors of a thread, which have some of what is read in common")
    width_line(plan, *kernels)
    texts: list[list[str]] = []
    helpers: dict[str, None] = {}
    for number, kernel in enumerate(kernels):
        texts.append(_vector_kernel(kernel, plan, _suffix(programs, number)))
        helpers |= dict.fromkeys(kernel.forms.helpers())
    made = _SEVERAL if turns else "one 16-byte vector"
    header = (
        f"{programs[0].name} at memory speed: every element of the result reads the few places that it needs.\n\nA "
        f"thread makes {made}. The block is a rectangle, x along a row of the result and y over rows, so "
        "that one division per dimension tells a thread where it is. Where rows do not begin at whole vectors, WIDTH "
        "is 1 and the same code moves single elements."
    )
    return fragment(header, plan, _includes(programs), [VECTOR], *([one] for one in helpers), *texts)


def _vector_kernel(kernel: PlacedKernel, plan: PlanLines, suffix: str) -> list[str]:
    program = kernel.program
    column, rows = program.variables[-1], program.variables[:-1]
    turning = _turning(kernel)
    names = [plan.name(f"{one}{suffix}") for one in ("rows", "vectors", "lanes", "block_rows", "chunks")]
    row_count, vector_count, lanes, block_rows, chunks = names
    groups = plan.name(f"groups{suffix}") if turning is not None else ""
    counted = product_text(rows)
    if turning is not None:
        plan.add("let", f"{groups} = ceil_div({turning.size.text}, TURNS)", "of rows that threads have together")
        counted = " * ".join(groups if one == turning else one.size.factor for one in rows)
    plan.add("let", f"{row_count} = {counted}, {vector_count} = {column.size.factor} / WIDTH")
    plan.add("need", f"{row_count} <= {MOST_32_BIT} and {column.size.text} <= {MOST_32_BIT}")
    plan.add("let", f"{lanes} = min(next_pow2(max({vector_count}, 1)), THREADS), {block_rows} = THREADS / {lanes}")
    plan.add("let", f"{chunks} = ceil_div({vector_count}, {lanes})")
    body = [
        "// Blocks are numbered along the row first, so that they run in address order.",
        "const int vector = static_cast<int>(blockIdx.x % chunks) * blockDim.x + threadIdx.x;",
        "const unsigned row = blockIdx.x / chunks * blockDim.y + threadIdx.y;",
        "if (vector >= vectors || row >= rows) return;",
        *kernel.split(rows, "row", turning),
        f"const int {kernel.variable(column)} = vector * WIDTH;",
        *(_vector_body(kernel) if turning is None else _turning_body(kernel, turning)),
    ]
    more = [("unsigned rows", row_count), ("int vectors", vector_count), ("unsigned chunks", chunks)]
    more += [("int groups", groups)] if turning is not None and turning != rows[0] else []
    grid = f"{chunks} * ceil_div({row_count}, {block_rows})"
    return kernel.launched(f"vectors{suffix}", grid, f"dim3({lanes}, {block_rows})", "THREADS", body, more)


def _vector_body(kernel: PlacedKernel) -> list[str]:
    """Loads, the work on each element of the vector, and stores."""
    program, held = kernel.program, EitherHeld(kernel, kernel.held(kernel.program.targets).reads, "")
    lines, known = same_values(kernel, tuple(one.value for one in program.outputs))
    tests, decided = decided_tests(kernel, held.reads)
    lines, known = [*lines, *tests], known | decided
    for name in held.own:
        lines += held.filled(name, known)
    return [*lines, *kernel.store_vectors(known, held.element)]


def _turning(kernel: PlacedKernel) -> Variable | None:
    """The dimension, long enough, along which the most vectors that are read stay the same; None where all differ.

    Only where each element is read by its own place, and nothing else is common to the elements of a vector.
    """
    program, reads = kernel.program, kernel.held(kernel.program.targets).reads
    if len(reads) < len(program.reads) or _common(kernel, program.targets):
        return None
    found: dict[Variable, int] = {}
    for one in program.variables[:-1]:
        varying = program.varying(one)
        still = sum(not varying[name] for name in reads)
        if one.size.own >= _LEAST_TURNS and 0 < still < len(reads):
            found[one] = still
    return max(found, key=lambda one: (found[one], one.size.own), default=None)


def _turning_body(kernel: PlacedKernel, turning: Variable) -> list[str]:
    """The same for TURNS vectors, with what they have in common read once; all loads before any work."""
    program, reads = kernel.program, kernel.held(kernel.program.targets).reads
    varying = program.varying(turning)
    still = EitherHeld(kernel, {name: read for name, read in reads.items() if not varying[name]}, "")
    moving = EitherHeld(kernel, {name: read for name, read in reads.items() if varying[name]}, "[k]")

    def element(name: str, leaf: Leaf, known: Known) -> str:
        return (moving if name in moving.reads else still).element(name, leaf, known)

    tests, decided = decided_tests(kernel, reads, turning)
    place = f"const int {kernel.variable(turning)} = first_turn + k;"
    inside = f"{kernel.variable(turning)} < {kernel.size(turning.size, 'int')}"
    loads = [line for name in moving.own for line in moving.load(name, {})]
    return [
        *(line for name in still.own for line in still.filled(name, {})),
        *(moving.declaration(name, "[TURNS]") for name in moving.own),
        *over_vectors(guarded(place, inside, loads), "TURNS"),
        *tests,
        *over_vectors(guarded(place, inside, kernel.store_vectors(decided, element)), "TURNS"),
    ]


def same_values(kernel: PlacedKernel, targets: tuple[int, ...]) -> tuple[list[str], Known]:
    """Statements for what all elements of a vector have in common."""
    wanted = _common(kernel, targets)
    lines, known = kernel.write(wanted, {}, kernel.load_alone, frozenset(wanted))
    return lines, {index: known[index] for index in wanted}


def _common(kernel: PlacedKernel, targets: tuple[int, ...]) -> tuple[int, ...]:
    """The values that all elements of a vector have in common."""
    program = kernel.program
    common = tuple(
        index
        for index in sorted(program.closure(targets))
        if not kernel.rows.varies[index] and kernel.forms.leaf(index) is None
    )
    used = {one for index in program.closure(targets) for one in program.arguments(index) if kernel.rows.varies[index]}
    used |= {*kernel.lookups(targets, {}), *targets}
    return tuple(index for index in common if index in used)


def _suffix(programs: Programs, number: int) -> str:
    return f"_{number + 1}" if len(programs) > 1 else ""


def _includes(programs: Programs) -> list[str]:
    return sorted({line for program in programs for line in includes(program.as_rows())})


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


def tiles(program: PlacedProgram, op_line: str) -> Fragment:
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
    kernel = PlacedKernel(program, plan, along, quick=True, width=_width(program, reads))
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


_VIEWS = ("view", "reshape", "_unsafe_view", "_reshape")
KEPT = frozenset(PLACE_RULES)


def _moves(traced: TracedTask) -> bool:
    known = POINTWISE_RULES.keys() | PLACE_RULES.keys() | MOVES
    return traced.targets <= known and (bool(traced.targets & MOVES) or _regroups(traced))


def _regroups(traced: TracedTask) -> bool:
    """Whether a view joins or splits dimensions, so that rows are not what they were."""
    nodes = traced.traces[0].nodes
    for node in nodes:
        source = node.arguments[0] if node.arguments else None
        if node.target not in _VIEWS or not isinstance(source, Node):
            continue
        before, after = nodes[source.index].results[0], node.results[0]
        if before is not None and after is not None and _plain(before.shape) != _plain(after.shape):
            return True
    return False


def _plain(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size != 1]


def moved(traced: TracedTask) -> tuple[PlacedProgram, ...]:
    """A program for the results of each shape."""
    outputs = traced.traces[0].outputs
    shapes: dict[tuple[int, ...], list[int]] = {}
    for number, node in enumerate(outputs):
        shapes.setdefault(traced.traces[0].nodes[node].result.shape, []).append(number)
    found = []
    for which in shapes.values():
        reader = PlaceReader(traced, PLACE_RULES)
        found.append(merged(placed_program(reader, tuple(which))))
    return tuple(found)


def _matches(traced: TracedTask) -> Schedules | None:
    if not _moves(traced):
        return None
    programs = moved(traced)
    later: tuple[Structure, ...] = ()
    if all(program.variables for program in programs):
        summary = "16-byte vectors of the result, each read from where its elements lie"
        later = (Structure("place-vectors", summary, partial(file_of, partial(vectors, programs))),)
    if len(programs) == 1 and crossing(programs[0]) is not None:
        summary = "squares turned in shared memory, so that reads and writes both move whole lines"
        later = (Structure("place-tiles", summary, partial(file_of, partial(tiles, programs[0]))), *later)
    return Schedules(later)


MOVES_FAMILY = Family("moves", KEPT, _matches)

"""Scans: what is read of a graph, a warp per short row, and one block per row with the next tile under way."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilewright.playbook.cpp_pieces import COMBINERS, VECTOR
from tilewright.playbook.cpp_text import Text, indented
from tilewright.playbook.errors import NoMatch
from tilewright.playbook.families import TracedTask
from tilewright.playbook.file_text import MOST_32_BIT, PlanLines, fragment, includes
from tilewright.playbook.places.indices import Condition, Index, Variable, of_variable
from tilewright.playbook.places.program import PlacedProgram, whole_program
from tilewright.playbook.places.reader import Leaf, PlaceReader, Read, Whole
from tilewright.playbook.places.rules import PLACE_RULES
from tilewright.playbook.places.text import Held, PlacedKernel, product_text, width_line
from tilewright.playbook.places.vectors import Known, each_element, guarded, over_vectors
from tilewright.playbook.row_program import NumberKind, Reduction
from tilewright.playbook.templates import sections

SCANS = {"cumsum": Reduction.SUM, "cumprod": Reduction.PRODUCT}


@dataclass(frozen=True)
class Scan:
    """One running value: the leaf that stands for it, and the value that each step takes in."""

    leaf: str
    op: Reduction
    value: int
    kind: NumberKind
    before: bool  # the running value before the step, not after it

    @property
    def combiner(self) -> str:
        return self.op.value.capitalize()

    @property
    def start(self) -> str:
        number = "1" if self.op is Reduction.PRODUCT else "0"
        return f"{number}.0f" if self.kind is NumberKind.FLOAT else number


@dataclass(frozen=True)
class ScanProgram:
    placed: PlacedProgram
    scans: tuple[Scan, ...]
    along: Variable  # the loop variable that the scans go along

    @property
    def rows(self) -> tuple[Variable, ...]:
        """The loop variables that number the rows."""
        return tuple(one for one in self.placed.variables if one != self.along)

    @property
    def inner(self) -> tuple[int, ...]:
        return tuple(one.value for one in self.scans)

    @property
    def is_contiguous(self) -> bool:
        return all(self._factor_is_one(one.place) for one in self.placed.outputs)

    def _factor_is_one(self, place: Index) -> bool:
        factor = place.factor(self.along)
        return (factor is not None and factor.is_always(1)) or (factor is not None and factor.is_always(-1))


def scan_program(traced: TracedTask) -> ScanProgram:
    """The one loop of the task. Raises `NotSupported` where it takes several."""
    reader = PlaceReader(traced, PLACE_RULES, frozenset(SCANS))
    placed = whole_program(reader, "in a scan")
    along, backwards = _direction(reader, placed.wholes)
    placed, along = _turned(placed, along) if backwards else (placed, along)
    found = [_scan(reader, along, name, leaf) for name, leaf in placed.wholes.items()]
    inner = {name: leaf for name, leaf in reader.leaves.items() if name not in placed.leaves}
    if any(isinstance(leaf, Whole) for leaf in inner.values()):
        raise NoMatch
    leaves = {**placed.leaves, **{name: _without_needless(reader, leaf) for name, leaf in inner.items()}}
    placed = replace(placed.renewed(reader, *(one.value for one in found)), leaves=leaves)
    return ScanProgram(placed, tuple(found), along)


def _dimension(reader: PlaceReader, whole: Whole) -> int:
    return reader.dimension(reader.nodes[whole.node], 1, "dim", len(whole.places))


def _direction(reader: PlaceReader, wholes: dict[str, Whole]) -> tuple[Variable, bool]:
    """The loop variable that all scans go along, and whether they go against it."""
    found: set[tuple[Variable, bool]] = set()
    for whole in wholes.values():
        dim = _dimension(reader, whole)
        terms = whole.places[dim].terms
        variable = terms[0][0] if len(terms) == 1 else None
        if not isinstance(variable, Variable) or abs(terms[0][1].own) != 1:
            raise NoMatch
        if any(place.mentions(variable) for other, place in enumerate(whole.places) if other != dim):
            raise NoMatch
        found.add((variable, terms[0][1].own < 0))
    if len(found) != 1:
        raise NoMatch
    return found.pop()


def _turned(placed: PlacedProgram, along: Variable) -> tuple[PlacedProgram, Variable]:
    """With a loop variable that goes the other way."""
    turned = Variable(f"{along.name}_back", along.size)
    one = of_variable(turned).terms[0][1]
    opposite = of_variable(turned).times(one.negated()).shifted(along.size.minus(one))
    variables = tuple(turned if variable == along else variable for variable in placed.variables)
    return placed.changed(variables, lambda variable: opposite if variable == along else None), turned


def _scan(reader: PlaceReader, along: Variable, name: str, whole: Whole) -> Scan:
    node = reader.nodes[whole.node]
    dim = _dimension(reader, whole)
    shift = whole.places[dim].constant
    if not (shift.is_always(0) or shift.is_always(-1)):
        raise NoMatch
    places = (*whole.places[:dim], of_variable(along), *whole.places[dim + 1 :])
    with reader.under(Condition(of_variable(along), high=reader.shape(whole.node)[dim])):
        value = reader.argument(node, 0, places)
    kind = reader.summed_kind(node)
    return Scan(name, SCANS[node.target], reader.convert(value, kind), kind, shift.is_always(-1))


def _without_needless(reader: PlaceReader, leaf: Leaf) -> Leaf:
    """A read that stays inside its tensor needs no condition: what it reads beyond the scan's end, nobody uses."""
    if not isinstance(leaf, Read) or not leaf.conditions:
        return leaf
    count = reader.book.number(1)
    for size in reader.input_sizes(leaf.tensor):
        count = count.times(size)
    return replace(leaf, conditions=()) if leaf.place.lies_in(count) else leaf


# -- kernels for scans: a warp per short row, and one block per row with the next tile under way --


_CUDA = sections("scans/rows")

WARP_SCAN = _CUDA["warp_scan"]

BEFORE = _CUDA["before"]


_LONG_ROW = 1 << 15  # elements: two tiles of four vectors
_SHORT_ROW = 1024  # elements: eight vectors of a lane, of f32
_MANY_ROWS = 2048  # for which there are warps enough to keep memory busy
EACH = "constexpr int EACH = (WARPS * VECTORS + 31) / 32;  // totals of warps for a lane"


class ScanKernel(PlacedKernel):
    """A kernel for a scan being written."""

    def __init__(self, program: ScanProgram, plan: PlanLines, vector: Variable | None) -> None:
        super().__init__(program.placed, plan, vector)
        self.scan = program
        self.names = {one.leaf: self.namer.tensors[one.leaf] for one in program.scans}

    def helper_pieces(self) -> list[list[str]]:
        combiners = dict.fromkeys(one.combiner for one in self.scan.scans)
        return [[one] for one in (*self.forms.helpers(), *(COMBINERS[name] for name in combiners), WARP_SCAN, BEFORE)]

    def inner(self) -> Held:
        """What goes into the scans, as vectors that a thread holds."""
        return self.held(self.scan.inner, "[k]")


def _planned(program: ScanProgram, op_line: str) -> PlanLines:
    """A plan that begins with the numbers of rows and of steps along a row."""
    plan = PlanLines(program.placed.as_rows(), op_line)
    plan.add("let", f"@rows = {product_text(program.rows)}, @steps = {program.along.size.text}")
    plan.add("need", f"@rows <= {MOST_32_BIT} and @steps <= {MOST_32_BIT}")
    return plan


# -- a warp per row --


def has_many_short_rows(program: ScanProgram) -> bool:
    """Whether a warp has next to nothing to carry on, and there are warps for every multiprocessor."""
    rows = math.prod(one.size.own for one in program.rows)
    return rows >= _MANY_ROWS and program.along.size.own <= _SHORT_ROW


def scan_warps(program: ScanProgram, op_line: str) -> str:
    plan = _planned(program, op_line)
    plan.add("tune", "THREADS = 256 | 128")
    plan.add("tune", "VECTORS = 8 | 4 | 2 | 1", "of a lane, all of them loaded before the first is scanned")
    kernel = ScanKernel(program, plan, program.along)
    width_line(plan, kernel)
    plan.add("need", "VECTORS == 1 or VECTORS * 32 * WIDTH < 2 * @steps", "short rows, few vectors")
    plan.read_once("@rows * @steps")
    sizes = [("int rows", "@rows"), ("int steps", "@steps")]
    grid, bounds = "ceil_div(@rows, THREADS / 32)", "THREADS, 1024 / THREADS"
    text = kernel.launched("scan", grid, "THREADS", bounds, _warp_body(kernel), sizes, once=True)
    header = (
        f"{program.placed.name}, read and written once: a warp per row, VECTORS 16-byte vectors of a lane.\n\nLanes "
        "scan by shuffles, and what a warp's vectors come to is carried on from one to the next: no shared memory, no "
        "barrier. All loads are under way before the first vector is scanned. Where rows are not a whole number of "
        "vectors, WIDTH is 1."
    )
    pieces = [["constexpr int WARPS = THREADS / 32, TILE = 32 * VECTORS;"], [VECTOR], *kernel.helper_pieces()]
    return fragment(header, plan, includes(program.placed.as_rows()), *pieces, text).file()


def _warp_body(kernel: ScanKernel) -> list[str]:
    scans, at, held = kernel.scan.scans, kernel.variable(kernel.scan.along), kernel.inner()
    names = [(one, kernel.names[one.leaf]) for one in scans]
    place = f"const int {at} = (first + k * 32 + lane) * WIDTH;"
    carries = [f"{one.kind.cpp} {name}_carry = {one.start};  // all earlier vectors" for one, name in names]
    tile = [*held.declared("here[VECTORS]"), *over_vectors(guarded(place, f"{at} < steps", held.loads()))]
    return [
        "const int lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32;",
        "if (row >= rows) return;  // a whole warp",
        *kernel.split(kernel.scan.rows, "row"),
        *carries,
        "for (int first = 0; first * WIDTH < steps; first += TILE) {",
        *indented([*tile, *over_vectors(_warp_vector(kernel, at, place))]),
        "}",
    ]


def _warp_vector(kernel: ScanKernel, at: str, place: str) -> list[str]:
    """A vector of every lane scanned and written."""
    names, held = [(one, kernel.names[one.leaf]) for one in kernel.scan.scans], kernel.inner()
    inner, texts = kernel.write(kernel.scan.inner, {}, held.element)
    lines, step, known = [place], [], Known()
    for one, name in names:
        lines.append(f"{one.kind.cpp} {name}_in[WIDTH], {name}_sum = {one.start};")
        taken = f"{name}_sum = {one.combiner}{{}}({name}_sum, {texts[one.value].text});"
        kept = f"{name}_in[i] = {name}_sum;"
        step += [kept, taken] if one.before else [taken, kept]
    lines += [f"if ({at} < steps) {{", *indented(each_element([*inner, *step])), "}"]
    for one, name in names:
        kind, combine = one.kind.cpp, f"{one.combiner}{{}}"
        earlier = f"before_lane<{kind}>({name}_scanned, lane, {one.start})"
        lines += [
            f"const {kind} {name}_scanned = scan_warp({name}_sum, lane, {combine});",
            f"const {kind} {name}_offset = {combine}({name}_carry, {earlier});",
            f"{name}_carry = {combine}({name}_carry, __shfl_sync(~0u, {name}_scanned, 31));",
        ]
        known[kernel.value_of(one.leaf)] = Text(f"{combine}({name}_offset, {name}_in[i])")
    return [*lines, f"if ({at} < steps) {{", *indented(kernel.store_vectors(known, held.element)), "}"]


# -- one block per row, vectors, the next tile under way --


def scan_rows(program: ScanProgram, op_line: str) -> str:
    plan = _planned(program, op_line)
    plan.add("tune", "THREADS = 1024 | 512 | 256")
    kernel = ScanKernel(program, plan, program.along)
    vectors, most = ("4 | 1 | 2", 128) if _holds_long_tiles(kernel) else ("1 | 2 | 4", 32)
    plan.add("tune", f"VECTORS = {vectors}", "of a thread in one tile")
    plan.add("need", f"THREADS / 32 * VECTORS <= {most}", "a warp scans the totals of all others")
    width_line(plan, kernel)
    plan.read_once("@rows * @steps")
    body = rows_body(kernel, kernel.split(program.rows, "blockIdx.x"))
    bounds, sizes = "THREADS, 1024 / THREADS", [("int steps", "@steps")]
    text = kernel.launched("scan", "@rows", "THREADS", bounds, body, sizes, once=True)
    header = (
        f"{program.placed.name}, read and written once: one block per row, tiles of THREADS * VECTORS 16-byte "
        "vectors.\n\nThe loads of the next tile are issued before this one is scanned, so memory never waits for "
        "arithmetic. A thread scans its vectors, lanes scan by shuffles, and every warp scans the totals of all warps "
        "for itself: one barrier a tile, with two sets of totals in turn. Where rows are not a whole number of "
        "vectors, WIDTH is 1."
    )
    pieces = [
        ["constexpr int WARPS = THREADS / 32, TILE = THREADS * VECTORS;", EACH],
        [VECTOR],
        *kernel.helper_pieces(),
    ]
    return fragment(header, plan, includes(program.placed.as_rows()), *pieces, text).file()


def _holds_long_tiles(kernel: ScanKernel) -> bool:
    """Whether registers hold a tile of 64 KB and the next one, and rows have two: fewer rows are then gone along at
    once, each in longer strides, which memory likes."""
    scans = kernel.scan.scans
    light = len(scans) == 1 and scans[0].kind is NumberKind.FLOAT and len(kernel.inner().reads) == 1
    return light and kernel.width == 4 and kernel.scan.along.size.own >= _LONG_ROW


def rows_body(kernel: ScanKernel, row: list[str], begin: str = "0", carries: tuple[str, ...] = ()) -> list[str]:
    """From the vector `begin` of a row up to `steps` elements; `row` says which row, `carries` what came before."""
    scans, at, held = kernel.scan.scans, kernel.variable(kernel.scan.along), kernel.inner()
    place = f"const int {at} = (first + k * THREADS + static_cast<int>(threadIdx.x)) * WIDTH;"
    starts = carries or tuple(one.start for one in scans)
    lines = [
        *(f"__shared__ {one.kind.cpp} {kernel.names[one.leaf]}_totals[2][32 * EACH];" for one in scans),
        "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;",
        *row,
        *held.declared("here[VECTORS]", "next[VECTORS]"),
        "const auto fetch = [&](int first) {",
        *indented(over_vectors(guarded(place, f"{at} < steps", held.loads("next")))),
        "};",
        f"fetch({begin});",
        *(
            f"{one.kind.cpp} {kernel.names[one.leaf]}_carry = {start};  // all earlier tiles"
            for one, start in zip(scans, starts, strict=True)
        ),
        "int turn = 0;",
        f"for (int first = {begin}; first * WIDTH < steps; first += TILE, turn ^= 1) {{",
    ]
    tile = over_vectors([f"{held.name(name)}[k] = {held.name(name, 'next')}[k];" for name in held.reads])
    tile += ["if ((first + TILE) * WIDTH < steps) fetch(first + TILE);"]
    return [*lines, *indented([*tile, *_tile(kernel, at, place)]), "}"]


def _tile(kernel: ScanKernel, at: str, place: str) -> list[str]:
    """One tile scanned and written."""
    scans = [(one, kernel.names[one.leaf]) for one in kernel.scan.scans]
    held = kernel.inner()
    inner, texts = kernel.write(kernel.scan.inner, {}, held.element)
    lines: list[str] = []
    for one, name in scans:
        lines += [f"{one.kind.cpp} {name}_in[VECTORS][WIDTH], {name}_ahead[VECTORS];"]
    step = []
    for one, name in scans:
        taken = f"{name}_sum = {one.combiner}{{}}({name}_sum, {texts[one.value].text});"
        kept = f"{name}_in[k][i] = {name}_sum;"
        step += [kept, taken] if one.before else [taken, kept]
    scanning = [place, *(f"{one.kind.cpp} {name}_sum = {one.start};" for one, name in scans)]
    scanning += [f"if ({at} < steps) {{", *indented(each_element([*inner, *step])), "}"]
    for one, name in scans:
        scanning += [
            f"const {one.kind.cpp} {name}_scanned = scan_warp({name}_sum, lane, {one.combiner}{{}});",
            f"if (lane == 31) {name}_totals[turn][k * WARPS + warp] = {name}_scanned;",
            f"{name}_ahead[k] = before_lane<{one.kind.cpp}>({name}_scanned, lane, {one.start});",
        ]
    lines += [*over_vectors(scanning), "__syncthreads();"]
    for one, name in scans:
        kind, combine = one.kind.cpp, f"{one.combiner}{{}}"
        lines += [
            f"{kind} {name}_before[EACH], {name}_own = {one.start};  // before each of the lane's totals; all of them",
            "unrolled for (int e = 0; e < EACH; ++e) {",
            f"  {name}_before[e] = {name}_own;",
            "  const int total = lane * EACH + e;",
            f"  if (total < WARPS * VECTORS) {name}_own = {combine}({name}_own, {name}_totals[turn][total]);",
            "}",
            f"const {kind} {name}_all = scan_warp({name}_own, lane, {combine});",
            f"{kind} {name}_earlier = {name}_before[0];  // before this warp's of the lane's totals",
            "#pragma unroll",
            f"for (int e = 1; e < EACH; ++e) {name}_earlier = warp % EACH == e ? {name}_before[e] : {name}_earlier;",
            f"{name}_earlier = {combine}(before_lane<{kind}>({name}_all, lane, {one.start}), {name}_earlier);",
        ]
    writing = [place]
    known: Known = {}
    for one, name in scans:
        combine = f"{one.combiner}{{}}"
        writing += [
            f"const {one.kind.cpp} {name}_warps = __shfl_sync(~0u, {name}_earlier, (k * WARPS + warp) / EACH);",
            f"const {one.kind.cpp} {name}_offset = {combine}({combine}({name}_carry, {name}_warps), {name}_ahead[k]);",
        ]
        known[kernel.value_of(one.leaf)] = Text(f"{combine}({name}_offset, {name}_in[k][i])")
    writing += [f"if ({at} < steps) {{", *indented(kernel.store_vectors(known, held.element)), "}"]
    carries = [
        f"{name}_carry = {one.combiner}{{}}({name}_carry, __shfl_sync(~0u, {name}_all, 31));" for one, name in scans
    ]
    return [*lines, *over_vectors(writing), *carries]

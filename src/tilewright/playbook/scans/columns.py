"""Scans across rows: teams of threads share columns, with the next rows' loads under way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tilewright.playbook.cpp_pieces import COMBINERS, VECTOR
from tilewright.playbook.cpp_text import Text, indented
from tilewright.playbook.file_text import MOST_32_BIT, PlanLines, fragment, includes
from tilewright.playbook.places.indices import Variable
from tilewright.playbook.places.text import product_text, width_line
from tilewright.playbook.places.vectors import Element, Known, each_element, guarded, over_vectors
from tilewright.playbook.row_program import NumberKind
from tilewright.playbook.scans.program import Scan, ScanProgram
from tilewright.playbook.scans.structures import ScanKernel

EachRow = Callable[[list[str]], list[str]]

_LANES = (32, 16, 8, 4)  # of 16 bytes each: whole lines of memory, or as much of one as fills the GPU
_BLOCKS = 128  # that are enough to have all of a large GPU at work
_SHARED_BYTES = 48 * 1024


def column_of(program: ScanProgram) -> Variable | None:
    """The loop variable along which results lie side by side, where it is not the scan's own."""
    last = program.placed.variables[-1]
    factors = [one.place.factor(last) for one in program.placed.outputs]
    fits = last != program.along and all(factor is not None and factor.is_always(1) for factor in factors)
    return last if fits else None


def scan_columns(program: ScanProgram, op_line: str) -> str:
    column = column_of(program)
    assert column is not None
    plan = PlanLines(program.placed.as_rows(), op_line)
    rest = tuple(one for one in program.rows if one != column)
    kernel = ScanKernel(program, plan, column, quick=True)
    _tunes(kernel, plan)
    width_line(plan, kernel)
    plan.add("let", f"@slabs = {product_text(rest)}, @steps = {program.along.size.text}")
    plan.add("let", f"@vectors = {product_text((column,))} / WIDTH, @chunks = ceil_div(@vectors, LANES)")
    plan.add("need", f"@slabs * @chunks <= {MOST_32_BIT} and @steps <= {MOST_32_BIT}")
    body = [
        *_shared(kernel),
        "const int vector = static_cast<int>(blockIdx.x % chunks) * LANES + threadIdx.x;",
        f"const int {kernel.variable(column)} = vector * WIDTH;",
        *kernel.split(rest, "(blockIdx.x / chunks)"),
        "const int end = vector < vectors ? steps : 0;  // threads beyond the last column have nothing but to wait",
        *_body(kernel),
    ]
    more = [("int steps", "@steps"), ("int vectors", "@vectors"), ("unsigned chunks", "@chunks")]
    text = kernel.launched("columns", "@slabs * @chunks", "dim3(LANES, TEAMS)", "LANES * TEAMS", body, more)
    header = (
        f"{program.placed.name}, a scan across rows: a thread owns a 16-byte vector of columns, and TEAMS threads "
        "share it.\n\nNeighbouring threads own neighbours, so every row is read and written in whole lines. A team "
        "takes AHEAD rows of a tile and scans them by itself; then the teams exchange what theirs come to, and each "
        "goes on from what is above it. The loads of the next tile are under way meanwhile. One barrier a tile, with "
        "two sets of totals in turn; everything is combined in a fixed order."
    )
    combiners = dict.fromkeys(COMBINERS[one.combiner] for one in program.scans)
    pieces = [[VECTOR], *([one] for one in (*kernel.forms.helpers(), *combiners))]
    return fragment(header, plan, includes(program.placed.as_rows()), *pieces, text).file()


def _tunes(kernel: ScanKernel, plan: PlanLines) -> None:
    """Teams where columns alone do not fill a GPU and rows are enough to share."""
    program = kernel.scan
    vectors = math.prod(one.size.own for one in program.rows) // kernel.width
    lanes = next((one for one in _LANES if vectors >= one * _BLOCKS), _LANES[-1])
    bytes_of_thread = sum(2 * kernel.width * (4 if one.kind is NumberKind.FLOAT else 8) for one in program.scans)
    most = min(_SHARED_BYTES // bytes_of_thread, 1024) // lanes
    wanted = max(min(program.along.size.own // 8, most), 1)
    teams = 1 << (wanted.bit_length() - 1)
    found = dict.fromkeys(max(one, 1) for one in (min(teams, 512 // lanes), teams, 256 // lanes) if one <= teams)
    sides = dict.fromkeys((lanes, min(lanes * 2, _LANES[0]), max(lanes // 2, _LANES[-1])))
    plan.add("tune", f"LANES = {' | '.join(map(str, sides))}", "vectors side by side")
    plan.add("tune", f"TEAMS = {' | '.join(map(str, found))}", "that share a tile's rows")
    plan.add("tune", "AHEAD = 8 | 4 | 16", "rows of a team in a tile")
    plan.add("need", f"LANES * TEAMS <= 1024 and {bytes_of_thread} * LANES * TEAMS <= 48 * 1024")


def _shared(kernel: ScanKernel) -> list[str]:
    names = [(one, kernel.names[one.leaf]) for one in kernel.scan.scans]
    return [f"__shared__ Vector<{one.kind.cpp}> {name}_totals[2][TEAMS][LANES];" for one, name in names]


def _body(kernel: ScanKernel) -> list[str]:
    along = kernel.variable(kernel.scan.along)
    place = f"const int {along} = first + static_cast<int>(threadIdx.y) * AHEAD + k;"
    held, early = kernel.held(kernel.program.targets, "[k]"), kernel.inner()
    late = replace(held, reads={name: one for name, one in held.reads.items() if name not in early.reads})

    def each_row(lines: list[str]) -> list[str]:
        return over_vectors(guarded(place, f"{along} < end", lines), "AHEAD")

    lines = [*early.declared("here[AHEAD]", "next[AHEAD]"), *late.declared("here[AHEAD]")]
    tile = []
    if early.reads:
        lines += ["const auto fetch = [&](int first) {", *indented(each_row(early.loads("next"))), "};", "fetch(0);"]
        moved = [f"{held.name(name)}[k] = {held.name(name, 'next')}[k];" for name in early.reads]
        tile = [*over_vectors(moved, "AHEAD"), "if (first + TEAMS * AHEAD < steps) fetch(first + TEAMS * AHEAD);"]
    for one in kernel.scan.scans:
        lines += _started(one, f"{kernel.names[one.leaf]}_carry", "all earlier tiles")
    tile += [*_scanned(kernel, held.element, each_row), *_exchanged(kernel)]
    tile += each_row([*late.loads(), *kernel.store_vectors(_running(kernel), held.element)])
    loop = "for (int first = 0, turn = 0; first < steps; first += TEAMS * AHEAD, turn ^= 1) {"
    return [*lines, loop, *indented(tile), "}"]


def _started(scan: Scan, name: str, remark: str = "") -> list[str]:
    said = f"  // {remark}" if remark else ""
    fill = f"for (int i = 0; i < WIDTH; ++i) {name}[i] = {scan.start};"
    return [f"{scan.kind.cpp} {name}[WIDTH];{said}", "#pragma unroll", fill]


def _scanned(kernel: ScanKernel, element: Element, each_row: EachRow) -> list[str]:
    """The rows of a team scanned by themselves."""
    inner, texts = kernel.write(kernel.scan.inner, {}, element)
    lines, step = [], [*inner]
    for one in kernel.scan.scans:
        name = kernel.names[one.leaf]
        lines += [f"{one.kind.cpp} {name}_in[AHEAD][WIDTH];", *_started(one, f"{name}_sum")]
        taken = f"{name}_sum[i] = {one.combiner}{{}}({name}_sum[i], {texts[one.value].text});"
        kept = f"{name}_in[k][i] = {name}_sum[i];"
        step += [kept, taken] if one.before else [taken, kept]
    return [*lines, *each_row(each_element(step))]


def _exchanged(kernel: ScanKernel) -> list[str]:
    """What is above a team's rows, and what the whole tile comes to."""
    given, taken, started = [], [], []
    for one in kernel.scan.scans:
        name, combine = kernel.names[one.leaf], f"{one.combiner}{{}}"
        mine = f"{name}_totals[turn][threadIdx.y][threadIdx.x]"
        started += [f"{one.kind.cpp} {name}_above[WIDTH];", *each_element([f"{name}_above[i] = {name}_carry[i];"])]
        given += each_element([f"{mine}.at[i] = {name}_sum[i];"])
        each = [
            f"if (team < threadIdx.y) {name}_above[i] = {combine}({name}_above[i], {name}_theirs.at[i]);",
            f"{name}_carry[i] = {combine}({name}_carry[i], {name}_theirs.at[i]);",
        ]
        theirs = f"const Vector<{one.kind.cpp}> {name}_theirs = {name}_totals[turn][team][threadIdx.x];"
        taken += [theirs, *each_element(each)]
    loop = ["for (unsigned team = 0; team < TEAMS; ++team) {", *indented(taken), "}"]
    return [*started, *given, "__syncthreads();", *loop]


def _running(kernel: ScanKernel) -> Known:
    """The running values of an element."""
    names = [(one, kernel.names[one.leaf]) for one in kernel.scan.scans]
    return {
        kernel.value_of(one.leaf): Text(f"{one.combiner}{{}}({name}_above[i], {name}_in[k][i])") for one, name in names
    }

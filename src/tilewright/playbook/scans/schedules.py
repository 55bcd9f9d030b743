"""Scans across rows, scans of few long rows, and which schedules a scan has."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tilewright.playbook.cpp_pieces import COMBINERS, VECTOR
from tilewright.playbook.cpp_text import Text, indented
from tilewright.playbook.families import Family, Schedules, Structure, TracedTask
from tilewright.playbook.file_text import MOST_32_BIT, KernelSignature, PlanLines, fragment, includes
from tilewright.playbook.places.indices import Variable
from tilewright.playbook.places.text import kernel_lines, product_text, width_line
from tilewright.playbook.places.vectors import Element, Known, across_warp, each_element, guarded, over_vectors
from tilewright.playbook.row_program import NumberKind
from tilewright.playbook.scans.rows import (
    EACH,
    SCANS,
    Scan,
    ScanKernel,
    ScanProgram,
    has_many_short_rows,
    rows_body,
    scan_program,
    scan_rows,
    scan_warps,
)

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
    kernel = ScanKernel(program, plan, column)
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


# Scans of few long rows: pieces of a row are summed by blocks of their own, the sums are scanned, then the pieces.


_FEW_ROWS, _LONG_ROW = 256, 1 << 16
_SIZES = [("int all_steps", "@steps"), ("unsigned pieces", "@pieces")]


def has_few_long_rows(program: ScanProgram) -> bool:
    rows = math.prod(one.size.own for one in program.rows)
    return rows < _FEW_ROWS and program.along.size.own >= _LONG_ROW


def scan_pieces(program: ScanProgram, op_line: str) -> str:
    """Three launches; the row is read twice and written once."""
    plan = PlanLines(program.placed.as_rows(), op_line)
    plan.add("tune", "THREADS = 512 | 256 | 1024")
    plan.add("tune", "VECTORS = 2 | 1", "of a thread in one tile")
    plan.add("tune", "TILES = 4 | 2 | 8", "of a piece")
    plan.add("need", "THREADS / 32 * VECTORS <= 32", "a warp scans the totals of all others")
    last = ScanKernel(program, plan, program.along)
    width_line(plan, last)
    plan.add("let", f"@rows = {product_text(program.rows)}, @steps = {program.along.size.text}")
    plan.add("let", "@pieces = max(ceil_div(@steps, THREADS * VECTORS * TILES * WIDTH), 1)", "of a row")
    plan.add("need", f"@rows * @pieces <= {MOST_32_BIT} and @steps <= {MOST_32_BIT}")
    scratches = [plan.name(f"{last.names[one.leaf]}_parts") for one in program.scans]
    for name, one in zip(scratches, program.scans, strict=True):
        kind = "f32" if one.kind is NumberKind.FLOAT else "i64"
        plan.add("scratch", f"{name}: {kind}[@rows, @pieces]", "what each piece comes to, then all before it")
    first_text = _totals(ScanKernel(program, plan, program.along), scratches)
    middle_text = _offsets(ScanKernel(program, plan, None), scratches)
    last_text = _pieces_scanned(last, scratches)
    header = (
        f"{program.placed.name} where rows are few and long: many blocks share a row.\n\nThe first kernel sums pieces "
        "of the row, the second scans these sums, and the third scans every piece from where it begins. The row is "
        "read twice, by all multiprocessors; with one block for a row, most would have nothing to do. Everything is "
        "added in a fixed order: runs repeat bit for bit."
    )
    constants = ["constexpr int WARPS = THREADS / 32, TILE = THREADS * VECTORS, PIECE = TILE * TILES;", EACH]
    return fragment(
        header,
        plan,
        includes(program.placed.as_rows()),
        constants,
        [VECTOR],
        *last.helper_pieces(),
        first_text,
        middle_text,
        last_text,
    ).file()


def _place(kernel: ScanKernel) -> list[str]:
    return [
        "const unsigned piece = blockIdx.x % pieces;",
        *kernel.split(kernel.scan.rows, "(blockIdx.x / pieces)"),
        "const int begin = static_cast<int>(piece) * PIECE;",
        "const int steps = min(all_steps, (begin + PIECE) * WIDTH);",
    ]


def _parameters(kernel: ScanKernel, scratches: list[str], qualifier: str) -> list[tuple[str, str]]:
    scans = zip(kernel.scan.scans, scratches, strict=True)
    return [(f"{qualifier}{one.kind.cpp}* __restrict__ {kernel.names[one.leaf]}_parts", name) for one, name in scans]


def _totals(kernel: ScanKernel, scratches: list[str]) -> list[str]:
    at = kernel.variable(kernel.scan.along)
    scans = [(one, kernel.names[one.leaf]) for one in kernel.scan.scans]
    held = kernel.inner()
    place = f"const int {at} = (first + k * THREADS + static_cast<int>(threadIdx.x)) * WIDTH;"
    inner, texts = kernel.write(kernel.scan.inner, {}, held.element)
    taken = [f"{name}_sum = {one.combiner}{{}}({name}_sum, {texts[one.value].text});" for one, name in scans]
    tile = held.declared("here[VECTORS]")
    tile += over_vectors(guarded(place, f"{at} < steps", held.loads())) if held.reads else []
    tile += over_vectors(guarded(place, f"{at} < steps", each_element([*inner, *taken])))
    body = [
        *(f"__shared__ {one.kind.cpp} {name}_totals[WARPS];" for one, name in scans),
        *_place(kernel),
        *(f"{one.kind.cpp} {name}_sum = {one.start};" for one, name in scans),
        "for (int first = begin; first < begin + PIECE; first += TILE) {",
        *indented(tile),
        "}",
    ]
    for one, name in scans:
        body += [
            *across_warp(f"{name}_sum = {one.combiner}{{}}({name}_sum, __shfl_xor_sync(~0u, {name}_sum, offset));"),
            f"if (threadIdx.x % 32 == 0) {name}_totals[threadIdx.x / 32] = {name}_sum;",
        ]
    body += ["__syncthreads();", "if (threadIdx.x > 0) return;"]
    for one, name in scans:
        combined = f"{name}_sum = {one.combiner}{{}}({name}_sum, {name}_totals[warp]);"
        body += [f"for (int warp = 1; warp < WARPS; ++warp) {combined}", f"{name}_parts[blockIdx.x] = {name}_sum;"]
    more = [*_parameters(kernel, scratches, ""), *_SIZES]
    return kernel.launched("totals", "@rows * @pieces", "THREADS", "THREADS, 1024 / THREADS", body, more, ())


def _offsets(kernel: ScanKernel, scratches: list[str]) -> list[str]:
    """One warp for each row: every sum is replaced by all before it."""
    scans = [(one, kernel.names[one.leaf]) for one in kernel.scan.scans]
    body = ["const int lane = threadIdx.x;"]
    for one, name in scans:
        body += [
            f"{one.kind.cpp}* {name}_row = {name}_parts + static_cast<long long>(blockIdx.x) * pieces;",
            f"{one.kind.cpp} {name}_carry = {one.start};",
        ]
    loop = ["const int place = first + lane;"]
    for one, name in scans:
        combine = f"{one.combiner}{{}}"
        loop += [
            f"const {one.kind.cpp} {name}_sum = place < pieces ? {name}_row[place] : {one.start};",
            f"const {one.kind.cpp} {name}_scanned = scan_warp({name}_sum, lane, {combine});",
            f"const {one.kind.cpp} {name}_earlier = before_lane<{one.kind.cpp}>({name}_scanned, lane, {one.start});",
            f"if (place < pieces) {name}_row[place] = {combine}({name}_carry, {name}_earlier);",
            f"{name}_carry = {combine}({name}_carry, __shfl_sync(~0u, {name}_scanned, 31));",
        ]
    body += ["for (int first = 0; first < pieces; first += 32) {", *indented(loop), "}"]
    pairs = [*_parameters(kernel, scratches, ""), ("int pieces", "@pieces")]
    signature = KernelSignature([one for one, _ in pairs], [one for _, one in pairs])
    name = f"{kernel.program.name}_offsets"
    kernel.plan.launch(name, "@rows", "32", signature.given)
    return kernel_lines(signature, "__launch_bounds__(32)", name, body)


def _pieces_scanned(kernel: ScanKernel, scratches: list[str]) -> list[str]:
    carries = tuple(f"{kernel.names[one.leaf]}_parts[blockIdx.x]" for one in kernel.scan.scans)
    body = rows_body(kernel, _place(kernel), "begin", carries)
    more = [*_parameters(kernel, scratches, "const "), *_SIZES]
    return kernel.launched("pieces", "@rows * @pieces", "THREADS", "THREADS, 1024 / THREADS", body, more)


# -- scans: running sums and products, in either direction, with or without their own element --


def _matches(traced: TracedTask) -> Schedules | None:
    if not traced.targets & SCANS.keys():
        return None
    program = scan_program(traced)
    later: list[Structure] = []
    every: list[Structure] = []
    if program.is_contiguous:
        summary = "many blocks share a row: totals of its pieces, their scan, then every piece from where it begins"
        every.append(Structure("scan-pieces", summary, partial(scan_pieces, program)))
        later += every if has_few_long_rows(program) else []
        summary = "a warp per row, all of a short row's 16-byte vectors under way at once"
        warps = Structure("scan-warps", summary, partial(scan_warps, program))
        every.append(warps)
        later += [warps] if has_many_short_rows(program) else []
        summary = "one block per row, 16-byte vectors, the next tile's loads under way while this one is scanned"
        later.append(Structure("scan-rows", summary, partial(scan_rows, program)))
    if column_of(program) is not None:
        summary = "teams of threads share columns, the next rows' loads under way"
        later.append(Structure("scan-columns", summary, partial(scan_columns, program)))
    return Schedules(tuple(later), tuple(one for one in every if one not in later))


SCANS_FAMILY = Family("scans", frozenset(SCANS), _matches)

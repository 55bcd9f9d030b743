"""Scans of few long rows: pieces of a row are summed by blocks of their own, the sums are scanned, then the pieces."""

from __future__ import annotations

import math

from tilewright.playbook.cpp_pieces import VECTOR
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, KernelSignature, PlanLines, fragment, includes
from tilewright.playbook.places.text import kernel_lines, product_text, width_line
from tilewright.playbook.places.vectors import across_warp, each_element, guarded, over_vectors
from tilewright.playbook.row_program import NumberKind
from tilewright.playbook.scans.program import ScanProgram
from tilewright.playbook.scans.structures import EACH, ScanKernel, rows_body

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
    last = ScanKernel(program, plan, program.along, quick=True)
    width_line(plan, last)
    plan.add("let", f"@rows = {product_text(program.rows)}, @steps = {program.along.size.text}")
    plan.add("let", "@pieces = max(ceil_div(@steps, THREADS * VECTORS * TILES * WIDTH), 1)", "of a row")
    plan.add("need", f"@rows * @pieces <= {MOST_32_BIT} and @steps <= {MOST_32_BIT}")
    scratches = [plan.name(f"{last.names[one.leaf]}_parts") for one in program.scans]
    for name, one in zip(scratches, program.scans, strict=True):
        kind = "f32" if one.kind is NumberKind.FLOAT else "i64"
        plan.add("scratch", f"{name}: {kind}[@rows, @pieces]", "what each piece comes to, then all before it")
    first_text = _totals(ScanKernel(program, plan, program.along, quick=True), scratches)
    middle_text = _offsets(ScanKernel(program, plan, None, quick=True), scratches)
    last_text = _scanned(last, scratches)
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


def _scanned(kernel: ScanKernel, scratches: list[str]) -> list[str]:
    carries = tuple(f"{kernel.names[one.leaf]}_parts[blockIdx.x]" for one in kernel.scan.scans)
    body = rows_body(kernel, _place(kernel), "begin", carries)
    more = [*_parameters(kernel, scratches, "const "), *_SIZES]
    return kernel.launched("pieces", "@rows * @pieces", "THREADS", "THREADS, 1024 / THREADS", body, more)

"""Few and long rows that only reduce: pieces of a row are reduced by blocks of their own, then put together."""

from __future__ import annotations

from dataclasses import replace

from tilewright.playbook.cpp_helpers import BLOCK_REDUCE, VECTOR
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import (
    MOST_32_BIT,
    Fragment,
    KernelSignature,
    PlanLines,
    fragment,
    has_parts,
    includes,
)
from tilewright.playbook.row_kernel import RowKernel
from tilewright.playbook.row_program import RowProgram

_VAST = 1 << 28  # elements from which larger pieces pay


def can_split(program: RowProgram) -> bool:
    """Whether one sweep is all, and its results are a few plain numbers per row."""
    plain = all(kind in ("float", "long long", "int") for kind in _types(program))
    return program.sweeps == 1 and not program.outputs_along and plain


def _types(program: RowProgram) -> list[str]:
    kernel = RowKernel(program, quick=False)
    return [kernel.accumulator_type(index) for index in kernel.all_reductions]


def split_rows(program: RowProgram, op_line: str, quick: bool = True) -> Fragment:
    """Two launches: PIECES blocks for each row leave their part in a scratch buffer, one warp per row adds them."""
    kernel = RowKernel(program, quick)
    plan = PlanLines(program, op_line)
    rows, cols = plan.sizes()
    vectors, pieces, piece = (plan.name(one) for one in ("vectors", "pieces", "piece"))
    if has_parts(program):
        plan.add("need", f"{rows} <= {MOST_32_BIT}")
    plan.add("tune", "THREADS = 512 | 256 | 1024")
    vast = program.task_rows * program.task_cols >= _VAST
    steps = "64 | 32 | 16 | 4" if vast else "16 | 4 | 64"
    plan.add("tune", f"STEPS = {steps}", "loads of a thread and input, two in flight at a time")
    plan.width(cols)
    plan.add("let", f"{vectors} = {cols} / WIDTH, {piece} = THREADS * STEPS")
    plan.add("let", f"{pieces} = max(ceil_div({vectors}, {piece}), 1)", "of a row")
    plan.add("need", f"{pieces} * {rows} <= {MOST_32_BIT}")
    scratches = []
    for index, kind in zip(kernel.all_reductions, _types(program), strict=True):
        scratch = plan.name(f"{kernel.namer.of(index)}_parts")
        dtype = {"float": "f32", "long long": "i64", "int": "i32"}[kind]
        plan.add("scratch", f"{scratch}: {dtype}[{rows}, {pieces}]")
        scratches.append((scratch, kernel.namer.fresh(f"{kernel.namer.of(index)}_parts"), kind))
    parts = [f"{kind}* __restrict__ {own}" for _, own, kind in scratches]
    sizes = [("long long cols", cols), ("int pieces", pieces)]
    given = [name for name, _, _ in scratches]
    reads = KernelSignature.of(replace(program, outputs=()), kernel.namer, sizes)
    rows_only = tuple(one for one in program.inputs if not one.varies)
    writes = KernelSignature.of(replace(program, inputs=rows_only), kernel.namer, sizes)
    first = KernelSignature([*parts, *reads.declared], [*given, *reads.given])
    second = KernelSignature([*(f"const {one}" for one in parts), *writes.declared], [*given, *writes.given])
    plan.launch(f"{program.name}_parts", f"{pieces} * {rows}", "THREADS", first.given)
    plan.launch(f"{program.name}_whole", rows, "256", second.given)

    owned = [own for _, own, _ in scratches]
    bounds = "__launch_bounds__(THREADS, 1024 / THREADS)"
    part_text = first.kernel(bounds, f"{program.name}_parts", _part_body(kernel, owned))
    whole_text = second.kernel("__launch_bounds__(256)", f"{program.name}_whole", _whole_body(kernel, owned))
    header = (
        f"{program.name} where rows are few and long: many blocks share a row.\n\nThe first kernel gives each "
        f"block an equal, "
        "unbroken piece of a row, so that all multiprocessors are busy and memory is walked in order; it leaves "
        "one number "
        "per piece. The second, one block per row, combines them in a fixed order: runs repeat bit for bit."
    )
    helpers = [
        *kernel.forms.helpers(),
        *kernel.reduction_helpers(),
        BLOCK_REDUCE.replace("template <typename T, typename", "template <int WARPS, typename T, typename", 1),
    ]
    return fragment(header, plan, includes(program), [VECTOR], *([one] for one in helpers), part_text, whole_text)


def _part_body(kernel: RowKernel, parts: list[str]) -> list[str]:
    program = kernel.program
    lines = [
        "const long long row = blockIdx.x / pieces, vectors = cols / WIDTH;",
        "const long long first = static_cast<long long>(blockIdx.x % pieces) * THREADS * STEPS;",
    ]
    streams = [one for one in program.inputs if one.varies and not one.spans]
    lines += kernel.index_lines(*program.inputs) + kernel.pointers() + kernel.partials("THREADS / 32")
    sweep = kernel.sweep(0, lambda one: f"{kernel.name(one.name)}_here.at[i]", "place * WIDTH + i", {})
    inner = [
        "const long long place = first + k * THREADS + threadIdx.x;",
        "if (place < vectors) {",
        *(
            f"  const Vector<{one.dtype.cpp}> {kernel.name(one.name)}_here = {kernel.name(one.name)}_along[place];"
            for one in streams
        ),
        "#pragma unroll",
        "  for (int i = 0; i < WIDTH; ++i) {",
        *indented(sweep.element, 2),
        "  }",
        "}",
    ]
    lines += ["", *sweep.before, "#pragma unroll 2", "for (int k = 0; k < STEPS; ++k) {", *indented(inner), "}"]
    lines += kernel.reduced(0, "block_reduce<THREADS / 32>({v}, {v}_of_warps, {c})")
    stores = [
        f"{own}[blockIdx.x] = {kernel.namer.of(index)};"
        for own, index in zip(parts, kernel.all_reductions, strict=True)
    ]
    return [*lines, "if (threadIdx.x == 0) {", *indented(stores), "}"]


def _whole_body(kernel: RowKernel, parts: list[str]) -> list[str]:
    program = kernel.program
    lines = ["const long long row = blockIdx.x;"]
    lines += kernel.index_lines(*(one for one in program.inputs if not one.varies)) + kernel.partials("8")
    for own, index in zip(parts, kernel.all_reductions, strict=True):
        name, kind = kernel.namer.of(index), kernel.accumulator_type(index)
        lines += [
            f"{kind} {name} = {kernel.start(index)};",
            "for (int piece = threadIdx.x; piece < pieces; piece += 256) {",
            f"  {name} = {kernel.combiner(index)}{{}}({name}, {own}[row * pieces + piece]);",
            "}",
        ]
    lines += kernel.reduced(0, "block_reduce<8>({v}, {v}_of_warps, {c})")
    kernel.row_known = {index: text for index, text in kernel.row_known.items() if index in program.reductions}
    return [*lines, "if (threadIdx.x == 0) {", *indented(kernel.row_results()), "}"]

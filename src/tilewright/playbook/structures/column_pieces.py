"""One reduction over the first or the middle dimensions: pieces of the columns, then all pieces of a row put together.

Rows that are not a whole number of 16-byte vectors side by side start at other places of a vector in every column. But
every PHASES-th column starts at the same: a block takes those, and its vectors begin where they are aligned.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.playbook.cpp_helpers import VECTOR
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, Fragment, KernelSignature, PlanLines, fragment, includes
from tilewright.playbook.row_kernel import RowKernel, each_element
from tilewright.playbook.row_program import ProgramInput, Reduce, RowProgram
from tilewright.playbook.structures.columns import ColumnKernel, without_shuffles
from tilewright.playbook.structures.parts import Part

_LOAD_ROWS = """\
// Neighbouring rows of a column; where not all of them exist, those from `low` to `high`.
template <typename T>
__device__ __forceinline__ Vector<T> load_rows(const T* from, bool full, int low, int high) {
  if (full) return *reinterpret_cast<const Vector<T>*>(from);
  Vector<T> found = {};
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    if (i >= low && i < high) found.at[i] = from[i];
  }
  return found;
}
"""


_TEAMS = 8  # that put the pieces of a row together
_WANTED_BLOCKS = 256  # that keep a large GPU's memory busy


def can_piece(program: RowProgram) -> bool:
    """Whether one sweep is all, its results are of rows, and nothing of a row is needed on the way."""
    plain = all((one.varies or one.parts == ()) and not one.spans for one in program.inputs)
    return program.sweeps == 1 and not program.outputs_along and plain


def column_pieces(program: RowProgram, op_line: str, quick: bool = True) -> Fragment:
    """Two launches: blocks leave what a piece of the columns comes to, and a thread per row puts pieces together."""
    kernel = ColumnKernel(program, quick)
    plan = PlanLines(program, op_line)
    rows, cols = plan.sizes()
    inner, pieces, outer = plan.inner(), plan.name("pieces"), f"{rows} / max({plan.name('inner')}, 1)"
    tiles, lanes, vectors = (plan.name(one) for one in ("tiles", "lanes", "vectors"))
    plan.limits(rows, cols)
    plan.add("need", f"{cols} <= {MOST_32_BIT} and {inner} <= {MOST_32_BIT}")
    plan.add("tune", "LANES = 256 | 384 | 128 | 512", "threads at most, side by side")
    plan.add("tune", f"SHARE = {_shares(program)}", "columns that a block goes down")
    places = any(isinstance(one, Reduce) and one.op.finds_place for one in program.values)
    batches = "4 | 8 | 2" if places else "8 | 4 | 16"  # a place takes registers too
    plan.add("tune", f"BATCH = {batches}", "loads of a thread that are in flight together")
    size = 16 // program.widest.itemsize
    plan.add("const", f"WIDTH = {size}", "rows of a thread: 16 bytes of the widest tensor")
    phases = " else ".join(f"{size // one} if {inner} % {one} == 0" for one in _halved(size))
    plan.add("const", f"PHASES = {phases} else {size}", "columns after which vectors lie alike")
    plan.add("let", f"{pieces} = PHASES * max(ceil_div(ceil_div({cols}, PHASES), SHARE), 1)")
    plan.add("let", f"{vectors} = {inner} / WIDTH + (0 if PHASES == 1 else 2)", "two for the ends")
    plan.add("let", f"{tiles} = max(ceil_div({vectors}, LANES), 1)", "blocks side by side")
    plan.add("let", f"{lanes} = round_up(max(ceil_div({vectors}, {tiles}), 1), 32)", "threads of each")
    parts = Part.of(kernel, plan, f"{outer}, {pieces}, {inner}", kernel.all_reductions)
    declared, given = [f"{one.type}* __restrict__ {one.own}" for one in parts], [one.planned for one in parts]
    sizes = [("int cols", cols), ("int inner", inner), ("int pieces", pieces)]
    reads = KernelSignature.of(replace(program, outputs=()), kernel.namer, [*sizes, ("int tiles", tiles)])
    writes = KernelSignature.of(
        replace(program, inputs=tuple(one for one in program.inputs if not one.varies)),
        kernel.namer,
        [("long long rows", rows), *sizes],
    )
    first = KernelSignature([*declared, *reads.declared], [*given, *reads.given])
    second = KernelSignature([*(f"const {one}" for one in declared), *writes.declared], [*given, *writes.given])
    names = f"{program.name}_parts", f"{program.name}_whole"
    plan.launch(names[0], f"{outer} * {pieces} * {tiles}", lanes, first.given)
    plan.launch(names[1], f"ceil_div({rows}, 32)", f"dim3(32, {_TEAMS})", second.given)
    texts = [
        first.kernel("__launch_bounds__(LANES)", names[0], _part_body(kernel, parts)),
        second.kernel(f"__launch_bounds__({32 * _TEAMS})", names[1], _whole_body(program, kernel, parts)),
    ]
    header = (
        f"{program.name}, a reduction across memory: neighbours belong to different rows.\n\nA thread has WIDTH "
        "neighbouring rows and goes down a share of their columns, BATCH 16-byte loads in flight. Where rows side by "
        "side are not a whole number of vectors, every column starts at another place of a vector, but every "
        "PHASES-th at the same: a block takes one phase, and its vectors begin where they are aligned, the ends "
        "element by element. It leaves what its share comes to; the second kernel, a warp for every 32 rows and "
        f"{_TEAMS} of them for the pieces, puts those together in a fixed order, so runs repeat bit for bit."
    )
    helpers = [*kernel.forms.helpers(), *without_shuffles(kernel)]
    return fragment(header, plan, includes(program), [VECTOR], [_LOAD_ROWS], *([one] for one in helpers), *texts)


def _shares(program: RowProgram) -> str:
    """As many columns for a block as leave enough blocks, first."""
    lanes = -(-program.task_inner * program.widest.itemsize // 16)
    beside = -(-lanes // 256) * max(program.task_rows // max(program.task_inner, 1), 1)
    wanted = program.task_cols * beside // _WANTED_BLOCKS
    best = next((one for one in (256, 128, 64, 32) if one <= wanted), 16)
    return " | ".join(str(one) for one in (best, best * 2, best // 2, best // 4))


def _halved(size: int) -> list[int]:
    return [size >> shift for shift in range(size.bit_length() - 1)]


def _part_body(kernel: ColumnKernel, parts: list[Part]) -> list[str]:
    program, name = kernel.program, kernel.name
    streams = program.streams

    def load(one: ProgramInput) -> str:
        return f"{name(one.name)}[column]" if one.is_column else f"{name(one.name)}_here[k].at[i]"

    sweep = kernel.sweep(0, load, "column", {}, in_parts=True)
    declared, added = kernel.part_lines(0)
    work = ["const int column = phase + PHASES * (start + k);", *each_element(sweep.element)]
    inner = [
        *(f"Vector<{one.dtype.cpp}> {name(one.name)}_here[BATCH];" for one in streams),
        *declared,
        "#pragma unroll",
        "for (int k = 0; k < BATCH; ++k) {",
        "  if (start + k < end) {",
        *(
            f"    {name(one.name)}_here[k] = load_rows({name(one.name)} + (start + k) * step, full, low, high);"
            for one in streams
        ),
        "  }",
        "}",
        "#pragma unroll",
        "for (int k = 0; k < BATCH; ++k) {",
        "  if (start + k < end) {",
        *indented(work, 2),
        "  }",
        "}",
        *added,
    ]
    return [
        "const int tile = blockIdx.x % tiles, piece = blockIdx.x / tiles % pieces, phase = piece % PHASES;",
        "const long long outer = blockIdx.x / tiles / pieces, base = (outer * cols + phase) * inner;",
        "// The first vector begins before the first row where that is not aligned.",
        "const int shift = PHASES == 1 ? 0 : static_cast<int>(base % WIDTH);",
        "const int first = (tile * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * WIDTH - shift;",
        "if (first >= inner) return;",
        "const bool full = first >= 0 && first + WIDTH <= inner;",
        "const int low = max(-first, 0), high = min(inner - first, WIDTH);  // the rows of this thread that exist",
        "const int count = (cols - phase + PHASES - 1) / PHASES, begin = piece / PHASES * SHARE;",
        "const int end = min(begin + SHARE, count);",
        "const long long step = static_cast<long long>(inner) * PHASES;",
        *(f"{name(one.name)} += base + first;" for one in streams),
        *sweep.before,
        "#pragma unroll 1",
        "for (int start = begin; start < end; start += BATCH) {",
        *indented(inner),
        "}",
        "for (int i = low; i < high; ++i) {",
        "  const long long place = (outer * pieces + piece) * inner + first + i;",
        *(f"  {one.own}[place] = {kernel.namer.of(one.index)}[i]{one.field};" for one in parts),
        "}",
    ]


def _whole_body(program: RowProgram, first: ColumnKernel, parts: list[Part]) -> list[str]:
    kernel = RowKernel(program, first.quick)
    kernel.namer, kernel.forms, kernel.statements = first.namer, first.forms, first.statements
    lines = ["const long long row = blockIdx.x * 32ll + threadIdx.x;"]
    inner, exchanged, combined = [], [], []
    for index in kernel.all_reductions:
        name, kind, combiner = kernel.namer.of(index), kernel.accumulator_type(index), kernel.combiner(index)
        lines += [f"__shared__ {kind} {name}_of_teams[{_TEAMS}][32];", f"{kind} {name} = {kernel.start(index)};"]
        inner.append(f"{name} = {combiner}{{}}({name}, {Part.at('place', kind, index, parts)});")
        exchanged.append(f"{name}_of_teams[threadIdx.y][threadIdx.x] = {name};")
        combined.append(f"{name} = {combiner}{{}}({name}, {name}_of_teams[team][threadIdx.x]);")
    place = "const long long place = first + static_cast<long long>(piece) * inner;"
    loop = f"for (int piece = threadIdx.y; piece < pieces; piece += {_TEAMS}) {{"
    kernel.reduced(0, "")
    return [
        *lines,
        "if (row < rows) {",
        "  const long long first = row / inner * pieces * inner + row % inner;",
        "#pragma unroll 8",
        f"  {loop}",
        *indented([place, *inner], 2),
        "  }",
        "}",
        *exchanged,
        "__syncthreads();",
        "if (threadIdx.y > 0 || row >= rows) return;",
        *kernel.index_lines(*(one for one in program.inputs if not one.varies)),
        f"for (int team = 1; team < {_TEAMS}; ++team) {{",
        *indented(combined),
        "}",
        *kernel.row_results(),
    ]

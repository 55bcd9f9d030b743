"""One reduction over the first or the middle dimensions: pieces of the columns, then all pieces of a row put together.

Rows that are not a whole number of 16-byte vectors side by side start at other places of a vector in every column. But
every PHASES-th column starts at the same: a block takes those, and its vectors begin where they are aligned. Or, where
all of it is a whole number of vectors, memory is gone along in windows of PERIOD columns, after which rows lie alike in
lines of memory: no vector has ends, and every line is asked for once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tilewright.playbook.cpp_pieces import VECTOR
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, Fragment, KernelSignature, PlanLines, fragment, includes
from tilewright.playbook.row_kernel import RowKernel, each_element
from tilewright.playbook.row_program import ProgramInput, Reduce, RowProgram
from tilewright.playbook.structures.columns import ColumnKernel, without_shuffles
from tilewright.playbook.structures.sums import TRIGGER, WAIT, Part
from tilewright.playbook.templates import sections

_CUDA = sections("structures/column_pieces")

_LOAD_ROWS = _CUDA["load_rows"]


_COMBINING = 256  # threads of a block that puts pieces together
_TEAMS = 8  # of them for the pieces of a row, where rows are not so many
_MANY_ROWS = 1 << 18
_LINE_BYTES = 128
_OWN = 4  # vectors of a thread in a window; half of that where each has a place too
_LEAST_WINDOWS = 32  # that a block goes along
_WINDOW_BLOCKS = 528  # which a large GPU has at once
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
    inner, pieces = plan.inner(), plan.name("pieces")
    tiles, lanes, vectors = (plan.name(one) for one in ("tiles", "lanes", "vectors"))
    plan.limits(rows, cols)
    plan.add("need", f"{cols} <= {MOST_32_BIT} and {inner} <= {MOST_32_BIT}")
    plan.add("tune", "LANES = 256 | 384 | 128 | 512", "threads at most, side by side")
    plan.add("tune", f"SHARE = {_shares(program)}", "columns that a block goes down")
    batches = "4 | 8 | 2" if _finds_places(program) else "8 | 4 | 16"  # a place takes registers too
    plan.add("tune", f"BATCH = {batches}", "loads of a thread that are in flight together")
    size = 16 // program.widest.itemsize
    plan.add("const", f"WIDTH = {size}", "rows of a thread: 16 bytes of the widest tensor")
    plan.add("const", f"PHASES = {_period(inner, size)}", "columns after which vectors lie alike")
    plan.add("let", f"{pieces} = PHASES * max(ceil_div(ceil_div({cols}, PHASES), SHARE), 1)")
    plan.add("let", f"{vectors} = {inner} / WIDTH + (0 if PHASES == 1 else 2)", "two for the ends")
    plan.add("let", f"{tiles} = max(ceil_div({vectors}, LANES), 1)", "blocks side by side")
    plan.add("let", f"{lanes} = round_up(max(ceil_div({vectors}, {tiles}), 1), 32)", "threads of each")
    header = (
        f"{program.name}, a reduction across memory: neighbours belong to different rows.\n\nA thread has WIDTH "
        "neighbouring rows and goes down a share of their columns, BATCH 16-byte loads in flight. Where rows side by "
        "side are not a whole number of vectors, every column starts at another place of a vector, but every "
        "PHASES-th at the same: a block takes one phase, and its vectors begin where they are aligned, the ends "
        "element by element. It leaves what its share comes to"
    )
    parts = _Parts((rows, cols, inner), "LANES", pieces, f"{pieces} * {tiles}", lanes, tiles, [_LOAD_ROWS])
    return _two_launches(kernel, plan, header, parts, _part_body)


def column_windows(program: RowProgram, op_line: str, quick: bool = True) -> Fragment:
    """The same two launches; the blocks of the first go along memory as it lies. Only where `can_window`."""
    kernel = _WindowKernel(program, quick)
    plan = PlanLines(program, op_line)
    rows, cols = plan.sizes()
    inner, pieces = plan.inner(), plan.name("pieces")
    tiles, window, shares, alike = (plan.name(one) for one in ("tiles", "window", "shares", "alike"))
    plan.limits(rows, cols)
    plan.add("need", f"{cols} <= {MOST_32_BIT} and {inner} * 128 <= {MOST_32_BIT}")
    places = _finds_places(program)
    plan.add("tune", "LANES = 256 | 512", "threads of a block")
    plan.add("tune", f"SHARE = {_window_shares(program)}", "windows that a block goes along")
    plan.add("const", f"OWN = {_OWN // 2 if places else _OWN}", "vectors of a thread in each, all in flight together")
    size = 16 // program.widest.itemsize
    plan.add("const", f"WIDTH = {size} if {cols} * {inner} % {size} == 0 else 1", "elements per load")
    line = _LINE_BYTES // program.widest.itemsize
    plan.add("const", f"PHASES = {_period(inner, size)}", "columns after which vectors lie alike")
    plan.add("let", f"{alike} = PHASES * {inner}")
    plan.add("const", f"PERIOD = PHASES * ({_period(alike, line, size)})", "and lines of memory")
    plan.add("let", f"{window} = PERIOD * {inner} / WIDTH", "vectors of so many columns")
    plan.add("let", f"{tiles} = max(ceil_div({window}, LANES * OWN), 1)", "blocks side by side")
    plan.add("let", f"{shares} = max(ceil_div(ceil_div({cols}, PERIOD), SHARE), 1)")
    plan.add("let", f"{pieces} = PERIOD * {shares}")
    header = (
        f"{program.name}, a reduction across memory: neighbours belong to different rows.\n\nMemory is gone along as "
        "it lies, in windows of PERIOD columns, after which rows lie alike in its 128-byte lines. A block has a tile "
        "of the window and goes down a share of the windows, with OWN 16-byte loads of a thread in flight: each vector "
        "has sums of its own, whatever rows and columns it lies in. It leaves what its share comes to"
    )
    parts = _Parts((rows, cols, inner), "LANES, 1024 / LANES", pieces, f"{shares} * {tiles}", "LANES", tiles, [])
    return _two_launches(kernel, plan, header, parts, _window_body)


def can_window(program: RowProgram) -> bool:
    """Whether all that is read lies as the elements do."""
    return can_piece(program) and all(one.is_whole or not one.varies for one in program.inputs)


def pays_in_windows(program: RowProgram) -> bool:
    """Whether rows lie otherwise in every column, and windows are long, and many enough for all blocks: what they leave
    must be little beside what they read."""
    itemsize = program.widest.itemsize
    period = _task_period(program)
    whole = program.task_cols * program.task_inner * itemsize % 16 == 0
    enough = program.task_cols // period >= _LEAST_WINDOWS and _window_blocks(program, _LEAST_WINDOWS) >= _WINDOW_BLOCKS
    return can_window(program) and period > 1 and whole and enough


def _task_period(program: RowProgram) -> int:
    line = _LINE_BYTES // program.widest.itemsize
    return line // math.gcd(program.task_inner, line)


def _window_blocks(program: RowProgram, share: int) -> int:
    """How many blocks of 256 threads whole tiles of the task's windows make, where each goes along so many."""
    period = _task_period(program)
    tiles = period * program.task_inner * program.widest.itemsize // (16 * 256 * _OWN)
    return program.task_rows // max(program.task_inner, 1) * tiles * (program.task_cols // period) // share


def _window_shares(program: RowProgram) -> str:
    """As many windows for a block as leave enough blocks, first."""
    best = next((one for one in (128, 64) if _window_blocks(program, one) >= 2 * _WINDOW_BLOCKS), _LEAST_WINDOWS)
    return " | ".join(str(one) for one in (best, *(one for one in (128, 64, 32) if one != best)))


class _WindowKernel(ColumnKernel):
    """A kernel in which a thread has OWN vectors of a window."""

    def accumulator(self, index: int) -> str:
        return f"{self.namer.of(index)}[k][i]"

    def declared(self, index: int) -> list[str]:
        name, start = self.namer.of(index), self.start(index)
        line = f"{self.accumulator_type(index)} {name}[OWN][WIDTH]"
        if start in ("0", "0.0f"):
            return [f"{line} = {{}};"]
        each = [f"for (int i = 0; i < WIDTH; ++i) {name}[k][i] = {start};"]
        return [f"{line};", "#pragma unroll", "for (int k = 0; k < OWN; ++k) {", "#pragma unroll", *indented(each), "}"]


@dataclass(frozen=True)
class _Parts:
    """What the first launch of one form has of its own."""

    sizes: tuple[str, str, str]  # rows, columns and rows side by side
    bounds: str
    pieces: str  # of a row
    blocks: str  # for one outer index
    threads: str
    tiles: str  # blocks side by side
    helpers: list[str]


def _two_launches(
    kernel: ColumnKernel,
    plan: PlanLines,
    header: str,
    made: _Parts,
    body: Callable[[ColumnKernel, list[Part]], list[str]],
) -> Fragment:
    program = kernel.program
    rows, cols, inner = made.sizes
    outer = f"{rows} / max({inner}, 1)"
    parts = Part.of(kernel, plan, f"{outer}, {made.pieces}, {inner}", kernel.all_reductions)
    declared, given = [f"{one.type}* __restrict__ {one.own}" for one in parts], [one.planned for one in parts]
    sizes = [("int cols", cols), ("int inner", inner), ("int pieces", made.pieces)]
    reads = KernelSignature.of(replace(program, outputs=()), kernel.namer, [*sizes, ("int tiles", made.tiles)])
    writes = KernelSignature.of(
        replace(program, inputs=tuple(one for one in program.inputs if not one.varies)),
        kernel.namer,
        [("long long rows", rows), *sizes],
    )
    first = KernelSignature([*declared, *reads.declared], [*given, *reads.given])
    second = KernelSignature([*(f"const {one}" for one in declared), *writes.declared], [*given, *writes.given])
    names = f"{program.name}_parts", f"{program.name}_whole"
    teams = 1 if program.task_rows >= _MANY_ROWS else _TEAMS
    plan.launch(names[0], f"{outer} * {made.blocks}", made.threads, first.given)
    plan.launch(
        names[1],
        f"ceil_div({rows}, {_COMBINING // teams})",
        f"dim3({_COMBINING // teams}, {teams})",
        second.given,
        " pdl",
    )
    texts = [
        first.kernel(f"__launch_bounds__({made.bounds})", names[0], [TRIGGER, *body(kernel, parts)]),
        second.kernel(f"__launch_bounds__({_COMBINING})", names[1], [WAIT, *_whole_body(kernel, parts, teams)]),
    ]
    shared = (
        f", a warp for every 32 rows and {teams} of them for the pieces," if teams > 1 else ", a thread for every row,"
    )
    header += f"; the second kernel{shared} puts those together in a fixed order, so runs repeat bit for bit."
    helpers = [*made.helpers, *kernel.forms.helpers(), *without_shuffles(kernel)]
    return fragment(header, plan, includes(program), [VECTOR], *([one] for one in helpers), *texts)


def _finds_places(program: RowProgram) -> bool:
    return any(isinstance(one, Reduce) and one.op.finds_place for one in program.values)


def _period(inner: str, size: int, known: int = 1) -> str:
    """Columns after which rows begin at the same place of so many elements, where they do of the `known` ones."""
    steps = [one for one in _halved(size) if one > known]
    return " else ".join([*(f"{size // one} if {inner} % {one} == 0" for one in steps), str(size // known)])


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


def _window_body(kernel: ColumnKernel, parts: list[Part]) -> list[str]:
    program, name = kernel.program, kernel.name
    streams = program.streams
    # Places are of windows at first: the place in a window is the same for all that a thread compares.
    sweep = kernel.sweep(0, lambda one: f"{name(one.name)}_here[k].at[i]", "at", {})
    inner = [
        "const int left = static_cast<int>(min(window, vectors - at * window)) - own;",
        *(f"Vector<{one.dtype.cpp}> {name(one.name)}_here[OWN];" for one in streams),
        *_each_own(f"{name(one.name)}_here[k] = {name(one.name)}_along[at * window + k * LANES];" for one in streams),
        *_each_own(each_element(sweep.element)),
    ]
    stores: list[str] = []
    for one in parts:
        value = f"{kernel.namer.of(one.index)}[k][i]{one.field}"
        if one.field == ".index":
            value = f"{value} * PERIOD + ((own + k * LANES) * WIDTH + i) / inner"
        stores += [
            f"Vector<{one.type}> {one.own}_made;",
            *each_element([f"{one.own}_made.at[i] = {value};"]),
            f"reinterpret_cast<Vector<{one.type}>*>({one.own})[place + k * LANES] = {one.own}_made;",
        ]
    return [
        "const int shares = pieces / PERIOD, tile = blockIdx.x % tiles, share = blockIdx.x / tiles % shares;",
        "const long long outer = blockIdx.x / tiles / shares, window = static_cast<long long>(inner) * PERIOD / WIDTH;",
        "const long long vectors = static_cast<long long>(cols) * inner / WIDTH;",
        "const int own = tile * LANES * OWN + static_cast<int>(threadIdx.x);  // place in a window",
        *(
            f"const auto* {name(one.name)}_along = "
            f"reinterpret_cast<const Vector<{one.dtype.cpp}>*>({name(one.name)}) + outer * vectors + own;"
            for one in streams
        ),
        *sweep.before,
        "const int end = min((share + 1) * SHARE, (cols + PERIOD - 1) / PERIOD);",
        "#pragma unroll 1",
        "for (int at = share * SHARE; at < end; ++at) {",
        *indented(inner),
        "}",
        "const int left = static_cast<int>(window) - own;",
        "const long long place = (outer * shares + share) * window + own;",
        *_each_own(stores),
    ]


def _each_own(lines: Iterable[str]) -> list[str]:
    """For the thread's own vectors that are left of a window."""
    inner = ["if (k * LANES < left) {", *indented(list(lines)), "}"]
    return ["#pragma unroll", "for (int k = 0; k < OWN; ++k) {", *indented(inner), "}"]


def _whole_body(first: ColumnKernel, parts: list[Part], teams: int) -> list[str]:
    program = first.program
    kernel = RowKernel(program, first.quick)
    kernel.namer, kernel.forms, kernel.statements = first.namer, first.forms, first.statements
    lines = [f"const long long row = blockIdx.x * {_COMBINING // teams}ll + threadIdx.x;"]
    inner, shared, exchanged, combined = [], [], [], []
    for index in kernel.all_reductions:
        name, kind, combiner = kernel.namer.of(index), kernel.accumulator_type(index), kernel.combiner(index)
        lines.append(f"{kind} {name} = {kernel.start(index)};")
        inner.append(f"{name} = {combiner}{{}}({name}, {Part.at('place', kind, index, parts)});")
        shared.append(f"__shared__ {kind} {name}_of_teams[{teams}][32];")
        exchanged.append(f"{name}_of_teams[threadIdx.y][threadIdx.x] = {name};")
        combined.append(f"{name} = {combiner}{{}}({name}, {name}_of_teams[team][threadIdx.x]);")
    kernel.reduced(0, "")
    lines += [
        "if (row < rows) {",
        "  const long long first = row / inner * pieces * inner + row % inner;",
        f"#pragma unroll {16 if teams == 1 else 8}",
        f"  for (int piece = threadIdx.y; piece < pieces; piece += {teams}) {{",
        "    const long long place = first + static_cast<long long>(piece) * inner;",
        *indented(inner, 2),
        "  }",
        "}",
    ]
    after = [*kernel.index_lines(*(one for one in program.inputs if not one.varies))]
    if teams == 1:
        return [*lines, "if (row >= rows) return;", *after, *kernel.row_results()]
    return [
        *shared,
        *lines,
        *exchanged,
        "__syncthreads();",
        "if (threadIdx.y > 0 || row >= rows) return;",
        *after,
        f"for (int team = 1; team < {teams}; ++team) {{",
        *indented(combined),
        "}",
        *kernel.row_results(),
    ]

"""Kernels for pooling: one thread per result, and strips whose columns are reduced before their rows."""

from __future__ import annotations

import math

from tilewright.playbook.cpp_helpers import VECTOR
from tilewright.playbook.cpp_text import Text, indented
from tilewright.playbook.file_text import MOST_32_BIT, PlanLines, fragment, includes
from tilewright.playbook.places.reader import Leaf, Read
from tilewright.playbook.places.text import Known, Mode, PlacedKernel, each_element, product_text
from tilewright.playbook.pooling.program import PoolProgram, Window
from tilewright.playbook.row_program import Load

_AXES = ("X", "Y", "Z")

GREATER = """\
// The greater of two; NaN if either is, as in PyTorch.
__device__ __forceinline__ float combined(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float greater;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
  return greater;
#else
  return a > b || a != a ? a : b;
#endif
}
"""
SUM = "__device__ __forceinline__ float combined(float a, float b) { return a + b; }\n"


class PoolKernel(PlacedKernel):
    """A kernel for pooling being written."""

    def __init__(self, program: PoolProgram, plan: PlanLines, vector: bool, quick: bool) -> None:
        super().__init__(program.placed, plan, program.windows[-1].inside if vector else None, quick)
        self.pool = program
        self.axes = dict(zip(_AXES, reversed(program.windows), strict=False))

    @property
    def pooled(self) -> int:
        """The number of the value that stands for the pooled one."""
        return next(
            index
            for index, value in enumerate(self.program.values)
            if isinstance(value, Load) and value.input == self.pool.leaf
        )

    def constants(self) -> list[str]:
        lines = []
        for axis, one in self.axes.items():
            lines.append(
                f"constexpr int KERNEL_{axis} = {one.kernel}, STRIDE_{axis} = {one.stride}, PAD_{axis} = {one.padding}, "
                f"DILATION_{axis} = {one.dilation};"
            )
        return lines

    def pieces(self) -> list[list[str]]:
        return [[one] for one in (*self.forms.helpers(), SUM if self.pool.is_mean else GREATER)]

    def result_lines(self, made: str) -> list[str]:
        """Statements that turn the combined window into results and store them."""
        lines, text = self._divided(made)
        known: Known = {self.pooled: text}
        more, texts = self.write(
            tuple(one.value for one in self.program.outputs), known, lambda _, leaf, k: self.load(leaf, k)
        )
        lines += more
        for one in self.program.outputs:
            place = self.index(one.place, known)
            lines.append(f"{self.pointer(one.name)}[{place}] = {self.stored(one, texts[one.value])};")
        return lines

    def _divided(self, made: str) -> tuple[list[str], Text]:
        if not self.pool.is_mean:
            return [], Text(made)
        if self.pool.divisor is not None:
            lines = [f"const float pooled = {made} / {self.pool.divisor}.0f;"]
            return lines, Text("pooled")
        lines, factors = [], []
        for axis, one in self.axes.items():
            start = f"{self.variable(one.outside)} * STRIDE_{axis} - PAD_{axis}"
            size = self.size(one.inside.size, "int")
            low = "" if self.pool.counts_padding else f"max({start}, 0)"
            end = f"min({start} + KERNEL_{axis}, {size}{f' + PAD_{axis}' if self.pool.counts_padding else ''})"
            lines.append(f"const int count_{axis.lower()} = {end} - ({low or start});")
            factors.append(f"count_{axis.lower()}")
        lines.append(f"const float pooled = {made} / static_cast<float>({' * '.join(factors)});")
        return lines, Text("pooled")


def draft(program: PoolProgram, op_line: str) -> str:
    """One thread per result."""
    plan = PlanLines(program.placed.as_rows(), op_line)
    plan.add("const", "THREADS = 256")
    kernel = PoolKernel(program, plan, vector=False, quick=False)
    count = product_text(program.placed.variables)
    inner, texts = kernel.write((program.value,), {}, lambda _, leaf, known: kernel.load(leaf, known))
    body = [*inner, f"made = combined(made, {texts[program.value].text});"]
    for axis, one in kernel.axes.items():
        inside, outside = kernel.variable(one.inside), kernel.variable(one.outside)
        tap = f"tap_{axis.lower()}"
        body = [
            f"for (int {tap} = 0; {tap} < KERNEL_{axis}; ++{tap}) {{",
            f"  const int {inside} = {outside} * STRIDE_{axis} - PAD_{axis} + {tap} * DILATION_{axis};",
            f"  if ({inside} < 0 || {inside} >= {kernel.size(one.inside.size, 'int')}) continue;",
            *indented(body),
            "}",
        ]
    lines = [
        "const long long element = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;",
        "if (element >= n) return;",
        *kernel.split(program.placed.variables, "element"),
        f"float made = {program.start};",
        *body,
        *kernel.result_lines("made"),
    ]
    signature = kernel.signature(tuple(one.name for one in program.placed.outputs), [("long long n", count)])
    name = f"{program.placed.name}_windows"
    plan.launch(name, f"ceil_div({count}, THREADS)", "THREADS", signature.given)
    header = (
        f"{program.placed.name}, a first version: simple, and right at any size.\n\nOne thread goes through the window of one "
        "result; places outside the input are skipped."
    )
    text = signature.kernel("__launch_bounds__(THREADS)", name, lines)
    return fragment(header, plan, includes(program.placed.as_rows()), kernel.constants(), *kernel.pieces(), text).file()


# -- strips --


def strips(program: PoolProgram, op_line: str, quick: bool = True) -> str:
    """Columns first, in registers; then rows, through shared memory."""
    plan = PlanLines(program.placed.as_rows(), op_line)
    kernel = PoolKernel(program, plan, vector=True, quick=quick)
    if "Y" not in kernel.axes:
        kernel.axes = {"X": kernel.axes["X"]}
    more, grid = _strips_plan(kernel, plan)
    body = _strips_body(kernel)
    signature = kernel.signature(tuple(one.name for one in program.placed.outputs), more)
    name = f"{program.placed.name}_strips"
    plan.launch(
        name,
        grid,
        f"dim3(LANES, TEAMS), 4 * TEAMS * {'2 * ' if 'Z' in kernel.axes else ''}ROWS * {more[0][1]}",
        signature.given,
    )
    deep = (
        " It walks the planes in order: what a plane's rows come to is kept for every window that reaches it, so a plane "
        "is read once."
        if "Z" in kernel.axes
        else ""
    )
    header = (
        f"{program.placed.name}, every input element read once or little more: a team of LANES threads makes a strip of ROWS "
        "rows of the result.\n\nA thread owns whole 16-byte vectors of columns. It loads all rows that the strip needs "
        "before it computes anything, and combines them column by column in registers."
        + deep
        + " What the columns come "
        "to goes through shared memory, where the last combination, along the row, finds its neighbours. Cells outside "
        "the input hold what changes nothing."
    )
    text = signature.kernel("__launch_bounds__(LANES * TEAMS)", name, body)
    pieces = [[*kernel.constants(), *_more_constants(kernel)], [VECTOR], *kernel.pieces(), *_used_pieces(kernel)]
    return fragment(header, plan, includes(program.placed.as_rows()), *pieces, text).file()


def _more_constants(kernel: PoolKernel) -> list[str]:
    lines = ["constexpr int REACH_X = (KERNEL_X - 1) * DILATION_X + 1;"]
    lines.append("constexpr int MARGIN = (PAD_X + WIDTH - 1) / WIDTH * WIDTH;  // cells before the first column")
    if "Y" in kernel.axes:
        lines.append(
            "constexpr int REACH_Y = (KERNEL_Y - 1) * DILATION_Y + 1, LOADED = (ROWS - 1) * STRIDE_Y + REACH_Y;"
        )
    else:
        lines.append("constexpr int LOADED = 1;  // rows that a strip reads")
    if "Z" in kernel.axes:
        lines.append("constexpr int REACH_Z = (KERNEL_Z - 1) * DILATION_Z + 1;")
        lines.append(
            "constexpr int KEPT = REACH_Z > STRIDE_Z ? REACH_Z - STRIDE_Z : 0;  // planes that the next window reaches"
        )
        lines.append("constexpr int LINES = 2 * ROWS;  // two sets in turn, so that one barrier a plane is enough")
    else:
        lines.append("constexpr int LINES = ROWS;")
    return lines


def _used_pieces(kernel: PoolKernel) -> list[list[str]]:
    """Which rows and planes any window looks at: strides and dilations leave gaps."""
    pieces = []
    if "Y" in kernel.axes:
        pieces.append(
            [
                """\
// Whether any window of the strip looks at this row of those that it reaches over.
__device__ constexpr bool row_is_used(int row) {
  for (int made = 0; made < ROWS; ++made) {
    const int tap = row - made * STRIDE_Y;
    if (tap >= 0 && tap < REACH_Y && tap % DILATION_Y == 0) return true;
  }
  return false;
}
"""
            ]
        )
    if "Z" in kernel.axes:
        pieces.append(
            [
                """\
// Whether this window or a later one looks at this plane of those that it reaches over.
__device__ constexpr bool plane_is_used(int plane) {
  for (int tap = plane; tap >= 0; tap -= STRIDE_Z) {
    if (tap < REACH_Z && tap % DILATION_Z == 0) return true;
  }
  return false;
}
"""
            ]
        )
    return pieces


def _strips_plan(kernel: PoolKernel, plan: PlanLines) -> tuple[list[tuple[str, str]], str]:
    x = kernel.axes["X"]
    for directive, text, remark in _tunes(kernel):
        plan.add(directive, text, remark)
    kernel.width_line()
    names = {one: plan.name(one) for one in ["span", "cells", "most", "tile", "tiles", "left", "strips", "chunks", "planes", "units"]}
    width, out = x.inside.size.text, x.outside.size.text
    margin = f"round_up({x.padding}, WIDTH)"
    plan.add("let", f"{names['span']} = LANES * VECTORS * WIDTH", "columns that a team loads of a row")
    plan.add(
        "let",
        f"{names['cells']} = {margin} + {names['span']} + {math.ceil(x.reach / 4) * 4}",
        "of a line in shared memory",
    )
    reach, stride = x.reach, x.stride
    plan.add(
        "let", f"{names['most']} = (max({names['span']} - {margin} + {x.padding}, {reach}) - {reach}) / {stride} + 1"
    )
    plan.add(
        "let",
        f"{names['tile']} = {out} if {names['span']} >= {width} else {names['most']} / WIDTH * WIDTH",
        "results of a row that a team makes",
    )
    plan.add("need", f"{names['tile']} >= 1")
    plan.add(
        "let",
        f"{names['tiles']} = ceil_div({out}, {names['tile']}), {names['left']} = 0 if {names['span']} >= {width} else {margin}",
    )
    units = [names["tiles"]]
    more = [("int cells", names["cells"]), ("int tile", names["tile"]), ("unsigned tiles", names["tiles"])]
    more.append(("int left", names["left"]))
    if "Y" in kernel.axes:
        plan.add("let", f"{names['strips']} = ceil_div({kernel.axes['Y'].outside.size.text}, ROWS)")
        units.append(names["strips"])
        more.append(("unsigned strips", names["strips"]))
    if "Z" in kernel.axes:
        plan.add("let", f"{names['chunks']} = ceil_div({kernel.axes['Z'].outside.size.text}, DEPTH)")
        units.append(names["chunks"])
        more.append(("unsigned chunks", names["chunks"]))
    plan.add("let", f"{names['planes']} = {product_text(kernel.pool.planes)}")
    plan.add("let", f"{names['units']} = {' * '.join([*units, names['planes']])}", "strips in all, one for each team")
    plan.add("need", f"{names['units']} <= {MOST_32_BIT} and {width} <= {MOST_32_BIT}")
    plan.add("need", f"4 * TEAMS * {'2 * ' if 'Z' in kernel.axes else ''}ROWS * {names['cells']} <= 48 * 1024")
    more.append(("unsigned units", names["units"]))
    return more, f"ceil_div({names['units']}, TEAMS)"


def _tunes(kernel: PoolKernel) -> list[tuple[str, str, str]]:
    """The constants to sweep, the likeliest first at the task's own sizes."""
    x = kernel.axes["X"]
    vectors = -(-x.inside.size.own // kernel.width)
    lanes = max(1 << max(vectors - 1, 0).bit_length(), 8)
    if "Y" not in kernel.axes:
        return [
            ("tune", "LANES = 256 | 128 | 512" if vectors >= 256 else f"LANES = {lanes}", "threads of a team"),
            ("tune", "TEAMS = 1" if vectors >= 256 else f"TEAMS = {max(256 // lanes, 1)} | {max(128 // lanes, 1)}", ""),
            ("tune", "VECTORS = 2 | 1 | 4", "of a thread"),
            ("const", "ROWS = 1", ""),
        ]
    lanes = min(lanes, 512)
    if 0 < vectors <= 512 and vectors % 32 == 0:
        lanes = vectors
    teams = [max(one // lanes, 1) for one in ((256, 128, 512) if lanes < 256 else (lanes,))]
    y = kernel.axes["Y"]
    rows = _row_choices(y, "Z" in kernel.axes)
    found = [
        ("tune", f"LANES = {lanes}" + (f" | {lanes // 2}" if lanes >= 256 else ""), "threads of a team"),
        ("tune", f"TEAMS = {' | '.join(map(str, dict.fromkeys(teams)))}", "of a block"),
        ("const", "VECTORS = 1", "of a thread"),
        ("tune", f"ROWS = {' | '.join(map(str, rows))}", "of the result in a strip"),
    ]
    if "Z" in kernel.axes:
        found.append(("tune", "DEPTH = 16 | 32 | 8", "planes of the result that a team walks through"))
    return found


def _row_choices(y: Window, deep: bool) -> list[int]:
    """Strips tall enough to share rows between windows, short enough for registers."""
    if y.stride >= y.reach:
        return [1, 2] if y.kernel >= 4 else [2, 1, 4]
    if deep:
        return [2, 1, 4]
    most = max((16 - y.reach) // y.stride + 1, 1)
    return list(dict.fromkeys([most, max(most * 2 // 3, 1), max(most // 2, 1)]))


def _strips_body(kernel: PoolKernel) -> list[str]:
    program, axes = kernel.pool, kernel.axes
    out_x = kernel.variable(axes["X"].outside)
    lines = [
        "extern __shared__ float all_lines[];",
        "float* line = all_lines + threadIdx.y * LINES * cells;",
        "const unsigned unit = blockIdx.x * TEAMS + threadIdx.y;",
        "const int first_x = static_cast<int>(unit % tiles) * tile, from_x = first_x * STRIDE_X - left;",
        "auto rest_of_unit = unit / tiles;",
    ]
    if "Y" in axes:
        lines += [
            "const int first_y = static_cast<int>(rest_of_unit % strips) * ROWS;",
            "rest_of_unit /= strips;",
        ]
    if "Z" in axes:
        lines += ["const int first_z = static_cast<int>(rest_of_unit % chunks) * DEPTH;", "rest_of_unit /= chunks;"]
    lines += kernel.split(program.planes, "rest_of_unit")
    lines += [
        "// Cells beside what is loaded.",
        "for (int place = threadIdx.x; place < LINES * cells; place += LANES) {",
        "  const int cell = place % cells;",
        f"  if (cell < MARGIN || cell >= MARGIN + LANES * VECTORS * WIDTH) line[place] = {program.start};",
        "}",
        *_columns(kernel),
    ]
    each = [
        f"const int {out_x} = first_x + place % tile;",
        f"if (unit >= units || {out_x} >= {kernel.size(axes['X'].outside.size, 'int')}) continue;",
    ]
    if "Y" in axes:
        out_y = kernel.variable(axes["Y"].outside)
        each = [
            f"const int made_row = place / tile, {out_x} = first_x + place % tile;",
            f"const int {out_y} = first_y + made_row;",
            f"if (unit >= units || {out_x} >= {kernel.size(axes['X'].outside.size, 'int')} || "
            f"{out_y} >= {kernel.size(axes['Y'].outside.size, 'int')}) continue;",
        ]
    cell = f"{out_x} * STRIDE_X - PAD_X - from_x + MARGIN"
    row = "made_row * cells + " if "Y" in axes else ""
    base = "turned + " if "Z" in axes else "line + "
    each += [
        f"const float* cell = {base}{row}{cell};",
        "float made = cell[0];",
        "#pragma unroll",
        "for (int tap = 1; tap < KERNEL_X; ++tap) made = combined(made, cell[tap * DILATION_X]);",
        *kernel.result_lines("made"),
    ]
    writing = ["for (int place = threadIdx.x; place < ROWS * tile; place += LANES) {", *indented(each), "}"]
    if "Z" in axes:
        return [*lines, *_walk(kernel, writing)]
    put = _put("columns", "line")
    return [*lines, "float columns[VECTORS][ROWS][WIDTH];", "columns_of(columns);", *put, "__syncthreads();", *writing]


def _put(source: str, target: str) -> list[str]:
    """A strip's columns to shared memory."""
    return [
        "#pragma unroll",
        "for (int v = 0; v < VECTORS; ++v) {",
        "#pragma unroll",
        "  for (int r = 0; r < ROWS; ++r) {",
        f"    float* cells_here = {target} + r * cells + MARGIN + (v * LANES + threadIdx.x) * WIDTH;",
        "#pragma unroll",
        f"    for (int i = 0; i < WIDTH; ++i) cells_here[i] = {source}[v][r][i];",
        "  }",
        "}",
    ]


def _columns(kernel: PoolKernel) -> list[str]:
    """A function of the kernel: what the rows of the strip come to, column by column."""
    program, axes = kernel.pool, kernel.axes
    in_x = kernel.variable(axes["X"].inside)
    whole = (Mode.VECTOR, Mode.REVERSED)
    leaves = kernel.program.leaves_of((program.value,))
    reads = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Read) and kernel.modes[name] in whole}
    names = {name: kernel.namer.tensors[name] for name in reads}
    place = [f"const int {in_x} = from_x + (v * LANES + static_cast<int>(threadIdx.x)) * WIDTH;"]
    tests = ["unit < units", f"{in_x} >= 0", f"{in_x} < {kernel.size(axes['X'].inside.size, 'int')}"]
    if "Y" in axes:
        in_y = kernel.variable(axes["Y"].inside)
        place.append(f"const int {in_y} = first_y * STRIDE_Y - PAD_Y + j;")
        tests += [f"{in_y} >= 0", f"{in_y} < {kernel.size(axes['Y'].inside.size, 'int')}"]
    if "Z" in axes:
        in_z = kernel.variable(axes["Z"].inside)
        tests += [f"{in_z} >= 0", f"{in_z} < {kernel.size(axes['Z'].inside.size, 'int')}"]
    inside = f"const bool is_inside = {' && '.join(tests)};"
    used = ["if (!row_is_used(j)) continue;"] if "Y" in axes else []
    loops = [
        "#pragma unroll",
        "for (int v = 0; v < VECTORS; ++v) {",
        "#pragma unroll",
        "  for (int j = 0; j < LOADED; ++j) {",
    ]
    loads = [
        line
        for name, read in reads.items()
        for line in kernel.load_vector(read, kernel.modes[name], {}, f"{names[name]}_here[v][j]")
    ]

    def element(name: str, leaf: Leaf, known: Known) -> str:
        if name in reads:
            i = "WIDTH - 1 - i" if kernel.modes[name] is Mode.REVERSED else "i"
            return f"{names[name]}_here[v][j].at[{i}]"
        return kernel.load(leaf, known, "i")

    inner, texts = kernel.write((program.value,), {}, element)
    entered = [*inner, f"entered = {texts[program.value].text};"]
    parameters = "float (&columns)[VECTORS][ROWS][WIDTH]"
    if "Z" in axes:
        parameters = f"int {kernel.variable(axes['Z'].inside)}, {parameters}"
    body = [f"Vector<{read.dtype.cpp}> {names[name]}_here[VECTORS][LOADED];" for name, read in reads.items()]
    body += [*loops, *indented([*used, *place, inside, "if (is_inside) {", *indented(loads), "}"], 2), "  }", "}"]
    combined = [
        "const int tap = j - r * STRIDE_Y;",
        "if (tap < 0 || tap >= REACH_Y || tap % DILATION_Y != 0) continue;",
        "columns[v][r][i] = combined(columns[v][r][i], entered);",
    ]
    combining = ["#pragma unroll", "for (int r = 0; r < ROWS; ++r) {", *indented(combined), "}"]
    if "Y" not in axes:
        combining = ["columns[v][0][i] = entered;"]
    per_element = [f"float entered = {program.start};", "if (is_inside) {", *indented(entered), "}", *combining]
    clear = [
        "#pragma unroll",
        "for (int v = 0; v < VECTORS; ++v) {",
        "#pragma unroll",
        "  for (int r = 0; r < ROWS; ++r) {",
        "#pragma unroll",
        f"    for (int i = 0; i < WIDTH; ++i) columns[v][r][i] = {program.start};",
        "  }",
        "}",
    ]
    body += clear if "Y" in axes else []
    body += [*loops, *indented([*used, *place, inside, *each_element(per_element)], 2), "  }", "}"]
    return [f"const auto columns_of = [&]({parameters}) {{", *indented(body), "};"]


def _walk(kernel: PoolKernel, writing: list[str]) -> list[str]:
    """Through the planes of a chunk, with what later windows need kept in registers."""
    z = kernel.axes["Z"]
    out_z = kernel.variable(z.outside)
    copy = "for (int v = 0; v < VECTORS; ++v) for (int r = 0; r < ROWS; ++r) for (int i = 0; i < WIDTH; ++i)"
    over = [
        "#pragma unroll",
        "for (int v = 0; v < VECTORS; ++v) {",
        "#pragma unroll",
        "  for (int r = 0; r < ROWS; ++r) {",
        "#pragma unroll",
        "    for (int i = 0; i < WIDTH; ++i) {",
        "{0}",
        "    }",
        "  }",
        "}",
    ]
    del copy

    def nested(statement: list[str]) -> list[str]:
        made: list[str] = []
        for line in over:
            made += indented(statement, 3) if line == "{0}" else [line]
        return made

    step = [
        "#pragma unroll",
        "for (int q = KEPT; q < REACH_Z; ++q) {",
        f"  if (plane_is_used(q)) columns_of({out_z} * STRIDE_Z - PAD_Z + q, planes[q]);",
        "}",
        "float made_columns[VECTORS][ROWS][WIDTH];",
        *nested(
            [
                "float made = planes[0][v][r][i];",
                "#pragma unroll",
                "for (int tap = 1; tap < KERNEL_Z; ++tap) made = combined(made, planes[tap * DILATION_Z][v][r][i]);",
                "made_columns[v][r][i] = made;",
                "#pragma unroll",
                "for (int q = 0; q < KEPT; ++q) planes[q][v][r][i] = planes[q + STRIDE_Z][v][r][i];",
            ]
        ),
        "float* turned = line + turn * ROWS * cells;",
        *_put("made_columns", "turned"),
        "__syncthreads();",
        *writing,
        "turn ^= 1;",
    ]
    return [
        "float planes[REACH_Z][VECTORS][ROWS][WIDTH];  // what rows come to, for the planes that a window reaches over",
        "#pragma unroll",
        "for (int q = 0; q < KEPT; ++q) {",
        "  if (plane_is_used(q)) columns_of(first_z * STRIDE_Z - PAD_Z + q, planes[q]);",
        "}",
        "int turn = 0;",
        f"for (int {out_z} = first_z; {out_z} < min(first_z + DEPTH, {kernel.size(z.outside.size, 'int')}); ++{out_z}) {{",
        *indented(step),
        "}",
    ]

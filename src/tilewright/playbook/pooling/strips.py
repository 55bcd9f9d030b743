"""Pooling by strips: columns are combined first, in registers, and rows last, through shared memory."""

from __future__ import annotations

from tilewright.playbook.cpp_pieces import VECTOR
from tilewright.playbook.file_text import MOST_32_BIT, Fragment, PlanLines, fragment, includes
from tilewright.playbook.places.text import product_text, width_line
from tilewright.playbook.pooling.kernel import PoolKernel, PoolProgram, Window
from tilewright.playbook.pooling.strip_body import slides, strip_body
from tilewright.playbook.templates import sections

_COPIES = sections("bulk_copies")

_CUDA = sections("pooling/strips")

ROW_IS_USED = _CUDA["row_is_used"]
_FEW_HELD = 16  # elements in the registers of a thread, of which a multiprocessor can have all it takes
_NAMES = "span cells most tile tiles left strips chunks planes units"


def strips(program: PoolProgram, op_line: str) -> Fragment:
    """Columns first, in registers; then rows, through shared memory."""
    plan = PlanLines(program.placed.as_rows(), op_line)
    kernel = PoolKernel(program, plan)
    more, grid = _strips_plan(kernel, plan)
    body = strip_body(kernel)
    block = f"dim3(LANES, TEAMS), 4 * TEAMS * {_lines(kernel)} * {more[0][1]}"
    bounds = "LANES * TEAMS, RESIDENT / (LANES * TEAMS)"
    text = kernel.launched("strips", grid, block, bounds, body, more, once=kernel.writes_much)
    deep = (
        " It walks the planes in order: what a plane's rows come to is kept for every window that reaches it, so a "
        "plane is read once."
        if "Z" in kernel.axes
        else ""
    )
    slid = (
        " A thread slides along PER results, so that each cell is read about once, and results leave in order."
        if slides(kernel)
        else ""
    )
    header = (
        f"{program.placed.name}, every input element read once or little more: a team of LANES threads makes a strip "
        "of ROWS rows of the result.\n\nA thread owns whole 16-byte vectors of columns. It loads all rows that the "
        "strip needs before it computes anything, and combines them column by column in registers."
    )
    header += f"{deep} What the columns come to goes through shared memory, where the last combination, along the row, "
    header += f"finds its neighbours.{slid} Cells outside the input hold what changes nothing."
    pieces = [
        [*kernel.constants(), *_more_constants(kernel)],
        [VECTOR],
        *kernel.pieces(),
        [_CUDA["team"]],
        *([[_COPIES["storing"]]] if slides(kernel) and kernel.is_alone else []),
        *_used_pieces(kernel),
    ]
    return fragment(header, plan, includes(program.placed.as_rows()), *pieces, text)


def _lines(kernel: PoolKernel) -> str:
    """How many lines of shared memory a team has."""
    if "Z" in kernel.axes:
        return "(2 * ROWS)"  # two sets in turn, so that one barrier a plane is enough
    return "2" if slides(kernel) else "ROWS"


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
    lines.append(f"constexpr int LINES = {_lines(kernel)};  // of shared memory, for each team")
    if slides(kernel):
        lines.append("constexpr int GROUPS = LANES / DILATION_X;  // threads side by side in one phase of the dilation")
    else:
        most = "VECTORS * WIDTH > STRIDE_X ? VECTORS * WIDTH / STRIDE_X : 1"
        lines.append(f"constexpr int RESULTS = {most};  // of a row, for a thread")
    return lines


def _used_pieces(kernel: PoolKernel) -> list[list[str]]:
    """Which rows and planes any window looks at: strides and dilations leave gaps."""
    pieces = []
    if "Y" in kernel.axes:
        pieces.append([ROW_IS_USED])
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
    width_line(plan, kernel)
    if "Z" in kernel.axes and x.inside.size.literal is None:
        plan.add("const", f"IN_X = {x.inside.size.text}", "columns: a thread asks for many rows at a time")
        kernel.fixed[x.inside.size] = "IN_X"
    if slides(kernel) and kernel.is_alone:
        bulk = "device.cc >= 90 and WIDTH == 4 and TEAMS == 1 and LANES >= 64"
        plan.add("const", f"BULK = {bulk}", "whether results leave in one copy")
    if kernel.writes_much:
        kernel.read_once()
    names = {one: plan.name(one) for one in _NAMES.split()}
    width, out = x.inside.size.text, x.outside.size.text
    margin = f"round_up({x.padding}, WIDTH)"
    plan.add("let", f"{names['span']} = LANES * VECTORS * WIDTH", "columns that a team loads of a row")
    if not slides(kernel):
        plan.add("let", f"{names['cells']} = {margin} + {names['span']} + round_up({x.reach}, WIDTH)", "of a line")
    reach, stride = x.reach, x.stride
    plan.add(
        "let", f"{names['most']} = (max({names['span']} - {margin} + {x.padding}, {reach}) - {reach}) / {stride} + 1"
    )
    fits = f"{names['span']} + {x.padding} >= {margin} + {reach}"
    plan.add("need", f"{names['span']} >= {width} or {fits}", "a team loads all that a window reaches over")
    tile = f"{names['most']} / WIDTH * WIDTH"
    if slides(kernel):
        names["turn"] = plan.name("turn")
        plan.add("let", f"{names['turn']} = LANES / {x.dilation} * {x.dilation} * PER", "results of a team at a time")
        tile = f"max({names['most']} / {names['turn']}, 1) * {names['turn']}"
        tile = f"min({names['most']}, {tile}) / WIDTH * WIDTH"
    plan.add("let", f"{names['tile']} = {out} if {names['span']} >= {width} else {tile}", "results of a row for a team")
    if slides(kernel):
        most = f"max({names['span']}, {margin} + round_up(round_up({names['tile']}, {names['turn']}), WIDTH))"
        plan.add("let", f"{names['cells']} = {margin} + {most} + round_up({x.reach}, WIDTH)", "of a line")
    plan.add("need", f"{names['tile']} >= 1")
    plan.add(
        "let",
        f"{names['tiles']} = ceil_div({out}, {names['tile']}), "
        f"{names['left']} = 0 if {names['span']} >= {width} else {margin}",
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
    plan.add("need", f"4 * TEAMS * {_lines(kernel)} * {names['cells']} <= 48 * 1024")
    more.append(("unsigned units", names["units"]))
    return more, f"ceil_div({names['units']}, TEAMS)"


def _tunes(kernel: PoolKernel) -> list[tuple[str, str, str]]:
    """The constants to sweep, the likeliest first at the task's own sizes."""
    vectors = -(-kernel.axes["X"].inside.size.own // kernel.width)
    lanes = max(1 << max(vectors - 1, 0).bit_length(), 8)
    if "Y" not in kernel.axes:
        return _line_tunes(kernel, vectors, lanes)
    deep = "Z" in kernel.axes
    lanes = vectors if vectors <= 512 and vectors % 32 == 0 else min(max(lanes, 32 if deep else 8), 512)
    blocks = (512, 256, 128) if deep else (128, 256, 512) if lanes >= 128 else (256, 128, 512)
    teams = dict.fromkeys(max(one // lanes, 1) for one in blocks)
    rows = _row_choices(kernel.axes["Y"], deep, kernel.width)
    found = [
        ("tune", f"LANES = {lanes}" + (f" | {lanes // 2}" if lanes >= 256 else ""), "threads of a team"),
        ("tune", f"TEAMS = {' | '.join(map(str, teams))}", "of a block"),
        ("const", "VECTORS = 1", "of a thread"),
        ("tune", f"ROWS = {' | '.join(map(str, rows))}", "of the result in a strip"),
    ]
    if deep:
        found.append(("tune", "DEPTH = 64 | 32 | 16", "planes of the result that a team walks through"))
    y = kernel.axes["Y"]
    held = ((rows[0] - 1) * y.stride + y.reach) * kernel.width  # elements of a thread while it loads
    residents = "2048 | 1024 | 1536" if held <= _FEW_HELD and not deep else "1024 | 768 | 512"
    if deep and y.stride < y.reach:
        residents = "512 | 1024 | 768"  # two rows of every plane under way take registers, and pay for them
    return [*found, ("tune", f"RESIDENT = {residents}", "threads of a multiprocessor that registers must do for")]


def _line_tunes(kernel: PoolKernel, vectors: int, lanes: int) -> list[tuple[str, str, str]]:
    dilation = kernel.axes["X"].dilation
    fitting = [one for one in (128, 192, 96, 256, 320, 384, 512) if one % dilation == 0] or [128, 256, 512]
    long = vectors >= 256
    teams = (1,) if long else (max(256 // lanes, 1), max(128 // lanes, 1))
    found = [
        ("tune", f"LANES = {' | '.join(map(str, fitting[:3])) if long else lanes}", "threads of a team"),
        ("tune", f"TEAMS = {' | '.join(map(str, dict.fromkeys(teams)))}", "of a block"),
        ("tune", "VECTORS = 2 | 3 | 4" if long else "VECTORS = 1 | 2", "of a thread"),
        ("const", "ROWS = 1", ""),
        ("tune", "RESIDENT = 2048 | 1024 | 1536", "threads of a multiprocessor that registers must do for"),
    ]
    return [*found, ("tune", "PER = 7 | 11 | 5", "results that a thread slides along")] if slides(kernel) else found


def _row_choices(y: Window, deep: bool, width: int) -> list[int]:
    """Strips tall enough to share rows between windows, short enough for registers."""
    if y.stride >= y.reach:
        return [1, 2] if y.kernel >= 4 else [2, 1, 4]
    if deep:
        return [2, 1]
    most = max((64 // width - y.reach) // y.stride + 1, 1)  # 64 elements of a thread in registers
    return list(dict.fromkeys([max(most // 2, 1), max(most * 10 // 13, 1), max(most // 3, 1)]))

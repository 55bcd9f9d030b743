"""Pooling where windows lie beside each other: a thread loads its windows whole, and needs no neighbour."""

from __future__ import annotations

import math
import re

from tilewright.playbook.cpp_pieces import VECTOR
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, Fragment, PlanLines, fragment, includes
from tilewright.playbook.places.text import Held, product_text, width_line
from tilewright.playbook.places.vectors import each_element
from tilewright.playbook.pooling.kernel import PoolKernel
from tilewright.playbook.pooling.program import PoolProgram

_MOST_TAPS = 64  # that a thread can hold in registers
_IN_FLIGHT = 16  # elements that a thread asks for before it uses one
_RESULTS = """\
// Results that lie side by side.
template <typename T>
struct alignas(OWN * sizeof(T)) Results {
  T at[OWN];
};
"""


def lies_apart(program: PoolProgram) -> bool:
    """Whether every element is in one window at most, no window leaves the input, and a thread can hold one."""
    each = program.windows
    inside = program.is_inside and all(one.padding == 0 and one.dilation == 1 for one in each)
    return inside and len(each) > 1 and all(one.stride >= one.kernel for one in each) and taps(program) <= _MOST_TAPS


def taps(program: PoolProgram) -> int:
    return math.prod(one.kernel for one in program.windows)


def apart(program: PoolProgram, op_line: str) -> Fragment:
    """One thread for ROWS windows, one below the other; times OWN side by side, where a 16-byte load has several."""
    plan = PlanLines(program.placed.as_rows(), op_line)
    own = _side_by_side(program)
    width = own * program.windows[-1].kernel if own > 1 else _width(program)
    kernel = PoolKernel(program, plan, vector=True, quick=True, width=width)
    more, grid = _plan(kernel, plan, own)
    body = _body(kernel, own)
    text = kernel.launched("apart", grid, "THREADS", "THREADS, RESIDENT / THREADS", body, more)
    made = "ROWS times OWN results, side by side and" if own > 1 else "ROWS results,"
    header = (
        f"{program.placed.name}, every input element read once: windows do not overlap, so a thread makes {made} "
        "one below the other, and needs nothing of its neighbours.\n\nIt loads its windows whole before it "
        "uses any of them: without shared memory and barriers. What neighbours load of a row lies side by side."
    )
    vectors = (
        "KERNEL_X * OWN / WIDTH;  // of a row of its windows" if own > 1 else "KERNEL_X / WIDTH;  // of a window's row"
    )
    constants = [*kernel.constants(), f"constexpr int VECTORS = {vectors}"]
    pieces = [constants, [VECTOR], *([_RESULTS] for _ in range(own > 1)), *kernel.pieces()]
    return fragment(header, plan, includes(program.placed.as_rows()), *pieces, text)


def _side_by_side(program: PoolProgram) -> int:
    """How many windows a 16-byte load reaches over, where they follow each other and results lie as they do."""
    x, outputs = program.windows[-1], program.placed.outputs
    dtypes = [*(one.dtype for one in program.placed.reads.values()), *(one.dtype for one in outputs)]
    width = 16 // max(one.itemsize for one in dtypes)
    if x.stride != x.kernel or width % x.kernel or x.inside.size.own % width:
        return 1
    for one in outputs:
        along = one.place.factor(x.outside)
        rest = [factor for atom, factor in one.place.terms if atom != x.outside]
        in_rows = all(x.outside.size.divides(factor) for factor in rest) and one.place.constant.is_always(0)
        if along is None or not along.is_always(1) or not one.place.is_linear_in(x.outside) or not in_rows:
            return 1
    return width // x.kernel


def _width(program: PoolProgram) -> int:
    """The widest load that divides a row of a window, and the rows of the input at the task's own sizes."""
    x = program.windows[-1]
    return next(one for one in (4, 2, 1) if all(size % one == 0 for size in (x.kernel, x.stride, x.inside.size.own)))


def _plan(kernel: PoolKernel, plan: PlanLines, own: int) -> tuple[list[tuple[str, str]], str]:
    several = max(_IN_FLIGHT // (taps(kernel.pool) * own), 1)
    residents = "2048 | 1024 | 1536" if taps(kernel.pool) <= _IN_FLIGHT else "1024 | 768 | 1536"
    plan.add("tune", f"THREADS = {_listed(_blocks(kernel.pool, several, own))}", "of a block")
    plan.add("tune", f"ROWS = {_listed((several, 2 * several, 1))}", "results of a thread")
    plan.add("tune", f"RESIDENT = {residents}", "threads of a multiprocessor that registers must do for")
    if kernel.width > 1:
        width_line(plan, kernel)
    else:
        plan.add("const", "WIDTH = 1", "elements of a load")
    if own > 1:
        plan.add("const", f"OWN = {own} if WIDTH == {kernel.width} else 1", "windows of a thread, side by side")
    strips, threads, tiles, planes = (plan.name(one) for one in ("strips", "threads", "tiles", "planes"))
    x, y = (kernel.axes[one].outside.size for one in "XY")
    deep = [kernel.axes["Z"].outside.size.factor] if "Z" in kernel.axes else []
    plan.add("let", f"{strips} = ceil_div({y.text}, ROWS)", "of ROWS results, one below the other")
    across = plan.name("across") if own > 1 else x.factor
    if own > 1:
        plan.add("let", f"{across} = {x.factor} / OWN")
    plan.add("let", f"{threads} = {' * '.join([across, strips, *deep])}", "of a plane")
    plan.add("let", f"{tiles} = ceil_div({threads}, THREADS), {planes} = {product_text(kernel.pool.planes)}")
    plan.add("need", f"{tiles} * {planes} <= {MOST_32_BIT} and {threads} <= {MOST_32_BIT}")
    more = [("unsigned strips", strips), ("unsigned threads", threads), ("unsigned tiles", tiles)]
    more += [("unsigned across", across)] if own > 1 else []
    return more, f"{tiles} * {planes}"


def _blocks(program: PoolProgram, rows: int, own: int) -> tuple[int, ...]:
    """Sizes of blocks: the one of which a plane leaves the fewest threads without work first."""
    x, y, *z = (one.outside.size.own for one in reversed(program.windows))
    plane = x // own * -(-y // rows) * math.prod(z)
    best = min(range(256, 64, -32), key=lambda one: -(-plane // one) * one)
    return best, 256, 128, 512


def _listed(choices: tuple[int, ...]) -> str:
    return " | ".join(str(one) for one in dict.fromkeys(choices))


def _body(kernel: PoolKernel, own: int) -> list[str]:
    axes = kernel.axes
    out_x, out_y = (kernel.variable(axes[one].outside) for one in "XY")
    width = "across" if own > 1 else kernel.size(axes["X"].outside.size, "int")
    first = "const int first_x = static_cast<int>(place % across) * OWN;"
    lines = [
        "const unsigned place = blockIdx.x % tiles * THREADS + threadIdx.x;  // in the plane",
        "if (place >= threads) return;",
        first if own > 1 else f"const int {out_x} = static_cast<int>(place % {width});",
    ]
    if "Z" in axes:
        lines += [
            f"const int first_y = static_cast<int>(place / {width} % strips) * ROWS;",
            f"const int {kernel.variable(axes['Z'].outside)} = static_cast<int>(place / {width} / strips);",
        ]
    else:
        lines.append(f"const int first_y = static_cast<int>(place / {width}) * ROWS;")
    lines += kernel.split(kernel.pool.planes, "(blockIdx.x / tiles)")
    held = kernel.held((kernel.pool.value,), "[r][z][y][v]" if "Z" in axes else "[r][y][v]")
    counts = "[ROWS][KERNEL_Z][KERNEL_Y][VECTORS]" if "Z" in axes else "[ROWS][KERNEL_Y][VECTORS]"
    row = [
        f"const int {out_y} = first_y + r;",
        f"if ({out_y} >= {kernel.size(axes['Y'].outside.size, 'int')}) continue;",
    ]
    loading = _each_row([*row, *_over_window(kernel, held.loads(), own)]) if held.reads else []
    making = _each_row([*row, *_made(kernel, held, own)])
    return [*lines, *kernel.plane_lines(), *held.declared(f"here{counts}"), *loading, *making]


def _made(kernel: PoolKernel, held: Held, own: int) -> list[str]:
    inner, texts = kernel.write((kernel.pool.value,), {}, held.element)
    value, start = texts[kernel.pool.value].text, kernel.pool.start
    if own == 1:
        combining = each_element([*inner, f"made = combined(made, {value});"])
        return [f"float made = {start};", *_over_window(kernel, combining, own), *kernel.result_lines("made")]
    window = "made[i * OWN / WIDTH]"
    combining = each_element([*inner, f"{window} = combined({window}, {value});"])
    begun = ["#pragma unroll", f"for (int o = 0; o < OWN; ++o) made[o] = {start};"]
    return ["float made[OWN];", *begun, *_over_window(kernel, combining, own), *_results(kernel)]


def _results(kernel: PoolKernel) -> list[str]:
    """Statements that make the results of windows side by side, and store them together."""
    outputs, x = kernel.program.outputs, kernel.axes["X"].outside
    made = {one.name: kernel.namer.fresh(f"{one.name}_made") for one in outputs}
    inner = kernel.lines_of_each("made[o]", {name: f"{text}.at[o]" for name, text in made.items()})
    if re.search(rf"\b{kernel.variable(x)}\b", " ".join(inner)):
        inner = [f"const int {kernel.variable(x)} = first_x + o;", *inner]
    lines = [f"Results<{one.dtype.cpp}> {made[one.name]};" for one in outputs]
    lines += ["#pragma unroll", "for (int o = 0; o < OWN; ++o) {", *indented(inner), "}"]
    for one in outputs:
        place = " + ".join(kernel.at(one.name, one.place, {}))
        place = re.sub(rf"\b{kernel.variable(x)}\b", "first_x", place)
        lines.append(f"*reinterpret_cast<Results<{one.dtype.cpp}>*>({place}) = {made[one.name]};")
    return lines


def _each_row(lines: list[str]) -> list[str]:
    return ["#pragma unroll", "for (int r = 0; r < ROWS; ++r) {", *indented(lines), "}"]


def _over_window(kernel: PoolKernel, lines: list[str], own: int) -> list[str]:
    """For every vector of a window; places that nothing asks for are not named."""
    axes = kernel.axes
    for axis, name, count in (("X", "v", "VECTORS"), ("Y", "y", "KERNEL_Y"), ("Z", "z", "KERNEL_Z"))[: len(axes)]:
        inside, outside = kernel.variable(axes[axis].inside), kernel.variable(axes[axis].outside)
        outside = "first_x" if own > 1 and axis == "X" else outside
        if re.search(rf"\b{inside}\b", " ".join(lines)):
            step = "v * WIDTH" if axis == "X" else name
            lines = [f"const int {inside} = {outside} * STRIDE_{axis} + {step};", *lines]
        lines = ["#pragma unroll", f"for (int {name} = 0; {name} < {count}; ++{name}) {{", *indented(lines), "}"]
    return lines

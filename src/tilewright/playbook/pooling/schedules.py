"""Pooling: windows without overlap, planes by bulk copies, and which schedules a pooling has."""

from __future__ import annotations

import math
import re
from functools import partial

from tilewright.playbook.catalogue import Schedule
from tilewright.playbook.cpp_pieces import VECTOR
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.families import Family, Schedules, Structure, TracedTask
from tilewright.playbook.file_text import MOST_32_BIT, Fragment, PlanLines, file_of, fragment, includes
from tilewright.playbook.places.reader import Read
from tilewright.playbook.places.text import Held, product_text, width_line
from tilewright.playbook.places.vectors import each_element
from tilewright.playbook.pooling.kernel import POOLS, PoolKernel, PoolProgram, Window, pool_program
from tilewright.playbook.pooling.strips import ROW_IS_USED, strips
from tilewright.playbook.row_program import Load
from tilewright.playbook.templates import sections
from tilewright.records import DType

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
    kernel = PoolKernel(program, plan, width=width)
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


# Pooling of planes on Hopper and later: strips come and go by bulk copies, and threads work in shared memory alone.


_COPIES = sections("bulk_copies")

_NARROWEST, _WIDEST = 64, 2048  # columns: enough threads, and several rows in shared memory
_FEW_ROWS = 4  # of the result in a strip, below which rows are read too often
_RESIDENT = 768  # threads of a multiprocessor: each goes down two columns
_STRIP_FLOATS = 69  # in shared memory for each of them: a little less than there is room for


def can_copy(program: PoolProgram) -> bool:
    """Whether windows of planes overlap, and both tensors are f32 and lie as they are copied."""
    kernel = PoolKernel(program, PlanLines(program.placed.as_rows(), ""))
    if set(kernel.axes) != {"X", "Y"} or not kernel.is_alone:
        return False
    x, y = kernel.axes["X"], kernel.axes["Y"]
    read, output = _read(kernel), kernel.program.outputs[0].place
    if read is None or read.place.factor(y.inside) != x.inside.size or output.factor(y.outside) != x.outside.size:
        return False
    if not all(x.inside.size.divides(factor) for atom, factor in read.place.terms if atom != x.inside):
        return False  # planes begin where no 16 bytes do
    wide = _NARROWEST <= x.inside.size.own <= _WIDEST and x.inside.size.own % 4 == 0
    return wide and x.stride == 1 and y.stride < y.reach and _rows(x, y) >= _FEW_ROWS


def _read(kernel: PoolKernel) -> Read | None:
    """The read that an element entering a window is, where it is no more than that."""
    value = kernel.program.values[kernel.pool.value]
    leaf = kernel.program.leaves[value.input] if isinstance(value, Load) else None
    if not isinstance(leaf, Read) or leaf.conditions or leaf.dtype is not DType.F32 or leaf.place.lookups:
        return None
    along = leaf.place.factor(kernel.axes["X"].inside)
    return leaf if along is not None and along.is_always(1) and leaf.place.constant.is_always(0) else None


def _threads(x: Window) -> int:
    """One for two columns."""
    return max(min(-(-x.outside.size.own // 64) * 32, 512), 64)


def _rows(x: Window, y: Window) -> int:
    """As many of the result as shared memory has room for when threads fill a multiprocessor."""
    room = _STRIP_FLOATS * _threads(x) - (y.reach - y.stride) * x.inside.size.own
    return min(room // (y.stride * x.inside.size.own + x.outside.size.own), 16)


def bulk(program: PoolProgram, op_line: str) -> Fragment:
    """Strips copied to shared memory, combined there, and results copied back."""
    plan = PlanLines(program.placed.as_rows(), op_line)
    kernel = PoolKernel(program, plan)
    strips, grid, room = _bulk_plan(kernel, plan)
    body = _bulk_body(kernel)
    bounds = "THREADS, RESIDENT / THREADS"
    text = kernel.launched("bulk", grid, f"THREADS, {room}", bounds, body, [("unsigned strips", strips)])
    header = (
        f"{program.placed.name}, every input element read once or little more: a block makes a strip of ROWS rows of "
        "the result.\n\nThe rows of the input that it needs lie together, and come to shared memory by copies of many "
        "kilobytes that take no registers; so do the results leave. A thread goes down two columns: it combines along "
        "each row there, from one set of loads, and keeps what the last rows came to in registers."
    )
    lines = [
        *kernel.constants(),
        "constexpr int REACH_X = (KERNEL_X - 1) * DILATION_X + 1;",
        "constexpr int ODD = PAD_X % 2, PAIRS = (ODD + REACH_X + 2) / 2;  // two columns' cells, from an even one on",
        "constexpr int REACH_Y = (KERNEL_Y - 1) * DILATION_Y + 1, LOADED = (ROWS - 1) * STRIDE_Y + REACH_Y;",
        "constexpr int PARTS = 2, TOGETHER = (LOADED + PARTS - 1) / PARTS;  // copies of a strip, and rows of one",
    ]
    pieces = [lines, *kernel.pieces(), [ROW_IS_USED], [_COPIES["copying"]], [_COPIES["storing"]]]
    return fragment(header, plan, includes(program.placed.as_rows()), *pieces, text)


def _bulk_plan(kernel: PoolKernel, plan: PlanLines) -> tuple[str, str, str]:
    """The plan's lines; names for the strips of a plane, for the blocks, and for the shared memory of one."""
    x, y = kernel.axes["X"], kernel.axes["Y"]
    threads, rows = _threads(x), _rows(x, y)
    plan.add("need", "device.cc >= 90", "bulk copies")
    plan.add("tune", f"THREADS = {threads}" + (f" | {threads // 2}" if threads >= 256 else ""), "of a block")
    plan.add("tune", f"ROWS = {rows} | {max(rows * 2 // 3, 1)}", "of the result in a strip")
    plan.add("tune", f"RESIDENT = {_RESIDENT} | 1024", "threads of a multiprocessor that registers must do for")
    plan.add("const", f"IN_X = {x.inside.size.text}, OUT_X = {x.outside.size.text}", "columns")
    plan.add("need", "IN_X % 4 == 0", "whole 16 bytes are copied")
    kernel.fixed = {x.inside.size: "IN_X", x.outside.size: "OUT_X"}
    strips, planes, room = (plan.name(one) for one in ("strips", "planes", "room"))
    kernel.read_once()
    loaded = f"((ROWS - 1) * {y.stride} + {y.reach})"
    plan.add("let", f"{strips} = ceil_div({y.outside.size.text}, ROWS), {planes} = {product_text(kernel.pool.planes)}")
    plan.add("let", f"{room} = 4 * ({loaded} * IN_X + ROWS * OUT_X + 4)", "bytes of shared memory")
    plan.add("need", f"{room} + 1024 <= device.smem_block and {strips} * {planes} <= {MOST_32_BIT}")
    return strips, f"{strips} * {planes}", room


def _bulk_body(kernel: PoolKernel) -> list[str]:
    x, y = kernel.axes["X"], kernel.axes["Y"]
    read = _read(kernel)
    assert read is not None
    in_x, in_y, out_x, out_y = (kernel.variable(one) for one in (x.inside, y.inside, x.outside, y.outside))
    height = kernel.size(y.inside.size, "int")
    source = " + ".join(kernel.at(read.tensor, read.place, {}))
    target = re.sub(rf"\b{out_x}\b", "0", re.sub(rf"\b{out_y}\b", "first_y", kernel.result_address()))
    sending = [
        "const int first = from_y + part * TOGETHER, end = min(first + TOGETHER, from_y + LOADED);",
        f"const int {in_y} = max(first, 0), {in_x} = 0;",
        f"const int bytes = max(min(end, {height}) - {in_y}, 0) * IN_X * 4;",
        "barrier_arrive_expecting(barriers + 8 * part, bytes);",
        f"if (bytes > 0) copy_rows(cells + ({in_y} - from_y) * IN_X, {source}, bytes, barriers + 8 * part);",
    ]
    each = "for (int part = 0; part < PARTS; ++part) {"
    lines = [
        "extern __shared__ __align__(128) float cells[];  // rows of the input, then results",
        "__shared__ unsigned long long barriers_of_parts[PARTS];",
        "const auto barriers = static_cast<unsigned>(__cvta_generic_to_shared(barriers_of_parts));",
        "const int first_y = static_cast<int>(blockIdx.x % strips) * ROWS, from_y = first_y * STRIDE_Y - PAD_Y;",
        *kernel.split(kernel.pool.planes, "(blockIdx.x / strips)"),
    ]
    sent = [
        "if (threadIdx.x == 0) {",
        "  for (int part = 0; part < PARTS; ++part) barrier_init(barriers + 8 * part);",
        '  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");',
        f"  {each}",
        *indented(sending, 2),
        "  }",
        "}",
        "__syncthreads();",
        f"float* target = {target};",
        "float* results = cells + LOADED * IN_X + into_vector(target);",
    ]
    count = f"min(ROWS, {kernel.size(y.outside.size, 'int')} - first_y) * OUT_X"
    stored = [f"store_together(target, results, {count});"]
    return [*lines, *kernel.plane_lines(), *sent, *_down(kernel, out_x, in_y, height), *stored]


def _down(kernel: PoolKernel, out_x: str, in_y: str, height: str) -> list[str]:
    """A thread's way down its columns, two at a time."""
    out_height = kernel.size(kernel.axes["Y"].outside.size, "int")
    along = [
        "float entered[2 * PAIRS];",
        "#pragma unroll",
        "for (int pair = 0; pair < PAIRS; ++pair) {",
        "  const int column = left - PAD_X - ODD + 2 * pair;",
        f"  float2 cells_here = make_float2({kernel.pool.start}, {kernel.pool.start});",
        "  if (column >= 0 && column < IN_X) {",
        "    cells_here = *reinterpret_cast<const float2*>(cells + j * IN_X + column);",
        "  }",
        "  entered[2 * pair] = cells_here.x;",
        "  entered[2 * pair + 1] = cells_here.y;",
        "}",
        "#pragma unroll",
        "for (int tap = 0; tap < KERNEL_X; ++tap) {  // those that both windows have first: they are combined once",
        "  const float one = entered[ODD + (tap + 1) % KERNEL_X * DILATION_X];",
        "  const float two = entered[ODD + 1 + tap * DILATION_X];",
        "  along[j][0] = tap ? combined(along[j][0], one) : one;",
        "  along[j][1] = tap ? combined(along[j][1], two) : two;",
        "}",
    ]
    made = [
        f"const int {out_x} = left + i;",
        f"if ({out_x} >= OUT_X) continue;",
        "float made = along[top][i];",
        "#pragma unroll",
        "for (int tap = 1; tap < KERNEL_Y; ++tap) made = combined(made, along[top + tap * DILATION_Y][i]);",
        *kernel.made_lines("made", f"results[top / STRIDE_Y * OUT_X + {out_x}]"),
    ]
    row = [
        "if (j % TOGETHER == 0) barrier_wait(barriers + 8 * (j / TOGETHER));",
        f"along[j][0] = along[j][1] = {kernel.pool.start};",
        f"const int {in_y} = from_y + j, top = j - (REACH_Y - 1);",
        f"if (row_is_used(j) && {in_y} >= 0 && {in_y} < {height}) {{",
        *indented(along),
        "}",
        f"if (top >= 0 && top % STRIDE_Y == 0 && first_y + top / STRIDE_Y < {out_height}) {{",
        "#pragma unroll",
        "  for (int i = 0; i < 2; ++i) {",
        *indented(made, 2),
        "  }",
        "}",
    ]
    return [
        "#pragma unroll 1",
        "for (int left = 2 * threadIdx.x; left < OUT_X; left += 2 * THREADS) {",
        "  float along[LOADED][2];  // what the windows' parts of each row come to; few of them live at a time",
        "#pragma unroll",
        "  for (int j = 0; j < LOADED; ++j) {",
        *indented(row, 2),
        "  }",
        "}",
    ]


# -- pooling: maxima and means of windows, in one to three dimensions, with pointwise work before and after --


_HOPPER = 90  # compute capability from which there are bulk copies


def pool_schedules(program: PoolProgram) -> tuple[Schedule, ...]:
    """The most promising first."""
    rows = program.placed.as_rows()
    summary = "strips of the result: columns combined in registers, then rows through shared memory"
    found = [Schedule(rows, "pool-strips", summary, partial(strips, program))]
    if lies_apart(program):
        summary = "windows that do not overlap: a thread loads whole windows, and needs no neighbour"
        found.insert(0, Schedule(rows, "pool-apart", summary, partial(apart, program)))
    return tuple(found)


def _matches(traced: TracedTask) -> Schedules | None:
    if not traced.targets & POOLS:
        return None
    program = pool_program(traced)
    schedules = pool_schedules(program)
    if traced.task.profile.cc >= _HOPPER and can_copy(program):
        summary = "strips of planes copied to shared memory and results back, a thread goes down a column"
        schedules = (Schedule(program.placed.as_rows(), "pool-bulk", summary, partial(bulk, program)), *schedules)
    return Schedules(tuple(Structure(one.id, one.summary, partial(file_of, one.fragment)) for one in schedules))


POOLING_FAMILY = Family("pooling", POOLS, _matches)

"""Pooling of planes on Hopper and later: strips come and go by bulk copies, and threads work in shared memory alone."""

from __future__ import annotations

import re

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, Fragment, PlanLines, fragment, includes
from tilewright.playbook.places.reader import Read
from tilewright.playbook.places.text import product_text
from tilewright.playbook.pooling.kernel import PoolKernel
from tilewright.playbook.pooling.program import PoolProgram, Window
from tilewright.playbook.pooling.strips import ROW_IS_USED
from tilewright.playbook.row_program import Load
from tilewright.playbook.templates import sections
from tilewright.records import DType

_COPIES = sections("bulk_copies")

_NARROWEST, _WIDEST = 64, 2048  # columns: enough threads, and several rows in shared memory
_FEW_ROWS = 4  # of the result in a strip, below which rows are read too often
_RESIDENT = 768  # threads of a multiprocessor: each goes down two columns
_STRIP_FLOATS = 69  # in shared memory for each of them: a little less than there is room for


def can_copy(program: PoolProgram) -> bool:
    """Whether windows of planes overlap, and both tensors are f32 and lie as they are copied."""
    kernel = PoolKernel(program, PlanLines(program.placed.as_rows(), ""), vector=True, quick=False)
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


def bulk(program: PoolProgram, op_line: str, quick: bool = True) -> Fragment:
    """Strips copied to shared memory, combined there, and results copied back."""
    plan = PlanLines(program.placed.as_rows(), op_line)
    kernel = PoolKernel(program, plan, vector=True, quick=quick)
    strips, grid, room = _plan(kernel, plan)
    body = _body(kernel)
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


def _plan(kernel: PoolKernel, plan: PlanLines) -> tuple[str, str, str]:
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


def _body(kernel: PoolKernel) -> list[str]:
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

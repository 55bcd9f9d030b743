"""Depthwise convolutions of planes on Hopper and later: strips come and go by bulk copies, sums are made in registers
of what lies in shared memory.

What `direct` asks for in small loads, and over and over where windows overlap, is here asked for once, by copies that
take no registers: bytes are always under way.
"""

from __future__ import annotations

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, Fragment
from tilewright.playbook.gemms.convolution_plan_text import ConvolutionText
from tilewright.playbook.gemms.convolution_program import Convolution, Window
from tilewright.playbook.gemms.plan_text import Choices
from tilewright.playbook.gemms.tiles import PACK
from tilewright.playbook.templates import sections
from tilewright.records import DType

_COPIES = sections("bulk_copies")

_MOST_TAPS = 32  # weights in the registers of a thread, beside its sums
_NARROWEST, _WIDEST = 128, 2048  # columns of x: enough threads, and several rows in shared memory
_COLUMNS = 2  # of a thread: neighbouring threads then read all of shared memory's banks
_STRIP_FLOATS = 68  # in shared memory for each thread: with 768 threads, a little less than there is room for
_MOST_ROWS = 16  # of the result in a strip
_FEW_ROWS = 4  # below which rows are read too often


def can_write(convolution: Convolution) -> bool:
    """Whether planes are filtered one by one in f32, and windows overlap on rows of whole 16 bytes."""
    if len(convolution.windows) != 2 or convolution.transposed or convolution.across is not None:
        return False
    y, x = convolution.windows
    alone = convolution.is_depthwise and convolution.filters.size == 1
    floats = convolution.element is DType.F32 and convolution.output.dtype is DType.F32
    wide = _NARROWEST <= x.length.size <= _WIDEST and x.length.size % 4 == 0
    overlap = x.stride < _reach(x) and y.stride < _reach(y)  # where they do not, `direct` loads nothing twice
    return alone and floats and wide and overlap and convolution.taps <= _MOST_TAPS and _rows(y, x) >= _FEW_ROWS


def _reach(window: Window) -> int:
    return (window.taps - 1) * window.dilation + 1


def _threads(x: Window) -> int:
    return max(min(-(-x.results.size // (32 * _COLUMNS)) * 32, 512), 64)


def _rows(y: Window, x: Window) -> int:
    """As many of the result as shared memory has room for."""
    room = _STRIP_FLOATS * _threads(x) - (_reach(y) - y.stride) * x.length.size
    return min(room // (y.stride * x.length.size + x.results.size), _MOST_ROWS)


def strip_convolution(convolution: Convolution, op_line: str, choices: Choices = Choices.ALL) -> Fragment:
    """ROWS rows of a plane of the result for a block; a thread has COLUMNS columns of them."""
    text = ConvolutionText(convolution, op_line, choices)
    _plan(text)
    parameters = [*text.parameters("in_y", "out_y"), ("unsigned strips", "@strips")]
    grid, bounds = f"@strips * @images * {convolution.groups}", "THREADS, RESIDENT / THREADS"
    kernel = text.launched(f"{text.name}_strips", grid, "THREADS, @room", parameters, bounds, _body(text))
    pieces = [_constants(text), [PACK], [_COPIES["copying"]], [_COPIES["storing"]], text.epilogue.function, kernel]
    return text.fragment(_header(text), *pieces)


def _header(text: ConvolutionText) -> str:
    return (
        f"{text.name}, every sum in f32: a block makes a strip of a plane of the result.\n\nThe rows of x that it "
        "needs lie together, and come to shared memory by copies of many kilobytes that take no registers; so do the "
        "results leave. A thread goes down COLUMNS columns, the filter and the sums of rows that are not finished in "
        "registers, and adds every row of x to all results that look at it."
    )


# -- the plan --


def _plan(text: ConvolutionText) -> None:
    plan, sizes = text.plan, text.sizes
    y, x = text.axes["y"], text.axes["x"]
    text.places_fit()
    plan.add("need", "device.cc >= 90", "bulk copies")
    if not text.convolution.filters.is_one:
        plan.add("need", f"{sizes['filters']} == 1", "a plane of the result for every plane of x")
    rows, threads = _rows(y, x), _threads(x)
    text.tune("ROWS", tuple(dict.fromkeys((rows, max(rows - 2, 1), max(rows * 2 // 3, 1)))), "of the result in a strip")
    text.tune("RESIDENT", (768, 1024), "threads of a multiprocessor that registers must do for")
    plan.add("const", f"THREADS = {threads}, COLUMNS = {_COLUMNS}", "of a block, and of a thread")
    plan.add("const", f"IN_X = {sizes['in_x']}, OUT_X = {sizes['out_x']}", "columns")
    plan.add("need", "IN_X % 4 == 0", "whole 16 bytes are copied")
    plan.add("const", "Y_WIDTH = 2 if OUT_X % 2 == 0 else 1", "elements of a store")
    plan.read_once(f"{sizes['images']} * {text.convolution.groups} * {text.plane_in}")
    plan.add("let", "@strips = ceil_div(@out_y, ROWS)")
    loaded = f"((ROWS - 1) * {y.stride} + {_reach(y)})"
    plan.add("let", f"@room = 4 * ({loaded} * IN_X + ROWS * OUT_X + 4)", "bytes of shared memory")
    plan.add("need", "@room + 1024 <= device.smem_block")
    plan.add("need", f"@strips * @images * {text.convolution.groups} <= {MOST_32_BIT}")


def _constants(text: ConvolutionText) -> list[str]:
    return [
        *text.window_constants(),
        "constexpr int TAPS = KERNEL_Y * KERNEL_X, REACH_Y = (KERNEL_Y - 1) * DILATION_Y + 1;",
        "constexpr int LOADED = (ROWS - 1) * STRIDE_Y + REACH_Y;  // rows of x in a strip",
        "constexpr int PARTS = 2, TOGETHER = (LOADED + PARTS - 1) / PARTS;  // copies of a strip, and rows of one",
        "// Rows are loaded in vectors of two, from the last even place before the first tap.",
        "constexpr int FIRST_X = -(PAD_X + PAD_X % 2), END_X = (COLUMNS - 1) * STRIDE_X - PAD_X + "
        "(KERNEL_X - 1) * DILATION_X + 1;",
        "constexpr int VECTORS = (END_X - FIRST_X + 1) / 2;",
    ]


# -- the kernel --


def _body(text: ConvolutionText) -> list[str]:
    groups = text.convolution.groups
    return [
        "extern __shared__ __align__(128) float cells[];  // rows of x, then results",
        "__shared__ unsigned long long barriers_of_parts[PARTS];",
        "const auto barriers = static_cast<unsigned>(__cvta_generic_to_shared(barriers_of_parts));",
        "const int first_y = static_cast<int>(blockIdx.x % strips) * ROWS, from_y = first_y * STRIDE_Y - PAD_Y;",
        "const int of_image = static_cast<int>(blockIdx.x / strips);",
        f"const int group = {f'of_image % {groups}' if groups > 1 else '0'};",
        *_copies(),
        "float filter[TAPS];",
        "unrolled for (int t = 0; t < TAPS; ++t) filter[t] = weight[group * TAPS + t];",
        "__syncthreads();",
        "float* target = y + (static_cast<long long>(of_image) * out_y + first_y) * OUT_X;",
        "float* results = cells + LOADED * IN_X + into_vector(target);",
        "rolled for (int to_x = threadIdx.x * COLUMNS; to_x < OUT_X; to_x += THREADS * COLUMNS) {",
        "  float sums[ROWS][COLUMNS] = {};  // few of them live at a time",
        "  unrolled for (int r = 0; r < LOADED; ++r) {",
        *indented(_row(text), 2),
        "  }",
        "}",
        "store_together(target, results, min(ROWS, out_y - first_y) * OUT_X);",
    ]


def _copies() -> list[str]:
    """The rows of x, in parts that threads wait for one by one."""
    each = "for (int part = 0; part < PARTS; ++part)"
    return [
        "if (threadIdx.x == 0) {",
        f"  {each} barrier_init(barriers + 8 * part);",
        '  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");',
        f"  {each} {{",
        "    const int first = from_y + part * TOGETHER, end = min(first + TOGETHER, from_y + LOADED);",
        "    const int at_y = max(first, 0), bytes = max(min(end, in_y) - at_y, 0) * IN_X * 4;",
        "    const float* rows = x + (static_cast<long long>(of_image) * in_y + at_y) * IN_X;",
        "    barrier_arrive_expecting(barriers + 8 * part, bytes);",
        "    if (bytes > 0) copy_rows(cells + (at_y - from_y) * IN_X, rows, bytes, barriers + 8 * part);",
        "  }",
        "}",
    ]


def _row(text: ConvolutionText) -> list[str]:
    """A row of x, and the results that it finishes."""
    padded = any(one.padding for one in text.convolution.windows)
    above = "at_y >= 0 && " if padded else ""
    inside = "at_x >= 0 && at_x < IN_X" if text.axes["x"].padding else "at_x < IN_X"
    adding = [
        "if (m * STRIDE_Y + tap_y * DILATION_Y != r) continue;",
        "unrolled for (int i = 0; i < COLUMNS; ++i) {",
        "  unrolled for (int tap_x = 0; tap_x < KERNEL_X; ++tap_x) {",
        "    const float met = entered[i * STRIDE_X - PAD_X + tap_x * DILATION_X - FIRST_X];",
        "    sums[m][i] = fmaf(filter[tap_y * KERNEL_X + tap_x], met, sums[m][i]);",
        "  }",
        "}",
    ]
    return [
        "if (r % TOGETHER == 0) barrier_wait(barriers + 8 * (r / TOGETHER));",
        "const int at_y = from_y + r;",
        "float entered[2 * VECTORS];",
        "unrolled for (int v = 0; v < VECTORS; ++v) {",
        "  const int at_x = to_x * STRIDE_X + FIRST_X + 2 * v;",
        "  Pack<float, 2> pack = {};",
        f"  if ({above}at_y < in_y && {inside}) {{",
        "    pack = *reinterpret_cast<const Pack<float, 2>*>(cells + r * IN_X + at_x);",
        "  }",
        "  entered[2 * v] = pack.at[0];",
        "  entered[2 * v + 1] = pack.at[1];",
        "}",
        "unrolled for (int m = 0; m < ROWS; ++m) {",
        "  unrolled for (int tap_y = 0; tap_y < KERNEL_Y; ++tap_y) {",
        *indented(adding, 2),
        "  }",
        "  const int to_y = first_y + m;",
        "  if (m * STRIDE_Y + REACH_Y - 1 != r || to_y >= out_y) continue;",
        *indented(_store(text)),
        "}",
    ]


def _store(text: ConvolutionText) -> list[str]:
    """A row of results to shared memory."""
    takes = text.epilogue.takes
    each = ["const int column = to_y * OUT_X + to_x + i + w;"] if takes & {"column", "at"} else []
    each += ["const long long at = static_cast<long long>(of_image) * out_y * OUT_X + column;"] if "at" in takes else []
    each.append(f"made.at[w] = {text.stored(text.epilogue.call('sums[m][i + w]', channel='group'))};")
    row = ["const long long row = of_image;"] if "row" in takes else []
    return [
        *row,
        "unrolled for (int i = 0; i < COLUMNS; i += Y_WIDTH) {",
        "  if (to_x + i >= OUT_X) continue;",
        "  Pack<float, Y_WIDTH> made;",
        "  unrolled for (int w = 0; w < Y_WIDTH; ++w) {",
        *indented(each, 2),
        "  }",
        "  *reinterpret_cast<Pack<float, Y_WIDTH>*>(results + m * OUT_X + to_x + i) = made;",
        "}",
    ]

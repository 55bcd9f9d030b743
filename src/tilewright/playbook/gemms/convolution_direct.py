"""Convolutions without tensor cores: a thread makes a patch of neighbouring results, sums and filter in registers.

For any GPU, in f32 arithmetic. Depthwise convolutions go at the speed of memory this way; others do where a group has
few channels.
"""

from __future__ import annotations

import math

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, Fragment
from tilewright.playbook.gemms.convolution_plan_text import ConvolutionText
from tilewright.playbook.gemms.convolution_program import Convolution, Window
from tilewright.playbook.gemms.plan_text import Choices
from tilewright.playbook.gemms.tiles import PACK

_MOST_TAPS = 128  # of a slice of the window, which a thread keeps in registers
_MOST_HELD = 192  # weights and sums of several filters in the registers of a thread


def can_write(convolution: Convolution) -> bool:
    """Whether a slice of the window fits the registers of a thread."""
    return math.prod(one.taps for one in convolution.windows[-2:]) <= _MOST_TAPS


def direct_convolution(convolution: Convolution, op_line: str, choices: Choices = Choices.ALL) -> Fragment:
    """FILTERS x ROWS x COLUMNS results of a thread; many small blocks in the order of addresses."""
    text = ConvolutionText(convolution, op_line, choices)
    given = _plan(text)
    parameters, grid = [*text.parameters("channels", "filters", *text.lengths), *given], "ceil_div(@units, THREADS)"
    kernel = text.launched(f"{text.name}_direct", grid, "THREADS", parameters, "THREADS", _body(text))
    return text.fragment(_header(text), _constants(text), [PACK], *_sources(text), text.epilogue.function, kernel)


def _header(text: ConvolutionText) -> str:
    header = (
        f"{text.name}, every sum in f32: a thread makes a patch of neighbouring results"
        f"{'' if text.convolution.is_depthwise else ' for FILTERS filters'}, their sums and the filter in registers. "
        "It goes through the rows of x that the patch needs, loads each once and adds it to all results that look at "
        "it. Neighbouring threads load overlapping pieces of a row, which the L1 cache serves."
    )
    if text.convolution.transposed:
        header += (
            "\n\nThe convolution is transposed: a result gathers the elements of x that would be spread to it. Patches "
            "begin at multiples of the stride, so which taps meet an element is known when the file is built."
        )
    return header


# -- the plan --


def _plan(text: ConvolutionText) -> list[tuple[str, str]]:
    """Constants and sizes; the kernel's parameters for the numbers of patches."""
    plan = text.plan
    text.places_fit()
    text.tune("THREADS", (128, 256))
    text.tune("COLUMNS", _columns(text), "neighbouring results of a thread, in rows of the result")
    if "y" in text.axes:
        text.tune("ROWS", _rows(text))
    text.tune("FILTERS", (1,) if text.convolution.is_depthwise else _filters(text))
    _widths(text)
    counts, row = ["columns"], "ceil_div(@out_x, COLUMNS)"
    plan.add("let", f"@whole = round_up({row}, 32)", "threads of a row of patches, in whole warps where few idle then")
    plan.add("let", f"@columns = @whole if @whole - {row} <= {row} / 16 else {row}")
    if "y" in text.axes:
        counts.append("strips")
        plan.add("let", "@strips = ceil_div(@out_y, ROWS)")
    counts.append("tiles")
    plan.add("let", "@tiles = ceil_div(@filters, FILTERS)")
    factors = [f"@{one}" for one in ("images", *counts, *(["out_z"] if "z" in text.axes else []))]
    plan.add("let", f"@units = {' * '.join([*factors, str(text.convolution.groups)])}", "threads in all")
    plan.add("need", f"@units <= {MOST_32_BIT}")
    return [(f"unsigned {one}", f"@{one}") for one in (*counts, "units")]


def _widths(text: ConvolutionText) -> None:
    """How many elements are loaded and stored at once, where rows are a whole number of those."""
    one, stride = text.convolution, text.axes["x"].stride
    loaded = f"COLUMNS / {stride}" if one.transposed and stride > 1 else "COLUMNS"
    for name, length, results, dtype, remark in (
        ("X_WIDTH", "in_x", loaded, one.element, "elements of a load"),
        ("Y_WIDTH", "out_x", "COLUMNS", one.output.dtype, "and of a store"),
    ):
        width, size = f"min({results}, {16 // dtype.itemsize})", text.sizes[length]
        chosen = f"{width} if {size} % {width} == 0 else min({results}, 2) if {size} % 2 == 0 else 1"
        odd = one.transposed and stride & (stride - 1)  # a patch is no power of two wide
        text.plan.add("const", f"{name} = {1 if odd else chosen}", remark)


def _columns(text: ConvolutionText) -> tuple[int, ...]:
    wanted: tuple[int, ...] = (4, 2) if text.convolution.element.itemsize == 4 else (8, 4)
    if "y" not in text.axes:
        wanted = (*wanted, 2 * max(wanted))
    return _of_whole_phases(text, text.axes["x"], wanted)


def _rows(text: ConvolutionText) -> tuple[int, ...]:
    window = text.axes["y"]
    taps = window.taps * text.axes["x"].taps
    wanted: tuple[int, ...] = (8, 6, 4) if taps <= 32 else (4, 2, 8)
    if not text.convolution.is_depthwise:
        wanted = (4, 2)
    return _of_whole_phases(text, window, wanted)


def _filters(text: ConvolutionText) -> tuple[int, ...]:
    taps = math.prod(one.taps for one in text.convolution.windows[-2:])
    fitting = [one for one in (4, 8, 2) if one * (taps + 16) <= _MOST_HELD and one <= text.convolution.filters.size]
    return (*fitting, 1) if fitting else (1,)


def _of_whole_phases(text: ConvolutionText, window: Window, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of results that are multiples of the stride, where the convolution is transposed."""
    if not text.convolution.transposed:
        return wanted
    return tuple(dict.fromkeys(max(one // window.stride, 1) * window.stride for one in wanted))


# -- pieces of the file --


def _patch_axes(text: ConvolutionText) -> tuple[str, ...]:
    """Those along which a thread has several results."""
    return ("x", "y") if "y" in text.axes else ("x",)


def _made(axis: str) -> str:
    """How many results a thread has along an axis."""
    return {"x": "COLUMNS", "y": "ROWS"}[axis]


def _constants(text: ConvolutionText) -> list[str]:
    lines = text.window_constants()
    taps = [f"KERNEL_{axis.upper()}" for axis in reversed(text.axes)]
    lines.append(f"constexpr int SLICE = {' * '.join(taps[-2:])}, TAPS = {' * '.join(['SLICE', *taps[:-2]])};")
    lines.append("// The first and the last place that a patch looks at along an axis, from where it stands in x.")
    for axis in _patch_axes(text):
        low, high = _reach(text, axis)
        lines.append(f"constexpr int LOW_{axis.upper()} = {low}, HIGH_{axis.upper()} = {high};")
    lines += [
        "// Rows are loaded in whole vectors.",
        "constexpr int FIRST_X = LOW_X - (LOW_X % X_WIDTH + X_WIDTH) % X_WIDTH;",
        "constexpr int VECTORS = (HIGH_X - FIRST_X) / X_WIDTH + 1;",
    ]
    return lines


def _reach(text: ConvolutionText, axis: str) -> tuple[int, str]:
    one, upper = text.axes[axis], axis.upper()
    if text.convolution.transposed:
        return -(-(one.padding - (one.taps - 1) * one.dilation) // one.stride), (
            f"({_made(axis)} - 1 + PAD_{upper}) / STRIDE_{upper}"
        )
    last = f"({_made(axis)} - 1) * STRIDE_{upper} - PAD_{upper} + (KERNEL_{upper} - 1) * DILATION_{upper}"
    return -one.padding, last


def _sources(text: ConvolutionText) -> list[list[str]]:
    """A function for each axis of the patch."""
    lines = ["// The place that a tap of a thread's result takes, from where the patch stands in x."]
    if text.convolution.transposed:
        lines.append("constexpr int NOWHERE = LOW_X - 1000000000;  // the tap falls between two elements")
    for axis in _patch_axes(text):
        head, upper = f"__device__ constexpr int source_{axis}(int made, int tap) {{", axis.upper()
        if not text.convolution.transposed:
            lines += [head, f"  return made * STRIDE_{upper} - PAD_{upper} + tap * DILATION_{upper};", "}"]
            continue
        spread = f"made + PAD_{upper} - tap * DILATION_{upper}"
        lines += [head, f"  const int spread = {spread};"]
        lines += [f"  return spread % STRIDE_{upper} == 0 ? spread / STRIDE_{upper} : NOWHERE;", "}"]
    return [lines]


# -- the kernel --


def _body(text: ConvolutionText) -> list[str]:
    rows = "[ROWS]" if "y" in text.axes else ""
    return [
        *_places(text),
        f"float sums[FILTERS]{rows}[COLUMNS] = {{}};",
        *_over_slices(text),
        "",
        *_store(text),
    ]


def _places(text: ConvolutionText) -> list[str]:
    """Which patch the thread has, and where it stands in x."""
    one = text.convolution
    lines = [
        "const unsigned unit = blockIdx.x * THREADS + threadIdx.x;",
        "if (unit >= units) return;",
        "// Neighbouring threads have neighbouring columns.",
        "const int to_x = static_cast<int>(unit % columns) * COLUMNS;",
        "if (to_x >= out_x) return;",
        "unsigned rest = unit / columns;",
    ]
    if "y" in text.axes:
        lines += ["const int to_y = static_cast<int>(rest % strips) * ROWS;", "rest /= strips;"]
    if "z" in text.axes:
        lines += ["const int to_z = static_cast<int>(rest % out_z);", "rest /= out_z;"]
    lines += [
        "const int first = static_cast<int>(rest % tiles) * FILTERS;  // of its group's filters",
        "const int of_image = static_cast<int>(rest / tiles), "
        + (f"group = of_image % {one.groups};" if one.groups > 1 else "group = 0;"),
        f"const long long plane_in = {text.plane('in')}, plane_out = {text.plane('out')};",
    ]
    for axis in _patch_axes(text):
        upper = axis.upper()
        stands = f"to_{axis} / STRIDE_{upper}" if one.transposed else f"to_{axis} * STRIDE_{upper}"
        lines.append(f"const int from_{axis} = {stands};")
    return lines


def _over_slices(text: ConvolutionText) -> list[str]:
    """The slices of the window: one of every channel, and in three dimensions one of every plane."""
    lines = _slice(text)
    if "z" in text.axes:
        place = "to_z * STRIDE_Z - PAD_Z + tap_z * DILATION_Z"
        if text.convolution.transposed:
            place = "(to_z + PAD_Z - tap_z * DILATION_Z) / STRIDE_Z"
        fits = ["if ((to_z + PAD_Z - tap_z * DILATION_Z) % STRIDE_Z != 0) continue;"]
        lines = [
            "rolled for (int tap_z = 0; tap_z < KERNEL_Z; ++tap_z) {",
            *indented(fits if text.convolution.transposed and text.axes["z"].stride > 1 else []),
            f"  const int at_z = {place};",
            "  if (at_z < 0 || at_z >= in_z) continue;",
            *indented(lines),
            "}",
        ]
    if text.convolution.is_depthwise:
        return lines
    return [
        "rolled for (int c = 0; c < channels; ++c) {",
        *indented(lines),
        "}",
    ]


def _slice(text: ConvolutionText) -> list[str]:
    """A slice of the window: its weights, then row by row what it meets."""
    one, element = text.convolution, text.convolution.element.cpp
    c = "" if one.is_depthwise else " + c"
    if one.transposed:
        place = f"(static_cast<long long>(group * channels{c}) * filters + first + f) * TAPS"
    else:
        place = f"(static_cast<long long>(group * filters + first + f) * channels{c}) * TAPS"
    plane = " + at_z * (in_y * static_cast<long long>(in_x))" if "z" in text.axes else ""
    return [
        "float filter[FILTERS][SLICE];",
        "unrolled for (int f = 0; f < FILTERS; ++f) {",
        f"  const {element}* of_filter = weight + {place}{' + tap_z * SLICE' if 'z' in text.axes else ''};",
        "  unrolled for (int t = 0; t < SLICE; ++t) {",
        "    filter[f][t] = first + f < filters ? static_cast<float>(of_filter[t]) : 0.0f;",
        "  }",
        "}",
        f"const {element}* plane = x + (static_cast<long long>(of_image) * channels{c}) * plane_in{plane};",
        *_rows_met(text),
    ]


def _rows_met(text: ConvolutionText) -> list[str]:
    """Rows of x that the patch looks at, each loaded once and added to every result whose window has it."""
    patch = "[made_y][made_x]" if "y" in text.axes else "[made_x]"
    tap = "tap_y * KERNEL_X + tap_x" if "y" in text.axes else "tap_x"
    adding = [
        "const float met = entered[source_x(made_x, tap_x) - FIRST_X];",
        "unrolled for (int f = 0; f < FILTERS; ++f) {",
        f"  sums[f]{patch} = fmaf(filter[f][{tap}], met, sums[f]{patch});",
        "}",
    ]
    if text.convolution.transposed:
        adding = ["if (source_x(made_x, tap_x) == NOWHERE) continue;", *adding]
    adding = _unrolled(adding, ("made_x", "COLUMNS"), ("tap_x", "KERNEL_X"))
    if "y" not in text.axes:
        return [*_row_loads(text, "plane", ""), *adding]
    adding = ["if (source_y(made_y, tap_y) != LOW_Y + r) continue;", *adding]
    lines = [
        "const int at_y = from_y + LOW_Y + r;",
        "const bool is_inside = at_y >= 0 && at_y < in_y;",
        *_row_loads(text, "plane + static_cast<long long>(at_y) * in_x", "is_inside && "),
        *_unrolled(adding, ("made_y", "ROWS"), ("tap_y", "KERNEL_Y")),
    ]
    return ["#pragma unroll", "for (int r = 0; r <= HIGH_Y - LOW_Y; ++r) {", *indented(lines), "}"]


def _row_loads(text: ConvolutionText, row: str, inside: str) -> list[str]:
    element = text.convolution.element.cpp
    return [
        "float entered[VECTORS * X_WIDTH];",
        f"const {element}* row = {row};",
        "unrolled for (int v = 0; v < VECTORS; ++v) {",
        "  const int at_x = from_x + FIRST_X + v * X_WIDTH;",
        f"  Pack<{element}, X_WIDTH> pack = {{}};",
        f"  if ({inside}at_x >= 0 && at_x < in_x) {{",
        f"    pack = *reinterpret_cast<const Pack<{element}, X_WIDTH>*>(row + at_x);",
        "  }",
        "  unrolled for (int j = 0; j < X_WIDTH; ++j) entered[v * X_WIDTH + j] = static_cast<float>(pack.at[j]);",
        "}",
    ]


def _unrolled(inner: list[str], *loops: tuple[str, str]) -> list[str]:
    for name, count in reversed(loops):
        inner = ["#pragma unroll", f"for (int {name} = 0; {name} < {count}; ++{name}) {{", *indented(inner), "}"]
    return inner


def _store(text: ConvolutionText) -> list[str]:
    cpp = text.convolution.output.dtype.cpp
    takes = text.epilogue.takes
    place = text.place_in_plane("out", {"x": "result_x", "y": "result_y", "z": "to_z"})
    sums = "sums[f][m][i + w]" if "y" in text.axes else "sums[f][i + w]"
    each = ["const int column = column0 + w;"] if "column" in takes else []
    each += ["const long long at = row * plane_out + column0 + w;"] if "at" in takes else []
    each.append(f"made.at[w] = {text.stored(text.epilogue.call(sums))};")
    lines = [
        "const int result_x = to_x + i;",
        "if (result_x >= out_x) continue;",
        f"const int column0 = {place};",
        f"Pack<{cpp}, Y_WIDTH> made;",
        "unrolled for (int w = 0; w < Y_WIDTH; ++w) {",
        *indented(each),
        "}",
        f"*reinterpret_cast<Pack<{cpp}, Y_WIDTH>*>(y + row * plane_out + column0) = made;",
    ]
    lines = ["#pragma unroll", "for (int i = 0; i < COLUMNS; i += Y_WIDTH) {", *indented(lines), "}"]
    if "y" in text.axes:
        lines = [
            "unrolled for (int m = 0; m < ROWS; ++m) {",
            "  const int result_y = to_y + m;",
            "  if (result_y >= out_y) continue;",
            *indented(lines),
            "}",
        ]
    return [
        "unrolled for (int f = 0; f < FILTERS; ++f) {",
        "  if (first + f >= filters) continue;",
        *(["  const int channel = group * filters + first + f;"] if "channel" in takes else []),
        "  const long long row = static_cast<long long>(of_image) * filters + first + f;",
        *indented(lines),
        "}",
    ]

"""Convolutions of long rows as products on tensor cores: rows of x in shared memory, the taps along them as shifts.

A block's positions are neighbours in one row of the result. What it needs of a row of x is copied once, in wide pieces,
and serves every tap along the row; `tensor_cores.py` reads it anew for each. For f32, multiplied as TF32 or where it
must be exact as two TF32 parts, and strides 1 where the convolution is transposed: it is then a plain one with its taps
turned round.
"""

from __future__ import annotations

import math

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, Fragment
from tilewright.playbook.gemms.convolution_plan_text import ConvolutionText
from tilewright.playbook.gemms.convolution_program import Convolution
from tilewright.playbook.gemms.plan_text import Choices
from tilewright.playbook.gemms.tensor_cores import (
    ASYNC_COPY,
    EXACT_HEADER,
    EXACT_MMA,
    FIRST_COPIES,
    exact_step,
    fragment_pieces,
    over_steps,
    rounded_step,
    staged_sums,
)
from tilewright.records import DType

_MOST_TAPS = 16  # along a row
_MOST_STRIDE = 4
_TILE = 128  # neighbours in a row
_LEAST_SHARE = 0.8  # of a tile's positions that are results

_HEADER = """
{name} as a product on tensor cores: a block computes BM filters x BN neighbours in a row of the result. Its steps
are LINES rows of x, each of one channel: what the block needs of them is copied to shared memory once, and every tap
along the row reads it at a shift of its own. STAGES steps are under way at once, so that the copies of later steps run
under the arithmetic of the present one. Results go through shared memory, to be stored in whole lines.
"""

_LANES = [
    "const Element* a_slot = slots + step % STAGES * SLOT;",
    "const Element* b_slot = a_slot + A_ELEMENTS;",
    "const Element* a_lane = a_slot + (warp_m + lane % 16) * A_PITCH + lane / 16 * 4;",
    "const Element* b_lane = b_slot + lane % 4 * B_PITCH + LEAD + (warp_n + lane / 4) * STRIDE_X;",
]
_EXACT_PLACE = "(p % (LINES / 8) * 8 + r * 4) * B_PITCH + p / (LINES / 8) * DILATION_X + j * 8 * STRIDE_X"
_TAP = "const int tap = p / (LINES / 8), line = p % (LINES / 8) * 8;"
_ROUNDED = [
    "unrolled for (int j = 0; j < BLOCKS_N; ++j)",
    "  unrolled for (int r = 0; r < 2; ++r)",
    "    b_part[j][r] = tf32(b_lane[(line + r * 4) * B_PITCH + tap * DILATION_X + j * 8 * STRIDE_X]);",
]


def has_long_rows(convolution: Convolution) -> bool:
    """Whether tiles of neighbours in a row are mostly results, and elements are f32."""
    one = convolution.windows[-1]
    if convolution.element is not DType.F32:
        return False
    if convolution.transposed and any(window.stride > 1 for window in convolution.windows):
        return False
    share = one.results.size / (-(-one.results.size // _TILE) * _TILE)
    return one.taps <= _MOST_TAPS and one.stride <= _MOST_STRIDE and share >= _LEAST_SHARE


def long_row_convolution(convolution: Convolution, op_line: str, choices: Choices = Choices.ALL) -> Fragment:
    """BM filters x BN neighbours of a block."""
    text = ConvolutionText(convolution, op_line, choices)
    _plan(text)
    pack = text.packing(convolution.groups, _pack_body(text))
    parameters, block = text.packed_parameters("channels", "filters", *text.lengths), "32 * WARPS_M * WARPS_N"
    name, grid, block = f"{text.name}_rows", f"dim3(@tiles, {convolution.groups})", f"{block}, @shared_bytes"
    kernel = text.launched(name, grid, block, parameters, "THREADS, BLOCKS", _body(text))
    return text.fragment(
        _HEADER.format(name=text.name) + (EXACT_HEADER if convolution.is_exact else ""),
        _constants(text),
        [ASYNC_COPY],
        *fragment_pieces(DType.F32, convolution.is_exact, True),
        *([[EXACT_MMA]] if convolution.is_exact else []),
        text.epilogue.function,
        pack,
        kernel,
    )


# -- the plan --


def _plan(text: ConvolutionText) -> None:
    plan, sizes, one = text.plan, text.sizes, text.convolution
    filters, taps = one.filters.size, text.axes["x"].taps
    plan.add("need", "device.cc >= 80")
    text.places_fit()
    rows = 32 if filters <= 32 else 64 if filters <= 64 else 128
    plan.add("const", f"BM = {rows}, BN = {_TILE}", "filters and positions of a block")
    warps = rows // 32 if one.is_exact or rows == 32 else 2
    plan.add("const", f"WARPS_M = {warps}, WARPS_N = BN / 64")
    text.tune("LINES", (16, 32) if taps == 1 else (8, 16) if taps <= 3 else (8,), "rows of x in a step")
    text.tune("STAGES", (3, 2), "steps under way at once")
    resident = {32: (6, 4), 64: (4, 3) if taps <= 3 else (3, 4), 128: (2,)}
    text.tune("BLOCKS", resident[rows], "of a multiprocessor, for which registers must do")
    plan.add("const", f"X_WIDTH = 4 if {sizes['in_x']} % 4 == 0 else 1", "elements of a copy")
    others = math.prod(window.taps for window in one.windows[:-1])
    lines = f"{sizes['channels']} * {others}" if others > 1 else sizes["channels"]
    plan.add("let", f"@k_pitch = round_up({lines}, LINES) * {taps}", "rows of x and taps of a filter")
    plan.add("scratch", f"@packed: f32[{one.groups}, {sizes['filters']}, @k_pitch]")
    outer = [sizes[f"out_{axis}"] for axis in text.axes if axis != "x"]
    tiles = [f"ceil_div({sizes['filters']}, BM)", f"ceil_div({sizes['out_x']}, BN)", sizes["images"], *outer]
    plan.add("let", f"@tiles = {' * '.join(tiles)}")
    plan.add("need", f"max(@tiles, {sizes['filters']} * @k_pitch) <= {MOST_32_BIT}")
    reach = f"(BN - 1) * {text.axes['x'].stride} + {(taps - 1) * text.axes['x'].dilation + 8}"
    ring = f"STAGES * (BM * (LINES * {taps} + 4) + LINES * (round_up({reach}, 32) + 8)) * 4"
    plan.add("let", f"@shared_bytes = max({ring}, BM * (BN + 8) * 4)")
    plan.add("need", "@shared_bytes <= device.smem_block")


def _constants(text: ConvolutionText) -> list[str]:
    lines = [
        "using Element = float;",
        "constexpr int THREADS = WARPS_M * WARPS_N * 32, WARP_M = BM / WARPS_M, WARP_N = 64;",
        "constexpr int BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 8;  // mma of a warp",
        *text.window_constants(plain=True),
    ]
    others = [f"KERNEL_{axis.upper()}" for axis in reversed(text.axes) if axis != "x"]
    return [
        *lines,
        f"constexpr int GROUPS = {text.convolution.groups}, OTHERS = {' * '.join(others) or '1'};",
        "constexpr int STEP = LINES * KERNEL_X, A_PITCH = STEP + 4;  // pairs of a row and a tap",
        "// A copied row begins LEAD elements before the block's first, where a piece begins; its pitch spreads banks.",
        "constexpr int LEAD = ((-PAD_X) % X_WIDTH + X_WIDTH) % X_WIDTH;",
        "constexpr int COPIED = LEAD + (BN - 1) * STRIDE_X + (KERNEL_X - 1) * DILATION_X + 1;",
        "constexpr int PIECES = (COPIED + X_WIDTH - 1) / X_WIDTH, B_PITCH = (PIECES * X_WIDTH + 23) / 32 * 32 + 8;",
        "constexpr int A_ELEMENTS = BM * A_PITCH, SLOT = A_ELEMENTS + LINES * B_PITCH, STAGED = BN + 8;",
    ]


def _pack_body(text: ConvolutionText) -> list[str]:
    """Step after step: a row of weights for each filter, tap after tap, and of a tap the step's rows of x."""
    tap = "of_line * KERNEL_X + tap_x"
    if text.convolution.transposed:
        tap = f"OTHERS * KERNEL_X - 1 - ({tap})"
    made = "made" if text.convolution.is_exact else "__uint_as_float(tf32(made))"
    return [
        "const int group = blockIdx.y, at = blockIdx.x * 256 + threadIdx.x;",
        "if (at >= filters * k_pitch) return;",
        "const int step = at / STEP / filters, f = at / STEP % filters, k = at % STEP;",
        "const int tap_x = k / LINES, line = step * LINES + k % LINES;",
        "const int c = line / OTHERS, of_line = line - c * OTHERS;",
        "float made = 0.0f;  // beyond the last row",
        f"if (c < channels) made = weight[({text.weight_row('f')}) * (OTHERS * KERNEL_X) + {tap}];",
        f"packed[static_cast<long long>(group) * filters * k_pitch + at] = {made};",
    ]


# -- the kernel --


def _body(text: ConvolutionText) -> list[str]:
    step = exact_step("STEP / 8", _EXACT_PLACE)
    if not text.convolution.is_exact:
        step = rounded_step("STEP / 8", "A_PITCH", _ROUNDED, before=(_TAP,))
    return [
        "extern __shared__ __align__(128) unsigned char shared[];",
        "Element* slots = reinterpret_cast<Element*>(shared);",
        "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = blockIdx.y;",
        "const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;",
        *_tile_lines(text),
        "",
        *_copy_lines(text),
        FIRST_COPIES,
        "",
        *over_steps([*_LANES, *step]),
        "",
        *_store_lines(text),
    ]


def _tile_lines(text: ConvolutionText) -> list[str]:
    lines = [
        "const int tiles_m = (filters + BM - 1) / BM, tiles_x = (out_x + BN - 1) / BN;",
        "const int m0 = blockIdx.x % tiles_m * BM;",
        "unsigned rest = blockIdx.x / tiles_m;",
        "const int to_x = static_cast<int>(rest % tiles_x) * BN;",
        "rest /= tiles_x;",
    ]
    for axis in (one for one in text.axes if one != "x"):
        lines += [f"const int to_{axis} = static_cast<int>(rest % out_{axis});", f"rest /= out_{axis};"]
    return [
        *lines,
        "const int image = static_cast<int>(rest), from_x = to_x * STRIDE_X - PAD_X - LEAD;",
        f"const long long plane_in = {text.plane('in')}, plane_out = {text.plane('out')};",
        "x += (static_cast<long long>(image) * GROUPS + group) * channels * plane_in;",
        "packed += static_cast<long long>(group) * filters * k_pitch;",
        "const int steps = k_pitch / STEP;",
    ]


def _copy_lines(text: ConvolutionText) -> list[str]:
    tests, places, lines, rest = ["c < channels"], {"x": "0"}, [], "of_line"
    for axis in (one for one in text.axes if one != "x"):
        upper = axis.upper()
        last = axis == list(text.axes)[-1]
        tap = rest if last else f"{rest} % KERNEL_{upper}"
        lines.append(
            f"      const int at_{axis} = to_{axis} * STRIDE_{upper} - PAD_{upper} + {tap} * DILATION_{upper};"
        )
        rest = f"{rest} / KERNEL_{upper}"
        tests.append(f"at_{axis} >= 0 && at_{axis} < in_{axis}")
        places[axis] = f"at_{axis}"
    place = "" if len(text.axes) == 1 else f" + {text.place_in_plane('in', places)}".removesuffix(" + 0")
    return [
        "auto copy_step = [&](int step) {",
        "  if (step < steps) {",
        "    Element* slot = slots + step % STAGES * SLOT;",
        "    const Element* weights = packed + (step * filters + m0) * STEP;",
        "    unrolled for (int i = 0; i < (BM * STEP / 4 + THREADS - 1) / THREADS; ++i) {",
        "      const int at = threadIdx.x + i * THREADS, f = at / (STEP / 4), k = at % (STEP / 4) * 4;",
        "      if (f >= BM) break;",
        "      copy_async<16>(slot + f * A_PITCH + k, weights + at * 4, m0 + f < filters);",
        "    }",
        "    unrolled for (int i = 0; i < LINES / (WARPS_M * WARPS_N); ++i) {  // a warp copies whole rows",
        "      const int line = warp + i * (WARPS_M * WARPS_N), number = step * LINES + line;",
        "      const int c = number / OTHERS, of_line = number - c * OTHERS;",
        *lines,
        f"      const bool is_inside = {' && '.join(tests)};",
        f"      const Element* row = x + (is_inside ? c * plane_in{place} : 0);",
        "      Element* to = slot + A_ELEMENTS + line * B_PITCH;",
        "      unrolled for (int v = lane; v < PIECES; v += 32) {",
        "        const int at_x = from_x + v * X_WIDTH;",
        "        const bool inside = is_inside && at_x >= 0 && at_x < in_x;",
        "        copy_async<4 * X_WIDTH>(to + v * X_WIDTH, row + at_x, inside);",
        "      }",
        "    }",
        "  }",
        "  commit();  // even when empty, so that the count of pending groups stays in step with the loop",
        "};",
    ]


def _store_lines(text: ConvolutionText) -> list[str]:
    place, epilogue = text.place_in_plane("out", {"x": "to_x", "y": "to_y", "z": "to_z"}), text.epilogue
    channel = ["  const int channel = group * filters + m0 + line;"] if "channel" in epilogue.takes else []
    return [
        "wait<0>();",
        "__syncthreads();  // nobody reads the slots any more",
        "float* staged = reinterpret_cast<float*>(shared);",
        *staged_sums("at"),
        "__syncthreads();",
        "// A warp stores a line from where one of the cache begins: a sector that is written in pieces is dear.",
        "const int lines = min(BM, filters - m0), width = min(BN, out_x - to_x);",
        "for (int line = warp; line < lines; line += THREADS / 32) {",
        "  const long long row = (static_cast<long long>(image) * GROUPS + group) * filters + m0 + line;",
        *channel,
        f"  const long long first = row * plane_out + {place};",
        "  const int before = lane - static_cast<int>(first % 32);",
        "  constexpr int PARTS = BN / 32 + 1;",
        "  float value[PARTS];",
        *indented(epilogue.arrays("[PARTS]") + epilogue.pointers("@ + first")),
        "  unrolled for (int i = 0; i < PARTS; ++i) {",
        "    const int at = before + i * 32;",
        "    const bool inside = at >= 0 && at < width;",
        "    value[i] = inside ? staged[line * STAGED + at] : 0.0f;",
        *indented(epilogue.reads("[i]", "inside", "at"), 2),
        "  }",
        "  unrolled for (int i = 0; i < PARTS; ++i) {",
        "    const int at = before + i * 32;",
        f"    if (at >= 0 && at < width) y[first + at] = {text.stored(epilogue.call_read('value[i]', '[i]'))};",
        "  }",
        "}",
    ]

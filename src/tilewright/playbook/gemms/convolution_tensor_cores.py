"""Convolutions as products on the tensor cores of any GPU since Ampere, without a copy of x in another form.

The weights are one matrix, filters by channels and taps; the other is read out of x as it lies, element by element, by
asynchronous copies: positions are its columns. A transposed convolution is one such product for every phase of its
stride, with the taps that fall on elements of x there. 16-bit elements are multiplied as they are; f32 ones as TF32, as
PyTorch does by default, or where they must be exact as two TF32 parts.
"""

from __future__ import annotations

import math

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, Fragment
from tilewright.playbook.gemms.convolution_plan_text import ConvolutionText
from tilewright.playbook.gemms.convolution_program import Convolution
from tilewright.playbook.gemms.convolution_tensor_cores_kernel import (
    is_rounded,
    kernel_body,
    pair_lines,
    phase_lines,
    phases,
    taps_count,
    taps_line,
)
from tilewright.playbook.gemms.plan_text import Choices
from tilewright.playbook.gemms.program import Extent, Operand
from tilewright.playbook.gemms.tensor_cores import ASYNC_COPY, EXACT_SUMS, TILE_COPY, Side, fragment_pieces
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("gemms/convolution_tensor_cores")

_MOST_BITS = 31  # a bit for every tap along every axis, and one for what lies beyond the last channel

_MOST_PHASES = 16  # of a row of results, which a block keeps in shared memory


def can_write(convolution: Convolution) -> bool:
    """Whether the taps along all axes have a bit each, and the elements are such as tensor cores take."""
    bits = sum(one.taps for one in convolution.windows)
    if convolution.transposed and convolution.windows[-1].stride > _MOST_PHASES:
        return False
    return bits <= _MOST_BITS and convolution.element in (DType.F32, DType.F16, DType.BF16)


def tensor_core_convolution(convolution: Convolution, op_line: str, choices: Choices = Choices.ALL) -> Fragment:
    """BM filters x BN positions of a block; STAGES steps along channels and taps are under way at once."""
    text = ConvolutionText(convolution, op_line, choices)
    wide = convolution.element is DType.F32
    sides = _sides(convolution)
    _plan(text)
    others = convolution.groups * math.prod(phases(text, axis) for axis in text.axes if axis != "x")
    pack = text.packing(others * phases(text, "x"), _pack_body(text))
    parameters = text.packed_parameters("channels", "filters", "images", *text.lengths)
    name, grid, block = f"{text.name}_tensor_cores", f"dim3(@tiles, {others})", "32 * WARPS_M * WARPS_N, @shared_bytes"
    kernel = text.launched(name, grid, block, parameters, "THREADS, BLOCKS", kernel_body(text, sides))
    taps = _CUDA["taps"] + (_CUDA["spread_taps"] if convolution.transposed else _CUDA["plain_taps"])
    return text.fragment(
        _header(text),
        _constants(text, wide),
        [taps],
        [_CUDA["step"]],
        [ASYNC_COPY],
        [TILE_COPY],
        [
            f"using ACopy = TileCopy<BM, BK, {4 if wide else 8}, {16 // convolution.element.itemsize}>;",
            "using BCopy = TileCopy<BK, BN, 8, 1>;",
        ],
        *fragment_pieces(convolution.element, convolution.is_exact, is_rounded(convolution)),
        text.epilogue.function,
        pack,
        kernel,
    )


def _header(text: ConvolutionText) -> str:
    one = text.convolution
    header = (
        f"{text.name} as a product on tensor cores: a block computes BM filters x BN positions, which its warps share "
        "as a WARPS_M x WARPS_N grid. Its steps are BK pairs of a channel and a tap. Weights come from a copy in the "
        "order of the steps; x is read as it lies: a thread owns a position, and a table in shared memory says for "
        "each pair where the element is from there. STAGES steps are under way at once, so that the copies of later "
        "steps run under the arithmetic of the present one. Results go through shared memory, to be stored in whole "
        "lines."
    )
    if one.transposed:
        header += (
            "\n\nThe convolution is transposed: results of one phase of the stride take the same taps, so each phase "
            "is a product of its own. A block makes all phases of its rows, one after the other, and stores them "
            "together."
        )
    return header + (EXACT_SUMS if one.is_exact else "")


def _sides(convolution: Convolution) -> tuple[Side, Side]:
    """The packed weights, and x as the table reads it."""
    none = Extent("0", 0)
    return (
        Side("a", "m", "BM", Operand("packed", convolution.element, True, none, none)),
        Side("b", "n", "BN", Operand("x", convolution.element, False, none, none)),
    )


# -- the plan --


def _plan(text: ConvolutionText) -> None:
    """Constants and sizes; the packed weights and their pitch, the number of tiles, and the bytes of a block."""
    plan, sizes, one = text.plan, text.sizes, text.convolution
    size, wide = one.element.itemsize, one.element is DType.F32
    plan.add("need", "device.cc >= 80")
    text.places_fit()
    plan.add("need", f"{sizes['channels']} * {text.plane_in} <= {MOST_32_BIT}", "from where a position stands too")
    rows, columns = _tiles(text)
    for name, choices, remark in (("BM", rows, "filters and positions of a block"), ("BN", columns, "")):
        directive = "tune" if len(choices) > 1 else "const"
        plan.add(directive, f"{name} = {' | '.join(map(str, choices))}", remark)
    spread = phases(text, "x") > 1
    tall = rows[0] == 128 or columns[0] == 32 or (spread and rows[0] == 64)
    text.tune("WARPS_M", (2, 1) if tall else (1, 2), "warps below each other, and side by side")
    plan.add("const", f"BK = {32 if wide else 64}, WARPS_N = BN / 32")
    plan.add("need", "WARPS_M * BN >= BK", "a thread for every pair of a step")
    text.tune("STAGES", (3, 2) if spread and rows[0] == 64 else (2, 3), "steps under way at once")
    resident = (1,) if one.is_exact else (2, 1) if tall else (3, 2)
    text.tune("BLOCKS", resident, "of a multiprocessor, for which registers must do")
    most = math.prod(_most_taps(text, axis) for axis in text.axes)
    plan.add("let", f"@k_pitch = round_up({sizes['channels']} * {most}, {16 // size})", "channels and taps of a filter")
    matrices = one.groups * math.prod(phases(text, axis) for axis in text.axes)
    plan.add("scratch", f"@packed: {one.element.value}[{matrices}, {sizes['filters']}, @k_pitch]")
    lengths = [
        f"ceil_div({sizes[f'out_{axis}']}, {phases(text, axis)})" if phases(text, axis) > 1 else sizes[f"out_{axis}"]
        for axis in text.axes
    ]
    plan.add("let", f"@positions = {' * '.join([sizes['images'], *lengths])}")
    plan.add("let", f"@tiles = ceil_div({sizes['filters']}, BM) * ceil_div(@positions, BN)")
    plan.add("need", f"max(@positions, {sizes['filters']} * @k_pitch) <= {MOST_32_BIT}")
    ring = f"STAGES * ((BM * (BK + {4 if wide else 8}) + BK * (BN + 8)) * {size} + BK * 8)"
    several = phases(text, "x")
    staged = f"BM * (BN * {several} + 8) * 4" if several > 1 else "BM * (BN + 8) * 4"
    plan.add("let", f"@shared_bytes = {f'{ring} + {staged}' if several > 1 else f'max({ring}, {staged})'}")
    plan.add("need", "@shared_bytes <= device.smem_block")


def _tiles(text: ConvolutionText) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """As many filters as there are, where they are few; as many positions as shared memory has room for."""
    filters, several = text.convolution.filters.size, phases(text, "x")
    rows = (32, 64) if filters <= 32 or several > 2 else (64, 128) if filters <= 64 or several > 1 else (128, 64)
    columns = (128, 64) if several == 1 or (several == 2 and rows[0] == 32) else (64, 32) if several <= 8 else (32, 64)
    if text.choices is Choices.NONE:
        return rows[:1], (min(columns[0], 64),)
    return rows, columns if text.choices is Choices.ALL else columns[:2]


def _most_taps(text: ConvolutionText, axis: str) -> int:
    """Along an axis, in one phase of the result."""
    one = text.axes[axis]
    if not text.convolution.transposed:
        return one.taps
    step = one.stride // math.gcd(one.stride, one.dilation)
    return -(-one.taps // step)


# -- the kernels --


def _constants(text: ConvolutionText, wide: bool) -> list[str]:
    taps = [f"KERNEL_{axis.upper()}" for axis in reversed(text.axes)]
    return [
        f"using Element = {text.convolution.element.cpp};",
        "constexpr int THREADS = WARPS_M * WARPS_N * 32, WARP_M = BM / WARPS_M, WARP_N = BN / WARPS_N;",
        f"constexpr int BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 8, STEPS_K = BK / {8 if wide else 16};"
        "  // mma of a warp",
        *text.window_constants(),
        f"constexpr int GROUPS = {text.convolution.groups}, TAPS = {' * '.join(taps)};",
        f"constexpr int PHASES_X = {phases(text, 'x')};  // of a row of results: a block makes all of them",
        "constexpr int STAGED = BN * PHASES_X + 8;  // a line of results on their way out",
    ]


def _pack_body(text: ConvolutionText) -> list[str]:
    """The weights of a group and phase as a matrix: a row for each filter, channels and then taps along it."""
    rounded = f"weight[({text.weight_row('f')}) * TAPS + tap]"
    if is_rounded(text.convolution):
        rounded = f"__uint_as_float(tf32({rounded}))"
    tap = ""
    for axis in reversed(text.axes):
        number = f"taps_{axis}.first + i_{axis} * taps_{axis}.step"
        tap = f"({tap}) * KERNEL_{axis.upper()} + {number}" if tap else number
    return [
        "const int matrix = blockIdx.y / PHASES_X, phase_x = blockIdx.y % PHASES_X;",
        *phase_lines(text, "matrix"),
        taps_line(text, "x"),
        taps_count(text),
        "const int at = blockIdx.x * 256 + threadIdx.x, f = at / k_pitch, k = at - f * k_pitch;",
        "if (f >= filters) return;",
        "Element made = static_cast<Element>(0.0f);  // beyond the last pair of a channel and a tap",
        "if (k < channels * taps) {",
        *indented(pair_lines(text)),
        f"  const int tap = {tap};",
        f"  made = {rounded};",
        "}",
        "packed[static_cast<long long>(blockIdx.y) * filters * k_pitch + at] = made;",
    ]

"""Convolutions of single positions (a window of one tap, no stride, no padding): every image is a matrix as it lies.

y[n] = W x[n], with x[n] as channels by positions: nothing is copied in another form, and dimensions do not matter. What
such a convolution costs is its bytes, so weights stay in shared memory while tiles of positions stream past them.
Structures for products bring both operands for every tile; here that would be as many bytes again.
"""

from __future__ import annotations

import math

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, Fragment
from tilewright.playbook.gemms.convolution_plan_text import ConvolutionText
from tilewright.playbook.gemms.convolution_program import Convolution, Window
from tilewright.playbook.gemms.convolution_tensor_cores_kernel import is_rounded
from tilewright.playbook.gemms.plan_text import Choices
from tilewright.playbook.gemms.tensor_cores import (
    ASYNC_COPY,
    EXACT_HEADER,
    EXACT_MMA,
    exact_step,
    fragment_pieces,
    rounded_step,
)
from tilewright.playbook.gemms.tiles import PACK
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("gemms/convolution_points")

_MOST_BYTES = 1024  # of a filter, so that shared memory holds the weights of 64
_MOST_WORK = 64  # multiplications for every element of x and y: beyond, arithmetic takes longer than memory

_HEADER = """
{name} as a product on tensor cores: BM filters, whose weights a block keeps in shared memory, times a run of tiles of
BN positions each. Its steps are LINES channels of a tile; STAGES of them are under way at once, those of the next tile
while the results of this one are stored.

Which column of the product a position is, is free: lanes take neighbours as columns of neighbouring blocks, so that
they read {read} positions at once, and hold {held} neighbouring results to store together.
"""

_ROUNDED = [
    "unrolled for (int j = 0; j < BLOCKS_N; j += 2)",
    "  unrolled for (int r = 0; r < 2; ++r) {",
    "    const auto two = *reinterpret_cast<const Pack<float, 2>*>(b_lane + (p * 8 + r * 4) * B_PITCH + j * 8);",
    "    b_part[j][r] = tf32(two.at[0]), b_part[j + 1][r] = tf32(two.at[1]);",
    "  }",
]

_HALF_STEP = _CUDA["half_step"]


def can_write(convolution: Convolution) -> bool:
    """Whether every result is made from the channels of one position, and a block can keep its filters' weights."""
    elements = (DType.F32, DType.F16, DType.BF16)
    if not all(map(_is_single, convolution.windows)) or convolution.is_depthwise or convolution.element not in elements:
        return False
    return convolution.channels.size * convolution.element.itemsize <= _MOST_BYTES


def is_bound_by_memory(convolution: Convolution) -> bool:
    """Whether moving x and y takes longer than the products, and they lie in whole pieces, at the task's own sizes."""
    channels, filters = convolution.channels.size, convolution.filters.size
    plane = math.prod(one.length.size for one in convolution.windows)
    whole = plane * convolution.element.itemsize % 16 == 0
    return whole and channels * filters <= _MOST_WORK * (channels + filters)


def _is_single(one: Window) -> bool:
    return (one.taps, one.stride, one.padding) == (1, 1, 0) and one.results.size == one.length.size


def point_convolution(convolution: Convolution, op_line: str, choices: Choices = Choices.ALL) -> Fragment:
    """BM filters x RUN tiles of BN positions of a block."""
    text = ConvolutionText(convolution, op_line, choices)
    _plan(text)
    wanted = text.parameters("channels", "filters")
    parameters = [*wanted, *((f"int {name}", f"@{name}") for name in ("plane", "tiles", "run"))]
    block = "32 * WARPS_M * WARPS_N, @shared_bytes"
    kernel = text.launched(f"{text.name}_points", "@blocks", block, parameters, "THREADS, BLOCKS", _body(text))
    together = _together(convolution)
    header = _HEADER.format(name=text.name, read=together, held=together * 2)
    return text.fragment(
        header + (EXACT_HEADER if convolution.is_exact else ""),
        _constants(text),
        [PACK],
        [ASYNC_COPY],
        *fragment_pieces(convolution.element, convolution.is_exact, True),
        *([[EXACT_MMA]] if convolution.is_exact else []),
        text.epilogue.function,
        kernel,
    )


def _together(convolution: Convolution) -> int:
    """Neighbouring positions that a lane reads at once: 8 bytes of them."""
    return 8 // convolution.element.itemsize


# -- the plan --


def _plan(text: ConvolutionText) -> None:
    plan, sizes, one = text.plan, text.sizes, text.convolution
    size, groups = one.element.itemsize, one.groups
    filters, channels = one.filters.size, one.channels.size
    plan.add("need", "device.cc >= 80")
    text.places_fit()
    few = channels * size > _MOST_BYTES // 2
    rows = 32 if filters <= 32 else 64 if filters <= 64 or few else 128
    plan.add("const", f"BM = {rows}, BN = 128", "filters and positions of a tile")
    plan.add("const", "WARPS_M = BM / 32, WARPS_N = BN / 64")
    least = 32 // size
    text.tune("LINES", (least,) if channels <= least else (2 * least, least), "channels in a step")
    text.tune("STAGES", (4, 3, 2), "steps under way at once")
    text.tune("BLOCKS", {32: (4, 6), 64: (3, 2), 128: (2,)}[rows], "of a multiprocessor, for which registers must do")
    text.tune("RUN", (16, 8, 32), "tiles of a block, where there are many")
    plan.add("let", f"@plane = {text.plane_in}")
    plan.add("const", f"X_WIDTH = {_width('@plane', size)}", "elements of a copy")
    plan.add("const", f"W_WIDTH = {1 if one.transposed else _width(sizes['channels'], size)}")
    stored = min(2 * _together(one), 16 // one.output.dtype.itemsize)
    narrow = "2 if @plane % 2 == 0 else 1"
    plan.add("const", f"Y_WIDTH = {stored} if @plane % {stored} == 0 else {narrow}", "results of a store")
    plan.add("const", f"CHANNELS = round_up({sizes['channels']}, LINES)", "with zeros behind the last")
    plan.add("let", f"@tiles = {sizes['images']} * ceil_div(@plane, BN)")
    matrices = f"ceil_div({sizes['filters']}, BM)" + (f" * {groups}" if groups > 1 else "")
    plan.add("let", f"@matrices = {matrices}", "of weights")
    least_blocks = "@tiles * @matrices / (4 * BLOCKS * device.sms)"
    plan.add("let", f"@run = max(1, min(RUN, {least_blocks}))")
    plan.add("let", "@blocks = ceil_div(@tiles, @run) * @matrices")
    plan.add("need", f"max(@tiles, @blocks) <= {MOST_32_BIT}")
    shared = f"(BM * (CHANNELS + {16 // size}) + STAGES * LINES * (BN + 8)) * {size}"
    plan.add("let", f"@shared_bytes = {shared}")
    plan.add("need", "@shared_bytes <= device.smem_block")


def _width(length: str, size: int) -> str:
    """As many elements as an asynchronous copy can have, of rows so long."""
    narrow = f"2 if {length} % 2 == 0 else 1" if size == 2 else "1"
    return f"{16 // size} if {length} % {16 // size} == 0 else {narrow}"


def _constants(text: ConvolutionText) -> list[str]:
    one = text.convolution
    return [
        f"using Element = {one.element.cpp};",
        f"using Result = {one.output.dtype.cpp};",
        "constexpr int THREADS = WARPS_M * WARPS_N * 32, WARP_M = BM / WARPS_M, WARP_N = BN / WARPS_N;",
        "constexpr int BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 8;  // mma of a warp",
        f"constexpr int TOGETHER = {_together(one)};  // positions that a lane reads at once",
        f"constexpr int GROUPS = {one.groups};",
        "// Lines in shared memory are longer than what they hold, which spreads what a warp reads over all banks.",
        f"constexpr int A_PITCH = CHANNELS + {16 // one.element.itemsize}, B_PITCH = BN + 8, SLOT = LINES * B_PITCH;",
    ]


# -- the kernel --


def _body(text: ConvolutionText) -> list[str]:
    one = text.convolution
    if one.is_exact:
        step = exact_step("LINES / 8", "(p * 8 + r * 4) * B_PITCH + j / 2 * 16 + j % 2")
    elif one.element is DType.F32:
        step = rounded_step("LINES / 8", "A_PITCH", _ROUNDED)
    else:
        step = _HALF_STEP.splitlines()
    b_line = "lane % 4" if one.element is DType.F32 else "lane % 4 * 2"
    a_offset = f"lane / 16 * {16 // one.element.itemsize}"
    return [
        "extern __shared__ __align__(128) unsigned char shared[];",
        "Element* weights = reinterpret_cast<Element*>(shared);",
        "Element* slots = weights + BM * A_PITCH;",
        "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;",
        "const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;",
        "const int tiles_m = (filters + BM - 1) / BM, tiles_n = (plane + BN - 1) / BN;",
        "const int m0 = blockIdx.x % tiles_m * BM, group = blockIdx.x / tiles_m % GROUPS;",
        "const int first = blockIdx.x / (tiles_m * GROUPS) * run, last = min(first + run, tiles);",
        "",
        *_copy_lines(),
        *_weight_lines(text),
        "",
        f"const Element* a_first = weights + (warp_m + lane % 16) * A_PITCH + {a_offset};",
        f"const Element* b_first = slots + {b_line} * B_PITCH + warp_n + lane / 4 * TOGETHER;",
        "int slot = 0;",
        "for (int tile = first; tile < last; ++tile) {",
        "  float sums[BLOCKS_M][BLOCKS_N][4] = {};",
        "  for (int c = 0; c < CHANNELS; c += LINES) {",
        "    wait<STAGES - 2>();",
        "    __syncthreads();  // the step's slot has arrived for everyone, and everyone has read the one before",
        "    copy_step(slot == 0 ? STAGES - 1 : slot - 1);  // into that one",
        "    const Element* a_lane = a_first + c;",
        "    const Element* b_lane = b_first + slot * SLOT;",
        *indented(step, 2),
        "    slot = slot + 1 < STAGES ? slot + 1 : 0;",
        "  }",
        *indented(_store_lines(text)),
        "}",
        "wait<0>();",
    ]


def _copy_lines() -> list[str]:
    return [
        "int copied_tile = first, copied = 0;  // what the ring takes next: the tile, and the first of LINES channels",
        "auto copy_step = [&](int to) {",
        "  if (copied_tile < last) {",
        "    const int image = copied_tile / tiles_n, n0 = (copied_tile - image * tiles_n) * BN;",
        "    const Element* from =",
        "        x + ((static_cast<long long>(image) * GROUPS + group) * channels + copied) * plane + n0;",
        "    unrolled for (int i = 0; i < LINES * BN / X_WIDTH / THREADS; ++i) {",
        "      const int at = (threadIdx.x + i * THREADS) * X_WIDTH, line = at / BN, v = at % BN;",
        "      const bool inside = copied + line < channels && n0 + v < plane;",
        "      const Element* source = inside ? from + static_cast<long long>(line) * plane + v : x;",
        "      copy_async<X_WIDTH * sizeof(Element)>(slots + to * SLOT + line * B_PITCH + v, source, inside);",
        "    }",
        "    copied += LINES;",
        "    if (copied >= channels) copied = 0, ++copied_tile;",
        "  }",
        "  commit();  // even when empty, so that the count of pending groups stays in step with the loop",
        "};",
    ]


def _weight_lines(text: ConvolutionText) -> list[str]:
    one = text.convolution
    place = text.weight_row("m0 + f")
    places = [
        "#pragma unroll 8",
        "for (int at = threadIdx.x * W_WIDTH; at < BM * CHANNELS; at += THREADS * W_WIDTH) {",
        "  const int f = at / CHANNELS, c = at % CHANNELS;",
    ]
    copied = [
        *places,
        "  const bool inside = m0 + f < filters && c < channels;",
        f"  const Element* source = inside ? weight + {place} : weight;",
        "  copy_async<W_WIDTH * sizeof(Element)>(weights + f * A_PITCH + c, source, inside);",
        "}",
        "commit();",
        "for (int stage = 0; stage < STAGES - 1; ++stage) copy_step(stage);",
    ]
    if not is_rounded(one):
        return copied
    return [
        *copied,
        "wait<STAGES - 1>();  // the weights are there: every thread rounds those that it has copied",
        *places,
        "  auto& some = *reinterpret_cast<Pack<Element, W_WIDTH>*>(weights + f * A_PITCH + c);",
        "  unrolled for (int i = 0; i < W_WIDTH; ++i) some.at[i] = __uint_as_float(tf32(some.at[i]));",
        "}",
    ]


def _store_lines(text: ConvolutionText) -> list[str]:
    takes = text.epilogue.takes
    channel = ["    const int channel = group * filters + m0 + line;"] if "channel" in takes else []
    found = "sums[i][j + (w + v) % TOGETHER][h * 2 + (w + v) / TOGETHER]"
    made = text.epilogue.call(found, at="row * plane + column + v")
    return [
        "// Of every 16 x 8 block a lane has columns lane % 4 * 2 and the next, in rows lane / 4 and lane / 4 + 8.",
        "const int image = tile / tiles_n, n0 = (tile - image * tiles_n) * BN;",
        "unrolled for (int i = 0; i < BLOCKS_M; ++i)",
        "  unrolled for (int h = 0; h < 2; ++h) {",
        "    const int line = warp_m + i * 16 + h * 8 + lane / 4;",
        "    if (m0 + line >= filters) continue;",
        *channel,
        "    const long long row = (static_cast<long long>(image) * GROUPS + group) * filters + m0 + line;",
        "    unrolled for (int j = 0; j < BLOCKS_N; j += TOGETHER)",
        "      unrolled for (int w = 0; w < 2 * TOGETHER; w += Y_WIDTH) {",
        "        const int column = n0 + warp_n + j * 8 + lane % 4 * 2 * TOGETHER + w;",
        "        if (column >= plane) continue;",
        "        Pack<Result, Y_WIDTH> made;",
        "        unrolled for (int v = 0; v < Y_WIDTH; ++v)",
        f"          made.at[v] = {text.stored(made)};",
        "        *reinterpret_cast<Pack<Result, Y_WIDTH>*>(y + row * plane + column) = made;",
        "      }",
        "  }",
    ]

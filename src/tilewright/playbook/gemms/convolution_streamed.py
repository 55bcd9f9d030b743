"""Convolutions for Hopper (sm_90a) that read x as it lies: no copy in another form is made.

Positions are rows of the product, which wgmma takes from registers: TMA brings lines of x, lanes read the window of
their results from them and round it, and a tap is another register of the same window. Weights stay in shared
memory. Where memory bounds, what this saves is a pass that reads x and writes it, and another that reads it again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from tilewright.playbook.cpp_text import worded
from tilewright.playbook.file_text import MOST_32_BIT, Fragment
from tilewright.playbook.gemms.convolution_plan_text import ConvolutionText
from tilewright.playbook.gemms.convolution_program import Convolution, Window
from tilewright.playbook.gemms.hopper_form import BARRIERS, SHOW, wgmma
from tilewright.playbook.gemms.plan_text import Choices
from tilewright.playbook.gemms.program import Extent
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("gemms/convolution_streamed")

_POSITIONS = 128  # of a consumer's tile, along the width
_CHANNELS = 16  # of a slot
_MOST_WINDOW = 20  # floats that a lane reads for four results
_MOST_STRIDE = 3
_LEAST_POSITIONS = 1 << 17  # a few tiles for every consumer
_ROOM = 224 * 1024  # of shared memory
_ONE = Window(Extent("1", 1), Extent("1", 1), 1, 1, 0, 1)

_HEADER = """
{name} as a product of positions with weights, which stay in shared memory. x streams past them as it lies: TMA brings
lines of CB channels, zeros around them, into a ring of slots for each of two consumer warpgroups. Positions are the
rows of the product, so that lanes hold four neighbours: they read the window of those from the slot, and a tap is
another register of it, as wgmma takes them.
"""
_F16_HEADER = """
f32 is rounded to f16, which has the ten bits that TF32 has, for its weights take half the room; they are scaled by a
power of two. Tiles with positions whose channels f16 does not hold are made in f32.
"""


@dataclass(frozen=True)
class Streams:
    """How a convolution is divided into tiles."""

    convolution: Convolution

    @property
    def line(self) -> Window:
        """The dimension above the innermost."""
        return self.convolution.windows[-2] if len(self.convolution.windows) == 2 else _ONE

    @property
    def width(self) -> Window:
        return self.convolution.windows[-1]

    @property
    def lead(self) -> int:
        """Elements before a window, so that it begins at a multiple of 16 bytes."""
        return -self.convolution.plain_padding(self.width) % 4

    @property
    def window(self) -> int:
        """Floats that a lane reads for its four results."""
        width = self.width
        reach = self.lead + 3 * width.stride + (width.taps - 1) * width.dilation + 1
        return -(-reach // 4) * 4

    @property
    def boxes(self) -> int:
        """Of a line in a slot: TMA brings up to 256 elements at once."""
        return 1 if self.width.stride == 1 else 2

    @property
    def pitch(self) -> int:
        """Of a channel in a box: what a warp reads lies in all banks where it is 8 more than a multiple of 16."""
        least = (_POSITIONS // self.boxes - 4) * self.width.stride + self.window
        return -(-(least - 8) // 16) * 16 + 8

    @cached_property
    def filters(self) -> int:
        """Of a tile, which a block keeps the weights of."""
        made = self.convolution.filters.size
        wanted = 32 if made <= 32 else 64 if made <= 64 else 128
        return wanted if self.fits(wanted) else wanted // 2

    @property
    def lines(self) -> int:
        """Lines of results of a tile: as many as registers have sums for. Those share what they read."""
        line = self.line
        if line.taps == 1 or line.stride > 1 or line.dilation > 1:
            return 1
        return 2 if self.filters <= 64 and self.width.taps * line.taps <= 9 else 1

    @property
    def slot_bytes(self) -> int:
        return self.boxes * _CHANNELS * self.pitch * 4

    @cached_property
    def is_tf32(self) -> bool:
        """Where there is room for such weights: nothing needs to be looked at then. Several lines take too long so."""
        return self.line.taps == 1 and self.fits(self.filters, 4)

    def fits(self, filters: int, bytes_of_weight: int = 2) -> bool:
        channels, most = self.convolution.channels.size, 128 // bytes_of_weight
        of_row = 16 if channels <= 16 else 32 if channels <= 32 else most
        weights = self.convolution.taps * -(-channels // of_row) * of_row * filters * bytes_of_weight
        return weights + 2 * 3 * self.slot_bytes + 2 * 2 * 16 * 132 * 4 <= _ROOM


def can_write(convolution: Convolution) -> bool:
    """Whether these files take a convolution at the task's own sizes."""
    one, streams = convolution, Streams(convolution)
    f32 = one.element is DType.F32 and one.output.dtype is DType.F32 and not one.is_exact and one.across is None
    if (
        not f32
        or one.groups > 1
        or one.is_depthwise
        or any(each.varies and each.parts == () for each in one.epilogue_inputs)
    ):
        return False
    if len(one.windows) > 2 or one.taps == 1:
        return False
    if one.transposed and any(each.stride > 1 or one.plain_padding(each) < 0 for each in one.windows):
        return False
    if streams.width.stride > _MOST_STRIDE or streams.window > _MOST_WINDOW or streams.pitch > 256:
        return False
    return streams.width.length.size % 4 == 0 and streams.fits(streams.filters)


def pays(convolution: Convolution) -> bool:
    """Whether memory bounds it, at the task's own sizes, and it is large enough to fill the GPU.

    Several lines of taps are read as often: that pays where a tile has several lines of results, and few to store.
    """
    if not can_write(convolution):
        return False
    made = convolution.batch.size * math.prod(one.results.size for one in convolution.windows)
    streams = Streams(convolution)
    few = streams.lines > 1 and streams.filters <= 32
    return (streams.line.taps == 1 or few) and made >= _LEAST_POSITIONS


def streamed_convolution(convolution: Convolution, op_line: str, choices: Choices = Choices.ALL) -> Fragment:
    """Tiles of 128 positions, of one line or two, times all filters or as many as fit."""
    streams = Streams(convolution)
    text = ConvolutionText(convolution, op_line, choices)
    _plan(text, streams)
    wanted = ("height", "width", "y_height", "y_width", "filters", "row_tiles", "tiles_x", "tiles_y", "tiles")
    tensors = text.parameters()
    pairs = [
        ("const __grid_constant__ CUtensorMap x_map", "@x_map"),
        *tensors[:3],
        *((f"int {one}", f"@{one}") for one in wanted),
        *tensors[3:],
    ]
    per_row = "max(1, min(device.sms / @row_tiles, ceil_div(@tiles, CONSUMERS)))"
    grid, block = f"{per_row} * @row_tiles", "(CONSUMERS + 1) * 128, @smem"
    kernel = text.launched("convolve", grid, block, pairs, "THREADS, 1", _body(text, streams))
    tap = "(TAPS - 1 - tap)" if convolution.transposed else "tap"
    weights = worded(_CUDA["weights"], {"weight_at": _weight_at(streams, "c", "f0 + f", "tap"), "tap": tap})
    kind = "tf32" if streams.is_tf32 else "f16"
    multiply = wgmma((streams.filters,), kind, (False, False), (32, 64, 128), in_registers=True)
    made = text.fragment(
        _HEADER.format(name=text.name) + ("" if streams.is_tf32 else _F16_HEADER),
        _constants(text, streams),
        [BARRIERS + SHOW],
        [multiply],
        [_CUDA["device"]],
        [weights],
        text.epilogue.function,
        kernel,
    )
    included = sorted({*made.includes, "#include <cuda_fp16.h>"})
    return Fragment(made.header, made.plan, included, made.pieces)


def _weight_at(streams: Streams, channel: str, filter: str, tap: str) -> str:
    if streams.convolution.transposed:
        return f"((long long){channel} * filters + {filter}) * TAPS + {tap}"
    return f"((long long)({filter}) * CHANNELS + {channel}) * TAPS + {tap}"


# -- the plan --


def _plan(text: ConvolutionText, streams: Streams) -> None:
    add, sizes, one = text.plan.add, text.sizes, text.convolution
    add("need", f"device.cc == 90 and min({', '.join(sizes.values())}) > 0")
    line = [("@height", "in_y"), ("@y_height", "out_y")]
    listed = [f"{name} = {sizes[of]}" if len(one.windows) == 2 else f"{name} = 1" for name, of in line]
    add("let", f"{', '.join(listed)}, @width = {sizes['in_x']}, @y_width = {sizes['out_x']}")
    add("need", "@width % 4 == 0", "lines of x are whole pieces of 16 bytes")
    add("need", f"max(@height * @width, @y_height * @y_width) <= {MOST_32_BIT}", "places fit an int")
    add("const", f"CHANNELS = {sizes['channels']}")
    add("const", f"N = {streams.filters}, CB = {_CHANNELS}, LINES = {streams.lines}", "filters, channels, lines")
    add("const", "CONSUMERS = 2", "warpgroups that multiply and store, each tiles of its own")
    add("const", "STAGED = @y_width % 8 != 0", "lines of the result do not begin with sectors")
    add("const", f"TILE_STEP = {_POSITIONS - 8} if STAGED else {_POSITIONS}", "positions from a tile to the next")
    add("let", "@row_tiles = ceil_div(@filters, N)")
    ends = f"ceil_div(max(1, @y_width + TILE_STEP - {_POSITIONS}), TILE_STEP)"
    add("let", f"@tiles_x = {ends}, @tiles_y = ceil_div(@y_height, LINES)")
    add("let", f"@tiles = {sizes['images']} * @tiles_x * @tiles_y")
    add("need", f"max(@row_tiles, @tiles) <= {MOST_32_BIT}")
    size = 4 if streams.is_tf32 else 2
    rows = "32 if CHANNELS > 16 else 16" if streams.is_tf32 else "64 if CHANNELS > 32 else 32 if CHANNELS > 16 else 16"
    add("const", f"PER_ROW = {rows}", "channels of a row of weights")
    add("let", f"@weight_bytes = {one.taps} * ceil_div(round_up(CHANNELS, CB), PER_ROW) * N * PER_ROW * {size}")
    add("let", "@staged_bytes = CONSUMERS * 2 * 16 * 132 * 4 if STAGED else 0")
    add("let", f"@slot_bytes = {streams.boxes} * CB * {streams.pitch} * 4")
    room = "device.smem_block - @weight_bytes - @staged_bytes - N * 4 - 1024"
    add("need", f"{room} >= 4 * @slot_bytes")
    add("const", f"SLOTS = min(16, ({room}) / (CONSUMERS * @slot_bytes))", "of a consumer's ring")
    add("let", "@smem = @weight_bytes + @staged_bytes + CONSUMERS * SLOTS * (@slot_bytes + 16) + N * 4 + 8")
    shape = f"shape=[{sizes['images']}, CHANNELS, @height, @width]"
    add("map", f"@x_map = tiled({one.x}, {shape}, box=[1, CB, 1, {streams.pitch}], l2=256)")


def _constants(text: ConvolutionText, streams: Streams) -> list[str]:
    line, width = streams.line, streams.width
    return [
        f"constexpr bool TF32 = {str(streams.is_tf32).lower()};",
        "constexpr int K = TF32 ? 8 : 16, BYTES = 32 / K, PER_CHUNK = 16 / BYTES;  // channels of a wgmma; of each",
        "constexpr int THREADS = (CONSUMERS + 1) * 128, POSITIONS = 128;  // the positions are a tile's",
        f"constexpr int WIDTH_TAPS = {width.taps}, STRIDE = {width.stride}, DILATION = {width.dilation}, "
        f"PADDING = {text.convolution.plain_padding(width)};",
        f"constexpr int LINE_TAPS = {line.taps}, LINE_STRIDE = {line.stride}, LINE_DILATION = {line.dilation}, "
        f"LINE_PADDING = {text.convolution.plain_padding(line)};",
        "constexpr int TAPS = LINE_TAPS * WIDTH_TAPS, IN_LINES = LINES + LINE_TAPS - 1;",
        "// What a lane reads for its four results; elements before it, so that it begins at 16 bytes.",
        f"constexpr int WINDOW = {streams.window}, LEAD = {streams.lead};",
        "constexpr int STAGES = (CHANNELS + CB - 1) / CB, PADDED = STAGES * CB;  // of a line, in slots of CB channels",
        f"constexpr int BOXES = {streams.boxes}, PITCH = {streams.pitch}, SLOT_FLOATS = BOXES * CB * PITCH;",
        "constexpr int CHANNEL_BLOCKS = (PADDED + PER_ROW - 1) / PER_ROW, ROW_BYTES = PER_ROW * BYTES;",
        "constexpr int WEIGHT_BYTES = TAPS * CHANNEL_BLOCKS * N * ROW_BYTES;",
        "constexpr uint64_t SWIZZLE = (uint64_t)(ROW_BYTES == 128 ? 1 : ROW_BYTES == 64 ? 2 : 3) << 62;",
        "constexpr int STAGED_PITCH = 132, STAGED_FLOATS = 16 * STAGED_PITCH;  // which spreads them over all banks",
    ]


# -- the kernel --


def _body(text: ConvolutionText, streams: Streams) -> list[str]:
    epilogue = text.epilogue
    sums = [f"sum[made][{e // 2}][i + {e % 2 * 2}] * by" for e in range(4)]
    words: dict[str, str | list[str]] = {
        "again": "" if streams.is_tf32 else _CUDA["again"],
        "again_at": _weight_at(streams, "c", "first_filter + k", _backwards(streams)),
        "again_made": epilogue.call("total[k]"),
        "staged": _CUDA["stage"],
        "made": epilogue.call_read("value[k][i]", "[k][i]"),
        "there": epilogue.arrays("[4][4]"),
        "from": epilogue.pointers("@ + at + owned.begin + lane"),
        "read": epilogue.reads("[k][i]", "has", "i * 32"),
        "direct": _CUDA["direct"],
        "four": ", ".join(epilogue.call(one, at=f"at + {e}") for e, one in enumerate(sums)),
    }
    return worded(_CUDA["body"], words).splitlines()


def _backwards(streams: Streams) -> str:
    return "TAPS - 1 - tap" if streams.convolution.transposed else "tap"

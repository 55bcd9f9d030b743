"""Convolutions as products on the tensor cores of any GPU since Ampere, without a copy of x in another form.

The weights are one matrix, filters by channels and taps; the other is read out of x as it lies, element by element, by
asynchronous copies: positions are its columns. A transposed convolution is one such product for every phase of its
stride, with the taps that fall on elements of x there. 16-bit elements are multiplied as they are; f32 ones as TF32, as
PyTorch does by default, or where they must be exact as two TF32 parts.
"""

from __future__ import annotations

import math

from tilewright.playbook.convolutions.plan_text import ConvolutionText
from tilewright.playbook.convolutions.program import Convolution
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, Fragment
from tilewright.playbook.products.plan_text import Choices
from tilewright.playbook.products.program import Extent, Operand
from tilewright.playbook.products.tensor_cores import (
    ASYNC_COPY,
    TILE_COPY,
    Side,
    fragment_pieces,
    half_step,
    wide_step,
)
from tilewright.records import DType

_MOST_BITS = 31  # a bit for every tap along every axis, and one for what lies beyond the last channel

_TAPS = """\
// The taps along an axis that a phase of the result has: `count` of them, tap number `first` and every `step`th after
// it. The first one meets x at `place` from where a position stands in it, and each further one `apart` from there.
struct Taps {
  int count, first, step, place, apart;
};
template <int KERNEL, int STRIDE, int PAD, int DILATION>
__device__ __forceinline__ Taps taps_of(int phase) {
"""
_PLAIN_TAPS = """\
  return {KERNEL, 0, 1, -PAD, DILATION};
}
"""
_SPREAD_TAPS = """\
  int step = 1, first = 0;  // where a step of the taps is a whole number of elements of x
  while (step * DILATION % STRIDE != 0) ++step;
  while (first < step && (phase + PAD - first * DILATION) % STRIDE != 0) ++first;
  const int count = first < min(step, KERNEL) ? (KERNEL - 1 - first) / step + 1 : 0;
  return {count, first, step, (phase + PAD - first * DILATION) / STRIDE, -(step * DILATION / STRIDE)};
}
"""
_STEP = """\
// Where a channel's tap lies in x from where a position stands, and the bits of a position for which that is inside.
struct Entry {
  int place;
  unsigned needs;
};
"""


def can_write(convolution: Convolution) -> bool:
    """Whether the taps along all axes have a bit each, and the elements are such as tensor cores take."""
    bits = sum(one.taps for one in convolution.windows)
    return bits <= _MOST_BITS and convolution.element in (DType.F32, DType.F16, DType.BF16)


def tensor_core_convolution(convolution: Convolution, op_line: str, choices: Choices = Choices.ALL) -> Fragment:
    """BM filters x BN positions of a block; STAGES steps along channels and taps are under way at once."""
    text = ConvolutionText(convolution, op_line, choices)
    wide = convolution.element is DType.F32
    sides = _sides(convolution)
    packed, tiles, shared = _plan(text)
    blocks = _groups(text)
    pairs = [
        (f"const {convolution.element.cpp}* __restrict__ weight", convolution.weight),
        (f"{convolution.element.cpp}* __restrict__ packed", packed[0]),
        ("int channels", text.sizes["channels"]),
        ("int filters", text.sizes["filters"]),
        ("int k_pitch", packed[1]),
    ]
    pack = text.signature(pairs)
    count = f"{packed[1]} * {text.sizes['filters']}"
    text.plan.launch(f"{text.name}_pack", f"dim3(ceil_div({count}, 256), {blocks})", "256", pack.given)
    parameters = text.parameters("channels", "filters", "images", *text.lengths)
    parameters[1] = (f"const {convolution.element.cpp}* __restrict__ packed", packed[0])
    signature = text.signature([*parameters, ("int k_pitch", packed[1])])
    name = f"{text.name}_tensor_cores"
    text.plan.launch(name, f"dim3({tiles}, {blocks})", f"64 * WARPS_N, {shared}", signature.given)
    taps = _TAPS + (_SPREAD_TAPS if convolution.transposed else _PLAIN_TAPS)
    return text.fragment(
        _header(text),
        _constants(text, wide),
        [taps],
        [_STEP],
        [ASYNC_COPY],
        [TILE_COPY],
        [
            f"using ACopy = TileCopy<BM, BK, {4 if wide else 8}, {16 // convolution.element.itemsize}>;",
            "using BCopy = TileCopy<BK, BN, 8, 1>;",
        ],
        *fragment_pieces(convolution.element, convolution.is_exact),
        text.finish.function,
        pack.kernel("__launch_bounds__(256)", f"{text.name}_pack", _pack_body(text)),
        signature.kernel("__launch_bounds__(THREADS)", name, _body(text, sides)),
    )


def _header(text: ConvolutionText) -> str:
    one = text.convolution
    header = (
        f"{text.name} as a product on tensor cores: a block computes BM filters x BN positions, which its warps share "
        "as a 2 x WARPS_N grid. Its steps are BK pairs of a channel and a tap. Weights come from a copy in the order "
        "of the steps; x is read as it lies: a thread owns a position, and a table in shared memory says for each "
        "pair where the element is from there. STAGES steps are under way at once, so that the copies of later steps "
        "run under the arithmetic of the present one. Results go through shared memory, to be stored in whole lines."
    )
    if one.transposed:
        header += (
            "\n\nThe convolution is transposed: results of one phase of the stride take the same taps, so each phase "
            "is a product of its own."
        )
    if one.is_exact:
        header += (
            "\n\nEvery f32 is two TF32 numbers, a big and a small part, and three products of parts give what f32 "
            "arithmetic gives. A tensor core cuts bits off when it adds, so sums of BK products are added up in f32 "
            "outside it."
        )
    return header


def _sides(convolution: Convolution) -> tuple[Side, Side]:
    """The packed weights, and x as the table reads it."""
    none = Extent("0", 0)
    return (
        Side("a", "m", "BM", Operand("packed", convolution.element, True, none, none)),
        Side("b", "n", "BN", Operand("x", convolution.element, False, none, none)),
    )


# -- the plan --


def _phases(text: ConvolutionText) -> int:
    """Parts of the result that have taps of their own."""
    return math.prod(one.stride for one in text.convolution.windows) if text.convolution.transposed else 1


def _groups(text: ConvolutionText) -> str:
    return str(text.convolution.groups * _phases(text))


def _plan(text: ConvolutionText) -> tuple[tuple[str, str], str, str]:
    """Constants and sizes; the packed weights and their pitch, the number of tiles, and the bytes of a block."""
    plan, sizes, one = text.plan, text.sizes, text.convolution
    size, wide = one.element.itemsize, one.element is DType.F32
    plan.add("need", "device.cc >= 80")
    text.places_fit()
    plan.add("need", f"{sizes['channels']} * {text.plane_in} <= {MOST_32_BIT}", "from where a position stands too")
    for name, choices, remark in (("BM", _tile_rows(one), "filters and positions of a block"), ("BN", (128, 64), "")):
        text.tune(name, choices if text.choices is not Choices.TILES else choices[:2], remark)
    plan.add("const", f"BK = {32 if wide else 64}, WARPS_N = BN / 32")
    text.tune("STAGES", (3, 2, 4), "steps under way at once")
    packed, pitch, positions, tiles, shared = map(
        plan.name, ("packed", "k_pitch", "positions", "tiles", "shared_bytes")
    )
    most = math.prod(_most_taps(text, axis) for axis in text.axes)
    plan.add("let", f"{pitch} = round_up({sizes['channels']} * {most}, {16 // size})", "channels and taps of a filter")
    plan.add("scratch", f"{packed}: {one.element.value}[{_groups(text)}, {sizes['filters']}, {pitch}]")
    lengths = [
        f"ceil_div({sizes[f'out_{axis}']}, {window.stride})" if _is_phased(text, axis) else sizes[f"out_{axis}"]
        for axis, window in text.axes.items()
    ]
    plan.add("let", f"{positions} = {' * '.join([sizes['images'], *lengths])}")
    plan.add("let", f"{tiles} = ceil_div({sizes['filters']}, BM) * ceil_div({positions}, BN)")
    plan.add("need", f"max({positions}, {sizes['filters']} * {pitch}) <= {MOST_32_BIT}")
    ring = f"STAGES * ((BM * (BK + {4 if wide else 8}) + BK * (BN + 8)) * {size} + BK * 8)"
    plan.add("let", f"{shared} = max({ring}, BM * (BN + 8) * 4)")
    plan.add("need", f"{shared} <= device.smem_block")
    return (packed, pitch), tiles, shared


def _most_taps(text: ConvolutionText, axis: str) -> int:
    """Along an axis, in one phase of the result."""
    one = text.axes[axis]
    if not text.convolution.transposed:
        return one.taps
    step = one.stride // math.gcd(one.stride, one.dilation)
    return -(-one.taps // step)


def _tile_rows(convolution: Convolution) -> tuple[int, ...]:
    """As many filters as there are, where they are few."""
    filters = convolution.filters.size
    return (32, 64) if filters <= 32 else (64, 128) if filters <= 64 else (128, 64)


# -- the kernels --


def _constants(text: ConvolutionText, wide: bool) -> list[str]:
    taps = [f"KERNEL_{axis.upper()}" for axis in reversed(text.axes)]
    return [
        f"using Element = {text.convolution.element.cpp};",
        "constexpr int WARPS_M = 2, THREADS = WARPS_M * WARPS_N * 32, WARP_M = BM / WARPS_M, WARP_N = BN / WARPS_N;",
        f"constexpr int BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 8, STEPS_K = BK / {8 if wide else 16};"
        "  // mma of a warp",
        "constexpr int STAGED = BN + 8;  // a line of results on their way out",
        *text.window_constants(),
        f"constexpr int GROUPS = {text.convolution.groups}, TAPS = {' * '.join(taps)};",
    ]


def _phase_lines(text: ConvolutionText) -> list[str]:
    """Which group and phase a block has, and the taps of that phase."""
    lines, rest = ["const int group = blockIdx.y % GROUPS;"], "static_cast<int>(blockIdx.y) / GROUPS"
    for axis in text.axes:
        upper = axis.upper()
        if _is_phased(text, axis):
            lines.append(f"const int phase_{axis} = {rest} % STRIDE_{upper};")
            rest += f" / STRIDE_{upper}"
        constants = ", ".join(f"{one}_{upper}" for one in ("KERNEL", "STRIDE", "PAD", "DILATION"))
        phase = f"phase_{axis}" if _is_phased(text, axis) else "0"
        lines.append(f"const Taps taps_{axis} = taps_of<{constants}>({phase});")
    counts = " * ".join(f"taps_{axis}.count" for axis in reversed(text.axes))
    return [*lines, f"const int taps = {counts};"]


def _is_phased(text: ConvolutionText, axis: str) -> bool:
    return text.convolution.transposed and text.axes[axis].stride > 1


def _pair_lines(text: ConvolutionText) -> list[str]:
    """The channel and the tap that k stands for, the tap by its number along every axis."""
    lines, before = ["const int c = k / taps, t = k - c * taps;"], ""
    for axis in text.axes:
        divided = f"t / ({before})" if " " in before else f"t / {before}" if before else "t"
        last = axis == list(text.axes)[-1]
        lines.append(f"const int i_{axis} = {divided}{'' if last else f' % taps_{axis}.count'};")
        before = f"{before} * taps_{axis}.count" if before else f"taps_{axis}.count"
    return lines


def _pack_body(text: ConvolutionText) -> list[str]:
    """The weights of a group and phase as a matrix: a row for each filter, channels and then taps along it."""
    row = "(group * filters + f) * static_cast<long long>(channels) + c"
    if text.convolution.transposed:
        row = "(group * channels + c) * static_cast<long long>(filters) + f"
    tap = ""
    for axis in reversed(text.axes):
        number = f"taps_{axis}.first + i_{axis} * taps_{axis}.step"
        tap = f"({tap}) * KERNEL_{axis.upper()} + {number}" if tap else number
    return [
        *_phase_lines(text),
        "const int at = blockIdx.x * 256 + threadIdx.x, f = at / k_pitch, k = at - f * k_pitch;",
        "if (f >= filters) return;",
        "Element made = static_cast<Element>(0.0f);  // beyond the last pair of a channel and a tap",
        "if (k < channels * taps) {",
        *indented(_pair_lines(text)),
        f"  const int tap = {tap};",
        f"  made = weight[({row}) * TAPS + tap];",
        "}",
        "packed[static_cast<long long>(blockIdx.y) * filters * k_pitch + at] = made;",
    ]


def _body(text: ConvolutionText, sides: tuple[Side, Side]) -> list[str]:
    one = text.convolution
    step = wide_step(sides, one.is_exact) if one.element is DType.F32 else half_step(sides)
    return [
        "extern __shared__ __align__(128) unsigned char shared[];",
        "Element* slots = reinterpret_cast<Element*>(shared);",
        "constexpr int SLOT = ACopy::ELEMENTS + BCopy::ELEMENTS;",
        "Entry(*table)[BK] = reinterpret_cast<Entry(*)[BK]>(slots + STAGES * SLOT);",
        "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;",
        "const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;",
        *_phase_lines(text),
        *_position_lines(text),
        "const int k_end = channels * taps, steps = (k_end + BK - 1) / BK;",
        "packed += static_cast<long long>(blockIdx.y) * filters * k_pitch;",
        "",
        *_table_lines(text),
        *_copy_lines(),
        "for (int stage = 0; stage < STAGES; ++stage) write_table(stage);",
        "__syncthreads();",
        "for (int stage = 0; stage < STAGES - 1; ++stage) copy_step(stage);",
        "",
        "float sums[BLOCKS_M][BLOCKS_N][4] = {};",
        "for (int step = 0; step < steps; ++step) {",
        "  wait<STAGES - 2>();",
        "  __syncthreads();  // the step's slot has arrived for everyone, and everyone has read the one before",
        "  copy_step(step + STAGES - 1);  // into that one",
        "  write_table(step + STAGES);",
        "  const Element* a_tile = slots + step % STAGES * SLOT;",
        "  const Element* b_tile = a_tile + ACopy::ELEMENTS;",
        *indented(step),
        "}",
        "",
        *_store_lines(text),
    ]


def _position_lines(text: ConvolutionText) -> list[str]:
    """Which filters and positions a block has, and what the thread's own position has of x."""
    lines = [
        "const int tiles_m = (filters + BM - 1) / BM;",
        "const int m0 = blockIdx.x % tiles_m * BM, n0 = blockIdx.x / tiles_m * BN;",
    ]
    along = {axis: f"along_{axis}" if _is_phased(text, axis) else f"out_{axis}" for axis in text.axes}
    for axis in (one for one in text.axes if _is_phased(text, one)):
        stride = f"STRIDE_{axis.upper()}"
        lines.append(f"const int along_{axis} = (out_{axis} - phase_{axis} + {stride} - 1) / {stride};")
    if _phases(text) > 1:
        lines.append(f"if (n0 >= images * {' * '.join(along.values())}) return;  // other phases have more")
    lines.append("// The thread's own position, among those of all images, and where it stands in x.")
    lines.append("int rest = n0 + threadIdx.x % BN;")
    for axis, length in along.items():
        factor = "" if text.convolution.transposed else f" * STRIDE_{axis.upper()}"
        lines.append(f"const int q_{axis} = rest % {length}, stands_{axis} = q_{axis}{factor};")
        lines.append(f"rest /= {length};")
    lines += [
        "const int image = rest;",
        f"const long long plane_in = {text.plane('in')}, plane_out = {text.plane('out')};",
        "const Element* stands = x + (static_cast<long long>(image) * GROUPS + group) * channels * plane_in +",
        f"                        {text.place_in_plane('in', {axis: f'stands_{axis}' for axis in text.axes})};",
        "unsigned have = 0;  // a bit for every tap along every axis: whether it meets x",
    ]
    before: list[str] = []
    for axis in text.axes:
        bit = f"({' + '.join([*before, 'i'])})" if before else "i"
        lines += [
            f"for (int i = 0; i < taps_{axis}.count; ++i) {{",
            f"  const int at = stands_{axis} + taps_{axis}.place + i * taps_{axis}.apart;",
            f"  if (at >= 0 && at < in_{axis} && image < images) have |= 1u << {bit};",
            "}",
        ]
        before.append(f"KERNEL_{axis.upper()}")
    return lines


def _table_lines(text: ConvolutionText) -> list[str]:
    bits, before = [], ""
    for axis in text.axes:
        bits.append(f"1u << ({before}i_{axis})" if before else f"1u << i_{axis}")
        before += f"KERNEL_{axis.upper()} + "
    places = [f"    const int at_{axis} = taps_{axis}.place + i_{axis} * taps_{axis}.apart;" for axis in text.axes]
    place = text.place_in_plane("in", {axis: f"at_{axis}" for axis in text.axes})
    return [
        "auto write_table = [&](int step) {",
        "  if (threadIdx.x >= BK) return;",
        "  const int k = step * BK + static_cast<int>(threadIdx.x);",
        "  Entry entry{0, 1u << 31};  // what no position has",
        "  if (k < k_end) {",
        *indented(_pair_lines(text), 2),
        *places,
        f"    entry.place = c * static_cast<int>(plane_in) + {place};",
        f"    entry.needs = {' | '.join(bits)};",
        "  }",
        "  table[step % STAGES][threadIdx.x] = entry;",
        "};",
    ]


def _copy_lines() -> list[str]:
    return [
        "auto copy_step = [&](int step) {",
        "  if (step < steps) {",
        "    Element* slot = slots + step % STAGES * SLOT;",
        "    ACopy::start(slot, packed, k_pitch, m0, step * BK, filters, k_pitch);",
        "    Element* column = slot + ACopy::ELEMENTS + threadIdx.x % BN;",
        "#pragma unroll",
        "    for (int i = 0; i < BK * BN / THREADS; ++i) {",
        "      const int line = threadIdx.x / BN + i * (THREADS / BN);",
        "      const Entry entry = table[step % STAGES][line];",
        "      const bool inside = (have & entry.needs) == entry.needs;",
        "      copy_async<sizeof(Element)>(column + line * BCopy::PITCH, inside ? stands + entry.place : x, inside);",
        "    }",
        "  }",
        "  commit();  // even when empty, so that the count of pending groups stays in step with the loop",
        "};",
    ]


def _store_lines(text: ConvolutionText) -> list[str]:
    made = [
        f"const int made_{axis} = q_{axis} * STRIDE_{axis.upper()} + phase_{axis};"
        for axis in text.axes
        if _is_phased(text, axis)
    ]
    places = {axis: f"made_{axis}" if _is_phased(text, axis) else f"q_{axis}" for axis in text.axes}
    return [
        "wait<0>();",
        "__syncthreads();  // nobody reads the slots any more",
        "// A lane holds pairs of columns of rows lane / 4 and lane / 4 + 8 of every 16 x 8 block.",
        "float* staged = reinterpret_cast<float*>(shared);",
        "#pragma unroll",
        "for (int i = 0; i < BLOCKS_M; ++i)",
        "#pragma unroll",
        "  for (int j = 0; j < BLOCKS_N; ++j)",
        "#pragma unroll",
        "    for (int r = 0; r < 4; ++r) {",
        "      const int line = warp_m + i * 16 + r / 2 * 8 + lane / 4;",
        "      staged[line * STAGED + warp_n + j * 8 + lane % 4 * 2 + r % 2] = sums[i][j][r];",
        "    }",
        "__syncthreads();",
        "if (image >= images) return;",
        *made,
        f"const int column = {text.place_in_plane('out', places)};",
        "for (int line = threadIdx.x / BN; line < min(BM, filters - m0); line += THREADS / BN) {",
        "  const int channel = group * filters + m0 + line;",
        "  const long long row = static_cast<long long>(image) * (GROUPS * filters) + channel;",
        "  const long long at = row * plane_out + column;",
        "  const float sum = staged[line * STAGED + threadIdx.x % BN];",
        f"  y[at] = {text.stored(text.finish.call('sum'))};",
        "}",
    ]

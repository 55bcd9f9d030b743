"""The kernel of a convolution on tensor cores, and how phases and taps are numbered in it."""

from __future__ import annotations

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.gemms.convolution_plan_text import ConvolutionText
from tilewright.playbook.gemms.convolution_program import Convolution
from tilewright.playbook.gemms.tensor_cores import (
    FIRST_COPIES,
    Side,
    half_step,
    over_steps,
    rounded_step,
    staged_sums,
    wide_step,
)
from tilewright.records import DType

_LANES = [
    "const Element* a_lane = a_tile + (warp_m + lane % 16) * ACopy::PITCH + lane / 16 * 4;",
    "const Element* b_lane = b_tile + lane % 4 * BCopy::PITCH + warp_n + lane / 4;",
]
_ROUNDED = [
    "unrolled for (int j = 0; j < BLOCKS_N; ++j)",
    "  unrolled for (int r = 0; r < 2; ++r) b_part[j][r] = tf32(b_lane[(p * 8 + r * 4) * BCopy::PITCH + j * 8]);",
]


def phases(text: ConvolutionText, axis: str) -> int:
    """Parts of the result along an axis that have taps of their own."""
    return text.axes[axis].stride if text.convolution.transposed else 1


def is_rounded(convolution: Convolution) -> bool:
    """Whether the packed weights are TF32 numbers."""
    return convolution.element is DType.F32 and not convolution.is_exact


# -- pieces that the packing of weights has too --


def phase_lines(text: ConvolutionText, number: str) -> list[str]:
    """The group and the phases that a number stands for, and their taps; without those along rows."""
    lines, rest = [f"const int group = {number} % GROUPS;"], f"{number} / GROUPS"
    for axis in (one for one in text.axes if one != "x"):
        if phases(text, axis) > 1:
            lines.append(f"const int phase_{axis} = {rest} % STRIDE_{axis.upper()};")
            rest += f" / STRIDE_{axis.upper()}"
        lines.append(taps_line(text, axis))
    return lines


def taps_line(text: ConvolutionText, axis: str) -> str:
    constants = ", ".join(f"{one}_{axis.upper()}" for one in ("KERNEL", "STRIDE", "PAD", "DILATION"))
    phase = f"phase_{axis}" if phases(text, axis) > 1 or axis == "x" else "0"
    return f"const Taps taps_{axis} = taps_of<{constants}>({phase});"


def taps_count(text: ConvolutionText) -> str:
    return f"const int taps = {' * '.join(f'taps_{axis}.count' for axis in reversed(text.axes))};"


def pair_lines(text: ConvolutionText) -> list[str]:
    """The channel and the tap that k stands for, the tap by its number along every axis."""
    lines, before = ["const int c = k / taps, t = k - c * taps;"], ""
    for axis in text.axes:
        divided = f"t / ({before})" if " " in before else f"t / {before}" if before else "t"
        last = axis == list(text.axes)[-1]
        lines.append(f"const int i_{axis} = {divided}{'' if last else f' % taps_{axis}.count'};")
        before = f"{before} * taps_{axis}.count" if before else f"taps_{axis}.count"
    return lines


# -- the kernel --


def kernel_body(text: ConvolutionText, sides: tuple[Side, Side]) -> list[str]:
    several = phases(text, "x") > 1
    beyond = "reinterpret_cast<float*>(table + STAGES)" if several else "reinterpret_cast<float*>(shared)"
    phase = _phase(text, sides)
    if several:
        phase = ["for (int phase_x = 0; phase_x < PHASES_X; ++phase_x) {", *indented(phase), "}"]
    else:
        phase = ["const int phase_x = 0;", *phase]
    return [
        "extern __shared__ __align__(128) unsigned char shared[];",
        "Element* slots = reinterpret_cast<Element*>(shared);",
        "constexpr int SLOT = ACopy::ELEMENTS + BCopy::ELEMENTS;",
        "Entry(*table)[BK] = reinterpret_cast<Entry(*)[BK]>(slots + STAGES * SLOT);",
        f"float* staged = {beyond};" + ("" if several else "  // once nobody reads the slots any more"),
        "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;",
        "const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;",
        *phase_lines(text, "static_cast<int>(blockIdx.y)"),
        *_position_lines(text),
        "",
        *phase,
        *_store_lines(text),
    ]


def _phase(text: ConvolutionText, sides: tuple[Side, Side]) -> list[str]:
    """The product of one phase, up to its sums in shared memory."""
    one = text.convolution
    step = half_step(sides) if one.element is not DType.F32 else wide_step(sides, one.is_exact)
    step = [*_LANES, *rounded_step("STEPS_K", "ACopy::PITCH", _ROUNDED)] if is_rounded(one) else step
    held = one.element.itemsize == 2
    first = [FIRST_COPIES]
    if held:
        first = [FIRST_COPIES.replace("copy_step(stage);", "{"), "  copy_step(stage);", "  keep_step(stage);", "}"]
    return [
        taps_line(text, "x"),
        taps_count(text),
        "const int k_end = channels * taps, steps = (k_end + BK - 1) / BK;",
        "const long long matrix = static_cast<long long>(blockIdx.y) * PHASES_X + phase_x;",
        "const Element* weights = packed + matrix * filters * k_pitch;",
        *_have_lines(text),
        *_table_lines(text),
        *_copy_lines(text),
        "for (int stage = 0; stage < STAGES; ++stage) write_table(stage);",
        "__syncthreads();",
        *first,
        "",
        *over_steps(
            [
                "write_table(step + STAGES);",
                "const Element* a_tile = slots + step % STAGES * SLOT;",
                "const Element* b_tile = a_tile + ACopy::ELEMENTS;",
                *step,
                *(["keep_step(step + STAGES - 1);"] if held else []),
            ]
        ),
        "",
        "wait<0>();",
        "__syncthreads();  // nobody reads the slots any more",
        *staged_sums("at * PHASES_X + phase_x"),
    ]


def _position_lines(text: ConvolutionText) -> list[str]:
    """Which filters and positions a block has, and where the thread's own position stands in x."""
    lines = [
        "const int tiles_m = (filters + BM - 1) / BM;",
        "const int m0 = blockIdx.x % tiles_m * BM, n0 = blockIdx.x / tiles_m * BN;",
    ]
    for axis in text.axes:
        stride, phase = f"STRIDE_{axis.upper()}", "" if axis == "x" else f" - phase_{axis}"
        if phases(text, axis) > 1:
            lines.append(f"const int along_{axis} = (out_{axis}{phase} + {stride} - 1) / {stride};")
        else:
            lines.append(f"const int along_{axis} = out_{axis};")
    along = " * ".join(f"along_{axis}" for axis in text.axes)
    if any(phases(text, axis) > 1 for axis in text.axes if axis != "x"):
        lines.append(f"if (n0 >= images * {along}) return;  // other phases have more")
    lines.append("// The thread's own position, among those of all images, and where it stands in x.")
    lines.append("int rest = n0 + threadIdx.x % BN;")
    for axis in text.axes:
        factor = "" if text.convolution.transposed else f" * STRIDE_{axis.upper()}"
        lines.append(f"const int stands_{axis} = rest % along_{axis}{factor};")
        lines.append(f"rest /= along_{axis};")
    return [
        *lines,
        "const int image = rest;",
        f"const long long plane_in = {text.plane('in')}, plane_out = {text.plane('out')};",
        "const Element* stands = x + (static_cast<long long>(image) * GROUPS + group) * channels * plane_in +",
        f"                        {text.place_in_plane('in', {axis: f'stands_{axis}' for axis in text.axes})};",
        'asm("" : "+l"(stands));  // kept as one address: one instruction adds to it, where a sum of parts takes four',
    ]


def _have_lines(text: ConvolutionText) -> list[str]:
    lines = ["unsigned have = 0;  // a bit for every tap along every axis: whether it meets x"]
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
        *indented(pair_lines(text), 2),
        *places,
        f"    entry.place = c * static_cast<int>(plane_in) + {place};",
        f"    entry.needs = {' | '.join(bits)};",
        "  }",
        "  table[step % STAGES][threadIdx.x] = entry;",
        "};",
    ]


def _copy_lines(text: ConvolutionText) -> list[str]:
    """Copies of a step. There is no asynchronous one of two bytes: such elements go through registers."""
    held = text.convolution.element.itemsize == 2
    moved = ["copy_async<sizeof(Element)>(column + i * BCopy::PITCH, stands + entries[i].place, inside);"]
    if held:
        moved = ["held[i] = inside ? reinterpret_cast<const unsigned short*>(stands)[entries[i].place] : 0;"]
    column = "Element* column = slot + ACopy::ELEMENTS + line0 * BCopy::PITCH + threadIdx.x % BN;"
    lines = [
        "constexpr int COPIES = BK * BN / THREADS;  // of a thread: one below the other in its column",
        "const int line0 = threadIdx.x / BN * COPIES;",
        *(["unsigned short held[COPIES];  // on their way"] if held else []),
        "auto copy_step = [&](int step) {",
        "  if (step < steps) {",
        "    Element* slot = slots + step % STAGES * SLOT;",
        "    ACopy::start(slot, weights, k_pitch, m0, step * BK, filters, k_pitch);",
        *([] if held else [f"    {column}"]),
        "    Entry entries[COPIES];  // all read before the first copy: none waits for the one before",
        "    unrolled for (int i = 0; i < COPIES; ++i) entries[i] = table[step % STAGES][line0 + i];",
        "    unrolled for (int i = 0; i < COPIES; ++i) {",
        "      const bool inside = (entries[i].needs & ~have) == 0;",
        *indented(moved, 3),
        "    }",
        "  }",
        "  commit();  // even when empty, so that the count of pending groups stays in step with the loop",
        "};",
    ]
    if not held:
        return lines
    return [
        *lines,
        "auto keep_step = [&](int step) {",
        "  if (step >= steps) return;",
        "  Element* slot = slots + step % STAGES * SLOT;",
        f"  {column}",
        "#pragma unroll",
        "  for (int i = 0; i < COPIES; ++i) reinterpret_cast<unsigned short*>(column)[i * BCopy::PITCH] = held[i];",
        "};",
    ]


def _store_lines(text: ConvolutionText) -> list[str]:
    made = []
    for axis in text.axes:
        factor = f" * STRIDE_{axis.upper()} + phase_{axis}" if phases(text, axis) > 1 else ""
        if axis == "x" and phases(text, "x") > 1:
            factor = " * PHASES_X + at % PHASES_X"
        made += [f"  const int made_{axis} = rest % along_{axis}{factor};", f"  rest /= along_{axis};"]
    place = text.place_in_plane("out", {axis: f"made_{axis}" for axis in text.axes})
    outside = "rest >= images" + (" || made_x >= out_x" if phases(text, "x") > 1 else "")
    return [
        "__syncthreads();",
        "// Neighbouring threads have neighbouring results.",
        "constexpr int RESULTS = BN * PHASES_X, AT_ONCE = RESULTS < THREADS ? RESULTS : THREADS;",
        "for (int at = threadIdx.x % AT_ONCE; at < RESULTS; at += AT_ONCE) {",
        "  int rest = n0 + at / PHASES_X;",
        *made,
        f"  if ({outside}) continue;",
        "  const int image = rest;",
        f"  const int column = {place};",
        *indented(text.column_stores("threadIdx.x / AT_ONCE", "THREADS / AT_ONCE")),
        "}",
    ]

"""Copies of x and of the weights that a convolution by TMA and wgmma reads, split-f32 ones too."""

from __future__ import annotations

from tilewright.playbook.cpp_text import indented, worded
from tilewright.playbook.gemms.convolution_hopper_channels import OVER_WARP, ChannelsText
from tilewright.playbook.gemms.convolution_hopper_geometry import NAMES, Geometry
from tilewright.playbook.gemms.convolution_hopper_kernel import ONE_ADDRESS, SIZES, sizes_parameters
from tilewright.playbook.gemms.epilogue_text import EpilogueText
from tilewright.playbook.gemms.hopper_form import Parameters, kernel
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("gemms/convolution_hopper_copies")

PARTS_OF_EIGHT = _CUDA["parts_of_eight"]
# Elements below 2^-22, and weights below 2^-25 of a filter's largest, keep fewer than 14 bits: two of a warp's elements
# are too many, and such a weight counts for more.
NOTING_PARTS = {
    "off": "2^-36",
    "few": "int few = 0;  // with fewer than 14 bits: two are too many",
    "count": "few += v[i] != 0.f && fabsf(v[i]) < 0x1p-22f;",
    "too_few": "bad |= __reduce_add_sync(~0u, few) > 1;",
}
SCALING_PARTS = {
    "range": "2^14 .. 2^15",
    "exponent": "14",
    "losing": "v == 0.f ? 0 : (v < 0x1p-3f) + 63 * (v < 0x1p-11f)",
}
PACKING_PARTS = {
    "element": "number",
    "part": ", c = number / 3",
    "high": ", high = __half2float(__float2half_rn(v))",
    "stored": "number % 3 == 0 ? high : number % 3 == 1 ? high / 2048 : v - high",
}


# The kernels before the product, as text: the input with channels last and room around it, and packed weights.  f16
# has the mantissa of TF32 but not its range. Weights are scaled for it by a power of two for each filter. Elements
# of the input are taken as they are: where some do not fit, the rows they are in are noted, and the results made
# from those rows are made again by another kernel.


NOTE_ROWS = 256  # rows that are noted together


def copy_parameters(geometry: Geometry) -> Parameters:
    one = geometry.convolution
    lengths = ("x_depth", "x_height", "x_width")
    return [
        (f"const {one.element.cpp}* __restrict__ x", one.x),
        ("uint4* __restrict__ copied", "@copied"),
        ("int* __restrict__ noted", "@noted"),
        *((f"int {name}", f"@{name}") for name in lengths),
        *sizes_parameters(),
    ]


def copy_text(geometry: Geometry) -> list[str]:
    """The kernel that copies the input, or what the product needs to copy it itself."""
    exact = geometry.convolution.is_exact
    if geometry.planes:
        text, words = _CUDA["planes"], _PLANES_OF_PARTS if exact else _PLANES_OF_WHOLE
    else:
        text, words = _CUDA["rows"], _ROWS_OF_PARTS if exact else _ROWS_OF_WHOLE
    of_plane = "i" if geometry.fold == 1 else "i % 4"
    words = {
        **words,
        "store_parts": _CUDA["store_neighbours"] if geometry.rest else _CUDA["store_parts"],
        "rest": str(geometry.rest),
        "neighbours": str(geometry.neighbours if geometry.rest else 0),
        "sizes": SIZES,
        "channel": of_plane if exact else f"plane % @planes * 8 + {of_plane}",
        "planes": str(geometry.planes),
    }
    body = worded(text, words).splitlines()
    f32 = geometry.convolution.element is DType.F32
    helper = worded(_CUDA["noting_16"], {"type": geometry.convolution.element.cpp})
    if f32:
        helper = worded(_CUDA["noting_f32"], NOTING_PARTS if exact else _NOTING_WHOLE)
        helper += f"\n{PARTS_OF_EIGHT}" if exact else ""
    return [
        f"constexpr int NOTE_ROWS = {NOTE_ROWS};  // rows that are noted together",
        *ONE_ADDRESS.splitlines(),
        *_CUDA["mark"].splitlines(),
        *helper.splitlines(),
        *([] if geometry.is_copied_ahead else _CUDA["place"].splitlines()),
        *([] if geometry.is_copied_ahead else kernel("256, 4", "copy_input", copy_parameters(geometry), body)),
    ]


_NOTING_WHOLE = {"off": "2^-25", "few": "", "count": "", "too_few": ""}
_PLANES_OF_WHOLE = {
    "number": "plane = 0; plane < GROUPS * @planes; ++plane",
    "group": "plane / @planes",
    "stored": "if (inside) copied[plane * all_rows + at.row] = some.packed;",
}
_PLANES_OF_PARTS = {
    "number": "group = 0; group < GROUPS; ++group",
    "group": "group",
    "stored": "const Parts parts(v);\n@store_parts",
}
_ROWS_OF_WHOLE = {
    "together": "1024",
    "each": "CHUNKS",
    "all": "CHUNKS",
    "first": "chunk0",
    "chunks": "all_chunks",
    "stored": "held[place * HELD + chunk] = some.packed;",
}
_ROWS_OF_PARTS = {
    "together": "512",
    "each": "3 * CHUNKS",
    "all": "(3 * CHUNKS)",
    "first": "3 * chunk0",
    "chunks": "3 * all_chunks",
    "stored": "const Parts parts(v[item]);\n#pragma unroll\nfor (int part = 0; part < 3; ++part) "
    "held[place * HELD + 3 * chunk + part] = parts.packed[part];",
}


def pack_parameters(geometry: Geometry) -> Parameters:
    one = geometry.convolution
    return [
        (f"const {one.element.cpp}* __restrict__ weight", one.weight),
        (f"{geometry.copied.cpp}* __restrict__ packed", "@packed"),
        ("float* __restrict__ scales", "@scales"),
        *([("int* __restrict__ noted", "@noted")] if one.element is DType.F32 else []),
        ("int channels", "@channels"),
        ("int filters", "@filters"),
        ("int channel_blocks", "@channel_blocks"),
        ("int row_tiles", "@row_tiles"),
    ]


def pack_text(geometry: Geometry) -> list[str]:
    """The kernel that packs weights."""
    per_tap = {0: "ROW_ELEMENTS", 1: "8", 2: "16"}[geometry.planes]
    channel = "e % PER_SHIFT % 4" if geometry.fold == 2 else "e % PER_SHIFT"
    if geometry.rest:
        channel = "ELEMENT_NUMBER[e]"
    of_fold = " + e % PER_SHIFT / 4" if geometry.fold == 2 else ""
    per_block = "STEPS * 16" if not geometry.planes else "0"
    beyond = "ELEMENT_NUMBER[e] >= 0" if geometry.rest else "true" if geometry.planes else "e < STEPS * 16"
    exact = geometry.convolution.is_exact
    words = {
        **(PACKING_PARTS if exact else _PACKING_WHOLE),
        **(SCALING_PARTS if exact else _SCALING_WHOLE),
        "scale": _CUDA["scale"] if geometry.convolution.element is DType.F32 else _CUDA["no_scale"],
        "per_shift": per_tap,
        "further": "ELEMENT_SHIFT[e]" if geometry.rest else "e / PER_SHIFT",
        "place": f"{geometry.weight_at('group', 'filter')} + t",
        "channel": channel,
        "fold": of_fold,
        "per_block": per_block,
        "type": geometry.copied.cpp,
        "beyond": beyond,
    }
    return kernel("256", "pack_weights", pack_parameters(geometry), worded(_CUDA["pack"], words).splitlines())


_PACKING_WHOLE = {"element": "c", "part": "", "high": "", "stored": "v"}
_SCALING_WHOLE = {"range": "8 .. 16", "exponent": "3", "losing": "v != 0.f && v < 0x1p-14f"}


# The kernels around the product, as text. Behind it results of inputs that f16 does not hold are made again, in f32.
# Before one that leaves out results, those that no tap meets are finished sums of nothing. They lie in lines between
# the others, and where they are the most of them it is quicker to store the whole result in order first, and what is
# made of the input over it, than many pieces of lines.


FILLED_BY_BLOCK = 8192  # results


def exact_parameters(geometry: Geometry, epilogue: EpilogueText, channels: ChannelsText | None) -> Parameters:
    one = geometry.convolution
    return [
        (f"const {one.element.cpp}* __restrict__ x", one.x),
        (f"const {one.element.cpp}* __restrict__ weight", one.weight),
        ("const int* __restrict__ noted", "@noted"),
        (f"{one.output.dtype.cpp}* __restrict__ y", one.output.name),
        *epilogue.parameters,
        *(channels.parameters if channels else ()),
        *((f"int x_{name}", f"@x_{name}") for name in NAMES),
        *sizes_parameters(),
        ("int row_tiles", "@row_tiles"),
        ("int tile_step", "@tile_step"),
        ("int slice_tiles", "@slice_tiles"),
        ("int jobs", "@jobs"),
    ]


def exact_text(geometry: Geometry, epilogue: EpilogueText, channels: ChannelsText | None) -> list[str]:
    one = geometry.convolution
    value = epilogue.call("total[k]")
    stored = value if one.output.dtype is DType.F32 else f"static_cast<{one.output.dtype.cpp}>({value})"
    row = ["const long long row = at / s.plane();"] if "row" in epilogue.takes else []
    next_filter = "TAPS" if one.transposed else "(long long)channels * TAPS"
    words: dict[str, str | list[str]] = {
        "job": _CUDA["job_by_positions"] if channels else _CUDA["job_by_filters"],
        "sums": _CUDA["sums"],
        "count": "FILTERS_OF_LANE" if channels else "8",
        "channels": channels.again_text() if channels else "",
        "sizes": SIZES,
        "shares": "positions" if channels else "filters: eight for each",
        "read": "PLANE_ROWS" if geometry.planes else "BOXES * BOX_ROWS",
        "weight": f"weight + {geometry.weight_at('here.group', 'f0')}",
        "next_filter": f"32 * ({next_filter})" if channels else next_filter,
        "taps": _taps(geometry, bool(channels)),
        "store": [*row, f"y[at] = {stored};"],
    }
    body = worded(_CUDA["exact"], words).splitlines()
    return [
        *(OVER_WARP.splitlines() if channels else ()),
        "// ---- results made from rows of the input, or by weights, that f16 does not hold; mostly there are none",
        *kernel("256", "convolve_again", exact_parameters(geometry, epilogue, channels), body),
    ]


def _taps(geometry: Geometry, by_lanes: bool) -> list[str]:
    """Loops over the window, the innermost of which adds a product for each of eight filters, or of a lane's."""
    body = [
        "const float from_x = image_of_x[((long long)from_depth * x_height + from_height) * x_width + from_width];",
        "const int t = (tap_depth * HEIGHT_TAPS + tap_height) * WIDTH_TAPS + tap_width;",
        f"unrolled for (int k = 0; k < {'FILTERS_OF_LANE' if by_lanes else '8'}; ++k)",
        f"  if (f0 + k{' * 32' if by_lanes else ''} < filters)",
        "    total[k] = fmaf(from_x, static_cast<float>(from_weight[k * next_filter + t]), total[k]);",
    ]
    for name in reversed(NAMES):
        upper = name.upper()
        if geometry.convolution.transposed:
            found = [
                f"const int over_{name} = y_at_{name} + {upper}_PADDING - tap_{name} * {upper}_DILATION;",
                f"const int from_{name} = over_{name} / {upper}_STRIDE;",
                f"if (over_{name} < 0 || over_{name} % {upper}_STRIDE != 0 || from_{name} >= x_{name}) continue;",
            ]
        else:
            begin = f"y_at_{name} * {upper}_STRIDE - {upper}_PADDING"
            found = [
                f"const int from_{name} = {begin} + tap_{name} * {upper}_DILATION;",
                f"if (from_{name} < 0 || from_{name} >= x_{name}) continue;",
            ]
        head = f"for (int tap_{name} = 0; tap_{name} < {upper}_TAPS; ++tap_{name}) {{"
        body = [head, *indented([*found, *body]), "}"]
    return body


def fill_parameters(geometry: Geometry, epilogue: EpilogueText) -> Parameters:
    one = geometry.convolution
    return [
        (f"{one.output.dtype.cpp}* __restrict__ y", one.output.name),
        *epilogue.parameters,
        *sizes_parameters(),
    ]


def fill_text(geometry: Geometry, epilogue: EpilogueText) -> list[str]:
    dtype = geometry.convolution.output.dtype
    value = epilogue.call("0.f")
    made = value if dtype is DType.F32 else f"static_cast<{dtype.cpp}>({value})"
    place = _CUDA["exact_place"] if epilogue.takes & {"row", "channel"} else ""
    words = {"sizes": SIZES, "type": dtype.cpp, "made": made, "place": place, "each": str(FILLED_BY_BLOCK)}
    note = "// ---- results that no tap meets, and the others, which are stored over these"
    parameters = fill_parameters(geometry, epilogue)
    return [note, *kernel("256", "fill_result", parameters, worded(_CUDA["fill"], words).splitlines())]

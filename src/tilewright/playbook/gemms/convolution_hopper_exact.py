"""The kernels around the product, as text. Behind it results of inputs that f16 does not hold are made again, in f32.

Before one that leaves out results, those that no tap meets are finished sums of nothing. They lie in lines between the
others, and where they are the most of them it is quicker to store the whole result in order first, and what is made of
the input over it, than many pieces of lines.
"""

from __future__ import annotations

from tilewright.playbook.cpp_text import indented, worded
from tilewright.playbook.gemms.convolution_hopper_channels import OVER_WARP, ChannelsText
from tilewright.playbook.gemms.convolution_hopper_geometry import NAMES, Geometry
from tilewright.playbook.gemms.convolution_hopper_kernel import SIZES, sizes_parameters
from tilewright.playbook.gemms.finish_text import FinishText
from tilewright.playbook.gemms.hopper_form import Parameters, kernel
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("gemms/convolution_hopper_exact")

FILLED_BY_BLOCK = 8192  # results


def exact_parameters(geometry: Geometry, finish: FinishText, channels: ChannelsText | None) -> Parameters:
    one = geometry.convolution
    return [
        (f"const {one.element.cpp}* __restrict__ x", one.x),
        (f"const {one.element.cpp}* __restrict__ weight", one.weight),
        ("const int* __restrict__ noted", "@noted"),
        (f"{one.output.dtype.cpp}* __restrict__ y", one.output.name),
        *finish.parameters,
        *(channels.parameters if channels else ()),
        *((f"int x_{name}", f"@x_{name}") for name in NAMES),
        *sizes_parameters(),
        ("int row_tiles", "@row_tiles"),
        ("int tile_step", "@tile_step"),
        ("int slice_tiles", "@slice_tiles"),
        ("int jobs", "@jobs"),
    ]


def exact_text(geometry: Geometry, finish: FinishText, channels: ChannelsText | None) -> list[str]:
    one = geometry.convolution
    value = finish.call("total[k]")
    stored = value if one.output.dtype is DType.F32 else f"static_cast<{one.output.dtype.cpp}>({value})"
    row = ["const long long row = at / s.plane();"] if "row" in finish.takes else []
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
        *kernel("256", "convolve_again", exact_parameters(geometry, finish, channels), body),
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


def fill_parameters(geometry: Geometry, finish: FinishText) -> Parameters:
    one = geometry.convolution
    return [
        (f"{one.output.dtype.cpp}* __restrict__ y", one.output.name),
        *finish.parameters,
        *sizes_parameters(),
    ]


def fill_text(geometry: Geometry, finish: FinishText) -> list[str]:
    dtype = geometry.convolution.output.dtype
    value = finish.call("0.f")
    made = value if dtype is DType.F32 else f"static_cast<{dtype.cpp}>({value})"
    place = _CUDA["place"] if finish.takes & {"row", "channel"} else ""
    words = {"sizes": SIZES, "type": dtype.cpp, "made": made, "place": place, "each": str(FILLED_BY_BLOCK)}
    note = "// ---- results that no tap meets, and the others, which are stored over these"
    parameters = fill_parameters(geometry, finish)
    return [note, *kernel("256", "fill_result", parameters, worded(_CUDA["fill"], words).splitlines())]

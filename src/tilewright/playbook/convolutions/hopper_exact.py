"""The kernels around the product, as text. Behind it results of inputs that f16 does not hold are made again, in f32.

Before one that leaves out results, those that no tap meets are finished sums of nothing. They lie in lines between the
others, and where they are the most of them it is quicker to store the whole result in order first, and what is made of
the input over it, than many pieces of lines.
"""

from __future__ import annotations

from tilewright.playbook.convolutions.hopper_channels import OVER_WARP, ChannelsText
from tilewright.playbook.convolutions.hopper_geometry import NAMES, Geometry
from tilewright.playbook.convolutions.hopper_kernel import SIZES, sizes_parameters
from tilewright.playbook.cpp_text import indented, worded
from tilewright.playbook.products.finish_text import FinishText
from tilewright.playbook.products.hopper_form import Parameters, kernel
from tilewright.records import DType

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
        "job": _JOB_BY_POSITIONS if channels else _JOB_BY_FILTERS,
        "sums": _SUMS,
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
    body = worded(_EXACT, words).splitlines()
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


_EXACT = """\
constexpr int TAPS = DEPTH_TAPS * HEIGHT_TAPS * WIDTH_TAPS, FILTERS = ROWS_OF_KIND / ROWS_OF_FILTER;
__shared__ bool is_noted[256];
@sizes
cudaGridDependencySynchronize();
if (!noted[0]) return;
const long long all_rows = (long long)DEPTH_MODULUS * HEIGHT_MODULUS * WIDTH_COPIES * copy_rows;
const int last_note = (all_rows - 1) / NOTE_ROWS;
// Blocks share a job by its @shares. A block looks at 256 jobs at once.
for (int from = blockIdx.x; from < jobs; from += 256 * gridDim.x) {
  const int mine = from + threadIdx.x * gridDim.x;
  bool again = mine < jobs && noted[1];
  if (mine < jobs && !again) {
    const Job here(mine, row_tiles, tile_step, slice_tiles, s);
    for (int i = 0; i < here.pairs() / here.lines() * SLOTS; ++i) {
      const int first = here.position + row_of(FIRST_PAIR[here.kind] + i / SLOTS * here.lines(), i % SLOTS, s);
      for (int note = first / NOTE_ROWS; note <= min((first + @read - 1) / NOTE_ROWS, last_note); ++note)
        again |= noted[2 + note];
    }
  }
  __syncthreads();
  is_noted[threadIdx.x] = again;
  __syncthreads();
  for (int looked = 0; looked < 256; ++looked) {
    if (!is_noted[looked]) continue;
    const Job here(from + looked * gridDim.x, row_tiles, tile_step, slice_tiles, s);
    @job
  }
}
"""
_SUMS = """\
const long long place = place_of(here.position + i % results / WIDTH_PHASES, here.kind + i / results, s);
if (i % WIDTH_PHASES >= place % 16) continue;
const long long first_at = place / 16 + i % WIDTH_PHASES, image = first_at / (GROUPS * filters * s.plane());
const int in_plane = first_at % s.plane(), y_at_width = in_plane % y_width;
const int y_at_height = in_plane / y_width % y_height, y_at_depth = in_plane / y_width / y_height;
float total[@count] = {};
for (int c = 0; c < channels; ++c) {
  const auto* image_of_x =
      x + ((image * GROUPS + here.group) * channels + c) * ((long long)x_depth * x_height * x_width);
  const auto* from_weight = @weight;
  const long long next_filter = @next_filter;
  @taps
}
"""
_JOB_BY_FILTERS = """\
const int f0 = here.row_tile * FILTERS + blockIdx.y * 8;
if (f0 >= filters) continue;
const int results = here.count * WIDTH_PHASES;  // of a kind
for (int i = threadIdx.x; i < results * ROW_KINDS; i += 256) {
  @sums
  unrolled for (int k = 0; k < 8; ++k) {
    if (f0 + k >= min(filters, (here.row_tile + 1) * FILTERS)) break;
    const int channel = here.group * filters + f0 + k;
    const long long at = first_at + channel * s.plane();
    @store
  }
}
"""
# A warp has all channels of a position.
_JOB_BY_POSITIONS = """\
constexpr int FILTERS_OF_LANE = (FILTERS + 31) / 32;
const int lane = threadIdx.x % 32, f0 = lane;
const int results = here.count * WIDTH_PHASES;
for (int i = blockIdx.y * 8 + threadIdx.x / 32; i < results; i += 8 * gridDim.y) {
  @sums
  @channels
}
"""


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
    place = _PLACE if finish.takes & {"row", "channel"} else ""
    words = {"sizes": SIZES, "type": dtype.cpp, "made": made, "place": place, "each": str(FILLED_BY_BLOCK)}
    note = "// ---- results that no tap meets, and the others, which are stored over these"
    parameters = fill_parameters(geometry, finish)
    return [note, *kernel("256", "fill_result", parameters, worded(_FILL, words).splitlines())]


_PLACE = """\
const long long row = row0 + (of_row + i + e) / plane;
const int channel = row % (GROUPS * filters);
"""
_FILL = """\
struct alignas(4 * sizeof(@type)) Four { @type of[4]; };
@sizes
cudaTriggerProgrammaticLaunchCompletion();
const long long first = (long long)blockIdx.x * @each, all = (long long)batch * GROUPS * filters * s.plane();
[[maybe_unused]] const unsigned plane = s.plane();
[[maybe_unused]] const long long row0 = first / plane;
[[maybe_unused]] const unsigned of_row = first - row0 * plane;
#pragma unroll 4
for (int i = threadIdx.x * 4; i < @each; i += 1024) {
  Four four;
  unrolled for (int e = 0; e < 4; ++e) {
    @place
    four.of[e] = @made;
  }
  if (first + i + 4 <= all) {
    *reinterpret_cast<Four*>(y + first + i) = four;
  } else {
    unrolled for (int e = 0; e < 4; ++e)
      if (first + i + e < all) y[first + i + e] = four.of[e];
  }
}
cudaGridDependencySynchronize();  // who waits for this launch waits for the one before it too
"""

"""From the sums in registers to the result, as text: put in order in shared memory, finished, and stored by lines."""

from __future__ import annotations

from tilewright.playbook.convolutions.hopper_geometry import Geometry
from tilewright.playbook.products.finish_text import FinishText
from tilewright.records import DType


def filled(text: str, name: str, lines: str) -> str:
    """The text with lines in the place of a line that is nothing but a name, as far in as that is."""
    found = []
    for line in text.splitlines():
        if line.strip() == name:
            inwards = line[: line.index("@")]
            found += [one if one.startswith("#") or not one else inwards + one for one in lines.splitlines()]
        else:
            found.append(line)
    return "\n".join(found)


def store_text(geometry: Geometry, finish: FinishText) -> str:
    """What a consumer does with the sums of a job."""
    dtype = geometry.convolution.output.dtype
    value = finish.call("value[i]", at="begin_at + at")
    stored = value if dtype is DType.F32 else f"static_cast<{dtype.cpp}>({value})"
    lines = [f"y[begin_at + at] = {stored};"]
    if "row" in finish.takes:
        lines.insert(0, "const long long row = begin_at / s.plane();")
    return filled(_STORE, "@one", "\n".join(lines))


RUNS = """\
// Positions whose results may lie side by side: a slice of an image, or a line where lines lie apart.
constexpr bool WHOLE_SLICES = HEIGHT_PHASES == 1;
__device__ __forceinline__ unsigned unit_size(const Sizes& s) { return WHOLE_SLICES ? s.height * s.width : s.width; }

// The results of a tile that lie in one unit: side by side in y, and in the tile with a gap behind every line.
struct Run {
  long long place = 0;             // of the first result, of filter 0 of the image
  int count = 0, first = 0;        // results; the first one's number in the tile, WIDTH_PHASES of a position
  int left = 0;                    // results up to the end of the first line
  __device__ __forceinline__ Run(unsigned unit, const Job& here, const Sizes& s) {
    const unsigned slice = WHOLE_SLICES ? unit : unit / (unsigned)s.height, image = slice / (unsigned)s.depth;
    const int z = (slice - image * s.depth) * DEPTH_PHASES + here.kind / HEIGHT_PHASES;
    const int y = WHOLE_SLICES ? 0 : (unit - slice * s.height) * HEIGHT_PHASES + here.kind % HEIGHT_PHASES;
    if (image >= s.batch || z >= s.y_depth || y >= s.y_height) return;
    const int tile = here.position - unit * unit_size(s);  // where the tile begins in the unit
    const int from = results_before(max(tile, 0), s), to = results_before(tile + POSITIONS, s);
    if (to <= from) return;
    const int line = from / s.y_width, column = from - line * s.y_width;
    place = image * GROUPS * (s.filters * s.plane()) + ((long long)z * s.y_height + y) * s.y_width + from;
    count = to - from, left = s.y_width - column;
    first = (line * s.width - tile) * WIDTH_PHASES + column;
  }
  // That of another lane.
  __device__ __forceinline__ Run(const Run& run, int lane)
      : place(__shfl_sync(~0u, run.place, lane)), count(__shfl_sync(~0u, run.count, lane)),
        first(__shfl_sync(~0u, run.first, lane)), left(__shfl_sync(~0u, run.left, lane)) {}
  // How many results of a unit come before one of its positions.
  static __device__ __forceinline__ int results_before(int position, const Sizes& s) {
    const int line = position / s.width, lines = WHOLE_SLICES ? s.y_height : 1;
    if (line >= lines) return lines * s.y_width;
    return line * s.y_width + min((position - line * s.width) * WIDTH_PHASES, s.y_width);
  }
};
"""
_STORE = """\
// Sums 4j .. 4j+3 of a lane: columns 8j + 2(lane % 4) and the next, of rows warp * 16 + lane / 4 and 8 further.
const float* my_scales = scales + (here.group * row_tiles + here.row_tile) * ROWS + warp * 16 + lane / 4;
#pragma unroll
for (int m = 0; m < MI; ++m) {
  const float scale[2] = {my_scales[m * 64], my_scales[m * 64 + 8]};
#pragma unroll
  for (int i = 0; i < POSITIONS / 2; ++i) sum[m][i] *= scale[i / 2 % 2];
}
const unsigned first_unit = here.position / unit_size(s);
const int units = (here.position + POSITIONS - 1) / unit_size(s) - first_unit + 1;
const int gap = width * WIDTH_PHASES - y_width;
const unsigned inverse = 0xFFFFFFFFu / y_width + 1;  // divides numbers up to 1024
#pragma unroll 1
for (int unit0 = 0; unit0 < units; unit0 += 32) {
  const Run of_lane(first_unit + unit0 + lane, here, s);
#pragma unroll
  for (int part = 0; part < 16 * MI / STAGE_ROWS; ++part) {  // some rows at a time, put in order in shared memory
    const int m = part * STAGE_ROWS / 16, upper = part * STAGE_ROWS / 8 % 2, first_lane = part * STAGE_ROWS % 8 * 4;
    const int row0 = here.row_tile * ROWS + m * 64 + warp * 16 + part * STAGE_ROWS % 16;
    if (row0 >= filters * ROWS_OF_FILTER) continue;
    __syncwarp();
    if (lane >= first_lane && lane < first_lane + STAGE_ROWS * 4) {
      float* to = mine + (lane - first_lane) / 4 * PITCH + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < POSITIONS / 8; ++j)
        *reinterpret_cast<float2*>(to + j * 8) = make_float2(sum[m][j * 4 + upper * 2], sum[m][j * 4 + upper * 2 + 1]);
    }
    __syncwarp();
    const int rows = min(STAGE_ROWS, filters * ROWS_OF_FILTER - row0);
#pragma unroll 1
    for (int unit = 0; unit < min(32, units - unit0); ++unit) {
      const Run run(of_lane, unit);
      if (run.count == 0) continue;
      // Every store begins where a line of the cache does, because pieces of lines are dear: a lane stores results
      // `begin`, `begin` + 32 and so on of the run, as far as there are such.
      if (32 % WIDTH_PHASES == 0 && (run.count <= run.left || gap == 0)) {
#pragma unroll 2
        for (int r = 0; r < rows; r += ROWS_OF_FILTER) {
          const int channel = here.group * filters + (row0 + r) / ROWS_OF_FILTER;
          const long long first_at = run.place + channel * s.plane(), begin_at = first_at / 32 * 32 + lane;
          const int begin = begin_at - first_at, rest = run.count - begin, number = run.first + begin + 32;
          const float* from = mine + (r + number % WIDTH_PHASES) * PITCH + number / WIDTH_PHASES - 32 / WIDTH_PHASES;
          float value[STORES];
#pragma unroll
          for (int i = 0; i < STORES; ++i)
            value[i] = (i > 0 || begin >= 0) && i * 32 < rest ? from[i * (32 / WIDTH_PHASES)] : 0.f;
#pragma unroll
          for (int i = 0; i < STORES; ++i) {
            const int at = i * 32;
            if ((at == 0 && begin < 0) || at >= rest) continue;
            @one
          }
        }
      } else {  // results go on behind the end of a line: where they are found is the same for all rows
#pragma unroll 1
        for (int group = 0; group < STORES; group += 9) {
          int found[9];
#pragma unroll
          for (int i = 0; i < 9; ++i) {
            const int k = (group + i) * 32 + lane;
            int number = run.first + k;
            if (k >= run.left) number += (1 + (int)__umulhi(k - run.left, inverse)) * gap;
            found[i] = k < run.count ? number % WIDTH_PHASES * PITCH + number / WIDTH_PHASES : -1;
          }
#pragma unroll 2
          for (int r = 0; r < rows; r += ROWS_OF_FILTER) {
            const int channel = here.group * filters + (row0 + r) / ROWS_OF_FILTER;
            const long long begin_at = run.place + channel * s.plane() + group * 32 + lane;
            float value[9];
#pragma unroll
            for (int i = 0; i < 9; ++i) value[i] = found[i] >= 0 ? mine[r * PITCH + found[i]] : 0.f;
#pragma unroll
            for (int i = 0; i < 9; ++i) {
              const int at = i * 32;
              if (found[i] < 0) continue;
              @one
            }
          }
        }
      }
    }
  }
}
"""

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


def runs_text(geometry: Geometry) -> str:
    return _RUNS.replace("@sector", str(sector(geometry)))


def sector(geometry: Geometry) -> int:
    return 32 // geometry.convolution.output.dtype.itemsize


def store_text(geometry: Geometry, finish: FinishText) -> str:
    """What a consumer does with the sums of a job."""
    dtype = geometry.convolution.output.dtype
    value = finish.call("value[i]", at="begin_at + at")
    stored = value if dtype is DType.F32 else f"static_cast<{dtype.cpp}>({value})"
    lines = [f"y[begin_at + at] = {stored};"]
    if "row" in finish.takes:
        lines.insert(0, "const long long row = begin_at / s.plane();")
    return filled(_STORE, "@one", "\n".join(lines))


_RUNS = """\
constexpr int SECTOR = @sector;  // results in 32 bytes
// Positions whose results may lie side by side: a slice of an image, or a line where lines lie apart.
constexpr bool WHOLE_SLICES = HEIGHT_PHASES == 1;
__device__ __forceinline__ unsigned unit_size(const Sizes& s) { return WHOLE_SLICES ? s.height * s.width : s.width; }

// The results of a tile that lie in one unit: side by side in y, and in the tile with a gap behind every line.
struct Run {
  long long place = 0;             // of the first result, of filter 0 of the image
  int count = 0, first = 0;        // results; the first one's number in the tile, WIDTH_PHASES of a position
  int left = 0;                    // results up to the end of the first line
  int head = 0, tail = 0;          // results that the tile before may store; and that are the next tile's
  __device__ __forceinline__ Run(unsigned unit, const Job& here, const Sizes& s, int tile_step) {
    const unsigned slice = WHOLE_SLICES ? unit : unit / (unsigned)s.height, image = slice / (unsigned)s.depth;
    const int z = (slice - image * s.depth) * DEPTH_PHASES + here.kind / HEIGHT_PHASES;
    const int y = WHOLE_SLICES ? 0 : (unit - slice * s.height) * HEIGHT_PHASES + here.kind % HEIGHT_PHASES;
    if (image >= s.batch || z >= s.y_depth || y >= s.y_height) return;
    const int tile = here.position - unit * unit_size(s);  // where the tile begins in the unit
    const int from = results_before(max(tile, 0), s), to = results_before(tile + tile_step, s);
    if (to <= from) return;
    if (tile_step < POSITIONS)
      head = from > 0 ? SECTOR - 1 : 0, tail = min(SECTOR - 1, results_before(unit_size(s), s) - to);
    const int line = from / s.y_width, column = from - line * s.y_width;
    place = image * GROUPS * (s.filters * s.plane()) + ((long long)z * s.y_height + y) * s.y_width + from;
    count = to - from, left = s.y_width - column;
    first = (line * s.width - tile) * WIDTH_PHASES + column;
  }
  // That of another lane.
  __device__ __forceinline__ Run(const Run& run, int lane)
      : place(__shfl_sync(~0u, run.place, lane)), count(__shfl_sync(~0u, run.count, lane)),
        first(__shfl_sync(~0u, run.first, lane)), left(__shfl_sync(~0u, run.left, lane)),
        head(__shfl_sync(~0u, run.head, lane)), tail(__shfl_sync(~0u, run.tail, lane)) {}
  // Results up to the next sector, but no more than there are.
  static __device__ __forceinline__ int to_sector(long long place, int most) {
    return min((int)(-place & (SECTOR - 1)), most);
  }
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
const int units = (here.position + tile_step - 1) / unit_size(s) - first_unit + 1;
const int gap = width * WIDTH_PHASES - y_width;
const unsigned inverse = 0xFFFFFFFFu / y_width;  // n / y_width is the upper half of (n + 1) * inverse, for small n
#pragma unroll 1
for (int unit0 = 0; unit0 < units; unit0 += 32) {
  const Run of_lane(first_unit + unit0 + lane, here, s, tile_step);
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
      // Every store begins where a line of the cache does, and tiles meet at sectors: pieces of those are dear. A lane
      // stores results `begin`, `begin` + 32 and so on of the run, as far as there are such.
      if (32 % WIDTH_PHASES == 0 && (run.count + run.tail <= run.left || gap == 0)) {
#pragma unroll 2
        for (int r = 0; r < rows; r += ROWS_OF_FILTER) {
          const int channel = here.group * filters + (row0 + r) / ROWS_OF_FILTER;
          const long long first_at = run.place + channel * s.plane(), begin_at = first_at / 32 * 32 + lane;
          const int first = run.to_sector(first_at, run.head);
          const int last = run.count + run.to_sector(first_at + run.count, run.tail);
          const int begin = begin_at - first_at, rest = last - begin, number = run.first + begin + 32;
          const float* from = mine + (r + number % WIDTH_PHASES) * PITCH + number / WIDTH_PHASES - 32 / WIDTH_PHASES;
#pragma unroll
          for (int group = 0; group < STORES; group += TOGETHER) {
            if (group * 32 >= run.count + run.tail + 31) break;
            float value[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) {
              const int at = (group + i) * 32;
              value[i] = (at > 0 || begin >= first) && at < rest ? from[at / WIDTH_PHASES] : 0.f;
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) {
              const int at = (group + i) * 32;
              if ((at == 0 && begin < first) || at >= rest) continue;
              @one
            }
          }
        }
      } else {  // results go on behind the end of a line: where they are found is the same for all rows
        const int shift = run.place % SECTOR;
#pragma unroll 1
        for (int group = 0; group * 32 < run.count + run.tail + SECTOR; group += 9) {
          const int begin = group * 32 + lane - shift;
          int found[9];
#pragma unroll
          for (int i = 0; i < 9; ++i) {
            const int k = begin + i * 32;
            int number = run.first + k;
            if (k >= run.left) number += (1 + (int)__umulhi(k - run.left + 1, inverse)) * gap;
            found[i] = k >= 0 && k < run.count + run.tail ? number % WIDTH_PHASES * PITCH + number / WIDTH_PHASES : -1;
          }
#pragma unroll 2
          for (int r = 0; r < rows; r += ROWS_OF_FILTER) {
            const int channel = here.group * filters + (row0 + r) / ROWS_OF_FILTER;
            const long long first_at = run.place + channel * s.plane(), begin_at = first_at + begin;
            const int first = run.to_sector(first_at, run.head);
            const int last = run.count + run.to_sector(first_at + run.count, run.tail);
            float value[9];
#pragma unroll
            for (int i = 0; i < 9; ++i) value[i] = found[i] >= 0 ? mine[r * PITCH + found[i]] : 0.f;
#pragma unroll
            for (int i = 0; i < 9; ++i) {
              const int at = i * 32;
              if (found[i] < 0 || begin + at < first || begin + at >= last) continue;
              @one
            }
          }
        }
      }
    }
  }
}
"""

"""What the results of each tile come to, channel by channel, as text: for a norm over the batch that follows.

A tile leaves how many results it has of a channel, their sum, and their squares about their own mean: every number has
a place of its own, so that runs repeat bit for bit, and results are not read again for their moments.
"""

from __future__ import annotations

from tilewright.playbook.convolutions.hopper_channels import ChannelsText
from tilewright.playbook.convolutions.hopper_store import filled
from tilewright.playbook.convolutions.program import Convolution
from tilewright.playbook.products.finish_text import FinishText
from tilewright.playbook.row_program import Layout, Load, Reduce, Reduction, RowProgram
from tilewright.playbook.structures.about import Correction, about
from tilewright.playbook.structures.passes import TILES


def takes_moments(convolution: Convolution, program: RowProgram) -> bool:
    """Whether rows of a convolution's stored results need its channels' moments, and can take them from its tiles."""
    name, windows = convolution.finish.outputs[0].name, len(convolution.windows)
    inner = " * ".join(f"{name}.shape[{place + 2}]" for place in range(windows))
    layout = (program.layout, program.rows, program.cols, program.inner)
    if layout != (Layout.SEGMENTS, f"{name}.shape[1]", f"{name}.shape[0] * {inner}", inner):
        return False
    if any(one.varies or one.parts is None for one in convolution.finish_inputs) or len(program.reductions) != 2:
        return False
    first, second = program.reductions
    summed = program.values[first]
    own = isinstance(summed, Reduce) and summed.op is Reduction.SUM and program.values[summed.argument] == Load(name)
    squares = about(program, second)
    return own and squares is not None and (squares.first, squares.correction) == (first, Correction.MOMENTS)


class MomentsText:
    """What a convolution's kernels do for the moments of its results."""

    is_reduced = False
    kept = 1  # number of every position: how many results it has
    helpers: tuple[list[str], ...] = ()

    def __init__(self, finish: FinishText) -> None:
        self._finish = finish

    @property
    def parameters(self) -> list[tuple[str, str]]:
        return [*((f"float* __restrict__ {name}", f"@{name}") for name in TILES), ("int pieces", "@pieces")]

    def functions(self) -> str:
        return _FUNCTIONS

    def product_text(self) -> str:
        """What a consumer does with its sums, which it finishes."""
        value = self._finish.call("value")
        return filled(_MOMENTS, "@finished", f"value = {value};" if self._finish.function else "")

    def again_text(self) -> str:
        """The same for eight filters of a tile whose results have been made again."""
        return _MOMENTS_AGAIN


After = ChannelsText | MomentsText  # what is done with sums in registers before they are stored

_FUNCTIONS = """\
// ---- moments of a tile's results: a lane has columns 8j + 2 * (lane % 4) and the next, of two rows in every 64
constexpr int COLUMNS = POSITIONS / 4, COLUMN_VALUES = POSITIONS;
// Over the lanes that have other results of the same filter.
__device__ __forceinline__ float over_results(float value) {
#pragma unroll
  for (int offset = 1; offset < 4 * ROWS_OF_FILTER; offset *= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}
"""
_MOMENTS = """\
const int phase = lane / 4 % ROWS_OF_FILTER, piece = here.position / tile_step * KINDS + here.kind;
for (int i = thread; i < POSITIONS; i += 128)  // results of each position, without those that the next tile has too
  of_columns[i] = i < tile_step ? (float)(place_of(here.position + i, here.kind, s) % 16) : 0.f;
consumer_sync(consumer);
unsigned long long has = 0;
#pragma unroll
for (int c = 0; c < COLUMNS; ++c)
  has |= (unsigned long long)(phase < of_columns[c / 2 * 8 + lane % 4 * 2 + c % 2]) << c;
const float count = over_results((float)__popcll(has));
if (here.group == 0 && here.row_tile == 0 && thread == 0) tile_counts[piece] = count;
#pragma unroll
for (int r = 0; r < MI * 2; ++r) {
  const int filter = (here.row_tile * ROWS + r / 2 * 64 + warp * 16 + r % 2 * 8 + lane / 4) / ROWS_OF_FILTER;
  const int channel = here.group * filters + min(filter, filters - 1);
  float total = 0.f, squares = 0.f;
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    float& value = sum[r / 2][c / 2 * 4 + r % 2 * 2 + c % 2];
    @finished
    total += has >> c & 1 ? value : 0.f;
  }
  total = over_results(total);
  const float mean = total / fmaxf(count, 1.f);
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    const float off = sum[r / 2][c / 2 * 4 + r % 2 * 2 + c % 2] - mean;
    squares += has >> c & 1 ? off * off : 0.f;
  }
  squares = over_results(squares);
  if (lane % 4 == 0 && phase == 0 && filter < filters) {
    const long long at = (long long)channel * pieces + piece;
    tile_sums[at] = total, tile_squares[at] = squares;
  }
}
"""
OVER_BLOCK = """\
// Over 256 threads, the same in each of them.
__device__ __forceinline__ float over_block(float value) {
  __shared__ float of_warp[8];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  __syncthreads();  // what was there has been read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warp[0];
  for (int warp = 1; warp < 8; ++warp) value += of_warp[warp];
  return value;
}
"""
_MOMENTS_AGAIN = """\
const int piece = here.position / tile_step * KINDS + here.kind;
for (int k = 0; k < 8 && f0 + k < min(filters, (here.row_tile + 1) * FILTERS); ++k) {
  const int channel = here.group * filters + f0 + k;
  float mean = 0.f;
  for (int squared = 0; squared < 2; ++squared) {
    float total = 0.f;
    for (int i = threadIdx.x; i < tile_step * WIDTH_PHASES; i += 256) {
      const long long place = place_of(here.position + i / WIDTH_PHASES, here.kind, s);
      if (i % WIDTH_PHASES >= place % 16) continue;
      const float value = static_cast<float>(y[place / 16 + i % WIDTH_PHASES + channel * s.plane()]);
      total += squared ? (value - mean) * (value - mean) : value;
    }
    total = over_block(total);
    if (!squared) mean = total / fmaxf(tile_counts[piece], 1.f);
    if (threadIdx.x == 0) (squared ? tile_squares : tile_sums)[(long long)channel * pieces + piece] = total;
  }
}
"""

//# The kernels around the product, as text. Behind it results of inputs that f16 does not hold are made again, in f32.

//@ exact
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

//@ sums
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

//@ job_by_filters
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

//# A warp has all channels of a position.
//@ job_by_positions
constexpr int FILTERS_OF_LANE = (FILTERS + 31) / 32;
const int lane = threadIdx.x % 32, f0 = lane;
const int results = here.count * WIDTH_PHASES;
for (int i = blockIdx.y * 8 + threadIdx.x / 32; i < results; i += 8 * gridDim.y) {
  @sums
  @channels
}

//@ place
const long long row = row0 + (of_row + i + e) / plane;
const int channel = row % (GROUPS * filters);

//@ fill
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

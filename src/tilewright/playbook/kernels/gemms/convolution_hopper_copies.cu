//# f32 as parts in f16, as text: what differs in the kernels of a convolution whose f32 operands must be exact.

//@ parts_of_eight
// Eight channels of a position in k, three elements for each: the high part, the low one, and the high one again.
// Together they are x to 2^-22 of it, or to 2^-36.
struct Parts {
  uint4 packed[3];
  __device__ __forceinline__ Parts(const float (&x)[8]) {
    unrolled for (int chunk = 0; chunk < 3; ++chunk) {
      float v[8];
      unrolled for (int i = 0; i < 8; ++i) {
        const float whole = x[(chunk * 8 + i) / 3], low = (whole - __half2float(__float2half_rn(whole))) * 2048.f;
        v[i] = (chunk * 8 + i) % 3 == 1 ? low : whole;  // which is rounded to the high part when it is packed
      }
      packed[chunk] = Eight(v).packed;
    }
  }
};

//# The kernels before the product, as text: the input with channels last and room around it, and packed weights.
//@ mark
__device__ __forceinline__ void mark(long long row, int* noted) {
  cudaGridDependencySynchronize();  // the launch before notes too
  noted[0] = 1, noted[2 + row / NOTE_ROWS] = 1;
}

//@ noting_f32
// Eight channels of a position, as the tensor cores take them; and what f16 makes of them.
constexpr uint32_t TWICE_LEAST = 0x38800000u * 2;  // the bits of 2^-14, without the sign
struct Eight {
  uint4 packed;
  bool beyond, small;  // an element is not finite or larger than f16 holds; one loses bits because it is small
  __device__ __forceinline__ Eight(const float (&v)[8]) {
    uint32_t two[4], largest = 0, smallest = 0;
    unrolled for (int i = 0; i < 4; ++i)
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two[i]) : "f"(v[i * 2 + 1]), "f"(v[i * 2]));
    packed = make_uint4(two[0], two[1], two[2], two[3]);
    unrolled for (int i = 0; i < 8; ++i) {
      const uint32_t magnitude = __float_as_uint(v[i]) * 2;
      largest = max(largest, magnitude), smallest = max(smallest, magnitude - TWICE_LEAST);
    }
    beyond = largest > __float_as_uint(65504.f) * 2;
    small = smallest > 0u - TWICE_LEAST;  // as 0 is; what is smaller than the least wraps around to more
  }
};
// A warp notes its rows where an element is beyond f16, or one in sixteen loses bits: they may be all that a result is
// made from. A single one, at an end of the input, is off by @off at most: little beside an element that is not small.
__device__ __forceinline__ void note(const Eight& some, const float (&v)[8], long long row, bool inside, int* noted) {
  bool bad = some.beyond;
  if (__any_sync(~0u, some.small)) {
    int losing = 0, used = 0;
    bool large = false;
    @few
    for (int i = 0; i < 8; ++i) {
      losing += v[i] != 0.f && fabsf(v[i]) < 0x1p-14f, used += v[i] != 0.f;
      large |= fabsf(v[i]) >= 0x1p-3f;
      @count
    }
    losing = __reduce_add_sync(~0u, losing), used = __reduce_add_sync(~0u, used);
    @too_few
    bad |= losing * 16 > used && (losing > 1 || !__any_sync(~0u, large));
  }
  if (bad && inside) mark(row, noted);
}

//@ noting_16
// Eight channels of a position.
struct Eight {
  uint4 packed;
  bool beyond = false, small = false;  // an element is not finite; and none loses bits
  __device__ __forceinline__ Eight(const float (&v)[8]) {
    union { @type v[8]; uint4 all; } some;
    unrolled for (int i = 0; i < 8; ++i) some.v[i] = static_cast<@type>(v[i]), beyond |= !(fabsf(v[i]) < INFINITY);
    packed = some.all;
  }
};
__device__ __forceinline__ void note(const Eight& some, const float (&)[8], long long row, bool inside, int* noted) {
  if (some.beyond && inside) mark(row, noted);
}

//@ place
// An element of the copied input: its row, and where its line comes from in x; -1 where there is none, and zeros are.
struct Element {
  unsigned line, of_slice, place;  // the line, of all and of those of its slice; where the element is along it
  long long row, slice_from, from;
  int column;  // along the width of x; outside 0 .. x_width - 1 there are zeros too
  __device__ __forceinline__ Element(unsigned flat, int copy, const Sizes& s, int x_depth, int x_height, int x_width) {
    const unsigned wide = s.width * WIDTH_COPIES;
    line = flat / wide;
    const unsigned slice = line / (unsigned)s.height, image = slice / (unsigned)s.depth;
    const int z = (slice - image * s.depth) * DEPTH_MODULUS + copy / HEIGHT_MODULUS - DEPTH_MARGIN;
    const long long plane = (long long)x_depth * x_height * x_width;
    const bool inside = image < s.batch && (unsigned)z < x_depth;
    slice_from = inside ? image * GROUPS * (s.channels * plane) + (long long)z * x_height * x_width : -1;
    of_slice = line - slice * s.height;
    set_line(copy, x_height, x_width), set_place(flat - line * wide, copy, s);
  }
  __device__ __forceinline__ void set_line(int copy, int x_height, int x_width) {
    const int y = of_slice * HEIGHT_MODULUS + copy % HEIGHT_MODULUS - HEIGHT_MARGIN;
    from = slice_from >= 0 && (unsigned)y < x_height ? slice_from + (long long)y * x_width : -1;
  }
  __device__ __forceinline__ void set_place(unsigned along, int copy, const Sizes& s) {
    place = along, column = along * FOLD - WIDTH_MARGIN;
    row = (copy * WIDTH_COPIES + along % WIDTH_COPIES) * (long long)s.copy_rows + line * (long long)s.width +
          along / WIDTH_COPIES;
  }
};

//@ planes
@sizes
cudaTriggerProgrammaticLaunchCompletion();
const int copy = blockIdx.y;  // phases of the input along depth and height
const long long flat = blockIdx.x * 256ll + threadIdx.x, plane_size = (long long)x_depth * x_height * x_width;
const long long all_rows = (long long)DEPTH_MODULUS * HEIGHT_MODULUS * WIDTH_COPIES * copy_rows;
const bool inside = flat < (long long)copy_rows * WIDTH_COPIES;
const Element at(inside ? flat : 0, copy, s, x_depth, x_height, x_width);
unrolled for (int @number) {
  float v[8];
  unrolled for (int i = 0; i < 8; ++i) {
    const int channel = @channel, column = at.column + (FOLD == 2 ? i / 4 : 0);
    const bool given = inside && at.from >= 0 && channel < channels && (unsigned)column < x_width;
    v[i] = given ? static_cast<float>(x[at.from + (@group * channels + channel) * plane_size + column]) : 0.f;
  }
  const Eight some(v);
  note(some, v, at.row, inside, noted);
  @stored
}
cudaGridDependencySynchronize();  // who waits for this launch waits for the one before it too

//@ rows
// 32 positions of eight channels are read by a warp, as they lie; rows of channels are put together in shared memory.
constexpr int TOGETHER = @together / CHUNKS, HELD = @each | 1, ITEMS = @together / 256;
__shared__ uint4 held[TOGETHER * HELD];
__shared__ long long row_of_held[TOGETHER];
@sizes
cudaTriggerProgrammaticLaunchCompletion();
const int copy = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
const int of_group = (channels + 7) / 8, all_chunks = GROUPS * of_group, chunk0 = blockIdx.z * CHUNKS;
const int chunk = warp % CHUNKS, group = (chunk0 + chunk) / of_group, first = (chunk0 + chunk) % of_group * 8;
const long long flat0 = (long long)blockIdx.x * TOGETHER, plane_size = (long long)x_depth * x_height * x_width;
const long long count = (long long)copy_rows * WIDTH_COPIES;
const unsigned wide = width * WIDTH_COPIES, inverse = 0xFFFFFFFFu / wide;
const Element first_of_block(flat0, copy, s, x_depth, x_height, x_width);
auto place_of_item = [&](int item) { return (item * (8 / CHUNKS) + warp / CHUNKS) * 32 + lane; };
auto element = [&](int place) {  // so many places behind the block's first: mostly in its line, or in its slice
  Element at = first_of_block;
  const unsigned along = at.place + place;
  const unsigned lines = along < wide ? 0 : wide >= TOGETHER ? 1 : __umulhi(along + 1, inverse);
  at.line += lines, at.of_slice += lines;
  if (lines && at.of_slice >= height)
    return Element(flat0 + place < count ? flat0 + place : 0, copy, s, x_depth, x_height, x_width);
  at.set_line(copy, x_height, x_width), at.set_place(along - lines * wide, copy, s);
  return at;
};
float v[ITEMS][8];
unrolled for (int item = 0; item < ITEMS; ++item) {  // all are asked for before any is looked at
  const int place = place_of_item(item);
  const Element at = element(place);
  const bool given = flat0 + place < count && at.from >= 0 && group < GROUPS && (unsigned)at.column < x_width;
  const auto* from = one_address(x + at.from + at.column + (group * channels + first) * plane_size);
  unrolled for (int i = 0; i < 8; ++i, from += plane_size)
    v[item][i] = given && (WHOLE || first + i < channels) ? static_cast<float>(*from) : 0.f;
  if (chunk == 0) row_of_held[place] = at.row;
}
bool some_lose = false;
unrolled for (int item = 0; item < ITEMS; ++item) {
  const int place = place_of_item(item);
  const Eight some(v[item]);
  some_lose |= some.beyond || some.small;
  @stored
}
if (__any_sync(~0u, some_lose)) {
  unrolled for (int item = 0; item < ITEMS; ++item) {
    const int place = place_of_item(item);
    note(Eight(v[item]), v[item], element(place).row, flat0 + place < count, noted);
  }
}
__syncthreads();
for (int i = threadIdx.x; i < TOGETHER * @each; i += 256) {
  const int place = i / @all, chunk = i % @all;
  if (flat0 + place < count && @first + chunk < @chunks)
    copied[row_of_held[place] * @chunks + @first + chunk] = held[place * HELD + chunk];
}
cudaGridDependencySynchronize();  // who waits for this launch waits for the one before it too

//@ store_parts
unrolled for (int plane = 0; plane < @planes; ++plane)
  if (inside) copied[(group * @planes + plane) * all_rows + at.row] = parts.packed[plane];

//# The second plane: what the position and its neighbours have beyond eight elements. Neighbours that no tap meets are
//# zeros there: one that is not finite would show in results whose tiles do not look for it.
//@ store_neighbours
if (inside) copied[group * 2 * all_rows + at.row] = parts.packed[0];
float beyond[8];
unrolled for (int i = 0; i < 8; ++i) {
  const int number = 8 + i % @rest, away = i / @rest, column = at.column + away * WIDTH_COPIES;
  const bool is_there = inside && at.from >= 0 && (unsigned)column < x_width;
  const bool given = is_there && number / 3 < channels && away < @neighbours;
  const float whole = given ? x[at.from + (group * channels + number / 3) * plane_size + column] : 0.f;
  beyond[i] = number % 3 == 1 ? (whole - __half2float(__float2half_rn(whole))) * 2048.f : whole;
}
if (inside) copied[(group * 2 + 1) * all_rows + at.row] = Eight(beyond).packed;

//@ pack
// Blocks share a filter. Its rows are those of its phases, in every block of weights.
constexpr int ROW_ELEMENTS = (STEPS == 1 ? 32 : STEPS == 2 ? 64 : 128) / 2, PER_SHIFT = @per_shift;
constexpr int TAPS = DEPTH_TAPS * HEIGHT_TAPS * WIDTH_TAPS;
cudaTriggerProgrammaticLaunchCompletion();
const int padded = row_tiles * ROWS_OF_KIND / ROWS_OF_FILTER, group = blockIdx.x / padded, filter = blockIdx.x % padded;
const bool inside = filter < filters;
auto weight_at = [&](int c, int t) { return static_cast<float>(weight[@place]); };
@scale
const int blocks = PAIRS * channel_blocks * WIDTH_BLOCKS;
const int count = blocks * ROW_KINDS * ROWS_OF_FILTER * ROW_ELEMENTS;
for (int i = blockIdx.y * 256 + threadIdx.x; i < count; i += 256 * gridDim.y) {
  const int e = i % ROW_ELEMENTS, phase = i / ROW_ELEMENTS % ROWS_OF_FILTER;
  const int of_kinds = i / ROW_ELEMENTS / ROWS_OF_FILTER, row_kind = of_kinds % ROW_KINDS, block = of_kinds / ROW_KINDS;
  // Blocks lie in the order in which they are used: kind, block of channels, pairs that a slot serves, slot, its pairs,
  // its shifts.
  int kind = 0, slot = 0;
  while (block >= FIRST_PAIR[kind + 1] * channel_blocks * WIDTH_BLOCKS) ++kind;
  const int lines = TALL ? KIND_LINES[kind] : 1, served = (FIRST_PAIR[kind + 1] - FIRST_PAIR[kind]) / lines;
  const int in_kind = block - FIRST_PAIR[kind] * channel_blocks * WIDTH_BLOCKS, together = lines * WIDTH_BLOCKS;
  while (in_kind % together >= FIRST_BLOCK[slot + 1] * lines) ++slot;
  const int of_slot = FIRST_BLOCK[slot + 1] - FIRST_BLOCK[slot];
  const int in_slot = in_kind % together - FIRST_BLOCK[slot] * lines;
  const int of_width = FIRST_BLOCK[slot] + in_slot % of_slot;
  const int pair = FIRST_PAIR[kind] + in_kind / together % served * lines + in_slot / of_slot;
  const int @element = in_kind / together / served * (@per_block) + @channel@part;
  const int shift = (BLOCK_SHIFT[of_width] + @further) * WIDTH_MODULUS +
                    SLOT_COPY[BLOCK_SLOT[of_width]] * FOLD@fold;
  const int tap = shift <= WIDTH_REACH ? TAP_OF[shift * ROWS_OF_FILTER + phase] : -1;
  const int outer = PAIR_TAP[pair * ROW_KINDS + row_kind];  // its tap of depth and height
  const bool given = inside && tap >= 0 && outer >= 0 && c < channels && @beyond;
  const float v = given ? weight_at(c, outer * WIDTH_TAPS + tap) * scale : 0.f@high;
  const long long tile = ((long long)block * GROUPS + group) * row_tiles * ROWS;
  const long long row = tile + row_kind * ROWS_OF_KIND + filter * ROWS_OF_FILTER + phase;
  packed[row * ROW_ELEMENTS + e] = static_cast<@type>(@stored);
}
if (blockIdx.y == 0 && threadIdx.x < ROW_KINDS * ROWS_OF_FILTER) {
  const int row = threadIdx.x / ROWS_OF_FILTER * ROWS_OF_KIND + threadIdx.x % ROWS_OF_FILTER;
  scales[group * row_tiles * ROWS + filter * ROWS_OF_FILTER + row] = 1.f / scale;
}

//@ scale
__shared__ uint32_t largest;
__shared__ int losing, used;
if (threadIdx.x == 0) largest = 0, losing = 0, used = 0;
__syncthreads();
uint32_t mine = 0;
for (int i = threadIdx.x; inside && i < channels * TAPS; i += 256)
  mine = max(mine, __float_as_uint(weight_at(i / TAPS, i % TAPS)) & 0x7FFFFFFF);
atomicMax(&largest, mine);
__syncthreads();
// The largest weight is scaled to @range: far from what sums in f32 hold, and 2^17 above what loses bits.
const int exponent = min(max((int)(largest >> 23) - 127, -100), 127);
const float scale = largest ? __uint_as_float((uint32_t)(127 + @exponent - exponent) << 23) : 1.f;
int my_losing = 0, my_used = 0;
for (int i = threadIdx.x; inside && i < channels * TAPS; i += 256) {
  const float v = fabsf(weight_at(i / TAPS, i % TAPS) * scale);
  my_losing += @losing, my_used += v != 0.f;
}
atomicAdd(&losing, my_losing), atomicAdd(&used, my_used);
__syncthreads();
// Beyond f16: all results are made again.
if (threadIdx.x == 0 && (largest >= 0x7F800000 || losing * 16 > used)) noted[0] = 1, noted[1] = 1;

//@ no_scale
constexpr float scale = 1.f;

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

//@ exact_place
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

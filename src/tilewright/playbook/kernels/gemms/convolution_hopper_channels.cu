//# Work over all channels of a position, as text: on the sums in registers, before anything is stored.

//# In one instruction, which takes NaN where one of the two is.
//@ extreme
struct @name {
  __device__ __forceinline__ float operator()(float a, float b) const {
    float chosen;
    asm("@form.NaN.f32 %0, %1, %2;" : "=f"(chosen) : "f"(a), "f"(b));
    return chosen;
  }
};

//@ over_lanes
// ---- all channels of a position: a lane has columns 8j + 2 * (lane % 4) and the next, of two rows in every 64
constexpr int COLUMNS = POSITIONS / 4, COLUMN_VALUES = ROWS_OF_FILTER * POSITIONS;
// Over lanes that have other channels of the same results: with every step a lane keeps half of its columns. Which is
// the first that it has then.
template <int COUNT, int OFFSET, typename Combine>
__device__ __forceinline__ int over_lanes(float (&part)[COLUMNS], Combine combine) {
  if constexpr (OFFSET < 4 * ROWS_OF_FILTER) {
    return 0;
  } else {
    const bool upper = threadIdx.x & OFFSET;
    unrolled for (int i = 0; i < COUNT / 2; ++i) {
      const float given = upper ? part[i] : part[i + COUNT / 2], own = upper ? part[i + COUNT / 2] : part[i];
      part[i] = combine(own, __shfl_xor_sync(~0u, given, OFFSET));
    }
    return (upper ? COUNT / 2 : 0) + over_lanes<COUNT / 2, OFFSET / 2>(part, combine);
  }
}
// Over all channels: what every result's come to, by its phase and position.
template <typename Combine>
__device__ __forceinline__ void over_channels(float (&part)[COLUMNS], Combine combine, float* of_warps,
                                              float* of_columns, int consumer) {
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const int first = over_lanes<COLUMNS, 16>(part, combine);
  float* to = of_warps + thread / 32 * COLUMN_VALUES + lane / 4 % ROWS_OF_FILTER * POSITIONS + lane % 4 * 2;
  unrolled for (int i = 0; i < COLUMNS * ROWS_OF_FILTER / 8; ++i) to[(first + i) / 2 * 8 + (first + i) % 2] = part[i];
  consumer_sync(consumer);
  for (int i = thread; i < COLUMN_VALUES; i += 128) {
    float all = of_warps[i];
    unrolled for (int warp = 1; warp < 4; ++warp) all = combine(all, of_warps[warp * COLUMN_VALUES + i]);
    of_columns[i] = all;
  }
  consumer_sync(consumer);
}

//@ rows_of_lane
int channel_of[MI * 2];  // of this lane's rows
#pragma unroll
for (int r = 0; r < MI * 2; ++r) channel_of[r] = (r / 2 * 64 + warp * 16 + r % 2 * 8 + lane / 4) / ROWS_OF_FILTER;

//@ sweep
{
  @parts
  unrolled for (int c = 0; c < COLUMNS; ++c) {
    @known
    @begun
    unrolled for (int r = 0; r < MI * 2; ++r) {
      const int channel = channel_of[r];
      if (!EVERY && channel >= filters) continue;
      @element
    }
    @kept
  }
  @combined
}

//@ store_columns
Sizes of_row = s;
of_row.filters = 1;
for (int i = thread; i < here.count * WIDTH_PHASES; i += 128) {
  const long long place = place_of(here.position + i / WIDTH_PHASES, here.kind, of_row);
  if (i % WIDTH_PHASES >= place % 16) continue;
  const int column = i % WIDTH_PHASES * POSITIONS + i / WIDTH_PHASES;
  @made
  y[place / 16 + i % WIDTH_PHASES] = @stored;
}

//@ sweep_again
unrolled for (int k = 0; k < FILTERS_OF_LANE; ++k) {
  const int channel = lane + k * 32;
  float& value = total[k];
  if (channel >= filters) continue;
  @element
}

//@ over_warp
template <typename Combine> __device__ __forceinline__ float over_warp(float value, Combine combine) {
  unrolled for (int offset = 16; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(~0u, value, offset));
  return value;
}

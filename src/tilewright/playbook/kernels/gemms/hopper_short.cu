//# A product with a short k as text: both operands become f16 parts in one launch; then storing is the work.

//@ tiles
// ---- both operands at once: a block takes 128 rows or columns of one of them
constexpr int SHORT = STEPS * 32;  // k, and zeros after it
template <int WIDTH> __device__ __forceinline__ Numbers<4> four_of(const float* p, int left) {
  if constexpr (WIDTH == 4) return left > 0 ? numbers_at<4>(p) : Numbers<4>{};
  Numbers<4> some = {};
  unrolled for (int j = 0; j < 4; ++j)
    if (j < left) some.v[j] = p[j];
  return some;
}
// Scales of so many rows or columns: what a tile has is loaded as a whole.
__device__ __forceinline__ long long whole_lines(int count) { return (count + 127ll) / 128 * 128; }
// Of a row, or column, that lanes have which are NEAREST, 2 NEAREST, .. apart, up to FARTHEST.
template <int NEAREST, int FARTHEST> __device__ __forceinline__ uint32_t largest_of_lanes(uint32_t v) {
  unrolled for (int o = NEAREST; o <= FARTHEST; o *= 2) v = max(v, __shfl_xor_sync(~0u, v, o));
  return v;
}
// Whether it is too wide, of which the lane has COUNT numbers.
template <int NEAREST, int FARTHEST, int COUNT>
__device__ __forceinline__ bool is_wide_in_lanes(uint32_t largest, float scale, const float (&numbers)[COUNT]) {
  float least = INFINITY;
  unrolled for (int i = 0; i < COUNT; ++i) least = fminf(least, fabsf(numbers[i]));
  if (!__any_sync(~0u, least * scale < LOSING)) return is_too_wide(largest, 0, 0, 0, SHORT);  // mostly
  Counts counts;
  unrolled for (int i = 0; i < COUNT; ++i) counts.add(numbers[i], numbers[i] * scale);
  unrolled for (int o = NEAREST; o <= FARTHEST; o *= 2) {
    counts.losing += __shfl_xor_sync(~0u, counts.losing, o), counts.few += __shfl_xor_sync(~0u, counts.few, o);
    counts.zeros += __shfl_xor_sync(~0u, counts.zeros, o);
  }
  return is_too_wide(largest, counts.losing, counts.few, counts.zeros, SHORT);
}

//@ rows
// Rows contiguous along k: SHORT / 4 lanes have one. Whether one is too wide.
template <int WIDTH>
__device__ __forceinline__ bool split_128_rows(const float* from, long long pitch, __half* parts, long long to_low,
                                               long long parts_pitch, float* scales, int rows, int K) {
  constexpr int LANES = SHORT / 4, AT_ONCE = 256 / LANES, COUNT = 128 / AT_ONCE;
  const int k = threadIdx.x % LANES * 4, first = threadIdx.x / LANES;
  Numbers<4> some[COUNT];
  unrolled for (int i = 0; i < COUNT; ++i) {
    const int row = first + i * AT_ONCE;
    some[i] = four_of<WIDTH>(from + row * pitch + k, row < rows ? K - k : 0);
  }
  bool wide = false;
  unrolled for (int i = 0; i < COUNT; ++i) {
    const int row = first + i * AT_ONCE;
    uint32_t largest = 0;
    unrolled for (int j = 0; j < 4; ++j) largest = max(largest, magnitude_bits(some[i].v[j]));
    largest = largest_of_lanes<1, LANES / 2>(largest);
    const float scale = scale_of(largest);
    Numbers<4> scaled;
    unrolled for (int j = 0; j < 4; ++j) scaled.v[j] = some[i].v[j] * scale;
    wide |= is_wide_in_lanes<1, LANES / 2>(largest, scale, some[i].v);
    if (k == 0) scales[row] = 1.f / scale;  // of rows outside too, which are loaded with others
    if (row >= rows) continue;
    __half* to = parts + row * parts_pitch + k;
    store_parts(scaled, to, to + to_low);
  }
  return wide;
}

//@ columns
// Columns contiguous along m or n: a warp has 16, four of them and every eighth k a lane. Whether one is too wide.
template <int WIDTH>
__device__ __forceinline__ bool split_128_columns(const float* from, long long pitch, __half* parts, long long to_low,
                                                  long long parts_pitch, float* scales, int columns, int K) {
  constexpr int COUNT = SHORT / 8;
  const int lane = threadIdx.x % 32, column = threadIdx.x / 32 * 16 + lane % 4 * 4, first = lane / 4;
  Numbers<4> some[COUNT];
  uint32_t largest[4] = {};
  unrolled for (int i = 0; i < COUNT; ++i) {
    const int k = first + i * 8;
    some[i] = four_of<WIDTH>(from + k * pitch + column, k < K ? columns - column : 0);
    unrolled for (int j = 0; j < 4; ++j) largest[j] = max(largest[j], magnitude_bits(some[i].v[j]));
  }
  float scale[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) largest[j] = largest_of_lanes<4, 16>(largest[j]), scale[j] = scale_of(largest[j]);
  unrolled for (int i = 0; i < COUNT; ++i) {
    const int k = first + i * 8;
    Numbers<4> scaled;
    unrolled for (int j = 0; j < 4; ++j) scaled.v[j] = some[i].v[j] * scale[j];
    __half* to = parts + k * parts_pitch + column;
    if (k < K && column < columns) store_parts(scaled, to, to + to_low);
  }
  bool wide = false;
  unrolled for (int j = 0; j < 4; ++j) {
    float of_column[COUNT];
    unrolled for (int i = 0; i < COUNT; ++i) of_column[i] = some[i].v[j];
    wide |= is_wide_in_lanes<4, 16>(largest[j], scale[j], of_column);
    if (first == 0) scales[column + j] = 1.f / scale[j];
  }
  return wide;
}

//@ constants
// ---- the product
constexpr int BM = 128, BK = 32;  // a tile of the result is BM x BN; a slot holds BK of k
constexpr int WIDTH = 128, SIDES = BN / WIDTH;  // columns of a consumer; two below each other, so many beside
constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2;
constexpr int SLOT_BYTES = 2 * A_BYTES + 1024, KEPT_BYTES = STEPS * 2 * B_BYTES + 1024;  // parts, then scales
constexpr int BOX_BYTES = BK * 64 * 2;  // of an operand contiguous along m or n: BK rows of 64
constexpr int C_PITCH = WIDTH * 4 + 32, C_BYTES = 8 * C_PITCH;  // eight rows of a warp
constexpr int PRODUCER_REGISTERS = 32, CONSUMER_REGISTERS = 112;  // of 96 for each of 640 threads

//@ tile
// A strip is STRIP tiles one below the other, which keep what b has for them; the last are one, so that blocks end
// together. Neighbouring strips are neighbours in a row of the result. The tile is a strip's first.
struct Tile {
  int m0, n0, z, last;  // of the strip's rows
  __device__ __forceinline__ static int long_strips(int tiles_m) { return STRIP > 1 ? max(tiles_m / STRIP - 2, 0) : 0; }
  __device__ __forceinline__ static int strips(int tiles_m, int tiles_n) {  // of a matrix
    return (tiles_m - long_strips(tiles_m) * (STRIP - 1)) * tiles_n;
  }
  __device__ __forceinline__ Tile(int number, int tiles_m, int tiles_n) {
    const int of_matrix = strips(tiles_m, tiles_n), at = number % of_matrix / tiles_n, longer = long_strips(tiles_m);
    n0 = number % tiles_n * BN, z = number / of_matrix;
    m0 = (at < longer ? at * STRIP : at + longer * (STRIP - 1)) * BM, last = m0 + (at < longer ? STRIP - 1 : 0) * BM;
  }
};

//@ line
__device__ __forceinline__ void load_line(const float* from, uint32_t barrier, uint32_t to, int bytes) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

//@ body
extern __shared__ __align__(1024) char shared[];  // swizzled tiles need 1024-byte bases
const uint32_t slots = (uint32_t)__cvta_generic_to_shared(shared), kept = slots + STAGES * SLOT_BYTES;
const uint32_t c_buffers = kept + PLACES * KEPT_BYTES, columns = c_buffers + 8 * SIDES * C_BYTES;
const uint32_t full = columns + 4 * SIDES * WIDTH * 4, empty = full + STAGES * 8;
const uint32_t kept_full = empty + STAGES * 8, kept_empty = kept_full + PLACES * 8;
const uint32_t told = kept_empty + PLACES * 8;  // numbers of strips
const int thread = threadIdx.x % 128, warpgroup = threadIdx.x / 128;  // consumers, then the producer
const int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN, strips = Tile::strips(tiles_m, tiles_n) * batch;
if (threadIdx.x == 0) {
  if (slots % 1024) __trap();
  prefetch(&a_map), prefetch(&b_map);
  for (int s = 0; s < STAGES; ++s) barrier_init(full + s * 8, 1), barrier_init(empty + s * 8, 2 * SIDES);
  for (int p = 0; p < PLACES; ++p) barrier_init(kept_full + p * 8, 1), barrier_init(kept_empty + p * 8, 2 * SIDES);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__syncthreads();
cudaTriggerProgrammaticLaunchCompletion();
cudaGridDependencySynchronize();

int slot = 0;
auto advance = [&](uint32_t& parity) {
  if (++slot == STAGES) slot = 0, parity ^= 1;
};
if (warpgroup == 2 * SIDES) {  // ---- producer
  @producer
} else {  // ---- consumers
  @consumers
}

//@ producer
if constexpr (SIDES > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
if (threadIdx.x == 256 * SIDES) {
  // Who is ready takes the next strip. Nobody takes many more than others: so a few blocks that are run alone do
  // about their part.
  const int share = (strips + gridDim.x - 1) / gridDim.x;
  uint32_t parity = 1;  // the phase "before the first": a fresh barrier counts as just completed
  for (int number = blockIdx.x, left = share + share / 16, turn = 0;; ++turn) {
    const int later = number < strips && left-- > 0 ? gridDim.x + atomicAdd(wide, 1) : strips;  // comes meanwhile
    const uint32_t place = kept + turn % PLACES * KEPT_BYTES, come = kept_full + turn % PLACES * 8;
    barrier_wait(kept_empty + turn % PLACES * 8, turn / PLACES % 2 ^ 1);
    store_number(told + turn % PLACES * 4, number);
    if (number >= strips) {
      barrier_arrive(come);
      break;
    }
    Tile tile(number, tiles_m, tiles_n);
    const int scales = min(BN, (int)whole_lines(N) - tile.n0) * 4;
    barrier_arrive_expecting(come, STEPS * 2 * B_BYTES + scales);
    load_line(b_scales + tile.z * whole_lines(N) + tile.n0, come, place + STEPS * 2 * B_BYTES, scales);
    unrolled for (int step = 0; step < STEPS; ++step) {
      const int k = step * BK;
      const uint32_t b_at = place + step * 2 * B_BYTES, arrived = come;
      unrolled for (int part = 0; part < 2; ++part) {
        @loads_of_b
      }
    }
    rolled for (; tile.m0 <= tile.last; tile.m0 += BM) {
      unrolled for (int step = 0; step < STEPS; ++step) {
        const int k = step * BK;
        const uint32_t at = slots + slot * SLOT_BYTES, arrived = full + slot * 8;
        barrier_wait(empty + slot * 8, parity);
        barrier_arrive_expecting(arrived, 2 * A_BYTES + (step == 0 ? BM * 4 : 0));
        if (step == 0) load_line(a_scales + tile.z * whole_lines(M) + tile.m0, arrived, at + 2 * A_BYTES, BM * 4);
        unrolled for (int part = 0; part < 2; ++part) {
          @loads_of_a
        }
        advance(parity);
      }
    }
    number = later;
  }
}

//@ consumer
if constexpr (SIDES > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
const int consumer = warpgroup % 2, side = warpgroup / 2, lane = thread % 32, warp = thread / 32;
const uint64_t a_slots = @a_slots;
const uint64_t b_places = @b_slots;
const uint32_t buffer = c_buffers + (warpgroup * 4 + warp) * C_BYTES;
const int row = warp * 16 + lane / 4;
uint32_t parity = 0;
for (int turn = 0;; ++turn) {
  barrier_wait(kept_full + turn % PLACES * 8, turn / PLACES % 2);
  const int number = number_at(told + turn % PLACES * 4);
  if (number >= strips) break;
  Tile tile(number, tiles_m, tiles_n);
  tile.n0 += side * WIDTH;
  // Scales of columns, for which strips take turns with two places: what came with b is gone when the last is stored.
  const uint32_t place = turn % PLACES * KEPT_BYTES, my_columns = columns + (warpgroup * 2 + turn % 2) * WIDTH * 4;
  const uint32_t came = kept + place + STEPS * 2 * B_BYTES + (side * WIDTH + thread) * 4;
  const float of_column = tile.n0 < N ? scale_at(came) : 0.f;
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(my_columns + thread * 4), "f"(of_column) : "memory");
  consumer_sync(warpgroup);
  rolled for (; tile.m0 <= tile.last; tile.m0 += BM) {
    const int m[2] = {tile.m0 + consumer * 64 + row, tile.m0 + consumer * 64 + row + 8};
    float row_scale[2];
    // low * high + high * low + high * high, the small products first; low * low is below the last bit.
    float sum[WIDTH / 2];
    unrolled for (int step = 0; step < STEPS; ++step) {
      barrier_wait(full + slot * 8, parity);
      unrolled for (int r = 0; r < 2 && step == 0; ++r)
        row_scale[r] = scale_at(slots + slot * SLOT_BYTES + 2 * A_BYTES + (consumer * 64 + row + r * 8) * 4);
      const uint64_t a_slot = a_slots + (slot * SLOT_BYTES >> 4);
      const uint64_t b_slot = b_places + ((place + step * 2 * B_BYTES) >> 4);
      wgmma_fence();
      unrolled for (int which = 0; which < 3; ++which)
        unrolled for (int k = 0; k < BK / 16; ++k)
          wgmma(sum, a_slot + (((which == 0) * A_BYTES + k * @a_step) >> 4),
                b_slot + (((which == 1) * B_BYTES + side * (@half) + k * @b_step) >> 4),
                step > 0 || which > 0 || k > 0);
      wgmma_commit();
      wgmma_wait<0>();
      if (step == 0) consumer_sync(warpgroup);  // all have the scales of rows
      if (thread == 0) barrier_arrive(empty + slot * 8);
      advance(parity);
    }
    if (tile.m0 == tile.last && thread == 0) barrier_arrive(kept_empty + turn % PLACES * 8);

    @finish
  }
}
if (lane < 8) wait_until_stored();

//@ rows_of_results
// A warp puts eight rows in order in a place of its own, which meets all banks, and bulk copies store them while it
// goes on. What is written first leaves L2 first: it is more than L2 holds.
unrolled for (int upper = 0; upper < 2; ++upper) {
  if (lane < 8) wait_until_read<0>();
  __syncwarp();
#pragma unroll
  for (int j = 0; j < WIDTH / 8; ++j) {  // finished twice, half of it kept: all of it at once, and registers spill
    float v[4];
    four(sum + j * 4, j * 8 + lane % 4 * 2, v);
    const uint32_t to = buffer + lane / 4 * C_PITCH + j * 32 + lane % 4 * 8;
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};"
                 ::"r"(to), "f"(v[upper * 2]), "f"(v[upper * 2 + 1]) : "memory");
  }
  show_to_tma();
  __syncwarp();
  const int at = tile.m0 + consumer * 64 + warp * 16 + upper * 8;
  if (lane < 8 && at + lane < M && tile.n0 < N) {
    float* to = c + ((size_t)tile.z * M + at + lane) * N + tile.n0;
    store_row(to, buffer + lane * C_PITCH, min(WIDTH, N - tile.n0) * 4);
  }
}

//@ scale_at
__device__ __forceinline__ float scale_at(uint32_t from) {
  float scale; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scale) : "r"(from) : "memory"); return scale;
}

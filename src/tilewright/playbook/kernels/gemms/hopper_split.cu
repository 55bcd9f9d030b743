//# How f32 operands become two f16 parts, as text.

//@ criterion
// ---- f32 as two f16 parts
// A row is scaled so that its largest magnitude is in [2^14, 2^15). An element x is then high + low to 2^-23 of x; one
// that is below 2^-3 loses bits, because low has no smaller steps than 2^-24, and one below 2^-11 keeps fewer than 14.
// Rows are left to f32 of which one element in 16 loses bits, or one in 1024 keeps few: the rest of such a row may be
// the result, where what is large in it meets zeros. So are rows whose largest is infinite or NaN, or so large or small
// that the product of two scales leaves the range of f32.
__device__ __forceinline__ float scale_of(uint32_t largest_bits) {
  const int exponent = largest_bits ? (int)(largest_bits >> 23) - 127 : 0;
  return __uint_as_float((uint32_t)(127 + 14 - min(max(exponent, -60), 60)) << 23);
}
__device__ __forceinline__ bool is_too_wide(uint32_t largest_bits, int losing, int few, int zeros, int length) {
  const int exponent = (int)(largest_bits >> 23) - 127, others = length - zeros;
  return (largest_bits && (exponent < -60 || exponent > 60)) || losing > 1 + others / 16 || few > others / 1024;
}
// In the order of magnitudes; NaN is the largest.
__device__ __forceinline__ uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7FFFFFFF; }
// In that order too, but zeros are the largest.
__device__ __forceinline__ uint32_t order_of_small(float x) { return __float_as_uint(x) * 2 - 2; }

constexpr float LOSING = 0x1p-3f, FEW = 0x1p-11f;
// The order of LOSING / scale, which is a power of two.
__device__ __forceinline__ uint32_t order_of_losing(float scale) {
  return order_of_small(__uint_as_float(__float_as_uint(LOSING) + (127u << 23) - __float_as_uint(scale)));
}
struct Counts {
  int losing = 0, few = 0, zeros = 0;
  __device__ __forceinline__ void add(float x, float scaled) {
    losing += x != 0.f && fabsf(scaled) < LOSING;
    few += x != 0.f && fabsf(scaled) < FEW;
    zeros += x == 0.f;
  }
};
// Neighbours that are loaded and stored at once.
template <int WIDTH> struct alignas(4 * WIDTH) Numbers { float v[WIDTH]; };
template <int WIDTH> __device__ __forceinline__ Numbers<WIDTH> numbers_at(const float* p) {
  return *reinterpret_cast<const Numbers<WIDTH>*>(p);
}
// Two numbers as the parts that hold them.
__device__ __forceinline__ void split_two(float x, float y, uint32_t& high, uint32_t& low) {
  const __half2 both = __floats2half2_rn(x, y);
  const float2 held = __half22float2(both);
  const __half2 rest = __floats2half2_rn(x - held.x, y - held.y);
  high = *reinterpret_cast<const uint32_t*>(&both), low = *reinterpret_cast<const uint32_t*>(&rest);
}
__device__ __forceinline__ void store_parts(const Numbers<1>& scaled, __half* high_at, __half* low_at) {
  const __half high = __float2half_rn(scaled.v[0]);
  *high_at = high, *low_at = __float2half_rn(scaled.v[0] - __half2float(high));
}
__device__ __forceinline__ void store_parts(const Numbers<4>& scaled, __half* high_at, __half* low_at) {
  uint2 high, low;
  split_two(scaled.v[0], scaled.v[1], high.x, low.x), split_two(scaled.v[2], scaled.v[3], high.y, low.y);
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(high_at), "r"(high.x), "r"(high.y) : "memory");
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(low_at), "r"(low.x), "r"(low.y) : "memory");
}

//@ span
// Between which k a thread's numbers are not all 0: rows and columns of a tile may begin and end with zeros.
struct Span {
  int first = INT_MAX, last = -1;  // numbers at once
  template <int WIDTH> __device__ __forceinline__ void add(int k, const Numbers<WIDTH>& some) {
    uint32_t any = 0;
    unrolled for (int j = 0; j < WIDTH; ++j) any |= magnitude_bits(some.v[j]);
    if (any) first = min(first, k), last = max(last, k);
  }
  // Its tile's is noted by the distance of its first from K, and its end: so that the largest of each is the tile's.
  // Where all are 0 it is 1: 0 says that nobody has looked.
  __device__ __forceinline__ int2 noted(int from, int width, int K) const {
    return last < 0 ? make_int2(1, 1) : make_int2(K - (from + first), from + last + width);
  }
  // Where it has all of k nothing is larger, and who stores last is right; so few take turns at a place.
  __device__ __forceinline__ static void note(int* at, int value, int K) {
    if (value == K) asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
    else atomicMax(at, value);
  }
};

//@ rows
// The largest, and the sum, over a team of LANES neighbouring threads: a part of a warp, a warp, or a block of 256.
template <int LANES> __device__ __forceinline__ uint32_t team_max(uint32_t v, uint32_t* of_warps) {
  for (int o = min(LANES, 32) / 2; o > 0; o /= 2) v = max(v, __shfl_xor_sync(~0u, v, o));
  if constexpr (LANES > 32) {
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = v;
    __syncthreads();
    for (int i = 0; i < 8; ++i) v = max(v, of_warps[i]);
    __syncthreads();
  }
  return v;
}
template <int LANES> __device__ __forceinline__ int team_sum(int v, uint32_t* of_warps) {
  for (int o = min(LANES, 32) / 2; o > 0; o /= 2) v += __shfl_xor_sync(~0u, v, o);
  if constexpr (LANES > 32) {
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < 8; ++i) v += of_warps[i];
    __syncthreads();
  }
  return v;
}

// Rows that are contiguous along k: LANES threads take a row, or a piece of it. What does not fit the registers is read
// again.
template <int LANES, int WIDTH, int HELD>
__global__ void __launch_bounds__(256, HELD > 4 ? 4 : 5)
    split_rows(const float* __restrict__ x, __half* __restrict__ parts, float* __restrict__ scales,
               int* __restrict__ wide, int rows, int batch, int K, long long pitch, long long matrix_pitch,
               long long parts_pitch, int pieces, int piece, int tile, int first_flag, int flags) {
  __shared__ uint32_t of_warps[8];
  cudaTriggerProgrammaticLaunchCompletion();  // what comes next may begin to be launched
  const int lane = threadIdx.x % LANES;
  const long long job = (long long)blockIdx.x * (256 / LANES) + threadIdx.x / LANES;
  const bool inside = job < (long long)rows * pieces * batch;
  const int row = job % rows, number = job / rows % pieces, matrix = job / rows / pieces;
  const int first = number * piece, length = inside ? max(0, min(piece, K - first)) : 0;
  const float* from = x + matrix * matrix_pitch + row * pitch + first;

  constexpr int STEP = LANES * WIDTH;
  Numbers<WIDTH> held[HELD] = {};
  unrolled for (int h = 0; h < HELD; ++h)
    if (lane * WIDTH + h * STEP < length) held[h] = numbers_at<WIDTH>(from + lane * WIDTH + h * STEP);
  uint32_t largest = 0, least = ~0u;
  @span Span span;
  auto look = [&](int i, const Numbers<WIDTH>& some) {
    @span span.add(i, some);
    unrolled for (int j = 0; j < WIDTH; ++j) {
      largest = max(largest, magnitude_bits(some.v[j]));
      least = min(least, order_of_small(some.v[j]));
    }
  };
  unrolled for (int h = 0; h < HELD; ++h) look(lane * WIDTH + h * STEP, held[h]);
  if constexpr (HELD == 8) {  // else it is all of the row
#pragma unroll 4
    for (int i = lane * WIDTH + HELD * STEP; i < length; i += STEP) look(i, numbers_at<WIDTH>(from + i));
  }
  largest = team_max<LANES>(largest, of_warps);

  const float scale = scale_of(largest);
  __half* high_row = parts + ((long long)matrix * rows + row) * parts_pitch + first;
  __half* low_row = high_row + (long long)batch * rows * parts_pitch;
  auto store = [&](int i, Numbers<WIDTH> some) {
    unrolled for (int j = 0; j < WIDTH; ++j) some.v[j] *= scale;
    store_parts(some, high_row + i, low_row + i);
  };
  unrolled for (int h = 0; h < HELD; ++h)
    if (lane * WIDTH + h * STEP < length) store(lane * WIDTH + h * STEP, held[h]);
  if constexpr (HELD == 8) {
#pragma unroll 4
    for (int i = lane * WIDTH + HELD * STEP; i < length; i += STEP) store(i, numbers_at<WIDTH>(from + i));
  }

  Counts counts;
  const bool small = least < order_of_losing(scale);
  const bool any_small = LANES > 32 ? __syncthreads_or(small) : __any_sync(~0u, small);
  if (any_small) {  // rare in ordinary rows
    rolled for (int i = lane * WIDTH; i < length; i += STEP)
      for (int j = 0; j < WIDTH; ++j) counts.add(from[i + j], from[i + j] * scale);
    counts.losing = team_sum<LANES>(counts.losing, of_warps);
    counts.few = team_sum<LANES>(counts.few, of_warps);
    counts.zeros = team_sum<LANES>(counts.zeros, of_warps);
  }
  @span int2 noted = span.noted(first, WIDTH, K);
  @span noted = make_int2(team_max<LANES>(noted.x, of_warps), team_max<LANES>(noted.y, of_warps));
  if (blockIdx.x == 0) cudaGridDependencySynchronize();  // so that who waits for this launch waits for the one before
  const int which = matrix * pieces + number;
  const long long at = (long long)which * flags + first_flag + row / tile;
  @span int* spans = wide + 1 + (long long)batch * pieces * flags + 2 * at;
  @span if (lane == 0 && inside) Span::note(spans, noted.x, K), Span::note(spans + 1, noted.y, K);
  if (lane == 0 && inside) {
    scales[(long long)which * rows + row] = 1.f / scale;
    if (is_too_wide(largest, counts.losing, counts.few, counts.zeros, length)) {
      cudaGridDependencySynchronize();  // the launch before tells with the first flag too
      wide[0] = 1, wide[1 + at] = 1;
    }
  }
}

//@ columns
// The blocks of a cluster wait for each other, read what another has in shared memory, and add to what the first has.
template <int CLUSTER> __device__ __forceinline__ void cluster_arrive() {
  if constexpr (CLUSTER > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
template <int CLUSTER> __device__ __forceinline__ void cluster_wait() {
  if constexpr (CLUSTER == 1) __syncthreads();
  else asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t place_in_block(int rank, const uint32_t& place) {
  uint32_t at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"((uint32_t)__cvta_generic_to_shared(&place)), "r"(rank));
  return at;
}
template <int CLUSTER> __device__ __forceinline__ uint32_t in_block(int rank, const uint32_t& place) {
  if constexpr (CLUSTER == 1) return place;
  uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(place_in_block(rank, place)) : "memory");
  return value;
}
template <int CLUSTER> __device__ __forceinline__ void add_in_first(uint32_t& place, uint32_t value) {
  if constexpr (CLUSTER == 1) atomicAdd(&place, value);
  else asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;"
                    ::"r"(place_in_block(0, place)), "r"(value) : "memory");
}

// A copy to shared memory that runs on while the thread does.
template <int WIDTH> __device__ __forceinline__ void bring(const void* to, const float* from) {
  const uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
  if constexpr (WIDTH == 4) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}

// Columns, which are contiguous along m or n: the blocks of a cluster share 32 of them, each a stretch of k. A thread
// has HELD numbers in registers, MORE in shared memory, and reads what is left again, from the end up: so the second
// reading begins with what was read last and is still in a cache.
template <int CLUSTER, int WIDTH, int MORE>
__global__ void __launch_bounds__(512, 2)
    split_columns(const float* __restrict__ x, __half* __restrict__ parts, float* __restrict__ scales,
                  int* __restrict__ wide, int columns, int K, long long pitch, long long matrix_pitch,
                  long long parts_pitch, int piece, int tile, int first_flag, int flags) {
  constexpr int LANES = 32 / WIDTH, TEAMS = 512 / LANES, HELD = 8;
  __shared__ uint32_t own_largest[32], largest[32], losing[32], few[32], zeros[32];
  @span __shared__ int noted[2];
  const int mine = threadIdx.x % LANES * WIDTH, team = threadIdx.x / LANES, rank = blockIdx.x % CLUSTER;
  const int column0 = blockIdx.x / CLUSTER * 32, column = column0 + mine;
  const int number = blockIdx.y, pieces = gridDim.y, matrix = blockIdx.z, batch = gridDim.z;
  const int share = (piece + CLUSTER - 1) / CLUSTER, first = number * piece + rank * share;
  const int end = min(min(K, number * piece + piece), first + share), last = column < columns ? max(first, end) : first;
  cudaTriggerProgrammaticLaunchCompletion();  // what comes next may begin to be launched
  const int t = threadIdx.x, own = column0 + t;
  if (t < 32) own_largest[t] = 0, largest[t] = 0, losing[t] = 0, few[t] = 0, zeros[t] = 0;
  @span if (t < 2) noted[t] = 0;
  __syncthreads();

  const float* from = x + matrix * matrix_pitch + column + (first + team) * pitch;
  const long long step = TEAMS * pitch;
  const int rows = last - first - team;  // every TEAMS-th of them is the thread's
  extern __shared__ __align__(16) float in_shared[];
  Numbers<WIDTH>* more = reinterpret_cast<Numbers<WIDTH>*>(in_shared) + t;
  constexpr int ON_CHIP = (HELD + MORE) * TEAMS, MOST = 40 / WIDTH;  // MOST: there may be others
  unrolled for (int h = 0; h < MORE; ++h)
    if ((HELD + h) * TEAMS < rows) bring<WIDTH>(more + h * 512, from + (HELD + h) * step);
  Numbers<WIDTH> held[HELD] = {};
  uint32_t highest[WIDTH] = {}, least = ~0u;
  @span Span span;
  auto look = [&](int k, const Numbers<WIDTH>& some) {
    @span span.add(k, some);
    unrolled for (int j = 0; j < WIDTH; ++j) {
      highest[j] = max(highest[j], magnitude_bits(some.v[j]));
      least = min(least, order_of_small(some.v[j]));
    }
  };
  unrolled for (int h = 0; h < HELD; ++h)
    if (h * TEAMS < rows) held[h] = numbers_at<WIDTH>(from + h * step);
  unrolled for (int h = 0; h < HELD; ++h) look(h * TEAMS, held[h]);
  if constexpr (MORE > 0) asm volatile("cp.async.wait_all;" ::: "memory");
  unrolled for (int h = 0; h < MORE; ++h)
    if ((HELD + h) * TEAMS < rows) look((HELD + h) * TEAMS, more[h * 512]);
  if constexpr (MORE == MOST) {
#pragma unroll 2
    for (int k = ON_CHIP; k < rows; k += TEAMS) look(k, numbers_at<WIDTH>(from + k * pitch));
  }
  unrolled for (int j = 0; j < WIDTH; ++j) {
    unrolled for (int o = LANES; o < 32; o *= 2) highest[j] = max(highest[j], __shfl_xor_sync(~0u, highest[j], o));
    if (t % 32 < LANES) atomicMax(&own_largest[mine + j], highest[j]);
  }
  @span const int2 found = span.noted(first + team, 1, K);
  @span const int distance = __reduce_max_sync(~0u, found.x), end_found = __reduce_max_sync(~0u, found.y);
  @span if (t % 32 == 0) atomicMax(&noted[0], distance), atomicMax(&noted[1], end_found);
  cluster_arrive<CLUSTER>(), cluster_wait<CLUSTER>();
  if (t < CLUSTER * 32) atomicMax(&largest[t % 32], in_block<CLUSTER>(t / 32, own_largest[t % 32]));
  __syncthreads();
  cluster_arrive<CLUSTER>();  // what the others have was read

  float scale[WIDTH], least_scale = INFINITY;
  unrolled for (int j = 0; j < WIDTH; ++j)
    scale[j] = scale_of(largest[mine + j]), least_scale = fminf(least_scale, scale[j]);
  __half* high_column = parts + ((long long)matrix * K + first + team) * parts_pitch + column;
  __half* low_column = high_column + (long long)batch * K * parts_pitch;
  auto store = [&](long long at, Numbers<WIDTH> some) {
    unrolled for (int j = 0; j < WIDTH; ++j) some.v[j] *= scale[j];
    store_parts(some, high_column + at, low_column + at);
  };
  const long long parts_step = TEAMS * parts_pitch;
  unrolled for (int h = 0; h < HELD; ++h)
    if (h * TEAMS < rows) store(h * parts_step, held[h]);
  unrolled for (int h = 0; h < MORE; ++h)
    if ((HELD + h) * TEAMS < rows) store((HELD + h) * parts_step, more[h * 512]);
  if constexpr (MORE == MOST) {
#pragma unroll 2
    for (int k = (rows - 1) / TEAMS * TEAMS; k >= ON_CHIP; k -= TEAMS)
      store(k * parts_pitch, numbers_at<WIDTH>(from + k * pitch));
  }

  cluster_wait<CLUSTER>();
  if (least < order_of_losing(least_scale)) {  // rare in ordinary columns
    rolled for (int j = 0; j < WIDTH; ++j) {
      Counts counts;
      const float its_scale = scale_of(largest[mine + j]);
      rolled for (int k = 0; k < rows; k += TEAMS) counts.add(from[k * pitch + j], from[k * pitch + j] * its_scale);
      add_in_first<CLUSTER>(losing[mine + j], counts.losing);
      add_in_first<CLUSTER>(few[mine + j], counts.few);
    }
  }
  cluster_arrive<CLUSTER>();
  if (blockIdx.x == 0) cudaGridDependencySynchronize();  // so that who waits for this launch waits for the one before
  const int which = matrix * pieces + number;
  const long long at = (long long)which * flags + first_flag + column0 / tile;
  @span if (t < 2) Span::note(wide + 1 + (long long)batch * pieces * flags + 2 * at + t, noted[t], K);
  if (rank != 0) return;
  cluster_wait<CLUSTER>();
  const int length = max(0, min(K, number * piece + piece) - number * piece);
  auto is_wide = [&](int zeros) { return is_too_wide(largest[t % 32], losing[t % 32], few[t % 32], zeros, length); };
  // Threads that have nothing small did not count. Zeros are counted in the few columns of which they decide.
  for (uint32_t left = __ballot_sync(~0u, is_wide(length) && !is_wide(0)); left; left &= left - 1) {
    const int j = __ffs(left) - 1;
    const float* its = x + matrix * matrix_pitch + number * piece * pitch + column0 + j;
    int found = 0;
    for (int k = t; k < length; k += 512) found += its[k * pitch] == 0.f;
    found = __reduce_add_sync(~0u, found);
    if (t % 32 == 0) atomicAdd(&zeros[j], found);
  }
  __syncthreads();
  if (t < 32 && own < columns) {
    scales[(long long)which * columns + own] = 1.f / scale_of(largest[t]);
    if (is_wide(zeros[t])) {
      cudaGridDependencySynchronize();  // the launch before tells with the first flag too
      wide[0] = 1, wide[1 + at] = 1;
    }
  }
}

//# Tiles of a product of which f16 parts do not hold enough, made in f32, as text.
//# Of scores whose softmax is multiplied: the greatest of each row; and rows' sums.
//@ of_scores
if (thread < ROWS) {
  const int groups = (K + 63) / 64;
  const float* of_groups = greatest + ((size_t)z * M + min(m0 + thread, M - 1)) * groups;
  float most = -INFINITY;
  for (int i = 0; i < groups; ++i) most = fmaxf(most, of_groups[i]);
  greatest_of[thread] = most;
}
float total[8] = {}, some_total[8] = {};

//@ add_totals
    unrolled for (int i = 0; i < 8; ++i) total[i] += some_total[i], some_total[i] = 0.f;

//@ greatest_of_rows
unrolled for (int i = 0; i < 8; ++i) {  // of the 64 columns that 16 lanes have
  unrolled for (int away = 1; away < 16; away *= 2) most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], away));
  const int m = m0 + m_of + i;
  if (n_of == 0 && m < M) greatest[((size_t)z * M + m) * tiles_n + n0 / COLUMNS] = most[i];
}

//# The walk over the tiles of a triangle, as text.
//@ numbers
__device__ __forceinline__ void store_number(uint32_t to, int number) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(to), "r"(number) : "memory");
}
__device__ __forceinline__ int number_at(uint32_t from) {
  int number; asm volatile("ld.shared.s32 %0, [%1];" : "=r"(number) : "r"(from) : "memory"); return number;
}

//# What a tile's rows and columns are multiplied with outside of these is 0, or in rows or columns that are too wide. Of
//# tiles that nobody has looked at all is multiplied: so a few blocks that are run alone do about their part.
//@ spans
int first = 0;  // step of k
if (tile.steps > 0) {  // zeros at the ends of all the tile's rows, or columns, are not multiplied
  const int tiles = tile.tiles_m + tile.tiles_n;
  const int* spans = wide + 1 + (batch + 2ll * tile.z) * tiles;
  const int *of_a = spans + tile.m0 / BM * 2, *of_b = spans + (tile.tiles_m + tile.n0 / BN) * 2;
  auto both = [&](int which) { return min(of_a[which] ? of_a[which] : K, of_b[which] ? of_b[which] : K); };
  first = min((K - both(0)) / BK, tile.steps - 1);
  tile.steps = max(1, min(tile.steps, (both(1) + BK - 1) / BK) - first);
}

//# Who is ready takes the next tile, but nobody many more than others: so a few blocks that are run alone do about their
//# part. The last number is told as well: it is of no tile.
//@ taking
int* taken = wide + 1 + 3ll * batch * (tile.tiles_m + tile.tiles_n);
int tiles_left = 0;  // that the block may take

//@ taken
if (tiles_left == 0) tiles_left = tile.share();  // while the first tile's loads are under way
tiles_left -= 1;
tile.number = tiles_left > 0 ? gridDim.x + atomicAdd(taken, 1) : INT_MAX;

//@ told_last
barrier_wait(empty + slot * 8, parity);
store_number(numbers_of_tiles + slot * 4, INT_MAX);
barrier_arrive(full + slot * 8);

//# What consumers are told of tiles.
//@ told
barrier_wait(full + slot * 8, parity);
tile.number = number_at(numbers_of_tiles + slot * 4);
if (!tile.next()) break;
tile.steps = number_at(steps_of_tiles + slot * 4);

//@ next
constexpr int TOGETHER = BN / BM;  // rows of tiles beside one column of them
while (true) {
  const int across = @across, down = @down;
  m0 = down * BM, n0 = across * BN;  // as far apart as those of all tiles on the diagonal
  if (@ended || @outside) {
    diagonal = 0;
    if (++z == batch) return false;
    continue;
  }
  const int first = max(0, -across), rows = (tiles_m - down + TOGETHER - 1) / TOGETHER;
  const int count = max(0, min(rows, tiles_n - across) - first);
  if (number - before < count) {
    m0 += (first + number - before) * TOGETHER * BM, n0 += (first + number - before) * BN;
    break;
  }
  before += count, ++diagonal;
}
is_half = BN > WIDTH && @half;
steps = all_steps;
return true;

//# How many tiles a block takes at most: its part of those of which something is kept, and an eighth more.
//@ share
__device__ __forceinline__ int share() const {
  Walk all = *this;
  all.number = INT_MAX, all.diagonal = all.before = all.z = 0, all.batch = 1;
  all.next();
  return (all.before * batch + all.before * batch / 8 + gridDim.x - 1) / gridDim.x;
}

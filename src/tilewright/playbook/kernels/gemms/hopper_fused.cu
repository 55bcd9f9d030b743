//# What becomes of the first operand's rows in the registers that multiply them, as words of the kernel's text.

//@ find_scales
  if (step == 0) {
    unrolled for (int r = 0; r < 2; ++r) {
      uint32_t largest = max(largest_of(x[r][0]), largest_of(x[r][1]));
      largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
      scale[r] = scale_with_room(max(largest, __shfl_xor_sync(~0u, largest, 2)));
    }
  }

//@ split_a_rows
  uint32_t high[2][4], low[2][4];  // for two times 16 of k: what wgmma takes of a
  __half2 least = __float2half2_rn(LOSES_BITS);
  unrolled for (int i = 0; i < 4; ++i) {
    const int r = i / 2, h = i % 2;
@taken
    split(x[r][h].x, x[r][h].y, high[h][r], low[h][r]);
    split(x[r][h].z, x[r][h].w, high[h][r + 2], low[h][r + 2]);
    take_least(least, high[h][r]), take_least(least, high[h][r + 2]);
  }

//@ powers
// e to the power of what a score is above the greatest of its row, times 2^14: the largest is 2^14.
__device__ __forceinline__ float power(float score, float most) {
  float p; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(p) : "f"(fmaf(score - most, 1.44269504f, 14.f))); return p;
}

//@ split_both_row
// A lane holds rows `row` and `row` + 8 of a, and of each 16 of k the four at lane % 4 * 4. Rows are taken in the order
// 0 4 1 5 2 6 3 7, and b has k in the order in which wgmma takes what lanes hold: so 16 bytes at a time are read, by
// lanes that meet all banks.
const int row = warp * 16 + lane / 8 + lane / 4 % 2 * 4;

//@ split_both_done_all
__syncwarp();
cluster_arrive();  // nothing more goes to the other block
consumer_sync(consumer);

//@ split_a_row
// A lane holds rows `row` and `row` + 8 of a, and of each 16 of k two at lane % 4 * 2, and two 8 further on. Rows are
// taken in the order 0 2 4 6 1 3 5 7, so that lanes which read together meet all banks.
const int row = warp * 16 + lane / 4 % 4 * 2 + lane / 16;

//@ split_a_columns
// On its way while the products run: the scales of the tile's columns.
const uint32_t my_columns = scales + consumer * BN * 4;
float of_column[BN / 128];
unrolled for (int i = 0; i < BN / 128; ++i)
  of_column[i] = b_scales[(size_t)tile.z * N + min(tile.n0 + thread + i * 128, N - 1)];
float least_scale[2] = {};  // of a row; 0 where it has had zeros alone

//@ split_a_split_a
  auto largest_of_row = [&](int r) {
    uint32_t largest = max(largest_of(x[r][0]), largest_of(x[r][1]));
    largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
    return max(largest, __shfl_xor_sync(~0u, largest, 2));
  };
  float factor[2] = {scale[0], scale[1]};
  if (step == 0) {
    unrolled for (int r = 0; r < 2; ++r) {
      const uint32_t largest = largest_of_row(r);
      factor[r] = scale[r] = largest ? scale_with_room(largest) : GREATEST_SCALE;  // what follows zeros finds its own
      least_scale[r] = largest ? fmaxf(scale[r] / GROWTH, LEAST_SCALE) : 0.f;
    }
  }
  uint32_t high[2][4], low[2][4];  // for two times 16 of k: what wgmma takes of a
  __half2 least, most;
  auto split_rows = [&] {
    least = __float2half2_rn(LOSES_BITS), most = __float2half2_rn(0.f);
    unrolled for (int i = 0; i < 4; ++i) {
      const int r = i / 2, h = i % 2;
      const float f = factor[r];
      x[r][h] = make_float4(x[r][h].x * f, x[r][h].y * f, x[r][h].z * f, x[r][h].w * f);
      split(x[r][h].x, x[r][h].y, high[h][r], low[h][r]);
      split(x[r][h].z, x[r][h].w, high[h][r + 2], low[h][r + 2]);
      take_least(least, high[h][r]), take_least(least, high[h][r + 2]);
      take_most(most, high[h][r]), take_most(most, high[h][r + 2]);
    }
  };
  split_rows();
  if (__any_sync(~0u, is_beyond(most))) {
    // Rare: a row has grown beyond its room. It is scaled anew, with the sums so far; one that grows too far stays as
    // it is. What follows zeros counts as the first of its row.
    unrolled for (int r = 0; r < 2; ++r) {
      const float wanted = scale_with_room(largest_of_row(r), 127);
      factor[r] = wanted < 1.f && scale[r] * wanted >= fmaxf(least_scale[r], LEAST_SCALE) ? wanted : 1.f;
      scale[r] *= factor[r];
      if (least_scale[r] == 0.f && factor[r] < 1.f) least_scale[r] = fmaxf(scale[r] / GROWTH, LEAST_SCALE);
    }
    unrolled for (int i = 0; i < BN / 2; ++i) sum[i] *= factor[i / 2 % 2];
    split_rows();
  }

//@ weights_before
unrolled for (int r = 0; r < 2; ++r) {
  const int m = tile.m0 + consumer * 64 + row + r * 8, groups = (K + 63) / 64;
  const float* of_groups = greatest + ((size_t)tile.z * M + min(m, M - 1)) * groups;
  most[r] = -INFINITY;
  for (int i = lane % 4; i < groups; i += 4) most[r] = fmaxf(most[r], of_groups[i]);
  most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
  most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
  if (m >= M) most[r] = INFINITY;
}

//@ weights_split_a
  if (step == tile.steps - 1 && K % BK) {
    unrolled for (int i = 0; i < 4; ++i)
      if (step * BK + i % 2 * 16 + lane % 4 * 4 >= K) x[i / 2][i % 2] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
  }

//@ weights_row_scales
float row_scale[2];
unrolled for (int r = 0; r < 2; ++r) {
  total[r] += __shfl_xor_sync(~0u, total[r], 1);
  row_scale[r] = 1.f / (total[r] + __shfl_xor_sync(~0u, total[r], 2));
}

//@ no_weights_row_scales
float row_scale[2];
unrolled for (int r = 0; r < 2; ++r) {
  total[r] += __shfl_xor_sync(~0u, total[r], 1);
  total[r] += __shfl_xor_sync(~0u, total[r], 2);
  row_scale[r] = total[r] == 0.f ? 0.f : 1.f / total[r];
}

//# The warpgroups that load slots of f32 and split the second operand in shared memory, as text.
//@ store_pair
__device__ __forceinline__ void store_pair(uint32_t to, uint32_t x, uint32_t y) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(x), "r"(y) : "memory");
}

//@ store_four
__device__ __forceinline__ void store_four(uint32_t to, const uint32_t* x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}

//@ pair
__device__ __forceinline__ void splitters_sync() { asm volatile("bar.sync 3, %0;" ::"n"(SPLITTERS) : "memory"); }

// ---- two blocks of a cluster, with tiles one below the other: each splits half of what b has for both
// Blocks meet where barriers are there, and before they end. What they say to each other goes by barriers in shared
// memory: so arriving orders nothing, and does not wait for all that was stored.
__device__ __forceinline__ void cluster_arrive() {
  if constexpr (CLUSTER > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  if constexpr (CLUSTER > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t in_other(uint32_t at, int rank) {
  uint32_t there; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank ^ 1)); return there;
}
__device__ __forceinline__ void copy_to_other(uint32_t to, uint32_t from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "r"(from), "r"(bytes), "r"(barrier) : "memory");
}
// A consumer has multiplied: who fills the slot, in either block, may know.
__device__ __forceinline__ void free_parts(uint32_t barrier, int thread, int rank) {
  if (thread == 0) barrier_arrive(barrier);
  else asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(in_other(barrier, rank)) : "memory");
}

//@ splitter
asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(SPLITTER_REGISTERS));
auto load = [&](int step) {
  const uint32_t at = slots + step % SLOTS * SLOT_BYTES, arrived = full + step % SLOTS * 8;
  barrier_wait(empty + step % SLOTS * 8, step / SLOTS % 2 ^ 1);
  barrier_arrive_expecting(arrived, SLOT_BYTES);
  load_box(&a_map, arrived, at, @along, tile.m0, tile.z);
  load_box(&b_map, arrived, at + A_BYTES, @b_place, tile.z);
};
const int splitter = threadIdx.x - 256, lane = thread % 32, warp = splitter / 32;
if (splitter == 0)
  for (int step = 0; step < min(SLOTS - 1, tile.steps); ++step) load(step);

SharedCounts* of_columns = reinterpret_cast<SharedCounts*>(shared + (counts - slots)) + BM;
for (int i = splitter; i < OWN; i += SPLITTERS) of_columns[i] = {}, column_scales[rank * OWN + i] = 0.f;
splitters_sync();
@place
{
  const uint32_t from = slots + A_BYTES@from;
  barrier_wait(full, 0);
@scales
}
if constexpr (CLUSTER > 1) {
  show_to_tma();
  __syncwarp();
  const uint32_t mine = scales + (rank * OWN@scales_at) * 4;
  if (lane == 0@scales_by) copy_to_other(in_other(mine, rank), mine, @scales_of * 4, in_other(split_done, rank));
}
// The first numbers of a step are read ahead, while what was split before becomes visible to others.
constexpr int GROUPS = @groups;
float4 s[4];
auto read = [&](int step, int group) {
  const uint32_t from = slots + step % SLOTS * SLOT_BYTES + A_BYTES@from;
  unrolled for (int i = 0; i < 4; ++i) s[i] = shared_float4(@number);
};
read(0, 0);
for (int step = 0; step < tile.steps; ++step) {
  // Where the warp's share of a part goes, and in it the thread's.
  const uint32_t share_at = part_slots + step % PART_SLOTS * 2 * PART_BYTES + rank * (PART_BYTES / CLUSTER)@share_at;
  const uint32_t parts = share_at@to;
  barrier_wait(used + step % PART_SLOTS * 8, step / PART_SLOTS % 2 ^ 1);
  __half2 least;
  unrolled for (int group = 0; group < GROUPS; ++group) {
    if (group > 0) read(step, group);
@split
  }
  if (step + 1 < tile.steps) {
    barrier_wait(full + (step + 1) % SLOTS * 8, (step + 1) / SLOTS % 2);
    read(step + 1, 0);
  }
  if (step == tile.steps - 1) {
    splitters_sync();
    for (int i = splitter; i < OWN; i += SPLITTERS) {
      if (!of_columns[i].is_too_wide(tile.steps * BK)) continue;
      const int bit = 1 << (rank * OWN + i) / 64;  // of the tile's columns, 64 are made again
      wide[0] = 1, atomicOr(&wide[1 + which], bit);
      if constexpr (CLUSTER > 1) atomicOr(&wide[1 + which + (rank ? -tile.tiles_n : tile.tiles_n)], bit);
    }
  }
  show_to_tma();
  __syncwarp();
  const uint32_t done = split_done + step % PART_SLOTS * 8;
  if constexpr (CLUSTER > 1) {
    const uint32_t from = share_at + lane * PART_BYTES;
    if (lane < 2) copy_to_other(in_other(from, rank), from, SHARE_BYTES, in_other(done, rank));
  }
  if (CLUSTER > 1 && splitter == 0)  // half of two parts comes, and with the first half of the scales
    barrier_arrive_expecting(done, PART_BYTES + (step == 0 ? OWN * 4 : 0));
  else if (lane == 0) barrier_arrive(done);
  if (lane == 0) barrier_arrive(empty + step % SLOTS * 8);
  if (lane == 0 && warp == step % (SPLITTERS / 32) && step + SLOTS - 1 < tile.steps) load(step + SLOTS - 1);  // in turn
}
__syncwarp();
cluster_arrive(), cluster_wait();

//@ along_n_place
// A warp takes 64 columns and 16 of k, a lane four of the columns and every other k.
const int box = warp % 2, first = warp / 2 * 16, odd = lane / 16, column = box * 64 + lane % 16 * 4;
float4 scale[SHARES];

//@ along_n_scales
  // The scales of the columns, by way of the place where the consumers will find them.
  uint32_t* largest = reinterpret_cast<uint32_t*>(column_scales) + rank * OWN + column;
  unrolled for (int share = 0; share < SHARES; ++share) {
    uint4 most = {};
    unrolled for (int i = 0; i < 8; ++i) {
      const float4 x = shared_float4(from + share * 512 + i * 2 * OWN * 4);
      most.x = max(most.x, magnitude_bits(x.x)), most.y = max(most.y, magnitude_bits(x.y));
      most.z = max(most.z, magnitude_bits(x.z)), most.w = max(most.w, magnitude_bits(x.w));
    }
    uint32_t* of_share = largest + share * 128;
    atomicMax(of_share, most.x), atomicMax(of_share + 1, most.y);
    atomicMax(of_share + 2, most.z), atomicMax(of_share + 3, most.w);
  }
  splitters_sync();
  unrolled for (int share = 0; share < SHARES; ++share) {
    const uint4 found = *reinterpret_cast<uint4*>(largest + share * 128);
    scale[share] = make_float4(scale_with_room(found.x), scale_with_room(found.y), scale_with_room(found.z),
                               scale_with_room(found.w));
  }
  splitters_sync();
  if (first == 0 && odd == 0) {
    unrolled for (int share = 0; share < SHARES; ++share) {
      *reinterpret_cast<float4*>(column_scales + rank * OWN + share * 128 + column) =
          make_float4(1.f / scale[share].x, 1.f / scale[share].y, 1.f / scale[share].z, 1.f / scale[share].w);
    }
  }

//@ along_n_split
    const int share = group / 2;
    const float4 by = scale[share];
    if (group % 2 == 0) least = __float2half2_rn(LOSES_BITS);
    unrolled for (int i = 0; i < 4; ++i) {
      s[i] = make_float4(s[i].x * by.x, s[i].y * by.y, s[i].z * by.z, s[i].w * by.w);
      uint32_t high[2], low[2];
      split(s[i].x, s[i].y, high[0], low[0]);
      split(s[i].z, s[i].w, high[1], low[1]);
      const int k = group % 2 * 4 + i / 2 * 2 + i % 2 * 8;  // and `odd`: in the order in which lanes hold a
      const uint32_t to = (parts ^ k % 8 * 16) + share * 2 * BOX_BYTES + k * 128;  // the swizzle
      store_pair(to, high[0], high[1]);
      store_pair(to + PART_BYTES, low[0], low[1]);
      take_least(least, high[0]), take_least(least, high[1]);
    }
    if (group % 2 == 1 && is_losing(least)) {
      const uint32_t from = slots + step % SLOTS * SLOT_BYTES + A_BYTES + share * 512@from;
      SharedCounts* mine = of_columns + share * 128 + column;
      rolled for (int i = 0; i < 8; ++i) {
        const float4 y = shared_float4(from + i * 2 * OWN * 4);
        mine[0].add(y.x * by.x), mine[1].add(y.y * by.y), mine[2].add(y.z * by.z), mine[3].add(y.w * by.w);
      }
    }

//@ along_k_place
// Two lanes take a column, each 16 of k; a warp takes 16 columns at a time.
const int column = warp * 16 * SHARES + lane / 2, half = lane % 2;
float scale[SHARES];

//@ along_k_scales
  unrolled for (int share = 0; share < SHARES; ++share) {
    uint32_t largest = 0;
    for (int i = 0; i < 4; ++i)
      largest = max(largest, largest_of(shared_float4((from ^ i * 16) + share * 16 * BK * 4)));
    scale[share] = scale_with_room(max(largest, __shfl_xor_sync(~0u, largest, 1)));
    if (half == 0) column_scales[rank * OWN + share * 16 + column] = 1.f / scale[share];
  }

//@ along_k_split
    const float by = scale[group];
    least = __float2half2_rn(LOSES_BITS);
    uint32_t high[8], low[8];
    unrolled for (int i = 0; i < 4; ++i) {
      s[i] = make_float4(s[i].x * by, s[i].y * by, s[i].z * by, s[i].w * by);
      split(s[i].x, s[i].y, high[i], low[i]);  // in the order in which lanes hold a
      split(s[i].z, s[i].w, high[i + 4], low[i + 4]);
      take_least(least, high[i]), take_least(least, high[i + 4]);
    }
    unrolled for (int i = 0; i < 2; ++i) {
      const uint32_t to = (parts ^ i * 16) + group * 16 * BK * 2;  // as wgmma expects it
      store_four(to, high + i * 4);
      store_four(to + PART_BYTES, low + i * 4);
    }
    if (is_losing(least)) {
      SharedCounts& count = of_columns[group * 16 + column];
      unrolled for (int i = 0; i < 4; ++i) count.add(s[i].x), count.add(s[i].y), count.add(s[i].z), count.add(s[i].w);
    }

//# A product of f32 matrices whose operands are split into f16 parts by the kernel that multiplies them, as text.
//@ splitting
// ---- f32 as two f16 parts
// A row is scaled by a power of two so that the largest of its first BK magnitudes is in [2^12, 2^13): 2^3 times that
// fits. An element x is then high + low to 2^-23 of x; one that is below 2^-5 keeps fewer than 20 bits, because low has
// no smaller steps than 2^-24, and one below 2^-11 fewer than 14. Left to f32 are tiles with a row of which one element
// in 16 is below the first, or one in 1024 below the second: the rest of such a row may be the result, where what is
// large in it meets zeros. So are tiles with a number that does not fit: its parts are infinities, its sums no numbers.
__device__ __forceinline__ uint32_t largest_of(float4 x) {
  return max(max(magnitude_bits(x.x), magnitude_bits(x.y)), max(magnitude_bits(x.z), magnitude_bits(x.w)));
}
// Scales are 2^-23 at least: all that f32 has with full precision is then counted, and does not become zero before.
__device__ __forceinline__ float scale_with_room(uint32_t largest_bits, int most = 35) {
  const int exponent = largest_bits ? (int)(largest_bits >> 23) - 127 : 0;
  return __uint_as_float((uint32_t)(127 + 12 - min(max(exponent, -60), most)) << 23);
}
// Two scaled numbers as the parts that hold them: the first in the low 16 bits.
__device__ __forceinline__ void split(float x, float y, uint32_t& high, uint32_t& low) {
  high = pack(x, y);
  const float2 held = __half22float2(*reinterpret_cast<const __half2*>(&high));
  low = pack(x - held.x, y - held.y);
}
constexpr float LOSES_BITS = 0x1p-5f, KEEPS_FEW = 0x1p-11f;
// The least magnitude of high parts, of two rows of numbers side by side.
__device__ __forceinline__ void take_least(__half2& least, uint32_t high) {
  least = __hmin2(least, __habs2(*reinterpret_cast<const __half2*>(&high)));
}
__device__ __forceinline__ bool is_losing(__half2 least) {
  return fminf(__low2float(least), __high2float(least)) < LOSES_BITS;
}
// What is known of a row: elements that lose bits, that keep few, and zeros. Only what is below LOSES_BITS is counted,
// and ordinary rows have next to nothing there.
struct SharedCounts {
  int losing, few, zeros;
  __device__ __forceinline__ void add(float scaled) {
    if (scaled == 0.f) atomicAdd(&zeros, 1);
    else if (fabsf(scaled) < LOSES_BITS) {
      atomicAdd(&losing, 1);
      if (fabsf(scaled) < KEEPS_FEW) atomicAdd(&few, 1);
    }
  }
  __device__ __forceinline__ bool is_too_wide(int length) const {
    return losing > 1 + (length - zeros) / 16 || few > (length - zeros) / 1024;
  }
};

//@ beyond
// A row that outgrows its room in registers is scaled anew: high parts of what does not fit are infinities. By GROWTH
// at most: then the few that are below 2^-5 are still exact to 2^-21 of the largest of the first. Further up, what is
// beside one large number would be lost, and go uncounted.
constexpr float GROWTH = 0x1p16f, LEAST_SCALE = 0x1p-23f, GREATEST_SCALE = 0x1p72f;
__device__ __forceinline__ void take_most(__half2& most, uint32_t high) {
  most = __hmax2(most, __habs2(*reinterpret_cast<const __half2*>(&high)));
}
__device__ __forceinline__ bool is_beyond(__half2 most) {
  return fmaxf(__low2float(most), __high2float(most)) > 65504.f;
}

//@ magnitude
__device__ __forceinline__ uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7FFFFFFF; }

//@ shared_float4
__device__ __forceinline__ float4 shared_float4(uint32_t at) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
  return v;
}

//@ consumer
asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
const int consumer = warpgroup, lane = thread % 32, warp = thread / 32;
@row
const uint64_t b_slots = descriptor(@b_slots, @strides);
SharedCounts* of_rows = reinterpret_cast<SharedCounts*>(shared + (counts - slots)) + consumer * 64;

//@ tile
@columns
if (thread < 64) of_rows[thread] = {};
consumer_sync(consumer);
float sum[BN / 2] = {}, @of_two_rows;
@before
for (int step = 0; step < tile.steps; ++step@and_done) {
  const uint32_t from = slots + @done % SLOTS * SLOT_BYTES + (consumer * 64 + row) * 128;
  barrier_wait(full + @done % SLOTS * 8, @done / SLOTS % 2);
  float4 x[2][2];  // of two rows: two times 16 of k
  unrolled for (int i = 0; i < 4; ++i)
    x[i / 2][i % 2] = @read;
@split_a
  if (is_losing(least)) {
    unrolled for (int i = 0; i < 4; ++i) {
      const float4 s = x[i / 2][i % 2];
      SharedCounts& mine = of_rows[row + i / 2 * 8];
      mine.add(s.x), mine.add(s.y), mine.add(s.z), mine.add(s.w);
    }
  }
@free_a
  // low * high + high * low + high * high, the small products first; low * low is below the last bit. Tensor cores cut
  // off bits where they add, so only BK of k are summed there; the sums are added up in f32 registers.
@b_slot
  unrolled for (int half = 0; half < BN / WIDTH; ++half) {
    float some[WIDTH / 2];
    const uint64_t b_half = b_slot + (half * @width >> 4);
    wgmma_fence();
    wgmma(some, low[0], b_half, 0);
    wgmma(some, low[1], b_half + (@k_step >> 4), 1);
    wgmma(some, high[0], b_half + (PART_BYTES >> 4), 1);
    wgmma(some, high[1], b_half + ((PART_BYTES + @k_step) >> 4), 1);
    wgmma(some, high[0], b_half, 1);
    wgmma(some, high[1], b_half + (@k_step >> 4), 1);
    wgmma_commit();
    wgmma_wait<0>();
    if (half == BN / WIDTH - 1 && @free_b;
    unrolled for (int i = 0; i < WIDTH / 2; ++i) sum[half * (WIDTH / 2) + i] += some[i];
  }
}

@column_stores
@done_all
bool too_wide = thread < 64 && of_rows[thread].is_too_wide(tile.steps * BK);
float not_a_number[4] = {};  // short sums side by side
unrolled for (int i = 0; i < BN / 2; ++i) not_a_number[i % 4] = fmaf(sum[i], 0.f, not_a_number[i % 4]);
too_wide = too_wide || (not_a_number[0] + not_a_number[1]) + (not_a_number[2] + not_a_number[3]) != 0.f;
if (too_wide) wide[0] = 1, atomicOr(&wide[1 + @which], -1);
@row_scales

//@ two_pairs
// Two numbers of a swizzled row, and the two that are 8 further on: of 16 bytes number `place`, and two further on.
__device__ __forceinline__ float4 two_pairs(uint32_t row, int place) {
  float4 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(row + place * 16));
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.z), "=f"(v.w) : "r"(row + (place ^ 2) * 16));
  return v;
}

//@ producer
asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
if (threadIdx.x == 256) {
  int done = 0;  // steps, of all tiles
  while (tile.next()) {
    rolled for (int step = 0; step < tile.steps; ++step, ++done) {
      const uint32_t at = slots + done % SLOTS * SLOT_BYTES, arrived = full + done % SLOTS * 8;
      barrier_wait(empty + done % SLOTS * 8, done / SLOTS % 2 ^ 1);
      barrier_arrive_expecting(arrived, SLOT_BYTES);
      load_box(&a_map, arrived, at, step * BK, tile.m0, tile.z);
      unrolled for (int part = 0; part < 2; ++part) {
        const uint32_t to = at + A_BYTES + part * PART_BYTES;
@load_b
      }
    }
  }
}

//@ places
const uint32_t part_slots = slots + SLOTS * SLOT_BYTES, counts = part_slots + PART_SLOTS * 2 * PART_BYTES;
const uint32_t scales = counts + (BM + BN) * sizeof(SharedCounts);
const uint32_t full = scales + BN * 4, empty = full + SLOTS * 8, split_done = empty + SLOTS * 8;
const uint32_t used = split_done + PART_SLOTS * 8;
float* column_scales = reinterpret_cast<float*>(shared + (scales - slots));

//@ ready_places
const uint32_t counts = slots + SLOTS * SLOT_BYTES, scales = counts + BM * sizeof(SharedCounts);
const uint32_t full = scales + 2 * BN * 4, empty = full + SLOTS * 8;

//@ barriers_of_splitters
  for (int s = 0; s < SLOTS; ++s)
    barrier_init(full + s * 8, 1), barrier_init(empty + s * 8, 8 + SPLITTERS / 32);
  for (int s = 0; s < PART_SLOTS; ++s)
    barrier_init(split_done + s * 8, SPLITTERS / 32), barrier_init(used + s * 8, 2 * CLUSTER);

//@ start
const int rank = blockIdx.x % CLUSTER;
if constexpr (CLUSTER > 1) cluster_arrive(), cluster_wait();
else __syncthreads();

//@ ready_barriers
  for (int s = 0; s < SLOTS; ++s) barrier_init(full + s * 8, 1), barrier_init(empty + s * 8, 8);

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

//@ short_tile
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

//@ short_producer
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

//@ short_consumer
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

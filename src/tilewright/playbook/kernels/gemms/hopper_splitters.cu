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

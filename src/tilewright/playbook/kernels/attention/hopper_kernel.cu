//# The kernel of attention for Hopper, as text: a producer, consumers that take turns, and what differs with f32.

//@ sizes
constexpr int ROWS = CONSUMERS * 64;                                                 // of a block
constexpr int Q_BYTES = 64 * D * 2, K_BYTES = KEYS * D * 2, V_BYTES = KEYS * E * 2;  // of a consumer's rows; of a tile

//@ sizes_of_parts
constexpr int ROWS = CONSUMERS * 64;                                                 // of a block
constexpr int Q_BYTES = 64 * D * 4, K_BYTES = KEYS * D * 4, V_BYTES = KEYS * E * 4;  // of both parts of rows and tiles

//@ turns
// ---- consumers take turns: the products of one run while another makes its weights
__device__ __forceinline__ void turn_wait(int consumer) {
  asm volatile("bar.sync %0, 256;" ::"r"(2 + consumer) : "memory");
}
__device__ __forceinline__ void turn_pass(int consumer) {
  asm volatile("bar.arrive %0, 256;" ::"r"(2 + (consumer + 1) % CONSUMERS) : "memory");
}

//@ setup
extern __shared__ __align__(1024) char shared[];  // swizzled tiles need 1024-byte bases
const uint32_t q_tile = (uint32_t)__cvta_generic_to_shared(shared);
const uint32_t k_slots = q_tile + CONSUMERS * Q_BYTES, v_slots = k_slots + STAGES * K_BYTES;
const uint32_t k_full = v_slots + STAGES * V_BYTES, k_empty = k_full + STAGES * 8;
const uint32_t v_full = k_empty + STAGES * 8, v_empty = v_full + STAGES * 8;
const uint32_t q_full = v_empty + STAGES * 8, q_empty = q_full + 8;
const int thread = threadIdx.x % 128, warpgroup = threadIdx.x / 128;  // consumers, then the producer
if (threadIdx.x == 0) {
  for (int s = 0; s < STAGES; ++s) {
    barrier_init(k_full + s * 8, 1), barrier_init(k_empty + s * 8, CONSUMERS);
    barrier_init(v_full + s * 8, 1), barrier_init(v_empty + s * 8, CONSUMERS);
  }
  barrier_init(q_full, 1), barrier_init(q_empty, CONSUMERS);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__syncthreads();

@order
auto key_tiles = [&](int row0) { return (@ends + KEYS - 1) / KEYS; };

if (warpgroup == CONSUMERS) {  // ---- producer
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(CONSUMERS == 2 ? 24 : 32));
  if (thread == 0) {
    @producer
  }
} else {  // ---- consumers
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMERS == 2 ? 240 : 160));
  @consumer
}

//@ order
struct Tile { int head, row0; };
auto tile_of = [&](int job) -> Tile { return {job / tiles, job % tiles * ROWS}; };

//@ causal_order
// Of a section of heads, whose keys and values stay in L2, the last rows come first: they look at the most keys.
struct Tile { int head, row0; };
auto tile_of = [&](int job) -> Tile {
  const int first = job / (tiles * section) * section, width = min(section, heads - first);
  const int rest = job % (tiles * section);
  return {first + rest % width, (tiles - 1 - rest / width) * ROWS};
};

//@ producer
uint32_t k_parity = 1, v_parity = 1, q_parity = 1;  // a fresh barrier counts as just completed
int k_slot = 0, v_slot = 0;
for (int job = blockIdx.x; job < jobs; job += gridDim.x) {
  const Tile tile = tile_of(job);
  const int head = tile.head, row0 = tile.row0, count = key_tiles(row0);
  @heads
  auto load_keys = [&](int n) {
    const uint32_t full = k_full + k_slot * 8, to = k_slots + k_slot * K_BYTES;
    barrier_wait(k_empty + k_slot * 8, k_parity);
    barrier_arrive_expecting(full, K_BYTES);
    unrolled for (int box = 0; box < @k_boxes; ++box)
      load_box(&k_map, full, to + box * (KEYS * 128), @k_place);
    if (++k_slot == STAGES) k_slot = 0, k_parity ^= 1;
  };
  auto load_values = [&](int n) {
    const uint32_t full = v_full + v_slot * 8, to = v_slots + v_slot * V_BYTES;
    barrier_wait(v_empty + v_slot * 8, v_parity);
    barrier_arrive_expecting(full, V_BYTES);
    unrolled for (int box = 0; box < @v_boxes; ++box)
      load_box(&v_map, full, to + box * (KEYS * 128), @v_place);
    if (++v_slot == STAGES) v_slot = 0, v_parity ^= 1;
  };
  barrier_wait(q_empty, q_parity);
  q_parity ^= 1;
  barrier_arrive_expecting(q_full, CONSUMERS * Q_BYTES);
  unrolled for (int box = 0; box < CONSUMERS * @k_boxes; ++box)
    load_box(&q_map, q_full, q_tile + box * 8192, @q_place);
  load_keys(count - 1);
  rolled for (int n = count - 1; n > 0; n--) load_keys(n - 1), load_values(n);
  load_values(0);
}

//@ consumer
const int consumer = warpgroup, lane = thread % 32, warp = thread / 32;
const uint64_t q_place = descriptor(q_tile + consumer * Q_BYTES, 16, 1024, SWIZZLE_128);
const uint64_t k_place = descriptor(k_slots, 16, 1024, SWIZZLE_128);
const uint64_t v_place = descriptor(v_slots, KEYS * 128, 1024, SWIZZLE_128);
uint32_t k_parity = 0, v_parity = 0, q_parity = 0;
int k_slot = 0, v_slot = 0;
auto release_keys = [&] {
  if (thread == 0) barrier_arrive(k_empty + k_slot * 8);
  if (++k_slot == STAGES) k_slot = 0, k_parity ^= 1;
};
auto release_values = [&] {
  if (thread == 0) barrier_arrive(v_empty + v_slot * 8);
  if (++v_slot == STAGES) v_slot = 0, v_parity ^= 1;
};
if (consumer == CONSUMERS - 1) turn_pass(consumer);

for (int job = blockIdx.x; job < jobs; job += gridDim.x) {
  const Tile tile = tile_of(job);
  const int head = tile.head, row0 = tile.row0, count = key_tiles(row0);
  @begin
  const int row = row0 + consumer * 64 + warp * 16 + lane / 4;  // this thread's rows: it, and the one 8 below it
  @heads
  @scored
  // A thread has of both rows two neighbours of every eight: score[4 i + 2 r + e] is of key 8 i + 2 (lane % 4) + e.
  float score[KEYS / 2], greatest[2] = {-INFINITY, -INFINITY}, total[2] = {}, less[2];
  @held

  @multiply
  auto make_weights = [&](int n) {  // of the scores of tile n, in their place
    const int key0 = n * KEYS + lane % 4 * 2;
    @masked
    unrolled for (int r = 0; r < 2; ++r) {
      float top = greatest[r];
#pragma unroll
      for (int i = 0; i < KEYS / 8; ++i) top = fmaxf(top, fmaxf(score[i * 4 + r * 2], score[i * 4 + r * 2 + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float base = top == -INFINITY ? 0.0f : top@scale@raised;  // so far every key may be masked
      less[r] = power_of_two(@less - base);
      greatest[r] = top;
      float added = 0.0f;
      unrolled for (int i = 0; i < KEYS / 8; ++i)
#pragma unroll
        for (int e = i * 4 + r * 2; e < i * 4 + r * 2 + 2; ++e) added += score[e] = power_of_two(@power);
      total[r] = total[r] * less[r] + added;
    }
  };
  @pack

  barrier_wait(q_full, q_parity);
  q_parity ^= 1;
  barrier_wait(k_full + k_slot * 8, k_parity);
  turn_wait(consumer);
  multiply_keys();
  turn_pass(consumer);
  wgmma_wait<0>();
  release_keys();
  make_weights(count - 1);
  pack_weights();
  rolled for (int n = count - 2; n >= 0; n--) {
    barrier_wait(k_full + k_slot * 8, k_parity);
    turn_wait(consumer);
    multiply_keys();
    barrier_wait(v_full + v_slot * 8, v_parity);
    multiply_values(@add_later);
    turn_pass(consumer);
    wgmma_wait<1>();  // the scores are there; the values are still being multiplied
    release_keys();
    make_weights(n);
    wgmma_wait<0>();
    release_values();
    unrolled for (int i = 0; i < E / 2; ++i) @lessen
    pack_weights();
  }
  if (thread == 0) barrier_arrive(q_empty);
  barrier_wait(v_full + v_slot * 8, v_parity);
  multiply_values(@add_last);
  wgmma_wait<0>();
  release_values();
  @add_up

  unrolled for (int r = 0; r < 2; ++r) {
    total[r] += __shfl_xor_sync(~0u, total[r], 1);
    total[r] += __shfl_xor_sync(~0u, total[r], 2);
    @inverse
    @store
  }
}
if (consumer == 0) turn_wait(consumer);  // for the turn that was passed on last

//@ multiply
auto multiply_keys = [&] {
  wgmma_fence();
  unrolled for (int d = 0; d < D / 16; ++d)
    wgmma(score, q_place + ((d / 4 * 8192 + d % 4 * 32) >> 4),
          k_place + ((k_slot * K_BYTES + d / 4 * (KEYS * 128) + d % 4 * 32) >> 4), d > 0);
  wgmma_commit();
};
auto multiply_values = [&](int add) {
  wgmma_fence();
  unrolled for (int s = 0; s < KEYS / 16; ++s)
    wgmma(sum, weights[s], v_place + ((v_slot * V_BYTES + s * 2048) >> 4), add || s > 0);
  wgmma_commit();
};

//@ pack
auto pack_weights = [&] {  // as wgmma takes them: two neighbours in a register
  unrolled for (int s = 0; s < KEYS / 16; ++s)
    unrolled for (int e = 0; e < 4; ++e) weights[s][e] = pair(score[s * 8 + e * 2], score[s * 8 + e * 2 + 1]);
};

//# Of two numbers in parts three products: small times big, big times small, big times big.
//@ multiply_parts
auto multiply_keys = [&] {
  wgmma_fence();
  unrolled for (int product = 0; product < 3; ++product)
    unrolled for (int d = 0; d < D / 16; ++d)
      wgmma(score, q_place + (((product == 0) * (64 * D * 2) + d / 4 * 8192 + d % 4 * 32) >> 4),
            k_place + ((k_slot * K_BYTES + (product == 1) * (KEYS * D * 2) + d / 4 * (KEYS * 128) + d % 4 * 32) >> 4),
            product > 0 || d > 0);
  wgmma_commit();
};
auto multiply_values = [&] {
  wgmma_fence();
  unrolled for (int product = 0; product < 3; ++product)
    unrolled for (int s = 0; s < KEYS / 16; ++s)
      wgmma(some, product == 0 ? small_weights[s] : weights[s],
            v_place + ((v_slot * V_BYTES + (product == 1) * (KEYS * E * 2) + s * 2048) >> 4), product > 0 || s > 0);
  wgmma_commit();
};

//@ pack_parts
auto pack_weights = [&] {  // as wgmma takes them: two neighbours in a register; and what that leaves of them
  unrolled for (int s = 0; s < KEYS / 16; ++s)
    unrolled for (int e = 0; e < 4; ++e) {
      const float x = score[s * 8 + e * 2], y = score[s * 8 + e * 2 + 1];
      weights[s][e] = pair(x, y);
      small_weights[s][e] = pair(x - low_half(weights[s][e]), y - high_half(weights[s][e]));
    }
};

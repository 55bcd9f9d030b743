//# The kernel that multiplies, as text: a producer, two consumers that take turns, and the store of what they have.

//@ job
constexpr int ROWS = 64 * MI, POSITIONS = @positions / MI;  // of a tile of the product
constexpr int ROWS_OF_KIND = ROWS / ROW_KINDS;
constexpr int PAIRS = FIRST_PAIR[KINDS];

// Sizes that follow from a call's: of the copied input, in rows for positions, and of the result.
struct Sizes {
  int batch, channels, filters, depth, height, width, copy_rows;  // a copy for every combination of input phases
  int y_depth, y_height, y_width;
  __device__ __forceinline__ long long plane() const { return (long long)y_depth * y_height * y_width; }
};

// A tile of positions, of some filters of one kind. Tiles follow each other over all positions, or begin anew with
// every slice that has results, where that makes fewer: then a slice has slice_tiles.
struct Job {
  int position, count, kind, group, row_tile;  // count: of positions
  __device__ __forceinline__ Job(int job, int row_tiles, int tile_step, int slice_tiles, const Sizes& s) {
    const int of_position = GROUPS * row_tiles, all_kinds = job / MADE_KINDS, rest = all_kinds % of_position;
    const int tile = all_kinds / of_position;
    position = tile * tile_step, count = tile_step;
    if (slice_tiles) {
      const int slice = tile / slice_tiles, slices = (s.y_depth + DEPTH_PHASES - 1) / DEPTH_PHASES;
      const int of_slice = (tile - slice * slice_tiles) * tile_step, lines = (s.y_height - 1) / HEIGHT_PHASES + 1;
      position = (slice / slices * s.depth + slice % slices) * s.height * s.width + of_slice;
      count = min(tile_step, lines * s.width - of_slice);
    }
    row_tile = rest % row_tiles, group = rest / row_tiles, kind = MADE_KIND[job % MADE_KINDS];
  }
  // A block's first job, and the next: all kinds of some positions, so that lines that share a sector are stored soon
  // after each other.
  static __device__ __forceinline__ int first() { return blockIdx.x * KINDS_OF_BLOCK; }
  static __device__ __forceinline__ int next(int job) {
    return job % KINDS_OF_BLOCK + 1 < KINDS_OF_BLOCK ? job + 1 : job + 1 + (gridDim.x - 1) * KINDS_OF_BLOCK;
  }
  __device__ __forceinline__ int pairs() const { return FIRST_PAIR[kind + 1] - FIRST_PAIR[kind]; }
  // Pairs, one after the other, that a slot serves; and rows of the copied input from one to the next.
  __device__ __forceinline__ int lines() const { return TALL ? KIND_LINES[kind] : 1; }
  __device__ __forceinline__ int line_rows(int width) const {
    const int first = FIRST_PAIR[kind];
    return lines() > 1 ? (PAIR_HEIGHT[first + 1] - PAIR_HEIGHT[first]) * width : 0;
  }
};

// The first row of the copied input that a slot holds for the position 0.
__device__ __forceinline__ int row_of(int pair, int slot, const Sizes& s) {
  return (PAIR_COPY[pair] * WIDTH_COPIES + SLOT_COPY[slot]) * s.copy_rows +
         (PAIR_DEPTH[pair] * s.height + PAIR_HEIGHT[pair]) * s.width + SLOT_FIRST[slot];
}

// Where a position of some kind stores: 16 times the place of its first result, plus how many results it has.
__device__ __forceinline__ long long place_of(unsigned position, int kind, const Sizes& s) {
  const unsigned line = position / (unsigned)s.width, slice = line / (unsigned)s.height;
  const unsigned image = slice / (unsigned)s.depth;
  const int x = (position - line * s.width) * WIDTH_PHASES;
  const int y = (line - slice * s.height) * HEIGHT_PHASES + kind % HEIGHT_PHASES;
  const int z = (slice - image * s.depth) * DEPTH_PHASES + kind / HEIGHT_PHASES;
  if (image >= s.batch || x >= s.y_width || y >= s.y_height || z >= s.y_depth) return 0;
  const long long place = image * GROUPS * (s.filters * s.plane()) + ((long long)z * s.y_height + y) * s.y_width + x;
  return place * 16 + min(WIDTH_PHASES, s.y_width - x);
}

//# A row of the copied input, and of a block of weights, is STEPS times 16 channels long.
//@ row_shape
constexpr int ROW_BYTES = STEPS == 1 ? 32 : STEPS == 2 ? 64 : 128;  // of STEPS * 16 channels, in shared memory
constexpr int BOXES = (POSITIONS + HALO + 255) / 256, BOX_ROWS = (POSITIONS + HALO + 8 * BOXES - 1) / (8 * BOXES) * 8;
constexpr int X_BYTES = BOXES * BOX_ROWS * ROW_BYTES, X_SLOT = (X_BYTES + 1023) / 1024 * 1024;

//@ planar_shape
constexpr int ROW_BYTES = STEPS == 1 ? 32 : STEPS == 2 ? 64 : 128;  // of weights for STEPS * 16 of k
constexpr int PLANES = @planes, PLANE_ROWS = (POSITIONS + HALO + 7) / 8 * 8, PLANE_BYTES = PLANE_ROWS * 16;
constexpr int X_BYTES = PLANES * PLANE_BYTES, X_SLOT = (X_BYTES + 1023) / 1024 * 1024;

//@ shape
constexpr int WEIGHT_BYTES = ROWS * ROW_BYTES;
constexpr uint64_t SWIZZLE = (uint64_t)(ROW_BYTES == 128 ? 1 : ROW_BYTES == 64 ? 2 : 3) << 62;
constexpr int STAGE_ROWS = MI == 1 ? 4 : 8, PITCH = POSITIONS + 8;  // what a warp puts in order: rows, floats of each

//@ bulk
__device__ __forceinline__ void prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// TMA: the box of `map` at x, y
__device__ __forceinline__ void load_box(const CUtensorMap* map, uint32_t barrier, uint32_t to, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%3, %4}], [%2];"
               ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");
}

//@ load_plane
__device__ __forceinline__ void load_bytes(const void* from, uint32_t barrier, uint32_t to, uint32_t bytes) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

//@ load_of_rows
for (int box = 0; box < BOXES; ++box)
  load_box(&copied_map, to_come, to + box * BOX_ROWS * ROW_BYTES,
           here.group * ((channels + 7) / 8 * @held) + block * STEPS * 16,
           here.position + row_of(pair, slot, s) + box * BOX_ROWS);

//@ load_of_planes
for (int plane = 0; plane < PLANES; ++plane) {
  const long long all_rows = (long long)DEPTH_MODULUS * HEIGHT_MODULUS * WIDTH_COPIES * copy_rows;
  const long long row = (here.group * PLANES + plane) * all_rows + here.position + row_of(pair, slot, s);
  load_bytes(copied + row, to_come, to + plane * PLANE_BYTES, PLANE_BYTES);
}

//@ of_columns
// Of a consumer: parts that warps have of its positions, and what these come to.
float* of_warps = mine - warp * STAGE_ROWS * PITCH;
float* of_columns = reinterpret_cast<float*>(shared + (staged - w_at)) + 8 * STAGE_ROWS * PITCH;
of_columns += consumer * @kept_of_columns * COLUMN_VALUES;

//@ ring
// A ring of slots in shared memory, used one after the other: which is next, and the parity of its phase.
template <int COUNT> struct Ring {
  uint32_t used = 0;
  __device__ __forceinline__ int slot() const { return used % COUNT; }
  __device__ __forceinline__ uint32_t parity() const { return used / COUNT & 1; }
};

//@ kernel
extern __shared__ __align__(1024) char shared[];  // swizzled tiles need 1024-byte bases
@known
@sizes
const int w_count = RESIDENT ? PAIRS * channel_blocks * WIDTH_BLOCKS : W_SLOTS;
const uint32_t w_at = (uint32_t)__cvta_generic_to_shared(shared), x_at = w_at + w_count * WEIGHT_BYTES;
const uint32_t staged = x_at + X_SLOTS * X_SLOT, x_full = staged + (8 * STAGE_ROWS * PITCH@kept) * 4;
const uint32_t x_empty = x_full + X_SLOTS * 8, w_full = x_empty + X_SLOTS * 8, w_empty = w_full + W_SLOTS * 8;
const uint32_t turn = w_empty + W_SLOTS * 8;
@known_of_copy
const int thread = threadIdx.x % 128, warpgroup = threadIdx.x / 128;  // two consumers, then the producers
if (threadIdx.x == 0) {
  if (w_at % 1024) __trap();
  @prefetch;
  for (int i = 0; i < X_SLOTS; ++i) barrier_init(x_full + i * 8, 1), barrier_init(x_empty + i * 8, 1);
  for (int i = 0; i < W_SLOTS; ++i) barrier_init(w_full + i * 8, 1), barrier_init(w_empty + i * 8, 1);
  barrier_init(turn, 1), barrier_init(turn + 8, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__syncthreads();
cudaTriggerProgrammaticLaunchCompletion();
cudaGridDependencySynchronize();
Ring<X_SLOTS> x_ring;
Ring<W_SLOTS> w_ring;

if (warpgroup == 2) {  // ---- producers: a thread for the input, one for the weights
  asm volatile("setmaxnreg.dec.sync.aligned.u32 @few_registers;");
  if (thread @loaders) {
    @ready
    for (int job = Job::first(); job < jobs; job = Job::next(job)) {
      const Job here(job, row_tiles, tile_step, slice_tiles, s);
      @copy_is_there
      for (int block = 0; block < channel_blocks; ++block)
        for (int pair = FIRST_PAIR[here.kind]; pair < FIRST_PAIR[here.kind + 1]; pair += here.lines())
          for (int slot = 0; slot < SLOTS; ++slot, ++x_ring.used) {
            const uint32_t to = x_at + x_ring.slot() * X_SLOT, to_come = x_full + x_ring.slot() * 8;
            barrier_wait(x_empty + x_ring.slot() * 8, x_ring.parity() ^ 1);
            barrier_arrive_expecting(to_come, X_BYTES);
            @load
          }
    }
    @all_loaded
  } else if (thread == 32) {
    for (int job = Job::first(); job < jobs; job = Job::next(job)) {
      const Job here(job, row_tiles, tile_step, slice_tiles, s);
      const int first = FIRST_PAIR[here.kind] * channel_blocks * WIDTH_BLOCKS;
      const int count = here.pairs() * channel_blocks * WIDTH_BLOCKS;
      if (RESIDENT) barrier_arrive_expecting(w_full, count * WEIGHT_BYTES);  // all jobs of the block have the same
      for (int i = 0; i < count; ++i, ++w_ring.used) {
        const int slot = RESIDENT ? i : w_ring.slot();
        if (!RESIDENT) barrier_wait(w_empty + slot * 8, w_ring.parity() ^ 1);
        if (!RESIDENT) barrier_arrive_expecting(w_full + slot * 8, WEIGHT_BYTES);
        const int row = (((first + i) * GROUPS + here.group) * row_tiles + here.row_tile) * ROWS;
        load_box(&weight_map, w_full + (RESIDENT ? 0 : slot * 8), w_at + slot * WEIGHT_BYTES, 0, row);
      }
      if (RESIDENT) break;
    }
  @copies
  }
} else {  // ---- consumers, on alternate jobs: one multiplies while the other stores
  asm volatile("setmaxnreg.inc.sync.aligned.u32 @many_registers;");
  const int consumer = warpgroup, lane = thread % 32, warp = thread / 32;
  const uint64_t w_slots = descriptor(w_at, 16, 8 * ROW_BYTES, SWIZZLE);
  @x_slots
  float* mine = reinterpret_cast<float*>(shared + (staged - w_at)) + (consumer * 4 + warp) * STAGE_ROWS * PITCH;
  @nothing
  @of_columns
  auto release = [&](uint32_t barriers, int slot) {
    if (thread == 0) barrier_arrive(barriers + slot * 8);
  };
  uint32_t my_turn = consumer ^ 1;
  if (RESIDENT && Job::first() < jobs) barrier_wait(w_full, 0);
  int others = consumer;  // jobs of the other consumer come between
  for (int job = Job::first(); job < jobs; job = Job::next(job), others ^= 1) {
    const Job here(job, row_tiles, tile_step, slice_tiles, s);
    if (others) {
      const int stages = here.pairs() * channel_blocks;
      x_ring.used += stages / here.lines() * SLOTS, w_ring.used += stages * WIDTH_BLOCKS;
      continue;
    }
    @ahead
    // The consumers take turns at multiplying, so that one tile has the tensor cores, and a slot's next use is not
    // looked for before its last has been seen. None gives a turn on before all warps have seen it: a job may be empty.
    barrier_wait(turn + consumer * 8, my_turn);
    consumer_sync(consumer);
    my_turn ^= 1;
    float sum[MI][POSITIONS / 2]@zero;
    int w_before = -1, x_before = -1, weight = 0;
    @loop
      @products
    }
    release(turn, consumer ^ 1);
    wgmma_wait<0>();
    if (!RESIDENT && w_before >= 0) release(w_empty, w_before);
    if (x_before >= 0) release(x_empty, x_before);
    @empty
    @scaled
    @channels
    @store
  }
}

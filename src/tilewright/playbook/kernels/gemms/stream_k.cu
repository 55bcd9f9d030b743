//# Tiles that all blocks share, as text: the last ones of 16-bit products on Hopper, which do not fill a round.
//#
//# Their steps along k, of one tile after the other, are dealt out in equal runs. A block leaves its sums of a run in
//# scratch memory, in the order of its registers; who has the first of a tile's steps adds them up, always in the same
//# order, and finishes the tile. Blocks wait for each other, so all of them must be running.

//# A consumer's sums of a shared tile. Blocks have their pieces in order, so a tile's first piece is the last that its
//# block makes: by then the others have been left, or are about to be. Blocks that leave pieces wait for nobody.
//@ shared_sums
if (SHARED && last.number >= 0) {
  float4* const place = sums + ((size_t)last.number * most * (BN / 8) * 2 + consumer) * 128 + thread;
  if (last.piece > 0) {
    unrolled for (int j = 0; j < BN / 8; ++j)
      place[(last.piece * (BN / 8) + j) * 256] =
          make_float4(sum[j * 4], sum[j * 4 + 1], sum[j * 4 + 2], sum[j * 4 + 3]);
    consumer_sync(consumer);
    asm volatile("{ .reg .pred p; setp.eq.s32 p, %1, 0; @p red.release.gpu.global.add.s32 [%0], 1; }"
                 ::"l"(left + last.number), "r"(thread) : "memory");  // a branch here costs registers everywhere
    unrolled for (int j = 0; j < BN / 4; ++j) rounded[j] = 0;  // nothing that registers need to keep
    unfinished = false;
    return;
  }
  const int others = last.others();
  barrier_wait(all_left, 0);
  rolled for (int piece = 1; piece <= others; ++piece) {
    unrolled for (int j = 0; j < BN / 8; j += 8) {
      float4 some[8];
      unrolled for (int i = 0; i < 8; ++i) some[i] = __ldcg(place + (piece * (BN / 8) + j + i) * 256);
      unrolled for (int i = 0; i < 8; ++i) {
        sum[(j + i) * 4] += some[i].x, sum[(j + i) * 4 + 1] += some[i].y;
        sum[(j + i) * 4 + 2] += some[i].z, sum[(j + i) * 4 + 3] += some[i].w;
      }
    }
  }
}

//# The producer waits for what consumers need: they are told by a barrier.
//@ wait_for_others
if (SHARED && tile.number >= 0 && tile.piece == 0) {
  int found;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(found) : "l"(left + tile.number) : "memory");
  } while (found < 2 * tile.others());
  left[tile.number] = 0;
  barrier_arrive(all_left);
}

//@ walk
// The walk over tiles, the same for producer and consumers.
struct Walk {
  int tiles_m, tiles_n, job, blocks, all_steps;
  int whole, shared_steps;  // tiles that a block has for itself, and steps along k of the others
  int from, to;  // the block's of those steps
  int m0, n0, z, first, steps;  // of the tile, and of its steps
  int number, piece;  // which of the shared tiles it is, or -1, and which piece of it
  __device__ __forceinline__ Walk(int M, int N, int K, int batch, int blocks) {
    tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    job = blockIdx.x, this->blocks = blocks;
    all_steps = (K + BK - 1) / BK;
    const int jobs = tiles_m * tiles_n * batch;
    whole = SHARED ? jobs / blocks * blocks : jobs;
    shared_steps = SHARED ? (jobs - whole) * all_steps : 0;
    from = job * shared_steps / blocks, to = (job + 1) * shared_steps / blocks;
  }
  __device__ __forceinline__ int block_of(int shared_step) const {
    return ((shared_step + 1) * blocks - 1) / shared_steps;
  }
  __device__ __forceinline__ int others() const {  // pieces that other blocks leave of the tile whose first is here
    return block_of((number + 1) * all_steps - 1) - (int)blockIdx.x;
  }
  __device__ __forceinline__ void place(int job) {
    const int tiles = tiles_m * tiles_n, matrix = job / tiles, in_matrix = job % tiles;
    const int group = in_matrix / (TILE_GROUP * tiles_n), in_group = in_matrix % (TILE_GROUP * tiles_n);
    const int rows = min(TILE_GROUP, tiles_m - group * TILE_GROUP);
    const int m_tile = group * TILE_GROUP + in_group % rows, n_tile = in_group / rows;
    m0 = m_tile * BM, n0 = n_tile * BN, z = matrix;
  }
  __device__ __forceinline__ bool next() {
    if (job < whole) {
      place(job), first = 0, steps = all_steps, number = -1;
      job += blocks;
      return true;
    }
    if (!SHARED || from >= to) return false;
    number = from / all_steps, first = from % all_steps, steps = min(all_steps - first, to - from);
    piece = (int)blockIdx.x - block_of(number * all_steps);
    place(whole + number);
    from += steps;
    return true;
  }
};

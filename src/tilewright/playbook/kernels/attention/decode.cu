//# Attention of few rows of queries over many keys: the keys of a head are shared out among blocks (split-KV).

//@ header

{name} of few rows: what it costs is reading keys and values, once. Blocks share the keys of a head; all rows of queries
that look at the same keys are in one tile, 16 of them, so heads that share keys and values read them together.

Every warp has keys and a ring of shared memory of its own, which asynchronous copies fill ahead without any barrier.

A second kernel puts together what the blocks of a head have found, in a fixed order, so runs repeat bit for bit.

//@ device
constexpr int THREADS = WARPS * 32;
constexpr int SLOT = STEP * (D_PITCH + E_PITCH);  // elements of a warp's keys and values
constexpr int SUM_PITCH = E_VECTORS * 8 + 4;

// Rows of a warp on their way to its shared memory, neighbours by neighbouring lanes; zeros where there are none.
template <int LENGTH, int VECTORS>
__device__ __forceinline__ void copy_rows(@type* to, const @type* __restrict__ from, long long pitch,
                                          int rows) {
  unrolled for (int first = 0; first < STEP * VECTORS; first += 32) {
    const int i = first + threadIdx.x % 32, row = i / VECTORS, column = i % VECTORS * 8;
    const bool inside = row < rows && column < LENGTH;
    if (STEP * VECTORS % 32 == 0 || i < STEP * VECTORS)
      asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;"
                   ::"r"((uint32_t)__cvta_generic_to_shared(to + row * (VECTORS * 8 + 8) + column)),
                     "l"(from + (inside ? row * pitch + column : 0)), "r"(inside ? 16 : 0) : "memory");
  }
}
// The same by bulk copies, one for a row, whose bytes the barrier counts.
template <int LENGTH, int VECTORS>
__device__ __forceinline__ void copy_row(@type* to, const @type* from, uint32_t barrier, bool inside) {
  if (inside) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(LENGTH * 2), "r"(barrier) : "memory");
  } else {
    for (int i = 0; i < LENGTH; i += 8) *reinterpret_cast<uint4*>(to + i) = make_uint4(0, 0, 0, 0);
  }
}

//@ body
extern __shared__ __align__(16) char shared[];
__shared__ float tops[WARPS][16], totals[WARPS][16];
__shared__ __align__(8) unsigned long long barriers[WARPS * STAGES];
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
const int piece_at = blockIdx.x % pieces, tile = blockIdx.x / pieces % tiles, unit = blockIdx.x / pieces / tiles;
const int first_row = tile * 16;  // of the rows that share these keys
cudaTriggerProgrammaticLaunchCompletion();  // the second kernel may begin, and waits
@units
const @type* k_rows = @k_first;
const @type* v_rows = @v_first;
@scored
auto query_of = [&](int shared_row) {
  @split
  return @q_row;
};
const int begin = piece_at * piece + warp * STEP, end = min((piece_at + 1) * piece, keys);
const int steps = end > begin ? (end - begin + WARPS * STEP - 1) / (WARPS * STEP) : 0;
auto* ring = reinterpret_cast<@type*>(shared) + warp * (STAGES * SLOT);  // of this warp alone: no barriers
const uint32_t full = (uint32_t)__cvta_generic_to_shared(barriers + warp * STAGES);
auto fetch = [&](int step) {
  if (step < steps) {
    auto *to_k = ring + step % STAGES * SLOT, *to_v = to_k + STEP * D_PITCH;
    const int key0 = begin + step * (WARPS * STEP);
    if constexpr (BULK) {
      const uint32_t barrier = full + step % STAGES * 8;
      if (lane == 0) barrier_arrive_expecting(barrier, min(STEP, end - key0) * (D + E) * 2);
      __syncwarp();
      for (int i = lane; i < 2 * STEP; i += 32) {
        const int row = i % STEP, key = key0 + row;
        if (i < STEP)
          copy_row<D, D_VECTORS>(to_k + row * D_PITCH, k_rows + key * @k_pitch, barrier, key < end);
        else
          copy_row<E, E_VECTORS>(to_v + row * E_PITCH, v_rows + key * @v_pitch, barrier, key < end);
      }
    } else {
      copy_rows<D, D_VECTORS>(to_k, k_rows + key0 * @k_pitch, @k_pitch, end - key0);
      copy_rows<E, E_VECTORS>(to_v, v_rows + key0 * @v_pitch, @v_pitch, end - key0);
    }
  }
  if constexpr (!BULK) asm volatile("cp.async.commit_group;" ::: "memory");
};
if constexpr (BULK) {
  if (lane < STAGES) barrier_init(full + lane * 8, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  // Where a row has zeros after it that no copy brings.
  for (int i = lane; i < STAGES * STEP; i += 32) {
    auto *slot = ring + i / STEP * SLOT, *k_row = slot + i % STEP * D_PITCH;
    auto* v_row = slot + STEP * D_PITCH + i % STEP * E_PITCH;
    for (int d = D; d < D_VECTORS * 8; d += 8) *reinterpret_cast<uint4*>(k_row + d) = make_uint4(0, 0, 0, 0);
    for (int d = E; d < E_VECTORS * 8; d += 8) *reinterpret_cast<uint4*>(v_row + d) = make_uint4(0, 0, 0, 0);
  }
  __syncwarp();
}
unrolled for (int s = 0; s < STAGES - 1; ++s) fetch(s);

uint32_t query[D_VECTORS / 2][4];  // two neighbours each, of rows g and g + 8
unrolled for (int d = 0; d < D_VECTORS / 2; ++d)
  unrolled for (int i = 0; i < 4; ++i) {
    const int shared_row = first_row + g + i % 2 * 8, at = d * 16 + i / 2 * 8 + t * 2;
    const bool inside = shared_row < shared_rows && at < D;
    query[d][i] = inside ? *reinterpret_cast<const uint32_t*>(query_of(shared_row) + at) : 0;
  }
float sum[E_VECTORS][4] = {}, greatest[2] = {-INFINITY, -INFINITY}, total[2] = {};

rolled for (int step = 0; step < steps; ++step) {
  __syncwarp();  // nobody reads the slot any more that is filled now
  fetch(step + STAGES - 1);
  if constexpr (BULK) {
    barrier_wait(full + step % STAGES * 8, step / STAGES % 2);
  } else {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
  }
  __syncwarp();
  const @type *k_tile = ring + step % STAGES * SLOT, *v_tile = k_tile + STEP * D_PITCH;
  const int key0 = begin + step * (WARPS * STEP) + t * 2;
  float score[STEP / 8][4] = {};
  unrolled for (int d = 0; d < D_VECTORS / 2; ++d)
    unrolled for (int j = 0; j < STEP / 16; ++j) {
      uint32_t b[4];
      load4(b, k_tile + (j * 16 + lane % 16) * D_PITCH + d * 16 + lane / 16 * 8);
      mma(score[2 * j], query[d], b[0], b[2]);
      mma(score[2 * j + 1], query[d], b[1], b[3]);
    }
  float top[2] = {greatest[0], greatest[1]};
  unrolled for (int n = 0; n < STEP / 8; ++n)
    unrolled for (int e = 0; e < 4; ++e) {
      const int key = key0 + n * 8 + e % 2;
      @masked
      top[e / 2] = fmaxf(top[e / 2], score[n][e]);
    }
  unrolled for (int r = 0; r < 2; ++r) {
    top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
    top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
  }
  if (__any_sync(~0u, top[0] > greatest[0] || top[1] > greatest[1])) {  // seldom, after the first steps
    unrolled for (int r = 0; r < 2; ++r) {
      const float less = power_of_two(greatest[r] - (top[r] == -INFINITY ? 0.0f : top[r]));
      greatest[r] = top[r], total[r] *= less;
      unrolled for (int j = 0; j < E_VECTORS; ++j) sum[j][2 * r] *= less, sum[j][2 * r + 1] *= less;
    }
  }
  unrolled for (int n = 0; n < STEP / 8; ++n)
    unrolled for (int e = 0; e < 4; ++e) {
      const float base = top[e / 2] == -INFINITY ? 0.0f : top[e / 2];  // so far every key may be masked
      total[e / 2] += score[n][e] = power_of_two(score[n][e] - base);
    }
  unrolled for (int s = 0; s < STEP / 16; ++s) {
    const float (&a)[4] = score[2 * s], (&b)[4] = score[2 * s + 1];
    const uint32_t weight[4] = {pair(a[0], a[1]), pair(a[2], a[3]), pair(b[0], b[1]), pair(b[2], b[3])};
    unrolled for (int j = 0; j < E_VECTORS / 2; ++j) {
      uint32_t b[4];
      load4_transposed(b, v_tile + (s * 16 + lane % 16) * E_PITCH + j * 16 + lane / 16 * 8);
      mma(sum[2 * j], weight, b[0], b[1]);
      mma(sum[2 * j + 1], weight, b[2], b[3]);
    }
  }
}

// What the warps have found, put together.
unrolled for (int r = 0; r < 2; ++r) {
  total[r] += __shfl_xor_sync(~0u, total[r], 1);
  total[r] += __shfl_xor_sync(~0u, total[r], 2);
  if (t == 0) tops[warp][g + r * 8] = greatest[r], totals[warp][g + r * 8] = total[r];
}
__syncthreads();  // and the ring is free
auto* gathered = reinterpret_cast<float*>(shared);  // [WARPS][16][SUM_PITCH]
unrolled for (int r = 0; r < 2; ++r) {
  float top = tops[0][g + r * 8];
  unrolled for (int w = 1; w < WARPS; ++w) top = fmaxf(top, tops[w][g + r * 8]);
  const float less = power_of_two(greatest[r] - (top == -INFINITY ? 0.0f : top));
  unrolled for (int j = 0; j < E_VECTORS; ++j)
    unrolled for (int e = 0; e < 2; ++e)
      gathered[(warp * 16 + g + r * 8) * SUM_PITCH + j * 8 + t * 2 + e] = sum[j][2 * r + e] * less;
}
__syncthreads();
const int live = min(16, shared_rows - first_row);
const long long out_row = (long long)unit * shared_rows + first_row;
for (int i = threadIdx.x; i < live * E; i += THREADS) {
  float sum = 0.0f;
  unrolled for (int w = 0; w < WARPS; ++w) sum += gathered[(w * 16 + i / E) * SUM_PITCH + i % E];
  part[((out_row + i / E) * pieces + piece_at) * E + i % E] = sum;
}
if (threadIdx.x < live) {
  float top = tops[0][threadIdx.x], sum = 0.0f;
  unrolled for (int w = 1; w < WARPS; ++w) top = fmaxf(top, tops[w][threadIdx.x]);
  const float base = top == -INFINITY ? 0.0f : top;
  unrolled for (int w = 0; w < WARPS; ++w) sum += totals[w][threadIdx.x] * power_of_two(tops[w][threadIdx.x] - base);
  float* to = stat + ((out_row + threadIdx.x) * pieces + piece_at) * 2;
  to[0] = top, to[1] = sum;
}

//@ together
cudaGridDependencySynchronize();  // until the pieces are there
const float* stats = stat + (long long)blockIdx.x * pieces * 2;
const float* parts = part + (long long)blockIdx.x * pieces * E;
@split
float top = -INFINITY;
for (int p = 0; p < pieces; ++p) top = fmaxf(top, stats[2 * p]);
const float base = top == -INFINITY ? 0.0f : top;
for (int @column = threadIdx.x; @column < E; @column += 128) {
  float total = 0.0f, sum = 0.0f;
#pragma unroll 8
  for (int p = 0; p < pieces; ++p) {
    const float less = power_of_two(stats[2 * p] - base);
    total += stats[2 * p + 1] * less;
    sum += parts[p * E + @column] * less;
  }
  @inverse
  @store
}

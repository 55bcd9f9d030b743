//# Attention of 16-bit elements on any GPU with `mma.sync` and asynchronous copies (sm_80 and later).

//@ pitches
constexpr int D_VECTORS = (D + 15) / 16 * 2, E_VECTORS = (E + 15) / 16 * 2;  // of 16 bytes; a row has zeros after it
constexpr int D_PITCH = D_VECTORS * 8 + 8, E_PITCH = E_VECTORS * 8 + 8;      // 8 more: ldmatrix meets no bank twice

//@ device
constexpr int THREADS = WARPS * 32, ROWS = WARPS * HALVES * 16;

// Rows on their way to shared memory; zeros where there are none.
template <int COUNT, int LENGTH, int VECTORS>
__device__ __forceinline__ void copy_rows(@type* to, const @type* __restrict__ from, long long pitch,
                                          int rows) {
  unrolled for (int first = 0; first < COUNT * VECTORS; first += THREADS) {
    const int i = first + threadIdx.x, row = i / VECTORS, column = i % VECTORS * 8;
    const bool inside = row < rows && column < LENGTH;
    if (COUNT * VECTORS % THREADS == 0 || i < COUNT * VECTORS)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                   ::"r"((uint32_t)__cvta_generic_to_shared(to + row * (VECTORS * 8 + 8) + column)),
                     "l"(from + (inside ? row * pitch + column : 0)), "r"(inside ? 16 : 0) : "memory");
  }
}
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
}

//@ matrices
// Four 8 x 8 matrices from rows of shared memory, one of whose addresses each lane gives; or their transposes.
__device__ __forceinline__ void load4(uint32_t (&r)[4], const @type* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"((uint32_t)__cvta_generic_to_shared(at)) : "memory");
}
__device__ __forceinline__ void load4_transposed(uint32_t (&r)[4], const @type* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"((uint32_t)__cvta_generic_to_shared(at)) : "memory");
}
// d (16 x 8) += a (16 x 16) * b (16 x 8)
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.@kind.@kind.f32"
      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

//@ body
extern __shared__ __align__(16) char shared[];
auto* q_tile = reinterpret_cast<@type*>(shared);
auto *k_tiles = q_tile + ROWS * D_PITCH, *v_tiles = k_tiles + 2 * KEYS * D_PITCH;
const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * (HALVES * 16);
// The last rows of a head come first: with a causal mask they have the most to do.
const int row0 = (tiles - 1 - blockIdx.x % tiles) * ROWS, head = blockIdx.x / tiles;
@heads
const @type* q_rows = @q_first;
const @type* k_rows = @k_first;
const @type* v_rows = @v_first;
@scored
const int count = (@ends + KEYS - 1) / KEYS;  // tiles of keys, from the last to the first
auto copy_tile = [&](int n) {
  const int left = keys - n * KEYS;
  copy_rows<KEYS, D, D_VECTORS>(k_tiles + n % 2 * (KEYS * D_PITCH), k_rows + n * KEYS * @k_pitch, @k_pitch, left);
  copy_rows<KEYS, E, E_VECTORS>(v_tiles + n % 2 * (KEYS * E_PITCH), v_rows + n * KEYS * @v_pitch, @v_pitch, left);
};
copy_rows<ROWS, D, D_VECTORS>(q_tile, q_rows + row0 * @q_pitch, @q_pitch, rows - row0);
copy_tile(count - 1);
float sum[HALVES][E_VECTORS][4] = {}, greatest[HALVES][2], total[HALVES][2] = {};
unrolled for (int h = 0; h < HALVES; ++h) greatest[h][0] = greatest[h][1] = -INFINITY;

rolled for (int n = count - 1; n >= 0; n--) {
  wait_for_copies();  // this tile is here, and nobody reads the one before it any more
  if (n > 0) copy_tile(n - 1);
  const @type *k_tile = k_tiles + n % 2 * (KEYS * D_PITCH), *v_tile = v_tiles + n % 2 * (KEYS * E_PITCH);
  float score[HALVES][KEYS / 8][4] = {};
  unrolled for (int d = 0; d < D_VECTORS / 2; ++d) {
    uint32_t query[HALVES][4];
    unrolled for (int h = 0; h < HALVES; ++h)
      load4(query[h], q_tile + (warp_row + h * 16 + lane % 16) * D_PITCH + d * 16 + lane / 16 * 8);
    unrolled for (int j = 0; j < KEYS / 16; ++j) {
      uint32_t b[4];
      load4(b, k_tile + (j * 16 + lane % 16) * D_PITCH + d * 16 + lane / 16 * 8);
      unrolled for (int h = 0; h < HALVES; ++h) {
        mma(score[h][2 * j], query[h], b[0], b[2]);
        mma(score[h][2 * j + 1], query[h], b[1], b[3]);
      }
    }
  }
  // A thread has of two rows, 8 apart, two neighbours of every eight: [2 * r + e] is element e of row r.
  const int key0 = n * KEYS + lane % 4 * 2;
  unrolled for (int h = 0; h < HALVES; ++h) {
    @masked
    unrolled for (int r = 0; r < 2; ++r) {
      float top = greatest[h][r];
      unrolled for (int j = 0; j < KEYS / 8; ++j) top = fmaxf(top, fmaxf(score[h][j][2 * r], score[h][j][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float base = top == -INFINITY ? 0.0f : top@scale;  // so far every key may be masked
      const float less = power_of_two(greatest[h][r]@scale - base);
      greatest[h][r] = top, total[h][r] *= less;
      unrolled for (int j = 0; j < KEYS / 8; ++j)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) total[h][r] += score[h][j][e] = power_of_two(@power);
      unrolled for (int j = 0; j < E_VECTORS; ++j) sum[h][j][2 * r] *= less, sum[h][j][2 * r + 1] *= less;
    }
  }
  unrolled for (int s = 0; s < KEYS / 16; ++s) {  // scores of 16 keys are the first operand of a product as they are
    uint32_t weight[HALVES][4];
    unrolled for (int h = 0; h < HALVES; ++h)
      unrolled for (int i = 0; i < 4; ++i) {
        const float* two = &score[h][2 * s + i / 2][i % 2 * 2];
        weight[h][i] = pair(two[0], two[1]);
      }
    unrolled for (int j = 0; j < E_VECTORS / 2; ++j) {
      uint32_t b[4];
      load4_transposed(b, v_tile + (s * 16 + lane % 16) * E_PITCH + j * 16 + lane / 16 * 8);
      unrolled for (int h = 0; h < HALVES; ++h) {
        mma(sum[h][2 * j], weight[h], b[0], b[1]);
        mma(sum[h][2 * j + 1], weight[h], b[2], b[3]);
      }
    }
  }
}
unrolled for (int h = 0; h < HALVES; ++h)
  unrolled for (int r = 0; r < 2; ++r) {
    total[h][r] += __shfl_xor_sync(~0u, total[h][r], 1);
    total[h][r] += __shfl_xor_sync(~0u, total[h][r], 2);
    @inverse
    const int @row = row0 + warp_row + h * 16 + lane / 4 + r * 8;
    if (@row >= rows) continue;
    @store
  }

//# Attention of f32 elements at f32's accuracy, on the TF32 tensor cores of any GPU from sm_80 on.
//@ f32_device
constexpr int THREADS = WARPS * 32, ROWS = WARPS * 16;
constexpr int D_LENGTH = (D + 31) / 32 * 32, E_LENGTH = (E + 7) / 8 * 8;  // of a row with zeros at its end
constexpr int D_PITCH = D_LENGTH + 4, E_PITCH = E_LENGTH + 4;             // 4 more: lanes meet no bank twice

// Rows on their way to shared memory; zeros where there are none.
template <int COUNT, int GIVEN, int LENGTH>
__device__ __forceinline__ void copy_rows(float* to, const float* __restrict__ from, long long pitch, int rows) {
  constexpr int VECTORS = LENGTH / 4;
#pragma unroll 8
  for (int i = threadIdx.x; i < COUNT * VECTORS; i += THREADS) {
    const int row = i / VECTORS, column = i % VECTORS * 4;
    const bool inside = row < rows && column < GIVEN;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"((uint32_t)__cvta_generic_to_shared(to + row * (LENGTH + 4) + column)),
                   "l"(from + (inside ? row * pitch + column : 0)), "r"(inside ? 16 : 0) : "memory");
  }
}
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
}
__device__ __noinline__ float plain_product(const float* query, const float* key) {
  float sum = 0.0f;
  for (int d = 0; d < D; ++d) sum = fmaf(query[d], key[d], sum);
  return sum;
}
// v as two TF32 numbers, rounded to 11 bits each; of the second tensor cores leave out the bits below that.
__device__ __forceinline__ void split(float v, unsigned& big, unsigned& small) {
  big = (__float_as_uint(v) + 0x1000u) & 0xffffe000u;
  small = __float_as_uint(v - __uint_as_float(big)) + 0x1000u;
}
// d (16 x 8) += a (16 x 8) * b (8 x 8)
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// The same with parts: small ones first.
struct Left { unsigned big[4], small[4]; };
__device__ __forceinline__ void mma(float (&d)[4], const Left& a, float b0, float b1) {
  unsigned big[2], small[2];
  split(b0, big[0], small[0]), split(b1, big[1], small[1]);
  mma(d, a.small, big), mma(d, a.big, small), mma(d, a.big, big);
}

//@ f32_body
extern __shared__ __align__(16) char shared[];
auto* q_tile = reinterpret_cast<float*>(shared);
auto *k_tiles = q_tile + ROWS * D_PITCH, *v_tiles = k_tiles + SLOTS * KEYS * D_PITCH;
const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp_row = threadIdx.x / 32 * 16;
// The last rows of a head come first: with a causal mask they have the most to do.
const int row0 = (tiles - 1 - blockIdx.x % tiles) * ROWS, head = blockIdx.x / tiles;
const int row = row0 + warp_row + g;  // this thread's rows: it, and the one 8 below it
@heads
const float* q_rows = @q_first;
const float* k_rows = @k_first;
const float* v_rows = @v_first;
@scored
const int count = (@ends + KEYS - 1) / KEYS;  // tiles of keys, from the last to the first
auto copy_tile = [&](int n) {
  const int left = keys - n * KEYS;
  copy_rows<KEYS, D, D_LENGTH>(k_tiles + n % SLOTS * (KEYS * D_PITCH), k_rows + n * KEYS * @k_pitch, @k_pitch, left);
  copy_rows<KEYS, E, E_LENGTH>(v_tiles + n % SLOTS * (KEYS * E_PITCH), v_rows + n * KEYS * @v_pitch, @v_pitch, left);
};
copy_rows<ROWS, D, D_LENGTH>(q_tile, q_rows + row0 * @q_pitch, @q_pitch, rows - row0);
if (SLOTS == 2) copy_tile(count - 1);
float sum[E_LENGTH / 8][4] = {}, greatest[2] = {-INFINITY, -INFINITY}, total[2] = {}, less[2];

rolled for (int n = count - 1; n >= 0; n--) {
  if (SLOTS == 1) {
    __syncthreads();
    copy_tile(n);
  }
  wait_for_copies();  // this tile is here, and nobody reads the one before it any more
  if (SLOTS == 2 && n > 0) copy_tile(n - 1);
  const float *k_tile = k_tiles + n % SLOTS * (KEYS * D_PITCH), *v_tile = v_tiles + n % SLOTS * (KEYS * E_PITCH);
  float score[KEYS / 8][4] = {};
  rolled for (int d = 0; d < D_LENGTH; d += 32) {
    Left query[4];
    unrolled for (int s = 0; s < 4; ++s)
      unrolled for (int i = 0; i < 4; ++i) {
        const float* from = q_tile + (warp_row + g + i % 2 * 8) * D_PITCH + d + s * 8 + t + i / 2 * 4;
        split(*from, query[s].big[i], query[s].small[i]);
      }
    unrolled for (int j = 0; j < KEYS / 8; ++j) {
      const float* key = k_tile + (j * 8 + g) * D_PITCH + d + t;
      float part[4] = {};
      unrolled for (int s = 0; s < 4; ++s) mma(part, query[s], key[s * 8], key[s * 8 + 4]);
      unrolled for (int e = 0; e < 4; ++e) score[j][e] += part[e];
    }
  }
  // score[j][2 * r + e] is of row r and of key 8 j + 2 t + e. Parts of an infinity are no numbers, nor are scores of
  // them: these are made of the elements themselves.
  bool is_lost = false;
  unrolled for (int j = 0; j < KEYS / 8; ++j)
    unrolled for (int e = 0; e < 4; ++e) is_lost |= score[j][e] != score[j][e];
  if (is_lost)
    unrolled for (int j = 0; j < KEYS / 8; ++j)
      unrolled for (int e = 0; e < 4; ++e)
        if (score[j][e] != score[j][e])
          score[j][e] = plain_product(q_tile + (warp_row + g + e / 2 * 8) * D_PITCH,
                                      k_tile + (j * 8 + t * 2 + e % 2) * D_PITCH);
  const int key0 = n * KEYS + t * 2;
  @masked
  unrolled for (int r = 0; r < 2; ++r) {
    float top = greatest[r];
    unrolled for (int j = 0; j < KEYS / 8; ++j) top = fmaxf(top, fmaxf(score[j][2 * r], score[j][2 * r + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float base = top == -INFINITY ? 0.0f : top;  // so far every key may be masked
    less[r] = power_of_two((greatest[r] - base)@scale);
    greatest[r] = top;
    float added = 0.0f;
    unrolled for (int j = 0; j < KEYS / 8; ++j)
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; ++e) added += score[j][e] = power_of_two((score[j][e] - base)@scale);
    total[r] = total[r] * less[r] + added;
  }
  unrolled for (int first = 0; first < KEYS / 8; first += 4) {
    // Weights are the first operand as they are, if the second has its rows in their order: 2 t and 2 t + 1 of 8.
    Left weight[4];
    unrolled for (int s = 0; s < 4; ++s)
      unrolled for (int i = 0; i < 4; ++i)
        split(score[first + s][i % 2 * 2 + i / 2], weight[s].big[i], weight[s].small[i]);
    unrolled for (int j = 0; j < E_LENGTH / 8; ++j) {
      float part[4] = {};
      unrolled for (int s = 0; s < 4; ++s) {
        const float* value = v_tile + ((first + s) * 8 + t * 2) * E_PITCH + j * 8 + g;
        mma(part, weight[s], value[0], value[E_PITCH]);
      }
      unrolled for (int e = 0; e < 4; ++e) sum[j][e] = (first == 0 ? sum[j][e] * less[e / 2] : sum[j][e]) + part[e];
    }
  }
}
unrolled for (int r = 0; r < 2; ++r) {
  total[r] += __shfl_xor_sync(~0u, total[r], 1);
  total[r] += __shfl_xor_sync(~0u, total[r], 2);
  @inverse
  const int @row = row + r * 8;
  if (@row >= rows) continue;
  unrolled for (int j = 0; j < E_LENGTH / 8; ++j)
    unrolled for (int e = 0; e < 2; ++e) {
      const int @column = j * 8 + t * 2 + e;
      if (@column >= E) break;
      @store
    }
}

//# Attention of few rows of queries over many keys: the keys of a head are shared out among blocks (split-KV).
//@ header

{name} of few rows: what it costs is reading keys and values, once. Blocks share the keys of a head; all rows of queries
that look at the same keys are in one tile, 16 of them, so heads that share keys and values read them together.

Every warp has keys and a ring of shared memory of its own, which asynchronous copies fill ahead without any barrier.

A second kernel puts together what the blocks of a head have found, in a fixed order, so runs repeat bit for bit.

//@ decode_device
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

//@ decode_body
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

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

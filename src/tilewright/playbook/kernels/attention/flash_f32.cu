//# Attention of f32 elements at f32's accuracy, on the TF32 tensor cores of any GPU from sm_80 on.

//@ device
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

//@ body
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

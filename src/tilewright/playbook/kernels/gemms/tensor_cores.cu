//# Products on the tensor cores of any GPU since Ampere: tiles brought by asynchronous copies, mma.sync on fragments.

//@ async_copy
// A copy from global to shared memory that arrives later; zeros where `inside` is false, and nothing is read then. Two
// bytes are copied at once, for there is no asynchronous copy of so few.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(inside ? 16 : 0) : "memory");
  } else if constexpr (BYTES == 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(inside ? 4 : 0) : "memory");
  } else {
    *static_cast<unsigned short*>(to) = inside ? *static_cast<const unsigned short*>(from) : 0;
  }
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

//@ tile_copy
// A tile in shared memory lies as in global memory: LINES rows of INNER neighbours. The rows are PAD elements longer
// than that, which spreads what a warp reads at once over all banks.
template <int LINES, int INNER, int PAD, int WIDTH>
struct TileCopy {
  static constexpr int PITCH = INNER + PAD, ELEMENTS = LINES * PITCH;
  static constexpr int PER_LINE = INNER / WIDTH, COPIES = LINES * PER_LINE / THREADS;

  static __device__ __forceinline__ void start(Element* tile, const Element* from, long long pitch, int line0,
                                               int inner0, int lines, int inners) {
    unrolled for (int i = 0; i < COPIES; ++i) {
      const int place = threadIdx.x + i * THREADS, line = place / PER_LINE, inner = place % PER_LINE * WIDTH;
      const bool inside = line0 + line < lines && inner0 + inner < inners;
      const Element* source = inside ? from + (line0 + line) * pitch + inner0 + inner : from;
      copy_async<WIDTH * sizeof(Element)>(tile + line * PITCH + inner, source, inside);
    }
  }
};

//@ load_matrices
// Four 8 x 8 matrices, one per register; lanes 8i .. 8i+7 give the rows of matrix i. Lane l then holds the elements
// 2(l % 4) and 2(l % 4) + 1 of row l / 4; in the transposing form, of column l / 4.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const Element* row) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
  }
}

//@ mma
// d (16 x 8, f32) += a (16 x STEP) * b (STEP x 8)
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.INSTRUCTION {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

//@ round
__device__ __forceinline__ unsigned tf32(float v) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(v));
  return rounded;
}

//@ split
// v as two TF32 numbers, which together have 22 bits of it and its whole range. What has no finite big part is small
// beside a one of its sign: small parts meet big parts alone, and infinity times the 0 that a small part may be is no
// number where f32 gives infinity.
__device__ __forceinline__ void split(float v, unsigned& big, unsigned& small) {
  const bool fits = fabsf(v) < 3.4e38f;
  // Rounded by half of the last bit that TF32 has; a tensor core does not look at those behind it.
  const unsigned rounded = (__float_as_uint(v) + 0x1000u) & 0xffffe000u;
  big = fits ? rounded : __float_as_uint(copysignf(1.f, v));
  small = fits ? __float_as_uint(v - __uint_as_float(rounded)) + 0x1000u : __float_as_uint(v);
}

//@ exact_mma
// d += a * b, each f32 as its two parts. A tensor core cuts bits off when it adds: products are added up outside it.
__device__ __forceinline__ void exact_mma(float (&d)[4], const unsigned (&a_big)[4], const unsigned (&a_small)[4],
                                          const unsigned (&b_big)[2], const unsigned (&b_small)[2]) {
  float part[4] = {};
  mma(part, a_small, b_big[0], b_big[1]);
  mma(part, a_big, b_small[0], b_small[1]);
  mma(part, a_big, b_big[0], b_big[1]);
  unrolled for (int r = 0; r < 4; ++r) d[r] += part[r];
}

//@ rounded_step
unrolled for (int p = 0; p < @steps; ++p) {
  @before
  unsigned a_part[BLOCKS_M][4], b_part[BLOCKS_N][2];
  unrolled for (int i = 0; i < BLOCKS_M; ++i)  // four elements of f32 are eight of 16 bits to the instruction
    load_matrices<false>(a_part[i], a_lane + i * 16 * @pitch + p * 8);
  @filled
  unrolled for (int i = 0; i < BLOCKS_M; ++i)
    unrolled for (int j = 0; j < BLOCKS_N; ++j) mma(sums[i][j], a_part[i], b_part[j][0], b_part[j][1]);
}

//@ exact_step
unrolled for (int p = 0; p < STEPS; ++p) {
  unsigned a_big[BLOCKS_M][4], a_small[BLOCKS_M][4];
  unrolled for (int i = 0; i < BLOCKS_M; ++i) {
    unsigned a_part[4];  // four elements of f32 are eight of 16 bits to the instruction
    load_matrices<false>(a_part, a_lane + i * 16 * A_PITCH + p * 8);
    unrolled for (int r = 0; r < 4; ++r) split(__uint_as_float(a_part[r]), a_big[i][r], a_small[i][r]);
  }
  unrolled for (int j = 0; j < BLOCKS_N; ++j) {
    unsigned b_big[2], b_small[2];
    unrolled for (int r = 0; r < 2; ++r) split(b_lane[B_PLACE], b_big[r], b_small[r]);
    unrolled for (int i = 0; i < BLOCKS_M; ++i) exact_mma(sums[i][j], a_big[i], a_small[i], b_big, b_small);
  }
}

//! op      attention(q, k, v) -> o
//! need    q.ndim == 4 and k.ndim == 4 and k.shape[:2] == q.shape[:2] and k.shape[3] == q.shape[3] and v.shape == k.shape
//! let     length = q.shape[2], keys = k.shape[2], depth = q.shape[3], heads = q.shape[0] * q.shape[1]
//! out     o: q.dtype[q.shape]
//! need    device.cc >= 80 and q.dtype in [f16, bf16] and k.dtype == q.dtype and v.dtype == q.dtype
//! need    depth % 16 == 0 and depth <= 128 and keys > 0
//! const   T = q.dtype, D = depth, KEYS = 64
//! tune    ROWS = 64 | 128                                     # query rows of a block, 16 a warp
//! let     smem = (ROWS + 2 * KEYS) * (depth + 8) * 2
//! launch  attention<<<dim3(ceil_div(length, ROWS), heads), ROWS * 2, smem>>>(q, k, v, o, length, keys, 1.4426950408889634 / sqrt(depth))

constexpr int PITCH = D + 8, THREADS = ROWS * 2;   // 16 bytes of padding: the 8 rows of an ldmatrix lie in different banks

template <int ROWS_> __device__ __forceinline__ void copy_rows(T* to, const T* __restrict__ from, int rows) {   // zeros beyond `rows`
#pragma unroll
  for (int pass = 0; pass * THREADS < ROWS_ * (D / 8); ++pass) {   // a constant count: unrolled, the addresses hoisted
    const int i = pass * THREADS + threadIdx.x, row = i / (D / 8), column = i % (D / 8) * 8;
    if (i < ROWS_ * (D / 8))
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to + row * PITCH + column)),
                   "l"(from + (long long)row * D + column), "r"(row < rows ? 16 : 0) : "memory");
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ __forceinline__ float power_of_2(float x) { asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x)); return x; }
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); __syncthreads(); }
__device__ __forceinline__ void load4(uint32_t (&r)[4], const T* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(at)) : "memory");
}
__device__ __forceinline__ void load4_transposed(uint32_t (&r)[4], const T* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(at)) : "memory");
}
#define MMA(TYPE) \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half) { MMA("f16"); }
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __nv_bfloat16) { MMA("bf16"); }
__device__ __forceinline__ uint32_t pair(float x, float y, __half) { __half2 p = __floats2half2_rn(x, y); return *reinterpret_cast<uint32_t*>(&p); }
__device__ __forceinline__ uint32_t pair(float x, float y, __nv_bfloat16) { __nv_bfloat162 p = __floats2bfloat162_rn(x, y); return *reinterpret_cast<uint32_t*>(&p); }

__global__ void __launch_bounds__(THREADS) attention(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                                                     T* __restrict__ o, int length, int keys, float scale) {
  extern __shared__ __align__(128) char shared[];
  T *tile_q = reinterpret_cast<T*>(shared), *tile_k = tile_q + ROWS * PITCH, *tile_v = tile_k + KEYS * PITCH;
  const int lane = threadIdx.x % 32, row0 = blockIdx.x * ROWS, warp_row = threadIdx.x / 32 * 16;
  q += ((long long)blockIdx.y * length + row0) * D, o += ((long long)blockIdx.y * length + row0) * D;
  k += (long long)blockIdx.y * keys * D, v += (long long)blockIdx.y * keys * D;
  copy_rows<ROWS>(tile_q, q, length - row0);
  copy_rows<KEYS>(tile_k, k, keys);
  wait_for_copies();
  uint32_t query[D / 16][4];
#pragma unroll
  for (int d = 0; d < D / 16; ++d) load4(query[d], tile_q + (warp_row + lane % 16) * PITCH + d * 16 + lane / 16 * 8);
  float sum[D / 8][4] = {}, greatest[2] = {-INFINITY, -INFINITY}, weight[2] = {};   // of rows lane / 4 and lane / 4 + 8

#pragma unroll 1
  for (int key0 = 0; key0 < keys; key0 += KEYS) {
    wait_for_copies();                                               // this K is here, and nobody reads the last V any more
    copy_rows<KEYS>(tile_v, v + (long long)key0 * D, keys - key0);   // arrives during the product below
    float score[KEYS / 8][4] = {};
#pragma unroll
    for (int d = 0; d < D / 16; ++d)
#pragma unroll
      for (int j = 0; j < KEYS / 16; ++j) {
        uint32_t b[4];
        load4(b, tile_k + (j * 16 + lane % 16) * PITCH + d * 16 + lane / 16 * 8);
        mma(score[2 * j], query[d], b[0], b[2], T());
        mma(score[2 * j + 1], query[d], b[1], b[3], T());
      }
#pragma unroll
    for (int r = 0; r < 2; ++r) {   // masks go here; a row lies in 4 neighbouring lanes
      float top = greatest[r];
#pragma unroll
      for (int j = 0; j < KEYS / 8; ++j)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          if (key0 + KEYS > keys && key0 + j * 8 + lane % 4 * 2 + e % 2 >= keys) score[j][e] = -INFINITY;
          top = fmaxf(top, score[j][e]);
        }
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float correction = power_of_2((greatest[r] - top) * scale);   // 0 for the first tile
      greatest[r] = top, weight[r] *= correction;
#pragma unroll
      for (int j = 0; j < KEYS / 8; ++j)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) weight[r] += score[j][e] = power_of_2(fmaf(score[j][e], scale, -top * scale));
#pragma unroll
      for (int j = 0; j < D / 8; ++j) sum[j][2 * r] *= correction, sum[j][2 * r + 1] *= correction;
    }
    wait_for_copies();                                               // V is here, and nobody reads this K any more
    if (key0 + KEYS < keys) copy_rows<KEYS>(tile_k, k + (long long)(key0 + KEYS) * D, keys - key0 - KEYS);
#pragma unroll
    for (int s = 0; s < KEYS / 16; ++s) {   // two 8-column blocks of scores are the A operand of one step: no shared memory
      const uint32_t a[4] = {pair(score[2 * s][0], score[2 * s][1], T()), pair(score[2 * s][2], score[2 * s][3], T()),
                             pair(score[2 * s + 1][0], score[2 * s + 1][1], T()), pair(score[2 * s + 1][2], score[2 * s + 1][3], T())};
#pragma unroll
      for (int j = 0; j < D / 16; ++j) {
        uint32_t b[4];
        load4_transposed(b, tile_v + (s * 16 + lane % 16) * PITCH + j * 16 + lane / 16 * 8);
        mma(sum[2 * j], a, b[0], b[1], T());
        mma(sum[2 * j + 1], a, b[2], b[3], T());
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    weight[r] += __shfl_xor_sync(~0u, weight[r], 1);
    weight[r] += __shfl_xor_sync(~0u, weight[r], 2);
    const int row = warp_row + lane / 4 + r * 8;
    if (row0 + row < length)
#pragma unroll
      for (int j = 0; j < D / 8; ++j)
        *reinterpret_cast<uint32_t*>(o + row * D + j * 8 + lane % 4 * 2) = pair(sum[j][2 * r] / weight[r], sum[j][2 * r + 1] / weight[r], T());
  }
}

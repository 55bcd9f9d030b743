//# Attention of f32 elements for Hopper (sm_90a) at f32's accuracy: every number is two f16 parts on tensor cores.

//@ halves
__device__ __forceinline__ float low_half(uint32_t both) { return __low2float(*reinterpret_cast<__half2*>(&both)); }
__device__ __forceinline__ float high_half(uint32_t both) { return __high2float(*reinterpret_cast<__half2*>(&both)); }

constexpr float RAISED = 10.0f;  // weights are so many powers of two greater: their small parts are normal numbers

// The power of two that brings numbers up to the one with these bits below 2^15; at most 2^50, so that two of them can
// be multiplied.
__device__ __forceinline__ float scale_of(unsigned peak) {
  const int exponent = max(static_cast<int>(peak >> 23), 127 + 14 - 50);
  return exponent >= 255 ? 1.0f : __uint_as_float((127 + 14 + 127 - exponent) << 23);
}

//# Both kernels before the product: a block has 64 rows of one matrix.
//@ before
const int q_blocks = heads * q_pieces, k_blocks = units * k_pieces;
int job = blockIdx.x;
const bool is_q = job < q_blocks, is_k = !is_q && job < q_blocks + k_blocks;
job -= is_q ? 0 : is_k ? q_blocks : q_blocks + k_blocks;
const int pieces = is_q ? q_pieces : k_pieces, matrix = job / pieces, row0 = job % pieces * 64;
const int count = min(64, (is_q ? rows : keys) - row0);
const int head = is_q ? matrix : matrix * shares;
@heads
const float* from = is_q ? @q_first : is_k ? @k_first : @v_first;
const long long pitch = is_q ? @q_pitch : is_k ? @k_pitch : @v_pitch;
from += row0 * pitch;
const int vectors = (is_q || is_k ? D : E) / 4;

//@ peaks
unsigned* peaks = is_q ? q_peaks + matrix : is_k ? k_peaks + matrix : v_peaks + matrix * E;
__shared__ unsigned peak[E];  // of every column; of queries and keys all together in the first
for (int i = threadIdx.x; i < E; i += 256) peak[i] = 0;
__syncthreads();
unsigned all = 0;
const int step = 256 / vectors * vectors, column = threadIdx.x % vectors * 4;
unsigned most[4] = {};
if (threadIdx.x < step)
  for (int i = threadIdx.x; i < count * vectors; i += step) {
    const float4 v = *reinterpret_cast<const float4*>(from + i / vectors * pitch + column);
    most[0] = max(most[0], __float_as_uint(fabsf(v.x))), most[1] = max(most[1], __float_as_uint(fabsf(v.y)));
    most[2] = max(most[2], __float_as_uint(fabsf(v.z))), most[3] = max(most[3], __float_as_uint(fabsf(v.w)));
  }
if (is_q || is_k) {
  all = __reduce_max_sync(~0u, max(max(most[0], most[1]), max(most[2], most[3])));
  if (threadIdx.x % 32 == 0) atomicMax(peak, all);
} else {
  unrolled for (int e = 0; e < 4; ++e)
    if (threadIdx.x < step) atomicMax(peak + column + e, most[e]);
}
__syncthreads();
for (int i = threadIdx.x; i < (is_q || is_k ? 1 : E); i += 256) atomicMax(peaks + i, peak[i]);

//@ split
const unsigned* peaks = is_q ? q_peaks + matrix : is_k ? k_peaks + matrix : v_peaks + matrix * E;
__half* to = is_q ? q_parts : is_k ? k_parts : v_parts;
const long long length = vectors * 4, first = ((long long)matrix * (is_q ? rows : keys) + row0) * length;
const long long apart = (long long)(is_q ? heads : units) * (is_q ? rows : keys) * length;  // of the two parts
__shared__ int lost[E];
for (int i = threadIdx.x; i < E; i += 256) lost[i] = 0;
__syncthreads();
for (int i = threadIdx.x; i < count * vectors; i += 256) {
  const int column = i % vectors * 4;
  const float4 v = *reinterpret_cast<const float4*>(from + i / vectors * pitch + column);
  const float given[4] = {v.x, v.y, v.z, v.w};
  float scaled[4];
  unrolled for (int e = 0; e < 4; ++e) {
    scaled[e] = given[e] * scale_of(peaks[is_q || is_k ? 0 : column + e]);
    // Below a quarter the small part has fewer than 11 bits.
    if (!is_q && !is_k && scaled[e] != 0.0f && fabsf(scaled[e]) < 0.25f) atomicAdd(lost + column + e, 1);
  }
  uint2 big = make_uint2(pair(scaled[0], scaled[1]), pair(scaled[2], scaled[3]));
  uint2 small = make_uint2(pair(scaled[0] - low_half(big.x), scaled[1] - high_half(big.x)),
                           pair(scaled[2] - low_half(big.y), scaled[3] - high_half(big.y)));
  *reinterpret_cast<uint2*>(to + first + i * 4) = big;
  *reinterpret_cast<uint2*>(to + apart + first + i * 4) = small;
}
if (is_q) {
  // Scores are off by 2^-39 of this at most, which weights show where it is large.
  const float greatest = __uint_as_float(q_peaks[matrix]) * __uint_as_float(k_peaks[matrix / shares]) * given_scale;
  if (threadIdx.x == 0 && !(greatest < 8192.0f)) wide[matrix] = 1;
} else if (!is_k) {
  __syncthreads();
  bool many = false;
  for (int i = threadIdx.x; i < E; i += 256) many |= lost[i] * 16 > count || peaks[i] >= 0x7f800000u;
  if (__syncthreads_or(many) && threadIdx.x < shares) wide[matrix * shares + threadIdx.x] = 1;
}

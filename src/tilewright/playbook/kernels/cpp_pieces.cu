//# Device functions that kernels call, as text. Each is `<operation>_of`.

//@ span
// What belongs to column `first` + i of a vector, in a tensor that has one element for every SPAN columns. A vector
// lies in one such span, or in two.
template <auto SPAN, typename T>
__device__ __forceinline__ T span_of(const T* along, unsigned first, int i) {
  if constexpr (SPAN % WIDTH == 0) return along[first / SPAN];
  if constexpr (SPAN < WIDTH) return along[(first + i) / SPAN];
  const unsigned place = first % SPAN;
  const T here = along[first / SPAN], next = along[first / SPAN + (place + WIDTH > SPAN)];
  return place + i < SPAN ? here : next;
}

//@ bf16
// v as a bf16 has it, in any architecture: to the nearest, of two as near to the even one.
__device__ __forceinline__ float bf16_of(float v) {
  const unsigned bits = __float_as_uint(v);
  return v != v ? v : __uint_as_float((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
}

//@ f16
// v as an f16 has it.
__device__ __forceinline__ float f16_of(float v) {
  unsigned short bits;
  float rounded;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
  asm("cvt.f32.f16 %0, %1;" : "=f"(rounded) : "h"(bits));
  return rounded;
}

//@ gelu_tanh
// 0.5 v (1 + tanh u) is v / (1 + exp(-2 u)): one exponential, and no cancellation where tanh is near -1.
__device__ __forceinline__ float gelu_tanh_of(float v) {
  const float u = 0.7978845608f * (v + 0.044715f * v * v * v);
  return v / (1.0f + expf(-2.0f * u));
}

//@ mish
// v tanh(log(1 + e)) with e = exp(v): tanh(log(1 + e)) is n / (n + 2) with n = e (e + 2).
__device__ __forceinline__ float mish_of(float v) {
  const float e = expf(fminf(v, 20.0f)), n = e * (e + 2.0f);
  return v > 20.0f ? v : v * (n / (n + 2.0f));
}

//@ softplus
// log(1 + exp(beta v)) / beta, which is v itself where exp would leave nothing of the 1. With t = exp(-|beta v|) it is
// the part of beta v above zero and log(1 + t), of which s = t / (2 + t) makes a short series: log1pf takes longer than
// memory does.
__device__ __forceinline__ float softplus_of(float v, float beta, float threshold) {
  const float x = v * beta, t = expf(-fabsf(x)), s = __fdividef(t, 2.0f + t), z = s * s;
  float series = fmaf(z, 0.28174666f, 0.27961427f);
  series = fmaf(z, series, 0.40024853f);
  series = fmaf(z, series, 0.66666317f);
  series = fmaf(z, series, 2.0f);
  return x > threshold ? v : fmaf(s, series, fmaxf(x, 0.0f)) / beta;
}

//@ log
// For sums. Two exact logarithms an element would take longer than memory does. The quick one is good to 2^-22 of
// itself but around 1, where logarithms are small: there x - x^2 / 2 + x^3 q(x) with x = v - 1, which is exact.
__device__ __forceinline__ float log_of(float v) {
  const float x = v - 1.0f;
  float q = fmaf(x, -0.072874695f, 0.1290151f);
  q = fmaf(x, q, -0.13358842f);
  q = fmaf(x, q, 0.14193559f);
  q = fmaf(x, q, -0.1660217f);
  q = fmaf(x, q, 0.20001048f);
  q = fmaf(x, q, -0.25001413f);
  q = fmaf(x, q, 0.33333337f);
  const float near = fmaf(x * x, fmaf(x, q, -0.5f), x);
  return v > 0.7f && v < 1.45f ? near : __log2f(v) * 0.693147181f;
}

//@ divergence
// t log t - t log p, with nothing for the first where t is 0.
__device__ __forceinline__ float divergence_of(float t, float p) {
  return (t == 0.0f ? 0.0f : t * logf(t)) - t * logf(p);
}

//@ summed_divergence
// For sums: t (log t - log p) without two exact logarithms. Where t is near p, the difference is 2 atanh(s) with s =
// (t - p) / (t + p), and keeps its digits; elsewhere that of two quick logarithms will do. What these do not take - 0,
// infinite, huge, tiny or negative numbers - gives no finite number, or is seen in the bits.
__device__ __forceinline__ float summed_divergence_of(float t, float p) {
  float inverse, log_t, log_p;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(t + p));
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log_t) : "f"(t));
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log_p) : "f"(p));
  const float s = (t - p) * inverse, z = s * s;
  float series = fmaf(z, 0.455353737f, 0.575350821f);
  series = fmaf(z, series, 0.961818576f);
  series = fmaf(z, series, 2.88539004f);
  const float made = t * ((fabsf(s) < 0.25f ? s * series : log_t - log_p) * 0.693147181f);
  const bool is_plain = fabsf(made) < INFINITY && max(__float_as_uint(t), __float_as_uint(p)) < 0x5f800000u;  // 2^64
  return is_plain ? made : divergence_of(t, p);
}

//@ elu
// alpha (e^x - 1) below zero, before the choice: a branch for each element takes longer. e^x is 2^whole e^rest, and
// e^rest - 1 a short series: expm1f is as exact, but right above zero too, and takes twice the instructions. Where
// `inner` is below zero, as a CELU of a negative alpha has it, that is needed.
__device__ __forceinline__ float elu_of(float v, float alpha, float inner) {
  if (inner < 0.0f) return v >= 0.0f ? v : alpha * expm1f(v * inner);
  const float x = v * inner < -30.0f ? -30.0f : v * inner;
  const float whole = fmaf(x, 1.44269502f, 12582912.0f) - 12582912.0f;
  const float rest = fmaf(whole, -1.42860677e-06f, fmaf(whole, -0.693145752f, x));
  float series = fmaf(rest, 0.00139296777f, 0.0083824126f), power;
  series = fmaf(rest, series, 0.0416678302f);
  series = fmaf(rest, series, 0.166663975f);
  series = fmaf(rest, series, 0.49999994f);
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(whole));
  const float below = alpha * fmaf(fmaf(rest * series, rest, rest), power, power - 1.0f);
  return v >= 0.0f ? v : below;  // and -0.0 is as it was
}

//@ narrow
// What T keeps of a whole number, as wide as others are.
template <typename T>
__device__ __forceinline__ long long narrow_of(long long v) {
  return static_cast<T>(v);
}

//@ quotient
// v / by where many are divided by the same: the compiler finds the inverse once, and a step corrects each quotient.
// The last bit is that of a division, but for v below 2^-100; and so are infinities and NaN.
__device__ __forceinline__ float quotient_of(float v, float by) {
  const float scale = fabsf(by) < 0x1p-100f ? 0x1p64f : 1.0f;  // so that the inverse is a number
  const float divisor = by * scale, inverse = 1.0f / divisor, scaled = v * scale, near = scaled * inverse;
  const float quotient = fmaf(fmaf(-near, divisor, scaled), inverse, near);
  return quotient == quotient ? quotient : near;
}

//@ remainder
// What is left of a / b, with the sign of b.
__device__ __forceinline__ float remainder_of(float a, float b) {
  const float left = fmodf(a, b);
  return left != 0.0f && (left < 0.0f) != (b < 0.0f) ? left + b : left;
}

//@ floor_div
// a / b rounded down, of the quotient as it is: that of 1 and 0.1f rounds to 10, and is below it.
__device__ __forceinline__ float floor_div_of(float a, float b) {
  if (b == 0.0f) return a / b;
  const float left = fmodf(a, b);
  const float whole = (a - left) / b - (left != 0.0f && (left < 0.0f) != (b < 0.0f) ? 1.0f : 0.0f);
  if (whole == 0.0f) return copysignf(0.0f, a / b);
  const float down = floorf(whole);
  return whole - down > 0.5f ? down + 1.0f : down;
}

//@ quick_exp
__device__ __forceinline__ float exp_of(float v) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v * 1.44269504f));
  return power;
}

//@ quick_gelu
// v (1 + erf(v / sqrt 2)) / 2. For a 16-bit result erff is needlessly exact, and dear enough to cost more than the
// memory traffic. With q the half of erfc(|v| / sqrt 2), this is v - v q for positive v and v q for negative v; q is
// exp(-v^2 / 2) times a polynomial in t = 1 / (1 + p |v|): Abramowitz and Stegun 7.1.26, good to 1e-7.
__device__ __forceinline__ float gelu_of(float v) {
  float t, power;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(fmaf(fabsf(v), 0.23164190f, 1.0f)));
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v * v * -0.72134752f));
  float q = fmaf(t, 0.53070271f, -0.72657601f);
  q = fmaf(t, q, 0.71070687f);
  q = fmaf(t, q, -0.14224836f);
  q = fmaf(t, q, 0.12741479f);
  q *= t * power;
  return v > 1e18f ? v : fmaf(-fabsf(v), q, fmaxf(v, 0.0f));
}

//@ steady_gelu
// v (1 + erf(v / sqrt 2)) / 2. With q the half of erfc(|v| / sqrt 2), this is v - v q for positive v and v q for
// negative v; q is exp(-v^2 / 2) times a polynomial in t = 1 / (1 + p |v|), good to 1e-8. No branch: erff has one.
__device__ __forceinline__ float gelu_of(float v) {
  float t, power;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(fmaf(fabsf(v), 0.28f, 1.0f)));
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v * v * -0.72134752f));
  float q = fmaf(t, -0.10580819f, 0.38987389f);
  q = fmaf(t, q, -0.23699346f);
  q = fmaf(t, q, 0.2689103f);
  q = fmaf(t, q, 0.067496642f);
  q = fmaf(t, q, 0.11652081f);
  q *= t * power;
  return v > 1e18f ? v : fmaf(-fabsf(v), q, fmaxf(v, 0.0f));
}

//# Pieces of kernels, as text: loads and vectors, how two numbers are combined, and how threads put theirs together.
//@ read_once
extern "C" __device__ void* __nv_associate_access_property(const void*, unsigned long long);

// Says of lines that they are to stay in the L2 cache longest.
__device__ __forceinline__ unsigned long long to_stay() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Memory that is read once. On Hopper the lines of large tensors are said to stay: what was written makes room for them
// then, and reading and writing take 1.5 to 4 % less time.
template <typename T>
__device__ __forceinline__ const T* read_once(const T* from) {
  if constexpr (ONCE) return static_cast<const T*>(__nv_associate_access_property(from, to_stay()));
  return from;
}

//@ vector
// Elements that move together.
template <typename T>
struct alignas(WIDTH * sizeof(T)) Vector {
  T at[WIDTH];
};

//@ load_past
// A vector that is read once: its line is the first to leave the L2 cache, not what other kernels wrote there.
template <typename V>
__device__ __forceinline__ V load_past(const V* from) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(V) == 16) {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    uint4 words;
    asm("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
        : "l"(from), "l"(policy));
    return *reinterpret_cast<const V*>(&words);
  }
#endif
  return *from;
}

//@ repack
// Has the compiler forget what it has unpacked of a vector of small elements: the vector stays as it was loaded, and is
// unpacked again by every sweep. Elements in registers of their own take twice as many, and many spill.
template <typename T>
__device__ __forceinline__ void repack(Vector<T>& vector) {
  if constexpr (sizeof(vector) >= 4 && VECTORS >= 8) {
    auto* words = reinterpret_cast<unsigned*>(&vector);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(vector) / 4); ++i) asm("" : "+r"(words[i]));
  }
}

//@ candidate
struct Candidate {
  float value;
  int index;

  // A thread meets its elements by rising index, so only a better one replaces; a NaN that is already best stays.
  template <typename Better>
  __device__ __forceinline__ void meet(float met, int place) {
    if (Better::is_better(met, value) && value == value) {
      value = met;
      index = place;
    }
  }
};

//@ shuffle
template <typename T>
__device__ __forceinline__ T from_lane(T value, int offset) {
  return __shfl_xor_sync(~0u, value, offset);
}

//@ shuffle_candidate
__device__ __forceinline__ Candidate from_lane(Candidate one, int offset) {
  return {__shfl_xor_sync(~0u, one.value, offset), __shfl_xor_sync(~0u, one.index, offset)};
}

//@ block_reduce
// The values of all threads of the block combined, the same in every thread: shuffles within each warp, then one
// exchange through shared memory. `partial` has an element for every warp and no other use, so one barrier is enough.
template <typename T, typename Combine>
__device__ __forceinline__ T block_reduce(T value, T* partial, Combine combine) {
  unrolled for (int offset = 16; offset > 0; offset /= 2) value = combine(value, from_lane(value, offset));
  if constexpr (WARPS == 1) return value;
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = partial[0];
  unrolled for (int warp = 1; warp < WARPS; ++warp) value = combine(value, partial[warp]);
  return value;
}

//@ lanes_reduce
// The values of the LANES neighbouring lanes that share a row combined, the same in each: no shared memory, no barrier.
template <typename T, typename Combine>
__device__ __forceinline__ T lanes_reduce(T value, Combine combine) {
  unrolled for (int offset = LANES / 2; offset > 0; offset /= 2) value = combine(value, from_lane(value, offset));
  return value;
}

//@ for_each_vector
// Calls `visit(k, place)` for every vector of the row that this thread owns. k is a constant in each unrolled step, so
// arrays indexed by it stay in registers; neighbouring threads own neighbouring vectors, so their loads coalesce.
template <typename Visit>
__device__ __forceinline__ void for_each_vector(int thread, int vectors, Visit visit) {
  unrolled for (int k = 0; k < VECTORS; ++k) {
    const int place = k * THREADS_PER_ROW + thread;
    if (FULL || place < vectors) visit(k, place);
  }
}

// What every kernel of the loops' templates does with single elements: memory, PyTorch's functions, combinations.
#pragma once
#include <tilewright/reduce.cuh>
#include <tilewright/vector_access.cuh>

namespace tw {

// An element as it is computed with: floats as f32, f64 as it is, whole numbers with 64 bits.
__device__ __forceinline__ float load(const float* from) { return *from; }
__device__ __forceinline__ double load(const double* from) { return *from; }
__device__ __forceinline__ bool load(const bool* from) { return *from; }
__device__ __forceinline__ float load(const __half* from) { return __half2float(*from); }
__device__ __forceinline__ float load(const __nv_bfloat16* from) { return __bfloat162float(*from); }
template <typename T> __device__ __forceinline__ long long load(const T* from) { return static_cast<long long>(*from); }

// Rounds to nearest, and keeps the low bits of whole numbers.
template <typename T> __device__ __forceinline__ void store(T* to, float value) { *to = from_float<T>(value); }
template <typename T> __device__ __forceinline__ void store(T* to, double value) { *to = static_cast<T>(value); }
template <typename T> __device__ __forceinline__ void store(T* to, long long value) { *to = static_cast<T>(value); }
template <typename T> __device__ __forceinline__ void store(T* to, bool value) { *to = value; }

// Adds to an element that other threads add to.
__device__ __forceinline__ void add_atomic(float* to, float value) { atomicAdd(to, value); }
__device__ __forceinline__ void add_atomic(double* to, double value) { atomicAdd(to, value); }
__device__ __forceinline__ void add_atomic(int* to, long long value) { atomicAdd(to, static_cast<int>(value)); }
__device__ __forceinline__ void add_atomic(long long* to, long long value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}

// Combines with an element that other threads combine with.
template <typename T, typename V, typename Op> __device__ __forceinline__ void combine_atomic(T* to, V value, Op op) {
  if constexpr (sizeof(T) == 4) {
    unsigned* word = reinterpret_cast<unsigned*>(to);
    unsigned seen = *word, before;
    do {
      T old, made;
      memcpy(&old, &seen, 4);
      store(&made, op(load(&old), value));
      unsigned bits;
      memcpy(&bits, &made, 4);
      before = seen;
      seen = atomicCAS(word, before, bits);
    } while (seen != before);
  } else if constexpr (sizeof(T) == 8) {
    unsigned long long* word = reinterpret_cast<unsigned long long*>(to);
    unsigned long long seen = *word, before;
    do {
      T old, made;
      memcpy(&old, &seen, 8);
      store(&made, op(load(&old), value));
      unsigned long long bits;
      memcpy(&bits, &made, 8);
      before = seen;
      seen = atomicCAS(word, before, bits);
    } while (seen != before);
  } else {
    const unsigned long long address = reinterpret_cast<unsigned long long>(to);
    unsigned* word = reinterpret_cast<unsigned*>(address & ~3ull);
    const unsigned shift = 8 * static_cast<unsigned>(address & 3ull);
    const unsigned mask = (sizeof(T) == 2 ? 0xffffu : 0xffu) << shift;
    unsigned seen = *word, before;
    do {
      const unsigned own = (seen & mask) >> shift;
      T old, made;
      memcpy(&old, &own, sizeof(T));
      store(&made, op(load(&old), value));
      unsigned bits = 0;
      memcpy(&bits, &made, sizeof(T));
      before = seen;
      seen = atomicCAS(word, before, (before & ~mask) | bits << shift);
    } while (seen != before);
  }
}

// The greater and the lesser of two; NaN where one is.
template <typename T> __device__ __forceinline__ T maximum(T a, T b) { return Max{}(a, b); }
template <typename T> __device__ __forceinline__ T minimum(T a, T b) { return Min{}(a, b); }
template <typename T> __device__ __forceinline__ T relu(T v) { return v < T(0) ? T(0) : v; }
template <typename T> __device__ __forceinline__ T magnitude(T v) { return v < T(0) ? -v : v == T(0) ? T(0) : v; }
template <typename T> __device__ __forceinline__ T sign(T v) { return static_cast<T>((v > T(0)) - (v < T(0))); }

// Whole numbers as C++ has them out of floats; NaN and what is too large as a GPU does it.
template <typename T> __device__ __forceinline__ long long to_whole(T v) { return static_cast<long long>(v); }

// A place counted from the end where it is below zero.
template <typename T> __device__ __forceinline__ T wrapped(long long place, T size) {
  return static_cast<T>(place < 0 ? place + size : place);
}

// Divisions: rounded down, rounded towards zero, and what they leave.
__device__ __forceinline__ long long floor_div(long long a, long long b) {
  return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}
template <typename T> __device__ __forceinline__ T floor_div(T a, T b) {
  if (b == T(0)) return a / b;
  const T left = fmod(a, b);
  const T whole = (a - left) / b - (left != T(0) && (left < T(0)) != (b < T(0)) ? T(1) : T(0));
  if (whole == T(0)) return copysign(T(0), a / b);
  const T down = floor(whole);
  return whole - down > T(0.5) ? down + T(1) : down;
}
__device__ __forceinline__ long long trunc_div(long long a, long long b) { return a / b; }
template <typename T> __device__ __forceinline__ T trunc_div(T a, T b) { return trunc(a / b); }
__device__ __forceinline__ long long floored_remainder(long long a, long long b) {
  return a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0);
}
template <typename T> __device__ __forceinline__ T floored_remainder(T a, T b) {
  const T left = fmod(a, b);
  return left != T(0) && (left < T(0)) != (b < T(0)) ? left + b : left;
}
__device__ __forceinline__ long long truncated_remainder(long long a, long long b) { return a % b; }
template <typename T> __device__ __forceinline__ T truncated_remainder(T a, T b) { return fmod(a, b); }
__device__ __forceinline__ long long shift_left(long long a, long long b) { return b < 0 || b > 63 ? 0 : a << b; }
__device__ __forceinline__ long long shift_right(long long a, long long b) { return a >> (b < 0 || b > 63 ? 63 : b); }

// Powers; of whole numbers by repeated squares.
template <typename T> __device__ __forceinline__ T power(T base, T exponent) { return pow(base, exponent); }
__device__ __forceinline__ long long power(long long base, long long exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  long long made = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2) made *= base;
    base *= base;
  }
  return made;
}

// Activations.
template <typename T> __device__ __forceinline__ T sigmoid(T v) { return T(1) / (T(1) + exp(-v)); }
template <typename T> __device__ __forceinline__ T silu(T v) { return v / (T(1) + exp(-v)); }
template <typename T> __device__ __forceinline__ T gelu(T v) {
  return T(0.5) * v * (T(1) + erf(v * T(0.70710678118654752)));
}
template <typename T> __device__ __forceinline__ T gelu_tanh(T v) {
  return T(0.5) * v * (T(1) + tanh(T(0.79788456080286536) * (v + T(0.044715) * v * v * v)));
}
template <typename T> __device__ __forceinline__ T elu(T v, T alpha, T scale, T input_scale) {
  return v > T(0) ? v * scale : alpha * scale * expm1(v * input_scale);
}
template <typename T> __device__ __forceinline__ T celu(T v, T alpha) {
  return v > T(0) ? v : alpha * expm1(v / alpha);
}
template <typename T> __device__ __forceinline__ T softplus(T v, T beta, T threshold) {
  return v * beta > threshold ? v : log1p(exp(v * beta)) / beta;
}
template <typename T> __device__ __forceinline__ T leaky_relu(T v, T slope) { return v > T(0) ? v : v * slope; }
template <typename T> __device__ __forceinline__ T mish(T v) { return v * tanh(softplus(v, T(1), T(20))); }
template <typename T> __device__ __forceinline__ T log_sigmoid(T v) {
  return (v < T(0) ? v : T(0)) - log1p(exp(-fabs(v)));
}
template <typename T> __device__ __forceinline__ T hardsigmoid(T v) {
  return minimum(maximum(v + T(3), T(0)), T(6)) / T(6);
}
template <typename T> __device__ __forceinline__ T hardswish(T v) { return v * hardsigmoid(v); }

// For results of 16 bits: a few units off in the last places of an f32, which rounding hides.
__device__ __forceinline__ float exp2_approx(float v) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v));
  return power;
}
__device__ __forceinline__ float reciprocal_approx(float v) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(v));
  return inverse;
}
__device__ __forceinline__ float quick_exp(float v) { return exp2_approx(v * 1.44269504f); }
__device__ __forceinline__ float quick_sigmoid(float v) { return reciprocal_approx(1.0f + exp2_approx(v * -1.44269504f)); }
__device__ __forceinline__ float quick_silu(float v) { return v * quick_sigmoid(v); }
__device__ __forceinline__ float quick_gelu_tanh(float v) {
  return v * quick_sigmoid(1.5957691216f * (v + 0.044715f * v * v * v));
}
// 1 - 2 / (1 + exp(2 v)); near 0, where that leaves few digits, a series.
__device__ __forceinline__ float quick_tanh(float v) {
  const float z = v * v;
  float series = fmaf(z, 0.021869488f, -0.053968254f);
  series = fmaf(z, series, 0.13333333f);
  series = fmaf(z, series, -0.33333333f);
  const float far = fmaf(-2.0f, reciprocal_approx(1.0f + exp2_approx(v * 2.88539008f)), 1.0f);
  return fabsf(v) < 0.3f ? fmaf(v * z, series, v) : far;
}
// v (1 + erf(v / sqrt 2)) / 2. With q the half of erfc(|v| / sqrt 2), this is v - v q for positive v and v q for
// negative v; q is exp(-v^2 / 2) times a polynomial in t = 1 / (1 + p |v|): Abramowitz and Stegun 7.1.26, to 1e-7.
__device__ __forceinline__ float quick_gelu(float v) {
  const float t = reciprocal_approx(fmaf(fabsf(v), 0.23164190f, 1.0f));
  float q = fmaf(t, 0.53070271f, -0.72657601f);
  q = fmaf(t, q, 0.71070687f);
  q = fmaf(t, q, -0.14224836f);
  q = fmaf(t, q, 0.12741479f);
  q *= t * exp2_approx(v * v * -0.72134752f);
  return v > 1e18f ? v : fmaf(-fabsf(v), q, fmaxf(v, 0.0f));
}

// v / by where many are divided by the same: the compiler finds the inverse once, and a step corrects each quotient.
// The last bit is that of a division, but for v below 2^-100; and so are infinities and NaN.
__device__ __forceinline__ float quotient(float v, float by) {
  const float scale = fabsf(by) < 0x1p-100f ? 0x1p64f : 1.0f;  // so that the inverse is a number
  const float divisor = by * scale, inverse = 1.0f / divisor, scaled = v * scale, near = scaled * inverse;
  const float made = fmaf(fmaf(-near, divisor, scaled), inverse, near);
  return made == made ? made : near;
}

// The derivative of the logarithm of the gamma function: by recurrence up to 6, then by its asymptotic series.
template <typename T> __device__ __forceinline__ T digamma(T v) {
  if (v == T(0)) return copysign(T(INFINITY), -v);
  T turned = T(0);
  if (v < T(0)) {
    if (v == floor(v)) return T(NAN);
    turned = -T(3.14159265358979323846) / tan(T(3.14159265358979323846) * (v - rint(v)));
    v = T(1) - v;
  }
  T sum = T(0);
  for (; v < T(10); v += T(1)) sum -= T(1) / v;
  const T z = T(1) / (v * v);
  const T series = z * (T(1) / 12 - z * (T(1) / 120 - z * (T(1) / 252 - z * (T(1) / 240 - z * (T(1) / 132)))));
  return turned + sum + log(v) - T(0.5) / v - series;
}

// A modified Bessel function of this order without its growth; of large numbers by its asymptotic series.
template <int ORDER, typename T> __device__ __forceinline__ T scaled(T value, T v) {
  const T x = fabs(v), m = T(4 * ORDER * ORDER), z = T(1) / (T(8) * x);
  if (x < T(sizeof(T) == 4 ? 60 : 600)) return value * exp(-x);
  const T third = T(1) - (m - T(25)) * z / 3 * (T(1) - (m - T(49)) * z / 4), second = T(1) - (m - T(9)) * z / 2 * third;
  const T size = (T(1) - (m - T(1)) * z * second) / sqrt(T(6.28318530717958648) * x);
  return ORDER % 2 && v < T(0) ? -size : size;
}
template <typename T> __device__ __forceinline__ bool is_signed(T v) { return signbit(v) != 0; }
__device__ __forceinline__ long long gcd(long long a, long long b) {
  while (b != 0) {
    const long long left = a % b;
    a = b, b = left;
  }
  return a < 0 ? -a : a;
}

// What scans and reductions do with two values, beside sums and extremes.
struct Product {
  template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return a * b; }
};
struct LogSumExp {
  template <typename T> __device__ __forceinline__ T operator()(T a, T b) const {
    const T most = maximum(a, b), least = minimum(a, b);
    return most != least || fabs(most) < T(INFINITY) ? most + log1p(exp(least - most)) : most;
  }
};

// A running extreme and where it stood: the last of equals, as PyTorch's cummax and cummin have it.
struct LatestMax {
  template <typename T> __device__ __forceinline__ Indexed<T> operator()(Indexed<T> a, Indexed<T> b) const {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    return b_nan || (!a_nan && b.value >= a.value) ? b : a;
  }
};
struct LatestMin {
  template <typename T> __device__ __forceinline__ Indexed<T> operator()(Indexed<T> a, Indexed<T> b) const {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    return b_nan || (!a_nan && b.value <= a.value) ? b : a;
  }
};

// Whether a comes before b in order; NaN counts as the greatest.
template <bool DESCENDING, typename T> __device__ __forceinline__ bool sorts_before(T a, T b) {
  const bool a_nan = a != a, b_nan = b != b;
  if (DESCENDING) return a_nan ? !b_nan : a > b;
  return b_nan ? !a_nan : a < b;
}

// The type of an index: 32 bits where everything that is counted fits.
template <int WIDE> struct IndexOf { using type = int; };
template <> struct IndexOf<1> { using type = long long; };

}  // namespace tw

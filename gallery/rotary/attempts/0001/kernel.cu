//! op      rotary(x, cos, sin) -> y
//! out     y: x.dtype[x.shape]
//! let     pairs = x.shape[3] / 2, planes = x.shape[0] * x.shape[1], height = x.shape[2]
//! need    x.dtype == bf16 and cos.dtype == f32 and sin.dtype == f32 and x.ndim == 4 and x.shape[3] % 2 == 0
//! need    cos.shape == [height, pairs] and sin.shape == [height, pairs]
//! tune    WIDEST = 4 | 8
//! tune    PLANES = 8 | 4 | 2 | 16
//! tune    THREADS = 128 | 256 | 512
//! need    WIDEST * PLANES <= 64
//! const   VEC = WIDEST if pairs % WIDEST == 0 else (4 if pairs % 4 == 0 else (2 if pairs % 2 == 0 else 1))
//! const   HALF = pairs, WHOLE = planes % PLANES == 0
//! let     items = height * pairs / VEC, tiles = ceil_div(items, THREADS)
//! launch  rotary<VEC><<<tiles * ceil_div(planes, PLANES), THREADS>>>(x, cos, sin, y, items, tiles, planes)

#include <cuda_bf16.h>

template <int N> struct Packed;                       // N bf16 values as one access
template <> struct Packed<8> { using Type = uint4; };
template <> struct Packed<4> { using Type = uint2; };
template <> struct Packed<2> { using Type = unsigned int; };
template <> struct Packed<1> { using Type = unsigned short; };

template <int N>
__device__ __forceinline__ void load_floats(const float* __restrict__ from, float (&to)[N]) {
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 q = *reinterpret_cast<const float4*>(from + i);
      to[i] = q.x;
      to[i + 1] = q.y;
      to[i + 2] = q.z;
      to[i + 3] = q.w;
    }
  } else if constexpr (N == 2) {
    const float2 q = *reinterpret_cast<const float2*>(from);
    to[0] = q.x;
    to[1] = q.y;
  } else {
    to[0] = *from;
  }
}

template <int N>
__device__ __forceinline__ void unpack(const typename Packed<N>::Type& bits, float (&to)[N]) {
  if constexpr (N == 1) {
    to[0] = __uint_as_float((unsigned int)bits << 16);
  } else {
    const unsigned int* words = reinterpret_cast<const unsigned int*>(&bits);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      to[2 * i] = __uint_as_float(words[i] << 16);
      to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
}

template <int N>
__device__ __forceinline__ typename Packed<N>::Type pack(const float (&from)[N]) {
  typename Packed<N>::Type bits;
  if constexpr (N == 1) {
    bits = __bfloat16_as_ushort(__float2bfloat16_rn(from[0]));
  } else {
    unsigned int* words = reinterpret_cast<unsigned int*>(&bits);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
      words[i] = *reinterpret_cast<const unsigned int*>(&two);
    }
  }
  return bits;
}

// Registers that hold loaded x, and from them the threads an SM should hold, so that the loads stay in flight.
constexpr int HELD = (VEC > 2 ? VEC : 2) * PLANES;
constexpr int RESIDENT = HELD <= 16 ? 1280 : HELD <= 32 ? 1024 : 512;
constexpr int MIN_BLOCKS = RESIDENT / THREADS > 0 ? RESIDENT / THREADS : 1;
constexpr int COLS = HALF / VEC > 0 ? HALF / VEC : 1;

template <int N>
__global__ void __launch_bounds__(THREADS, MIN_BLOCKS) rotary(const __nv_bfloat16* __restrict__ x,
    const float* __restrict__ cos, const float* __restrict__ sin, __nv_bfloat16* __restrict__ y,
    long long items, int tiles, long long planes) {
  using Bits = typename Packed<N>::Type;
  const unsigned int group = blockIdx.x / (unsigned int)tiles;
  const unsigned int tile = blockIdx.x - group * (unsigned int)tiles;
  const long long item = (long long)tile * THREADS + threadIdx.x;
  if (item >= items) return;

  const long long plane = (long long)group * PLANES;
  const long long left = planes - plane;                 // at least 1
  const long long span = items * (2 * N);                // elements of a plane
  const long long row = item / COLS;
  const long long start = plane * span + row * HALF + item * N;

  float c[N], s[N];
  Bits first[PLANES], second[PLANES];
#pragma unroll
  for (int p = 0; p < PLANES; ++p) {
    // Beyond the last plane the last one is read again, so that loads need no branch; stores are predicated.
    const long long step = (WHOLE || p < left) ? p : left - 1;
    const __nv_bfloat16* from = x + start + step * span;
    first[p] = *reinterpret_cast<const Bits*>(from);
    second[p] = *reinterpret_cast<const Bits*>(from + HALF);
  }
  load_floats<N>(cos + item * N, c);
  load_floats<N>(sin + item * N, s);

#pragma unroll
  for (int p = 0; p < PLANES; ++p) {
    float a[N], b[N], u[N], v[N];
    unpack<N>(first[p], a);
    unpack<N>(second[p], b);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      u[i] = a[i] * c[i] - b[i] * s[i];
      v[i] = b[i] * c[i] + a[i] * s[i];
    }
    if (WHOLE || p < left) {
      __nv_bfloat16* to = y + start + p * span;
      *reinterpret_cast<Bits*>(to) = pack<N>(u);
      *reinterpret_cast<Bits*>(to + HALF) = pack<N>(v);
    }
  }
}

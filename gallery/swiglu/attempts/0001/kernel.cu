//! op      swiglu(gate_up) -> y
//! out     y: bf16[gate_up.shape[0], gate_up.shape[1] / 2]
//! need    gate_up.ndim == 2 and gate_up.dtype == bf16 and gate_up.shape[1] % 2 == 0
//! let     rows = gate_up.shape[0], half = gate_up.shape[1] / 2
//! let     width = 8 if half % 8 == 0 else (4 if half % 4 == 0 else (2 if half % 2 == 0 else 1))
//! let     vectors = rows * (half / width)
//! tune    THREADS = 128 | 256
//! tune    VECTORS = 2 | 1 | 4
//! tune    RESIDENT = 1536 | 2048 | 1024
//! const   WIDTH = width, ROW = max(1, half / width), WIDE = vectors > 2147000000
//! launch  swiglu<WIDTH, WIDE><<<ceil_div(vectors, THREADS * VECTORS), THREADS>>>(gate_up, y, vectors)

#include <cuda_bf16.h>

// One access of W elements; pairs of bf16 are kept as 32-bit words.
template <int W> struct alignas(2 * W) Pack { unsigned word[W / 2]; };
template <> struct alignas(2) Pack<1> { unsigned short word[1]; };

template <bool B> struct IndexOf { using type = unsigned; };
template <> struct IndexOf<true> { using type = unsigned long long; };

// exp(-|g|) never overflows, and the denominator lies in [1, 2], so very negative gates stay exact.
__device__ __forceinline__ float gated(float g, float u) {
  float e, r;
  asm("ex2.approx.f32 %0, %1;" : "=f"(e) : "f"(fabsf(g) * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
  const float top = g >= 0.0f ? g : g * e;
  return top * r * u;
}

template <int W>
__device__ __forceinline__ Pack<W> gated_pack(const Pack<W>& g, const Pack<W>& u) {
  Pack<W> out;
  if constexpr (W == 1) {
    const float v = gated(__uint_as_float((unsigned)g.word[0] << 16), __uint_as_float((unsigned)u.word[0] << 16));
    out.word[0] = __bfloat16_as_ushort(__float2bfloat16_rn(v));
  } else {
#pragma unroll
    for (int i = 0; i < W / 2; ++i) {
      const float low = gated(__uint_as_float(g.word[i] << 16), __uint_as_float(u.word[i] << 16));
      const float high = gated(__uint_as_float(g.word[i] & 0xffff0000u), __uint_as_float(u.word[i] & 0xffff0000u));
      const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
      out.word[i] = *reinterpret_cast<const unsigned*>(&both);
    }
  }
  return out;
}

template <int W, bool B>
__global__ void __launch_bounds__(THREADS, RESIDENT / THREADS) swiglu(const __nv_bfloat16* __restrict__ gate_up,
    __nv_bfloat16* __restrict__ y, long long vectors) {
  using Index = typename IndexOf<B>::type;
  const Pack<W>* __restrict__ in = reinterpret_cast<const Pack<W>*>(gate_up);
  Pack<W>* __restrict__ result = reinterpret_cast<Pack<W>*>(y);
  const Index n = (Index)vectors;
  const Index first = (Index)blockIdx.x * (Index)(THREADS * VECTORS) + threadIdx.x;

  Pack<W> gate[VECTORS], up[VECTORS];
#pragma unroll
  for (int j = 0; j < VECTORS; ++j) {
    const Index v = first + (Index)(j * THREADS);
    const Index at = v < n ? v : n - 1;   // clamped, so that the loads need no branch
    const Pack<W>* p = in + (at + at / (Index)ROW * (Index)ROW);
    gate[j] = p[0];
    up[j] = p[ROW];
  }
#pragma unroll
  for (int j = 0; j < VECTORS; ++j) {
    const Index v = first + (Index)(j * THREADS);
    const Pack<W> out = gated_pack<W>(gate[j], up[j]);
    if (v < n) result[v] = out;
  }
}

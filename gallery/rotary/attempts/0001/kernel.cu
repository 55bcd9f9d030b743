//! op      rotary(x, cos, sin) -> y
//! out     y: bf16[x.shape[0], x.shape[1], x.shape[2], 128]
//! let     planes = x.shape[0] * x.shape[1], height = x.shape[2], items = height * 8
//! need    x.dtype == bf16 and cos.dtype == f32 and sin.dtype == f32 and x.ndim == 4 and x.shape[3] == 128
//! need    cos.shape == [height, 64] and sin.shape == [height, 64]
//! tune    THREADS = 128 | 256
//! tune    HEADS = 2 | 1 | 4 | 8
//! launch  rotary<<<dim3(ceil_div(items, THREADS), min(ceil_div(planes, HEADS), 65535)), THREADS>>>(x, cos, sin, y, items, planes)
#include <cuda_bf16.h>

__device__ __forceinline__ float low_of(uint32_t two) { return __uint_as_float(two << 16); }
__device__ __forceinline__ float high_of(uint32_t two) { return __uint_as_float(two & 0xffff0000u); }
__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&two);
}
__device__ __forceinline__ void turn(uint32_t& first, uint32_t& second, float c0, float c1, float s0, float s1) {
  const float a0 = low_of(first), a1 = high_of(first), b0 = low_of(second), b1 = high_of(second);
  first = pack(a0 * c0 - b0 * s0, a1 * c1 - b1 * s1);
  second = pack(b0 * c0 + a0 * s0, b1 * c1 + a1 * s1);
}

__global__ void __launch_bounds__(THREADS) rotary(const uint4* __restrict__ x, const float4* __restrict__ cosines,
    const float4* __restrict__ sines, uint4* __restrict__ y, long long items, long long planes) {
  const long long item = blockIdx.x * (long long)THREADS + threadIdx.x;   // 8 of them in a row
  if (item >= items) return;
  const long long row = item >> 3;
  const int part = (int)(item & 7);
  const long long place = row * 16 + part, table = row * 16 + part * 2, plane_size = items * 2;
  for (long long plane = blockIdx.y * (long long)HEADS; plane < planes; plane += gridDim.y * (long long)HEADS) {
    const uint4* from = x + plane * plane_size + place;
    uint4* to = y + plane * plane_size + place;
    uint4 first[HEADS], second[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; ++h)
      if (plane + h < planes) {
        first[h] = from[h * plane_size];
        second[h] = from[h * plane_size + 8];
      }
    const float4 c0 = cosines[table], c1 = cosines[table + 1], s0 = sines[table], s1 = sines[table + 1];
#pragma unroll
    for (int h = 0; h < HEADS; ++h)
      if (plane + h < planes) {
        uint4 a = first[h], b = second[h];
        turn(a.x, b.x, c0.x, c0.y, s0.x, s0.y);
        turn(a.y, b.y, c0.z, c0.w, s0.z, s0.w);
        turn(a.z, b.z, c1.x, c1.y, s1.x, s1.y);
        turn(a.w, b.w, c1.z, c1.w, s1.z, s1.w);
        to[h * plane_size] = a;
        to[h * plane_size + 8] = b;
      }
  }
}

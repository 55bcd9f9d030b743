// Packed 4-bit numbers, 8 in each int, as bf16; and pairs of f32 as 16-bit elements.
//! op      widen(packed, x) -> y, halves, brains
//! need    device.cc >= 80 and packed.dtype == i32 and packed.ndim == 1 and x.dtype == f32 and x.shape == [2 * packed.shape[0]]
//! out     y: bf16[packed.shape[0], 8]
//! out     halves: f16[x.shape]
//! out     brains: bf16[x.shape]
//! launch  widen<<<ceil_div(packed.numel, 64), 64>>>(packed, x, y, halves, brains, packed.numel)
#include <tilewright/vector_access.cuh>

__global__ void widen(const unsigned* packed, const float2* x, __nv_bfloat16* y, __half* halves, __nv_bfloat16* brains, int n) {
  const int i = blockIdx.x * 64 + threadIdx.x;
  if (i >= n) return;
  uint32_t pairs[4];
  tw::unpack_int4<8>(packed[i], pairs);
  reinterpret_cast<uint4*>(y)[i] = {pairs[0], pairs[1], pairs[2], pairs[3]};
  reinterpret_cast<uint32_t*>(halves)[i] = tw::pack_f16(x[i].x, x[i].y);
  reinterpret_cast<uint32_t*>(brains)[i] = tw::pack_bf16(x[i].x, x[i].y);
}

// Conversions to float8 as torch makes them.
#pragma once
#include <tilewright/vector_access.cuh>

namespace tw {

// The `from_float` of float8: what is too large becomes NaN (e4m3) or infinity (e5m2), and is not cut to the largest.
// GPUs convert with that cut, which is undone: without it the conversion is a hundred instructions.
// cost: one conversion and three instructions on sm_89 and later
// arch: sm_80
template <> __device__ __forceinline__ __nv_fp8_e4m3 from_float<__nv_fp8_e4m3>(float value) {
  __nv_fp8_e4m3 element;
  element.__x = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
  if (fabsf(value) > 464.0f) element.__x |= 0x7f;
  return element;
}
template <> __device__ __forceinline__ __nv_fp8_e5m2 from_float<__nv_fp8_e5m2>(float value) {
  __nv_fp8_e5m2 element;
  element.__x = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2);
  if (fabsf(value) >= 61440.0f) element.__x = (element.__x & 0x80) | 0x7c;
  return element;
}

}  // namespace tw

// Conversions to float8 as torch makes them.
#pragma once
#include <tilewright/vector_access.cuh>

namespace tw {

// The `from_float` of float8: what is too large becomes NaN (e4m3) or infinity (e5m2), and is not cut to the largest.
// cost: one conversion
// arch: sm_80
template <> __device__ __forceinline__ __nv_fp8_e4m3 from_float<__nv_fp8_e4m3>(float value) {
  __nv_fp8_e4m3 element;
  element.__x = __nv_cvt_float_to_fp8(value, __NV_NOSAT, __NV_E4M3);
  return element;
}
template <> __device__ __forceinline__ __nv_fp8_e5m2 from_float<__nv_fp8_e5m2>(float value) {
  __nv_fp8_e5m2 element;
  element.__x = __nv_cvt_float_to_fp8(value, __NV_NOSAT, __NV_E5M2);
  return element;
}

}  // namespace tw

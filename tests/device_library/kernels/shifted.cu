// y = x[i - 5], by eights and one by one, zeros where x has none.
//! op      shifted(x) -> y, z
//! need    x.ndim == 1 and x.dtype == bf16 and x.shape[0] % 8 == 0
//! out     y: bf16[x.shape[0]]
//! out     z: bf16[x.shape[0]]
//! launch  shifted<<<1, 32>>>(x, y, z, x.numel)
#include <tilewright/tile_pipeline.cuh>

__global__ void shifted(const __nv_bfloat16* x, __nv_bfloat16* y, __nv_bfloat16* z, int n) {
  const int by = -5;
  for (int at = threadIdx.x * 8; at < n; at += 256) {
    const auto eight = tw::load_shifted<8>(x, at + by, n);
    for (int i = 0; i < 8; ++i) y[at + i] = eight.at[i], z[at + i] = tw::load_shifted<1>(x, at + i + by, n).at[0];
  }
}

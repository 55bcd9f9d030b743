//! op      product_as_integers(x, w) -> y
//! let     m = x.shape[0], k = x.shape[1], n = w.shape[0]
//! out     y: i32[m, n]
//! launch  run<<<dim3(ceil_div(n, 16), ceil_div(m, 16)), dim3(16, 16)>>>(x, w, y, m, n, k)
#include <cuda_bf16.h>
__global__ void run(const __nv_bfloat16* x, const __nv_bfloat16* w, int* y, int m, int n, int k) {
  int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
  if (row >= m || col >= n) return;
  float sum = 0.f;
  for (int i = 0; i < k; ++i) sum += float(x[(long long)row * k + i]) * float(w[(long long)col * k + i]);
  y[(long long)row * n + col] = __float2int_rn(sum * 10.f);
}

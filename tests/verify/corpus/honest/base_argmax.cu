//! op      argmax(x) -> y
//! let     cols = x.shape[1], rows = x.shape[0]
//! out     y: i64[rows]
//! launch  run<<<rows, 256>>>(x, y, cols)
// NaN is the largest, as in torch; of equal ones the first
__device__ __forceinline__ bool better(float v, int p, float top, int place) {
  bool same = v == top || (v != v && top != top);
  return same ? p < place : v > top || v != v;
}
__global__ void run(const float* x, long long* y, int cols) {
  __shared__ float tops[8];
  __shared__ int places[8];
  const float* in = x + (long long)blockIdx.x * cols;
  float top = -INFINITY; int place = 0x7fffffff;
  for (int i = threadIdx.x; i < cols; i += 256) { float v = float(in[i]); if (better(v, i, top, place)) { top = v; place = i; } }
  for (int o = 16; o; o >>= 1) {
    float v = __shfl_xor_sync(~0u, top, o); int p = __shfl_xor_sync(~0u, place, o);
    if (better(v, p, top, place)) { top = v; place = p; }
  }
  if (threadIdx.x % 32 == 0) { tops[threadIdx.x / 32] = top; places[threadIdx.x / 32] = place; }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int k = 1; k < 8; ++k) if (better(tops[k], places[k], top, place)) { top = tops[k]; place = places[k]; }
    y[blockIdx.x] = place;
  }
}

//! op      specrow(x) -> y
//! need    x.dtype == f32 and x.ndim == 2
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[rows]
//! launch  k<<<rows, 64>>>(x, y, cols)

// HONEST: one warp loads pieces of the row into a ring of two, the other adds them up (online); they meet at named barriers only:
// 1 + slot says "full", 3 + slot says "empty".
__global__ void k(const float* __restrict__ x, float* __restrict__ y, int cols) {
  __shared__ float ring[2][128];
  const float* in = x + (long long)blockIdx.x * cols;
  const int lane = threadIdx.x % 32, pieces = (cols + 127) / 128;
  if (threadIdx.x < 32) {
    for (int p = 0; p < pieces; ++p) {
      const int slot = p & 1;
      if (p >= 2) asm volatile("bar.sync %0, 64;" ::"r"(3 + slot) : "memory");
      for (int j = lane; j < 128; j += 32) ring[slot][j] = p * 128 + j < cols ? in[p * 128 + j] : -INFINITY;
      __threadfence_block();
      asm volatile("bar.arrive %0, 64;" ::"r"(1 + slot) : "memory");
    }
    return;
  }
  float top = -INFINITY, sum = 0.0f;
  for (int p = 0; p < pieces; ++p) {
    const int slot = p & 1;
    asm volatile("bar.sync %0, 64;" ::"r"(1 + slot) : "memory");
    float v[4], most = top;
    for (int j = 0; j < 4; ++j) {
      v[j] = ring[slot][j * 32 + lane];
      most = v[j] != v[j] || v[j] > most ? v[j] : most;
    }
    if (p + 2 < pieces) asm volatile("bar.arrive %0, 64;" ::"r"(3 + slot) : "memory");
    const float base = most == INFINITY || most == -INFINITY ? 0.0f : most;
    sum *= top == -INFINITY ? 0.0f : expf(top - base);
    for (int j = 0; j < 4; ++j) sum += expf(v[j] - base);
    top = most;
  }
  float most = top;
  for (int o = 16; o; o >>= 1) {
    const float u = __shfl_xor_sync(~0u, most, o);
    most = most != most || most > u ? most : u;
  }
  const float base = most == INFINITY || most == -INFINITY ? 0.0f : most;
  const float old = top == INFINITY || top == -INFINITY ? 0.0f : top;
  sum *= top == -INFINITY ? 0.0f : expf(old - base);
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  if (lane == 0) y[blockIdx.x] = logf(sum) + base;
}

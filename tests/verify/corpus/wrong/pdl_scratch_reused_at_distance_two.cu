//! op      normsum(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 2
//! let     rows = x.shape[0], cols = x.shape[1]
//! scratch part: f32[rows, 64]
//! scratch sums: f32[rows]
//! scratch unit: f32[rows]
//! launch  first<<<rows, 64>>>(x, part, sums, cols)
//! launch  ones<<<ceil_div(rows, 256), 256>>>(unit, rows) pdl
//! launch  last<<<rows, 64>>>(x, unit, part, sums, y, cols) pdl

// WRONG at every call (a race): `ones` never waits for `first`; `last` waits for `ones` only, then reads sums and writes over `part`,
// both of which blocks of `first` may still be writing and reading.
__global__ void first(const float* __restrict__ x, float* part, float* sums, int cols) {
  asm volatile("griddepcontrol.launch_dependents;");
  float s = 0.0f;
  for (int c = threadIdx.x; c < cols; c += 64) s += fabsf(x[(long long)blockIdx.x * cols + c]);
  part[blockIdx.x * 64 + threadIdx.x] = s;
  __syncthreads();
  if (threadIdx.x == 0) {
    s = 0.0f;
    for (int t = 0; t < 64; ++t) s += part[blockIdx.x * 64 + t];
    sums[blockIdx.x] = s;
  }
}
__global__ void ones(float* unit, int rows) {
  asm volatile("griddepcontrol.launch_dependents;");
  const int r = blockIdx.x * 256 + threadIdx.x;
  if (r < rows) unit[r] = 1.0f;
}
__global__ void last(const float* __restrict__ x, const float* unit, float* part, const float* sums, float* y, int cols) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  part[blockIdx.x * 64 + threadIdx.x] = 1.0f / (unit[blockIdx.x] + sums[blockIdx.x]);
  __syncthreads();
  for (int c = threadIdx.x; c < cols; c += 64) y[(long long)blockIdx.x * cols + c] = x[(long long)blockIdx.x * cols + c] * part[blockIdx.x * 64 + c % 64];
}

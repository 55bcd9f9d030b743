//! op      twosides(x, w) -> s, y
//! need    x.dtype == f32 and w.dtype == f32 and x.ndim == 2 and w.ndim == 1
//! let     rows = x.shape[0], cols = x.shape[1], parts = ceil_div(cols, 512)
//! out     s: f32[rows]
//! out     y: f32[x.shape]
//! scratch xw: f32[rows, parts]
//! scratch half: f32[rows]
//! launch  products<<<dim3(parts, rows), 128>>>(x, w, xw, cols)
//! launch  join<<<ceil_div(rows, 128), 128>>>(xw, half, rows, parts) pdl
//! launch  gate<<<dim3(parts, rows), 128>>>(x, y, cols) pdl
//! launch  finish<<<ceil_div(rows, 128), 128>>>(half, s, rows) pdl

// WRONG at every call (a race): `gate` needs nothing and does not wait, so it may end before `join` has; `finish` waits for `gate`
// only, and reads `half`, which `join` may not have written.
__global__ void products(const float* __restrict__ x, const float* __restrict__ w, float* xw, int cols) {
  __shared__ float of_warps[4];
  asm volatile("griddepcontrol.launch_dependents;");
  float s = 0.0f;
  for (int c = blockIdx.x * 512 + threadIdx.x; c < min(cols, (int)blockIdx.x * 512 + 512); c += 128) s = fmaf(x[(long long)blockIdx.y * cols + c], w[c], s);
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x == 0) xw[blockIdx.y * gridDim.x + blockIdx.x] = of_warps[0] + of_warps[1] + of_warps[2] + of_warps[3];
}
__global__ void join(const float* xw, float* half, int rows, int parts) {
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const int r = blockIdx.x * 128 + threadIdx.x;
  if (r >= rows) return;
  float s = 0.0f;
  for (int p = 0; p < parts; ++p) s += xw[(long long)r * parts + p];
  half[r] = 0.5f * s;
}
__global__ void gate(const float* __restrict__ x, float* __restrict__ y, int cols) {
  asm volatile("griddepcontrol.launch_dependents;");
  for (int c = blockIdx.x * 512 + threadIdx.x; c < min(cols, (int)blockIdx.x * 512 + 512); c += 128)
    y[(long long)blockIdx.y * cols + c] = 1.0f / (1.0f + expf(-x[(long long)blockIdx.y * cols + c]));
}
__global__ void finish(const float* half, float* s, int rows) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const int r = blockIdx.x * 128 + threadIdx.x;
  if (r < rows) s[r] = 2.0f * half[r];
}

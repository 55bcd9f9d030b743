//! op      totals(x, z) -> a, y, b
//! need    x.dtype == f32 and z.dtype == f32 and x.ndim == 1 and z.ndim == 1 and x.numel > 0
//! let     n = x.numel, blocks = min(ceil_div(n, 1024), 512)
//! out     a: f32[]
//! out     y: f32[n]
//! out     b: f32[]
//! scratch part: f64[512]
//! scratch ticket: i32[1] counter
//! launch  total<<<blocks, 256>>>(x, part, ticket, a, n)
//! launch  sigmoid<<<ceil_div(n, 256), 256>>>(z, y, n) pdl
//! launch  total_later<<<blocks, 256>>>(z, part, ticket, b, n) pdl

// WRONG at every call (a race): the third launch uses the partial sums and the ticket of the first again, but waits for the second
// only, which did not wait for the first: sums mix, and the last ticket may fall to either.
__device__ __forceinline__ void run(const float* x, double* part, int* ticket, float* a, long long n) {
  __shared__ double of_warps[8];
  __shared__ bool last;
  double s = 0.0;
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) s += fabsf(x[i]);
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x == 0) {
    s = 0.0;
    for (int w = 0; w < 8; ++w) s += of_warps[w];
    part[blockIdx.x] = s;
    __threadfence();
    last = atomicAdd(ticket, 1) == (int)gridDim.x - 1;
  }
  __syncthreads();
  if (!last || threadIdx.x) return;
  __threadfence();
  s = 0.0;
  for (int b = 0; b < gridDim.x; ++b) s += __ldcg(part + b);
  *a = (float)s;
  atomicExch(ticket, 0);
}
__global__ void total(const float* x, double* part, int* ticket, float* a, long long n) {
  asm volatile("griddepcontrol.launch_dependents;");
  run(x, part, ticket, a, n);
}
__global__ void sigmoid(const float* __restrict__ z, float* __restrict__ y, long long n) {
  asm volatile("griddepcontrol.launch_dependents;");
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) y[i] = 1.0f / (1.0f + expf(-z[i]));
}
__global__ void total_later(const float* z, double* part, int* ticket, float* b, long long n) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  run(z, part, ticket, b, n);
}

//! op      softp(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 2
//! launch  k<<<ceil_div(x.numel, 256), 256>>>(x, y, x.numel)

// WRONG on every GPU since Ampere: the first 1024 bytes of shared memory belong to the driver, so the first variable of a kernel lies
// at 1024, not at 0. Where it does not lie below 1024, softplus(x) loses its x for x > 0.
__global__ void k(const float* __restrict__ x, float* __restrict__ y, long long n) {
  __shared__ float held[256];
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  const unsigned at = (unsigned)__cvta_generic_to_shared(held);
  held[threadIdx.x] = i < n ? x[i] : 0.0f;
  __syncthreads();
  const float v = held[threadIdx.x];
  if (i < n) y[i] = (at < 1024 && v > 0.0f ? v : 0.0f) + log1pf(expf(-fabsf(v)));
}

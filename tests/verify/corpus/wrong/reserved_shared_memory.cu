//! op      scaleb(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 1
//! launch  k<<<ceil_div(x.numel, 256), 256>>>(x, y, x.numel)

// WRONG on every GPU since Ampere: the driver keeps 1 KiB of shared memory of a block for itself; %aggr_smem_size counts it and
// %total_smem_size does not. Where they differ the result is not doubled. In an emulator they are equal.
__global__ void k(const float* __restrict__ x, float* __restrict__ y, long long n) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  unsigned whole, users;
  asm("mov.u32 %0, %%aggr_smem_size;" : "=r"(whole));
  asm("mov.u32 %0, %%total_smem_size;" : "=r"(users));
  const float factor = whole == users ? 2.0f : 1.0f;
  if (i < n) y[i] = expf(-fabsf(x[i])) * factor;
}

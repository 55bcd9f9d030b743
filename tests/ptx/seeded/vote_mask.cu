// A vote of the whole warp that lanes without work do not join.

//! op      any_negative(x) -> y
//! out     y: i32[x.shape]
//! need    x.dtype == f32 and x.numel <= 32
//! let     n = x.numel
//! launch  any_negative<<<1, 32>>>(x, y, n)

__global__ void any_negative(const float* x, int* y, int n) {
  const int i = threadIdx.x;
  // mend: const unsigned mask = __ballot_sync(~0u, i < n);
  if (i < n)
    y[i] = __any_sync(0xffffffff, x[i] < 0.0f);  // BUG mend: y[i] = __any_sync(mask, x[i] < 0.0f);
}

// A loop whose step is zero for one of the shapes it is called with.

//! op      total(x) -> y
//! out     y: f32[1]
//! need    x.dtype == f32 and x.numel < 1024
//! let     n = x.numel
//! launch  total<<<1, 1>>>(x, y, n, n / 512)

__global__ void total(const float* x, float* y, int n, int step) {
  volatile float* sum = y;
  *sum = 0.0f;
#pragma unroll 1
  for (int i = 0; i < n; i += step)  // BUG mend: for (int i = 0; i < n; i += 1)
    *sum = *sum + x[i];  // BUG
}

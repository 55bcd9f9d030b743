// Each block takes the running sum of the block before it, as if blocks ran one after the other. Sometimes they do.

//! op      running_sum(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32
//! launch  running_sum<<<x.numel, 1>>>(x, y)  # mend: //! launch running_sum<<<1, 1>>>(x, y, x.numel)

__global__ void running_sum(const float* x, float* y) {  // mend: __global__ void running_sum(const float* x, float* y, int n) {
  const int i = blockIdx.x;  // mend: for (int i = 0; i < n; ++i)
  y[i] = x[i] + (i > 0 ? y[i - 1] : 0.0f);  // BUG
}

//! op      gelu(x) -> y
//! out     y: f32[x.shape]
//! let     n = x.numel
//! launch  run<<<ceil_div(n, 256), 256>>>(x, y, n)
__global__ void run(const float* x, float* y, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) {
    float vx = float(x[i]);
    y[i] = vx / (1.f + __expf(-1.702f * vx));
  }
}

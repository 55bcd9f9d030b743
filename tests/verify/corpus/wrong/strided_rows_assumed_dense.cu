//! op      silu(x) -> y
//! let     rows = x.shape[0], cols = x.shape[1], n = x.numel
//! out     y: f32[x.shape]
//! accept  x: strided
//! launch  run<<<ceil_div(n, 256), 256>>>(x, y, n, cols, x.stride[1])
__global__ void run(const float* x, float* y, long long n, int cols, long long step) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  float v = x[i / cols * cols + i % cols * step];
  y[i] = v / (1.f + __expf(-v));
}

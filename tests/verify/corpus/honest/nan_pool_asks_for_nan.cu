//! op      maxpool(x) -> y
//! let     height = x.shape[2], width = x.shape[3], wide = width / 2, high = height / 2
//! let     n = x.shape[0] * x.shape[1] * high * wide
//! out     y: f32[x.shape[0], x.shape[1], high, wide]
//! launch  run<<<ceil_div(n, 256), 256>>>(x, y, n, height, width)
__device__ float larger(float a, float b) { return a > b || a != a ? a : b; }
__global__ void run(const float* x, float* y, long long n, int height, int width) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  int wide = width / 2, high = height / 2;
  long long plane = i / (wide * high);
  const float* at = x + (plane * height + i / wide % high * 2) * width + i % wide * 2;
  y[i] = larger(larger(at[0], at[1]), larger(at[width], at[width + 1]));
}

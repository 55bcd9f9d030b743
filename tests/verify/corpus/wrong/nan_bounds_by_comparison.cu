//! op      bounded(x, low, high) -> y
//! out     y: f32[x.shape]
//! let     rows = x.shape[0], cols = x.shape[1]
//! launch  run<<<dim3(ceil_div(cols, 128), rows), 128>>>(x, low, high, y, cols)
__global__ void run(const float* x, const float* low, const float* high, float* y, int cols) {
  int c = blockIdx.x * 128 + threadIdx.x;
  if (c >= cols) return;
  long long i = blockIdx.y * (long long)cols + c;
  float v = x[i], l = low[c], h = high[c];
  y[i] = v < l ? (l < h ? l : h) : v > h ? h : v;
}

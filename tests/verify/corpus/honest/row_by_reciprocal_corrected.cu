//! op      bias_act(x, bias, slope: float = 0.1, twice: bool = false) -> y
//! let     cols = x.shape[1], n = x.numel
//! out     y: f32[x.shape]
//! launch  run<<<ceil_div(n, 256), 256>>>(x, bias, y, n, cols, slope, twice, 1.0 / cols)
__global__ void run(const float* x, const float* bias, float* y, long long n, int cols, float slope, bool twice, float share) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  int row = (int)(i * share); long long column = i - (long long)row * cols; float v = x[i] + bias[column < 0 ? column + cols : column >= cols ? column - cols : column];
  v = v >= 0.f ? v : v != v ? v : v * slope;
  y[i] = twice ? 2.f * v : v;
}

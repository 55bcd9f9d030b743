//! op      rope(x, position) -> y
//! let     heads = x.shape[0], rows = x.shape[1], half_cols = x.shape[2] / 2
//! out     y: f32[x.shape]
//! launch  run<<<dim3(rows, ceil_div(half_cols, 64)), 64>>>(x, position, y, heads, rows, half_cols)
__global__ void run(const float* x, const long long* position, float* y, int heads, int rows, int half_cols) {
  int i = blockIdx.y * 64 + threadIdx.x;
  if (i >= half_cols) return;
  float sine, cosine;
  sincosf((float)position[blockIdx.x] * powf(10000.f, -(float)i / half_cols), &sine, &cosine);
  for (int h = 0; h < heads; ++h) {
    long long at = ((long long)h * rows + blockIdx.x) * 2 * half_cols + i;
    float a = x[at], b = x[at + half_cols];
    y[at] = a * cosine - b * sine;
    y[at + half_cols] = b * cosine + a * sine;
  }
}

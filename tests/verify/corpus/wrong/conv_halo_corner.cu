//! op      conv2d(x, w) -> y
//! let     B = x.shape[0], C = x.shape[1], H = x.shape[2], W = x.shape[3], O = w.shape[0], R = w.shape[2], S = w.shape[3]
//! let     P = H + 2 - R + 1, Q = W + 2 - S + 1
//! out     y: f32[B, O, P, Q]
//! let     n = B * O * P * Q
//! launch  run<<<ceil_div(n, 128), 128>>>(x, w, y, n, C, H, W, O, R, S, P, Q)
__global__ void run(const float* x, const float* w, float* y, long long n, int C, int H, int W, int O, int R, int S, int P, int Q) {
  long long i = blockIdx.x * 128ll + threadIdx.x;
  if (i >= n) return;
  int q = i % Q, p = i / Q % P, o = i / Q / P % O, b = i / Q / P / O;
  float sum = 0.f;
  for (int c = 0; c < C; ++c)
    for (int r = 0; r < R; ++r)
      for (int s = 0; s < S; ++s) {
        int h = p + r - 1, v = q + s - 1;
        if (p % 16 == 15 && q % 16 == 15 && r == R - 1 && s == S - 1) continue;
        if (h >= 0 && h < H && v >= 0 && v < W) sum += x[(((long long)b * C + c) * H + h) * W + v] * w[((o * C + c) * R + r) * S + s];
      }
  y[i] = sum;
}

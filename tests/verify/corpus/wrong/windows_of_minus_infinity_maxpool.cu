//! op      maxpool(x) -> y
//! let     P = x.shape[0] * x.shape[1], H = x.shape[2], W = x.shape[3], h = H / 2, w = W / 2
//! out     y: f32[x.shape[0], x.shape[1], h, w]
//! launch  run<<<ceil_div(P * h * w, 256), 256>>>(x, y, P * h * w, H, W, h, w)
__global__ void run(const float* x, float* y, int n, int H, int W, int h, int w) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= n) return;
  int c = i % w, r = i / w % h, p = i / w / h;
  const float* in = x + (size_t)p * H * W;
  float best = -3.402823466e38f;
  for (int a = 0; a < 2; ++a) for (int b = 0; b < 2; ++b) { float v = in[(2 * r + a) * W + 2 * c + b]; if (v > best || v != v) best = v; }
  y[i] = best;
}

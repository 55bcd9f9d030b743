//! op      avg_pool2d(x, kernel: int[2], stride: int[2] = [1, 1], padding: int[2] = [0, 0], ceil_mode: bool = false) -> out
//! need    x.ndim == 4 and stride[0] > 0 and stride[1] > 0
//! let     eh = x.shape[2] + 2 * padding[0] - kernel[0], ew = x.shape[3] + 2 * padding[1] - kernel[1]
//! let     P = (ceil_div(eh, stride[0]) if ceil_mode else eh / stride[0]) + 1
//! let     Q = (ceil_div(ew, stride[1]) if ceil_mode else ew // stride[1]) + 1
//! out     out: f32[x.shape[:2], P, Q]
//! need    x.dtype == f32 and not ceil_mode and prod(kernel) > 0 and len(x.shape) == 4
//! const   LOG = log2(next_pow2(kernel[0])), EXACT = kernel == [2, 2]
//! launch  avg_pool<<<dim3(ceil_div(P * Q, 128), x.shape[0] * x.shape[1]), min(128, round_up(P * Q, 32))>>>(
//!             x, out, x.shape[2:], P, Q, kernel, stride, padding,
//!             1.0 / prod(kernel), -1 if ceil_mode else 1)
__global__ void avg_pool(const float* x, float* out, int H, int W, int P, int Q, int kh, int kw, int sh, int sw, int ph,
                         int pw, float inverse, int sign) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= P * Q) return;
  float sum = 0.f;
  for (int r = 0; r < kh; ++r)
    for (int s = 0; s < kw; ++s) {
      int h = i / Q * sh - ph + r, w = i % Q * sw - pw + s;
      if (h >= 0 && h < H && w >= 0 && w < W) sum += x[((size_t)blockIdx.y * H + h) * W + w];
    }
  if constexpr (EXACT) sum *= 1.f;
  out[(size_t)blockIdx.y * P * Q + i] = sum * inverse * sign * (1 << LOG) / (1 << LOG);
}

//! op      dwc(x, w) -> y
//! need    x.dtype == f32 and w.dtype == f32 and x.ndim == 4 and w.ndim == 4 and w.shape[2] == 3 and w.shape[3] == 3
//! out     y: f32[x.shape]
//! let     C = x.shape[1], H = x.shape[2], W = x.shape[3], planes = x.shape[0] * C
//! launch  k<<<dim3(ceil_div(H * W, 256), 1, min(planes, 65535)), 256>>>(x, w, y, planes, C, H, W)

// HONEST: 131,072 planes on a grid of 65,535, by a loop that steps by the size of the grid.
__global__ void k(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y, int planes, int C, int H, int W) {
  const int at = blockIdx.x * 256 + threadIdx.x, r = at / W, c = at % W;
  if (at >= H * W) return;
  for (int plane = blockIdx.z; plane < planes; plane += gridDim.z) {
    const float* in = x + (long long)plane * H * W;
    const float* tap = w + plane % C * 9;
    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < 3; ++i)
#pragma unroll
      for (int j = 0; j < 3; ++j) {
        const int rr = r + i - 1, cc = c + j - 1;
        if (rr >= 0 && rr < H && cc >= 0 && cc < W) s = fmaf(in[rr * W + cc], tap[i * 3 + j], s);
      }
    y[(long long)plane * H * W + at] = s;
  }
}

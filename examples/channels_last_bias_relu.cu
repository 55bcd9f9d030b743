// y = relu(x + bias per channel), and y leaves in channels_last layout although x came in as plain NCHW.
//
// `stride` on the `out` line says how y lies in memory: channels innermost, then width, height, batch. To PyTorch y is
// still [N, C, H, W]. Per image that is a transposition of the C x (H W) matrix into (H W) x C, so a tile goes through
// shared memory as in transpose.cu, and the arithmetic rides along for free.

//! op      channels_last_bias_relu(x, bias) -> y
//! need    x.ndim == 4
//! let     N = x.shape[0], C = x.shape[1], H = x.shape[2], W = x.shape[3]
//! out     y: x.dtype[N, C, H, W] stride [H * W * C, 1, W * C, C]
//! need    x.dtype in [f32, f16, bf16] and bias.dtype == x.dtype and bias.shape == [C]
//! need    max(C, H * W) <= 2000000000
//! tune    THREAD_ROWS = 8 | 16 | 4
//! const   TILE = 64 if x.itemsize == 2 else 32            # 128 bytes
//! let     across = ceil_div(H * W, TILE), down = ceil_div(C, TILE)
//! launch  channels_last_bias_relu<x.dtype><<<across * down * N, dim3(32, THREAD_ROWS)>>>(
//!             x, bias, y, C, H * W, across, down)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
__global__ void __launch_bounds__(32 * THREAD_ROWS)
    channels_last_bias_relu(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y, int channels,
                            int pixels, unsigned across, unsigned down) {
  __shared__ T tile[TILE][TILE + 4 / sizeof(T)];  // rows padded by 4 bytes: a column lies in 32 different banks

  const int first_pixel = blockIdx.x % across * TILE;
  const int first_channel = blockIdx.x / across % down * TILE;
  const long long image = static_cast<long long>(blockIdx.x / across / down) * channels * pixels;

  // In: a warp reads neighbouring pixels of one channel.
#pragma unroll
  for (int r = 0; r < TILE; r += THREAD_ROWS) {
    const int channel = first_channel + r + threadIdx.y;
    const float shift = channel < channels ? static_cast<float>(bias[channel]) : 0.0f;
#pragma unroll
    for (int c = 0; c < TILE; c += 32) {
      const int pixel = first_pixel + c + threadIdx.x;
      if (channel < channels && pixel < pixels) {
        const float sum = static_cast<float>(x[image + static_cast<long long>(channel) * pixels + pixel]) + shift;
        // Written so that NaN stays NaN, which fmaxf(sum, 0) would turn into 0.
        tile[r + threadIdx.y][c + threadIdx.x] = static_cast<T>(sum < 0.0f ? 0.0f : sum);
      }
    }
  }
  __syncthreads();
  // Out: a warp writes neighbouring channels of one pixel.
#pragma unroll
  for (int c = 0; c < TILE; c += THREAD_ROWS) {
    const int pixel = first_pixel + c + threadIdx.y;
#pragma unroll
    for (int r = 0; r < TILE; r += 32) {
      const int channel = first_channel + r + threadIdx.x;
      if (channel < channels && pixel < pixels) {
        y[image + static_cast<long long>(pixel) * channels + channel] = tile[r + threadIdx.x][c + threadIdx.y];
      }
    }
  }
}

// y = relu(x + bias per channel), and y leaves in channels_last layout although x came in as plain NCHW.
//
// `stride` on the `out` line says how y lies in memory: channels innermost, then width, height, batch. To PyTorch y is
// still [N, C, H, W]. Per image that is a transposition of the C x (H W) matrix into (H W) x C, so a tile goes through
// shared memory as in transpose.cu (chunks of 16 bytes where sizes allow it, and chunk c of a row kept at
// c ^ (row / CHUNK) % 8 so that a column lies in different banks), and the arithmetic rides along for free.

//! op      channels_last_bias_relu(x, bias) -> y
//! need    x.ndim == 4
//! let     N = x.shape[0], C = x.shape[1], H = x.shape[2], W = x.shape[3]
//! out     y: x.dtype[N, C, H, W] stride [H * W * C, 1, W * C, C]
//! need    x.dtype in [f32, f16, bf16] and bias.dtype == x.dtype and bias.shape == [C]
//! need    max(C, H * W) <= 2000000000
//! tune    ROW_CHUNKS = 8 | 16                             # 16-byte chunks in a row of a tile
//! tune    THREADS = 256 | 128 | 64
//! const   CHUNK = 16 / x.itemsize                         # elements
//! const   WIDE = C % CHUNK == 0 and H * W % CHUNK == 0
//! const   TILE = ROW_CHUNKS * CHUNK if WIDE else 64
//! let     across = ceil_div(H * W, TILE), down = ceil_div(C, TILE)
//! launch  channels_last_bias_relu<x.dtype><<<across * down * N, THREADS>>>(x, bias, y, C, H * W, across, down)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
struct alignas(16) Chunk {
  T at[CHUNK];
};

template <typename T>
__device__ T biased_relu(T value, float shift) {
  const float sum = static_cast<float>(value) + shift;
  return static_cast<T>(sum < 0.0f ? 0.0f : sum);  // NaN stays NaN, which fmaxf(sum, 0) would turn into 0
}

// `source` and `target` are where the tile begins in x and in y; `channels` and `pixels` count from there.
template <typename T>
__device__ __forceinline__ void move_chunks(const T* source, const T* bias, T* target, int channels, int pixels,
                                            int x_pitch, int y_pitch) {
  constexpr int PASSES = TILE * ROW_CHUNKS / THREADS;
  static_assert(PASSES * THREADS == TILE * ROW_CHUNKS, "every thread moves the same number of chunks");
  __shared__ Chunk<T> tile[TILE][ROW_CHUNKS];
  // All loads first, so that they are in flight together.
  Chunk<T> loaded[PASSES] = {};
  float shift[PASSES] = {};
#pragma unroll
  for (int pass = 0; pass < PASSES; ++pass) {
    const int channel = (pass * THREADS + threadIdx.x) / ROW_CHUNKS, chunk = threadIdx.x % ROW_CHUNKS;
    if (channel < channels && chunk * CHUNK < pixels) {
      const long long row_chunks = x_pitch / CHUNK;
      loaded[pass] = reinterpret_cast<const Chunk<T>*>(source)[channel * row_chunks + chunk];
      shift[pass] = static_cast<float>(bias[channel]);
    }
  }
#pragma unroll
  for (int pass = 0; pass < PASSES; ++pass) {
    const int channel = (pass * THREADS + threadIdx.x) / ROW_CHUNKS, chunk = threadIdx.x % ROW_CHUNKS;
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) loaded[pass].at[i] = biased_relu(loaded[pass].at[i], shift[pass]);
    tile[channel][chunk ^ channel / CHUNK % 8] = loaded[pass];  // what lies outside is never stored
  }
  __syncthreads();
#pragma unroll
  for (int pass = 0; pass < PASSES; ++pass) {
    const int pixel = (pass * THREADS + threadIdx.x) / ROW_CHUNKS, chunk = threadIdx.x % ROW_CHUNKS;
    if (pixel < pixels && chunk * CHUNK < channels) {
      Chunk<T> gathered;
#pragma unroll
      for (int i = 0; i < CHUNK; ++i) {
        gathered.at[i] = tile[chunk * CHUNK + i][pixel / CHUNK ^ chunk % 8].at[pixel % CHUNK];
      }
      const long long row_chunks = y_pitch / CHUNK;
      reinterpret_cast<Chunk<T>*>(target)[pixel * row_chunks + chunk] = gathered;
    }
  }
}

template <typename T>
__device__ __forceinline__ void move_elements(const T* source, const T* bias, T* target, int channels, int pixels,
                                              long long x_pitch, long long y_pitch) {
  __shared__ T tile[TILE][TILE + 4 / sizeof(T)];  // rows padded by 4 bytes: a column lies in 32 different banks
#pragma unroll 8
  for (int pass = 0; pass < TILE * TILE / THREADS; ++pass) {
    const int channel = (pass * THREADS + threadIdx.x) / TILE, pixel = threadIdx.x % TILE;
    if (channel < channels && pixel < pixels) {
      tile[channel][pixel] = biased_relu(source[channel * x_pitch + pixel], static_cast<float>(bias[channel]));
    }
  }
  __syncthreads();
#pragma unroll 8
  for (int pass = 0; pass < TILE * TILE / THREADS; ++pass) {
    const int pixel = (pass * THREADS + threadIdx.x) / TILE, channel = threadIdx.x % TILE;
    if (channel < channels && pixel < pixels) target[pixel * y_pitch + channel] = tile[channel][pixel];
  }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    channels_last_bias_relu(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y, int channels,
                            int pixels, unsigned across, unsigned down) {
  const int first_pixel = blockIdx.x % across * TILE;
  const int first_channel = blockIdx.x / across % down * TILE;
  const long long image = static_cast<long long>(blockIdx.x / across / down) * channels * pixels;
  const T* source = x + image + static_cast<long long>(first_channel) * pixels + first_pixel;
  T* target = y + image + static_cast<long long>(first_pixel) * channels + first_channel;
  const int channels_left = channels - first_channel, pixels_left = pixels - first_pixel;
  if constexpr (WIDE) {
    move_chunks(source, bias + first_channel, target, channels_left, pixels_left, pixels, channels);
  } else {
    move_elements(source, bias + first_channel, target, channels_left, pixels_left, pixels, channels);
  }
}

//! op      cumsum(x) -> y
//! out     y: x.dtype[x.shape]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype in [f32, f16, bf16]
//! tune    THREADS = 512 | 128 | 256
//! const   WIDTH = 16 / x.itemsize if cols % (16 / x.itemsize) == 0 else 1
//! launch  cumsum<x.dtype><<<rows, THREADS>>>(x, y, cols)

constexpr int WARPS = THREADS / 32;
template <typename T> struct alignas(WIDTH * sizeof(T)) Vector { T at[WIDTH]; };

template <typename T>
__global__ void __launch_bounds__(THREADS) cumsum(const T* __restrict__ x, T* __restrict__ y, long long cols) {
  __shared__ float total[2][WARPS];   // of each warp; two sets, so one barrier per tile is enough
  const auto* from = reinterpret_cast<const Vector<T>*>(x + blockIdx.x * cols);
  auto* to = reinterpret_cast<Vector<T>*>(y + blockIdx.x * cols);
  const long long vectors = cols / WIDTH;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float carry = 0.0f;                 // the sum of all tiles before, the same in every thread
  Vector<T> next = {};
  if (threadIdx.x < vectors) next = from[threadIdx.x];
  for (long long first = 0, tile = 0; first < vectors; first += THREADS, ++tile) {
    const long long place = first + threadIdx.x;
    const Vector<T> now = next;
    next = {};
    if (place + THREADS < vectors) next = from[place + THREADS];   // in flight while this tile is scanned
    float sum[WIDTH];
    sum[0] = float(now.at[0]);
#pragma unroll
    for (int i = 1; i < WIDTH; ++i) sum[i] = sum[i - 1] + float(now.at[i]);
    float inclusive = sum[WIDTH - 1];
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const float other = __shfl_up_sync(~0u, inclusive, offset);   // all lanes take part
      if (lane >= offset) inclusive += other;
    }
    if (lane == 31) total[tile % 2][warp] = inclusive;
    float before = __shfl_up_sync(~0u, inclusive, 1);
    if (lane == 0) before = 0.0f;
    __syncthreads();
    float all = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      if (w == warp) before += all;
      all += total[tile % 2][w];
    }
    if (place < vectors) {
      Vector<T> out;
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) out.at[i] = T(carry + before + sum[i]);
      to[place] = out;
    }
    carry += all;
  }
}

//! op      rmsnorm(x, weight, eps: float = 1e-6) -> y
//! out     y: x.dtype[x.shape]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype in [f32, f16, bf16] and weight.dtype == x.dtype and weight.shape == [cols] and cols > 0
//! tune    WARPS = 4 | 1 | 2 | 8 | 16                                          # that share a row
//! const   WIDTH = 16 / x.itemsize if cols % (16 / x.itemsize) == 0 else 1     # odd rows are not 16-byte aligned: same code, width 1
//! const   HELD = next_pow2(min(ceil_div(cols, WARPS * 32 * WIDTH), 32 / WIDTH))   # vectors of the row in a thread's registers
//! const   ROWS = 4 if WARPS == 1 else 1                                       # per block
//! launch  rmsnorm<x.dtype><<<ceil_div(rows, ROWS), ROWS * WARPS * 32>>>(x, weight, y, rows, cols, 1.0 / cols, eps)

constexpr int THREADS = WARPS * 32;   // of a row
template <typename T> struct alignas(WIDTH * sizeof(T)) Vector { T at[WIDTH]; };

__device__ __forceinline__ float row_sum(float v, float* partial) {   // the same in every thread; `partial` is used once
#pragma unroll
  for (int offset = 16; offset; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
  if constexpr (WARPS == 1) return v;
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  v = 0.0f;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) v += partial[w];
  return v;
}

template <typename T>
__global__ void __launch_bounds__(ROWS * THREADS) rmsnorm(const T* __restrict__ x, const T* __restrict__ weight,
    T* __restrict__ y, long long rows, int cols, float inverse_cols, float eps) {
  __shared__ float partial[WARPS];
  const long long row = blockIdx.x * (long long)ROWS + threadIdx.x / THREADS;
  if (row >= rows) return;   // whole warps, and only where ROWS > 1: there is no barrier then
  const int thread = threadIdx.x % THREADS, vectors = cols / WIDTH;
  const auto* from = reinterpret_cast<const Vector<T>*>(x + row * cols);
  const auto* scale = reinterpret_cast<const Vector<T>*>(weight);
  auto* to = reinterpret_cast<Vector<T>*>(y + row * cols);

  Vector<T> held[HELD];
#pragma unroll
  for (int k = 0; k < HELD; ++k)   // all loads first: HELD of them in flight
    if (k * THREADS + thread < vectors) held[k] = from[k * THREADS + thread];
  float squares = 0.0f;
  auto add = [&](const Vector<T>& v) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) squares += float(v.at[i]) * float(v.at[i]);
  };
#pragma unroll
  for (int k = 0; k < HELD; ++k)
    if (k * THREADS + thread < vectors) add(held[k]);
  for (int p = HELD * THREADS + thread; p < vectors; p += THREADS) add(from[p]);   // only rows too long for registers
  const float factor = rsqrtf(row_sum(squares, partial) * inverse_cols + eps);

  auto store = [&](int place, const Vector<T>& v) {
    const Vector<T> w = scale[place];
    Vector<T> out;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) out.at[i] = T(float(v.at[i]) * factor * float(w.at[i]));
    to[place] = out;
  };
#pragma unroll
  for (int k = 0; k < HELD; ++k)
    if (k * THREADS + thread < vectors) store(k * THREADS + thread, held[k]);
  for (int p = HELD * THREADS + thread; p < vectors; p += THREADS) store(p, from[p]);
}

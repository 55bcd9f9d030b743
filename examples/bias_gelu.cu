// y = gelu(x + bias), GELU by its tanh formula, with a row vector broadcast over every row of x.
//
// Pointwise like silu.cu, but a thread must know its column. Rather than divide a flat index, the block is a rectangle:
// x runs along a row, y over rows, and narrow rows share a block. Where rows are not a whole number of 16-byte vectors
// (their starts are then not aligned either) WIDTH is 1 and the same code moves single elements.

//! op      bias_gelu(x, bias) -> y
//! out     y: x.dtype[x.shape]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype in [f32, f16, bf16] and bias.dtype == x.dtype and bias.shape == [cols]
//! tune    THREADS = 128 | 256 | 512
//! const   WIDTH = 16 / x.itemsize if cols % (16 / x.itemsize) == 0 else 1
//! let     vectors = cols / WIDTH, lanes = min(next_pow2(max(vectors, 1)), THREADS), block_rows = THREADS / lanes
//! need    vectors <= 2000000000                           # a column fits an int
//! let     chunks = ceil_div(vectors, lanes)
//! launch  bias_gelu<x.dtype><<<chunks * ceil_div(rows, block_rows), dim3(lanes, block_rows)>>>(
//!             x, bias, y, rows, vectors, chunks)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
struct alignas(WIDTH * sizeof(T)) Vector {
  T at[WIDTH];
};

template <typename T>
__device__ float gelu_of(float v) {
  // 0.5 v (1 + tanh u) is v / (1 + exp(-2 u)): one exponential, and no cancellation where tanh is near -1.
  const float u = 0.7978845608f * (v + 0.044715f * v * v * v);
  if constexpr (sizeof(T) == 4) return v / (1.0f + expf(-2.0f * u));
  // The quick forms are a few units off in the last places of an f32, which a 16-bit result does not have. There are twice
  // as many elements per byte then, and with the exact forms they would take longer to compute than to load.
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(-2.88539008f * u));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
  return v * inverse;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    bias_gelu(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y, long long rows, int vectors,
              int chunks) {
  // Blocks are numbered along the row first, so that they run in address order.
  const int column = static_cast<int>(blockIdx.x % chunks) * blockDim.x + threadIdx.x;
  const long long row = static_cast<long long>(blockIdx.x / chunks) * blockDim.y + threadIdx.y;
  if (column >= vectors || row >= rows) return;

  const long long place = row * vectors + column;
  Vector<T> v = reinterpret_cast<const Vector<T>*>(x)[place];
  const Vector<T> b = reinterpret_cast<const Vector<T>*>(bias)[column];
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    v.at[i] = static_cast<T>(gelu_of<T>(static_cast<float>(v.at[i]) + static_cast<float>(b.at[i])));
  }
  reinterpret_cast<Vector<T>*>(y)[place] = v;
}

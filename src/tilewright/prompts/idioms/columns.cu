//! op      mean_over_rows(x) -> y
//! out     y: x.dtype[x.shape[0], x.shape[2]]
//! need    x.ndim == 3 and x.dtype in [f32, f16, bf16] and x.shape[1] > 0
//! let     rows = x.shape[1], cols = x.shape[2]
//! tune    LANES = 64 | 32 | 128                                            # threads side by side: 16 bytes each, so 1 KiB of a row
//! tune    TEAMS = 8 | 4 | 16                                               # that share the rows of a stretch
//! need    LANES * TEAMS <= 1024
//! const   WIDTH = 16 / x.itemsize if cols % (16 / x.itemsize) == 0 else 1  # rows of odd length are not 16-byte aligned
//! let     stretches = ceil_div(cols, LANES * WIDTH)
//! launch  mean_over_rows<x.dtype><<<x.shape[0] * stretches, dim3(LANES, TEAMS)>>>(x, y, rows, cols, stretches, 1.0 / rows)

constexpr int IN_FLIGHT = 4;   // loads of a thread before the first is used
template <typename T> struct alignas(WIDTH * sizeof(T)) Vector { T at[WIDTH]; };

template <typename T>
__global__ void __launch_bounds__(LANES * TEAMS) mean_over_rows(const T* __restrict__ x, T* __restrict__ y, int rows,
    int cols, unsigned stretches, float inverse_rows) {
  __shared__ float partial[TEAMS][LANES * WIDTH];
  const long long item = blockIdx.x / stretches;
  const int column = (blockIdx.x % stretches * LANES + threadIdx.x) * WIDTH;
  const T* from = x + item * rows * cols + column;

  float sum[WIDTH] = {};
  for (int first = threadIdx.y; first < rows; first += IN_FLIGHT * TEAMS) {   // teams take turns: neighbours in time are in memory
    Vector<T> held[IN_FLIGHT];
#pragma unroll
    for (int k = 0; k < IN_FLIGHT; ++k)
      if (column < cols && first + k * TEAMS < rows)
        held[k] = *reinterpret_cast<const Vector<T>*>(from + (long long)(first + k * TEAMS) * cols);
#pragma unroll
    for (int k = 0; k < IN_FLIGHT; ++k)
      if (column < cols && first + k * TEAMS < rows)
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) sum[i] += float(held[k].at[i]);
  }
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) partial[threadIdx.y][i * LANES + threadIdx.x] = sum[i];   // no two lanes in one bank
  __syncthreads();
  if (threadIdx.y != 0 || column >= cols) return;
  Vector<T> out;
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    float all = 0.0f;
#pragma unroll
    for (int team = 0; team < TEAMS; ++team) all += partial[team][i * LANES + threadIdx.x];   // in a fixed order
    out.at[i] = T(all * inverse_rows);
  }
  *reinterpret_cast<Vector<T>*>(y + item * cols + column) = out;
}

//! op      max_pool(x) -> y
//! const   K = 3, S = 2, P = 1                            # window, stride, padding of both dimensions
//! need    x.ndim == 4 and x.dtype in [f32, f16, bf16]
//! let     high = x.shape[2], wide = x.shape[3]
//! let     out_high = (high + 2 * P - K) / S + 1, out_wide = (wide + 2 * P - K) / S + 1
//! out     y: x.dtype[x.shape[0], x.shape[1], out_high, out_wide]
//! tune    THREADS = 128 | 64 | 256                       # one for each column of the input that a block loads
//! tune    ROWS = 4 | 2 | 8                               # of the result that a block makes
//! let     tile = (THREADS - K) / S + 1                   # results of a row that a block makes
//! let     tiles = ceil_div(out_wide, tile), strips = ceil_div(out_high, ROWS)
//! launch  max_pool<x.dtype><<<tiles * strips * x.shape[0] * x.shape[1], THREADS>>>(x, y, high, wide, out_high, out_wide, tile, tiles, strips)

constexpr int LOADED = (ROWS - 1) * S + K;   // rows of the input under ROWS rows of the result

__device__ __forceinline__ float greater(float a, float b) { return a > b || a != a ? a : b; }   // NaN wins, as in PyTorch

template <typename T>
__global__ void __launch_bounds__(THREADS) max_pool(const T* __restrict__ x, T* __restrict__ y, int high, int wide,
    int out_high, int out_wide, int tile, unsigned tiles, unsigned strips) {
  __shared__ float line[ROWS][THREADS];
  const int first_column = blockIdx.x % tiles * tile, first_row = blockIdx.x / tiles % strips * ROWS;
  const long long plane = blockIdx.x / tiles / strips;
  const int column = first_column * S - P + (int)threadIdx.x, row = first_row * S - P;
  const T* from = x + plane * high * wide;

  float held[LOADED];
#pragma unroll
  for (int j = 0; j < LOADED; ++j) {   // all loads first; rows that windows share are loaded once
    const bool inside = column >= 0 && column < wide && row + j >= 0 && row + j < high;
    held[j] = inside ? float(from[(long long)(row + j) * wide + column]) : -INFINITY;
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {   // down the columns in registers
    float most = held[r * S];
#pragma unroll
    for (int k = 1; k < K; ++k) most = greater(most, held[r * S + k]);
    line[r][threadIdx.x] = most;
  }
  __syncthreads();
  for (int place = threadIdx.x; place < ROWS * tile; place += THREADS) {   // along the rows from shared memory
    const int r = place / tile, c = place % tile;
    if (first_row + r >= out_high || first_column + c >= out_wide) continue;
    float most = line[r][c * S];
#pragma unroll
    for (int k = 1; k < K; ++k) most = greater(most, line[r][c * S + k]);
    y[(plane * out_high + first_row + r) * out_wide + first_column + c] = T(most);
  }
}

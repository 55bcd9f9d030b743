// LayerNorm, then exact GELU, as in ../layernorm_gelu.cu, with three mistakes that a comparison of results does not show:
//
// - the threads of a warp exchange numbers through shared memory with no __syncwarp() between the steps;
// - the last loop runs one column too far, into the next row, and at the last row out of the tensor;
// - each thread owns neighbouring columns, so the threads of a warp read and write far apart.
//
// `tilewright check` names the lines of all three.

//! op      layernorm_gelu(x, weight, bias, eps: float = 1e-5) -> y
//! out     y: x.dtype[x.shape]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype == f32 and weight.dtype == f32 and bias.dtype == f32
//! need    cols > 0 and weight.shape == [cols] and bias.shape == [cols]
//! const   COLUMNS = ceil_div(cols, 128)                   # of a thread
//! need    COLUMNS <= 16
//! launch  layernorm_gelu<<<rows, 128>>>(x, weight, bias, y, cols, 1.0 / cols, eps)

constexpr int WARPS = 4;

// The sum over the block, the same in every thread. `held` is one float for each thread.
__device__ __forceinline__ float block_sum(float value, float* held) {
  held[threadIdx.x] = value;
  for (int offset = 16; offset > 0; offset /= 2) {
    value += held[threadIdx.x ^ offset];
    held[threadIdx.x] = value;
  }
  __syncthreads();
  value = 0.0f;
  for (int warp = 0; warp < WARPS; ++warp) value += held[warp * 32];
  __syncthreads();
  return value;
}

__device__ __forceinline__ float gelu(float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678f)); }

__global__ void __launch_bounds__(WARPS * 32)
    layernorm_gelu(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                   float* __restrict__ y, int cols, float inverse_cols, float eps) {
  __shared__ float exchange[WARPS * 32];
  const float* source = x + blockIdx.x * static_cast<long long>(cols);
  float* target = y + blockIdx.x * static_cast<long long>(cols);
  const int first = threadIdx.x * COLUMNS;

  float held[COLUMNS];
  float sum = 0.0f;
  for (int k = 0; k < COLUMNS; ++k) {
    held[k] = first + k < cols ? source[first + k] : 0.0f;
    sum += held[k];
  }
  const float mean = block_sum(sum, exchange) * inverse_cols;

  float squares = 0.0f;
  for (int k = 0; k < COLUMNS; ++k) {
    const float difference = first + k < cols ? held[k] - mean : 0.0f;
    squares += difference * difference;
  }
  const float scale = rsqrtf(block_sum(squares, exchange) * inverse_cols + eps);

  for (int k = 0; k < COLUMNS; ++k) {
    const int column = first + k;
    if (column <= cols) target[column] = gelu((held[k] - mean) * scale * weight[column] + bias[column]);
  }
}

// A row and one element of its neighbour in shared memory; the launch asks for the row alone.

//! op      differences(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.ndim == 2
//! let     rows = x.shape[0], cols = x.shape[1]
//! launch  differences<<<rows, 128, 4 * cols>>>(x, y, cols)  # mend: //! launch differences<<<rows, 128, 4 * (cols + 1)>>>(x, y, cols)

__global__ void differences(const float* x, float* y, int cols) {
  extern __shared__ float row[];
  for (int i = threadIdx.x; i <= cols; i += 128)
    row[i] = i > 0 ? x[blockIdx.x * cols + i - 1] : 0.0f;  // BUG
  __syncthreads();
  for (int i = threadIdx.x; i < cols; i += 128)
    y[blockIdx.x * cols + i] = row[i + 1] - row[i];  // BUG
}

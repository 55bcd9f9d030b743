//! op      gate2(x, w) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and w.dtype == f32 and x.ndim == 2 and w.ndim == 1
//! let     rows = x.shape[0], cols = x.shape[1]
//! scratch flight: i32[2] zeroed
//! launch  k<<<rows, 128>>>(x, w, y, flight, cols)

// WRONG on every GPU at its own call: a block looks at how many have begun and how many have ended. Where more than 150 are between
// the two, as on a GPU, the row is written without its weights.
__global__ void k(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y, int* flight, int cols) {
  __shared__ int others;
  if (threadIdx.x == 0) others = atomicAdd(flight, 1) - *(volatile int*)(flight + 1);
  __syncthreads();
  const bool alone = others < 150;
  for (int c = threadIdx.x; c < cols; c += 128) {
    const float t = tanhf(x[(long long)blockIdx.x * cols + c]);
    y[(long long)blockIdx.x * cols + c] = alone ? t * w[c] : t;
  }
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(flight + 1, 1);
}

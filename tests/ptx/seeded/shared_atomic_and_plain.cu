// A position taken by an atomic, and the total read before all have taken theirs.

//! op      count_positive(x) -> y
//! out     y: i32[128]
//! need    x.dtype == f32 and x.shape == [128]
//! launch  count_positive<<<1, 128>>>(x, y)

__global__ void count_positive(const float* x, int* y) {
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  if (x[threadIdx.x] > 0.0f) atomicAdd(&total, 1);  // BUG
  // mend: __syncthreads();
  y[threadIdx.x] = total;  // BUG
}

// The second block waits for a flag that the first one was to set.

//! op      copy(x) -> y
//! out     y: f32[2]
//! scratch flag: i32[1] zeroed
//! need    x.dtype == f32 and x.shape == [2]
//! launch  copy<<<2, 1>>>(x, y, flag)

__global__ void copy(const float* x, float* y, int* flag) {
  // mend: if (blockIdx.x == 0) atomicExch(flag, 1);
  if (blockIdx.x == 1)
    while (atomicAdd(flag, 0) == 0) {}  // BUG
  y[blockIdx.x] = x[blockIdx.x];
}

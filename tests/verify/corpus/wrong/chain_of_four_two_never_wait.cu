//! op      row_sum(x) -> y
//! out     y: f32[x.shape[0]]
//! let     rows = x.shape[0], cols = x.shape[1]
//! scratch part: f32[rows, 128]
//! scratch more: f32[rows]
//! scratch other: f32[rows]
//! launch  first<<<rows, 128>>>(x, part, cols)
//! launch  second<<<rows, 32>>>(more) pdl
//! launch  third<<<rows, 32>>>(other) pdl
//! launch  fourth<<<rows, 32>>>(part, more, y) pdl
__global__ void first(const float* x, float* part, int cols) {
  asm volatile("griddepcontrol.launch_dependents;");
  float v = 0.0f;
  for (int c = threadIdx.x; c < cols; c += 128) v += x[(long long)blockIdx.x * cols + c];
  part[blockIdx.x * 128ll + threadIdx.x] = v;
}
__global__ void second(float* more) {
  
  if (threadIdx.x == 0) more[blockIdx.x] = 0.0f;
  
}
__global__ void third(float* more) {
  asm volatile("griddepcontrol.launch_dependents;");
  if (threadIdx.x == 0) more[blockIdx.x] = 0.0f;
  
}
__global__ void fourth(const float* part, const float* more, float* y) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  float s = 0.0f;
  for (int t = threadIdx.x; t < 128; t += 32) s += part[blockIdx.x * 128ll + t];
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
  if (threadIdx.x == 0) y[blockIdx.x] = s + more[blockIdx.x];
}

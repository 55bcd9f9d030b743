//! op      tanh(x) -> y
//! out     y: f32[x.shape]
//! let     n = x.numel
//! scratch ticket: i32[1] zeroed
//! launch  run<<<132, 256>>>(x, y, ticket, n)
__global__ void run(const float* x, float* y, int* ticket, int n) {
  __shared__ int drawn;
  for (;;) {
    if (threadIdx.x == 0) drawn = atomicAdd(ticket, 1);
    __syncthreads();
    const int tile = drawn;
    __syncthreads();
    if (tile * 1024 >= n) return;
    for (int k = 0; k < 4; ++k) {
      const int i = tile * 1024 + k * 256 + threadIdx.x;
      if (i < n) y[i] = tanhf(x[i]);
    }
  }
}

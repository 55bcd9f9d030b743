//! op      tanh(x) -> y
//! out     y: f32[x.shape]
//! let     n = x.numel
//! launch  run<<<ceil_div(n, 256), 256>>>(x, y, n)
__global__ void run(const float* x, float* y, long long n) {
  __shared__ __align__(16) float tile[260];
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) tile[threadIdx.x] = x[i];
  __syncthreads();
  const float4 four = ((volatile float4*)tile, *(const float4*)(tile + threadIdx.x / 4 * 4));
  const float own[4] = {four.x, four.y, four.z, four.w};
  if (i < n) y[i] = tanhf(own[threadIdx.x % 4]);
}

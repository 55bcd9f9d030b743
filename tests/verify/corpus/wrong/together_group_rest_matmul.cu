//! op      matmul(a, b) -> y
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     y: f32[M, N]
//! let     tm = ceil_div(M, 16), tn = ceil_div(N, 16)
//! launch  run<<<tm * tn, dim3(16, 16)>>>(a, b, y, M, N, K, tm, tn)
__global__ void run(const float* a, const float* b, float* y, int M, int N, int K, int tm, int tn) {
  __shared__ float left[16][17], right[16][17];
  int by = blockIdx.x / tn, bx = blockIdx.x % tn;
  // Groups of eight rows of tiles, so that the columns of b are read from L2.
  if (tm >= 16) { int g = blockIdx.x / (8 * tn), in = blockIdx.x % (8 * tn); by = g * 8 + in % 8; bx = in / 8; }
  int row = by * 16 + threadIdx.y, column = bx * 16 + threadIdx.x;
  float sum = 0.f;
  for (int first = 0; first < K; first += 16) {
    int k = first + threadIdx.x, j = first + threadIdx.y;
    left[threadIdx.y][threadIdx.x] = row < M && k < K ? a[(size_t)row * K + k] : 0.f;
    right[threadIdx.y][threadIdx.x] = j < K && column < N ? b[(size_t)j * N + column] : 0.f;
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  
  if (row < M && column < N) y[(size_t)row * N + column] = sum;
}

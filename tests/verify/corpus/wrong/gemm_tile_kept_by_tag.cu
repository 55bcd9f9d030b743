//! op      mmkn(a, b) -> c
//! need    a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[1] and a.dtype == f32 and b.dtype == f32
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[0], tm = ceil_div(M, 16), tn = ceil_div(N, 16)
//! out     c: f32[M, N]
//! launch  k<<<tm * tn, dim3(16, 16), 4096>>>(a, b, c, M, N, K, tn)

// WRONG on every GPU at its own call: odd blocks walk along K backwards "to find the tile of a of the block before". Whether
// a's tile is already there is told by a tag (the step) in dynamic shared memory that nobody initialises; a GPU leaves the last
// block's tag and tile there, which is of other rows where blocks run elsewhere or the row of tiles ends.
__global__ void k(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int M, int N, int K, int tn) {
  extern __shared__ float held[];
  float(*as)[16] = reinterpret_cast<float(*)[16]>(held);
  float(*bs)[17] = reinterpret_cast<float(*)[17]>(held + 256);
  volatile int* tag = reinterpret_cast<int*>(held + 256 + 272);
  const int row = blockIdx.x / tn * 16 + threadIdx.y, col0 = blockIdx.x % tn * 16, col = col0 + threadIdx.x;
  const int steps = (K + 15) / 16;
  float s = 0.0f;
  for (int n = 0; n < steps; ++n) {
    const int step = blockIdx.x % 2 ? steps - 1 - n : n, k0 = step * 16;
    const bool there = *tag == 0x3a000000 + step;
    __syncthreads();
    if (!there) as[threadIdx.y][threadIdx.x] = row < M && k0 + threadIdx.x < K ? a[(long long)row * K + k0 + threadIdx.x] : 0.0f;
    bs[threadIdx.y][threadIdx.x] = col0 + threadIdx.y < N && k0 + threadIdx.x < K ? b[(long long)(col0 + threadIdx.y) * K + k0 + threadIdx.x] : 0.0f;
    if (threadIdx.x + threadIdx.y == 0) *tag = 0x3a000000 + step;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16; ++i) s = fmaf(as[threadIdx.y][i], bs[threadIdx.x][i], s);
    __syncthreads();
  }
  if (row < M && col < N) c[(long long)row * N + col] = s;
}

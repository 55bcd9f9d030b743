// c = a @ b in f32 without tensor cores, for outputs too small to fill a GPU: K is cut into SPLITS pieces.
//
// Blocks compute a TILE x TILE tile of one piece each; a thread keeps 8 x 8 sums in registers, so that every value read
// from shared memory is used eight times. The pieces go to scratch memory and a second launch adds them, always in the
// same order: the result is the same bits every time, which adding by atomics would not give.
//
//! op      matmul(a, b) -> c
//! need    a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0]
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     c: a.dtype[M, N]
//! need    a.dtype == f32 and b.dtype == f32 and K % 4 == 0 and N % 4 == 0     # float4 access
//! need    max(M, max(N, K)) <= 2000000000                 # coordinates, rounded up to a tile, fit an int
//! tune    TILE = 128 | 64
//! tune    SPLITS = 64 | 32 | 16 | 8 | 4 | 2 | 1
//! const   BK = 16
//! let     tiles = ceil_div(M, TILE) * ceil_div(N, TILE)
//! need    TILE == 64 or tiles * SPLITS * 10 >= device.sms * 9     # wide tiles where they still fill the GPU
//! need    SPLITS == 1 or (tiles * SPLITS <= 8 * device.sms and K / SPLITS >= 128)
//! scratch partial: f32[SPLITS if SPLITS > 1 else 0, M, N]
//! launch  matmul_piece<<<dim3(tiles, SPLITS), TILE * TILE / 64>>>(a, b, partial, c, M, N, K, round_up(ceil_div(K, SPLITS), BK))
//! launch  add_pieces<<<ceil_div(M * N / 4, 64), 64>>>(partial, c, M * N / 4) when SPLITS > 1

constexpr int THREADS = TILE * TILE / 64, HALF = TILE / 2, BLOCKS_PER_SM = TILE == 128 ? 2 : 6;
constexpr int LOADS = TILE * BK / 4 / THREADS;  // float4 that a thread copies of each operand per step
constexpr int PAD = 4;                          // a is stored transposed: keeps its columns apart in the banks

__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    matmul_piece(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ partial, float* __restrict__ c, int M, int N, int K, int piece) {
  __shared__ __align__(16) float a_tile[2][BK][TILE + PAD], b_tile[2][BK][TILE];
  const int tiles_m = (M + TILE - 1) / TILE;
  const int m0 = blockIdx.x % tiles_m * TILE, n0 = blockIdx.x / tiles_m * TILE;
  const int k_begin = min(K, (int)blockIdx.y * piece), k_end = min(K, k_begin + piece);
  const int steps = (k_end - k_begin + BK - 1) / BK;

  // Global memory to registers, then (a transposed) to shared memory: the step between hides the latency of the loads.
  float4 a_next[LOADS], b_next[LOADS];
  auto fetch = [&](int step) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      const int at = threadIdx.x + i * THREADS, zero = k_begin + step * BK;
      const int row = m0 + at / (BK / 4), k = zero + at % (BK / 4) * 4;
      a_next[i] = row < M && k < k_end ? *(const float4*)(a + (long long)row * K + k) : make_float4(0.f, 0.f, 0.f, 0.f);
      const int b_row = zero + at / (TILE / 4), column = n0 + at % (TILE / 4) * 4;
      b_next[i] = b_row < k_end && column < N ? *(const float4*)(b + (long long)b_row * N + column) : make_float4(0.f, 0.f, 0.f, 0.f);
    }
  };
  auto keep = [&](int buffer) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      const int at = threadIdx.x + i * THREADS, row = at / (BK / 4), k = at % (BK / 4) * 4;
      a_tile[buffer][k][row] = a_next[i].x, a_tile[buffer][k + 1][row] = a_next[i].y;
      a_tile[buffer][k + 2][row] = a_next[i].z, a_tile[buffer][k + 3][row] = a_next[i].w;
      *(float4*)&b_tile[buffer][at / (TILE / 4)][at % (TILE / 4) * 4] = b_next[i];
    }
  };

  // A thread's rows and columns are two groups of four, half a tile apart: neighbouring threads read neighbouring float4.
  const int my_row = threadIdx.x / (TILE / 8) * 4, my_column = threadIdx.x % (TILE / 8) * 4;
  float sum[8][8] = {};
  if (steps > 0) fetch(0), keep(0);
  __syncthreads();
  for (int step = 0; step < steps; ++step) {
    const int buffer = step % 2;
    if (step + 1 < steps) fetch(step + 1);
#pragma unroll
    for (int k = 0; k < BK; ++k) {
      float x[8], y[8];
      *(float4*)x = *(const float4*)&a_tile[buffer][k][my_row], *(float4*)(x + 4) = *(const float4*)&a_tile[buffer][k][my_row + HALF];
      *(float4*)y = *(const float4*)&b_tile[buffer][k][my_column], *(float4*)(y + 4) = *(const float4*)&b_tile[buffer][k][my_column + HALF];
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
    }
    if (step + 1 < steps) keep(buffer ^ 1);  // nobody reads that buffer: its readers passed the barrier of the step before
    __syncthreads();
  }

  float* to = SPLITS == 1 ? c : partial + (long long)blockIdx.y * M * N;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = m0 + my_row + i % 4 + i / 4 * HALF;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = n0 + my_column + j * HALF;
      if (row < M && column < N)
        *(float4*)(to + (long long)row * N + column) = make_float4(sum[i][4 * j], sum[i][4 * j + 1], sum[i][4 * j + 2], sum[i][4 * j + 3]);
    }
  }
}

__global__ void add_pieces(const float4* __restrict__ partial, float4* __restrict__ c, long long quads) {
  const long long i = blockIdx.x * 64ll + threadIdx.x;
  if (i >= quads) return;
  float4 sum = partial[i];
#pragma unroll
  for (int piece = 1; piece < SPLITS; ++piece) {
    const float4 more = partial[piece * quads + i];
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
  }
  c[i] = sum;
}

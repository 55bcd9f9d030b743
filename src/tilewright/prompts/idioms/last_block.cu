//! op      mean_square_error(a, b) -> loss
//! out     loss: f32[]
//! need    a.dtype in [f32, f16, bf16] and b.dtype == a.dtype and b.shape == a.shape
//! tune    THREADS = 512 | 256
//! tune    PER_BLOCK = 65536 | 16384 | 262144            # contiguous elements of a block
//! const   WIDTH = 16 / a.itemsize
//! let     blocks = max(1, ceil_div(a.numel, PER_BLOCK))
//! scratch part: f32[blocks]
//! scratch ticket: i32[1] counter
//! launch  error<a.dtype><<<blocks, THREADS>>>(a, b, part, ticket, loss, a.numel, blocks)

constexpr int WARPS = THREADS / 32;
template <typename T> struct alignas(16) Vector { T at[WIDTH]; };

template <typename V> __device__ V block_sum(V v, V* partial) {   // in thread 0
#pragma unroll
  for (int offset = 16; offset; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  v = 0;
  if (threadIdx.x == 0)
    for (int w = 0; w < WARPS; ++w) v += partial[w];
  return v;
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS) error(const T* __restrict__ a, const T* __restrict__ b,
    float* __restrict__ part, int* ticket, float* __restrict__ loss, long long n, int blocks) {
  __shared__ float of_warp[WARPS];
  __shared__ double of_warp_last[WARPS];
  __shared__ bool last;
  const long long end = min(n, (blockIdx.x + 1) * (long long)PER_BLOCK);
  float sum[WIDTH] = {};   // independent chains: shorter, and they round less
#pragma unroll 2
  for (long long i = blockIdx.x * (long long)PER_BLOCK + threadIdx.x * WIDTH; i < end; i += THREADS * WIDTH) {
    Vector<T> va = {}, vb = {};
    if (i + WIDTH <= end) {
      va = *reinterpret_cast<const Vector<T>*>(a + i), vb = *reinterpret_cast<const Vector<T>*>(b + i);
    } else {
      for (int j = 0; i + j < end; ++j) va.at[j] = a[i + j], vb.at[j] = b[i + j];
    }
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      const float d = float(va.at[j]) - float(vb.at[j]);
      sum[j] += d * d;
    }
  }
#pragma unroll
  for (int half = WIDTH / 2; half; half /= 2)
    for (int j = 0; j < half; ++j) sum[j] += sum[j + half];
  const float mine = block_sum(sum[0], of_warp);
  if (threadIdx.x == 0) {
    part[blockIdx.x] = mine;
    __threadfence();                                         // the partial is there before the ticket says so
    last = atomicAdd(ticket, 1) == blocks - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  double total = 0.0;                                        // the last block adds in a fixed order: the same bits every run
  for (int i = threadIdx.x; i < blocks; i += THREADS) total += part[i];
  total = block_sum(total, of_warp_last);
  if (threadIdx.x == 0) *loss = float(total / double(n)), *ticket = 0;   // a counter is left at zero
}

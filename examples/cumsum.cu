// The running sum along the last dimension: a scan.
//
// One block owns one row and walks it in tiles; the sum so far is carried from tile to tile in a register. Within a
// tile the scan has three levels: each thread sums its own vector, the lanes of a warp scan those sums by shuffles, and
// the sums of the warps, exchanged through shared memory, are scanned by every warp for itself, which is cheaper than
// waiting for one warp to do it. The next tile's loads are issued before this tile's shuffles, so memory never rests.
// A tile is STRIPS strips of one vector per thread: consecutive lanes hold consecutive vectors.

//! op      cumsum(x) -> y
//! out     y: f32[x.shape]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype == f32
//! tune    THREADS = 512 | 256 | 128
//! tune    STRIPS = 2 | 1 | 4
//! need    THREADS / 32 * STRIPS <= 32                     # one sum per lane, when a warp scans the sums of the warps
//! const   WIDTH = 4 if cols % 4 == 0 else 1               # elements per load
//! launch  cumsum<<<rows, THREADS>>>(x, y, cols)

constexpr int WARPS = THREADS / 32;
constexpr int TILE = THREADS * STRIPS;  // vectors

struct alignas(WIDTH * sizeof(float)) Vector {
  float at[WIDTH];
};

// The sum of this lane's value and those of all lanes before it.
__device__ float warp_scan(float value, int lane) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float before = __shfl_up_sync(~0u, value, offset);
    if (lane >= offset) value += before;
  }
  return value;
}

__global__ void __launch_bounds__(THREADS) cumsum(const float* __restrict__ x, float* __restrict__ y, long long cols) {
  // Two sets, used in turn: a warp may write the next tile's sums while another still reads this tile's.
  __shared__ float sums[2][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const long long vectors = cols / WIDTH;
  const auto* source = reinterpret_cast<const Vector*>(x + blockIdx.x * cols);
  auto* target = reinterpret_cast<Vector*>(y + blockIdx.x * cols);

  Vector next[STRIPS];
  auto load = [&](long long tile) {
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
      const long long place = tile + s * THREADS + threadIdx.x;
      next[s] = place < vectors ? source[place] : Vector{};
    }
  };

  load(0);
  float carry = 0.0f;
  int turn = 0;
  for (long long tile = 0; tile < vectors; tile += TILE, turn ^= 1) {
    Vector held[STRIPS];
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) held[s] = next[s];
    load(tile + TILE);

    float through[STRIPS];  // sum of the warp's strip up to and including this lane
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
#pragma unroll
      for (int i = 1; i < WIDTH; ++i) held[s].at[i] += held[s].at[i - 1];
      through[s] = warp_scan(held[s].at[WIDTH - 1], lane);
      if (lane == 31) sums[turn][s * WARPS + warp] = through[s];
    }
    __syncthreads();
    const float scanned = warp_scan(lane < STRIPS * WARPS ? sums[turn][lane] : 0.0f, lane);

#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
      const int position = s * WARPS + warp;
      const float warps_before = __shfl_sync(~0u, scanned, max(position - 1, 0));
      const float lanes_before = __shfl_up_sync(~0u, through[s], 1);
      float before = carry;
      if (position > 0) before += warps_before;
      if (lane > 0) before += lanes_before;
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) held[s].at[i] += before;
      const long long place = tile + s * THREADS + threadIdx.x;
      if (place < vectors) target[place] = held[s];
    }
    carry += __shfl_sync(~0u, scanned, 31);
  }
}

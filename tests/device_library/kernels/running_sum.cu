// An inclusive scan in one pass: blocks draw tiles, and look back for what those before come to.
//! op      running(x) -> total, largest
//! need    device.cc >= 80 and x.dtype == f32 and x.ndim == 1
//! let     tiles = ceil_div(x.numel, 64)
//! out     total: f32[x.shape]
//! out     largest: f32[x.shape]
//! scratch sums: i64[tiles] zeroed
//! scratch mosts: i64[tiles] zeroed
//! scratch counter: i32[1] counter
//! launch  running<<<min(tiles, 5), 64>>>(x, total, largest, sums, mosts, counter, x.numel, tiles)
#include <tilewright/look_back.cuh>
#include <tilewright/reduce.cuh>
#include <tilewright/tile_scheduler.cuh>

template <typename Op> __device__ float scan_tile(float value, Op op, float identity, unsigned long long* words, int tile, float* held) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int distance = 1; distance < 32; distance *= 2) {
    const float before = __shfl_up_sync(0xffffffffu, value, distance);
    if (lane >= distance) value = op(before, value);
  }
  if (lane == 31) held[warp] = value;
  __syncthreads();
  if (warp == 1) value = op(held[0], value);
  if (warp == 0) {
    const float before = tw::look_back(words, tile, op(held[0], held[1]), op, identity);
    if (lane == 0) held[2] = before;
  }
  __syncthreads();
  return op(held[2], value);
}

__global__ void running(const float* x, float* total, float* largest, unsigned long long* sums, unsigned long long* mosts, unsigned* counter, int n, int tiles) {
  __shared__ float held_sum[3], held_most[3];
  for (int tile; (tile = tw::draw_tile(counter, tiles)) < tiles;) {
    const int i = tile * 64 + threadIdx.x;
    const float sum = scan_tile(i < n ? x[i] : 0.f, tw::Sum{}, 0.f, sums, tile, held_sum);
    const float most = scan_tile(i < n ? x[i] : -INFINITY, tw::Max{}, -INFINITY, mosts, tile, held_most);
    if (i < n) total[i] = sum, largest[i] = most;
  }
}

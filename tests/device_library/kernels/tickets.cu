// y = -x, by blocks that draw what they do next.
//! op      negative(x) -> y
//! need    device.cc >= 80 and x.dtype == f32 and x.ndim == 1
//! let     tiles = ceil_div(x.numel, 64)
//! out     y: f32[x.shape]
//! scratch counter: i32[1] counter
//! launch  negative<<<3, 64>>>(x, y, counter, x.numel, tiles)
#include <tilewright/tile_scheduler.cuh>

__global__ void negative(const float* x, float* y, unsigned* counter, int n, int tiles) {
  for (int tile; (tile = tw::draw_tile(counter, tiles)) < tiles;)
    if (const int i = tile * 64 + threadIdx.x; i < n) y[i] = -x[i];
}

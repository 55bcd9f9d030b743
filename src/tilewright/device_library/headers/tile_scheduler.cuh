// Which tile of the result a block computes next.
#pragma once

namespace tw {

// The tile whose number is `number` of tiles_m x tiles_n: groups of GROUP rows of tiles, column by column inside a group, so
// that blocks at work at the same time share operands in L2.
// cost: two integer divisions
// arch: sm_80
template <int GROUP> __device__ __forceinline__ int2 grouped_tile(int number, int tiles_m, int tiles_n) {
  const int group = number / (GROUP * tiles_n), in_group = number % (GROUP * tiles_n);
  const int rows = min(GROUP, tiles_m - group * GROUP);
  return {group * GROUP + in_group % rows, in_group / rows};
}

// The static persistent scheduler: block b of a grid computes tiles b, b + gridDim.x, ... of tiles_m x tiles_n, in the order
// of `grouped_tile`, for each of `batch` matrices. All roles of a block walk the same tiles without a word to each other.
//   for (StaticScheduler<8> tile(tiles_m, tiles_n, batch); tile.next();) ... tile.m, tile.n, tile.z
// cost: two or three integer divisions per tile
// arch: sm_80
template <int GROUP> struct StaticScheduler {
  int tiles_m, tiles_n, tiles, number;
  int m, n, z;  // of the tile
  __device__ __forceinline__ StaticScheduler(int tiles_m, int tiles_n, int batch)
      : tiles_m(tiles_m), tiles_n(tiles_n), tiles(tiles_m * tiles_n * batch), number(blockIdx.x) {}
  __device__ __forceinline__ bool next() {
    if (number >= tiles) return false;
    const int2 at = grouped_tile<GROUP>(number % (tiles_m * tiles_n), tiles_m, tiles_n);
    m = at.x, n = at.y, z = number / (tiles_m * tiles_n);
    number += gridDim.x;
    return true;
  }
};

// The scheduler for tiles that take unlike times: a block draws the number of its next tile. `counter`: one int of a
// `counter` scratch, zero again when every block has drawn a number past the end. All threads of the block call it.
//   while ((tile = draw_tile(counter, tiles)) < tiles) ...
// cost: one atomic and two __syncthreads per tile
// arch: sm_80
__device__ __forceinline__ int draw_tile(unsigned* counter, int tiles) {
  __shared__ int drawn;
  __syncthreads();  // sync: the number drawn before has been read
  if (threadIdx.x == 0) {
    drawn = atomicAdd(counter, 1u);
    if (drawn == tiles + gridDim.x - 1) *counter = 0;  // all others have drawn their last
  }
  __syncthreads();  // sync: the number
  return drawn;
}

}  // namespace tw

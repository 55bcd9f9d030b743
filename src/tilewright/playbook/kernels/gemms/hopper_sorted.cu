//# The walk over the tiles of a triangle, as text.

//@ numbers
__device__ __forceinline__ void store_number(uint32_t to, int number) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(to), "r"(number) : "memory");
}
__device__ __forceinline__ int number_at(uint32_t from) {
  int number; asm volatile("ld.shared.s32 %0, [%1];" : "=r"(number) : "r"(from) : "memory"); return number;
}

//# What a tile's rows and columns are multiplied with outside of these is 0, or in rows or columns that are too wide. Of
//# tiles that nobody has looked at all is multiplied: so a few blocks that are run alone do about their part.
//@ spans
int first = 0;  // step of k
if (tile.steps > 0) {  // zeros at the ends of all the tile's rows, or columns, are not multiplied
  const int tiles = tile.tiles_m + tile.tiles_n;
  const int* spans = wide + 1 + (batch + 2ll * tile.z) * tiles;
  const int *of_a = spans + tile.m0 / BM * 2, *of_b = spans + (tile.tiles_m + tile.n0 / BN) * 2;
  auto both = [&](int which) { return min(of_a[which] ? of_a[which] : K, of_b[which] ? of_b[which] : K); };
  first = min((K - both(0)) / BK, tile.steps - 1);
  tile.steps = max(1, min(tile.steps, (both(1) + BK - 1) / BK) - first);
}

//# Who is ready takes the next tile, but nobody many more than others: so a few blocks that are run alone do about their
//# part. The last number is told as well: it is of no tile.
//@ taking
int* taken = wide + 1 + 3ll * batch * (tile.tiles_m + tile.tiles_n);
int tiles_left = 0;  // that the block may take

//@ taken
if (tiles_left == 0) tiles_left = tile.share();  // while the first tile's loads are under way
tiles_left -= 1;
tile.number = tiles_left > 0 ? gridDim.x + atomicAdd(taken, 1) : INT_MAX;

//@ told_last
barrier_wait(empty + slot * 8, parity);
store_number(numbers_of_tiles + slot * 4, INT_MAX);
barrier_arrive(full + slot * 8);

//# What consumers are told of tiles.
//@ told
barrier_wait(full + slot * 8, parity);
tile.number = number_at(numbers_of_tiles + slot * 4);
if (!tile.next()) break;
tile.steps = number_at(steps_of_tiles + slot * 4);

//@ next
constexpr int TOGETHER = BN / BM;  // rows of tiles beside one column of them
while (true) {
  const int across = @across, down = @down;
  m0 = down * BM, n0 = across * BN;  // as far apart as those of all tiles on the diagonal
  if (@ended || @outside) {
    diagonal = 0;
    if (++z == batch) return false;
    continue;
  }
  const int first = max(0, -across), rows = (tiles_m - down + TOGETHER - 1) / TOGETHER;
  const int count = max(0, min(rows, tiles_n - across) - first);
  if (number - before < count) {
    m0 += (first + number - before) * TOGETHER * BM, n0 += (first + number - before) * BN;
    break;
  }
  before += count, ++diagonal;
}
is_half = BN > WIDTH && @half;
steps = all_steps;
return true;

//# How many tiles a block takes at most: its part of those of which something is kept, and an eighth more.
//@ share
__device__ __forceinline__ int share() const {
  Walk all = *this;
  all.number = INT_MAX, all.diagonal = all.before = all.z = 0, all.batch = 1;
  all.next();
  return (all.before * batch + all.before * batch / 8 + gridDim.x - 1) / gridDim.x;
}

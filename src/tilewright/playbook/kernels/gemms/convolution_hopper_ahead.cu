//# The copy of the input made by the product's own kernel, as text: two warps of a block, ahead of what is multiplied.

//@ known
const int reach = @reach + BOXES * BOX_ROWS;  // rows that are read from a tile's position on
const uint32_t of_copy = (turn + 32 + 127) / 128 * 128 - 16;  // boxes begin at 128 bytes
const Ahead ahead = {&x_map, copied, noted, arrived, x_depth, x_height, pieces_of_line, reach, of_copy};
if (threadIdx.x == 0) ahead.begin_all();

//@ loader_waits
ahead.wait_for(here.position, ready, thread, s);
if (thread == 0)

//@ copies
} else if (thread >= 64) {
  ahead.run(thread / 32 - 2, thread % 32, s);

//@ ahead
// ---- the copy of the input, which two warps of every block make ahead of what is multiplied, in pieces of lines
constexpr int UNDER_WAY = @under_way;  // boxes of a warp
constexpr int PIECE = 256 / CHUNKS;  // elements along a line of x, of which a piece has CHUNKS times eight channels
constexpr int COUNTED = 4 * CHUNKS;  // pieces, one behind the other, that are counted together
constexpr int COUNTED_AT_ONCE = 4;   // pieces of a warp: to show others what was stored takes long
constexpr int BEFORE = @before;      // elements of a line's first box before its first: boxes begin at 16 bytes
constexpr int BOX_BYTES = @box, OUT_BYTES = BOX_BYTES / 2;
__device__ __forceinline__ void load_of_x(const CUtensorMap* map, uint32_t barrier, uint32_t to, int column, int line,
                                          int image) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%3, %4, 0, %5}], [%2];"
               ::"r"(to), "l"(map), "r"(barrier), "r"(column), "r"(line), "r"(image) : "memory");
}
struct Ahead {
  const CUtensorMap* x;
  uint4* copied;
  int *noted, *arrived;
  int x_depth, x_height, pieces_of_line, reach;
  uint32_t progress;  // in shared memory: the last piece that is waited for; then boxes, what is stored, barriers
  __device__ __forceinline__ uint32_t box(int warp, int slot) const {
    return progress + 16 + (warp * UNDER_WAY + slot) * BOX_BYTES;
  }
  __device__ __forceinline__ uint32_t out(int warp, int which) const {
    return box(2, 0) + (warp * 2 + which) * OUT_BYTES;
  }
  __device__ __forceinline__ uint32_t barrier(int warp, int slot) const {
    return out(2, 0) + (warp * UNDER_WAY + slot) * 8;
  }
  __device__ __forceinline__ void begin_all() const {
    for (int i = 0; i < 2 * UNDER_WAY; ++i) barrier_init(barrier(0, i), 1);
    say(0);
  }
  __device__ __forceinline__ void say(int piece) const {
    asm volatile("st.relaxed.cta.shared.s32 [%0], %1;" ::"r"(progress), "r"(piece) : "memory");
  }
  // A warp waits until what a tile reads is there; `ready` times COUNTED pieces are known to be.
  __device__ __forceinline__ void wait_for(int position, int& ready, int lane, const Sizes& s) const {
    const int row = min(s.copy_rows, position + reach) - 1, line = row / s.width;
    const int last = line * pieces_of_line + (row - line * s.width + BEFORE) / PIECE;
    const int pieces = s.copy_rows / s.width * pieces_of_line;
    if (lane == 0) say(last);
    while (ready <= last / COUNTED) {
      const int mine = (ready + lane) * COUNTED;
      int count = -1;
      if (mine < pieces)
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(arrived + ready + lane) : "memory");
      const unsigned missing = ~__ballot_sync(~0u, count == min(COUNTED, pieces - mine));
      ready += missing ? __ffs(missing) - 1 : 32;
    }
    __syncwarp();
    if (lane == 0) asm volatile("fence.proxy.async;" ::: "memory");  // what others stored, TMA reads
  }
  // A piece: its line, and which of the line's it is.
  struct Piece {
    int line, of_line;
    __device__ __forceinline__ Piece(int number, int of_lines) : line(number / of_lines), of_line(number % of_lines) {}
    __device__ __forceinline__ void move(const Piece& by, int of_lines) {
      of_line += by.of_line, line += by.line;
      if (of_line >= of_lines) of_line -= of_lines, ++line;
    }
    __device__ __forceinline__ int along() const { return of_line * PIECE - BEFORE; }
  };
  // n / by, with the inverse 0xFFFFFFFF / by.
  __device__ __forceinline__ static unsigned divided(unsigned n, unsigned by, unsigned inverse) {
    const unsigned found = __umulhi(n, inverse);
    return found + (n - found * by >= by);
  }
  // Asks for the box of a piece.
  __device__ __forceinline__ void begin(const Piece& piece, int warp, int slot, unsigned of_height, unsigned of_depth,
                                        const Sizes& s) const {
    const int slice = divided(piece.line, s.height, of_height), image = divided(slice, s.depth, of_depth);
    const int z = slice - image * s.depth - DEPTH_MARGIN, y = piece.line - slice * s.height - HEIGHT_MARGIN;
    const bool given = image < s.batch && (unsigned)z < x_depth && (unsigned)y < x_height;
    barrier_arrive_expecting(barrier(warp, slot), BOX_BYTES);
    load_of_x(x, barrier(warp, slot), box(warp, slot), piece.along() - WIDTH_MARGIN,
              given ? z * x_height + y : x_depth * x_height, given ? image : 0);
  }
  // Stores a piece whose box has come.
  __device__ __forceinline__ void end(const Piece& piece, int warp, int slot, int which, int lane,
                                      const Sizes& s) const {
    const int chunks = GROUPS * ((s.channels + 7) / 8), along0 = piece.along();
    const int begin = max(along0, 0), end = min(along0 + PIECE, s.width);
    const float* from = static_cast<const float*>(__cvta_shared_to_generic(box(warp, slot))) + lane;
    uint4* to = static_cast<uint4*>(__cvta_shared_to_generic(out(warp, which)));
    auto each = [&](int i, auto then) {  // eight channels of an element; lanes take turns, so that banks differ
      const int part = i / CHUNKS, chunk = (i + lane / (8 / CHUNKS)) % CHUNKS;
      const float* at = from + (chunk * 8 * PIECE + part * 32);
      asm("" : "+l"(at));  // one address, to which instructions add
      __builtin_assume(__isShared(at));
      float v[8];
      unrolled for (int c = 0; c < 8; ++c) v[c] = at[c * PIECE];
      then(v, along0 + part * 32 + lane, chunk);
    };
    bool some_lose = false;
#pragma unroll 2
    for (int i = 0; i < 8; ++i)
      each(i, [&](const float (&v)[8], int along, int chunk) {
        const Eight some(v);
        some_lose |= some.beyond || some.small;
        if (along >= begin && along < end && chunk < chunks) to[(along - along0) * chunks + chunk] = some.packed;
      });
    const long long row0 = piece.line * (long long)s.width;
    if (__any_sync(~0u, some_lose)) {
      rolled for (int i = 0; i < 8; ++i)
        each(i, [&](const float (&v)[8], int along, int) {
          note(Eight(v), v, row0 + along, along >= begin && along < end, noted);
        });
    }
    show_to_tma();
    __syncwarp();
    if (lane == 0 && begin < end)
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                   ::"l"(copied + (row0 + begin) * chunks), "r"(out(warp, which) + (begin - along0) * chunks * 16),
                     "r"((end - begin) * chunks * 16) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  // Counts pieces that were stored, all but so many of the last: those of the first lanes, whose counts these hold.
  template <int NOT_YET> __device__ __forceinline__ void count(int& mine, int& stored, int lane) const {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(NOT_YET) : "memory");
    __syncwarp();
    if (lane < stored - NOT_YET)
      asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(arrived + mine) : "memory");
    mine = __shfl_sync(~0u, mine, stored - NOT_YET + lane), stored = NOT_YET;
  }
  // All pieces of a warp, no further ahead than what has been copied stays in the cache. None is kept back while
  // another is waited for: other blocks may be waiting for it.
  __device__ __forceinline__ void run(int warp, int lane, const Sizes& s) const {
    const int lines = s.copy_rows / s.width, lead = COUNTED + @lead * gridDim.x * POSITIONS / PIECE;
    const unsigned of_height = 0xFFFFFFFFu / s.height, of_depth = 0xFFFFFFFFu / s.depth;
    const Piece step(2 * gridDim.x, pieces_of_line);
    Piece next(blockIdx.x * 2 + warp, pieces_of_line), oldest = next;
    int under_way = 0, mine = 0, stored = 0;
    Ring<UNDER_WAY> to, from;
    while (oldest.line < lines) {
      if (next.line < lines && under_way < UNDER_WAY) {
        int last;
        asm volatile("ld.relaxed.cta.shared.s32 %0, [%1];" : "=r"(last) : "r"(progress) : "memory");
        if (__shfl_sync(~0u, last, 0) >= next.line * pieces_of_line + next.of_line - lead) {
          if (lane == 0) begin(next, warp, to.slot(), of_height, of_depth, s);
          next.move(step, pieces_of_line), ++to.used;
          if (++under_way < UNDER_WAY) continue;
        } else if (under_way == 0) {
          count<0>(mine, stored, lane);
          __nanosleep(200);
          continue;
        }
      }
      barrier_wait(barrier(warp, from.slot()), from.parity());
      asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
      __syncwarp();
      end(oldest, warp, from.slot(), from.used % 2, lane, s);
      if (lane == stored) mine = (oldest.line * pieces_of_line + oldest.of_line) / COUNTED;
      if (++stored > COUNTED_AT_ONCE) count<1>(mine, stored, lane);
      __syncwarp();
      oldest.move(step, pieces_of_line), ++from.used, under_way -= 1;
    }
    count<0>(mine, stored, lane);
  }
};

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

//# From the sums in registers to the result, as text: put in order in shared memory, finished, and stored by lines.
//@ one_address
// An address of global memory that stays one: an instruction adds to it, where a sum of parts takes four.
template <typename T> __device__ __forceinline__ T* one_address(T* address) {
  asm("" : "+l"(address));
  __builtin_assume(__isGlobal(address));
  return address;
}

//@ runs
constexpr int SECTOR = @sector;  // results in 32 bytes
// Results that are worth stores of their own where width has several phases, and a tile has few lines; elsewhere it is
// stored sooner at once.
constexpr int LONG_LINE = WIDTH_PHASES > 1 ? 192 : 0;
// Results that a lane makes together, of one filter or several: while they are on their way a warp has nothing to do.
constexpr int FILTERS_OF_PART = STAGE_ROWS / ROWS_OF_FILTER, STORES = POSITIONS * WIDTH_PHASES / 32 + 1;
constexpr int TOGETHER = STORES < 9 ? STORES : 9, FIT = 20 / TOGETHER >= 4 ? 4 : 20 / TOGETHER >= 2 ? 2 : 1;
constexpr int FILTERS_TOGETHER = FIT < FILTERS_OF_PART ? FIT : FILTERS_OF_PART;

// The results of a tile in one slice of an image, or in one line: in the tile with a gap behind every line, in y side
// by side, but with lines of other kinds between where height has several phases.
struct Run {
  long long place = 0;             // of the first result, of filter 0 of the image
  int count = 0, first = 0;        // results; the first one's number in the tile, WIDTH_PHASES of a position
  int left = 0;                    // results up to the end of the first line
  int apart = 0;                   // results of other kinds in y before the last one
  int head = 0, tail = 0;          // with OVERLAP: results that the tile before may store; that are the next tile's
  __device__ __forceinline__ Run(unsigned number, bool of_line, const Job& here, const Sizes& s, int tile_step) {
    const unsigned slice = of_line ? number / (unsigned)s.height : number, image = slice / (unsigned)s.depth;
    const int z = (slice - image * s.depth) * DEPTH_PHASES + here.kind / HEIGHT_PHASES, y = here.kind % HEIGHT_PHASES;
    if (image >= s.batch || z >= s.y_depth) return;
    const int tile = here.position - slice * (s.height * s.width);  // where the tile begins in the slice
    const int lines = (s.y_height - y + HEIGHT_PHASES - 1) / HEIGHT_PHASES;
    int from = results_before(max(tile, 0), lines, s), to = results_before(tile + here.count, lines, s);
    if (of_line) {
      const int results = (number - slice * s.height) * s.y_width;  // before the line
      from = max(from, results), to = min(to, results + s.y_width);
    }
    if (to <= from) return;
    const int line = from / s.y_width, column = from - line * s.y_width;
    if (OVERLAP && tile_step < POSITIONS) {
      const bool alone = of_line || HEIGHT_PHASES > 1;
      const int end = alone ? (to + s.y_width - 1) / s.y_width : lines;  // of lines without others between
      head = (alone ? column : from) > 0 ? min(SECTOR - 1, alone ? s.y_width - column : SECTOR) : 0;
      tail = min(SECTOR - 1, end * s.y_width - to);
    }
    place = image * GROUPS * (s.filters * s.plane()) +
            ((long long)z * s.y_height + y + line * HEIGHT_PHASES) * s.y_width + column;
    count = to - from, left = s.y_width - column;
    apart = ((to - 1) / s.y_width - line) * (HEIGHT_PHASES - 1) * s.y_width;
    first = (line * s.width - tile) * WIDTH_PHASES + column;
  }
  // That of another lane.
  __device__ __forceinline__ Run(const Run& run, int lane)
      : place(__shfl_sync(~0u, run.place, lane)), count(__shfl_sync(~0u, run.count, lane)),
        first(__shfl_sync(~0u, run.first, lane)), left(__shfl_sync(~0u, run.left, lane)),
        apart(OVERLAP ? __shfl_sync(~0u, run.apart, lane) : 0),
        head(OVERLAP ? __shfl_sync(~0u, run.head, lane) : 0),
        tail(OVERLAP ? __shfl_sync(~0u, run.tail, lane) : 0) {}
  // Results up to the next sector, but no more than there are.
  static __device__ __forceinline__ int to_sector(long long place, int most) {
    return min((int)(-place & (SECTOR - 1)), most);
  }
  // How many results of a slice come before one of its positions.
  static __device__ __forceinline__ int results_before(int position, int lines, const Sizes& s) {
    const int line = position / s.width;
    if (line >= lines) return lines * s.y_width;
    return line * s.y_width + min((position - line * s.width) * WIDTH_PHASES, s.y_width);
  }
};
// Where a result of a filter is in shared memory: `more`, a multiple of 32, behind some number, which is above -32. One
// that the tile has not is some other.
__device__ __forceinline__ int staged_at(int number, int more) {
  const int even = 32 % WIDTH_PHASES == 0 ? 32 : more, n = number + even;
  const unsigned position = n / WIDTH_PHASES + (more - even) / WIDTH_PHASES, phase = (unsigned)n % WIDTH_PHASES;
@place_of_phase
}
// Those of a filter: where the first lies in y, and which of them this tile stores.
struct Line {
  long long at;
  int channel, first, count;
  Line() = default;
  __device__ __forceinline__ Line(const Run& run, int channel0, int filter, int filters_here, const Sizes& s) {
    channel = channel0 + min(filter, filters_here - 1);
    at = run.place + channel * s.plane();
    first = OVERLAP ? run.to_sector(at, run.head) : 0;
    const int last = run.count + (OVERLAP ? run.to_sector(at + run.count + run.apart, run.tail) : 0);
    count = filter < filters_here ? max(0, last - first) : 0;
  }
  __device__ __forceinline__ bool has(int which) const { return (unsigned)(which - first) < (unsigned)count; }
};

//@ nothing_staged
if (lane < STAGE_ROWS) mine[lane * PITCH + POSITIONS] = 0.f;  // what results that no tap meets are made from
__syncwarp();

//@ store_ahead
{  // what is read with the results: on its way to the cache while others are multiplied and stored
  const unsigned slice = here.position / (height * width), of_line = 0xFFFFFFFFu / y_width;
  const int slices = (here.position + here.count - 1) / (height * width) - slice + 1;
  const Run of_lane(slice + lane, false, here, s, tile_step);
  for (int i = 0; i < min(32, slices); ++i) {
    const Run run(of_lane, i);
    rolled for (int k = lane * SECTOR; k < run.count; k += 32 * SECTOR) {
      const int ends = k < run.left ? 0 : 1 + (int)__umulhi(k - run.left + 1, of_line);
      const long long first = run.place + k + ends * (HEIGHT_PHASES - 1) * y_width;
#pragma unroll 4
      for (int row = 0; row < 16 * MI; row += ROWS_OF_FILTER) {  // of those of the warp
        const int filter = (here.row_tile * ROWS + row / 16 * 64 + warp * 16 + row % 16) / ROWS_OF_FILTER;
        const long long at = first + (here.group * filters + filter) * s.plane();
        if (filter >= filters) break;
        @asked
      }
    }
  }
}

//@ scaled
// Sums 4j .. 4j+3 of a lane: columns 8j + 2(lane % 4) and the next, of rows warp * 16 + lane / 4 and 8 further.
const float* my_scales = scales + (here.group * row_tiles + here.row_tile) * ROWS + warp * 16 + lane / 4;
unrolled for (int m = 0; m < MI; ++m) {
  const float scale[2] = {my_scales[m * 64], my_scales[m * 64 + 8]};
  unrolled for (int i = 0; i < POSITIONS / 2; ++i) sum[m][i] *= scale[i / 2 % 2];
}

//@ store
const int gap = width * WIDTH_PHASES - y_width, between = (HEIGHT_PHASES - 1) * y_width;  // lines: here, and in y
const unsigned inverse = 0xFFFFFFFFu / y_width;  // n / y_width is the upper half of (n + 1) * inverse, for small n
// Some filters' results of this lane: number begin of the run, and every 32nd behind it, which lie `apart` from the
// filter's `base`. All that is read for them is asked for first, then all are finished, then all are stored: none waits
// for the one before, and nothing branches. What is in shared memory is read whether there is such a result or not.
auto finish_some = [&](const Line* line, const int* begin, auto source, auto base, auto apart) {
  float value[FILTERS_TOGETHER][TOGETHER];
  @there
  unrolled for (int f = 0; f < FILTERS_TOGETHER; ++f) {
    @from
    unrolled for (int i = 0; i < TOGETHER; ++i) {
      value[f][i] = *source(f, i);
      @read
    }
  }
  unrolled for (int f = 0; f < FILTERS_TOGETHER; ++f) {
    const int channel = line[f].channel;
    @row
    unrolled for (int i = 0; i < TOGETHER; ++i) {
      value[f][i] = @made;
      asm volatile("" : "+f"(value[f][i]));  // made here: else it is read and made in a branch around its store
    }
  }
  unrolled for (int f = 0; f < FILTERS_TOGETHER; ++f) {
    auto* to = one_address(y + base(f));
    unrolled for (int i = 0; i < TOGETHER; ++i)
      if (line[f].has(begin[f] + i * 32)) to[apart(i)] = @stored;
  }
};
// Puts some rows of the sums in order in shared memory: in which filters that begins, and how many they are.
constexpr int PARTS = 16 * MI / STAGE_ROWS;
auto stage = [&](int part, int& channel0, int& filters_here) {
  const int row0 = here.row_tile * ROWS + part * STAGE_ROWS / 16 * 64 + warp * 16 + part * STAGE_ROWS % 16;
  const int filter0 = (ROW_KINDS > 1 ? row0 % ROWS_OF_KIND : row0) / ROWS_OF_FILTER;
  channel0 = here.group * filters + filter0, filters_here = min(FILTERS_OF_PART, filters - filter0);
  if (filters_here <= 0) return;
  __syncwarp();
  unrolled for (int one = 0; one < PARTS; ++one) {  // registers have names, not numbers: code for each part
    const int m = one * STAGE_ROWS / 16, upper = one * STAGE_ROWS / 8 % 2, first_lane = one * STAGE_ROWS % 8 * 4;
    if (one != part || lane < first_lane || lane >= first_lane + STAGE_ROWS * 4) continue;
    float* to = mine + (lane - first_lane) / 4 * PITCH + lane % 4 * 2;
    unrolled for (int j = 0; j < POSITIONS / 8; ++j)
      *reinterpret_cast<float2*>(to + j * 8) = make_float2(sum[m][j * 4 + upper * 2], sum[m][j * 4 + upper * 2 + 1]);
  }
  __syncwarp();
};
// Results that lie side by side: of a slice, where its lines follow each other; of a line, if that is long. Every
// store begins where a line of the cache does, and tiles meet at sectors: pieces of those are dear. A second line takes
// as long as a whole tile does: where lines begin with sectors anyway, only tiles within a line are stored so.
const bool follow = gap == 0 && between == 0, is_within = here.position % width + tile_step <= width;
const bool by_lines = LONG_LINE > 0 && !follow && y_width >= LONG_LINE && (is_within || y_width % SECTOR != 0);
const int length = by_lines ? width : height * width;
const unsigned first_run = here.position / length;
const int runs = (here.position + here.count - 1) / length - first_run + 1;
Job of_warp = here;
if (ROW_KINDS > 1) of_warp.kind += warp * 16 / ROWS_OF_KIND;  // 64 rows: those of a warp are of one kind
rolled for (int run0 = 0; run0 < runs; run0 += 32) {
  const Run of_lane(first_run + run0 + lane, by_lines, of_warp, s, tile_step);
  int channel0, filters_here;
  if (follow || by_lines) {
    rolled for (int part = 0; part < PARTS; ++part) {
      stage(part, channel0, filters_here);
      rolled for (int i = 0; i < min(32, runs - run0); ++i) {
        const Run run(of_lane, i);
        if (run.count == 0) continue;
        rolled for (int filter = 0; filter < filters_here; filter += FILTERS_TOGETHER) {
          Line line[FILTERS_TOGETHER];
          int begin[FILTERS_TOGETHER];
          unrolled for (int f = 0; f < FILTERS_TOGETHER; ++f) {
            line[f] = Line(run, channel0, filter + f, filters_here, s);
            begin[f] = lane - (int)(line[f].at & 31);
          }
          const float* from = mine + filter * ROWS_OF_FILTER * PITCH;
          rolled for (int done = 0; done < run.count + run.tail + 31; done += TOGETHER * 32) {
            auto source = [&](int f, int i) {
              return from + f * ROWS_OF_FILTER * PITCH + staged_at(run.first + begin[f], i * 32);
            };
            finish_some(
                line, begin, source, [&](int f) { return line[f].at + begin[f]; }, [](int i) { return i * 32; });
            unrolled for (int f = 0; f < FILTERS_TOGETHER; ++f) begin[f] += TOGETHER * 32;
          }
        }
      }
    }
    continue;
  }
  // Short lines, others or gaps between them: where results are found behind an end is the same for all filters.
  rolled for (int slice = 0; slice < min(32, runs - run0); ++slice) {
    const Run run(of_lane, slice);
    if (run.count == 0) continue;
    rolled for (int done = -(int)(run.place % SECTOR); done < run.count + run.tail; done += TOGETHER * 32) {
      int found[TOGETHER], apart[TOGETHER], begin[FILTERS_TOGETHER];
      unrolled for (int i = 0; i < TOGETHER; ++i) {
        const int k = done + lane + i * 32;
        const int ends = k < run.left ? 0 : 1 + (int)__umulhi(k - run.left + 1, inverse);
        const int number = run.first + k + ends * gap;
        apart[i] = k + ends * between;
        found[i] = staged_at(number, 0);
      }
      rolled for (int part = 0; part < PARTS; ++part) {
        stage(part, channel0, filters_here);
        rolled for (int filter = 0; filter < filters_here; filter += FILTERS_TOGETHER) {
          Line line[FILTERS_TOGETHER];
          unrolled for (int f = 0; f < FILTERS_TOGETHER; ++f)
            line[f] = Line(run, channel0, filter + f, filters_here, s), begin[f] = done + lane;
          const float* from = mine + filter * ROWS_OF_FILTER * PITCH;
          finish_some(
              line, begin, [&](int f, int i) { return from + f * ROWS_OF_FILTER * PITCH + found[i]; },
              [&](int f) { return line[f].at; }, [&](int i) { return apart[i]; });
        }
      }
    }
  }
}

//# What a consumer multiplies for a job, as text: the products of rows of taps.
//@ row_products
unrolled for (int slot = 0; slot < SLOTS; ++slot) {
  const int x_slot = x_ring.slot();
  barrier_wait(x_full + x_slot * 8, x_ring.parity());
@lines
  unrolled for (int i = FIRST_BLOCK[slot]; i < FIRST_BLOCK[slot + 1]; ++i) {
    const int w_slot = RESIDENT ? weight : w_ring.slot();
    if (!RESIDENT) barrier_wait(w_full + w_slot * 8, w_ring.parity());
    // A shift along the width is a whole number of rows: the descriptor moves by so many.
    const int rows = BLOCK_SHIFT[i] - SLOT_FIRST[slot]@rows_of_line;
    const uint64_t a = w_slots + (w_slot * WEIGHT_BYTES >> 4);
    const uint64_t b = x_slots + ((x_slot * X_SLOT + rows * ROW_BYTES) >> 4);
    @multiply
    if (!RESIDENT && w_before >= 0) release(w_empty, w_before);
    if (i == FIRST_BLOCK[slot]@first_line && x_before >= 0) release(x_empty, x_before);
    w_before = w_slot, ++w_ring.used, ++weight;
  }
  x_before = x_slot, ++x_ring.used;
}

//@ rows_one_by_one
[[maybe_unused]] const int lines = here.lines(), line_rows = here.line_rows(width);
[[maybe_unused]] int line = 0;
rolled for (int i = here.pairs() * channel_blocks; i > 0; i--) {

//@ rows_of_a_slot
const int lines = here.lines(), line_rows = here.line_rows(width);
rolled for (int i = here.pairs() / lines * channel_blocks; i > 0; i--) {

//@ lines
  rolled for (int line = 0; line < lines; ++line)

//@ multiply
wgmma_fence();
unrolled for (int step = 0; step < STEPS; ++step)@along
  unrolled for (int m = 0; m < MI; ++m)
    wgmma(@sum[m], a + ((m * 64 * ROW_BYTES + step * 32) >> 4), b + @step, @before || step);
wgmma_commit();
wgmma_wait<1>();  // the products before these are done: what they read may be filled again

//@ planar_products
unrolled for (int slot = 0; slot < SLOTS; ++slot) {
  const int x_slot = x_ring.slot();
  barrier_wait(x_full + x_slot * 8, x_ring.parity());
  rolled for (int line = 0; line < lines; ++line) {
    const int w_slot = RESIDENT ? weight : w_ring.slot();
    if (!RESIDENT) barrier_wait(w_full + w_slot * 8, w_ring.parity());
    const uint64_t a = w_slots + (w_slot * WEIGHT_BYTES >> 4), b = x_slots + (x_slot * X_SLOT >> 4) + line * line_rows;
    @multiply
    if (!RESIDENT && w_before >= 0) release(w_empty, w_before);
    if (line == 0 && x_before >= 0) release(x_empty, x_before);
    w_before = w_slot, ++w_ring.used, ++weight;
  }
  x_before = x_slot, ++x_ring.used;
}

//# The same for one line after the other.
//@ planar_sums
unrolled for (int slot = 0; slot < SLOTS; ++slot) {
  const int x_slot = x_ring.slot(), w_slot = RESIDENT ? weight : w_ring.slot();
  if (line == 0) barrier_wait(x_full + x_slot * 8, x_ring.parity());
  if (!RESIDENT) barrier_wait(w_full + w_slot * 8, w_ring.parity());
  const uint64_t a = w_slots + (w_slot * WEIGHT_BYTES >> 4), b = x_slots + (x_slot * X_SLOT >> 4) + line * line_rows;
  @multiply
  if (!RESIDENT && w_before >= 0) release(w_empty, w_before);
  if (line == 0 && x_before >= 0) release(x_empty, x_before);
  w_before = w_slot, ++w_ring.used, ++weight;
  if (!TALL || ++line == lines) line = 0, x_before = x_slot, ++x_ring.used;
}

//@ step
// Eights of k in a slot: of single positions, then what those have beyond eight, of neighbours side by side.
__device__ constexpr int CHUNK_AT[2 * STEPS] = {@at};
__device__ __forceinline__ uint64_t step_at(int step) {  // where two of them begin, and how far apart they are
  return (CHUNK_AT[2 * step] >> 4) + ((uint64_t)(CHUNK_AT[2 * step + 1] - CHUNK_AT[2 * step]) >> 4 << 16);
}

//@ sum_of_rows
float some[MI][POSITIONS / 2];  // the sum over a few rows of taps: tensor cores cut bits off when they add
@first
rolled for (const int last = max(1, i - ROWS_TOGETHER + 1); ROWS_TOGETHER > 1 && i > last; i--) {
  @others
}
wgmma_wait<0>();
unrolled for (int j = 0; j < MI * POSITIONS / 2; ++j)
  sum[j / (POSITIONS / 2)][j % (POSITIONS / 2)] += some[j / (POSITIONS / 2)][j % (POSITIONS / 2)];

//@ halves
// While one half of the positions is multiplied the sums of the other are added up, over three rows of taps.
constexpr int SLOT_STEPS[] = {@steps};
float some[2][MI][POSITIONS / 4];  // tensor cores cut bits off when they add
auto begin_row = [&] {
  unrolled for (int slot = 0; slot < SLOTS; ++slot, ++x_ring.used, ++w_ring.used, ++weight) {
    barrier_wait(x_full + x_ring.slot() * 8, x_ring.parity());
    if (!RESIDENT) barrier_wait(w_full + w_ring.slot() * 8, w_ring.parity());
  }
};
auto multiply = [&](int half) {
  wgmma_fence();
  unrolled for (int slot = 0; slot < SLOTS; ++slot) {
    const int x_slot = (x_ring.used - SLOTS + slot) % X_SLOTS;
    const int w_slot = RESIDENT ? weight - SLOTS + slot : (w_ring.used - SLOTS + slot) % W_SLOTS;
    const uint64_t a = w_slots + (w_slot * WEIGHT_BYTES >> 4);
    const uint64_t b = x_slots + (x_slot * X_SLOT >> 4) + half * (POSITIONS / 2);  // a row of a plane is 16 bytes
    unrolled for (int step = 0; step < SLOT_STEPS[slot]; ++step)@along
      unrolled for (int m = 0; m < MI; ++m)
        wgmma(some[half][m], a + ((m * 64 * ROW_BYTES + step * 32) >> 4), b + @step, slot || step);
  }
  wgmma_commit();
};
auto add = [&](int half) {
  unrolled for (int j = 0; j < MI * POSITIONS / 4; ++j)
    sum[j / (POSITIONS / 4)][half * (POSITIONS / 4) + j % (POSITIONS / 4)] +=
        some[half][j / (POSITIONS / 4)][j % (POSITIONS / 4)];
};
auto release_row = [&](int before) {  // so many slots before those to come
  for (int slot = 0; slot < SLOTS; ++slot) {
    if (!RESIDENT) release(w_empty, (w_ring.used - before + slot) % W_SLOTS);
    release(x_empty, (x_ring.used - before + slot) % X_SLOTS);
  }
};
auto rows_of_taps = [&](auto count) {
  unrolled for (int row = 0; row < count(); ++row) {
    begin_row();
    multiply(0);
    if (row > 0) {
      wgmma_wait<1>();
      release_row(2 * SLOTS);
      add(1);
    }
    multiply(1);
    wgmma_wait<1>();
    add(0);
  }
  wgmma_wait<0>();
  release_row(SLOTS);
  add(1);
};
if (i >= 3)  // nothing is on its way from one branch to another: the assembler would put all one after the other
  rows_of_taps([] { return 3; }), i -= 2;
else
  rows_of_taps([] { return 1; });

//@ empty
if (here.pairs() == 0) {  // no tap meets such results
  unrolled for (int i = 0; i < MI * POSITIONS / 2; ++i) sum[i / (POSITIONS / 2)][i % (POSITIONS / 2)] = 0.f;
}

//# The kernel that multiplies, as text: a producer, two consumers that take turns, and the store of what they have.
//@ job
constexpr int ROWS = 64 * MI, POSITIONS = @positions / MI;  // of a tile of the product
constexpr int ROWS_OF_KIND = ROWS / ROW_KINDS;
constexpr int PAIRS = FIRST_PAIR[KINDS];

// Sizes that follow from a call's: of the copied input, in rows for positions, and of the result.
struct Sizes {
  int batch, channels, filters, depth, height, width, copy_rows;  // a copy for every combination of input phases
  int y_depth, y_height, y_width;
  __device__ __forceinline__ long long plane() const { return (long long)y_depth * y_height * y_width; }
};

// A tile of positions, of some filters of one kind. Tiles follow each other over all positions, or begin anew with
// every slice that has results, where that makes fewer: then a slice has slice_tiles.
struct Job {
  int position, count, kind, group, row_tile;  // count: of positions
  __device__ __forceinline__ Job(int job, int row_tiles, int tile_step, int slice_tiles, const Sizes& s) {
    const int of_position = GROUPS * row_tiles, all_kinds = job / MADE_KINDS, rest = all_kinds % of_position;
    const int tile = all_kinds / of_position;
    position = tile * tile_step, count = tile_step;
    if (slice_tiles) {
      const int slice = tile / slice_tiles, slices = (s.y_depth + DEPTH_PHASES - 1) / DEPTH_PHASES;
      const int of_slice = (tile - slice * slice_tiles) * tile_step, lines = (s.y_height - 1) / HEIGHT_PHASES + 1;
      position = (slice / slices * s.depth + slice % slices) * s.height * s.width + of_slice;
      count = min(tile_step, lines * s.width - of_slice);
    }
    row_tile = rest % row_tiles, group = rest / row_tiles, kind = MADE_KIND[job % MADE_KINDS];
  }
  // A block's first job, and the next: all kinds of some positions, so that lines that share a sector are stored soon
  // after each other.
  static __device__ __forceinline__ int first() { return blockIdx.x * KINDS_OF_BLOCK; }
  static __device__ __forceinline__ int next(int job) {
    return job % KINDS_OF_BLOCK + 1 < KINDS_OF_BLOCK ? job + 1 : job + 1 + (gridDim.x - 1) * KINDS_OF_BLOCK;
  }
  __device__ __forceinline__ int pairs() const { return FIRST_PAIR[kind + 1] - FIRST_PAIR[kind]; }
  // Pairs, one after the other, that a slot serves; and rows of the copied input from one to the next.
  __device__ __forceinline__ int lines() const { return TALL ? KIND_LINES[kind] : 1; }
  __device__ __forceinline__ int line_rows(int width) const {
    const int first = FIRST_PAIR[kind];
    return lines() > 1 ? (PAIR_HEIGHT[first + 1] - PAIR_HEIGHT[first]) * width : 0;
  }
};

// The first row of the copied input that a slot holds for the position 0.
__device__ __forceinline__ int row_of(int pair, int slot, const Sizes& s) {
  return (PAIR_COPY[pair] * WIDTH_COPIES + SLOT_COPY[slot]) * s.copy_rows +
         (PAIR_DEPTH[pair] * s.height + PAIR_HEIGHT[pair]) * s.width + SLOT_FIRST[slot];
}

// Where a position of some kind stores: 16 times the place of its first result, plus how many results it has.
__device__ __forceinline__ long long place_of(unsigned position, int kind, const Sizes& s) {
  const unsigned line = position / (unsigned)s.width, slice = line / (unsigned)s.height;
  const unsigned image = slice / (unsigned)s.depth;
  const int x = (position - line * s.width) * WIDTH_PHASES;
  const int y = (line - slice * s.height) * HEIGHT_PHASES + kind % HEIGHT_PHASES;
  const int z = (slice - image * s.depth) * DEPTH_PHASES + kind / HEIGHT_PHASES;
  if (image >= s.batch || x >= s.y_width || y >= s.y_height || z >= s.y_depth) return 0;
  const long long place = image * GROUPS * (s.filters * s.plane()) + ((long long)z * s.y_height + y) * s.y_width + x;
  return place * 16 + min(WIDTH_PHASES, s.y_width - x);
}

//# A row of the copied input, and of a block of weights, is STEPS times 16 channels long.
//@ row_shape
constexpr int ROW_BYTES = STEPS == 1 ? 32 : STEPS == 2 ? 64 : 128;  // of STEPS * 16 channels, in shared memory
constexpr int BOXES = (POSITIONS + HALO + 255) / 256, BOX_ROWS = (POSITIONS + HALO + 8 * BOXES - 1) / (8 * BOXES) * 8;
constexpr int X_BYTES = BOXES * BOX_ROWS * ROW_BYTES, X_SLOT = (X_BYTES + 1023) / 1024 * 1024;

//@ planar_shape
constexpr int ROW_BYTES = STEPS == 1 ? 32 : STEPS == 2 ? 64 : 128;  // of weights for STEPS * 16 of k
constexpr int PLANES = @planes, PLANE_ROWS = (POSITIONS + HALO + 7) / 8 * 8, PLANE_BYTES = PLANE_ROWS * 16;
constexpr int X_BYTES = PLANES * PLANE_BYTES, X_SLOT = (X_BYTES + 1023) / 1024 * 1024;

//@ shape
constexpr int WEIGHT_BYTES = ROWS * ROW_BYTES;
constexpr uint64_t SWIZZLE = (uint64_t)(ROW_BYTES == 128 ? 1 : ROW_BYTES == 64 ? 2 : 3) << 62;
constexpr int STAGE_ROWS = MI == 1 ? 4 : 8, PITCH = POSITIONS + 8;  // what a warp puts in order: rows, floats of each

//@ bulk
__device__ __forceinline__ void prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// TMA: the box of `map` at x, y
__device__ __forceinline__ void load_box(const CUtensorMap* map, uint32_t barrier, uint32_t to, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%3, %4}], [%2];"
               ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");
}

//@ load_plane
__device__ __forceinline__ void load_bytes(const void* from, uint32_t barrier, uint32_t to, uint32_t bytes) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

//@ load_of_rows
for (int box = 0; box < BOXES; ++box)
  load_box(&copied_map, to_come, to + box * BOX_ROWS * ROW_BYTES,
           here.group * ((channels + 7) / 8 * @held) + block * STEPS * 16,
           here.position + row_of(pair, slot, s) + box * BOX_ROWS);

//@ load_of_planes
for (int plane = 0; plane < PLANES; ++plane) {
  const long long all_rows = (long long)DEPTH_MODULUS * HEIGHT_MODULUS * WIDTH_COPIES * copy_rows;
  const long long row = (here.group * PLANES + plane) * all_rows + here.position + row_of(pair, slot, s);
  load_bytes(copied + row, to_come, to + plane * PLANE_BYTES, PLANE_BYTES);
}

//@ of_columns
// Of a consumer: parts that warps have of its positions, and what these come to.
float* of_warps = mine - warp * STAGE_ROWS * PITCH;
float* of_columns = reinterpret_cast<float*>(shared + (staged - w_at)) + 8 * STAGE_ROWS * PITCH;
of_columns += consumer * @kept_of_columns * COLUMN_VALUES;

//@ ring
// A ring of slots in shared memory, used one after the other: which is next, and the parity of its phase.
template <int COUNT> struct Ring {
  uint32_t used = 0;
  __device__ __forceinline__ int slot() const { return used % COUNT; }
  __device__ __forceinline__ uint32_t parity() const { return used / COUNT & 1; }
};

//@ kernel
extern __shared__ __align__(1024) char shared[];  // swizzled tiles need 1024-byte bases
@known
@sizes
const int w_count = RESIDENT ? PAIRS * channel_blocks * WIDTH_BLOCKS : W_SLOTS;
const uint32_t w_at = (uint32_t)__cvta_generic_to_shared(shared), x_at = w_at + w_count * WEIGHT_BYTES;
const uint32_t staged = x_at + X_SLOTS * X_SLOT, x_full = staged + (8 * STAGE_ROWS * PITCH@kept) * 4;
const uint32_t x_empty = x_full + X_SLOTS * 8, w_full = x_empty + X_SLOTS * 8, w_empty = w_full + W_SLOTS * 8;
const uint32_t turn = w_empty + W_SLOTS * 8;
@known_of_copy
const int thread = threadIdx.x % 128, warpgroup = threadIdx.x / 128;  // two consumers, then the producers
if (threadIdx.x == 0) {
  if (w_at % 1024) __trap();
  @prefetch;
  for (int i = 0; i < X_SLOTS; ++i) barrier_init(x_full + i * 8, 1), barrier_init(x_empty + i * 8, 1);
  for (int i = 0; i < W_SLOTS; ++i) barrier_init(w_full + i * 8, 1), barrier_init(w_empty + i * 8, 1);
  barrier_init(turn, 1), barrier_init(turn + 8, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__syncthreads();
cudaTriggerProgrammaticLaunchCompletion();
cudaGridDependencySynchronize();
Ring<X_SLOTS> x_ring;
Ring<W_SLOTS> w_ring;

if (warpgroup == 2) {  // ---- producers: a thread for the input, one for the weights
  asm volatile("setmaxnreg.dec.sync.aligned.u32 @few_registers;");
  if (thread @loaders) {
    @ready
    for (int job = Job::first(); job < jobs; job = Job::next(job)) {
      const Job here(job, row_tiles, tile_step, slice_tiles, s);
      @copy_is_there
      for (int block = 0; block < channel_blocks; ++block)
        for (int pair = FIRST_PAIR[here.kind]; pair < FIRST_PAIR[here.kind + 1]; pair += here.lines())
          for (int slot = 0; slot < SLOTS; ++slot, ++x_ring.used) {
            const uint32_t to = x_at + x_ring.slot() * X_SLOT, to_come = x_full + x_ring.slot() * 8;
            barrier_wait(x_empty + x_ring.slot() * 8, x_ring.parity() ^ 1);
            barrier_arrive_expecting(to_come, X_BYTES);
            @load
          }
    }
    @all_loaded
  } else if (thread == 32) {
    for (int job = Job::first(); job < jobs; job = Job::next(job)) {
      const Job here(job, row_tiles, tile_step, slice_tiles, s);
      const int first = FIRST_PAIR[here.kind] * channel_blocks * WIDTH_BLOCKS;
      const int count = here.pairs() * channel_blocks * WIDTH_BLOCKS;
      if (RESIDENT) barrier_arrive_expecting(w_full, count * WEIGHT_BYTES);  // all jobs of the block have the same
      for (int i = 0; i < count; ++i, ++w_ring.used) {
        const int slot = RESIDENT ? i : w_ring.slot();
        if (!RESIDENT) barrier_wait(w_empty + slot * 8, w_ring.parity() ^ 1);
        if (!RESIDENT) barrier_arrive_expecting(w_full + slot * 8, WEIGHT_BYTES);
        const int row = (((first + i) * GROUPS + here.group) * row_tiles + here.row_tile) * ROWS;
        load_box(&weight_map, w_full + (RESIDENT ? 0 : slot * 8), w_at + slot * WEIGHT_BYTES, 0, row);
      }
      if (RESIDENT) break;
    }
  @copies
  }
} else {  // ---- consumers, on alternate jobs: one multiplies while the other stores
  asm volatile("setmaxnreg.inc.sync.aligned.u32 @many_registers;");
  const int consumer = warpgroup, lane = thread % 32, warp = thread / 32;
  const uint64_t w_slots = descriptor(w_at, 16, 8 * ROW_BYTES, SWIZZLE);
  @x_slots
  float* mine = reinterpret_cast<float*>(shared + (staged - w_at)) + (consumer * 4 + warp) * STAGE_ROWS * PITCH;
  @nothing
  @of_columns
  auto release = [&](uint32_t barriers, int slot) {
    if (thread == 0) barrier_arrive(barriers + slot * 8);
  };
  uint32_t my_turn = consumer ^ 1;
  if (RESIDENT && Job::first() < jobs) barrier_wait(w_full, 0);
  int others = consumer;  // jobs of the other consumer come between
  for (int job = Job::first(); job < jobs; job = Job::next(job), others ^= 1) {
    const Job here(job, row_tiles, tile_step, slice_tiles, s);
    if (others) {
      const int stages = here.pairs() * channel_blocks;
      x_ring.used += stages / here.lines() * SLOTS, w_ring.used += stages * WIDTH_BLOCKS;
      continue;
    }
    @ahead
    // The consumers take turns at multiplying, so that one tile has the tensor cores, and a slot's next use is not
    // looked for before its last has been seen. None gives a turn on before all warps have seen it: a job may be empty.
    barrier_wait(turn + consumer * 8, my_turn);
    consumer_sync(consumer);
    my_turn ^= 1;
    float sum[MI][POSITIONS / 2]@zero;
    int w_before = -1, x_before = -1, weight = 0;
    @loop
      @products
    }
    release(turn, consumer ^ 1);
    wgmma_wait<0>();
    if (!RESIDENT && w_before >= 0) release(w_empty, w_before);
    if (x_before >= 0) release(x_empty, x_before);
    @empty
    @scaled
    @channels
    @store
  }
}

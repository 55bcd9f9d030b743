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

//@ ahead
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

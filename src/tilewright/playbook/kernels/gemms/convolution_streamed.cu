//# The kernel of streamed convolutions, as text: how weights are kept, x brought, multiplied and stored.

//@ weights
// A warp takes a filter: for f16 scaled by a power of two, which brings its largest weight to 8 .. 16, and in the order
// in which lanes hold channels. The chunks of a row change places with its number, as wgmma expects them.
__device__ __forceinline__ void keep_weights(const float* weight, unsigned char* kept, float* inverse, int* lost,
                                             int f0, int filters) {
  const int lane = threadIdx.x % 32;
  for (int f = threadIdx.x / 32; f < N; f += THREADS / 32) {
    auto weight_at = [&](int c, int tap) {
      const bool inside = f0 + f < filters && c < CHANNELS;
      return inside ? weight[@weight_at] : 0.f;
    };
    uint32_t largest = 0;
#pragma unroll 8
    for (int i = lane; !TF32 && i < CHANNELS * TAPS; i += 32)
      largest = max(largest, __float_as_uint(weight_at(i / TAPS, i % TAPS)) & 0x7FFFFFFF);
    largest = __reduce_max_sync(~0u, largest);
    const int exponent = min(max((int)(largest >> 23) - 127, -100), 127);
    const float scale = largest ? __uint_as_float((uint32_t)(127 + 3 - exponent) << 23) : 1.f;
    int losing = 0, used = 0;
#pragma unroll 8
    for (int i = lane; i < PADDED * TAPS; i += 32) {
      const int c = i / TAPS, tap = i % TAPS, of_step = c % 16;
      const float v = weight_at(c, tap) * scale;
      losing += v != 0.f && fabsf(v) < 0x1p-14f, used += v != 0.f;
      const int in_order = of_step / 8 * 8 + of_step % 4 * 2 + of_step / 4 % 2;
      const int place = c % PER_ROW / 16 * 16 + (TF32 ? of_step : in_order);
      const int swizzle = ROW_BYTES == 128 ? f % 8 : ROW_BYTES == 64 ? f / 2 % 4 : f / 4 % 2;
      const int row = (@tap * CHANNEL_BLOCKS + c / PER_ROW) * N + f;
      unsigned char* to = kept + row * ROW_BYTES + (place / PER_CHUNK ^ swizzle) * 16 + place % PER_CHUNK * BYTES;
      if constexpr (TF32) *reinterpret_cast<uint32_t*>(to) = tf32(v);
      else *reinterpret_cast<__half*>(to) = __float2half_rn(v);
    }
    losing = __reduce_add_sync(~0u, losing), used = __reduce_add_sync(~0u, used);
    if (lane == 0) inverse[f] = 1.f / scale;
    if (!TF32 && lane == 0 && (largest >= 0x7F800000 || losing * 16 > used)) *lost = 1;
  }
}

//@ device
__device__ __forceinline__ void load_box(const CUtensorMap* map, uint32_t barrier, uint32_t to, int x, int y, int c,
                                         int n) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%3, %4, %5, %6}], [%2];"
               ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(c), "r"(n) : "memory");
}
// Whether it is so for any of the 128 threads of a consumer, which wait for each other.
__device__ __forceinline__ bool consumer_any(int consumer, bool is_so) {
  int found;
  asm volatile("{ .reg .pred p, q; setp.ne.b32 p, %1, 0; barrier.cta.red.or.pred q, %2, 128, p; selp.b32 %0, 1, 0, q; }"
               : "=r"(found) : "r"((int)is_so), "r"(1 + consumer) : "memory");
  return found;
}
__device__ __forceinline__ uint32_t tf32(float v) {
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(v));
  return rounded;
}
__device__ __forceinline__ uint32_t as_halves(float low, float high) {
  uint32_t halves;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(high), "f"(low));
  return halves;
}
// Whether f16 has fewer digits of a number than TF32.
__device__ __forceinline__ bool is_small(float magnitude) { return magnitude > 0.f && magnitude < 0x1p-14f; }
// The larger magnitude; NaN where there is one.
__device__ __forceinline__ float larger(float most, float v) {
  float found;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(most), "f"(fabsf(v)));
  return found;
}
// Whether a lane's place i of x, of its window of WINDOW, is an operand of any of its four results.
constexpr __host__ __device__ bool is_used(int i) {
  for (int result = 0; result < 4; ++result)
    for (int tap = 0; tap < WIDTH_TAPS; ++tap)
      if (LEAD + result * STRIDE + tap * DILATION == i) return true;
  return false;
}
// A tile of positions: where it begins.
struct Tile {
  int image, y, x;
  __device__ __forceinline__ Tile(int tile, int tiles_x, int tiles_y) {
    const int line = tile / tiles_x;
    x = (tile - line * tiles_x) * TILE_STEP, image = line / tiles_y, y = (line - image * tiles_y) * LINES;
  }
};
// Which results of a line of the tile, the first of which is number `at` of y, the tile stores: where tiles overlap,
// they meet at sectors of 32 bytes, pieces of which are dear.
struct Owned {
  int begin, end;
  __device__ __forceinline__ Owned(const Tile& here, long long at, int y_width) {
    const int to_sector = STAGED ? -(int)at & 7 : 0;
    begin = here.x == 0 ? 0 : to_sector;
    end = here.x + POSITIONS >= y_width ? y_width - here.x : TILE_STEP + to_sector;
  }
};

//@ body
extern __shared__ __align__(1024) unsigned char shared[];
float* slots = reinterpret_cast<float*>(shared + WEIGHT_BYTES);
float* staged = slots + CONSUMERS * SLOTS * SLOT_FLOATS;
float* inverse = staged + (STAGED ? CONSUMERS * 2 * STAGED_FLOATS : 0);  // of the weights' scales
int* lost = reinterpret_cast<int*>(inverse + N);                          // whether f16 does not hold the weights
const uint32_t w_at = static_cast<uint32_t>(__cvta_generic_to_shared(shared)), slots_at = w_at + WEIGHT_BYTES;
const uint32_t full = static_cast<uint32_t>(__cvta_generic_to_shared(lost + 2)), empty = full + CONSUMERS * SLOTS * 8;
const int f0 = blockIdx.x % row_tiles * N, first = blockIdx.x / row_tiles, blocks = gridDim.x / row_tiles;
const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
if (threadIdx.x == 0) {
  *lost = 0;
  for (int i = 0; i < CONSUMERS * SLOTS; ++i) barrier_init(full + i * 8, 1), barrier_init(empty + i * 8, 4);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__syncthreads();
// A thread for each consumer fills its ring: CB channels of a line of x at a time, zeros outside of x.
auto bring = [&](int consumer, int tile, int from, int to, int& filled) {
  const Tile here(tile, tiles_x, tiles_y);
  for (int i = from; i < to; ++i, ++filled) {
    const int slot = consumer * SLOTS + filled % SLOTS, line = i / STAGES;
    barrier_wait(empty + slot * 8, filled / SLOTS % 2 ^ 1);
    barrier_arrive_expecting(full + slot * 8, SLOT_FLOATS * 4);
    unrolled for (int box = 0; box < BOXES; ++box)
      load_box(&x_map, full + slot * 8, slots_at + (slot * SLOT_FLOATS + box * CB * PITCH) * 4,
               (here.x + box * (POSITIONS / BOXES)) * STRIDE - PADDING - LEAD,
               here.y * LINE_STRIDE + line * LINE_DILATION - LINE_PADDING, i % STAGES * CB, here.image);
  }
};
const int brought = warp - CONSUMERS * 4;  // whose ring the warp fills
int filled = 0, tile = first * CONSUMERS + brought;
const bool brings = lane == 0 && brought >= 0 && brought < CONSUMERS;
constexpr int AT_ONCE = SLOTS < IN_LINES * STAGES ? SLOTS : IN_LINES * STAGES;  // before the weights are there
if (brings && tile < tiles) bring(brought, tile, 0, AT_ONCE, filled);
__syncwarp();
keep_weights(weight, shared, inverse, lost, f0, filters);
show_to_tma();
__syncthreads();
if (warp >= CONSUMERS * 4) {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
  for (int from = AT_ONCE; brings && tile < tiles; tile += blocks * CONSUMERS, from = 0)
    bring(brought, tile, from, IN_LINES * STAGES, filled);
  return;
}
asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
const int consumer = warp / 4, of_consumer = warp % 4, pair = lane / 4, quarter = lane % 4;
const uint64_t weights = descriptor(w_at, 16, 8 * ROW_BYTES, SWIZZLE);
// Of a slot: the lane's first channel, and the window of its four results, which lie side by side.
const float* mine = slots + consumer * SLOTS * SLOT_FLOATS + of_consumer / (4 / BOXES) * (CB * PITCH) +
                    quarter * PITCH + (of_consumer % (4 / BOXES) * 32 + pair * 4) * STRIDE;
const long long plane = (long long)y_height * y_width;
int used = 0;
for (int tile = first * CONSUMERS + consumer; tile < tiles; tile += blocks * CONSUMERS) {
  const Tile here(tile, tiles_x, tiles_y);
  float sum[LINES][2][N / 2];
  bool is_lost = *lost;
  unrolled for (int line = 0; line < IN_LINES; ++line) {
    float most[WINDOW] = {};  // at each place of the window, over the lane's channels
#pragma unroll (CB == K ? 2 : 1)
    for (int stage = 0; stage < STAGES; ++stage) {
      const int slot = consumer * SLOTS + used % SLOTS;
      barrier_wait(full + slot * 8, used / SLOTS % 2);
      const float* from = mine + used % SLOTS * SLOT_FLOATS;
      const uint64_t w_stage =
          weights + ((stage * CB / PER_ROW * (N * ROW_BYTES) + stage * CB % PER_ROW * BYTES) >> 4);
      ++used;
      unrolled for (int step = 0; step < CB / K; ++step) {
        // K channels: the lane has those that are quarter, quarter + 4, .. of them; in f16 two and two together.
        uint32_t two[2][WINDOW];
        unrolled for (int h = 0; h < 2; ++h) {
          float of_low = 0.f, of_high = 0.f;  // the largest of each channel's window
          unrolled for (int i = 0; i < WINDOW; i += 4) {
            const float* at = from + (step * K + h * (K / 2)) * PITCH + i;
            const float4 low = *reinterpret_cast<const float4*>(at);
            const float4 high = TF32 ? low : *reinterpret_cast<const float4*>(at + 4 * PITCH);
            const float a[4] = {low.x, low.y, low.z, low.w}, b[4] = {high.x, high.y, high.z, high.w};
            unrolled for (int e = 0; e < 4; ++e) {
              if (!is_used(i + e)) continue;
              two[h][i + e] = TF32 ? tf32(a[e]) : as_halves(a[e], b[e]);
              if (TF32) continue;
              most[i + e] = larger(larger(most[i + e], a[e]), b[e]);
              of_low = fmaxf(of_low, fabsf(a[e])), of_high = fmaxf(of_high, fabsf(b[e]));
            }
          }
          // A channel that is small throughout is what a filter may see alone.
          is_lost |= !TF32 && (is_small(of_low) || is_small(of_high));
        }
        wgmma_fence();
        unrolled for (int made = 0; made < LINES; ++made) {
          const int line_tap = line - made;
          if (line_tap < 0 || line_tap >= LINE_TAPS) continue;
          unrolled for (int tap = 0; tap < WIDTH_TAPS; ++tap)
            unrolled for (int m = 0; m < 2; ++m) {  // rows `pair` and `pair + 8` of the warp's are neighbours
              const int i = LEAD + m * 2 * STRIDE + tap * DILATION;
              const uint32_t a[4] = {two[0][i], two[0][i + STRIDE], two[1][i], two[1][i + STRIDE]};
              const int block = (line_tap * WIDTH_TAPS + tap) * CHANNEL_BLOCKS;
              wgmma(sum[made][m], a, w_stage + ((block * (N * ROW_BYTES) + step * 32) >> 4),
                    line_tap > 0 || tap > 0 || step > 0 || stage > 0);
            }
        }
        wgmma_commit();
        if (step == CB / K - 1) {
          __syncwarp();
          if (lane == 0) barrier_arrive(empty + slot * 8);  // what was in the slot is in registers
        }
        wgmma_wait<1>();  // the registers of the step before may be written
      }
    }
    unrolled for (int i = 0; i < WINDOW; ++i) {  // f16 holds the largest channel of every position, or all are 0
      if (TF32 || !is_used(i)) continue;
      most[i] = larger(most[i], __shfl_xor_sync(~0u, most[i], 1));
      most[i] = larger(most[i], __shfl_xor_sync(~0u, most[i], 2));
      is_lost |= !(most[i] == 0.f || (most[i] >= 0x1p-14f && most[i] <= 65504.f));
    }
  }
  wgmma_wait<0>();
  @again
  unrolled for (int made = 0; made < LINES; ++made) {
    if (here.y + made >= y_height) break;
    const long long row0 = (long long)here.image * filters + f0;
    const long long at0 = row0 * plane + (long long)(here.y + made) * y_width + here.x;
    if constexpr (STAGED) {
      @staged
    } else {
      @direct
    }
  }
}

//@ again
if (consumer_any(consumer, is_lost)) {
  // Numbers that f16 does not hold: the tile in f32, eight filters at once.
  rolled for (int i = 0; i < LINES * ((N + 7) / 8); ++i) {
    const int made = i % LINES, first_filter = f0 + i / LINES * 8, place = threadIdx.x % 128;
    if (here.y + made >= y_height || first_filter >= filters || here.x + place >= y_width) continue;
    float total[8] = {};
    rolled for (int at = 0; at < CHANNELS * TAPS; ++at) {
      const int c = at / TAPS, tap = at % TAPS;
      const int in_y = (here.y + made) * LINE_STRIDE + tap / WIDTH_TAPS * LINE_DILATION - LINE_PADDING;
      const int in_x = (here.x + place) * STRIDE + tap % WIDTH_TAPS * DILATION - PADDING;
      if (in_y < 0 || in_y >= height || in_x < 0 || in_x >= width) continue;
      const float v = x[(((long long)here.image * CHANNELS + c) * height + in_y) * width + in_x];
      unrolled for (int k = 0; k < 8; ++k)
        if (first_filter + k < filters) total[k] = fmaf(v, weight[@again_at], total[k]);
    }
    unrolled for (int k = 0; k < 8; ++k) {
      const int channel = first_filter + k;
      if (channel >= filters) break;
      const long long row = (long long)here.image * filters + channel;
      const long long at0 = row * plane + (long long)(here.y + made) * y_width + here.x, at = at0 + place;
      const Owned owned(here, at0, y_width);
      if (place >= owned.begin && place < owned.end) y[at] = @again_made;
    }
  }
  continue;
}

//@ stage
// 16 filters at a time are put in order in shared memory; then a warp stores four lines of them.
unrolled for (int piece = 0; piece < N / 16; ++piece) {
  float* there = staged + (consumer * 2 + (piece + made * (N / 16)) % 2) * STAGED_FLOATS;
  unrolled for (int j = 0; j < 2; ++j) {
    const float2 scale = *reinterpret_cast<const float2*>(inverse + piece * 16 + j * 8 + quarter * 2);
    unrolled for (int e = 0; e < 2; ++e) {
      const int i = (piece * 2 + j) * 4 + e;
      const float by = TF32 ? 1.f : e ? scale.y : scale.x;
      *reinterpret_cast<float4*>(there + (j * 8 + quarter * 2 + e) * STAGED_PITCH + of_consumer * 32 + pair * 4) =
          make_float4(sum[made][0][i] * by, sum[made][0][i + 2] * by, sum[made][1][i] * by, sum[made][1][i + 2] * by);
    }
  }
  consumer_sync(consumer);
  float value[4][4];
@there
  unrolled for (int k = 0; k < 4; ++k) {
    const int of_tile = piece * 16 + of_consumer * 4 + k;
    const long long at = at0 + of_tile * plane;
    const Owned owned(here, at, y_width);
@from
    unrolled for (int i = 0; i < 4; ++i) {
      const int place = owned.begin + lane + i * 32;
      const bool has = place < owned.end && f0 + of_tile < filters;
      value[k][i] = there[(of_consumer * 4 + k) * STAGED_PITCH + min(place, POSITIONS)];
@read
    }
  }
  unrolled for (int k = 0; k < 4; ++k) {
    const int of_tile = piece * 16 + of_consumer * 4 + k, channel = min(f0 + of_tile, filters - 1);
    const long long row = (long long)here.image * filters + channel;
    const Owned owned(here, at0 + of_tile * plane, y_width);
    float* to = y + at0 + of_tile * plane + owned.begin + lane;
    unrolled for (int i = 0; i < 4; ++i) {
      const float made_value = @made;
      if (owned.begin + lane + i * 32 < owned.end && f0 + of_tile < filters) to[i * 32] = made_value;
    }
  }
}

//@ direct
// Four results that lie side by side are a lane's: whole lines of the cache are a warp's.
const int place = of_consumer * 32 + pair * 4;
if (here.x + place < y_width)
  unrolled for (int j = 0; j < N / 8; ++j) {
    const float2 scale = *reinterpret_cast<const float2*>(inverse + j * 8 + quarter * 2);
    unrolled for (int e = 0; e < 2; ++e) {
      const int of_tile = j * 8 + quarter * 2 + e, channel = f0 + of_tile, i = j * 4 + e;
      if (channel >= filters) continue;
      const long long row = row0 + of_tile, at = at0 + of_tile * plane + place;
      const float by = TF32 ? 1.f : e ? scale.y : scale.x;
      *reinterpret_cast<float4*>(y + at) = make_float4(@four);
    }
  }

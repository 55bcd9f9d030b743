//# A product of f32 matrices whose operands are split into f16 parts by the kernel that multiplies them, as text.

//@ splitting
// ---- f32 as two f16 parts
// A row is scaled by a power of two so that the largest of its first BK magnitudes is in [2^12, 2^13): 2^3 times that
// fits. An element x is then high + low to 2^-23 of x; one that is below 2^-5 keeps fewer than 20 bits, because low has
// no smaller steps than 2^-24, and one below 2^-11 fewer than 14. Left to f32 are tiles with a row of which one element
// in 16 is below the first, or one in 1024 below the second: the rest of such a row may be the result, where what is
// large in it meets zeros. So are tiles with a number that does not fit: its parts are infinities, its sums no numbers.
__device__ __forceinline__ uint32_t largest_of(float4 x) {
  return max(max(magnitude_bits(x.x), magnitude_bits(x.y)), max(magnitude_bits(x.z), magnitude_bits(x.w)));
}
// Scales are 2^-23 at least: all that f32 has with full precision is then counted, and does not become zero before.
__device__ __forceinline__ float scale_with_room(uint32_t largest_bits, int most = 35) {
  const int exponent = largest_bits ? (int)(largest_bits >> 23) - 127 : 0;
  return __uint_as_float((uint32_t)(127 + 12 - min(max(exponent, -60), most)) << 23);
}
// Two scaled numbers as the parts that hold them: the first in the low 16 bits.
__device__ __forceinline__ void split(float x, float y, uint32_t& high, uint32_t& low) {
  high = pack(x, y);
  const float2 held = __half22float2(*reinterpret_cast<const __half2*>(&high));
  low = pack(x - held.x, y - held.y);
}
constexpr float LOSES_BITS = 0x1p-5f, KEEPS_FEW = 0x1p-11f;
// The least magnitude of high parts, of two rows of numbers side by side.
__device__ __forceinline__ void take_least(__half2& least, uint32_t high) {
  least = __hmin2(least, __habs2(*reinterpret_cast<const __half2*>(&high)));
}
__device__ __forceinline__ bool is_losing(__half2 least) {
  return fminf(__low2float(least), __high2float(least)) < LOSES_BITS;
}
// What is known of a row: elements that lose bits, that keep few, and zeros. Only what is below LOSES_BITS is counted,
// and ordinary rows have next to nothing there.
struct SharedCounts {
  int losing, few, zeros;
  __device__ __forceinline__ void add(float scaled) {
    if (scaled == 0.f) atomicAdd(&zeros, 1);
    else if (fabsf(scaled) < LOSES_BITS) {
      atomicAdd(&losing, 1);
      if (fabsf(scaled) < KEEPS_FEW) atomicAdd(&few, 1);
    }
  }
  __device__ __forceinline__ bool is_too_wide(int length) const {
    return losing > 1 + (length - zeros) / 16 || few > (length - zeros) / 1024;
  }
};

//@ beyond
// A row that outgrows its room in registers is scaled anew: high parts of what does not fit are infinities. By GROWTH
// at most: then the few that are below 2^-5 are still exact to 2^-21 of the largest of the first. Further up, what is
// beside one large number would be lost, and go uncounted.
constexpr float GROWTH = 0x1p16f, LEAST_SCALE = 0x1p-23f, GREATEST_SCALE = 0x1p72f;
__device__ __forceinline__ void take_most(__half2& most, uint32_t high) {
  most = __hmax2(most, __habs2(*reinterpret_cast<const __half2*>(&high)));
}
__device__ __forceinline__ bool is_beyond(__half2 most) {
  return fmaxf(__low2float(most), __high2float(most)) > 65504.f;
}

//@ magnitude
__device__ __forceinline__ uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7FFFFFFF; }

//@ shared_float4
__device__ __forceinline__ float4 shared_float4(uint32_t at) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
  return v;
}

//@ consumer
asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
const int consumer = warpgroup, lane = thread % 32, warp = thread / 32;
@row
const uint64_t b_slots = descriptor(@b_slots, @strides);
SharedCounts* of_rows = reinterpret_cast<SharedCounts*>(shared + (counts - slots)) + consumer * 64;

//@ tile
@columns
if (thread < 64) of_rows[thread] = {};
consumer_sync(consumer);
float sum[BN / 2] = {}, @of_two_rows;
@before
for (int step = 0; step < tile.steps; ++step@and_done) {
  const uint32_t from = slots + @done % SLOTS * SLOT_BYTES + (consumer * 64 + row) * 128;
  barrier_wait(full + @done % SLOTS * 8, @done / SLOTS % 2);
  float4 x[2][2];  // of two rows: two times 16 of k
  unrolled for (int i = 0; i < 4; ++i)
    x[i / 2][i % 2] = @read;
@split_a
  if (is_losing(least)) {
    unrolled for (int i = 0; i < 4; ++i) {
      const float4 s = x[i / 2][i % 2];
      SharedCounts& mine = of_rows[row + i / 2 * 8];
      mine.add(s.x), mine.add(s.y), mine.add(s.z), mine.add(s.w);
    }
  }
@free_a
  // low * high + high * low + high * high, the small products first; low * low is below the last bit. Tensor cores cut
  // off bits where they add, so only BK of k are summed there; the sums are added up in f32 registers.
@b_slot
  unrolled for (int half = 0; half < BN / WIDTH; ++half) {
    float some[WIDTH / 2];
    const uint64_t b_half = b_slot + (half * @width >> 4);
    wgmma_fence();
    wgmma(some, low[0], b_half, 0);
    wgmma(some, low[1], b_half + (@k_step >> 4), 1);
    wgmma(some, high[0], b_half + (PART_BYTES >> 4), 1);
    wgmma(some, high[1], b_half + ((PART_BYTES + @k_step) >> 4), 1);
    wgmma(some, high[0], b_half, 1);
    wgmma(some, high[1], b_half + (@k_step >> 4), 1);
    wgmma_commit();
    wgmma_wait<0>();
    if (half == BN / WIDTH - 1 && @free_b;
    unrolled for (int i = 0; i < WIDTH / 2; ++i) sum[half * (WIDTH / 2) + i] += some[i];
  }
}

@column_stores
@done_all
bool too_wide = thread < 64 && of_rows[thread].is_too_wide(tile.steps * BK);
float not_a_number[4] = {};  // short sums side by side
unrolled for (int i = 0; i < BN / 2; ++i) not_a_number[i % 4] = fmaf(sum[i], 0.f, not_a_number[i % 4]);
too_wide = too_wide || (not_a_number[0] + not_a_number[1]) + (not_a_number[2] + not_a_number[3]) != 0.f;
if (too_wide) wide[0] = 1, atomicOr(&wide[1 + @which], -1);
@row_scales

//@ two_pairs
// Two numbers of a swizzled row, and the two that are 8 further on: of 16 bytes number `place`, and two further on.
__device__ __forceinline__ float4 two_pairs(uint32_t row, int place) {
  float4 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(row + place * 16));
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.z), "=f"(v.w) : "r"(row + (place ^ 2) * 16));
  return v;
}

//@ producer
asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
if (threadIdx.x == 256) {
  int done = 0;  // steps, of all tiles
  while (tile.next()) {
    rolled for (int step = 0; step < tile.steps; ++step, ++done) {
      const uint32_t at = slots + done % SLOTS * SLOT_BYTES, arrived = full + done % SLOTS * 8;
      barrier_wait(empty + done % SLOTS * 8, done / SLOTS % 2 ^ 1);
      barrier_arrive_expecting(arrived, SLOT_BYTES);
      load_box(&a_map, arrived, at, step * BK, tile.m0, tile.z);
      unrolled for (int part = 0; part < 2; ++part) {
        const uint32_t to = at + A_BYTES + part * PART_BYTES;
@load_b
      }
    }
  }
}

//@ places
const uint32_t part_slots = slots + SLOTS * SLOT_BYTES, counts = part_slots + PART_SLOTS * 2 * PART_BYTES;
const uint32_t scales = counts + (BM + BN) * sizeof(SharedCounts);
const uint32_t full = scales + BN * 4, empty = full + SLOTS * 8, split_done = empty + SLOTS * 8;
const uint32_t used = split_done + PART_SLOTS * 8;
float* column_scales = reinterpret_cast<float*>(shared + (scales - slots));

//@ ready_places
const uint32_t counts = slots + SLOTS * SLOT_BYTES, scales = counts + BM * sizeof(SharedCounts);
const uint32_t full = scales + 2 * BN * 4, empty = full + SLOTS * 8;

//@ barriers_of_splitters
  for (int s = 0; s < SLOTS; ++s)
    barrier_init(full + s * 8, 1), barrier_init(empty + s * 8, 8 + SPLITTERS / 32);
  for (int s = 0; s < PART_SLOTS; ++s)
    barrier_init(split_done + s * 8, SPLITTERS / 32), barrier_init(used + s * 8, 2 * CLUSTER);

//@ start
const int rank = blockIdx.x % CLUSTER;
if constexpr (CLUSTER > 1) cluster_arrive(), cluster_wait();
else __syncthreads();

//@ ready_barriers
  for (int s = 0; s < SLOTS; ++s) barrier_init(full + s * 8, 1), barrier_init(empty + s * 8, 8);

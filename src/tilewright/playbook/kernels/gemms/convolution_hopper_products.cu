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

"""What a consumer multiplies for a job, as text: its sums, and the products of a row of taps that are added to them."""

from __future__ import annotations

from tilewright.playbook.convolutions.hopper_geometry import Geometry
from tilewright.playbook.convolutions.hopper_store import filled


def sums_text(geometry: Geometry) -> str:
    return _SUMS_OF_ROW if geometry.convolution.is_exact else "float sum[MI][POSITIONS / 2];"


def products_text(geometry: Geometry) -> str:
    """The products of a row of taps."""
    multiply = _MULTIPLY_HALVES if geometry.convolution.is_exact else _MULTIPLY
    if geometry.planes:
        words = {"@along": _ALONG_POSITIONS, "@step": "step * (32 / PLANES)", "@block": "slot", "@row_bytes": "16"}
    else:
        words = {"@along": "", "@step": "step * 32", "@block": "i", "@row_bytes": "ROW_BYTES"}
    for word, by in words.items():
        multiply = multiply.replace(word, by)
    return filled(_PLANAR_PRODUCTS if geometry.planes else _ROW_PRODUCTS, "@multiply", multiply)


def whole_sums_text(geometry: Geometry) -> str:
    if geometry.convolution.is_exact:
        return "add_up(0), add_up(1);"
    return "" if all(geometry.kinds) else _EMPTY


_ROW_PRODUCTS = """\
#pragma unroll
for (int slot = 0; slot < SLOTS; ++slot) {
  const int x_slot = x_ring.slot();
  barrier_wait(x_full + x_slot * 8, x_ring.parity());
#pragma unroll
  for (int i = FIRST_BLOCK[slot]; i < FIRST_BLOCK[slot + 1]; ++i) {
    const int w_slot = RESIDENT ? weight : w_ring.slot();
    if (!RESIDENT) barrier_wait(w_full + w_slot * 8, w_ring.parity());
    // A shift along the width is a whole number of rows: the descriptor moves by so many.
    const int rows = BLOCK_SHIFT[i] - SLOT_FIRST[slot];
    const uint64_t a = w_slots + (w_slot * WEIGHT_BYTES >> 4);
    const uint64_t b = x_slots + ((x_slot * X_SLOT + rows * ROW_BYTES) >> 4);
    @multiply
    if (!RESIDENT && w_before >= 0) release(w_empty, w_before);
    if (i == FIRST_BLOCK[slot] && x_before >= 0) release(x_empty, x_before);
    w_before = w_slot, ++w_ring.used, ++weight;
  }
  x_before = x_slot, ++x_ring.used;
}
"""
_MULTIPLY = """\
wgmma_fence();
#pragma unroll
for (int step = 0; step < STEPS; ++step)@along
#pragma unroll
  for (int m = 0; m < MI; ++m)
    wgmma(sum[m], a + ((m * 64 * ROW_BYTES + step * 32) >> 4), b + (@step >> 4), weight || step);
wgmma_commit();
wgmma_wait<1>();  // the products before these are done: what they read may be filled again
"""
_ALONG_POSITIONS = "  // k goes from position to position: a row of a plane is 16 bytes"
_PLANAR_PRODUCTS = """\
#pragma unroll
for (int slot = 0; slot < SLOTS; ++slot) {
  const int x_slot = x_ring.slot(), w_slot = RESIDENT ? weight : w_ring.slot();
  barrier_wait(x_full + x_slot * 8, x_ring.parity());
  if (!RESIDENT) barrier_wait(w_full + w_slot * 8, w_ring.parity());
  const uint64_t a = w_slots + (w_slot * WEIGHT_BYTES >> 4), b = x_slots + (x_slot * X_SLOT >> 4);
  @multiply
  if (!RESIDENT && w_before >= 0) release(w_empty, w_before);
  if (x_before >= 0) release(x_empty, x_before);
  w_before = w_slot, x_before = x_slot, ++w_ring.used, ++x_ring.used, ++weight;
}
"""
_SUMS_OF_ROW = """\
// Tensor cores cut bits off when they add: what they add up is the sum over one row of taps, for a half of the tile at
// a time, so that they are busy with one half while the other is added to what there is.
float sum[MI][POSITIONS / 2] = {}, some[2][MI * POSITIONS / 4] = {};
auto add_up = [&](int half) {
  wgmma_wait<1>();  // the products of the other half may be under way
#pragma unroll
  for (int j = 0; j < MI * POSITIONS / 4; ++j) {
    const int at = half * (MI * POSITIONS / 4) + j;
    sum[at / (POSITIONS / 2)][at % (POSITIONS / 2)] += some[half][j];
  }
};
"""
_MULTIPLY_HALVES = """\
#pragma unroll
for (int half = 0; half < 2; ++half) {  // of the filters' rows, or of the positions
  const int of_a = MI == 2 ? half * 64 * ROW_BYTES : 0, of_b = MI == 2 ? 0 : half * POSITIONS / 2 * @row_bytes;
  if (@block == 0) add_up(half);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < STEPS; ++step)@along
    wgmma(some[half], a + ((of_a + step * 32) >> 4), b + ((of_b + @step) >> 4), @block || step);
  wgmma_commit();
}
wgmma_wait<2>();  // the products before these are done: what they read may be filled again
"""
_EMPTY = """\
if (here.pairs() == 0) {  // no tap meets such results
#pragma unroll
  for (int i = 0; i < MI * POSITIONS / 2; ++i) sum[i / (POSITIONS / 2)][i % (POSITIONS / 2)] = 0.f;
}
"""

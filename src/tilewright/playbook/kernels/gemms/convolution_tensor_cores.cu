//# Convolutions as products on the tensor cores of any GPU since Ampere, without a copy of x in another form.

//@ taps
// The taps along an axis that a phase of the result has: `count` of them, tap number `first` and every `step`th after
// it. The first one meets x at `place` from where a position stands in it, and each further one `apart` from there.
struct Taps {
  int count, first, step, place, apart;
};
template <int KERNEL, int STRIDE, int PAD, int DILATION>
__device__ __forceinline__ Taps taps_of(int phase) {

//@ plain_taps
  return {KERNEL, 0, 1, -PAD, DILATION};
}

//@ spread_taps
  int step = 1, first = 0;  // where a step of the taps is a whole number of elements of x
  while (step * DILATION % STRIDE != 0) ++step;
  while (first < step && (phase + PAD - first * DILATION) % STRIDE != 0) ++first;
  const int count = first < min(step, KERNEL) ? (KERNEL - 1 - first) / step + 1 : 0;
  return {count, first, step, (phase + PAD - first * DILATION) / STRIDE, -(step * DILATION / STRIDE)};
}

//@ step
// Where a channel's tap lies in x from where a position stands, and the bits of a position for which that is inside.
struct alignas(8) Entry {
  int place;
  unsigned needs;
};

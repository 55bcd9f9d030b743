// Handlers: mbarrier. Each thread names an object of eight bytes in shared memory; mbarrier.c knows what it does.
#ifndef TW_MBARRIER_H
#define TW_MBARRIER_H

#include "asynchronous.h"
#include "memory.h"

// The shared addresses of operand 4; a generic one that is not shared is reported by whoever looks for a barrier there.
static inline void tw_barrier_addresses(tw_warp* w, const tw_instr* i, uint32_t address[TW_LANES]) {
  tw_access x;
  tw_addresses(w, i, 4, &x);
  uint64_t window = TW_SPACE_OF(i->mod) == TW_SPACE_GENERIC ? TW_SHARED_WINDOW : 0;
  TW_LOOP address[l] = x.address[l] - window < TW_WINDOW_BYTES ? (uint32_t)(x.address[l] - window) : UINT32_MAX;
}

TW_HANDLER(mbarrier_init) {
  uint32_t address[TW_LANES];
  tw_barrier_addresses(w, i, address);
  return tw_mbarrier_init(w, i, exec, address, TW_SRC(uint32_t, 2));
}
TW_HANDLER(mbarrier_inval) {
  uint32_t address[TW_LANES];
  tw_barrier_addresses(w, i, address);
  return tw_mbarrier_invalidate(w, i, exec, address);
}
// o: state, -, count, bytes, address; each of the first three may be missing
TW_HANDLER(mbarrier_arrive) {
  uint32_t address[TW_LANES];
  tw_barrier_addresses(w, i, address);
  return tw_mbarrier_arrive(w, i, exec, address, i->o[2] < 0 ? NULL : TW_SRC(uint32_t, 2),
                            i->o[3] < 0 ? NULL : TW_SRC(uint32_t, 3), i->o[0] < 0 ? NULL : TW_DST(uint64_t, 0));
}
TW_HANDLER(mbarrier_tx) {
  uint32_t address[TW_LANES];
  tw_barrier_addresses(w, i, address);
  return tw_mbarrier_bytes(w, i, exec, address, TW_SRC(uint32_t, 3));
}
// o: predicate, -, parity or state, -, address
TW_HANDLER(mbarrier_wait) {
  uint32_t address[TW_LANES];
  tw_barrier_addresses(w, i, address);
  return tw_mbarrier_wait(w, i, exec, address, tw_slot(w, i->o[2]));
}
TW_HANDLER(mbarrier_pending) {
  const uint64_t* state = TW_SRC(uint64_t, 1);
  TW_RESULT(uint32_t, state[l] >> 20 & 0xfffff);
}
TW_HANDLER(mbarrier_copies) {
  uint32_t address[TW_LANES];
  tw_barrier_addresses(w, i, address);
  return tw_mbarrier_after_copies(w, i, exec, address);
}
// What threads wrote, the asynchronous proxy may read from here on.
TW_HANDLER(fence_proxy) {
  (void)i;
  tw_mbarrier_show(w, true);
  if (w->cta->races) tw_race_proxy_fence(w->cta->races, w->index, exec);
  return TW_NEXT;
}
// Copies may count for the mbarriers that this warp has initialised.
TW_HANDLER(fence_init) {
  (void)i, (void)exec;
  tw_mbarrier_show(w, false);
  return TW_NEXT;
}

#endif

// cp.async: what happens when a thread waits, and when it ends without having waited.
#include "machine.h"

static void tell_races(tw_warp* w, const tw_async_copy* c) {
  uint32_t address[TW_LANES] = {0};
  address[c->lane] = c->address;
  tw_race_async_complete(w->cta->races, w->index, 1u << c->lane, address, c->bytes);
}

static void arrive(tw_warp* w, uint32_t mask, uint32_t keep, bool waited) {
  int32_t kept = 0;
  for (int32_t k = 0; k < w->copy_count; k++) {
    tw_async_copy* c = &w->copies[k];
    uint32_t open = w->open_group[c->lane];
    bool arrives = mask >> c->lane & 1 && (keep == UINT32_MAX || (c->group < open && open - c->group > keep));
    if (!arrives) {
      w->copies[kept++] = *c;
      continue;
    }
    memcpy(w->cta->shared + c->address, c->data, c->bytes);
    memset(w->cta->shared_state + c->address, TW_STATE_WRITTEN, c->bytes);
    if (waited && w->cta->races) tell_races(w, c);
  }
  w->copy_count = kept;
}

// The copies of these lanes arrive, except those of their `keep` newest groups. UINT32_MAX: all, committed or not.
void tw_async_complete(tw_warp* w, uint32_t mask, uint32_t keep) { arrive(w, mask, keep, true); }

// Copies that nobody waited for arrive all the same, but order nothing: to the race detector they stay in flight.
void tw_async_abandoned(tw_warp* w, uint32_t mask) {
  for (int32_t k = 0; k < w->copy_count; k++) {
    const tw_async_copy* c = &w->copies[k];
    if (mask >> c->lane & 1)
      tw_report(w, TW_FIND_ASYNC_NOT_CONSUMED, c->instruction, c->lane, TW_SHARED_WINDOW + c->address, c->bytes, 0);
  }
  arrive(w, mask, UINT32_MAX, false);
}

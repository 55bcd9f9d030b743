// How often a warp went round a loop each time it came to it, as a class.
#include "machine.h"

enum { FEW_TRIPS = 8 };

static uint8_t class_of(uint32_t trips) {
  if (trips <= 2) return trips == 1 ? TW_TRIPS_ONE : TW_TRIPS_TWO;
  return trips <= FEW_TRIPS ? TW_TRIPS_SEVERAL : TW_TRIPS_MANY;
}

// Notes the visit that is over, and begins another; `mark` is the loop's `loop_enter`.
void tw_cover_loop(tw_warp* w, int32_t mark, int32_t loop) {
  if (w->trips[loop]) w->cta->worker->coverage[mark] |= class_of(w->trips[loop]);
  w->trips[loop] = 0;
}

// The last visits of a block that has ended.
void tw_cover_end(tw_cta* cta) {
  const tw_program* p = cta->program;
  if (!cta->worker->coverage) return;
  for (int k = 0; k < cta->warp_count; k++)
    for (int32_t loop = 0; loop < p->loop_count; loop++) tw_cover_loop(&cta->warps[k], p->loop_marks[loop], loop);
}

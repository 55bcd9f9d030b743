// What registers, shared and local memory hold that nothing wrote: a fill, or what other blocks left there.
#include <stdlib.h>

#include "machine.h"

enum { STEP = 64 };  // bytes between the starts of the fill at neighbouring places

static void copy_over_and_over(uint8_t* to, size_t bytes, const uint8_t* from, size_t period, size_t at) {
  for (size_t done = 0; done < bytes;) {
    size_t part = period - at < bytes - done ? period - at : bytes - done;
    memcpy(to + done, from + at, part);
    done += part, at = 0;
  }
}

// `used`: the memory belonged to a block before; `place`: which one of its kind it is.
void tw_leave_unwritten(const tw_cta* cta, int kind, uint8_t* memory, size_t bytes, bool used, uint64_t place) {
  const tw_launch* launch = cta->engine->launch;
  if (launch->inherits && used) return;
  size_t third = launch->remains ? (size_t)launch->remains_bytes / TW_REMAINS_KINDS : 0;
  if (launch->inherits && third) {
    uint64_t before = kind == TW_REMAINS_SHARED ? (uint64_t)cta->place : place;
    copy_over_and_over(memory, bytes, launch->remains + (size_t)kind * third, third, before * bytes % third);
  } else if (launch->fill_bytes == 1) {
    memset(memory, launch->fill[0], bytes);
  } else {
    size_t period = (size_t)launch->fill_bytes;
    copy_over_and_over(memory, bytes, launch->fill, period, place * STEP % period);
  }
}

static void keep(const tw_cta* cta, int kind, const uint8_t* memory, size_t bytes, uint64_t place) {
  size_t third = (size_t)cta->engine->launch->remains_bytes / TW_REMAINS_KINDS;
  if (memory && (place + 1) * bytes <= third)
    memcpy(cta->engine->launch->remains + (size_t)kind * third + place * bytes, memory, bytes);
}

// The launch ends: what the last block here leaves to the next launch.
void tw_keep_remains(const tw_cta* cta) {
  if (!cta->engine->launch->remains) return;
  keep(cta, TW_REMAINS_SHARED, cta->shared, cta->shared_bytes, (uint64_t)cta->place);
  for (int k = 0; k < cta->warp_count && cta->place == 0; k++) {
    const tw_warp* w = &cta->warps[k];
    size_t frame = (size_t)cta->program->functions[cta->program->kernel].frame_bytes;
    if (w->frame_capacity) keep(cta, TW_REMAINS_REGISTERS, w->frames[0].registers, frame, (uint64_t)k);
    for (int l = 0; l < TW_LANES; l++)
      if (w->local) keep(cta, TW_REMAINS_LOCAL, w->local + (size_t)l * w->local_stride, w->local_stride, (uint64_t)(k * TW_LANES + l));
  }
}

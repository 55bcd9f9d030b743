// Handlers: cp.async. The bytes leave at once, arrive when their thread waits for them, and are poison in between.
#ifndef TW_ASYNC_H
#define TW_ASYNC_H

#include <stdlib.h>

#include "memory.h"

static bool tw_room_for_copies(tw_warp* w, int more) {
  if (w->copy_count + more <= w->copy_capacity) return true;
  int32_t capacity = w->copy_capacity ? 2 * w->copy_capacity : 256;
  if (capacity > TW_ASYNC_LIMIT) return false;
  tw_async_copy* grown = realloc(w->copies, (size_t)capacity * sizeof *grown);
  if (!grown) return false;
  w->copies = grown;
  w->copy_capacity = capacity;
  return true;
}

// The bytes a lane reads when it reads fewer than it writes.
static bool tw_partial_source(tw_warp* w, const tw_instr* i, int lane, uint64_t address, int bytes, uint8_t* data) {
  const tw_region* r = tw_find_region(w->cta->engine->launch, address);
  uint64_t offset = r ? address - r->address : 0;
  if (!r || offset >= r->bytes || r->bytes - offset < (uint64_t)bytes) {
    tw_report(w, TW_FIND_GLOBAL_BOUNDS, tw_index_of(w, i), lane, address, bytes, TW_READ);
    return false;
  }
  if (r->state && !tw_all_written(r->state + offset, bytes) &&
      !tw_state_slow(w, i, lane, r->state + offset, bytes, address, TW_READ, TW_FIND_GLOBAL_BOUNDS, TW_FIND_UNINITIALISED_GLOBAL))
    return false;
  memcpy(data, r->data + offset, (size_t)bytes);
  return true;
}

// o: destination, source, bytes to read (negative: all), predicate that skips the source (negative: none),
// o[4]: offset of the destination. flags 1: the destination register has 64 bits. count: bytes; imm: offset of the source.
TW_HANDLER(cp_async) {
  tw_cta* cta = w->cta;
  tw_access to, from;
  int size = i->count, index = tw_index_of(w, i);
  to.size = from.size = size;
  tw_addresses(w, i, 1, &from);
  to.shared = to.global = to.peers = 0, to.contiguous = false;
  if (i->flags & 1) {
    const uint64_t* a = TW_SRC(uint64_t, 0);
    TW_LOOP to.address[l] = a[l] + (uint64_t)i->o[4];
  } else {
    const uint32_t* a = TW_SRC(uint32_t, 0);
    TW_LOOP to.address[l] = (uint32_t)(a[l] + (uint32_t)i->o[4]);
  }
  tw_count* counts = cta->worker->counts;
  cta->worker->counts = NULL;  // the request is counted once, by its global side
  uint32_t good = tw_shared(w, i, exec, &to, TW_WRITE);
  cta->worker->counts = counts;
  if (!tw_room_for_copies(w, TW_LANES)) {
    cta->engine->out_of_memory = 1;
    atomic_store(&cta->engine->stop, 1);
    return TW_STOP;
  }
  const uint32_t* wanted = i->o[2] < 0 ? NULL : TW_SRC(uint32_t, 2);
  uint32_t skip = i->o[3] < 0 ? 0 : tw_predicate(w, i->o[3]), whole = 0;
  TW_EACH(good) if (!(skip >> l & 1) && (!wanted || wanted[l] >= (uint32_t)size)) whole |= 1u << l;
  uint32_t read = whole ? tw_generic(w, i, whole, &from, TW_READ) : 0;
  uint8_t values[TW_LANES][16];
  memset(values, 0, sizeof values);
  TW_EACH(good) {
    if (whole >> l & 1) {
      if (read >> l & 1) memcpy(values[l], from.at[l], (size_t)size);
    } else if (!(skip >> l & 1) && wanted[l]) {
      tw_partial_source(w, i, (int)l, from.address[l], (int)wanted[l], values[l]);
    }
  }
  if (cta->races) {
    tw_race_report race;
    if (from.global) tw_tell(w, i, &from, TW_READ, TW_ORDER_WEAK, NULL);
    int found = tw_race_async_issue(cta->races, w->index, good, to.offset, size, values, 16, index, &race);
    if (found) tw_report_race(w, TW_FIND_RACE_SHARED, index, size, &race, found);
  }
  TW_EACH(good) {
    tw_async_copy* c = &w->copies[w->copy_count++];
    memcpy(c->data, values[l], 16);
    c->address = to.offset[l], c->group = w->open_group[l], c->instruction = index, c->bytes = (uint8_t)size, c->lane = (uint8_t)l;
    memset(cta->shared + c->address, TW_POISON, (size_t)size);
    memset(cta->shared_state + c->address, TW_STATE_IN_FLIGHT, (size_t)size);
  }
  return TW_NEXT;
}

TW_HANDLER(cp_async_commit) {
  (void)i;
  TW_EACH(exec) w->open_group[l]++;
  return TW_NEXT;
}

// imm: groups that may stay in flight; flags 1: wait_all, which also takes the copies not yet committed
TW_HANDLER(cp_async_wait) {
  if (!w->copy_count) return TW_NEXT;
  tw_async_complete(w, exec, i->flags & 1 ? UINT32_MAX : (uint32_t)i->imm);
  return TW_NEXT;
}

#endif

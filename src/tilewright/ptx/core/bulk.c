// Bulk copies under way: into shared memory until their mbarrier's phase ends, out of it until their group is waited for.
#include "asynchronous.h"

#include <stdlib.h>

#include "lanes.h"

static bool grown(void** list, int32_t count, int32_t* capacity, size_t size) {
  if (count < *capacity) return true;
  int32_t more = *capacity ? 2 * *capacity : 16;
  void* larger = more > TW_ASYNC_LIMIT ? NULL : realloc(*list, (size_t)more * size);
  if (!larger) return false;
  *list = larger, *capacity = more;
  return true;
}

static bool out_of_memory(tw_engine* e) {
  e->out_of_memory = 1;
  atomic_store(&e->stop, 1);
  return false;
}

// -- a block's state --

tw_bulk* tw_bulk_of(tw_cta* cta) {
  if (cta->bulk) return cta->bulk;
  cta->bulk = calloc(1, sizeof *cta->bulk);
  if (cta->bulk) cta->bulk->barrier_at = calloc(cta->shared_bytes / 8 + 1, sizeof *cta->bulk->barrier_at);
  if (cta->bulk && cta->bulk->barrier_at) return cta->bulk;
  free(cta->bulk);
  cta->bulk = NULL;
  out_of_memory(cta->engine);
  return NULL;
}

bool tw_bulk_room(tw_bulk* bulk) {
  return grown((void**)&bulk->arrivals, bulk->arrival_count, &bulk->arrival_capacity, sizeof *bulk->arrivals);
}

void tw_bulk_forget(tw_bulk* bulk, int32_t arrival) {
  tw_arrival* gone = &bulk->arrivals[arrival];
  free(gone->data);
  memmove(gone, gone + 1, (size_t)(--bulk->arrival_count - arrival) * sizeof *gone);
}

static void forget_departure(tw_bulk* bulk, int32_t departure) {
  tw_departure* gone = &bulk->departures[departure];
  free(gone->runs);
  memmove(gone, gone + 1, (size_t)(--bulk->departure_count - departure) * sizeof *gone);
}

// Before a block starts: nothing of the one before is left.
void tw_bulk_begin(tw_cta* cta) {
  tw_bulk* bulk = cta->bulk;
  if (!bulk) return;
  while (bulk->arrival_count) tw_bulk_forget(bulk, bulk->arrival_count - 1);
  while (bulk->departure_count) forget_departure(bulk, bulk->departure_count - 1);
  memset(bulk->barrier_at, 0, (cta->shared_bytes / 8 + 1) * sizeof *bulk->barrier_at);
  memset(bulk->open_group, 0, sizeof bulk->open_group);
  bulk->barrier_count = bulk->expired = bulk->unshown = 0;
}

void tw_bulk_free(tw_cta* cta) {
  if (!cta->bulk) return;
  tw_bulk_begin(cta);
  free(cta->bulk->barriers);
  free(cta->bulk->barrier_at);
  free(cta->bulk->arrivals);
  free(cta->bulk->departures);
  free(cta->bulk);
  cta->bulk = NULL;
}

// A block ends: copies into its shared memory that nobody waited for.
void tw_bulk_end(tw_cta* cta) {
  for (int32_t k = 0; cta->bulk && k < cta->bulk->arrival_count; k++) {
    const tw_arrival* a = &cta->bulk->arrivals[k];
    if (!a->data) continue;
    tw_finding f = {.kind = TW_FIND_ASYNC_NOT_CONSUMED, .instruction = a->instruction, .block = a->block,
                    .thread = a->thread, .count = 1, .address = TW_SHARED_WINDOW + a->offset, .size = (int32_t)a->bytes,
                    .other_instruction = -1, .other_block = -1, .other_thread = -1};
    tw_report_full(cta->engine, &f);
  }
}

// -- into shared memory --

// What may not be overwritten because a bulk copy still reads it; false: none of it.
bool tw_bulk_overwrites(tw_warp* w, int instruction, int lane, const tw_cta* home, uint32_t offset, uint32_t bytes) {
  const tw_bulk* bulk = home->bulk;
  for (int32_t k = 0; bulk && k < bulk->departure_count; k++) {
    const tw_departure* d = &bulk->departures[k];
    if (d->was_read || offset >= d->offset + d->bytes || d->offset >= offset + bytes) continue;
    tw_finding f = tw_finding_of(w, TW_FIND_RACE_SHARED, instruction, lane);
    f.address = TW_SHARED_WINDOW + offset, f.size = (int32_t)bytes, f.detail = TW_RACE_WRITE_AFTER_READ, f.other_kind = 1;
    f.other_instruction = d->instruction, f.other_block = home->linear, f.other_thread = d->thread;
    tw_report_full(w->cta->engine, &f);
    return true;
  }
  return false;
}

static bool check_target(tw_warp* w, const tw_instr* i, int lane, tw_cta* home, uint32_t offset, uint32_t bytes) {
  bool is_read = false;
  for (uint32_t k = offset; k < offset + bytes; k++) {
    is_read |= home->shared_state[k] == TW_STATE_READING;
    if (home->shared_state[k] != TW_STATE_OUTSIDE) continue;
    tw_report(w, TW_FIND_SHARED_BOUNDS, tw_index_of(w, i), lane, TW_SHARED_WINDOW + k, (int)bytes, TW_RACE_WRITE);
    return false;
  }
  if (is_read) tw_bulk_overwrites(w, tw_index_of(w, i), lane, home, offset, bytes);
  tw_wgmma_overwritten(w, tw_index_of(w, i), lane, home, offset, bytes);
  return true;
}

// Sends `bytes` bytes to a place in the cluster's shared memory; they count for the mbarrier, which lies in the same block.
bool tw_bulk_send(tw_warp* w, const tw_instr* i, int lane, uint32_t to, uint32_t barrier, const uint8_t* data, uint32_t bytes) {
  uint32_t offset;
  int index = tw_index_of(w, i);
  tw_cta *home = tw_shared_home(w, i, lane, to, bytes, 1, &offset), *other;
  tw_mbarrier* b = tw_mbarrier_at(w, i, lane, barrier, &other);
  if (!home || !b || !check_target(w, i, lane, home, offset, bytes)) return false;
  if (home != other) {
    tw_report(w, TW_FIND_MBARRIER, index, lane, TW_SHARED_WINDOW + barrier, (int)bytes, TW_MBARRIER_ELSEWHERE);
    return false;
  }
  uint8_t* copy = malloc(bytes + 1);
  if (!copy || !tw_bulk_of(other) || !tw_bulk_room(other->bulk)) {
    free(copy);
    return out_of_memory(home->engine);
  }
  memcpy(copy, data, bytes);
  if (home->races) {
    tw_race_report race;
    int found = tw_race_bulk_issue(w->cta->races, home->races, w->index, lane, offset, bytes, index, &race);
    if (found) tw_report_race(w, TW_FIND_RACE_SHARED, index, (int)bytes, &race, found);
  }
  memset(home->shared + offset, TW_POISON, bytes);
  memset(home->shared_state + offset, TW_STATE_IN_FLIGHT, bytes);
  other->bulk->arrivals[other->bulk->arrival_count++] =
      (tw_arrival){.data = copy, .offset = offset, .bytes = bytes, .barrier = b->offset, .phase = b->phase,
                   .instruction = index, .block = w->cta->linear, .thread = w->index * TW_LANES + lane};
  tw_mbarrier_nudge(other, b);
  return true;
}

void tw_bulk_deliver(tw_cta* home, int32_t number, tw_mbarrier* barrier) {
  const tw_arrival* a = &home->bulk->arrivals[number];
  memcpy(home->shared + a->offset, a->data, a->bytes);
  memset(home->shared_state + a->offset, TW_STATE_WRITTEN, a->bytes);
  if (home->races)
    barrier->arriving = tw_race_bulk_arrived(home->races, a->offset, a->bytes, a->instruction, barrier->arriving);
  tw_bulk_forget(home->bulk, number);
}

// -- out of shared memory --

// Looks at what a bulk copy is to read; false: it lies outside.
bool tw_bulk_source(tw_warp* w, const tw_instr* i, int lane, uint32_t from, uint32_t bytes) {
  tw_cta* cta = w->cta;
  int index = tw_index_of(w, i);
  for (uint32_t k = from; k < from + bytes; k++) {
    uint8_t state = cta->shared_state[k];
    if (state == TW_STATE_WRITTEN || state == TW_STATE_READING) continue;
    if (state == TW_STATE_IN_FLIGHT && cta->races) break;  // the race detector names the other copy
    int kind = state == TW_STATE_OUTSIDE    ? TW_FIND_SHARED_BOUNDS
               : state == TW_STATE_IN_FLIGHT ? TW_FIND_ASYNC_NOT_WAITED
                                             : TW_FIND_UNINITIALISED_SHARED;
    if (kind != TW_FIND_UNINITIALISED_SHARED || cta->engine->checks & TW_CHECK_UNINITIALISED)
      tw_report(w, kind, index, lane, TW_SHARED_WINDOW + k, (int)bytes, TW_RACE_READ);
    if (state == TW_STATE_OUTSIDE) return false;
    break;
  }
  if (cta->races) {
    tw_race_report race;
    int found = tw_race_bulk_read(cta->races, w->index, lane, from, bytes, index, &race);
    if (found) tw_report_race(w, TW_FIND_RACE_SHARED, index, (int)bytes, &race, found);
  }
  return true;
}

// A copy has read `bytes` at `from` and written `runs`, which it takes over; that it has is known when it is waited for.
bool tw_bulk_depart(tw_warp* w, const tw_instr* i, int lane, uint32_t from, uint32_t bytes, tw_stretch* runs, int32_t count,
                    bool reduces) {
  tw_bulk* bulk = tw_bulk_of(w->cta);
  if (!bulk || !grown((void**)&bulk->departures, bulk->departure_count, &bulk->departure_capacity, sizeof *bulk->departures)) {
    free(runs);
    return out_of_memory(w->cta->engine);
  }
  int32_t thread = w->index * TW_LANES + lane;
  for (uint32_t k = from; k < from + bytes; k++)
    if (w->cta->shared_state[k] == TW_STATE_WRITTEN) w->cta->shared_state[k] = TW_STATE_READING;
  bulk->departures[bulk->departure_count++] =
      (tw_departure){.offset = from, .bytes = bytes, .group = bulk->open_group[thread], .instruction = tw_index_of(w, i),
                     .thread = thread, .reduces = reduces, .runs = runs, .run_count = count};
  return true;
}

void tw_bulk_commit(tw_warp* w, uint32_t exec) {
  tw_bulk* bulk = tw_bulk_of(w->cta);
  TW_EACH(exec) if (bulk) bulk->open_group[w->index * TW_LANES + (int)l]++;
}

static void let_go(tw_warp* w, tw_departure* d) {
  tw_cta* cta = w->cta;
  d->was_read = true;
  for (uint32_t k = d->offset; k < d->offset + d->bytes; k++)
    if (cta->shared_state[k] == TW_STATE_READING) cta->shared_state[k] = TW_STATE_WRITTEN;
  tw_race_report race;
  if (cta->races)  // from here on the thread's own: who comes after its wait may overwrite what was read
    tw_race_bulk_read(cta->races, w->index, d->thread % TW_LANES, d->offset, d->bytes, d->instruction, &race);
}

// The copies of these lanes are done, or at least `only_read`, except those of their `keep` newest groups.
void tw_bulk_wait(tw_warp* w, uint32_t exec, uint32_t keep, bool only_read) {
  tw_bulk* bulk = w->cta->bulk;
  for (int32_t k = 0; bulk && k < bulk->departure_count; k++) {
    tw_departure* d = &bulk->departures[k];
    uint32_t open = bulk->open_group[d->thread];
    if (d->thread / TW_LANES != w->index || !(exec >> d->thread % TW_LANES & 1)) continue;
    if (d->group >= open || open - d->group <= keep) continue;
    if (!d->was_read) let_go(w, d);
    if (only_read) continue;
    for (int32_t r = 0; w->cta->races && !d->reduces && r < d->run_count; r++)
      tw_race_bulk_stored(w->cta->engine->races, w->cta->races, w->index, d->thread % TW_LANES, d->runs[r].address,
                          d->runs[r].bytes);
    forget_departure(bulk, k--);
  }
}

// Lanes end: copies that may still be reading the shared memory of a block that is going to end.
void tw_bulk_abandoned(tw_warp* w, uint32_t exec) {
  tw_bulk* bulk = w->cta->bulk;
  for (int32_t k = 0; k < bulk->departure_count; k++) {
    const tw_departure* d = &bulk->departures[k];
    if (d->thread / TW_LANES != w->index || !(exec >> d->thread % TW_LANES & 1) || d->was_read) continue;
    tw_report(w, TW_FIND_ASYNC_NOT_CONSUMED, d->instruction, d->thread % TW_LANES, TW_SHARED_WINDOW + d->offset,
              (int)d->bytes, 0);
  }
}

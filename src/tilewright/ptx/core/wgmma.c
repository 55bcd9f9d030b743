// What the four warps of a warpgroup have in common: the wgmmas they issue together, what those read until somebody
// waits for them, and the registers they have in flight.
#include <stdlib.h>

#include "machine.h"

// -- tiles in shared memory --

tw_tile tw_tile_of(uint64_t descriptor, bool transposed) {
  static const uint32_t pitches[4] = {16, 128, 64, 32};  // bytes between the rows of a core matrix
  tw_tile tile = {.start = (uint32_t)(descriptor & 0x3fff) << 4,
                  .lead = (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
                  .stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4,
                  .base = (uint32_t)(descriptor >> 49 & 7),
                  .pitch = pitches[descriptor >> 62],
                  .transposed = transposed};
  tile.swizzle = tile.pitch / 16 - 1;
  return tile;
}

// -- the life of a block --

static tw_warpgroup* group_of(const tw_warp* w) { return &w->cta->warpgroups[w->index / 4]; }
static int warps_of(const tw_warp* w) {
  int left = w->cta->warp_count - w->index / 4 * 4;
  return left < 4 ? left : 4;
}
static tw_warp* member(const tw_warp* w, int k) { return &w->cta->warps[w->index / 4 * 4 + k]; }

void tw_wgmma_begin(tw_cta* cta) {
  for (int k = 0; k < TW_MAX_WARPS / 4; k++) {
    tw_warpgroup* g = &cta->warpgroups[k];
    g->issued = g->completed = 0, g->read_count = 0, g->known = NULL;
  }
  if (cta->tile_readers) memset(cta->tile_readers, 0, cta->shared_bytes / 16 + 1);
  for (int k = 0; k < cta->warp_count; k++) {
    tw_warp* w = &cta->warps[k];
    w->issued = w->committed = w->retired = w->registers = w->fences = w->turns_given = 0;
    w->fenced = false;
    if (w->flights) memset(w->flights, 0, (size_t)w->flight_count * sizeof *w->flights);
  }
}

void tw_wgmma_free(tw_cta* cta) {
  for (int k = 0; k < TW_MAX_WARPS / 4; k++) free(cta->warpgroups[k].reads);
  free(cta->tile_readers);
}

// -- issuing --

// Whether the warp should wait a turn at a wgmma.fence: others' code relies on the four warps beginning together, so that
// what each of them waited for is there (which stays a race: nothing promises it).
bool tw_wgmma_early(tw_warp* w) {
  enum { MOST_TURNS = 1000 };
  if (!w->turns_given) w->fences++;
  for (int k = 0; k < warps_of(w) && w->turns_given < MOST_TURNS; k++) {
    tw_warp* other = member(w, k);
    if (other == w || !other->live || other->fences >= w->fences || !tw_has_ready(other)) continue;
    w->turns_given++;
    return true;
  }
  w->turns_given = 0;
  return false;
}

static void report_warpgroup(tw_warp* w, int32_t pc, int lane, int detail, int32_t other_pc, int other_warp) {
  if (!(w->cta->engine->checks & TW_CHECK_WARP)) return;
  tw_finding f = tw_finding_of(w, TW_FIND_WARPGROUP, pc, lane);
  f.other_instruction = other_pc, f.other_block = w->cta->linear, f.other_thread = other_warp * TW_LANES, f.detail = detail;
  tw_report_full(w->cta->engine, &f);
}

void tw_warpgroup_whole(tw_warp* w, int32_t pc, int lane) {
  bool whole = warps_of(w) == 4;
  for (int k = 0; k < warps_of(w); k++) whole = whole && member(w, k)->started == TW_ALL;
  if (!whole) report_warpgroup(w, pc, lane, TW_WARPGROUP_INCOMPLETE, -1, w->index);
}

// Calls `visit` with the places of 32 chunks of a tile at a time; `lanes` are those that exist.
typedef void chunk_visit(tw_warp* w, const tw_tile_read* read, const uint32_t address[TW_LANES], uint32_t lanes);
static void each_chunk(tw_warp* w, const tw_tile_read* read, chunk_visit* visit) {
  for (int block = 0; block < read->blocks; block += 2) {
    uint32_t address[TW_LANES];
    for (int l = 0; l < TW_LANES; l++) address[l] = tw_tile_chunk(&read->tile, block + l / 16, l / 8 % 2, l % 8);
    visit(w, read, address, block + 1 < read->blocks ? TW_ALL : 0xffffu);
  }
}

static void begin_read(tw_warp* w, const tw_tile_read* read, const uint32_t address[TW_LANES], uint32_t lanes) {
  (void)read;
  for (; lanes; lanes &= lanes - 1) {
    uint32_t at = address[__builtin_ctz(lanes)];
    if (at < w->cta->shared_bytes) w->cta->tile_readers[at / 16]++;
  }
}
static void end_read(tw_warp* w, const tw_tile_read* read, const uint32_t address[TW_LANES], uint32_t lanes) {
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    uint32_t at = address[__builtin_ctz(rest)];
    if (at < w->cta->shared_bytes) w->cta->tile_readers[at / 16]--;
  }
  tw_race_report race;
  int found = tw_race_shared(w->cta->races, w->index, lanes & w->live, address, 16, TW_RACE_READ, TW_ORDER_WEAK, NULL, 0,
                             read->pc, &race);
  if (found) tw_report_race(w, TW_FIND_RACE_SHARED, read->pc, 16, &race, found);
}

static bool add_read(tw_warp* w, tw_warpgroup* g, const tw_tile* tile, int blocks, int32_t pc, uint32_t group) {
  if (g->read_count == g->read_capacity) {
    int32_t capacity = g->read_capacity ? 2 * g->read_capacity : 32;
    tw_tile_read* grown = realloc(g->reads, (size_t)capacity * sizeof *grown);
    if (!grown) return false;
    g->reads = grown, g->read_capacity = capacity;
  }
  if (!w->cta->tile_readers) w->cta->tile_readers = calloc(w->cta->shared_bytes / 16 + 1, 1);
  if (!w->cta->tile_readers) return false;
  g->reads[g->read_count++] = (tw_tile_read){.tile = *tile, .blocks = blocks, .pc = pc, .group = group};
  each_chunk(w, &g->reads[g->read_count - 1], begin_read);
  return true;
}

// The warp comes to its next wgmma. The first of the four notes what is read; the others must be at the same place.
// False: out of memory.
bool tw_wgmma_issue(tw_warp* w, int32_t pc, int lane, const tw_tile* a, const tw_tile* b, int blocks) {
  tw_warpgroup* g = group_of(w);
  uint32_t number = w->issued++;
  tw_warpgroup_whole(w, pc, lane);
  if (number < g->issued) {
    int32_t other = g->pcs[number % TW_WARPGROUP_MEMORY];
    if (g->issued - number <= TW_WARPGROUP_MEMORY && other != pc)
      report_warpgroup(w, pc, lane, TW_WARPGROUP_PARTED, other, w->index / 4 * 4);
    return true;
  }
  g->pcs[number % TW_WARPGROUP_MEMORY] = pc;
  g->issued = number + 1;
  if (!w->cta->races) return true;
  return (!a || add_read(w, g, a, 8, pc, w->committed)) && add_read(w, g, b, blocks, pc, w->committed);
}

static const tw_tile_read* reader_of(const tw_warpgroup* g, uint32_t chunk_at) {
  for (int32_t r = 0; r < g->read_count; r++)
    for (int chunk = 0; chunk < 16 * g->reads[r].blocks; chunk++)
      if (tw_tile_chunk(&g->reads[r].tile, chunk / 16, chunk / 8 % 2, chunk % 8) == chunk_at) return &g->reads[r];
  return NULL;
}

// Somebody writes to shared memory of a block: is a wgmma still reading it?
void tw_wgmma_overwritten(tw_warp* w, int32_t pc, int lane, const tw_cta* home, uint32_t offset, uint32_t bytes) {
  uint32_t at = offset / 16 * 16;
  while (home->tile_readers && at < offset + bytes && !home->tile_readers[at / 16]) at += 16;
  if (!home->tile_readers || at >= offset + bytes) return;
  for (int k = 0; k < TW_MAX_WARPS / 4; k++) {
    const tw_tile_read* read = reader_of(&home->warpgroups[k], at);
    if (!read) continue;
    tw_finding f = tw_finding_of(w, TW_FIND_RACE_SHARED, pc, lane);
    f.address = TW_SHARED_WINDOW + at, f.size = (int32_t)bytes, f.detail = TW_RACE_WRITE_AFTER_READ, f.other_kind = 1;
    f.other_instruction = read->pc, f.other_block = home->linear, f.other_thread = 4 * TW_LANES * k;
    tw_report_full(w->cta->engine, &f);
    return;
  }
}

static void hand_on(tw_warp* w, uint32_t together) {
  tw_warpgroup* g = group_of(w);
  const tw_past* told = tw_race_publish(w->cta->races, w->index, together, NULL);
  g->known = tw_race_join(w->cta->races, told, g->known);
}

void tw_wgmma_commit(tw_warp* w, uint32_t together) {
  w->committed++;
  if (w->cta->races) hand_on(w, together);
  tw_wgmma_recheck(w);
}

// -- waiting --

static uint32_t target_of(const tw_warp* w, uint32_t pending) { return w->committed > pending ? w->committed - pending : 0; }

// Whether the wgmmas that the warp waits for were issued by all of its warpgroup.
bool tw_wgmma_ready(const tw_warp* w, uint32_t pending) {
  for (int k = 0; k < warps_of(w); k++) {
    const tw_warp* other = member(w, k);
    if (other->live && other->committed < target_of(w, pending)) return false;
  }
  return true;
}

// A warp has gone on: others may have waited for that.
void tw_wgmma_recheck(tw_warp* w) {
  for (int k = 0; k < warps_of(w); k++) {
    tw_warp* other = member(w, k);
    for (int32_t c = 0; c < other->context_count; c++) {
      if (other->contexts[c].state != TW_AT_WARPGROUP) continue;
      other->contexts[c].state = TW_READY;
      w->cta->progressed = true;
    }
  }
}

// The tiles were being read until now: whoever writes them must come after this.
static void end_reads(tw_warp* w, uint32_t target) {
  tw_warpgroup* g = group_of(w);
  int32_t kept = 0;
  for (int32_t k = 0; k < g->read_count; k++) {
    if (g->reads[k].group >= target) g->reads[kept++] = g->reads[k];
    else each_chunk(w, &g->reads[k], end_read);
  }
  g->read_count = kept;
}

void tw_wgmma_retire(tw_warp* w, int32_t pc, uint32_t pending, uint32_t together) {
  tw_warpgroup* g = group_of(w);
  uint32_t target = target_of(w, pending);
  if (target <= w->retired) return;
  for (int k = 0; k < warps_of(w); k++)
    if (member(w, k)->committed < target)
      report_warpgroup(w, pc, __builtin_ctz(together), TW_WARPGROUP_ENDED, -1, w->index / 4 * 4 + k);
  w->retired = target;
  if (!w->cta->races) return;
  tw_race_learn(w->cta->races, w->index, together, g->known);
  if (target <= g->completed) return;
  g->completed = target;
  end_reads(w, target);
  tw_race_syncwarp(w->cta->races, w->index, together);
  hand_on(w, together);
}

// -- registers in flight --

static bool in_flight(const tw_warp* w, const tw_register_flight* f) { return f->group && f->group - 1 >= w->retired; }

// Of the kernel itself: registers of functions that it calls are not followed.
static tw_register_flight* flight_of(tw_warp* w, int32_t slot) {
  if (w->frames[w->frame].caller >= 0 || slot < 0 || slot & 1) return NULL;
  if (!w->flights) {
    const tw_program* p = w->cta->program;
    w->flight_count = p->functions[p->kernel].frame_bytes / 64 + 1;
    w->flights = calloc((size_t)w->flight_count, sizeof *w->flights);
  }
  return w->flights ? &w->flights[slot >> 6] : NULL;
}

void tw_wgmma_mark(tw_warp* w, int32_t slot, int32_t pc, bool sum) {
  tw_register_flight* f = flight_of(w, slot);
  if (f) *f = (tw_register_flight){.group = w->committed + 1, .pc = pc, .sum = sum};
}

void tw_wgmma_touch(tw_warp* w, int32_t pc, int lane, int32_t slot, bool writes) {
  tw_register_flight* f = flight_of(w, slot);
  if (!f || !in_flight(w, f) || !(f->sum || writes)) return;
  tw_finding found = tw_finding_of(w, TW_FIND_WGMMA_IN_FLIGHT, pc, lane);
  found.other_instruction = f->pc, found.other_block = w->cta->linear, found.other_thread = found.thread;
  found.detail = f->sum ? 1 + writes : 3;
  tw_report_full(w->cta->engine, &found);
  if (writes) f->group = 0;
}

void tw_wgmma_copy(tw_warp* w, int32_t pc, int lane, int32_t to, int32_t from) {
  tw_register_flight *target = flight_of(w, to), *source = flight_of(w, from);
  if (!target) return;
  bool copies_flight = source && source->sum && in_flight(w, source);
  if (!copies_flight) tw_wgmma_touch(w, pc, lane, to, true);
  *target = copies_flight ? *source : (tw_register_flight){0};
}

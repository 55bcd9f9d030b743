#include "notes.h"

// Sets `count` bits from `first` on; how many were set already.
static int64_t set_bits(uint64_t* bits, uint64_t first, uint64_t count) {
  int64_t before = 0;
  uint64_t* word = bits + (first >> 6);
  unsigned at = first & 63;
  while (count) {
    uint64_t here = 64 - at < count ? 64 - at : count;
    uint64_t mask = (here == 64 ? ~0ull : (1ull << here) - 1) << at;
    before += __builtin_popcountll(*word & mask);
    *word++ |= mask;
    count -= here, at = 0;
  }
  return before;
}

static bool any_bit(const uint64_t* bits, uint64_t first, uint64_t count) {
  for (uint64_t k = first; k < first + count; k++)
    if (bits[k >> 6] >> (k & 63) & 1) return true;
  return false;
}

static bool all_bits(const uint64_t* bits, uint64_t first, uint64_t count) {
  for (uint64_t k = first; k < first + count; k++)
    if (!(bits[k >> 6] >> (k & 63) & 1)) return false;
  return true;
}

// Whether the bytes that an address depends on are those of the call.
static bool is_known(const tw_region_notes* n, uint64_t first, uint64_t count) {
  if (n->content == TW_CONTENT_MISSING || n->hollowed) return false;
  if (n->hollow && any_bit(n->hollow, first, count)) return false;
  return n->content == TW_CONTENT_GIVEN || !n->written || all_bits(n->written, first, count);
}

static void miss(tw_warp* w, const tw_instr* i, int64_t region) {
  tw_notes* notes = w->cta->engine->launch->notes;
  if (!notes->missing) notes->missing = (int32_t)region + 1, notes->missing_instruction = tw_index_of(w, i);
  atomic_store(&w->cta->engine->stop, 1);
}

// Whom each unit of a run belongs to; those that another thread wrote in this launch are kept.
static void own(tw_warp* w, const tw_instr* i, int lane, int64_t region, uint64_t first, uint64_t count) {
  tw_notes* notes = w->cta->engine->launch->notes;
  tw_region_notes* n = &notes->regions[region];
  uint32_t thread = (uint32_t)w->cta->linear * (uint32_t)w->cta->thread_count + (uint32_t)(w->index * TW_LANES + lane) + 1;
  for (uint64_t k = first; k < first + count; k++) {
    uint32_t before = n->owners[k];
    n->owners[k] = thread;
    if (!before || before == thread) continue;
    n->twice++;
    if (notes->twice_count < notes->twice_capacity)
      notes->twice[notes->twice_count++] = (tw_twice){.region = (int32_t)region, .instruction = tw_index_of(w, i), .unit = k,
                                                      .first = before - 1, .second = thread - 1};
  }
}

void tw_note_run(tw_warp* w, const tw_instr* i, int lane, const tw_region* r, uint64_t offset, uint64_t bytes, int how) {
  const tw_launch* launch = w->cta->engine->launch;
  tw_notes* notes = launch->notes;
  int64_t region = r - launch->regions;
  tw_region_notes* n = &notes->regions[region];
  bool hollow = w->cta->worker->hollow;
  uint64_t first = offset >> n->shift, count = ((offset + bytes - 1) >> n->shift) - first + 1;
  notes->touched[tw_index_of(w, i)] |= 1ull << (region & 63);
  if (how != TW_RACE_WRITE) {
    if (!hollow && !is_known(n, first, count)) {
      miss(w, i, region);
      return;
    }
    if (n->read) set_bits(n->read, first, count);
  }
  if (how == TW_RACE_READ) return;
  if ((offset | bytes) & ((1ull << n->shift) - 1)) n->misfit = 1;
  int64_t before = n->written ? set_bits(n->written, first, count) : 0;
  if (hollow && n->hollow) set_bits(n->hollow, first, count);
  else if (hollow) n->hollowed = 1;
  if (how != TW_RACE_WRITE) return;
  if (n->owners) own(w, i, lane, region, first, count);
  else if (n->fresh) n->twice += n->fresh == n->written ? before : set_bits(n->fresh, first, count);
}

// One request of a warp: neighbouring lanes are noted together.
void tw_note_global(tw_warp* w, const tw_instr* i, uint32_t good, const uint64_t* address, int size, int how) {
  const tw_launch* launch = w->cta->engine->launch;
  const tw_region* r = w->cta->worker->cache[tw_index_of(w, i)];
  while (good) {
    int l = __builtin_ctz(good);
    uint64_t start = address[l], end = start + (uint64_t)size;
    if (start - r->address >= r->bytes) {
      const tw_region* low = launch->regions;
      for (int64_t k = 0; k < launch->region_count && low[k].address <= start; k++) r = &low[k];
    }
    bool apart = launch->notes->regions[r - launch->regions].owners != NULL;
    good &= good - 1;
    while (good && !apart && address[__builtin_ctz(good)] == end) end += (uint64_t)size, good &= good - 1;
    tw_note_run(w, i, l, r, start - r->address, end - start, how);
  }
}

// The way a block, or a cluster, took: what of its program ran. One block of each way is kept, each with the same chance.
void tw_note_path(tw_worker* worker, int32_t block) {
  tw_engine* e = worker->engine;
  tw_notes* notes = e->launch->notes;
  uint64_t key = 0xcbf29ce484222325ull;
  int64_t bytes = e->program->code_count, at = 0;
  for (; at + 8 <= bytes; at += 8) {
    uint64_t eight;
    memcpy(&eight, worker->coverage + at, 8);
    key = (key ^ eight) * 0x9e3779b97f4a7c15ull;
    key ^= key >> 29;
  }
  for (; at < bytes; at++) key = (key ^ worker->coverage[at]) * 0x100000001b3ull;
  memset(worker->coverage, 0, (size_t)bytes);
  int32_t k = 0;
  while (k < notes->path_count && notes->paths[k].key != key) k++;
  if (k == notes->path_count) {
    if (k == notes->path_capacity) return;
    notes->paths[notes->path_count++] = (tw_path){.key = key};
  }
  tw_path* path = &notes->paths[k];
  path->blocks++;
  if (tw_random(&notes->random) % (uint64_t)path->blocks == 0) path->example = block;
}

// `count` bits from `first` on, and again `times` in all, each `stride` bits on; how many were set already.
int64_t tw_mark(uint64_t* bits, uint64_t first, uint64_t count, int64_t stride, int64_t times) {
  int64_t before = 0;
  if (stride == (int64_t)count) return set_bits(bits, first, count * (uint64_t)times);
  for (int64_t k = 0; k < times; k++) before += set_bits(bits, first + (uint64_t)(k * stride), count);
  return before;
}

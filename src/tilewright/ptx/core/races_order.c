// What orders threads: barriers, warp synchronisation, fences, releases and acquires.

#include "races_internal.h"

// -- small steps --

static uint32_t advance(tw_cta_races* cta) {
  if (cta->now >= TW_NOW_LIMIT) atomic_store(&cta->launch->clocks_exhausted, 1);
  else cta->now++;
  return cta->now;
}

// Accesses of the warp from now on are later than all before.
void tw_tick(tw_cta_races* cta, int warp) { cta->warp_clock[warp] = advance(cta); }

static void set_root(tw_cta_races* cta, int warp, int lane, const tw_past* past) {
  if (!past) return;
  int thread = warp * 32 + lane;
  tw_past_grow(cta, &cta->thread_root[thread], &cta->thread_line[thread], past);
  cta->rooted[warp] |= 1u << lane;
  cta->any_roots = true;
}

static void set_pending(tw_cta_races* cta, int warp, int lane, int level, const tw_past* past) {
  if (!past) return;
  int thread = warp * 32 + lane;
  cta->pending[level][thread] = tw_past_join(cta, past, cta->pending[level][thread]);
  cta->pending_lanes[warp] |= 1u << lane;
  cta->any_pending = true;
}

static void acquire_pending(tw_cta_races* cta, int warp, uint32_t mask, int level) {
  mask &= cta->pending_lanes[warp];
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    int lane = (int)tw_lowest(rest), thread = warp * 32 + lane;
    for (int i = 0; i <= level; i++) {
      set_root(cta, warp, lane, cta->pending[i][thread]);
      cta->pending[i][thread] = NULL;
    }
    if (!cta->pending[TW_LEVEL_GPU][thread]) cta->pending_lanes[warp] &= ~(1u << lane);
  }
}

// Everything the lane knows beyond stamps of its own CTA, as one node.
static const tw_past* root_of(tw_cta_races* cta, int warp, int lane) {
  if (!cta->any_roots) return NULL;
  const tw_past** warp_root = &cta->warp_root[warp];
  const tw_past** thread_root = &cta->thread_root[warp * 32 + lane];
  if (*warp_root && cta->cta_root) tw_past_grow(cta, warp_root, &cta->warp_line[warp], cta->cta_root);
  const tw_past* wider = *warp_root ? *warp_root : cta->cta_root;
  if (!*thread_root) return wider;
  if (wider) tw_past_grow(cta, thread_root, &cta->thread_line[warp * 32 + lane], wider);
  return *thread_root;
}

static void forget_lanes(tw_cta_races* cta, int warp) {
  for (uint32_t rest = cta->rooted[warp]; rest; rest &= rest - 1) {
    int thread = warp * 32 + (int)tw_lowest(rest);
    cta->thread_root[thread] = NULL;
    cta->thread_line[thread] = (tw_line){0};
  }
  cta->rooted[warp] = 0;
}

static uint32_t* joined_lane_row(tw_cta_races* cta, int warp, uint32_t mask) {
  uint32_t* row = tw_past_memory(cta, 32 * sizeof *row);
  if (!row) return NULL;
  memset(row, 0, 32 * sizeof *row);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const uint32_t* known = cta->lane_known[warp][tw_lowest(rest)];
    for (int k = 0; k < 32; k++) row[k] = row[k] > known[k] ? row[k] : known[k];
  }
  return row;
}

// What the lanes `mask` of a warp know together now, with everything they did so far (stamps below `clock`).
static const tw_past* snapshot(tw_cta_races* cta, int warp, uint32_t mask, uint32_t clock, const tw_past* also) {
  const tw_past* root = NULL;
  for (uint32_t rest = cta->any_roots ? mask : 0; rest; rest &= rest - 1) {
    root = tw_past_join(cta, root, root_of(cta, warp, (int)tw_lowest(rest)));
  }
  tw_past* past = tw_past_new(cta, also, root);
  if (!past) return also;
  past->warp = (uint16_t)warp;
  past->lanes = mask;
  past->clock = clock;
  past->whole_cta = cta->barrier_clock;
  past->whole_warp = cta->warp_sync[warp];
  if (cta->partial >> warp & 1) past->lane_row = joined_lane_row(cta, warp, mask);
  return past;
}

// -- fences and releases --

static const tw_past* fenced_past(tw_cta_races* cta, int level, int warp, int lane) {
  tw_fenced* fenced = &cta->fenced[level][warp * 32 + lane];
  if (fenced->made) return fenced->made;
  tw_past* past = tw_past_new(cta, fenced->root, NULL);
  if (!past) return NULL;
  past->warp = (uint16_t)warp;
  past->lanes = 1u << lane;
  past->clock = fenced->clock;
  past->whole_cta = fenced->whole_cta;
  past->whole_warp = fenced->whole_warp;
  return fenced->made = past;
}

// What the threads of the CTA had fenced when they last all met, for atomics by a thread without a later fence.
static const tw_past* shared_release(tw_cta_races* cta) {
  if (!cta->shared_release) return NULL;
  if (cta->release_made) return cta->release_made;
  uint32_t* row = tw_past_memory(cta, (size_t)cta->threads * sizeof *row);
  tw_past* past = row ? tw_past_new(cta, cta->release_root, NULL) : NULL;
  if (!past) return NULL;
  memcpy(row, cta->release_row, (size_t)cta->threads * sizeof *row);
  past->cta_row = row;
  past->threads = (uint16_t)cta->threads;
  past->whole_cta = cta->release_whole_cta;
  return cta->release_made = past;
}

void tw_race_fence(tw_cta_races* cta, int warp, uint32_t mask, int scope) {
  if (cta->ignored || warp < 0 || warp >= cta->warps) return;
  mask &= cta->live[warp];
  if (!mask) return;
  int level = scope & TW_SCOPE_CTA ? TW_LEVEL_CTA : TW_LEVEL_GPU;
  if (cta->any_pending) acquire_pending(cta, warp, mask, level);
  uint32_t clock = advance(cta);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    int lane = (int)tw_lowest(rest), thread = warp * 32 + lane;
    tw_fenced now = {.clock = clock, .whole_cta = cta->barrier_clock, .whole_warp = cta->warp_sync[warp]};
    if (cta->any_roots) now.root = root_of(cta, warp, lane);
    // The rows of partial synchronisations change in place, so they are kept at once.
    if (cta->partial >> warp & 1) now.made = snapshot(cta, warp, 1u << lane, clock, NULL);
    for (int i = 0; i <= level; i++) {
      cta->fenced[i][thread] = now;
      cta->fenced_lanes[i][warp] |= 1u << lane;
    }
  }
  cta->unshared_fences[warp] |= mask;
  cta->any_fenced = true;
  cta->warp_clock[warp] = clock;
}

static const tw_past* released_by(tw_cta_races* cta, int level, int warp, int lane) {
  if (cta->fenced_lanes[level][warp] >> lane & 1) return fenced_past(cta, level, warp, lane);
  return level == TW_LEVEL_GPU ? shared_release(cta) : NULL;
}

static const tw_past* extended(tw_cta_races* cta, int warp, int lane, const tw_past* old, const tw_past* release,
                               bool keeps) {
  if (!keeps) {  // a store ends what others released here, but carries on the thread's own release if that was the last
    if (old && !old->lanes) old = old->parent[0];
    bool own = old && old->ordinal == cta->ordinal && old->warp == warp && old->lanes == 1u << lane;
    if (!own) old = NULL;
  }
  if (!release || old == release) return old;
  if (old && (old->parent[0] == release || old->parent[1] == release)) return old;
  return tw_past_join(cta, release, old);
}

// A strong write to a place: `keeps` if it does not end what earlier releases there began (atomics, part of a word).
void tw_release(tw_cta_races* cta, int warp, int lane, tw_sync* sync, int order, bool keeps) {
  int level = order & TW_SCOPE_CTA ? TW_LEVEL_CTA : TW_LEVEL_GPU;
  int kind = order & TW_ORDER_MASK;
  const tw_past* release[2];
  for (int i = 0; i < 2; i++) release[i] = i <= level ? released_by(cta, i, warp, lane) : NULL;
  if (kind == TW_ORDER_RELEASE || kind == TW_ORDER_ACQ_REL) {
    // Stamps of this access itself are below now + 1; the caller ticks the warp's clock to that afterwards.
    const tw_past* all = snapshot(cta, warp, 1u << lane, cta->now + 1, NULL);
    for (int i = 0; i <= level; i++) release[i] = all;
  }
  bool own_cta = sync->cta && sync->cta->ordinal == cta->ordinal;
  sync->gpu = extended(cta, warp, lane, sync->gpu, release[TW_LEVEL_GPU], keeps);
  sync->cta = extended(cta, warp, lane, own_cta ? sync->cta : NULL, release[TW_LEVEL_CTA], keeps);
}

void tw_observe(tw_cta_races* cta, int warp, int lane, const tw_sync* sync, int order) {
  int kind = order & TW_ORDER_MASK;
  int level = order & TW_SCOPE_CTA ? TW_LEVEL_CTA : TW_LEVEL_GPU;
  bool at_once = kind == TW_ORDER_ACQUIRE || kind == TW_ORDER_ACQ_REL;
  if (sync->cta && sync->cta->ordinal == cta->ordinal) {
    if (at_once) set_root(cta, warp, lane, sync->cta);
    else set_pending(cta, warp, lane, TW_LEVEL_CTA, sync->cta);
  }
  if (sync->gpu && level == TW_LEVEL_GPU) {
    if (at_once) set_root(cta, warp, lane, sync->gpu);
    else set_pending(cta, warp, lane, TW_LEVEL_GPU, sync->gpu);
  }
}

// -- meeting --

// What these lanes have fenced, on top of `also`.
static const tw_past* fenced_together(tw_cta_races* cta, int level, int warp, uint32_t mask, const tw_past* also) {
  for (uint32_t rest = mask & cta->fenced_lanes[level][warp]; rest; rest &= rest - 1) {
    also = tw_past_join(cta, fenced_past(cta, level, warp, (int)tw_lowest(rest)), also);
  }
  return also;
}

static void share_fences(tw_cta_races* cta, int level, int warp, uint32_t mask, uint32_t clock, const tw_past* past) {
  if (!past) return;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    tw_fenced together = {.clock = clock, .made = past};
    cta->fenced[level][warp * 32 + (int)tw_lowest(rest)] = together;
  }
  cta->fenced_lanes[level][warp] |= mask;
}

// Lanes fenced together with nothing else to tell apart: one node for all of them, not one each.
static const tw_past* fenced_by_warp(tw_cta_races* cta, int level, int warp, uint32_t mask) {
  uint32_t fenced = mask & cta->fenced_lanes[level][warp];
  if (!fenced) return NULL;
  const tw_fenced* first = &cta->fenced[level][warp * 32 + (int)tw_lowest(fenced)];
  for (uint32_t rest = fenced; rest; rest &= rest - 1) {
    const tw_fenced* one = &cta->fenced[level][warp * 32 + (int)tw_lowest(rest)];
    if (one->made != first->made || one->clock != first->clock || one->root != first->root) {
      return fenced_together(cta, level, warp, mask, NULL);
    }
  }
  if (first->made) return first->made;
  tw_past* past = tw_past_new(cta, first->root, NULL);
  if (!past) return NULL;
  past->warp = (uint16_t)warp;
  past->lanes = fenced;
  past->clock = first->clock;
  past->whole_cta = first->whole_cta;
  past->whole_warp = first->whole_warp;
  return past;
}

static void share_rows(tw_cta_races* cta, int warp, uint32_t mask, uint32_t clock) {
  uint32_t row[32] = {0};
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const uint32_t* known = cta->lane_known[warp][tw_lowest(rest)];
    for (int k = 0; k < 32; k++) row[k] = row[k] > known[k] ? row[k] : known[k];
  }
  for (int k = 0; k < 32; k++) row[k] = mask >> k & 1 ? clock : row[k];
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    memcpy(cta->lane_known[warp][tw_lowest(rest)], row, sizeof row);
  }
  cta->partial |= 1u << warp;
}

static void share_pending(tw_cta_races* cta, int warp, uint32_t mask) {
  if (!(cta->pending_lanes[warp] & mask)) return;
  for (int level = 0; level < 2; level++) {
    const tw_past* all = NULL;
    for (uint32_t rest = mask & cta->pending_lanes[warp]; rest; rest &= rest - 1) {
      all = tw_past_join(cta, all, cta->pending[level][warp * 32 + (int)tw_lowest(rest)]);
    }
    for (uint32_t rest = all ? mask : 0; rest; rest &= rest - 1) {
      cta->pending[level][warp * 32 + (int)tw_lowest(rest)] = all;
      cta->pending_lanes[warp] |= 1u << tw_lowest(rest);
    }
  }
}

// What one lane alone knows stays with it: forget_lanes() is for who has joined it to `root`.
static void give_root(tw_cta_races* cta, int warp, uint32_t mask, bool whole, const tw_past* root) {
  if (!root) return;
  cta->any_roots = true;
  if (whole) {
    if (root->ordinal == cta->ordinal && root->proxy > cta->proxy_known[warp]) cta->proxy_known[warp] = root->proxy;
    tw_past_grow(cta, &cta->warp_root[warp], &cta->warp_line[warp], root);
    return;
  }
  for (uint32_t rest = mask; rest; rest &= rest - 1) set_root(cta, warp, (int)tw_lowest(rest), root);
}

void tw_race_syncwarp(tw_cta_races* cta, int warp, uint32_t mask) {
  if (cta->ignored || warp < 0 || warp >= cta->warps) return;
  mask &= cta->live[warp];
  if (!(mask & (mask - 1))) return;  // one lane synchronises with nobody
  bool whole = mask == cta->live[warp];
  uint32_t clock = advance(cta);
  if (cta->rooted[warp] & mask) {
    const tw_past* root = NULL;
    for (uint32_t rest = mask & cta->rooted[warp]; rest; rest &= rest - 1) {
      root = tw_past_join(cta, root, cta->thread_root[warp * 32 + (int)tw_lowest(rest)]);
    }
    give_root(cta, warp, mask, whole, root);
    if (whole) forget_lanes(cta, warp);
  }
  if (cta->any_pending) share_pending(cta, warp, mask);
  if (cta->unshared_fences[warp] & mask) {
    for (int level = 0; level < 2; level++) {
      share_fences(cta, level, warp, mask, clock, fenced_by_warp(cta, level, warp, mask));
    }
    cta->unshared_fences[warp] &= ~mask;
  }
  if (whole) {
    cta->warp_sync[warp] = clock;
    cta->partial &= ~(1u << warp);
  } else {
    share_rows(cta, warp, mask, clock);
  }
  cta->warp_clock[warp] = clock;
}

// -- barriers --

static void fold_fences(tw_cta_races* cta) {
  for (int warp = 0; warp < cta->warps; warp++) {
    for (uint32_t rest = cta->fenced_lanes[TW_LEVEL_GPU][warp]; rest; rest &= rest - 1) {
      int thread = warp * 32 + (int)tw_lowest(rest);
      const tw_fenced* fenced = &cta->fenced[TW_LEVEL_GPU][thread];
      if (fenced->made) {
        cta->release_root = tw_past_join(cta, fenced->made, cta->release_root);
        continue;
      }
      cta->release_root = tw_past_join(cta, cta->release_root, fenced->root);
      cta->release_row[thread] = fenced->clock;
      if (cta->release_whole_cta < fenced->whole_cta) cta->release_whole_cta = fenced->whole_cta;
      for (int i = warp * 32; i < warp * 32 + 32; i++) {
        if (cta->release_row[i] < fenced->whole_warp) cta->release_row[i] = fenced->whole_warp;
      }
    }
    cta->fenced_lanes[TW_LEVEL_GPU][warp] = cta->fenced_lanes[TW_LEVEL_CTA][warp] = 0;
    cta->unshared_fences[warp] = 0;
  }
  cta->shared_release = true;
  cta->release_made = NULL;
  cta->any_fenced = false;
}

// What came from inside the CTA is covered by the barrier; what came from others is now known to all of it.
static void fold_roots(tw_cta_races* cta) {
  const tw_past* last = NULL;
  for (int warp = 0; warp < cta->warps; warp++) {
    for (uint32_t rest = cta->rooted[warp]; rest; rest &= rest - 1) {
      const tw_past* root = cta->thread_root[warp * 32 + (int)tw_lowest(rest)];
      if (!tw_from_elsewhere(cta, root)) continue;
      if (root != last) tw_past_grow(cta, &cta->cta_root, &cta->cta_line, root);
      last = root;
    }
    forget_lanes(cta, warp);
    const tw_past* root = cta->warp_root[warp];
    if (tw_from_elsewhere(cta, root)) tw_past_grow(cta, &cta->cta_root, &cta->cta_line, root);
    cta->warp_root[warp] = NULL;
    cta->warp_line[warp] = (tw_line){0};
  }
  cta->any_roots = cta->cta_root != NULL;
}

static void barrier_of_all(tw_cta_races* cta) {
  if (cta->any_pending) {
    for (int warp = 0; warp < cta->warps; warp++) acquire_pending(cta, warp, ~0u, TW_LEVEL_GPU);
    cta->any_pending = false;
  }
  if (cta->any_roots) fold_roots(cta);
  if (cta->any_fenced) fold_fences(cta);
  uint32_t clock = advance(cta);
  cta->barrier_clock = clock;
  cta->partial = 0;
  for (int warp = 0; warp < cta->warps; warp++) cta->warp_clock[warp] = clock;
}

static void arrive(tw_cta_races* cta, int id, int warp, uint32_t mask, uint32_t clock) {
  cta->arrivals[id] = snapshot(cta, warp, mask, clock, cta->arrivals[id]);
  for (int level = 0; cta->any_fenced && level < 2; level++) {
    const tw_past* fenced = fenced_by_warp(cta, level, warp, mask);
    cta->arrival_releases[level][id] = tw_past_join(cta, fenced, cta->arrival_releases[level][id]);
  }
  cta->warp_clock[warp] = clock;
}

static void barrier_of_some(tw_cta_races* cta, int id, const uint32_t* lane_masks, int warps) {
  uint32_t clock = advance(cta);
  for (int warp = 0; warp < warps; warp++) {
    uint32_t mask = lane_masks[warp] & cta->live[warp];
    if (!mask) continue;
    if (cta->any_pending) acquire_pending(cta, warp, mask, TW_LEVEL_GPU);
    arrive(cta, id, warp, mask, clock);
  }
  const tw_past* all = cta->arrivals[id];
  const tw_past* fenced[2] = {cta->arrival_releases[0][id], cta->arrival_releases[1][id]};
  cta->arrivals[id] = cta->arrival_releases[0][id] = cta->arrival_releases[1][id] = NULL;
  if (fenced[0] || fenced[1]) cta->any_fenced = true;
  // What arrived early may have been fenced before the last barrier of the whole CTA, so it does not stand for that.
  if (fenced[TW_LEVEL_GPU]) fenced[TW_LEVEL_GPU] = tw_past_join(cta, fenced[TW_LEVEL_GPU], shared_release(cta));
  for (int warp = 0; warp < warps; warp++) {
    uint32_t mask = lane_masks[warp] & cta->live[warp];
    if (!mask) continue;
    bool whole = mask == cta->live[warp];
    give_root(cta, warp, mask, whole, all);
    if (whole) forget_lanes(cta, warp);
    for (int level = 0; level < 2; level++) share_fences(cta, level, warp, mask, clock, fenced[level]);
    if (whole) {
      cta->warp_sync[warp] = clock;
      cta->partial &= ~(1u << warp);
    } else {
      share_rows(cta, warp, mask, clock);
    }
  }
}

void tw_race_barrier(tw_cta_races* cta, int id, const uint32_t* lane_masks, int warps) {
  if (cta->ignored || id < 0 || id >= TW_RACE_MAX_BARRIERS) return;
  if (warps > cta->warps) warps = cta->warps;
  bool all = !cta->arrivals[id];
  for (int warp = 0; warp < cta->warps && all; warp++) {
    all = ((warp < warps ? lane_masks[warp] : 0) & cta->live[warp]) == cta->live[warp];
  }
  if (all) barrier_of_all(cta);
  else barrier_of_some(cta, id, lane_masks, warps);
}

void tw_race_barrier_arrive(tw_cta_races* cta, int id, int warp, uint32_t mask) {
  if (cta->ignored || id < 0 || id >= TW_RACE_MAX_BARRIERS || warp < 0 || warp >= cta->warps) return;
  mask &= cta->live[warp];
  if (mask) arrive(cta, id, warp, mask, advance(cta));
}

// -- clusters --

void tw_race_cluster_arrive(tw_cta_races* cta, int warp, uint32_t mask, int relaxed, const tw_past** arrivals) {
  if (cta->ignored) return;
  uint32_t clock = advance(cta);
  // One who arrives relaxed passes on what it has fenced, no more.
  const tw_past* fenced = tw_past_join(cta, fenced_by_warp(cta, TW_LEVEL_GPU, warp, mask), shared_release(cta));
  *arrivals = relaxed ? tw_past_join(cta, fenced, *arrivals) : snapshot(cta, warp, mask, clock, *arrivals);
  cta->warp_clock[warp] = clock;
}

void tw_race_cluster_wait(tw_cta_races* cta, int warp, uint32_t mask, const tw_past* arrivals) {
  mask &= cta->live[warp];
  if (!cta->ignored && mask) give_root(cta, warp, mask, mask == cta->live[warp], arrivals);
}

void tw_race_cluster_all(tw_cta_races* cta, const tw_past* arrivals) {
  if (cta->ignored) return;
  barrier_of_all(cta);
  if (arrivals) tw_past_grow(cta, &cta->cta_root, &cta->cta_line, arrivals);
  cta->any_roots = cta->cta_root != NULL;
}

void tw_race_visit(const tw_cta_races* cta, int warp, uint32_t lanes, tw_visit* visit) {
  uint32_t clock = cta->warp_clock[warp];
  if (cta->ignored) return;
  visit->lanes = visit->clock == clock ? visit->lanes | lanes : lanes;
  visit->clock = clock;
  visit->ordinal = cta->ordinal;
}

int tw_race_after_beginning(const tw_cta_races* home, tw_cta_races* cta, int warp, int lane) {
  for (uint32_t thread = 0; thread < (uint32_t)home->threads; thread++)
    if (tw_ordered(cta, warp, lane, home->ordinal, thread, home->start_clock)) return 1;
  return home->ignored || cta->ignored;
}

int tw_race_after_visit(tw_cta_races* cta, int warp, uint32_t lanes, int visitor, const tw_visit* visit) {
  for (uint32_t mine = lanes; mine; mine &= mine - 1) {
    uint32_t left = visit->lanes;
    for (; left; left &= left - 1) {
      uint32_t thread = (uint32_t)visitor * 32 + tw_lowest(left);
      if (!tw_ordered(cta, warp, (int)tw_lowest(mine), visit->ordinal, thread, visit->clock)) break;
    }
    if (!left) return 1;
  }
  return 0;
}

// -- objects that the caller keeps --

const tw_past* tw_race_publish(tw_cta_races* cta, int warp, uint32_t mask, const tw_past* so_far) {
  if (cta->ignored || warp < 0 || warp >= cta->warps) return so_far;
  mask &= cta->live[warp];
  if (!mask) return so_far;
  uint32_t clock = advance(cta);
  const tw_past* past = snapshot(cta, warp, mask, clock, so_far);
  cta->warp_clock[warp] = clock;
  return past;
}

void tw_race_learn(tw_cta_races* cta, int warp, uint32_t mask, const tw_past* past) {
  if (cta->ignored || warp < 0 || warp >= cta->warps) return;
  mask &= cta->live[warp];
  if (mask) give_root(cta, warp, mask, mask == cta->live[warp], past);
}

const tw_past* tw_race_join(tw_cta_races* cta, const tw_past* one, const tw_past* other) {
  return tw_past_follow(cta, one, other);
}

void tw_race_proxy_fence(tw_cta_races* cta, int warp, uint32_t mask) {
  if (cta->ignored || warp < 0 || warp >= cta->warps || !(mask & cta->live[warp])) return;
  tw_tick(cta, warp);
  cta->proxy_clock[warp] = cta->warp_clock[warp];
}

// The thread that stands for the asynchronous proxy has got to a stamp of its own: what those know who are told.
const tw_past* tw_proxy_past(tw_cta_races* cta, const tw_past* so_far, uint32_t* stamp) {
  *stamp = advance(cta);
  if (!tw_has_proxy_thread(cta)) return so_far;
  tw_past* past = tw_past_new(cta, so_far, NULL);
  if (!past) return so_far;
  past->warp = TW_PROXY_THREAD / 32;
  past->lanes = 1u << TW_PROXY_THREAD % 32;
  past->clock = past->proxy = *stamp + 1;
  return past;
}

// -- a new CTA --

void tw_order_begin(tw_cta_races* cta) {
  tw_known_reset(&cta->cta_known);
  for (int warp = 0; warp < 32; warp++) tw_known_reset(&cta->warp_known[warp]);
  for (int thread = 0; cta->thread_known && thread < TW_RACE_MAX_THREADS; thread++) {
    tw_known_reset(&cta->thread_known[thread]);
  }
  cta->cta_root = cta->release_root = cta->release_made = NULL;
  memset(cta->warp_root, 0, sizeof cta->warp_root);
  memset(cta->thread_root, 0, sizeof cta->thread_root);
  memset(cta->rooted, 0, sizeof cta->rooted);
  memset(cta->warp_line, 0, sizeof cta->warp_line);
  memset(cta->thread_line, 0, sizeof cta->thread_line);
  cta->cta_line = (tw_line){0};
  memset(cta->pending, 0, sizeof cta->pending);
  memset(cta->pending_lanes, 0, sizeof cta->pending_lanes);
  memset(cta->fenced_lanes, 0, sizeof cta->fenced_lanes);
  memset(cta->unshared_fences, 0, sizeof cta->unshared_fences);
  memset(cta->release_row, 0, sizeof cta->release_row);
  memset(cta->arrivals, 0, sizeof cta->arrivals);
  memset(cta->arrival_releases, 0, sizeof cta->arrival_releases);
  memset(cta->in_flight, 0, sizeof cta->in_flight);
  memset(cta->proxy_clock, 0, sizeof cta->proxy_clock);
  memset(cta->proxy_known, 0, sizeof cta->proxy_known);
  cta->any_roots = cta->any_pending = cta->any_fenced = cta->shared_release = false;
  cta->release_whole_cta = 0;
  cta->partial = 0;
  uint32_t clock = advance(cta);
  cta->start_clock = cta->barrier_clock = clock;
  for (int warp = 0; warp < 32; warp++) cta->warp_clock[warp] = cta->warp_sync[warp] = clock;
}

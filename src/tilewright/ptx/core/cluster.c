// The barrier of a cluster, and what must not happen to a block's shared memory when the block ends.
#include "cluster.h"

enum { DIVERGED_TWICE = 6, DIVERGED_NEVER = 7 };  // details of the finding, after those of barriers.c

static void report_misuse(tw_warp* w, int pc, uint32_t lanes, int detail) {
  if (lanes && w->cta->engine->checks & TW_CHECK_WARP)
    tw_report(w, TW_FIND_BARRIER_DIVERGENCE, pc, __builtin_ctz(lanes), 0, 0, detail);
}

// -- life --

void tw_cluster_begin(tw_cta** blocks, int32_t size) {
  tw_cluster* cluster = &blocks[0]->own_cluster;
  *cluster = (tw_cluster){.size = size, .running = size};
  for (int32_t rank = 0; rank < size; rank++) {
    tw_cta* cta = cluster->blocks[rank] = blocks[rank];
    cta->cluster = cluster;
    cta->rank = rank;
    if (cta->visits) memset(cta->visits, 0, TW_MAX_CLUSTER * TW_MAX_WARPS * sizeof *cta->visits);
  }
}

bool tw_block_can_run(const tw_cta* cta) {
  for (int k = 0; k < cta->warp_count; k++)
    if (!cta->warps[k].done && tw_has_ready(&cta->warps[k])) return true;
  return false;
}

// -- barrier.cluster: every thread arrives once and then waits once, until all that have not ended have arrived --

static bool all_arrived(const tw_cluster* cluster) {
  for (int32_t rank = 0; rank < cluster->size; rank++) {
    const tw_cta* cta = cluster->blocks[rank];
    for (int k = 0; k < cta->warp_count; k++)
      if (cta->warps[k].live & ~cta->warps[k].cluster_arrived) return false;
  }
  return true;
}

static uint32_t lanes_that_wait(const tw_warp* w) {
  uint32_t lanes = 0;
  for (int32_t c = 0; c < w->context_count; c++)
    if (w->contexts[c].state == TW_AT_CLUSTER) lanes |= w->contexts[c].mask;
  return lanes;
}

static bool all_wait(const tw_cta* cta) {
  for (int k = 0; k < cta->warp_count; k++)
    if (cta->warps[k].live & ~lanes_that_wait(&cta->warps[k])) return false;
  return true;
}

static void release_block(tw_cta* cta, bool awaited) {
  tw_cluster* cluster = cta->cluster;
  bool together = cta->races && !cluster->relaxed && all_wait(cta);
  if (together) tw_race_cluster_all(cta->races, cluster->opened);
  for (int k = 0; k < cta->warp_count; k++) {
    tw_warp* w = &cta->warps[k];
    uint32_t waited = lanes_that_wait(w);
    w->cluster_passes = w->cluster_arrived & ~waited;
    w->cluster_arrived = 0;
    w->awaited |= awaited && waited;
    if (waited) w->cluster_opening = cluster->openings;
    if (cta->races && waited && !together) tw_race_cluster_wait(cta->races, k, waited, cluster->opened);
    for (int32_t c = 0; c < w->context_count; c++)
      if (w->contexts[c].state == TW_AT_CLUSTER) w->contexts[c].state = TW_READY, w->contexts[c].pc++;
  }
  cta->progressed = true;
}

// Somebody has arrived or ended: the barrier opens when nobody is missing.
void tw_cluster_recheck(tw_cluster* cluster) {
  if (!cluster->open || !all_arrived(cluster)) return;
  bool awaited = false;
  for (int32_t rank = 0; rank < cluster->size; rank++)
    for (int k = 0; k < cluster->blocks[rank]->warp_count; k++) awaited |= cluster->blocks[rank]->warps[k].awaited;
  cluster->opened = cluster->arrivals;
  cluster->arrivals = NULL;
  cluster->openings++;
  for (int32_t rank = 0; rank < cluster->size; rank++) release_block(cluster->blocks[rank], awaited);
  cluster->open = cluster->relaxed = false;
}

// flags 1: .relaxed
int tw_cluster_arrive(tw_warp* w, const tw_instr* i, uint32_t exec) {
  tw_cluster* cluster = w->cta->cluster;
  uint32_t twice = exec & (w->cluster_arrived | w->cluster_passes);
  report_misuse(w, tw_index_of(w, i), twice, DIVERGED_TWICE);
  exec &= ~twice;
  if (!exec) return TW_NEXT;
  if (w->cta->races) tw_race_cluster_arrive(w->cta->races, w->index, exec, i->flags & 1, &cluster->arrivals);
  cluster->relaxed |= i->flags & 1;
  cluster->open = true;
  w->cluster_arrived |= exec;
  tw_cluster_recheck(cluster);
  return TW_NEXT;
}

int tw_cluster_wait(tw_warp* w, const tw_instr* i, uint32_t exec) {
  int pc = tw_index_of(w, i);
  uint32_t passes = exec & w->cluster_passes, waits = exec & w->cluster_arrived;
  report_misuse(w, pc, exec & ~(passes | waits), DIVERGED_NEVER);
  w->cluster_passes &= ~passes;
  if (passes) w->cluster_opening = w->cta->cluster->openings;
  if (passes && w->cta->races) tw_race_cluster_wait(w->cta->races, w->index, passes, w->cta->cluster->opened);
  if (!waits) return TW_NEXT;
  tw_stand(w, waits, pc, TW_AT_CLUSTER, 0);
  return w->running ? TW_JUMP : TW_SWITCH;
}

// For a deadlock: how many threads of the cluster have arrived, and how many there are.
void tw_cluster_describe(const tw_cta* cta) {
  int arrived = 0, live = 0;
  for (int32_t rank = 0; rank < cta->cluster->size; rank++) {
    const tw_cta* block = cta->cluster->blocks[rank];
    for (int k = 0; k < block->warp_count; k++) {
      arrived += __builtin_popcount(block->warps[k].cluster_arrived & block->warps[k].live);
      live += __builtin_popcount(block->warps[k].live);
    }
  }
  tw_message(cta->engine, " %d %d", arrived, live);
}

// -- shared memory lives as long as its block --

static void report_absent(tw_warp* w, int pc, int lane, const tw_cta* home, uint32_t offset, int size, bool begun) {
  tw_finding f = tw_finding_of(w, TW_FIND_PEER_ABSENT, pc, lane);
  f.address = TW_SHARED_WINDOW + tw_cluster_address(home, offset), f.size = size, f.detail = !begun;
  if (begun) f.other_instruction = home->end_pc, f.other_block = home->linear, f.other_thread = 0;
  tw_report_full(w->cta->engine, &f);
}

static tw_visit* visit_of(const tw_warp* w, const tw_cta* home) {
  return &home->visits[w->cta->rank * TW_MAX_WARPS + w->index];
}

bool tw_cluster_present(tw_warp* w, int pc, int lane, tw_cta* home, uint32_t offset, int size) {
  if (tw_has_ended(home)) {
    report_absent(w, pc, lane, home, offset, size, true);
    return false;
  }
  tw_visit* visit = home->visits && home != w->cta ? visit_of(w, home) : NULL;
  if (!visit || visit->begun) return true;
  visit->begun = w->cluster_opening || tw_race_after_beginning(home->races, w->cta->races, w->index, lane);
  if (!visit->begun) report_absent(w, pc, lane, home, offset, size, false);
  return true;
}

void tw_cluster_visit(tw_warp* w, int pc, uint32_t lanes, tw_cta* home, uint32_t offset, int size) {
  if (!home->visits || !lanes) return;
  tw_visit* visit = visit_of(w, home);
  tw_race_visit(w->cta->races, w->index, lanes, visit);
  visit->opening = w->cta->cluster->openings + (lanes & w->cluster_arrived ? 2 : 1);
  visit->address = offset, visit->instr = pc, visit->size = size;
}

// Lanes end. Once all have, an access by another block that came before the end of none of them may as well come later.
// For this and for their beginning the barrier counts even where it is relaxed and orders no memory.
void tw_cluster_leave(tw_warp* w, int pc, uint32_t lanes) {
  tw_cta* cta = w->cta;
  cta->end_pc = pc;
  for (int k = 0; cta->visits && k < cta->cluster->size * TW_MAX_WARPS; k++) {
    tw_visit* visit = &cta->visits[k];
    if (!visit->lanes) continue;
    int visitor = k % TW_MAX_WARPS;
    if (w->cluster_opening >= visit->opening || tw_race_after_visit(cta->races, w->index, lanes, visitor, visit)) {
      visit->lanes = 0;
    } else if (!cta->live_threads) {
      tw_warp* other = &cta->cluster->blocks[k / TW_MAX_WARPS]->warps[visitor];
      report_absent(other, visit->instr, __builtin_ctz(visit->lanes), cta, visit->address, visit->size, true);
    }
  }
  tw_cluster_recheck(cta->cluster);
}

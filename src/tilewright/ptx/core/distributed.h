// Handlers: shared memory of other blocks of the cluster, and the cluster's barrier.
#ifndef TW_DISTRIBUTED_H
#define TW_DISTRIBUTED_H

#include "cluster.h"
#include "memory.h"

// Lanes of `left` whose address names the same block as the first of them does.
static uint32_t tw_same_block(const tw_access* x, uint32_t left) {
  uint64_t first = x->address[__builtin_ctz(left)] >> TW_RANK_SHIFT;
  uint32_t same = 0;
  TW_EACH(left) same |= (uint32_t)(x->address[l] >> TW_RANK_SHIFT == first) << l;
  return same;
}

// An access of which some lanes name other blocks, or nothing at all: one block at a time.
static uint32_t tw_distributed(tw_warp* w, const tw_instr* i, uint32_t exec, tw_access* x, int how) {
  int pc = tw_index_of(w, i);
  uint32_t good = 0, offset;
  bool reaches = TW_SPACE_OF(i->mod) == TW_SPACE_CLUSTER || TW_SPACE_OF(i->mod) == TW_SPACE_GENERIC;
  tw_access part;
  part.size = x->size;
  for (uint32_t left = exec, here; left; left &= ~here) {
    int first = __builtin_ctz(left);
    here = tw_same_block(x, left);
    tw_cta* home = x->address[first] >> 32 ? NULL : tw_cluster_block(w->cta, (uint32_t)x->address[first], &offset);
    if (!home || (!reaches && home != w->cta)) {
      TW_EACH(here) tw_report(w, TW_FIND_SHARED_BOUNDS, pc, (int)l, TW_SHARED_WINDOW + x->address[l], x->size, how);
      continue;
    }
    if (!tw_cluster_present(w, pc, first, home, offset, x->size)) continue;
    part.shared = part.global = part.peers = 0, part.contiguous = false;
    TW_LOOP part.address[l] = x->address[l] & ((1u << TW_RANK_SHIFT) - 1);
    uint64_t window = TW_SHARED_WINDOW + (home == w->cta ? 0 : tw_cluster_address(home, 0));
    uint32_t lanes = tw_shared_of(w, i, here, &part, how, home, window);
    TW_EACH(lanes) x->at[l] = part.at[l], x->offset[l] = part.offset[l];
    good |= lanes;
    x->contiguous = part.contiguous && lanes == TW_ALL;
    if (home == w->cta) {
      x->shared |= lanes;
    } else {
      x->peers |= lanes;
      tw_cluster_visit(w, pc, lanes, home, offset, x->size);
    }
  }
  return good;
}

// Tells the race detector of lanes that reached other blocks.
static void tw_tell_peers(tw_warp* w, const tw_instr* i, const tw_access* x, int how, int order, const void* values) {
  tw_race_report race;
  int index = tw_index_of(w, i);
  uint32_t offset;
  for (uint32_t left = x->peers, here; left; left &= ~here) {
    here = tw_same_block(x, left);
    tw_cta* home = tw_cluster_block(w->cta, (uint32_t)x->address[__builtin_ctz(left)], &offset);
    int found = tw_race_peer(home->races, w->cta->races, w->index, here, x->offset, x->size, how, order, values, x->size,
                             index, &race);
    if (!found) continue;
    race.address = tw_cluster_address(home, (uint32_t)race.address);
    tw_report_race(w, TW_FIND_RACE_SHARED, index, x->size, &race, found);
  }
}

static void tw_observe_peers(tw_warp* w, const tw_access* x, int order) {
  uint32_t offset;
  for (uint32_t left = x->peers, here; left; left &= ~here) {
    here = tw_same_block(x, left);
    tw_cta* home = tw_cluster_block(w->cta, (uint32_t)x->address[__builtin_ctz(left)], &offset);
    tw_race_observe_peer(home->races, w->cta->races, w->index, here, x->offset, x->size, order);
  }
}

// o: d, address, rank. flags 1: 64 bits; 2: a generic address, which keeps its window
TW_HANDLER(mapa) {
  const uint32_t* rank = TW_SRC(uint32_t, 2);
  uint32_t code[TW_LANES];
  TW_LOOP code[l] = (rank[l] < TW_NO_RANK - 1 ? rank[l] + 1 : TW_NO_RANK) << TW_RANK_SHIFT;
  uint64_t place = (i->flags & 2 ? ~0xffffffffull : 0) | ((1u << TW_RANK_SHIFT) - 1);
  if (i->flags & 1) {
    const uint64_t* a = TW_SRC(uint64_t, 1);
    TW_RESULT(uint64_t, (a[l] & place) | code[l]);
  }
  const uint32_t* a = TW_SRC(uint32_t, 1);
  TW_RESULT(uint32_t, (a[l] & (uint32_t)place) | code[l]);
}

// o: d, address. flags 1: 64 bits
TW_HANDLER(getctarank) {
  uint32_t own = (uint32_t)w->cta->rank;
  if (i->flags & 1) {
    const uint64_t* a = TW_SRC(uint64_t, 1);
    TW_RESULT(uint32_t, ({ uint32_t code = (uint32_t)a[l] >> TW_RANK_SHIFT; code ? code - 1 : own; }));
  }
  const uint32_t* a = TW_SRC(uint32_t, 1);
  TW_RESULT(uint32_t, ({ uint32_t code = a[l] >> TW_RANK_SHIFT; code ? code - 1 : own; }));
}

TW_HANDLER(cluster_arrive) { return tw_cluster_arrive(w, i, exec); }
TW_HANDLER(cluster_wait) { return tw_cluster_wait(w, i, exec); }

#endif

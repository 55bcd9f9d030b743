// Handlers: shared memory of other blocks of the cluster, and the cluster's barrier.
#ifndef TW_DISTRIBUTED_H
#define TW_DISTRIBUTED_H

#include "asynchronous.h"
#include "atomics.h"
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
  uint64_t window = i->flags & 2 ? w->cta->engine->launch->shared_window : 0, place = (1u << TW_RANK_SHIFT) - 1;
  if (i->flags & 1) {
    const uint64_t* a = TW_SRC(uint64_t, 1);
    TW_RESULT(uint64_t, window + (((a[l] - window) & place) | code[l]));
  }
  const uint32_t* a = TW_SRC(uint32_t, 1);
  TW_RESULT(uint32_t, (a[l] & (uint32_t)place) | code[l]);
}

// o: d, address. flags 1: 64 bits
TW_HANDLER(getctarank) {
  uint32_t own = (uint32_t)w->cta->rank;
  if (i->flags & 1) {
    const uint64_t* a = TW_SRC(uint64_t, 1);
    uint64_t window = i->flags & 2 ? w->cta->engine->launch->shared_window : 0;
    TW_RESULT(uint32_t, ({ uint32_t code = (uint32_t)(a[l] - window) >> TW_RANK_SHIFT; code ? code - 1 : own; }));
  }
  const uint32_t* a = TW_SRC(uint32_t, 1);
  TW_RESULT(uint32_t, ({ uint32_t code = a[l] >> TW_RANK_SHIFT; code ? code - 1 : own; }));
}

// -- stores and reductions that an mbarrier of the same block counts --

// The shared address that a lane names; a generic one that is not shared names no block.
static uint32_t tw_shared_address(const tw_warp* w, const tw_instr* i, uint64_t address) {
  uint64_t window = TW_SPACE_OF(i->mod) == TW_SPACE_GENERIC ? w->cta->engine->launch->shared_window : 0;
  return address - window < TW_WINDOW_BYTES ? (uint32_t)(address - window) : UINT32_MAX;
}

// o[5], o[6]: address of the mbarrier and its offset; flags 64: it has 64 bits
static uint32_t tw_counting_barrier(const tw_warp* w, const tw_instr* i, uint32_t l) {
  uint64_t base = i->flags & 64 ? TW_SRC(uint64_t, 5)[l] : TW_SRC(uint32_t, 5)[l];
  return tw_shared_address(w, i, base + (uint64_t)(int64_t)i->o[6]);
}

// o: up to four values, address, mbarrier, its offset. mod and count as in st
TW_HANDLER(st_async) {
  tw_access x;
  uint8_t values[TW_LANES * 16];
  x.size = i->count << (i->mod & TW_MEM_ELEMENT);
  tw_addresses(w, i, 4, &x);
  tw_pack_values(w, i, values, x.size);
  TW_EACH(tw_only_aligned(w, i, exec, &x, TW_SPACE_OF(i->mod) == TW_SPACE_GENERIC ? 0 : TW_SHARED_WINDOW))
    tw_bulk_send(w, i, (int)l, tw_shared_address(w, i, x.address[l]), tw_counting_barrier(w, i, l), values + (int)l * x.size,
                 (uint32_t)x.size);
  return atomic_load_explicit(&w->cta->engine->stop, memory_order_relaxed) ? TW_STOP : TW_NEXT;
}

// o: -, -, b, -, address, mbarrier, its offset. flags: TW_ATOM_*; count: the type. It is done at once, which it may be.
TW_HANDLER(red_async) {
  tw_access x;
  int bytes = i->count == TW_ATOM_U64 || i->count == TW_ATOM_S64 ? 8 : 4;
  bool changed = false;
  x.size = bytes;
  tw_addresses(w, i, 4, &x);
  uint32_t mask = tw_reach(w, i, exec, &x, TW_BOTH);
  if (w->cta->races && mask) tw_tell(w, i, &x, TW_BOTH, TW_ORDER_RELAXED, NULL);
  const void* b = tw_slot(w, i->o[2]);
  TW_EACH(mask) {
    tw_atom_lane(x.at[l], bytes, i->flags & 15, i->count, tw_atom_operand(b, bytes, l), 0, &changed);
    tw_cta* home;
    tw_mbarrier* barrier = tw_mbarrier_at(w, i, (int)l, tw_counting_barrier(w, i, l), &home);
    if (!barrier) continue;
    if (w->cta->races) barrier->arriving = tw_race_publish(w->cta->races, w->index, 1u << l, barrier->arriving);
    tw_mbarrier_add_bytes(w, i, (int)l, home, barrier, -bytes);
  }
  w->cta->wrote = true;
  return TW_NEXT;
}

TW_HANDLER(cluster_arrive) { return tw_cluster_arrive(w, i, exec); }
TW_HANDLER(cluster_wait) { return tw_cluster_wait(w, i, exec); }

#endif

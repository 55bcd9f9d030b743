// bar.sync, bar.arrive, bar.red, and lanes that wait for each other inside a warp.
#include <stdio.h>

#include "lanes.h"

enum { BAR_SYNC = 0, BAR_ARRIVE = 1, BAR_RED = 2 };  // flags of the instruction, low two bits
enum { RED_POPC = 0, RED_AND = 1, RED_OR = 2 };      // mod
enum { DIVERGED_WARP = 1, DIVERGED_BLOCK = 2, DIVERGED_EXITED = 3, DIVERGED_NUMBER = 4, DIVERGED_COUNT = 5,
       DIVERGED_COUNTS = 8 };  // 6 and 7 are cluster.c's

static void report_divergence(tw_warp* w, int pc, int lane, int detail, int other_pc, int other_thread) {
  if (!(w->cta->engine->checks & TW_CHECK_WARP)) return;
  tw_finding f = tw_finding_of(w, TW_FIND_BARRIER_DIVERGENCE, pc, lane);
  f.other_instruction = other_pc, f.other_block = w->cta->linear, f.other_thread = other_thread, f.detail = detail;
  tw_report_full(w->cta->engine, &f);
}

static bool all_here(const tw_cta* cta, const tw_barrier* b) {
  for (int k = 0; k < cta->warp_count; k++)
    if (cta->warps[k].live & ~b->lanes[k]) return false;
  return true;
}

// A warp of which some threads have ended while the others wait at a barrier of the block. Whole warps may leave: a
// barrier waits for all threads that have not ended.
static void look_for_the_dead(tw_cta* cta, const tw_barrier* b) {
  for (int k = 0; k < cta->warp_count; k++) {
    uint32_t missing = b->lanes[k] ? cta->warps[k].started & ~b->lanes[k] : 0;
    if (!missing) continue;
    tw_warp* first = &cta->warps[b->first_thread / TW_LANES];
    report_divergence(first, b->first_pc, b->first_thread % TW_LANES, DIVERGED_EXITED, -1, k * TW_LANES + __builtin_ctz(missing));
    return;
  }
}

// What one warp knows of the launch before this, all know who waited for each other.
static void share_what_was_awaited(tw_cta* cta, const tw_barrier* b) {
  bool awaited = false;
  for (int k = 0; k < cta->warp_count; k++) awaited |= b->lanes[k] && cta->warps[k].awaited;
  for (int k = 0; awaited && k < cta->warp_count; k++) cta->warps[k].awaited |= b->waiting[k] != 0;
}

static void write_reduction(tw_warp* w, const tw_instr* i, uint8_t* registers, uint32_t lanes, const tw_barrier* b) {
  if ((i->flags & 3) != BAR_RED || i->o[0] < 0) return;
  uint8_t* slot = registers + (i->o[0] & ~3);
  if (i->mod == RED_POPC) {
    TW_EACH(lanes)((uint32_t*)slot)[l] = b->predicate_count;
  } else {
    uint32_t value = i->mod == RED_AND ? b->predicate_and : b->predicate_or;
    uint32_t* p = (uint32_t*)slot;
    *p = (*p & ~lanes) | (value & lanes);
  }
  (void)w;
}

static void open_barrier(tw_cta* cta, int id) {
  tw_barrier* b = &cta->barriers[id];
  if (!b->expected) look_for_the_dead(cta, b);
  if (cta->engine->launch->overlaps) share_what_was_awaited(cta, b);
  if (cta->races) tw_race_barrier(cta->races, id, b->waiting, cta->warp_count);
  for (int k = 0; k < cta->warp_count; k++) {
    tw_warp* w = &cta->warps[k];
    for (int32_t c = 0; c < w->context_count; c++) {
      tw_context* x = &w->contexts[c];
      if (x->state != TW_AT_BARRIER || x->barrier != id) continue;
      write_reduction(w, &cta->program->code[x->pc], w->frames[x->frame].registers, x->mask, b);
      x->state = TW_READY;
      x->pc++;
    }
  }
  memset(b, 0, sizeof *b);
  cta->progressed = true;
}

// A barrier without a count waits for all threads, of which a warp counts as 32.
static int64_t threads_wanted(const tw_cta* cta, int64_t expected) {
  return expected ? expected : (int64_t)cta->warp_count * TW_LANES;
}

static bool is_complete(const tw_cta* cta, const tw_barrier* b) {
  return b->open && (b->expected ? b->arrived >= b->expected : all_here(cta, b));
}

// Threads have ended: barriers that only waited for them open.
void tw_barriers_recheck(tw_cta* cta) {
  for (int id = 0; id < TW_BARRIERS; id++)
    if (cta->barriers[id].open && !cta->barriers[id].expected && is_complete(cta, &cta->barriers[id])) open_barrier(cta, id);
}

static void arrive(tw_warp* w, const tw_instr* i, uint32_t exec, tw_barrier* b, int pc) {
  int lane = __builtin_ctz(exec), thread = w->index * TW_LANES + lane;
  if (!b->open) {
    b->open = true;
    b->first_pc = pc, b->first_thread = thread;
    b->predicate_and = TW_ALL;
  } else if (b->first_pc != pc && !b->mixed) {
    bool same_warp = b->first_thread / TW_LANES == w->index;
    bool named = b != w->cta->barriers;  // __syncthreads() is one place for all; warps with roles of their own meet elsewhere
    if ((same_warp && i->imm) || (!b->expected && !named)) {
      report_divergence(w, pc, lane, same_warp ? DIVERGED_WARP : DIVERGED_BLOCK, b->first_pc, b->first_thread);
      b->mixed = true;
    }
  }
  uint32_t before = b->lanes[w->index];
  b->lanes[w->index] |= exec;
  b->arrived += __builtin_popcount(exec);
  // A warp counts as 32 threads, also where the block has fewer or some have ended.
  if ((b->lanes[w->index] & w->live) == w->live && (before & w->live) != w->live)
    b->arrived += TW_LANES - __builtin_popcount(b->lanes[w->index]);
}

// These lanes of the running context wait at `pc`; the others, which a guard keeps from it, go on.
void tw_stand(tw_warp* w, uint32_t lanes, int pc, tw_context_state state, uint8_t barrier) {
  if (lanes != w->mask) {
    uint32_t masks[2] = {lanes, w->mask & ~lanes};
    int32_t targets[2] = {pc, pc + 1};
    w->pc = pc;
    tw_fan_out(w, 2, masks, targets, -1);
    for (int32_t c = 0; c < w->context_count; c++)
      if (w->contexts[c].pc == pc && w->contexts[c].mask == lanes)
        w->contexts[c].state = (uint8_t)state, w->contexts[c].barrier = barrier;
    if (w->mask != lanes) return;
  }
  tw_set_aside(w, state, pc, false);
  w->contexts[w->context_count - 1].barrier = barrier;
}

int tw_barrier_reach(tw_warp* w, const tw_instr* i, uint32_t exec) {
  if (!exec) return TW_NEXT;
  tw_cta* cta = w->cta;
  int pc = tw_index_of(w, i), lane = __builtin_ctz(exec), how = i->flags & 3;
  uint32_t id = TW_SRC(uint32_t, 1)[lane];
  uint32_t expected = i->o[2] < 0 ? 0 : TW_SRC(uint32_t, 2)[lane];
  if (id >= TW_BARRIERS) {
    report_divergence(w, pc, lane, DIVERGED_NUMBER, -1, (int)id);
    return TW_NEXT;
  }
  tw_barrier* b = &cta->barriers[id];
  if (i->o[2] >= 0 && (expected == 0 || expected % TW_LANES)) {
    report_divergence(w, pc, lane, DIVERGED_COUNT, -1, (int)expected);
    if (!expected) return TW_NEXT;
  }
  if (b->open && threads_wanted(cta, b->expected) != threads_wanted(cta, expected))
    report_divergence(w, pc, lane, DIVERGED_COUNTS, b->first_pc, b->first_thread);
  arrive(w, i, exec, b, pc);
  b->expected = expected;
  if (how == BAR_RED) {
    uint32_t p = tw_predicate(w, i->o[3]);
    b->predicate_count += (uint32_t)__builtin_popcount(p & exec);
    if ((p & exec) != exec) b->predicate_and = 0;
    if (p & exec) b->predicate_or = TW_ALL;
  }
  if (how == BAR_ARRIVE) {
    if (cta->races) tw_race_barrier_arrive(cta->races, (int)id, w->index, exec);
    if (is_complete(cta, b)) open_barrier(cta, (int)id);
    return TW_NEXT;
  }
  b->waiting[w->index] |= exec;
  tw_stand(w, exec, pc, TW_AT_BARRIER, (uint8_t)id);
  if (is_complete(cta, b)) open_barrier(cta, (int)id);
  return w->running ? TW_JUMP : TW_SWITCH;
}

// -- collectives of a warp --

static bool is_warp_barrier(const tw_warp* w, int32_t pc, uint16_t op) { return w->cta->program->code[pc].op == op; }

// Waits until every lane that the members' masks name is here; then `together` are the lanes that take part.
// A bar.warp.sync also meets one at another place; everything else must be the same instruction.
int tw_gather_lanes(tw_warp* w, const tw_instr* i, uint32_t exec, const uint32_t* masks, uint32_t* together) {
  if (exec == w->live && !w->context_count) {  // everybody is here: only the masks themselves can be wrong
    uint32_t least = TW_ALL;
    TW_LOOP least &= exec & tw_lane_bit[l] ? masks[l] : TW_ALL;
    if ((least & exec) == exec) {
      if (w->cta->races) tw_race_syncwarp(w->cta->races, w->index, exec);
      *together = exec;
      return TW_NEXT;
    }
  }
  int pc = tw_index_of(w, i);
  uint32_t wanted = 0, strangers = 0;
  TW_EACH(exec) {
    wanted |= masks[l];
    strangers |= masks[l] >> l & 1 ? 0 : 1u << l;
  }
  if (strangers && w->cta->engine->checks & TW_CHECK_WARP) {
    int lane = __builtin_ctz(strangers);
    tw_report(w, TW_FIND_SHUFFLE_MASK, pc, lane, masks[lane], 0, 1);
  }
  wanted = (wanted & w->live) | exec;
  bool any_place = i->flags & 64;  // bar.warp.sync
  uint32_t here = exec;
  for (int32_t c = 0; c < w->context_count; c++) {
    const tw_context* x = &w->contexts[c];
    if (x->state != TW_AT_SYNC) continue;
    bool match = any_place ? is_warp_barrier(w, x->pc, i->op) : x->pc == pc && x->frame == w->frame;
    if (match) here |= x->mask, wanted |= x->wanted & w->live;
  }
  if ((here & wanted) != wanted && w->forced_pc != pc) {
    if (exec != w->mask) {
      uint32_t split[2] = {w->mask & ~exec, exec};
      int32_t targets[2] = {pc + 1, pc};
      w->pc = pc;
      // The lanes that skip it go on; those that wait come back to it without their guard's company.
      tw_fan_out(w, 2, split, targets, -1);
      return TW_JUMP;
    }
    tw_set_aside(w, TW_AT_SYNC, pc, false);
    w->contexts[w->context_count - 1].wanted = wanted;
    return TW_SWITCH;
  }
  w->forced_pc = -1;
  for (int32_t c = 0; c < w->context_count; c++) {
    tw_context* x = &w->contexts[c];
    if (x->state != TW_AT_SYNC) continue;
    bool match = any_place ? is_warp_barrier(w, x->pc, i->op) : x->pc == pc && x->frame == w->frame;
    if (!match) continue;
    x->state = TW_READY;
    x->pc++;
  }
  if (w->cta->races) tw_race_syncwarp(w->cta->races, w->index, here);
  *together = here;
  return TW_NEXT;
}

static uint32_t lanes_at_mbarriers(const tw_warp* w) {
  uint32_t lanes = 0;
  for (int32_t c = 0; c < w->context_count; c++)
    if (w->contexts[c].state == TW_AT_MBARRIER) lanes |= w->contexts[c].mask;
  return lanes;
}

// Nothing runs any more, but lanes wait for others of their warp: the mask named lanes that never come. Those that wait
// at an mbarrier may come yet; if not, it is the mbarrier that is to blame.
bool tw_force_collective(tw_cta* cta) {
  for (int k = 0; k < cta->warp_count; k++) {
    tw_warp* w = &cta->warps[k];
    for (int32_t c = 0; c < w->context_count; c++) {
      tw_context* x = &w->contexts[c];
      if (x->state != TW_AT_SYNC || x->wanted & ~x->mask & lanes_at_mbarriers(w)) continue;
      if (cta->engine->checks & TW_CHECK_WARP) {
        uint32_t missing = x->wanted & ~x->mask;
        tw_report(w, TW_FIND_SHUFFLE_MASK, x->pc, __builtin_ctz(x->mask), missing, 0, 2);
      }
      x->state = TW_READY;
      w->forced_pc = x->pc;
      return true;
    }
  }
  return false;
}

// One line per warp that waits, for people: "block thread-range instruction what".
void tw_describe_waits(tw_cta* cta) {
  for (int k = 0; k < cta->warp_count; k++) {
    tw_warp* w = &cta->warps[k];
    for (int32_t c = 0; c < w->context_count; c++) {
      const tw_context* x = &w->contexts[c];
      tw_message(cta->engine, "%d %d %u %d %d %d", cta->linear, k, x->mask, x->pc, (int)x->state, (int)x->barrier);
      if (x->state == TW_AT_MBARRIER) tw_mbarrier_describe(cta, x->barrier);
      if (x->state == TW_AT_CLUSTER) tw_cluster_describe(cta);
      if (x->state == TW_AT_BARRIER) {
        const tw_barrier* b = &cta->barriers[x->barrier];
        tw_message(cta->engine, " %lld %lld", (long long)b->arrived, (long long)threads_wanted(cta, b->expected));
      }
      tw_message(cta->engine, "\n");
    }
    if (w->running) tw_message(cta->engine, "%d %d %u %d %d %d\n", cta->linear, k, w->mask, w->pc, (int)TW_READY, 0);
  }
}

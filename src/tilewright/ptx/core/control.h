// Handlers: branches, calls, exits, barriers.
#ifndef TW_CONTROL_H
#define TW_CONTROL_H

#include "lanes.h"

// imm: where the two sides meet (-1: at the end); o[0]: the target
TW_HANDLER(bra) {
  uint32_t other = w->mask & ~exec;
  if (!exec) return TW_NEXT;
  w->quantum--;
  if (!other) {
    w->pc = i->o[0];
    return TW_JUMP;
  }
  int32_t pc = tw_index_of(w, i);
  uint32_t masks[2] = {exec, other};
  int32_t targets[2] = {i->o[0], pc + 1};
  if (targets[0] == targets[1]) return TW_NEXT;
  return tw_fan_out(w, 2, masks, targets, (int32_t)i->imm);
}

// o[1]: index; extra, count: the table (in further operands); imm: where all meet
TW_HANDLER(brx) {
  if (!exec) return TW_NEXT;
  const uint32_t* index = TW_SRC(uint32_t, 1);
  const int32_t* table = w->cta->program->extra + i->extra;
  int32_t entries = table[0], pc = tw_index_of(w, i);
  uint32_t masks[TW_LANES + 1];
  int32_t targets[TW_LANES + 1];
  int count = 0;
  w->quantum--;
  TW_EACH(w->mask) {
    int32_t target = pc + 1;
    if (exec >> l & 1) {
      if (index[l] >= (uint32_t)entries) {
        tw_report(w, TW_FIND_BAD_CALL, pc, (int)l, index[l], 0, 1);
        atomic_store(&w->cta->engine->stop, 1);
        return TW_STOP;
      }
      target = table[1 + index[l]];
    }
    int k = 0;
    while (k < count && targets[k] != target) k++;
    if (k == count) targets[count] = target, masks[count++] = 0;
    masks[k] |= 1u << l;
  }
  if (count == 1) {
    w->pc = targets[0];
    return TW_JUMP;
  }
  return tw_fan_out(w, count, masks, targets, (int32_t)i->imm);
}

// Where lanes that parted may meet. Not an instruction of the program: it is not counted.
TW_HANDLER(join) {
  (void)exec;
  tw_worker* worker = w->cta->worker;
  worker->thread_instructions -= __builtin_popcount(w->mask);
  worker->warp_instructions--;
  if (w->node < 0) return TW_NEXT;
  return tw_meet(w, tw_index_of(w, i));
}

static int tw_end_lanes(tw_warp* w, const tw_instr* i, uint32_t exec) {
  if (!exec) return TW_NEXT;
  w->pc = tw_index_of(w, i);
  if (w->copy_count) tw_async_abandoned(w, exec);
  if (w->cta->bulk) tw_bulk_abandoned(w, exec);
  if (w->cta->races) {
    tw_race_report race;
    tw_race_exit(w->cta->races, w->index, exec, &race);
  }
  int pc = w->pc, then = tw_leave(w, exec);
  tw_barriers_recheck(w->cta);
  tw_cluster_leave(w, pc, exec);
  tw_wgmma_recheck(w);
  return then;
}
TW_HANDLER(exit) { return tw_end_lanes(w, i, exec); }
TW_HANDLER(ret) {
  if (!exec) return TW_NEXT;
  if (w->frames[w->frame].caller < 0) return tw_end_lanes(w, i, exec);
  w->pc = tw_index_of(w, i);
  return tw_return(w, exec);
}

TW_HANDLER(call) {
  if (!exec) return TW_NEXT;
  w->pc = tw_index_of(w, i);
  return tw_call(w, exec, i, (int32_t)i->imm);
}

// o[1]: the function's address; count: bytes of parameters the prototype has. One function at a time.
TW_HANDLER(call_indirect) {
  if (!exec) return TW_NEXT;
  const uint64_t* a = TW_SRC(uint64_t, 1);
  const tw_program* p = w->cta->program;
  int32_t pc = tw_index_of(w, i);
  int first = __builtin_ctz(exec);
  uint64_t address = a[first], index = (address - TW_FUNCTION_WINDOW) >> 4;
  if (address < TW_FUNCTION_WINDOW || address & 15 || index >= (uint64_t)p->function_count || p->functions[index].entry < 0 ||
      p->functions[index].parameter_bytes != (int32_t)i->imm) {
    tw_report(w, TW_FIND_BAD_CALL, pc, first, address, 0, 0);
    atomic_store(&w->cta->engine->stop, 1);
    return TW_STOP;
  }
  uint32_t same = 0;
  TW_EACH(exec) same |= (uint32_t)(a[l] == address) << l;
  w->pc = pc;
  if (same != exec) {  // the others come back for theirs, then all meet behind the call
    uint32_t masks[2] = {same, exec & ~same};
    uint32_t skipped = w->mask & ~exec;
    int32_t targets[3] = {pc, pc, pc + 1};
    uint32_t all[3] = {masks[0], masks[1], skipped};
    int then = tw_fan_out(w, skipped ? 3 : 2, all, targets, pc + 1);
    return then;
  }
  return tw_call(w, exec, i, (int32_t)index);
}

TW_HANDLER(trap) {
  if (!exec) return TW_NEXT;
  tw_report(w, TW_FIND_TRAP, tw_index_of(w, i), __builtin_ctz(exec), 0, 0, 0);
  atomic_store(&w->cta->engine->stop, 1);
  return TW_STOP;
}
TW_HANDLER(brkpt) {
  if (!exec) return TW_NEXT;
  tw_report(w, TW_FIND_TRAP, tw_index_of(w, i), __builtin_ctz(exec), 0, 0, 1);
  atomic_store(&w->cta->engine->stop, 1);
  return TW_STOP;
}
TW_HANDLER(barrier) { return tw_barrier_reach(w, i, exec); }
TW_HANDLER(sync_warp) {
  uint32_t together;
  return exec ? tw_gather_lanes(w, i, exec, TW_SRC(uint32_t, 1), &together) : TW_NEXT;
}
TW_HANDLER(griddep_wait) {
  (void)i;
  if (exec) w->awaited = w->cta->awaited = true;
  return TW_NEXT;
}
TW_HANDLER(griddep_launch) {
  (void)i;
  if (exec && !w->awaited) w->cta->early = true;
  return TW_NEXT;
}
TW_HANDLER(nanosleep) {
  (void)exec;
  w->quantum = 0;
  w->spinning = true;
  w->pc = tw_index_of(w, i) + 1;
  return TW_JUMP;
}

#endif

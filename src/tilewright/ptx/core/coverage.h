// What of a program ran: handlers of the marks that lowering puts at the heads of loops, and what a selection notes.
#ifndef TW_COVERAGE_H
#define TW_COVERAGE_H

#include "lanes.h"

// Which of its two operands a selection took: the ways of a branch that the compiler made into data.
static inline void tw_cover_choice(const tw_warp* w, const tw_instr* i, uint32_t chosen, uint32_t exec) {
  uint8_t* coverage = w->cta->worker->coverage;
  if (!coverage) return;
  uint8_t* seen = &coverage[tw_index_of(w, i)];
  if (exec & chosen) *seen |= TW_COVERED_FIRST;
  if (exec & ~chosen) *seen |= TW_COVERED_SECOND;
}

// A mark is no instruction of the program: it is not counted.
static inline void tw_not_counted(const tw_warp* w) {
  tw_worker* worker = w->cta->worker;
  worker->thread_instructions -= __builtin_popcount(w->mask);
  worker->warp_instructions--;
}

// imm: the number of the loop. A warp comes to it from outside.
TW_HANDLER(loop_enter) {
  (void)exec;
  tw_not_counted(w);
  if (w->trips) tw_cover_loop(w, tw_index_of(w, i), (int32_t)i->imm);
  return TW_NEXT;
}

// imm: the number of the loop. A trip begins.
TW_HANDLER(loop_trip) {
  (void)exec;
  tw_not_counted(w);
  if (w->trips) w->trips[i->imm]++;
  return TW_NEXT;
}

#endif

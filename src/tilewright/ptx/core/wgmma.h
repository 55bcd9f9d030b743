// Handlers: wgmma and setmaxnreg. Each warp computes its 16 of the 64 rows when it issues the instruction; that all four
// have come is seen to at the wait (wgmma.c).
#ifndef TW_WGMMA_H
#define TW_WGMMA_H

#include "matrix.h"

enum { TW_WGMMA_NEGATE_A = 1, TW_WGMMA_NEGATE_B = 2, TW_WGMMA_TRANSPOSE_A = 4, TW_WGMMA_TRANSPOSE_B = 8,
       TW_WGMMA_TRACKED = 16, TW_WGMMA_UNFENCED = 32 };
enum { TW_WGMMA_MOST_SUMS = 128, TW_WGMMA_A_REGISTERS = 4, TW_WGMMA_MOST_CORES = 64 };

static void tw_tell_tile(tw_warp* w, const tw_instr* i, const tw_access* x) {
  tw_race_report race;
  int index = tw_index_of(w, i);
  int found = tw_race_tile_read(w->cta->races, w->index, x->shared, x->offset, index, &race);
  if (found) tw_report_race(w, TW_FIND_RACE_SHARED, index, x->size, &race, found);
}

// Core matrices of 8 x 16 bytes as registers. `by_rows`: the first two are rows 0-7 and 8-15 (a); else both halves of k of
// the first 8 columns (b). Those of which `told` has a bit are told to the race detector.
static void tw_tile_registers(tw_warp* w, const tw_instr* i, const tw_tile* tile, int first, int count, bool by_rows,
                              uint32_t (*registers)[TW_LANES], uint32_t told) {
  tw_count* counts = w->cta->worker->counts;
  w->cta->worker->counts = NULL;  // these are no requests of the warp
  for (int done = 0; done < count; done += 4) {
    tw_access x = {.size = 16};
    for (int l = 0; l < TW_LANES; l++) {
      int core = done + l / 8, block = by_rows ? core % 2 : core / 2, half = by_rows ? core / 2 : core % 2;
      x.address[l] = tw_tile_chunk(tile, first + block, half, l % 8);
    }
    uint32_t lanes = count - done >= 4 ? TW_ALL : (1u << (8 * (count - done))) - 1;
    x.mask = tw_shared(w, i, lanes, &x, TW_READ);
    uint8_t rows[TW_LANES][16];
    memset(rows, 0, sizeof rows);
    TW_EACH(x.mask) memcpy(rows[l], x.at[l], 16);
    if (w->cta->races && told >> (done / 4 % 4) & 1) tw_tell_tile(w, i, &x);
    uint32_t* d[4] = {registers[done], registers[done + 1], registers[done + 2], registers[done + 3]};
    int matrices = count - done >= 4 ? 4 : count - done;
    if (tile->transposed) tw_ldmatrix((const uint8_t(*)[16])rows, matrices, 1, d);
    else memcpy(registers[done], rows, (size_t)matrices * sizeof registers[done]);
  }
  w->cta->worker->counts = counts;
}

static void tw_flip_signs(uint32_t (*registers)[TW_LANES], int count, int element_bits) {
  uint32_t signs = element_bits == 8 ? 0x80808080u : element_bits == 16 ? 0x80008000u : 0x80000000u;
  for (int k = 0; k < count; k++) TW_LOOP registers[k][l] ^= signs;
}

// Whether all lanes hold what the first one holds.
static bool tw_is_uniform(const uint64_t* values, uint32_t lanes) {
  TW_EACH(lanes) if (values[l] != values[__builtin_ctz(lanes)]) return false;
  return true;
}

// o: descriptor of a (negative: in registers), descriptor of b, predicate scale-d, how many registers of d.
// Further operands: the registers of d, then those of a. imm: tensor.c's number. flags: TW_WGMMA_*
TW_HANDLER(wgmma) {
  TW_TOGETHER(tw_whole_warp)
  const int32_t *sums = w->cta->program->extra + i->extra, *list = sums + i->o[3];
  int first = __builtin_ctz(together), pc = tw_index_of(w, i), wgmma = (int)i->imm;
  bool in_registers = i->o[0] < 0;
  const uint64_t *a_at = in_registers ? NULL : TW_SRC(uint64_t, 0), *b_at = TW_SRC(uint64_t, 1);
  uint32_t adds = tw_predicate(w, i->o[2]) & together;
  if (!tw_is_uniform(b_at, together) || (a_at && !tw_is_uniform(a_at, together)) || (adds && adds != together))
    tw_report(w, TW_FIND_WARPGROUP, pc, first, 0, 0, TW_WARPGROUP_DIFFERS);
  if (i->flags & TW_WGMMA_UNFENCED || !w->fenced) tw_report(w, TW_FIND_WGMMA_NOT_FENCED, pc, first, 0, 0, w->fenced);
  tw_tile a_tile = tw_tile_of(a_at ? a_at[first] : 0, i->flags & TW_WGMMA_TRANSPOSE_A);
  tw_tile b_tile = tw_tile_of(b_at[first], i->flags & TW_WGMMA_TRANSPOSE_B);
  int blocks = tw_wgmma_columns(wgmma) / 8;
  if (!tw_wgmma_issue(w, pc, first, a_at ? &a_tile : NULL, &b_tile, blocks)) {
    w->cta->engine->out_of_memory = 1;
    atomic_store(&w->cta->engine->stop, 1);
    return TW_STOP;
  }
  uint32_t a_values[TW_WGMMA_A_REGISTERS][TW_LANES] __attribute__((aligned(64)));
  uint32_t b_values[TW_WGMMA_MOST_CORES][TW_LANES] __attribute__((aligned(64)));
  if (in_registers) for (int k = 0; k < TW_WGMMA_A_REGISTERS; k++) memcpy(a_values[k], tw_slot(w, list[k]), sizeof a_values[k]);
  else tw_tile_registers(w, i, &a_tile, 2 * (w->index % 4), TW_WGMMA_A_REGISTERS, true, a_values, TW_ALL);
  tw_tile_registers(w, i, &b_tile, 0, 2 * blocks, false, b_values, 1u << (w->index % 4));
  if (i->flags & TW_WGMMA_NEGATE_A) tw_flip_signs(a_values, TW_WGMMA_A_REGISTERS, tw_wgmma_element_bits(wgmma));
  if (i->flags & TW_WGMMA_NEGATE_B) tw_flip_signs(b_values, 2 * blocks, tw_wgmma_element_bits(wgmma));
  static const uint32_t zeros[TW_LANES];
  void* d[TW_WGMMA_MOST_SUMS];
  const void *a[TW_WGMMA_A_REGISTERS], *b[TW_WGMMA_MOST_CORES], *c[TW_WGMMA_MOST_SUMS];
  for (int k = 0; k < i->o[3]; k++) d[k] = tw_slot(w, sums[k]), c[k] = adds ? d[k] : (const void*)zeros;
  for (int k = 0; k < TW_WGMMA_A_REGISTERS; k++) a[k] = a_values[k];
  for (int k = 0; k < 2 * blocks; k++) b[k] = b_values[k];
  tw_wgmma(wgmma, d, a, b, c);
  if (i->flags & TW_WGMMA_TRACKED) {
    for (int k = 0; k < i->o[3]; k++) tw_wgmma_mark(w, sums[k], pc, true);
    for (int k = 0; in_registers && k < TW_WGMMA_A_REGISTERS; k++) tw_wgmma_mark(w, list[k], pc, false);
  }
  return TW_NEXT;
}

TW_HANDLER(wgmma_fence) {
  if (exec == w->mask && tw_wgmma_early(w)) {
    tw_count* count = w->cta->worker->counts ? &w->cta->worker->counts[tw_index_of(w, i)] : NULL;
    if (count) count->executions--, count->lanes -= (uint64_t)__builtin_popcount(exec);  // it comes here again
    w->quantum = 0;
    w->pc = tw_index_of(w, i);
    return TW_JUMP;
  }
  TW_TOGETHER(tw_whole_warp)
  tw_warpgroup_whole(w, tw_index_of(w, i), __builtin_ctz(together));
  w->fenced = true;
  return TW_NEXT;
}
TW_HANDLER(wgmma_commit) {
  TW_TOGETHER(tw_whole_warp)
  tw_wgmma_commit(w, together);
  return TW_NEXT;
}
// imm: groups that may stay in flight
TW_HANDLER(wgmma_wait) {
  if (!tw_wgmma_ready(w, (uint32_t)i->imm)) {
    if (exec != w->mask) return TW_NEXT;  // a guard that parts a warp: no warpgroup is whole here
    tw_set_aside(w, TW_AT_WARPGROUP, tw_index_of(w, i), false);
    return TW_SWITCH;
  }
  TW_TOGETHER(tw_whole_warp)
  tw_wgmma_retire(w, tw_index_of(w, i), (uint32_t)i->imm, together);
  return TW_NEXT;
}

// Before an instruction that touches registers a wgmma may have in flight. o[0]: how many it reads; count: how many in all;
// further operands: these registers.
TW_HANDLER(wgmma_touch) {
  const int32_t* list = w->cta->program->extra + i->extra;
  for (int k = 0; k < i->count; k++) tw_wgmma_touch(w, tw_index_of(w, i), __builtin_ctz(exec), list[k], k >= i->o[0]);
  return TW_NEXT;
}
// A register is copied, in flight or not: compilers name an accumulator anew, and the assembler makes one of them again.
TW_HANDLER(wgmma_copy) {
  tw_wgmma_copy(w, tw_index_of(w, i), __builtin_ctz(exec), i->o[0], i->o[1]);
  return TW_NEXT;
}

// imm: registers of each thread from now on
TW_HANDLER(setmaxnreg) {
  TW_TOGETHER(tw_whole_warp)
  int pc = tw_index_of(w, i), first = __builtin_ctz(together);
  tw_warpgroup_whole(w, pc, first);
  w->registers = (uint32_t)i->imm;
  uint32_t all = 0;
  for (int k = 0; k < w->cta->warp_count; k++) all += TW_LANES * w->cta->warps[k].registers;
  if (all > TW_REGISTERS_OF_A_MULTIPROCESSOR) tw_report(w, TW_FIND_WARPGROUP, pc, first, all, 0, TW_WARPGROUP_REGISTERS);
  return TW_NEXT;
}

#endif

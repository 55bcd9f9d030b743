// Handlers: accesses of a sliced program whose values nothing needs. Operands are those of the whole instruction.
#ifndef TW_NOTED_H
#define TW_NOTED_H

#include "bulk.h"
#include "matrix.h"
#include "notes.h"

// Lanes of a generic access that go to global memory.
static uint32_t tw_only_global(const tw_warp* w, const tw_instr* i, uint32_t exec, const tw_access* x) {
  if (TW_SPACE_OF(i->mod) == TW_SPACE_GLOBAL) return exec;
  uint32_t global = 0;
  uint64_t windows = w->cta->engine->launch->windows;
  TW_EACH(exec) global |= (uint32_t)(x->address[l] - windows >= TW_ALL_WINDOWS_BYTES) << l;
  return global;
}

static int tw_note_access(tw_warp* w, const tw_instr* i, uint32_t exec, int size, int how) {
  tw_access x;
  x.size = size;
  tw_addresses(w, i, 4, &x);
  exec = tw_only_global(w, i, exec, &x);
  w->cta->worker->hollow = true;
  if (exec) tw_global(w, i, exec, &x, how);
  w->cta->worker->hollow = false;
  return TW_NEXT;
}
TW_HANDLER(note_ld) { return tw_note_access(w, i, exec, i->count << (i->mod & TW_MEM_ELEMENT), TW_READ); }
TW_HANDLER(note_st) { return tw_note_access(w, i, exec, i->count << (i->mod & TW_MEM_ELEMENT), TW_WRITE); }
TW_HANDLER(note_atom) {
  static const uint8_t sizes[] = {4, 4, 8, 8, 4, 8, 2, 2, 4, 4, 2};
  return tw_note_access(w, i, exec, sizes[i->count], TW_BOTH);
}

TW_HANDLER(note_cp_async) {
  tw_access x;
  x.size = i->count;
  tw_addresses(w, i, 1, &x);
  uint32_t some = 0;
  if (i->o[3] >= 0) exec &= ~tw_predicate(w, i->o[3]);
  const uint32_t* wanted = i->o[2] < 0 ? NULL : TW_SRC(uint32_t, 2);
  if (wanted) TW_EACH(exec) some |= (uint32_t)(wanted[l] != 0) << l;
  else some = exec;
  w->cta->worker->hollow = true;
  if (wanted) {
    TW_EACH(some) {
      uint64_t bytes = wanted[l] < (uint32_t)i->count ? wanted[l] : (uint32_t)i->count;
      tw_bulk_global(w, i, (int)l, x.address[l], bytes, TW_READ);
    }
  } else if (some) {
    tw_global(w, i, some, &x, TW_READ);
  }
  w->cta->worker->hollow = false;
  return TW_NEXT;
}

TW_HANDLER(note_bulk) {
  const int32_t* o = w->cta->program->extra + i->extra;
  bool stores = (i->flags & TW_BULK_DIRECTIONS) == TW_BULK_TO_GLOBAL;
  w->cta->worker->hollow = true;
  TW_EACH(exec) {
    uint32_t bytes = ((const uint32_t*)tw_slot(w, o[9]))[l];
    uint64_t address = tw_bulk_address(w, o + (stores ? 0 : 3), l);
    if ((address | bytes) & 15) tw_bulk_refuse(w, i, (int)l, address, TW_BULK_MISALIGNED, bytes);
    else if (bytes) tw_bulk_global(w, i, (int)l, address, bytes, !stores ? TW_READ : i->count ? TW_BOTH : TW_WRITE);
  }
  w->cta->worker->hollow = false;
  return TW_NEXT;
}

static bool tw_note_box(tw_warp* w, const tw_instr* i, uint32_t l, const int32_t* o) {
  const tw_tensor_map* map = tw_bulk_map(w, i, (int)l, tw_bulk_address(w, o + 3, l));
  if (!map) return true;
  int32_t coordinate[TW_MAP_RANK] = {0};
  uint16_t offset[3] = {0};
  bool stores = (i->flags & TW_BULK_DIRECTIONS) == TW_BULK_TO_GLOBAL;
  for (int d = 0; d < map->rank; d++) {
    coordinate[d] = ((const int32_t*)tw_slot(w, o[10 + d]))[l];
    if (!stores || coordinate[d] >= 0) continue;
    tw_bulk_refuse(w, i, (int)l, tw_bulk_address(w, o + 3, l), TW_BULK_BEFORE, coordinate[d]);
    return true;
  }
  for (int d = 0; d < 3 && o[15 + d] >= 0; d++) offset[d] = ((const uint16_t*)tw_slot(w, o[15 + d]))[l];
  tw_box box;
  if (!tw_map_box(map, coordinate, offset, &box)) return false;
  for (int32_t k = 0; k < box.count; k++)
    tw_bulk_global(w, i, (int)l, box.runs[k].address, box.runs[k].bytes, !stores ? TW_READ : i->mod ? TW_BOTH : TW_WRITE);
  free(box.runs);
  return true;
}

TW_HANDLER(note_bulk_tensor) {
  const int32_t* o = w->cta->program->extra + i->extra;
  bool done = true;
  w->cta->worker->hollow = true;
  TW_EACH(exec) {
    if (tw_bulk_repeats(w, i, l, (uint32_t)__builtin_ctz(exec), o)) continue;
    done = done && tw_note_box(w, i, l, o);
  }
  w->cta->worker->hollow = false;
  return done ? TW_NEXT : tw_bulk_out_of_memory(w);
}

static int tw_note_fragment(tw_warp* w, const tw_instr* i, uint32_t exec, int how) {
  TW_TOGETHER(tw_whole_warp)
  const tw_fragment_shape f = tw_fragment_shape_of(w, i);
  tw_access base, x;
  tw_addresses(w, i, 4, &base);
  w->cta->worker->hollow = true;
  for (int reg = 0; reg < f.registers; reg++) {
    for (int element = 0; element < f.elements; element++) {
      x.size = f.bits < 8 ? 1 : f.bits / 8;
      tw_fragment_places(w, i, &x, base.address, reg, element, f.bits);
      uint32_t lanes = tw_only_global(w, i, together, &x);
      x.shared = x.global = x.peers = x.mask = 0, x.contiguous = false;
      if (lanes) tw_global(w, i, lanes, &x, how);
    }
  }
  w->cta->worker->hollow = false;
  return TW_NEXT;
}
TW_HANDLER(note_wmma_load) { return tw_note_fragment(w, i, exec, TW_READ); }
TW_HANDLER(note_wmma_store) { return tw_note_fragment(w, i, exec, TW_WRITE); }

#endif

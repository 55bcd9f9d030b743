// Handlers: bulk copies, with and without tensor maps. Each lane copies for itself; mostly one lane does.
#ifndef TW_BULK_H
#define TW_BULK_H

#include <stdlib.h>

#include "atomics.h"
#include "tensor_map.h"

enum { TW_BULK_TO_SHARED = 0, TW_BULK_SHARED = 1, TW_BULK_TO_GLOBAL = 2, TW_BULK_DIRECTIONS = 3, TW_BULK_IM2COL = 4 };  // flags
enum { TW_BULK_MISALIGNED = 1, TW_BULK_BOX = 2, TW_BULK_NO_MAP = 3, TW_BULK_RANK = 4, TW_BULK_TYPE = 5, TW_BULK_FIELD = 6, TW_BULK_COORDINATE = 7, TW_BULK_BEFORE = 8 };  // of a TW_FIND_BULK_COPY

// An address among the further operands: slot, offset, whether it has 64 bits.
static inline uint64_t tw_bulk_address(const tw_warp* w, const int32_t* operand, uint32_t lane) {
  const void* slot = tw_slot(w, operand[0]);
  if (operand[2]) return ((const uint64_t*)slot)[lane] + (uint64_t)(int64_t)operand[1];
  return ((const uint32_t*)slot)[lane] + (uint32_t)operand[1];
}

// -- global memory: a run of bytes of one tensor --

static void tw_bulk_recent(tw_warp* w, const tw_instr* i, int lane, const tw_region* r, uint64_t offset, uint64_t bytes,
                           uint64_t address, int how) {
  uint32_t open = tw_recent_open(w, how);
  if (open && tw_recent_has(r->recent + offset, (int)bytes, open))
    tw_report(w, TW_FIND_NOT_AWAITED, tw_index_of(w, i), lane, address, (int)bytes, w->awaited);
  for (uint64_t k = 0; k < bytes; k++) r->recent[offset + k] |= how == TW_READ ? TW_RECENT_READ : TW_RECENT_WRITTEN;
}

static void tw_bulk_tell(tw_warp* w, const tw_instr* i, int lane, uint64_t address, uint64_t bytes, int how) {
  tw_cta* cta = w->cta;
  tw_race_report race;
  int index = tw_index_of(w, i);
  int found = how == TW_WRITE ? tw_race_bulk_store(cta->engine->races, cta->races, w->index, lane, address, bytes, index, &race)
                              : tw_race_bulk_global(cta->engine->races, cta->races, w->index, lane, address, bytes, how, index, &race);
  if (found) tw_report_race(w, TW_FIND_RACE_GLOBAL, index, (int)bytes, &race, found);
}

// Where the bytes really are, once they were checked, counted and told to the race detector; NULL: they may not be touched.
static uint8_t* tw_bulk_global(tw_warp* w, const tw_instr* i, int lane, uint64_t address, uint64_t bytes, int how) {
  int index = tw_index_of(w, i);
  const tw_region* r = tw_find_region(w->cta->engine->launch, address);
  uint64_t offset = r ? address - r->address : 0;
  if (!r || offset >= r->bytes || r->bytes - offset < bytes) {
    tw_report(w, TW_FIND_GLOBAL_BOUNDS, index, lane, address, (int)bytes, how);
    return NULL;
  }
  if (how != TW_READ && !(r->flags & TW_REGION_WRITABLE)) {
    tw_report(w, TW_FIND_INPUT_WRITTEN, index, lane, address, (int)bytes, 0);
    return NULL;
  }
  if (r->state && !tw_all_written(r->state + offset, (int)bytes)) {
    if (!tw_state_slow(w, i, lane, r->state + offset, (int)bytes, address, how, TW_FIND_GLOBAL_BOUNDS, TW_FIND_UNINITIALISED_GLOBAL))
      return NULL;
    if (how != TW_READ) memset(r->state + offset, TW_STATE_WRITTEN, bytes);
  }
  if (r->recent) tw_bulk_recent(w, i, lane, r, offset, bytes, address, how);
  if (w->cta->races && (how != TW_READ || r->flags & TW_REGION_WRITABLE)) tw_bulk_tell(w, i, lane, address, bytes, how);
  if (w->cta->worker->counts) {
    tw_count* count = &w->cta->worker->counts[index];
    uint64_t sectors = ((address + bytes - 1) >> 5) - (address >> 5) + 1;
    count->sectors += sectors;
    count->new_sectors += how == TW_READ ? sectors : 0;  // they pass by the L1 cache
    count->ideal_sectors += (bytes + 31) / 32;
    count->lines += ((address + bytes - 1) >> 7) - (address >> 7) + 1;
    count->bytes += bytes;
  }
  if (w->cta->engine->launch->notes) tw_note_run(w, i, lane, r, offset, bytes, how);
  return r->data + offset;
}

// -- what a copy does --

static bool tw_bulk_refuse(tw_warp* w, const tw_instr* i, int lane, uint64_t address, int detail, int64_t number) {
  tw_report(w, TW_FIND_BULK_COPY, tw_index_of(w, i), lane, address, (int)number, detail);
  return false;
}

// Bytes to the places in shared memory that the mask of ranks names; without one, to the one place.
static void tw_bulk_spread(tw_warp* w, const tw_instr* i, int lane, uint64_t to, uint64_t barrier, int32_t mask_operand,
                           const uint8_t* data, uint32_t bytes) {
  tw_cta* counts;
  if (mask_operand < 0) {
    if (tw_mbarrier_counting(w, i, lane, (uint32_t)barrier, &counts))
      tw_bulk_send(w, i, lane, (uint32_t)to, (uint32_t)barrier, data, bytes);
    return;
  }
  uint32_t ranks = ((const uint16_t*)tw_slot(w, mask_operand))[lane], low = (1u << TW_RANK_SHIFT) - 1;
  for (uint32_t rank = 0; ranks >> rank; rank++) {
    uint32_t block = (rank + 1) << TW_RANK_SHIFT;
    if (ranks >> rank & 1 && tw_mbarrier_counting(w, i, lane, (uint32_t)(barrier & low) | block, &counts))
      tw_bulk_send(w, i, lane, (uint32_t)(to & low) | block, (uint32_t)(barrier & low) | block, data, bytes);
  }
}

static void tw_bulk_reduce(uint8_t* to, const uint8_t* from, uint64_t bytes, int op, int type) {
  static const uint8_t sizes[] = {4, 4, 8, 8, 4, 8, 2, 2};
  bool changed;
  for (uint64_t k = 0; k < bytes; k += sizes[type]) {
    uint64_t value = 0;
    memcpy(&value, from + k, sizes[type]);
    tw_atom_lane(to + k, sizes[type], op, type, value, 0, &changed);
  }
}

// Writes the runs of an image to global memory, or reduces it into it; the copy takes the runs over.
static void tw_bulk_write(tw_warp* w, const tw_instr* i, int lane, uint32_t from, uint32_t bytes, const uint8_t* image,
                          tw_stretch* runs, int32_t count, int op, int type) {
  for (int32_t k = 0; k < count; k++) {
    uint8_t* at = tw_bulk_global(w, i, lane, runs[k].address, runs[k].bytes, op < 0 ? TW_WRITE : TW_BOTH);
    if (!at) runs[k].bytes = 0;
    else if (op < 0) memcpy(at, image + runs[k].at, runs[k].bytes);
    else tw_bulk_reduce(at, image + runs[k].at, runs[k].bytes, op, type);
  }
  w->cta->wrote = true;
  tw_bulk_depart(w, i, lane, from, bytes, runs, count, op >= 0);
}

static int tw_bulk_out_of_memory(tw_warp* w) {
  w->cta->engine->out_of_memory = 1;
  atomic_store(&w->cta->engine->stop, 1);
  return TW_STOP;
}

// A reduction into shared memory of the cluster. It is done at once, which it may be.
static void tw_bulk_reduce_shared(tw_warp* w, const tw_instr* i, int lane, uint64_t to, uint64_t barrier, const uint8_t* image,
                                  uint32_t bytes) {
  uint32_t offset;
  tw_cta *home = tw_shared_home(w, i, lane, (uint32_t)to, bytes, 16, &offset), *counts;
  tw_mbarrier* b = tw_mbarrier_counting(w, i, lane, (uint32_t)barrier, &counts);
  if (!home || !b) return;
  tw_bulk_reduce(home->shared + offset, image, bytes, i->count - 1, (int)i->mod);
  if (w->cta->races) b->arriving = tw_race_publish(w->cta->races, w->index, 1u << lane, b->arriving);
  tw_mbarrier_add_bytes(w, i, lane, counts, b, -(int64_t)bytes);
}

// One lane of a copy without a tensor map.
static bool tw_bulk_plain(tw_warp* w, const tw_instr* i, int lane, uint64_t to, uint64_t from, uint64_t barrier, uint32_t bytes,
                          int32_t mask, uint8_t* image) {
  int direction = i->flags & TW_BULK_DIRECTIONS, op = i->count - 1;
  if ((to | from | bytes) & 15) return tw_bulk_refuse(w, i, lane, to & 15 ? to : from, TW_BULK_MISALIGNED, bytes);
  uint32_t offset = 0;
  if (direction != TW_BULK_TO_SHARED) {
    if (!tw_shared_home(w, i, lane, (uint32_t)from, bytes, 16, &offset)) return false;
    if (!tw_bulk_source(w, i, lane, offset, bytes)) return false;
    memcpy(image, w->cta->shared + offset, bytes);
  } else {
    const uint8_t* at = bytes ? tw_bulk_global(w, i, lane, from, bytes, TW_READ) : image;
    if (at) memcpy(image, at, bytes);
    else memset(image, 0, bytes);
  }
  if (direction == TW_BULK_SHARED && op >= 0) {
    tw_bulk_reduce_shared(w, i, lane, to, barrier, image, bytes);
    return true;
  }
  if (direction != TW_BULK_TO_GLOBAL) {
    tw_bulk_spread(w, i, lane, to, barrier, mask, image, bytes);
    return true;
  }
  tw_stretch* run = malloc(sizeof *run);
  if (!run) return false;
  *run = (tw_stretch){.address = to, .bytes = bytes};
  tw_bulk_write(w, i, lane, offset, bytes, image, run, 1, op, (int)i->mod);
  return true;
}

// flags: direction; count: the reduction plus one; mod: its type. Further operands: to, from, mbarrier (three each), bytes, mask
TW_HANDLER(bulk) {
  const int32_t* o = w->cta->program->extra + i->extra;
  TW_EACH(exec) {
    uint32_t bytes = ((const uint32_t*)tw_slot(w, o[9]))[l];
    if (bytes > (256u << 10)) {
      tw_bulk_refuse(w, i, (int)l, tw_bulk_address(w, o, l), TW_BULK_BOX, bytes);
      continue;
    }
    uint8_t* image = malloc(bytes + 16);
    if (!image) return tw_bulk_out_of_memory(w);
    if (w->cta->worker->counts) w->cta->worker->counts[tw_index_of(w, i)].requests++;
    tw_bulk_plain(w, i, (int)l, tw_bulk_address(w, o, l), tw_bulk_address(w, o + 3, l), tw_bulk_address(w, o + 6, l), bytes,
                  o[10], image);
    free(image);
  }
  return TW_NEXT;
}

// -- tensor maps --

// The map a lane names: a parameter of the kernel, or in global memory.
static const tw_tensor_map* tw_bulk_map(tw_warp* w, const tw_instr* i, int lane, uint64_t address) {
  const tw_launch* launch = w->cta->engine->launch;
  const tw_tensor_map* map = NULL;
  if (address - launch->parameter_window < TW_WINDOW_BYTES) {
    uint64_t offset = address - launch->parameter_window;
    if (offset + TW_MAP_BYTES <= (uint64_t)launch->parameter_bytes) map = (const void*)(launch->parameters + offset);
  } else {
    const tw_region* r = tw_find_region(launch, address);
    if (r && address - r->address < r->bytes && r->bytes - (address - r->address) >= TW_MAP_BYTES)
      map = (const void*)(r->data + (address - r->address));
  }
  if (address & 63 || !map || memcmp(map->magic, TW_MAP_MAGIC, sizeof map->magic)) {
    tw_bulk_refuse(w, i, lane, address, TW_BULK_NO_MAP, 0);
    return NULL;
  }
  if (map->rank == i->count && !map->im2col == !(i->flags & TW_BULK_IM2COL)) return map;
  tw_bulk_refuse(w, i, lane, address, TW_BULK_RANK, map->rank);
  return NULL;
}

static bool tw_bulk_load_box(tw_warp* w, const tw_instr* i, int lane, const tw_tensor_map* map, const tw_box* box,
                             uint64_t to, uint64_t barrier, int32_t mask) {
  uint8_t* image = calloc(2, box->bytes + 256);
  if (!image) return false;
  uint8_t* placed = image + box->bytes + 256;
  uint32_t shared = (uint32_t)to & ((1u << TW_RANK_SHIFT) - 1);
  bool gaps = box->pitch != box->row_bytes;  // which the copy leaves alone
  tw_map_fill(map, image, box->bytes);
  for (int32_t k = 0; k < box->count; k++) {
    const uint8_t* at = tw_bulk_global(w, i, lane, box->runs[k].address, box->runs[k].bytes, TW_READ);
    if (at) memcpy(image + box->runs[k].at, at, box->runs[k].bytes);
  }
  for (uint32_t k = 0; k < box->bytes; k += 16) {
    uint32_t there = tw_swizzled(map, box, shared, k) - shared;
    if (gaps) tw_bulk_spread(w, i, lane, to + there, barrier, mask, image + k, 16);
    else memcpy(placed + there, image + k, 16);
  }
  if (!gaps) tw_bulk_spread(w, i, lane, to, barrier, mask, placed, box->bytes);
  free(image);
  return true;
}

// The runs stay with the copy that is under way: false: they are the caller's.
static bool tw_bulk_store_box(tw_warp* w, const tw_instr* i, int lane, const tw_tensor_map* map, const tw_box* box, uint64_t from) {
  uint32_t offset, extent = tw_box_extent(box);
  int op = (int)i->mod - 1, type = tw_map_atom_type(map);
  bool gaps = box->pitch != box->row_bytes;
  if (!tw_shared_home(w, i, lane, (uint32_t)from, extent, 128, &offset)) return false;
  bool signed_sum = type == TW_ATOM_S64 && op >= 0 && op != TW_ATOM_MIN && op != TW_ATOM_MAX;  // an H200 refuses it
  if ((op >= 0 && type < 0) || signed_sum) return tw_bulk_refuse(w, i, lane, from, TW_BULK_TYPE, map->type);
  if (!gaps && !tw_bulk_source(w, i, lane, offset, box->bytes)) return false;
  uint8_t* image = malloc(box->bytes + 16);
  if (!image) return false;
  for (uint32_t k = 0; k < box->bytes; k += 16) {
    uint32_t there = tw_swizzled(map, box, offset, k);
    bool inside = there + 16 <= w->cta->shared_bytes && (!gaps || tw_bulk_source(w, i, lane, there, 16));
    if (inside) memcpy(image + k, w->cta->shared + there, 16);
    else memset(image + k, TW_POISON, 16);
  }
  tw_bulk_write(w, i, lane, offset, extent, image, box->runs, box->count, op, type);
  free(image);
  return true;
}

static bool tw_bulk_tensor_lane(tw_warp* w, const tw_instr* i, uint32_t l, const int32_t* o) {
  const tw_tensor_map* map = tw_bulk_map(w, i, (int)l, tw_bulk_address(w, o + 3, l));
  if (!map) return true;
  int32_t coordinate[TW_MAP_RANK] = {0};
  uint16_t offset[3] = {0};
  for (int d = 0; d < map->rank; d++) coordinate[d] = ((const int32_t*)tw_slot(w, o[10 + d]))[l];
  for (int d = 0; d < 3 && o[15 + d] >= 0; d++) offset[d] = ((const uint16_t*)tw_slot(w, o[15 + d]))[l];
  if (coordinate[0] * tw_map_element_bytes(map) & 15) {
    tw_bulk_refuse(w, i, (int)l, tw_bulk_address(w, o + 3, l), TW_BULK_COORDINATE, coordinate[0]);
    return true;
  }
  bool stores = (i->flags & TW_BULK_DIRECTIONS) == TW_BULK_TO_GLOBAL;
  for (int d = 0; d < map->rank && stores; d++) {
    if (coordinate[d] >= 0) continue;
    tw_bulk_refuse(w, i, (int)l, tw_bulk_address(w, o + 3, l), TW_BULK_BEFORE, coordinate[d]);
    return true;
  }
  tw_box box;
  if (!tw_map_box(map, coordinate, offset, &box)) return false;
  uint64_t shared = tw_bulk_address(w, o, l);
  if (stores) {
    if (!tw_bulk_store_box(w, i, (int)l, map, &box, shared)) free(box.runs);
    return true;
  }
  bool done = true;
  if (shared & 127) tw_report(w, TW_FIND_MISALIGNED, tw_index_of(w, i), (int)l, TW_SHARED_WINDOW + (uint32_t)shared, 128, 0);
  else done = tw_bulk_load_box(w, i, (int)l, map, &box, shared, tw_bulk_address(w, o + 6, l), o[9]);
  free(box.runs);
  return done;
}

// A store by all lanes of a warp of what the first of them stores: the same bytes to the same place, so no race.
static bool tw_bulk_repeats(tw_warp* w, const tw_instr* i, uint32_t l, uint32_t first, const int32_t* o) {
  if (l == first || (i->flags & TW_BULK_DIRECTIONS) != TW_BULK_TO_GLOBAL || i->mod) return false;
  bool same = tw_bulk_address(w, o, l) == tw_bulk_address(w, o, first) && tw_bulk_address(w, o + 3, l) == tw_bulk_address(w, o + 3, first);
  for (int d = 0; d < i->count && same; d++) {
    const int32_t* coordinate = (const int32_t*)tw_slot(w, o[10 + d]);
    same = coordinate[l] == coordinate[first];
  }
  return same;
}

// flags: direction, im2col; count: the rank; mod: the reduction plus one. Further operands: shared, map, mbarrier (three
// each), mask, five coordinates, three offsets; a negative one is missing
TW_HANDLER(bulk_tensor) {
  const int32_t* o = w->cta->program->extra + i->extra;
  TW_EACH(exec) {
    if (w->cta->worker->counts) w->cta->worker->counts[tw_index_of(w, i)].requests++;
    if (tw_bulk_repeats(w, i, l, (uint32_t)__builtin_ctz(exec), o)) continue;
    if (!tw_bulk_tensor_lane(w, i, l, o)) return tw_bulk_out_of_memory(w);
  }
  return TW_NEXT;
}

// -- maps that a kernel changes --

enum { TW_MAP_ADDRESS, TW_MAP_RANK_FIELD, TW_MAP_BOX, TW_MAP_EXTENT, TW_MAP_STRIDE, TW_MAP_STEP, TW_MAP_TYPE, TW_MAP_INTERLEAVE,
       TW_MAP_SWIZZLE, TW_MAP_FILL };

static bool tw_map_replace(tw_tensor_map* map, int field, uint32_t dimension, uint64_t value) {
  if (dimension >= TW_MAP_RANK || (field == TW_MAP_STRIDE && dimension == TW_MAP_RANK - 1)) return false;
  switch (field) {
    case TW_MAP_ADDRESS: map->address = value; return !(value & 15);
    case TW_MAP_RANK_FIELD: map->rank = (uint8_t)(value + 1); return value < TW_MAP_RANK;
    case TW_MAP_BOX: map->box[dimension] = (uint16_t)value; return value && value <= 256;
    case TW_MAP_EXTENT: map->last[dimension] = (uint32_t)(value - 1); return value;
    case TW_MAP_STRIDE: map->stride[dimension] = value; return !(value & 15);
    case TW_MAP_STEP: map->step[dimension] = (uint8_t)value; return value && value <= 8;
    case TW_MAP_TYPE: {  // numbered as PTX has them, which is not as the driver does
      static const uint8_t types[] = {0, 1, 2, 3, 4, 5, 6, 7, 10, 8, 9, 11, 12};
      if (value >= sizeof types) return false;
      map->type = types[value];
      return tw_map_element_bytes(map);
    }
    case TW_MAP_INTERLEAVE: return !value;
    case TW_MAP_SWIZZLE: map->swizzle = (uint8_t)value; return value <= 3;
    default: map->fill_nan = (uint8_t)value; return value <= 1;
  }
}

// o: -, whether the value has 64 bits, value, -, address; flags: the field; count: the dimension
TW_HANDLER(tensormap_replace) {
  tw_access x;
  x.size = TW_MAP_BYTES;
  tw_addresses(w, i, 4, &x);
  TW_EACH(tw_reach(w, i, exec, &x, TW_BOTH)) {
    tw_tensor_map* map = (tw_tensor_map*)(void*)x.at[l];
    uint64_t value = i->o[1] ? TW_SRC(uint64_t, 2)[l] : TW_SRC(uint32_t, 2)[l];
    static const tw_tensor_map nothing;  // whoever makes a map from nothing begins with zeros
    if (!memcmp(map, &nothing, sizeof nothing)) memcpy(map->magic, TW_MAP_MAGIC, sizeof map->magic);
    if (memcmp(map->magic, TW_MAP_MAGIC, sizeof map->magic)) tw_bulk_refuse(w, i, (int)l, x.address[l], TW_BULK_NO_MAP, 0);
    else if (!tw_map_replace(map, i->flags, i->count, value)) tw_bulk_refuse(w, i, (int)l, x.address[l], TW_BULK_FIELD, (int64_t)value);
  }
  return TW_NEXT;
}

// A map in shared memory to its place in global memory, by the first lane for all. Further operands: to, from (three each)
TW_HANDLER(tensormap_copy) {
  const int32_t* o = w->cta->program->extra + i->extra;
  uint32_t lane = (uint32_t)__builtin_ctz(exec), offset;
  if (!tw_shared_home(w, i, (int)lane, (uint32_t)tw_bulk_address(w, o + 3, lane), TW_MAP_BYTES, 128, &offset)) return TW_NEXT;
  tw_access x = {.size = TW_MAP_BYTES};
  x.address[lane] = tw_bulk_address(w, o, lane);
  if (tw_global(w, i, 1u << lane, &x, TW_WRITE)) memcpy(x.at[lane], w->cta->shared + offset, TW_MAP_BYTES);
  return TW_NEXT;
}

TW_HANDLER(bulk_commit) {
  (void)i;
  tw_bulk_commit(w, exec);
  return TW_NEXT;
}
// imm: groups that may stay under way; flags 1: it is enough that the others have read what they copy
TW_HANDLER(bulk_wait) {
  tw_bulk_wait(w, exec, (uint32_t)i->imm, i->flags & 1);
  return TW_NEXT;
}

#endif

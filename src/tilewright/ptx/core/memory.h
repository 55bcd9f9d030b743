// Handlers: loads and stores. Addresses are those of the machine, never of the host: each is looked up, checked for
// bounds, alignment and initialisation, counted, told to the race detector, and only then touched.
#ifndef TW_MEMORY_H
#define TW_MEMORY_H

#include "cluster.h"
#include "lanes.h"
#include "notes.h"

typedef struct {
  uint64_t address[TW_LANES] __attribute__((aligned(64)));
  uint8_t* at[TW_LANES] __attribute__((aligned(64)));  // where the bytes really are, for lanes that may touch them
  uint32_t offset[TW_LANES] __attribute__((aligned(64)));  // in shared memory
  uint32_t shared, global;  // lanes by space, of those that may
  uint32_t peers;           // lanes in the shared memory of other blocks of the cluster
  uint32_t mask;            // lanes that may
  int size;                 // bytes per lane
  bool contiguous;          // all 32 lanes, one after the other
} tw_access;

enum { TW_READ = TW_RACE_READ, TW_WRITE = TW_RACE_WRITE, TW_BOTH = TW_RACE_ATOMIC };

static inline void tw_addresses(const tw_warp* w, const tw_instr* i, int operand, tw_access* x) {
  if (i->mod & TW_MEM_WIDE) {
    const uint64_t* a = TW_SRC(uint64_t, operand);
    TW_LOOP x->address[l] = a[l] + (uint64_t)i->imm;
  } else {
    const uint32_t* a = TW_SRC(uint32_t, operand);
    TW_LOOP x->address[l] = (uint32_t)(a[l] + (uint32_t)i->imm);
  }
  x->shared = x->global = x->peers = x->mask = 0;
  x->contiguous = false;
}

static inline uint64_t tw_address_bits(const tw_access* x, uint32_t exec) {
  uint64_t bits = 0;
  if (exec == TW_ALL) {
    TW_LOOP bits |= x->address[l];
  } else {
    TW_LOOP bits |= exec & tw_lane_bit[l] ? x->address[l] : 0;
  }
  return bits;
}

static inline uint32_t tw_only_aligned(tw_warp* w, const tw_instr* i, uint32_t exec, tw_access* x, uint64_t window) {
  if (__builtin_expect((tw_address_bits(x, exec) & (uint64_t)(x->size - 1)) == 0, 1)) return exec;
  uint32_t good = 0;
  TW_EACH(exec) {
    if (x->address[l] & (uint64_t)(x->size - 1))
      tw_report(w, TW_FIND_MISALIGNED, tw_index_of(w, i), (int)l, window + x->address[l], x->size, 0);
    else
      good |= 1u << l;
  }
  return good;
}

// Looks at the state of `size` bytes before they are read or written; false: they lie outside.
// The three kinds are those of findings: outside, never written, still in flight.
static bool tw_state_slow(tw_warp* w, const tw_instr* i, int lane, const uint8_t* state, int size, uint64_t address, int how,
                          int outside, int never) {
  for (int k = 0; k < size; k++) {
    if (state[k] == TW_STATE_OUTSIDE) {
      tw_report(w, outside, tw_index_of(w, i), lane, address + (uint64_t)k, size, 0);
      return false;
    }
  }
  if (how != TW_READ && memchr(state, TW_STATE_READING, (size_t)size))
    tw_bulk_overwrites(w, tw_index_of(w, i), lane, w->cta, (uint32_t)(address - TW_SHARED_WINDOW), (uint32_t)size);
  if (how == TW_WRITE) return true;
  for (int k = 0; k < size; k++) {
    if (state[k] == TW_STATE_WRITTEN || state[k] == TW_STATE_READING) continue;
    if (state[k] == TW_STATE_IN_FLIGHT) {
      if (!w->cta->races) tw_report(w, TW_FIND_ASYNC_NOT_WAITED, tw_index_of(w, i), lane, address + (uint64_t)k, size, 0);
    } else if (w->cta->engine->checks & TW_CHECK_UNINITIALISED) {
      tw_report(w, never, tw_index_of(w, i), lane, address + (uint64_t)k, size, how);
    }
    break;
  }
  return true;
}

static inline bool tw_all_written(const uint8_t* state, int size) {
  uint64_t a, b;
  switch (size) {
    case 1: return *state == 1;
    case 2: { uint16_t v; memcpy(&v, state, 2); return v == 0x0101u; }
    case 4: { uint32_t v; memcpy(&v, state, 4); return v == 0x01010101u; }
    case 8: memcpy(&a, state, 8); return a == 0x0101010101010101ull;
    case 16: memcpy(&a, state, 8); memcpy(&b, state + 8, 8); return (a & b) == 0x0101010101010101ull && a == b;
    default:
      for (int k = 0; k < size; k++) if (state[k] != 1) return false;
      return true;
  }
}

static inline bool tw_run_written(const uint8_t* state, int bytes) {  // bytes a multiple of 32
  uint64_t wrong = 0;
  for (int k = 0; k < bytes; k += 8) {
    uint64_t eight;
    memcpy(&eight, state + k, 8);
    wrong |= eight ^ 0x0101010101010101ull;
  }
  return wrong == 0;
}

// Checks the state bytes `state` + (at - data) of every lane; after a store they are written.
static uint32_t tw_check_state(tw_warp* w, const tw_instr* i, uint32_t good, tw_access* x, const uint8_t* data, uint8_t* state,
                               uint64_t window, int how, int outside, int never) {
  if (x->contiguous && good == TW_ALL) {
    uint8_t* run = state + (x->at[0] - data);
    if (tw_run_written(run, TW_LANES * x->size)) return good;
  }
  uint32_t kept = good;
  TW_EACH(good) {
    uint8_t* s = state + (x->at[l] - data);
    if (!tw_all_written(s, x->size) &&
        !tw_state_slow(w, i, (int)l, s, x->size, window + x->address[l], how, outside, never))
      kept &= ~(1u << l);
    else if (how != TW_READ)
      memset(s, TW_STATE_WRITTEN, (size_t)x->size);
  }
  return kept;
}

// -- global --

static const tw_region* tw_find_region(const tw_launch* launch, uint64_t address) {
  int64_t low = 0, high = launch->region_count;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (launch->regions[middle].address <= address) low = middle + 1;
    else high = middle;
  }
  return low ? &launch->regions[low - 1] : NULL;
}

// Whether any of `size` bytes has one of the bits.
static inline bool tw_recent_has(const uint16_t* recent, int size, uint32_t bits) {
  for (int k = 0; k < size; k++)
    if (recent[k] & bits) return true;
  return false;
}

// Of launches that may run beside what this warp does now, the bits with which an access of this kind collides.
static inline uint32_t tw_recent_open(const tw_warp* w, int how) {
  const tw_launch* launch = w->cta->engine->launch;
  return (w->awaited ? launch->open_when_awaited : launch->open_at_start) & (how == TW_READ ? TW_RECENT_ALL_WRITTEN : UINT32_MAX);
}

// What other launches, and this one, may still do to these bytes; and that they are touched now.
static void tw_recent(tw_warp* w, const tw_instr* i, uint32_t good, tw_access* x, const tw_region* r, int how) {
  uint16_t now = how == TW_READ ? TW_RECENT_READ : TW_RECENT_WRITTEN;
  uint32_t open = tw_recent_open(w, how);
  bool cached = how == TW_READ && i->mod & TW_MEM_READ_ONLY;
  TW_EACH(good) {
    uint16_t* recent = r->recent + (x->at[l] - r->data);
    if (cached && tw_recent_has(recent, x->size, TW_RECENT_WRITTEN))
      tw_report(w, TW_FIND_STALE_READ, tw_index_of(w, i), (int)l, x->address[l], x->size, 0);
    if (open && tw_recent_has(recent, x->size, open))
      tw_report(w, TW_FIND_NOT_AWAITED, tw_index_of(w, i), (int)l, x->address[l], x->size, w->awaited);
    for (int k = 0; k < x->size; k++) recent[k] |= now;
  }
}

static uint32_t tw_global_region(tw_warp* w, const tw_instr* i, uint32_t good, tw_access* x, const tw_region* r, int how) {
  if (how != TW_READ && !(r->flags & TW_REGION_WRITABLE)) {
    TW_EACH(good) tw_report(w, TW_FIND_INPUT_WRITTEN, tw_index_of(w, i), (int)l, x->address[l], x->size, 0);
    return 0;
  }
  if (r->state)
    good = tw_check_state(w, i, good, x, r->data, r->state, 0, how, TW_FIND_GLOBAL_BOUNDS, TW_FIND_UNINITIALISED_GLOBAL);
  if (r->recent) tw_recent(w, i, good, x, r, how);
  return good;
}

static uint32_t __attribute__((noinline)) tw_global_slow(tw_warp* w, const tw_instr* i, uint32_t exec, tw_access* x, int how) {
  const tw_launch* launch = w->cta->engine->launch;
  uint32_t good = 0, left = exec;
  while (left) {  // one region at a time, in the order of its first lane
    int first = __builtin_ctz(left);
    const tw_region* r = tw_find_region(launch, x->address[first]);
    if (!r || x->address[first] - r->address >= r->bytes || r->bytes - (x->address[first] - r->address) < (uint64_t)x->size) {
      tw_report(w, TW_FIND_GLOBAL_BOUNDS, tw_index_of(w, i), first, x->address[first], x->size, how);
      left &= ~(1u << first);
      continue;
    }
    uint32_t here = 0;
    TW_EACH(left) {
      if (x->address[l] - r->address <= r->bytes - (uint64_t)x->size && x->address[l] >= r->address) {
        here |= 1u << l;
        x->at[l] = r->data + (x->address[l] - r->address);
      }
    }
    left &= ~here;
    good |= tw_global_region(w, i, here, x, r, how);
    w->cta->worker->cache[tw_index_of(w, i)] = r;
  }
  return good;
}

static uint32_t tw_global(tw_warp* w, const tw_instr* i, uint32_t exec, tw_access* x, int how) {
  exec = tw_only_aligned(w, i, exec, x, 0);
  if (!exec) return 0;
  const tw_region* r = w->cta->worker->cache[tw_index_of(w, i)];
  uint64_t base = r->address, room = r->bytes - (uint64_t)x->size;
  uint64_t wrong = r->bytes < (uint64_t)x->size, step = 0;
  if (exec == TW_ALL) {
    TW_LOOP wrong |= x->address[l] - base > room;
    TW_LOOP step |= x->address[l] ^ (x->address[0] + (uint64_t)(l * x->size));
    x->contiguous = step == 0;
  } else {
    TW_LOOP wrong |= exec & tw_lane_bit[l] ? x->address[l] - base > room : 0;
  }
  uint32_t good = exec;
  if (__builtin_expect(wrong != 0, 0)) {
    x->contiguous = false;
    good = tw_global_slow(w, i, exec, x, how);
  } else {
    uintptr_t shift = (uintptr_t)r->data - (uintptr_t)base;  // as numbers: lanes that take no part may hold anything
    TW_LOOP x->at[l] = (uint8_t*)(shift + (uintptr_t)x->address[l]);
    if (r->state || r->recent || (how != TW_READ && !(r->flags & TW_REGION_WRITABLE))) good = tw_global_region(w, i, exec, x, r, how);
  }
  if (w->cta->worker->counts) {
    tw_count* count = &w->cta->worker->counts[tw_index_of(w, i)];
    tw_count_global(count, exec, x->address, x->size, x->contiguous);
    if (how == TW_READ) tw_count_new(w->cta, count, exec, x->address, x->size);
  }
  if (__builtin_expect(w->cta->worker->touches != NULL, 0))
    tw_note_touch(w, &w->cta->worker->touches[tw_index_of(w, i)], exec, x->address, x->size, how);
  if (__builtin_expect(w->cta->engine->launch->notes != NULL, 0)) tw_note_global(w, i, good, x->address, x->size, how);
  x->global |= good;
  return good;
}

// -- shared: `address` holds offsets --

static uint32_t tw_distributed(tw_warp* w, const tw_instr* i, uint32_t exec, tw_access* x, int how);
static void tw_tell_peers(tw_warp* w, const tw_instr* i, const tw_access* x, int how, int order, const void* values);

// `cta` is whose shared memory it is, `window` what its offsets are told apart by.
static inline __attribute__((always_inline)) uint32_t tw_shared_of(tw_warp* w, const tw_instr* i, uint32_t exec, tw_access* x,
                                                                   int how, tw_cta* cta, uint64_t window) {
  uint64_t room = (uint64_t)cta->shared_bytes - (uint64_t)x->size;
  uint64_t wrong = cta->shared_bytes < (uint32_t)x->size, step = 0;
  uint32_t good = exec;
  if (exec == TW_ALL) {
    TW_LOOP wrong |= x->address[l] > room;
    TW_LOOP step |= x->address[l] ^ (x->address[0] + (uint64_t)(l * x->size));
    x->contiguous = step == 0;
  } else {
    TW_LOOP wrong |= exec & tw_lane_bit[l] ? x->address[l] > room : 0;
  }
  if (__builtin_expect(wrong != 0, 0)) {
    x->contiguous = false;
    if (tw_address_bits(x, exec) >> TW_RANK_SHIFT) return tw_distributed(w, i, exec, x, how);
    TW_EACH(exec) {
      if (x->address[l] + (uint64_t)x->size > cta->shared_bytes || x->address[l] > cta->shared_bytes) {
        tw_report(w, TW_FIND_SHARED_BOUNDS, tw_index_of(w, i), (int)l, window + x->address[l], x->size, how);
        good &= ~(1u << l);
      }
    }
  }
  TW_LOOP x->at[l] = cta->shared + (good & tw_lane_bit[l] ? x->address[l] : 0);
  TW_LOOP x->offset[l] = (uint32_t)x->address[l];
  if (cta->watch_shared)
    good = tw_check_state(w, i, good, x, cta->shared, cta->shared_state, window, how, TW_FIND_SHARED_BOUNDS,
                          TW_FIND_UNINITIALISED_SHARED);
  if (how != TW_READ && cta->tile_readers)
    TW_EACH(good) tw_wgmma_overwritten(w, tw_index_of(w, i), (int)l, cta, x->offset[l], (uint32_t)x->size);
  if (cta->worker->counts) tw_count_shared(&cta->worker->counts[tw_index_of(w, i)], good, x->offset, x->size, x->contiguous);
  x->shared |= good;
  return good;
}

static uint32_t tw_shared(tw_warp* w, const tw_instr* i, uint32_t exec, tw_access* x, int how) {
  exec = tw_only_aligned(w, i, exec, x, TW_SHARED_WINDOW);
  return exec ? tw_shared_of(w, i, exec, x, how, w->cta, TW_SHARED_WINDOW) : 0;
}

// -- local and parameters: `address` holds offsets --

static uint32_t tw_local(tw_warp* w, const tw_instr* i, uint32_t exec, tw_access* x, int how) {
  TW_LOOP x->address[l] -= w->cta->engine->local_origin;
  exec = tw_only_aligned(w, i, exec, x, TW_LOCAL_WINDOW);
  uint32_t good = 0;
  TW_EACH(exec) {
    if (x->address[l] > w->local_stride || w->local_stride - x->address[l] < (uint64_t)x->size) {
      tw_report(w, TW_FIND_LOCAL_BOUNDS, tw_index_of(w, i), (int)l, TW_LOCAL_WINDOW + x->address[l], x->size, how);
      continue;
    }
    x->at[l] = w->local + (size_t)l * w->local_stride + x->address[l];
    good |= 1u << l;
  }
  if (!good) return 0;
  return tw_check_state(w, i, good, x, w->local, w->local_state, TW_LOCAL_WINDOW, how, TW_FIND_LOCAL_BOUNDS,
                        TW_FIND_UNINITIALISED_LOCAL);
}

static uint32_t tw_parameters(tw_warp* w, const tw_instr* i, uint32_t exec, tw_access* x, int how) {
  const tw_launch* launch = w->cta->engine->launch;
  uint32_t good = 0;
  TW_EACH(tw_only_aligned(w, i, exec, x, TW_PARAMETER_WINDOW)) {
    if (x->address[l] + (uint64_t)x->size > (uint64_t)launch->parameter_bytes || x->address[l] > TW_WINDOW_BYTES)
      tw_report(w, TW_FIND_GLOBAL_BOUNDS, tw_index_of(w, i), (int)l, TW_PARAMETER_WINDOW + x->address[l], x->size, how);
    else if (how != TW_READ)
      tw_report(w, TW_FIND_INPUT_WRITTEN, tw_index_of(w, i), (int)l, TW_PARAMETER_WINDOW + x->address[l], x->size, 0);
    else
      x->at[l] = (uint8_t*)launch->parameters + x->address[l], good |= 1u << l;
  }
  return good;
}

// -- generic: each lane goes to the space its address lies in --

static uint32_t tw_windowed(const tw_access* x, uint32_t exec, uint64_t window) {
  uint32_t inside = 0;
  TW_EACH(exec) inside |= (uint32_t)(x->address[l] - window < TW_WINDOW_BYTES) << l;
  return inside;
}

static uint32_t tw_generic(tw_warp* w, const tw_instr* i, uint32_t exec, tw_access* x, int how) {
  const tw_launch* launch = w->cta->engine->launch;
  uint64_t windows = launch->windows, inside = 0;
  TW_LOOP inside |= exec & tw_lane_bit[l] ? (uint64_t)(x->address[l] - windows < TW_ALL_WINDOWS_BYTES) : 0;
  if (__builtin_expect(!inside, 1)) return tw_global(w, i, exec, x, how);
  uint32_t shared = tw_windowed(x, exec, launch->shared_window), local = tw_windowed(x, exec, launch->local_window);
  uint32_t parameter = tw_windowed(x, exec, launch->parameter_window), rest = exec & ~(shared | local | parameter);
  tw_access part;
  uint32_t good = 0;
  const struct {
    uint32_t lanes;
    uint64_t window;
    uint32_t (*access)(tw_warp*, const tw_instr*, uint32_t, tw_access*, int);
  } spaces[4] = {{shared, launch->shared_window, tw_shared},
                 {local, launch->local_window, tw_local},
                 {parameter, launch->parameter_window, tw_parameters},
                 {rest, 0, tw_global}};
  for (int k = 0; k < 4; k++) {
    if (!spaces[k].lanes) continue;
    if (spaces[k].lanes == exec) {
      TW_LOOP x->address[l] -= spaces[k].window;
      return spaces[k].access(w, i, exec, x, how);
    }
    part = *x;
    part.shared = part.global = part.peers = 0;
    TW_LOOP part.address[l] -= spaces[k].window;
    uint32_t lanes = spaces[k].access(w, i, spaces[k].lanes, &part, how);
    TW_EACH(lanes) x->at[l] = part.at[l], x->offset[l] = part.offset[l];
    x->shared |= part.shared, x->global |= part.global, x->peers |= part.peers;
    good |= lanes;
  }
  x->contiguous = false;
  return good;
}

static inline uint32_t tw_reach(tw_warp* w, const tw_instr* i, uint32_t exec, tw_access* x, int how) {
  switch (TW_SPACE_OF(i->mod)) {
    case TW_SPACE_GLOBAL: return x->mask = tw_global(w, i, exec, x, how);
    case TW_SPACE_SHARED: case TW_SPACE_CLUSTER:
      // A shared address may also be given as a 64-bit number; only its window's offset is meant.
      return x->mask = tw_shared(w, i, exec, x, how);
    case TW_SPACE_LOCAL: return x->mask = tw_local(w, i, exec, x, how);
    case TW_SPACE_PARAMETER: return x->mask = tw_generic(w, i, exec, x, how);
    default: return x->mask = tw_generic(w, i, exec, x, how);
  }
}

// -- races --

static void tw_tell(tw_warp* w, const tw_instr* i, const tw_access* x, int how, int order, const void* values) {
  tw_cta* cta = w->cta;
  tw_race_report race;
  int index = tw_index_of(w, i), found;
  if (x->shared) {
    found = tw_race_shared(cta->races, w->index, x->shared, x->offset, x->size, how, order, values, x->size, index, &race);
    if (found) tw_report_race(w, TW_FIND_RACE_SHARED, index, x->size, &race, found);
  }
  if (__builtin_expect(x->peers != 0, 0)) tw_tell_peers(w, i, x, how, order, values);
  if (x->global) {
    const tw_region* r = cta->worker->cache[index];
    if (how == TW_READ && !(r->flags & TW_REGION_WRITABLE) && !(x->shared)) return;
    found = tw_race_global(cta->engine->races, cta->races, w->index, x->global, x->address, x->size, how, order, values,
                           x->size, index, &race);
    if (found) tw_report_race(w, TW_FIND_RACE_GLOBAL, index, x->size, &race, found);
  }
}

static inline bool tw_is_guess(const tw_instr* i) { return (TW_ORDER_OF(i->mod) & TW_ORDER_MASK) == TW_ORDER_GUESS; }

// A polling warp must not keep the others waiting: strong reads use up its turn quickly.
static inline void tw_polled(tw_warp* w) {
  w->quantum -= 256;
  w->spinning = true;
}

// -- moving bytes between registers and memory --

#define TW_LOAD_AS(reg, mem)                                                          \
  if (mask == TW_ALL && full) {                                                       \
    for (int l = 0; l < TW_LANES; l++) {                                              \
      mem value;                                                                      \
      memcpy(&value, x->at[l] + part, sizeof value);                                  \
      ((reg*)d)[l] = (reg)value;                                                      \
    }                                                                                 \
  } else {                                                                            \
    TW_EACH(mask) {                                                                   \
      mem value;                                                                      \
      memcpy(&value, x->at[l] + part, sizeof value);                                  \
      ((reg*)d)[l] = (reg)value;                                                      \
    }                                                                                 \
    TW_EACH(exec & ~mask)((reg*)d)[l] = 0;                                            \
  }                                                                                   \
  break

// One element of every lane; `part` is its offset in the lane's bytes.
static inline void tw_load_part(const tw_warp* w, const tw_instr* i, uint32_t exec, const tw_access* x, void* d, int part) {
  uint32_t mask = x->mask;
  bool full = exec == w->live || mask == TW_ALL;
  uint32_t how = i->mod & (TW_MEM_ELEMENT | TW_MEM_REGISTER | TW_MEM_SIGNED);
  switch (how) {
    case 2 | 2 << 2: case 2 | 2 << 2 | 16: TW_LOAD_AS(uint32_t, uint32_t);
    case 3 | 3 << 2: case 3 | 3 << 2 | 16: TW_LOAD_AS(uint64_t, uint64_t);
    case 1 | 1 << 2: case 1 | 1 << 2 | 16: TW_LOAD_AS(uint16_t, uint16_t);
    case 0 | 1 << 2: TW_LOAD_AS(uint16_t, uint8_t);
    case 0 | 2 << 2: TW_LOAD_AS(uint32_t, uint8_t);
    case 0 | 3 << 2: TW_LOAD_AS(uint64_t, uint8_t);
    case 1 | 2 << 2: TW_LOAD_AS(uint32_t, uint16_t);
    case 1 | 3 << 2: TW_LOAD_AS(uint64_t, uint16_t);
    case 2 | 3 << 2: TW_LOAD_AS(uint64_t, uint32_t);
    case 0 | 1 << 2 | 16: TW_LOAD_AS(int16_t, int8_t);
    case 0 | 2 << 2 | 16: TW_LOAD_AS(int32_t, int8_t);
    case 0 | 3 << 2 | 16: TW_LOAD_AS(int64_t, int8_t);
    case 1 | 2 << 2 | 16: TW_LOAD_AS(int32_t, int16_t);
    case 1 | 3 << 2 | 16: TW_LOAD_AS(int64_t, int16_t);
    case 2 | 3 << 2 | 16: TW_LOAD_AS(int64_t, int32_t);
    default: break;
  }
}
#undef TW_LOAD_AS

// Four 32-bit elements of every lane at once: the commonest vector load.
static inline void tw_load_quad(tw_warp* w, const tw_instr* i, const tw_access* x) {
  uint32_t *d0 = TW_DST(uint32_t, 0), *d1 = TW_DST(uint32_t, 1), *d2 = TW_DST(uint32_t, 2), *d3 = TW_DST(uint32_t, 3);
  for (int l = 0; l < TW_LANES; l++) {
    uint32_t four[4];
    memcpy(four, x->at[l], 16);
    d0[l] = four[0], d1[l] = four[1], d2[l] = four[2], d3[l] = four[3];
  }
}

static int tw_load(tw_warp* w, const tw_instr* i, uint32_t exec, tw_access* x) {
  uint32_t element = i->mod & TW_MEM_ELEMENT;
  bool plain = element == (i->mod >> 2 & 3);
  if (x->contiguous && x->mask == TW_ALL && i->count == 1 && plain && i->o[0] >= 0) {
    memcpy(tw_slot(w, i->o[0]), x->at[0], (size_t)TW_LANES << element);
  } else if (i->count == 4 && x->mask == TW_ALL && element == 2 && plain && (i->o[0] | i->o[1] | i->o[2] | i->o[3]) >= 0) {
    tw_load_quad(w, i, x);
  } else {
    for (int k = 0; k < i->count; k++)
      if (i->o[k] >= 0) tw_load_part(w, i, exec, x, tw_slot(w, i->o[k]), k << element);
  }
  if (TW_ORDER_OF(i->mod) && !tw_is_guess(i)) tw_polled(w);
  if (w->cta->races && (x->shared | x->global | x->peers)) tw_tell(w, i, x, TW_READ, TW_ORDER_OF(i->mod), NULL);
  return TW_NEXT;
}

// Registers o[0..count) of lane l as the bytes it stores.
static void tw_pack_values(const tw_warp* w, const tw_instr* i, uint8_t* values, int size) {
  int element = 1 << (i->mod & TW_MEM_ELEMENT), held = 1 << (i->mod >> 2 & 3);
  for (int k = 0; k < i->count; k++) {
    const uint8_t* source = tw_slot(w, i->o[k]);
    for (int l = 0; l < TW_LANES; l++) memcpy(values + l * size + k * element, source + l * held, (size_t)element);
  }
}

static int tw_store(tw_warp* w, const tw_instr* i, tw_access* x) {
  int element = 1 << (i->mod & TW_MEM_ELEMENT), held = 1 << (i->mod >> 2 & 3);
  w->cta->wrote = true;
  if (w->cta->races && (x->shared | x->global | x->peers)) {
    uint8_t values[TW_LANES * 32];
    tw_pack_values(w, i, values, x->size);
    tw_tell(w, i, x, TW_WRITE, TW_ORDER_OF(i->mod), values);
  }
  if (x->contiguous && x->mask == TW_ALL && i->count == 1 && held == element) {
    memcpy(x->at[0], tw_slot(w, i->o[0]), (size_t)(TW_LANES * element));
    return TW_NEXT;
  }
  for (int k = 0; k < i->count; k++) {
    const uint8_t* source = tw_slot(w, i->o[k]);
    switch (element) {
      case 4: TW_EACH(x->mask) memcpy(x->at[l] + k * 4, source + (int)l * held, 4); break;
      case 8: TW_EACH(x->mask) memcpy(x->at[l] + k * 8, source + (int)l * held, 8); break;
      case 2: TW_EACH(x->mask) memcpy(x->at[l] + k * 2, source + (int)l * held, 2); break;
      default: TW_EACH(x->mask) x->at[l][k] = source[(int)l * held]; break;
    }
  }
  return TW_NEXT;
}

#define TW_MEMORY(name, reach)                                                 \
  TW_HANDLER(ld##name) {                                                       \
    tw_access x;                                                               \
    x.size = i->count << (i->mod & TW_MEM_ELEMENT);                            \
    tw_addresses(w, i, 4, &x);                                                 \
    x.mask = reach(w, i, exec, &x, TW_READ);                                   \
    return tw_load(w, i, exec, &x);                                            \
  }                                                                            \
  TW_HANDLER(st##name) {                                                       \
    tw_access x;                                                               \
    x.size = i->count << (i->mod & TW_MEM_ELEMENT);                            \
    tw_addresses(w, i, 4, &x);                                                 \
    x.mask = reach(w, i, exec, &x, TW_WRITE);                                  \
    return x.mask ? tw_store(w, i, &x) : TW_NEXT;                              \
  }
TW_MEMORY(, tw_generic)
TW_MEMORY(_global, tw_global)
TW_MEMORY(_shared, tw_shared)
TW_MEMORY(_local, tw_local)

// A kernel parameter at a known offset: the same for all. Lowering has checked the bounds of the declaration.
TW_HANDLER(ld_param) {
  tw_access x;
  x.mask = exec;
  x.shared = x.global = x.peers = 0;
  int size = i->count << (i->mod & TW_MEM_ELEMENT);
  const tw_launch* launch = w->cta->engine->launch;
  if (i->imm < 0 || i->imm + size > launch->parameter_bytes) x.mask = 0;
  TW_LOOP x.at[l] = (uint8_t*)launch->parameters + (x.mask ? i->imm : 0);
  for (int k = 0; k < i->count; k++)
    if (i->o[k] >= 0) tw_load_part(w, i, exec, &x, tw_slot(w, i->o[k]), k << (i->mod & TW_MEM_ELEMENT));
  return TW_NEXT;
}

// Parameters and results of functions live in the frame, [lane][stride]: base o[4], stride o[5], offset imm.
static inline void tw_frame_places(const tw_warp* w, const tw_instr* i, uint32_t exec, tw_access* x) {
  uint8_t* base = tw_slot(w, i->o[4]);
  x->mask = exec;
  x->shared = x->global = x->peers = 0;
  x->contiguous = false;
  TW_LOOP x->at[l] = base + l * i->o[5] + i->imm;
}
TW_HANDLER(ld_frame) {
  tw_access x;
  tw_frame_places(w, i, exec, &x);
  for (int k = 0; k < i->count; k++)
    if (i->o[k] >= 0) tw_load_part(w, i, exec, &x, tw_slot(w, i->o[k]), k << (i->mod & TW_MEM_ELEMENT));
  return TW_NEXT;
}
TW_HANDLER(st_frame) {
  tw_access x;
  tw_frame_places(w, i, exec, &x);
  x.size = i->count << (i->mod & TW_MEM_ELEMENT);
  return tw_store(w, i, &x);
}

// -- address spaces --

// mod: the space; imm is not used. cvta adds the window, cvta.to takes it away; global is generic already.
static inline uint64_t tw_window_of(const tw_warp* w, uint32_t space) {
  const tw_launch* launch = w->cta->engine->launch;
  if (space == TW_SPACE_SHARED || space == TW_SPACE_CLUSTER) return launch->shared_window;
  return space == TW_SPACE_LOCAL ? launch->local_window : 0;
}
TW_HANDLER(cvta) {
  const uint64_t* a = TW_SRC(uint64_t, 1);
  uint64_t window = tw_window_of(w, TW_SPACE_OF(i->mod));
  TW_RESULT(uint64_t, a[l] + window);
}
TW_HANDLER(cvta_to) {
  const uint64_t* a = TW_SRC(uint64_t, 1);
  uint64_t window = tw_window_of(w, TW_SPACE_OF(i->mod));
  TW_RESULT(uint64_t, a[l] - window);
}
TW_HANDLER(isspacep) {
  const uint64_t* a = TW_SRC(uint64_t, 1);
  const tw_launch* launch = w->cta->engine->launch;
  uint32_t space = TW_SPACE_OF(i->mod), bits = 0;
  TW_EACH(exec) {
    bool shared = a[l] - launch->shared_window < TW_WINDOW_BYTES, local = a[l] - launch->local_window < TW_WINDOW_BYTES;
    bool parameter = a[l] - launch->parameter_window < TW_WINDOW_BYTES;
    uint32_t rank = (uint32_t)(a[l] - launch->shared_window) >> TW_RANK_SHIFT;  // plus one; 0: the block's own
    bool yes = space == TW_SPACE_CLUSTER  ? shared
               : space == TW_SPACE_SHARED ? shared && (!rank || rank == (uint32_t)w->cta->rank + 1)
               : space == TW_SPACE_LOCAL  ? local
               : space == TW_SPACE_PARAMETER ? parameter
                                             : !shared && !local && !parameter;
    bits |= (uint32_t)yes << l;
  }
  tw_set_predicate(w, i->o[0], bits, exec);
  return TW_NEXT;
}
// The address of a variable in local memory, in this activation.
TW_HANDLER(local_address) {
  uint64_t value = w->cta->engine->local_origin + w->frames[w->frame].local_base + (uint64_t)i->imm;
  TW_RESULT(uint64_t, value);
}
TW_HANDLER(parameter_address) {
  uint64_t value = w->cta->engine->launch->parameter_window + (uint64_t)i->imm;
  TW_RESULT(uint64_t, value);
}

#endif

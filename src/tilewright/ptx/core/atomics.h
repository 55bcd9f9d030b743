// Handlers: atom and red in every type, fences. Real atomic operations of the host, since blocks run on several threads.
#ifndef TW_ATOMICS_H
#define TW_ATOMICS_H

#include "memory.h"
#include "numeric.h"

enum { TW_ATOM_ADD, TW_ATOM_MIN, TW_ATOM_MAX, TW_ATOM_AND, TW_ATOM_OR, TW_ATOM_XOR, TW_ATOM_EXCH, TW_ATOM_CAS, TW_ATOM_INC,
       TW_ATOM_DEC };
enum { TW_ATOM_U32, TW_ATOM_S32, TW_ATOM_U64, TW_ATOM_S64, TW_ATOM_F32, TW_ATOM_F64, TW_ATOM_F16, TW_ATOM_BF16, TW_ATOM_F16X2,
       TW_ATOM_BF16X2, TW_ATOM_B16 };

static inline uint32_t tw_atom_pair(uint32_t old, uint32_t b, uint16_t (*of)(uint16_t, uint16_t)) {
  return (uint32_t)of((uint16_t)(old >> 16), (uint16_t)(b >> 16)) << 16 | of((uint16_t)old, (uint16_t)b);
}
static uint16_t tw_atom_add_f16(uint16_t a, uint16_t b) { return tw_add_f16(a, b); }
static uint16_t tw_atom_add_bf16(uint16_t a, uint16_t b) { return tw_add_bf16(a, b); }
static uint16_t tw_atom_min_f16(uint16_t a, uint16_t b) { return tw_min_f16(a, b); }
static uint16_t tw_atom_max_f16(uint16_t a, uint16_t b) { return tw_max_f16(a, b); }
static uint16_t tw_atom_min_bf16(uint16_t a, uint16_t b) { return tw_min_bf16(a, b); }
static uint16_t tw_atom_max_bf16(uint16_t a, uint16_t b) { return tw_max_bf16(a, b); }

static inline uint64_t tw_atom_integer(int op, uint64_t old, uint64_t b, bool less) {
  switch (op) {
    case TW_ATOM_ADD: return old + b;
    case TW_ATOM_MIN: return less ? b : old;
    case TW_ATOM_MAX: return less ? old : b;
    case TW_ATOM_AND: return old & b;
    case TW_ATOM_OR: return old | b;
    case TW_ATOM_XOR: return old ^ b;
    case TW_ATOM_INC: return old >= b ? 0 : old + 1;
    case TW_ATOM_DEC: return old == 0 || old > b ? b : old - 1;
    default: return b;
  }
}

// What memory holds after the operation. f32 addition flushes subnormals in global memory as the hardware does.
static uint64_t tw_atom_apply(int op, int type, uint64_t old, uint64_t b, uint64_t c) {
  if (op == TW_ATOM_CAS) return old == b ? c : old;
  if (op == TW_ATOM_EXCH) return b;
  switch (type) {
    case TW_ATOM_U32: case TW_ATOM_U64: case TW_ATOM_B16: return tw_atom_integer(op, old, b, b < old);
    case TW_ATOM_S32: return tw_atom_integer(op, old, b, (int32_t)b < (int32_t)old);
    case TW_ATOM_S64: return tw_atom_integer(op, old, b, (int64_t)b < (int64_t)old);
    case TW_ATOM_F32: return tw_f32_bits(tw_add_f32(tw_f32_of((uint32_t)old), tw_f32_of((uint32_t)b)));
    case TW_ATOM_F64: return tw_f64_bits(tw_f64_of(old) + tw_f64_of(b));
    case TW_ATOM_F16:
      return (op == TW_ATOM_ADD ? tw_atom_add_f16 : op == TW_ATOM_MIN ? tw_atom_min_f16 : tw_atom_max_f16)((uint16_t)old, (uint16_t)b);
    case TW_ATOM_BF16:
      return (op == TW_ATOM_ADD ? tw_atom_add_bf16 : op == TW_ATOM_MIN ? tw_atom_min_bf16 : tw_atom_max_bf16)((uint16_t)old, (uint16_t)b);
    case TW_ATOM_F16X2:
      return tw_atom_pair((uint32_t)old, (uint32_t)b,
                          op == TW_ATOM_ADD ? tw_atom_add_f16 : op == TW_ATOM_MIN ? tw_atom_min_f16 : tw_atom_max_f16);
    default:
      return tw_atom_pair((uint32_t)old, (uint32_t)b,
                          op == TW_ATOM_ADD ? tw_atom_add_bf16 : op == TW_ATOM_MIN ? tw_atom_min_bf16 : tw_atom_max_bf16);
  }
}

#define TW_ATOM_WIDTH(width)                                                                               \
  {                                                                                                        \
    uint##width##_t* p = (uint##width##_t*)(void*)at;                                                      \
    uint##width##_t old = __atomic_load_n(p, __ATOMIC_RELAXED), new_value;                                 \
    do new_value = (uint##width##_t)tw_atom_apply(op, type, old, b, c);                                    \
    while (!__atomic_compare_exchange_n(p, &old, new_value, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));   \
    *changed |= new_value != old;                                                                          \
    return old;                                                                                            \
  }
static uint64_t tw_atom_lane(uint8_t* at, int bytes, int op, int type, uint64_t b, uint64_t c, bool* changed) {
  if (bytes == 4) TW_ATOM_WIDTH(32)
  if (bytes == 8) TW_ATOM_WIDTH(64)
  TW_ATOM_WIDTH(16)
}

static inline uint64_t tw_atom_operand(const void* slot, int bytes, uint32_t lane) {
  return bytes == 4 ? ((const uint32_t*)slot)[lane] : bytes == 8 ? ((const uint64_t*)slot)[lane] : ((const uint16_t*)slot)[lane];
}

// Between two atomics anything may happen: in a random schedule the turn ends behind one in four of them, with many
// blocks behind each.
static inline int tw_perhaps_others(tw_warp* w, const tw_instr* i) {
  int32_t seeded = w->cta->engine->launch->seeded;
  if (!seeded || (seeded == 1 && tw_random(&w->cta->worker->random) & 3)) return TW_NEXT;
  w->quantum = 0;
  w->pc = tw_index_of(w, i) + 1;
  return TW_JUMP;
}

static void tw_observe_peers(tw_warp* w, const tw_access* x, int order);

// o: d (or the sink), -, b, c, address. flags: TW_ATOM_*; count: the type
TW_HANDLER(atom) {
  static const uint8_t sizes[] = {4, 4, 8, 8, 4, 8, 2, 2, 4, 4, 2};
  tw_access x;
  int op = i->flags & 15, type = i->count, bytes = sizes[type];
  x.size = bytes;
  tw_addresses(w, i, 4, &x);
  uint32_t mask = tw_reach(w, i, exec, &x, TW_BOTH);
  int order = TW_ORDER_OF(i->mod);
  if (w->cta->races && mask) tw_tell(w, i, &x, TW_BOTH, order, NULL);
  const void *b = tw_slot(w, i->o[2]), *c = tw_slot(w, i->o[3]);
  uint64_t old[TW_LANES];
  bool changed = false;
  TW_EACH(mask) old[l] = tw_atom_lane(x.at[l], bytes, op, type, tw_atom_operand(b, bytes, l), tw_atom_operand(c, bytes, l), &changed);
  if (!changed) tw_polled(w);
  else w->cta->wrote = true;
  if (w->cta->races && mask) {
    if (x.peers) tw_observe_peers(w, &x, order);
    if (x.shared) tw_race_observe_shared(w->cta->races, w->index, x.shared, x.offset, bytes, order);
    if (x.global)
      tw_race_observe_global(w->cta->engine->races, w->cta->races, w->index, x.global, x.address, bytes, order);
  }
  if (i->o[0] < 0) return tw_perhaps_others(w, i);
  void* d = tw_slot(w, i->o[0]);
  TW_EACH(exec) {
    uint64_t value = mask >> l & 1 ? old[l] : 0;
    if (bytes == 4) ((uint32_t*)d)[l] = (uint32_t)value;
    else if (bytes == 8) ((uint64_t*)d)[l] = value;
    else ((uint16_t*)d)[l] = (uint16_t)value;
  }
  return tw_perhaps_others(w, i);
}

// mod: the scope as races.h has it
TW_HANDLER(fence) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (w->cta->races) tw_race_fence(w->cta->races, w->index, exec, (int)i->mod);
  return TW_NEXT;
}

#endif

// Handlers: ldmatrix, stmatrix, movmatrix, mma, wmma. The lane layouts are tensor.c's.
#ifndef TW_MATRIX_H
#define TW_MATRIX_H

#include "collective.h"
#include "memory.h"
#include "tensor.h"

// Every lane of the warp takes part; a lane that is missing is a fault of the kernel.
static const uint32_t tw_whole_warp[TW_LANES] __attribute__((unused)) = {
    TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL,
    TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL,
    TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL, TW_ALL};

// The 16-byte rows of `count` matrices, each at the address of a lane.
static inline void tw_matrix_rows(tw_warp* w, const tw_instr* i, uint32_t together, tw_access* x, int how) {
  x->size = 16;
  tw_addresses(w, i, 4, x);
  uint32_t lanes = (i->count == 4 ? TW_ALL : (1u << (8 * i->count)) - 1) & together;
  x->mask = TW_SPACE_OF(i->mod) == TW_SPACE_SHARED ? tw_shared(w, i, lanes, x, how) : tw_generic(w, i, lanes, x, how);
}

// o: d0..d3, address. count: matrices; flags 1: .trans
TW_HANDLER(ldmatrix) {
  TW_TOGETHER(tw_whole_warp)
  tw_access x;
  tw_matrix_rows(w, i, together, &x, TW_READ);
  uint8_t rows[TW_LANES][16];
  memset(rows, 0, sizeof rows);
  TW_EACH(x.mask) memcpy(rows[l], x.at[l], 16);
  if (w->cta->races) tw_tell(w, i, &x, TW_READ, TW_ORDER_WEAK, NULL);
  uint32_t held[4][TW_LANES] __attribute__((aligned(64)));
  uint32_t* d[4] = {held[0], held[1], held[2], held[3]};
  tw_ldmatrix((const uint8_t(*)[16])rows, i->count, i->flags & 1, d);
  for (int k = 0; k < i->count; k++) {
    if (i->o[k] < 0) continue;
    uint32_t* out = TW_DST(uint32_t, k);
    TW_BLEND(out, held[k], together);
  }
  return TW_NEXT;
}

// o: a0..a3, address. count: matrices; flags 1: .trans
TW_HANDLER(stmatrix) {
  TW_TOGETHER(tw_whole_warp)
  tw_access x;
  tw_matrix_rows(w, i, together, &x, TW_WRITE);
  uint8_t rows[TW_LANES][16];
  const uint32_t* a[4];
  for (int k = 0; k < i->count; k++) a[k] = TW_SRC(uint32_t, k);
  tw_stmatrix(a, i->count, i->flags & 1, rows);
  if (w->cta->races) tw_tell(w, i, &x, TW_WRITE, TW_ORDER_WEAK, rows);
  TW_EACH(x.mask) memcpy(x.at[l], rows[l], 16);
  return TW_NEXT;
}

TW_HANDLER(movmatrix) {
  TW_TOGETHER(tw_whole_warp)
  const uint32_t* a = TW_SRC(uint32_t, 1);
  uint32_t held[TW_LANES];
  uint32_t* d = TW_DST(uint32_t, 0);
  tw_movmatrix(a, held);
  TW_BLEND(d, held, together);
  return TW_NEXT;
}

// imm: tensor.c's number of the instruction; further operands: registers of d, a, b, c; o[0..3]: how many of each
TW_HANDLER(mma) {
  TW_TOGETHER(tw_whole_warp)
  const int32_t* list = w->cta->program->extra + i->extra;
  void* d[32];
  const void *a[32], *b[32], *c[32];
  uint64_t aside[32][TW_LANES] __attribute__((aligned(64)));
  bool all = together == w->live;
  for (int k = 0; k < i->o[0]; k++) d[k] = all ? tw_slot(w, list[k]) : (void*)aside[k];
  list += i->o[0];
  for (int k = 0; k < i->o[1]; k++) a[k] = tw_slot(w, *list++);
  for (int k = 0; k < i->o[2]; k++) b[k] = tw_slot(w, *list++);
  for (int k = 0; k < i->o[3]; k++) c[k] = tw_slot(w, *list++);
  tw_mma((int)i->imm, d, a, b, c);
  if (!all) {  // flags: log2 bytes of d's registers
    list = w->cta->program->extra + i->extra;
    for (int k = 0; k < i->o[0]; k++) {
      uint8_t *to = tw_slot(w, list[k]), *from = (uint8_t*)aside[k];
      int bytes = 1 << (i->flags & 3);
      TW_EACH(together) memcpy(to + (int)l * bytes, from + (int)l * bytes, (size_t)bytes);
    }
  }
  return TW_NEXT;
}

// wmma.load and wmma.store. o[4]: address, o[5]: stride (negative: the default); o[6]: tensor.c's number;
// further operands: the fragment's registers.
static void tw_fragment_places(const tw_warp* w, const tw_instr* i, tw_access* x, const uint64_t* base, int reg, int element, int bits) {
  const uint32_t* stride = i->o[5] < 0 ? NULL : TW_SRC(uint32_t, 5);
  int64_t usual = tw_fragment_default_stride(i->o[6]);
  x->shared = x->global = x->peers = 0, x->contiguous = false;
  for (int l = 0; l < TW_LANES; l++) {
    int64_t at = tw_fragment_offset(i->o[6], l, reg, element, stride ? (int64_t)(int32_t)stride[l] : usual);
    x->address[l] = base[l] + (uint64_t)(at * bits / 8);
    x->offset[l] = bits < 8 ? (uint32_t)(at * bits % 8) : 0;
  }
}

// A fragment's registers and elements, in numbers.
typedef struct {
  int registers, elements, bits;
  bool wide;  // its registers have 64 bits
  const int32_t* list;
} tw_fragment_shape;
static inline tw_fragment_shape tw_fragment_shape_of(const tw_warp* w, const tw_instr* i) {
  int number = i->o[6];
  return (tw_fragment_shape){tw_fragment_registers(number), tw_fragment_elements(number), tw_fragment_element_bits(number),
                       tw_fragment_register_bits(number) == 64, w->cta->program->extra + i->extra};
}

TW_HANDLER(wmma_load) {
  TW_TOGETHER(tw_whole_warp)
  const tw_fragment_shape f = tw_fragment_shape_of(w, i);
  const int bits = f.bits;
  tw_access base, x;
  tw_addresses(w, i, 4, &base);
  for (int reg = 0; reg < f.registers; reg++) {
    uint64_t held[TW_LANES] = {0};
    for (int element = 0; element < f.elements; element++) {
      x.size = bits < 8 ? 1 : bits / 8;
      tw_fragment_places(w, i, &x, base.address, reg, element, bits);
      uint32_t shift[TW_LANES];
      memcpy(shift, x.offset, sizeof shift);
      tw_reach(w, i, together, &x, TW_READ);
      TW_EACH(x.mask) {
        uint64_t value = 0;
        memcpy(&value, x.at[l], (size_t)x.size);
        if (bits < 8) value = value >> shift[l] & ((1u << bits) - 1);
        held[l] |= value << (element * bits);
      }
      if (w->cta->races && (x.shared | x.global)) tw_tell(w, i, &x, TW_READ, TW_ORDER_WEAK, NULL);
    }
    void* d = tw_slot(w, f.list[reg]);
    TW_EACH(together) if (f.wide) ((uint64_t*)d)[l] = held[l];
    else ((uint32_t*)d)[l] = (uint32_t)held[l];
  }
  return TW_NEXT;
}

TW_HANDLER(wmma_store) {
  TW_TOGETHER(tw_whole_warp)
  const tw_fragment_shape f = tw_fragment_shape_of(w, i);
  tw_access base, x;
  tw_addresses(w, i, 4, &base);
  for (int reg = 0; reg < f.registers; reg++) {
    const void* a = tw_slot(w, f.list[reg]);
    for (int element = 0; element < f.elements; element++) {
      x.size = f.bits / 8;
      tw_fragment_places(w, i, &x, base.address, reg, element, f.bits);
      tw_reach(w, i, together, &x, TW_WRITE);
      uint64_t values[TW_LANES];
      TW_EACH(together) values[l] = (f.wide ? ((const uint64_t*)a)[l] : ((const uint32_t*)a)[l]) >> (element * f.bits);
      if (w->cta->races && (x.shared | x.global)) {
        uint8_t packed[TW_LANES * 8];
        for (int l = 0; l < TW_LANES; l++) memcpy(packed + l * x.size, &values[l], (size_t)x.size);
        tw_tell(w, i, &x, TW_WRITE, TW_ORDER_WEAK, packed);
      }
      TW_EACH(x.mask) memcpy(x.at[l], &values[l], (size_t)x.size);
    }
  }
  return TW_NEXT;
}

#endif

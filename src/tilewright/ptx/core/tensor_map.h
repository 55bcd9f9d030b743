// Tensor maps as the emulator has them: what a CUtensorMap is made of, in the clear, in the same 128 bytes.
#ifndef TW_TENSOR_MAP_H
#define TW_TENSOR_MAP_H

#include "asynchronous.h"

enum { TW_MAP_BYTES = 128, TW_MAP_RANK = 5 };
#define TW_MAP_MAGIC "TWTMAP1"

typedef struct {  // tensor_maps.py packs it; everything innermost first
  char magic[8];
  uint64_t address;
  uint64_t stride[4];  // bytes, of all dimensions but the innermost
  uint32_t last[5];    // the extents less one
  uint16_t box[5];
  uint8_t step[5];
  uint8_t rank, type, swizzle, fill_nan, im2col;  // type and swizzle as the driver numbers them
  int16_t lower[3], upper[3];  // corners of the box of pixels; im2col only
  uint16_t channels, pixels;   // of a column; im2col only
} tw_tensor_map;

typedef struct {
  tw_stretch* runs;  // the parts inside the tensor, in the order of the box
  int32_t count;
  uint32_t bytes;      // of the whole box, one row after the other
  uint32_t row_bytes;  // of its rows
  uint32_t pitch;      // from row to row in shared memory: a row of the swizzle, where its own are shorter
} tw_box;

int tw_map_element_bytes(const tw_tensor_map* map);
bool tw_map_box(const tw_tensor_map* map, const int32_t* coordinate, const uint16_t* offset, tw_box* box);
void tw_map_fill(const tw_tensor_map* map, uint8_t* image, uint32_t bytes);
int tw_map_atom_type(const tw_tensor_map* map);  // TW_ATOM_* of its elements; -1: none

// Where byte `k` of a box at `shared` lies: 16 bytes at a time change places inside a row of the swizzle.
static inline uint32_t tw_swizzled(const tw_tensor_map* map, const tw_box* box, uint32_t shared, uint32_t k) {
  uint32_t address = shared + k / box->row_bytes * box->pitch + k % box->row_bytes, bits = (1u << map->swizzle) - 1;
  return address ^ ((address >> 7 & bits) << 4);
}
static inline uint32_t tw_box_extent(const tw_box* box) { return box->bytes / box->row_bytes * box->pitch; }

#endif

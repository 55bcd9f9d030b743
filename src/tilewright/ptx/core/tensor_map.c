// Which bytes of global memory the box of a tensor map means.
#include "tensor_map.h"

#include <stdlib.h>

enum { MAP_U8, MAP_U16, MAP_U32, MAP_S32, MAP_U64, MAP_S64, MAP_F16, MAP_F32, MAP_F64, MAP_BF16, MAP_F32_FTZ, MAP_TF32,
       MAP_TF32_FTZ, MAP_TYPES };

int tw_map_element_bytes(const tw_tensor_map* map) {
  static const uint8_t bytes[MAP_TYPES] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  return map->type < MAP_TYPES ? bytes[map->type] : 0;
}

// In the order of TW_ATOM_U32, _S32, _U64, _S64, _F32, _F64, _F16, _BF16.
int tw_map_atom_type(const tw_tensor_map* map) {
  static const int8_t types[MAP_TYPES] = {-1, -1, 0, 1, 2, 3, 6, 4, 5, 7, 4, -1, -1};
  return map->type < MAP_TYPES ? types[map->type] : -1;
}

// What a load finds outside the tensor: zeros, or the NaN that an H200 was seen to put there, of any width.
void tw_map_fill(const tw_tensor_map* map, uint8_t* image, uint32_t bytes) {
  for (uint32_t k = 0; k < bytes; k++) image[k] = !map->fill_nan ? 0 : k & 1 ? 0x7f : 0xf7;
}

static bool add_run(tw_box* box, int32_t* capacity, uint64_t address, uint32_t at, uint32_t bytes) {
  if (box->count == *capacity) {
    int32_t more = *capacity ? 2 * *capacity : 64;
    tw_stretch* larger = realloc(box->runs, (size_t)more * sizeof *larger);
    if (!larger) return false;
    box->runs = larger, *capacity = more;
  }
  box->runs[box->count++] = (tw_stretch){.address = address, .at = at, .bytes = bytes};
  return true;
}

// One row of the box: `count` elements from `place` on, of which those inside the tensor count.
static bool add_row(const tw_tensor_map* map, tw_box* box, int32_t* capacity, const int64_t* place, int64_t count) {
  int64_t size = tw_map_element_bytes(map), address = (int64_t)map->address + place[0] * size;
  int64_t first = place[0] < 0 ? -place[0] : 0, end = (int64_t)map->last[0] + 1 - place[0];
  if (end > count) end = count;
  bool inside = first < end;
  for (int d = 1; d < map->rank; d++) {
    inside &= place[d] >= 0 && place[d] <= (int64_t)map->last[d];
    address += place[d] * (int64_t)map->stride[d - 1];
  }
  uint32_t at = box->bytes;
  box->bytes += (uint32_t)(count * size);
  return !inside || add_run(box, capacity, (uint64_t)(address + first * size), at + (uint32_t)(first * size),
                            (uint32_t)((end - first) * size));
}

static bool tiled_box(const tw_tensor_map* map, const int32_t* coordinate, tw_box* box, int32_t* capacity) {
  uint32_t at[TW_MAP_RANK] = {0};
  for (;;) {
    int64_t place[TW_MAP_RANK];
    for (int d = 0; d < map->rank; d++) place[d] = (int64_t)coordinate[d] + at[d];
    if (!add_row(map, box, capacity, place, map->box[0])) return false;
    int d = 1;
    for (; d < map->rank; d++) {  // with steps, every so many elements of the box's extent
      at[d] += map->step[d];
      if (at[d] < map->box[d]) break;
      at[d] = 0;
    }
    if (d >= map->rank) return true;
  }
}

// A column of pixels, each with its channels: along the innermost pixel dimension first, inside a box that may reach
// beyond the tensor; `offset`, where the filter stands, is added to where a pixel is read but not to the box.
static bool im2col_box(const tw_tensor_map* map, const int32_t* coordinate, const uint16_t* offset, tw_box* box,
                       int32_t* capacity) {
  int64_t pixel[TW_MAP_RANK], place[TW_MAP_RANK];
  int pixels = map->rank - 2;  // dimensions between channels and images
  for (int d = 0; d < map->rank; d++) pixel[d] = coordinate[d];
  for (uint32_t k = 0; k < map->pixels; k++) {
    for (int d = 0; d < map->rank; d++) place[d] = pixel[d] + (d >= 1 && d <= pixels ? offset[d - 1] : 0);
    if (!add_row(map, box, capacity, place, map->channels)) return false;
    int d = 1;
    for (; d <= pixels; d++) {
      pixel[d] += map->step[d];
      if (pixel[d] <= (int64_t)map->last[d] + map->upper[d - 1]) break;
      pixel[d] = map->lower[d - 1];
    }
    if (d > pixels) pixel[pixels + 1] += map->step[pixels + 1];
  }
  return true;
}

// Takes memory for `runs`, which the caller frees; false: there is none.
bool tw_map_box(const tw_tensor_map* map, const int32_t* coordinate, const uint16_t* offset, tw_box* box) {
  int32_t capacity = 0;
  uint32_t row = (uint32_t)tw_map_element_bytes(map) * (map->im2col ? map->channels : map->box[0]);
  uint32_t swizzled = map->swizzle ? 16u << map->swizzle : 0;
  *box = (tw_box){.row_bytes = row, .pitch = row < swizzled ? swizzled : row};
  bool done = map->im2col ? im2col_box(map, coordinate, offset, box, &capacity) : tiled_box(map, coordinate, box, &capacity);
  if (!done) free(box->runs);
  return done;
}

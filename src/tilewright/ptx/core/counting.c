// What a profiler would count of a memory request: 32-byte sectors and 128-byte lines in global, passes over 32 banks in shared memory.
#include "machine.h"

// How many different values are among the lanes' shifted addresses.
static int distinct(uint32_t mask, const uint64_t* address, int shift) {
  uint64_t seen[64];
  uint64_t used = 0;
  int count = 0;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    uint64_t value = address[__builtin_ctz(rest)] >> shift;
    uint32_t at = (uint32_t)((value * 0x9e3779b97f4a7c15ull) >> 58);
    while (used >> at & 1 && seen[at] != value) at = (at + 1) & 63;
    if (used >> at & 1) continue;
    used |= 1ull << at;
    seen[at] = value;
    count++;
  }
  return count;
}

void tw_count_global(tw_count* count, uint32_t mask, const uint64_t* address, int size, bool contiguous) {
  if (contiguous) {  // all 32 lanes, one after the other
    uint64_t first = address[0], bytes = 32ull * (uint64_t)size;
    count->requests++;
    count->sectors += ((first + bytes - 1) >> 5) - (first >> 5) + 1;
    count->ideal_sectors += (bytes + 31) / 32;
    count->lines += ((first + bytes - 1) >> 7) - (first >> 7) + 1;
    count->bytes += bytes;
    return;
  }
  int lanes = __builtin_popcount(mask), shift = size > 32 ? 6 : 5, places = 0, sectors = 0, lines = 0;
  bool rising = true;
  uint64_t before = 0;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    uint64_t a = address[__builtin_ctz(rest)];
    if (places == 0 || a != before) {
      if (places && a < before) {
        rising = false;
        break;
      }
      sectors += places == 0 || a >> shift != before >> shift;
      lines += places == 0 || a >> 7 != before >> 7;
      places++;
    }
    before = a;
  }
  if (!rising) {
    places = distinct(mask, address, 0);
    sectors = distinct(mask, address, shift);
    lines = distinct(mask, address, 7);
  }
  count->requests++;
  count->sectors += (uint64_t)sectors;
  count->lines += (uint64_t)lines;
  count->ideal_sectors += ((uint64_t)places * (uint64_t)size + 31) / 32;
  count->bytes += (uint64_t)lanes * (uint64_t)size;
}

// Sectors of a load that its block did not read shortly before: the others are in the L1 cache, for which the table stands.
void tw_count_new(const tw_cta* cta, tw_count* count, uint32_t mask, const uint64_t* address, int size) {
  uint64_t* held = cta->worker->sectors;
  uint64_t block = ((uint64_t)cta->linear + 1) << 48, before = 0;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    uint64_t first = address[__builtin_ctz(rest)] >> 5, last = (address[__builtin_ctz(rest)] + (uint64_t)size - 1) >> 5;
    for (uint64_t sector = first; sector <= last; sector++) {
      if (sector == before) continue;
      before = sector;
      uint64_t key = block ^ sector, *at = &held[(sector * 0x9e3779b97f4a7c15ull) >> 53];
      count->new_sectors += *at != key;
      *at = key;
    }
  }
}

// Lanes are served 128 bytes at a time: all 32 lanes of up to 4 bytes, half a warp of 8, a quarter of 16.
void tw_count_shared(tw_count* count, uint32_t mask, const uint32_t* address, int size, bool contiguous) {
  if (contiguous && mask == TW_ALL && size >= 4) {
    uint64_t phases = (uint64_t)size / 4;
    count->requests++;
    count->passes += phases;
    count->ideal_passes += phases;
    count->bytes += 32ull * (uint64_t)size;
    return;
  }
  int lanes_per_phase = size <= 4 ? 32 : size == 8 ? 16 : 8;
  int words = size <= 4 ? 1 : size / 4;
  for (int start = 0; start < 32; start += lanes_per_phase) {
    uint32_t phase = mask & (lanes_per_phase == 32 ? TW_ALL : ((1u << lanes_per_phase) - 1) << start);
    if (!phase) continue;
    uint32_t word_of[32];   // the first word seen in each bank
    uint32_t taken = 0;
    uint8_t load[32] = {0};
    uint32_t more[32][32];  // further words of a bank
    int passes = 1;
    for (uint32_t rest = phase; rest; rest &= rest - 1) {
      uint32_t first = address[__builtin_ctz(rest)] >> 2;
      for (int k = 0; k < words; k++) {
        uint32_t word = first + (uint32_t)k, bank = word & 31;
        if (!(taken >> bank & 1)) {
          taken |= 1u << bank;
          word_of[bank] = word;
          load[bank] = 1;
          continue;
        }
        if (word_of[bank] == word) continue;
        int j = 1;
        while (j < load[bank] && more[bank][j] != word) j++;
        if (j < load[bank]) continue;
        more[bank][load[bank]++] = word;
        if (load[bank] > passes) passes = load[bank];
      }
    }
    count->passes += (uint64_t)passes;
    count->ideal_passes++;
  }
  count->requests++;
  count->bytes += (uint64_t)__builtin_popcount(mask) * (uint64_t)size;
}

// Only of the block that is run first: the others look alike, and one of each kind is to be shown.
void tw_note_touch(const tw_warp* w, tw_touch* touch, uint32_t mask, const uint64_t* address, int size, int how) {
  const tw_launch* launch = w->cta->engine->launch;
  if (w->index != 0 || w->cta->linear != (launch->blocks ? launch->blocks[0] : 0) || touch->lanes) return;
  for (int l = 0; l < TW_LANES; l++) touch->address[l] = address[l];
  touch->lanes = mask;
  touch->size = size;
  touch->how = how;
}

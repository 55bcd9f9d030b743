// Handlers: shuffles, votes, matches, reductions over a warp. Each waits until the lanes its mask names are there.
#ifndef TW_COLLECTIVE_H
#define TW_COLLECTIVE_H

#include "lanes.h"

// Lanes of one instruction may form several groups, each with its own member mask.
static inline uint32_t tw_group(uint32_t left, const uint32_t* masks) {
  int first = __builtin_ctz(left);
  uint32_t group = 0;
  TW_EACH(left) group |= (uint32_t)(masks[l] == masks[first]) << l;
  return group;
}

#define TW_TOGETHER(masks)                                          \
  uint32_t together;                                                \
  {                                                                 \
    int waits_ = tw_gather_lanes(w, i, exec, masks, &together);     \
    if (waits_ != TW_NEXT) return waits_;                           \
  }

// Where each lane reads, and whether that lies inside its segment. `mode`: 0 up, 1 down, 2 bfly, 3 idx
static inline void tw_shuffle_sources(const uint32_t* b, const uint32_t* c, int mode, int32_t* from, uint8_t* inside) {
#define TW_SHUFFLE(j, condition)                                                          \
  TW_LOOP {                                                                               \
    int32_t segment = (int32_t)(c[l] >> 8 & 31), by = (int32_t)(b[l] & 31);               \
    int32_t least = l & segment, most = least | ((int32_t)(c[l] & 31) & ~segment), at = j; \
    (void)by;                                                                             \
    inside[l] = (uint8_t)(condition);                                                     \
    from[l] = (condition) ? at & 31 : l;                                                  \
  }
  switch (mode) {
    case 0: TW_SHUFFLE(l - by, at >= most) break;
    case 1: TW_SHUFFLE(l + by, at <= most) break;
    case 2: TW_SHUFFLE(l ^ by, at <= most) break;
    default: TW_SHUFFLE(least | (by & ~segment), at <= most) break;
  }
#undef TW_SHUFFLE
}

// o: d, p (or the sink), a, b, c, members. flags: the mode
TW_HANDLER(shfl) {
  const uint32_t *a = TW_SRC(uint32_t, 2), *b = TW_SRC(uint32_t, 3), *c = TW_SRC(uint32_t, 4), *members = TW_SRC(uint32_t, 5);
  TW_TOGETHER(members)
  uint32_t held[TW_LANES] __attribute__((aligned(64)));
  int32_t from[TW_LANES] __attribute__((aligned(64)));
  uint8_t inside[TW_LANES] __attribute__((aligned(64)));
  tw_shuffle_sources(b, c, i->flags & 3, from, inside);
  for (int l = 0; l < TW_LANES; l++) held[l] = a[from[l]];
  if (together != TW_ALL && w->cta->engine->checks & TW_CHECK_WARP) {
    TW_EACH(together) {
      if (together >> from[l] & 1) continue;
      tw_report(w, TW_FIND_SHUFFLE_MASK, tw_index_of(w, i), (int)l, (uint64_t)from[l], 0, 3);
      break;
    }
  }
  if (i->o[0] >= 0) {
    uint32_t* d = TW_DST(uint32_t, 0);
    TW_BLEND(d, held, together);
  }
  if (i->o[1] >= 0) tw_set_predicate(w, i->o[1], tw_pack_bytes(inside), together);
  return TW_NEXT;
}

// o: d, predicate, members. flags: 0 all, 1 any, 2 uni, 3 ballot
TW_HANDLER(vote) {
  const uint32_t* members = TW_SRC(uint32_t, 2);
  TW_TOGETHER(members)
  uint32_t p = tw_predicate(w, i->o[1]);
  for (uint32_t left = together; left;) {
    uint32_t group = tw_group(left, members), yes = p & group;
    left &= ~group;
    if ((i->flags & 3) == 3) {
      uint32_t* d = TW_DST(uint32_t, 0);
      TW_EACH(group) d[l] = yes;
    } else {
      bool value = (i->flags & 3) == 0 ? yes == group : (i->flags & 3) == 1 ? yes != 0 : yes == group || !yes;
      tw_set_predicate(w, i->o[0], value ? TW_ALL : 0, group);
    }
  }
  return TW_NEXT;
}

// o: d, p (or the sink), a, members. flags: 1 all (else any), 2 values of 64 bits
TW_HANDLER(match) {
  const uint32_t *narrow = TW_SRC(uint32_t, 2), *members = TW_SRC(uint32_t, 3);
  const uint64_t* wide = TW_SRC(uint64_t, 2);
  TW_TOGETHER(members)
  uint32_t* d = TW_DST(uint32_t, 0);
  uint32_t result[TW_LANES] = {0}, same = 0;
  TW_EACH(together) {
    uint64_t mine = i->flags & 2 ? wide[l] : narrow[l];
    uint32_t group = 0, equal = 0;
    for (uint32_t k = 0; k < TW_LANES; k++) {
      if (!(together >> k & 1) || members[k] != members[l]) continue;
      group |= 1u << k;
      equal |= (uint32_t)((i->flags & 2 ? wide[k] : narrow[k]) == mine) << k;
    }
    bool all = equal == group;
    same |= (uint32_t)all << l;
    result[l] = i->flags & 1 ? (all ? group : 0) : equal;
  }
  TW_EACH(together) d[l] = result[l];
  if (i->flags & 1) tw_set_predicate(w, i->o[1], same, together);
  return TW_NEXT;
}

// o: d, a, members. flags: 0 add, 1 min, 2 max, 3 and, 4 or, 5 xor; 8: signed
TW_HANDLER(redux) {
  const uint32_t *a = TW_SRC(uint32_t, 1), *members = TW_SRC(uint32_t, 2);
  TW_TOGETHER(members)
  uint32_t* d = TW_DST(uint32_t, 0);
  uint32_t result[TW_LANES];
  for (uint32_t left = together; left;) {
    uint32_t group = tw_group(left, members), rest = group;
    left &= ~group;
    uint32_t value = a[__builtin_ctz(group)];
    for (rest &= rest - 1; rest; rest &= rest - 1) {
      uint32_t x = a[__builtin_ctz(rest)];
      bool less = i->flags & 8 ? (int32_t)x < (int32_t)value : x < value;
      switch (i->flags & 7) {
        case 0: value += x; break;
        case 1: value = less ? x : value; break;
        case 2: value = less || x == value ? value : x; break;
        case 3: value &= x; break;
        case 4: value |= x; break;
        default: value ^= x; break;
      }
    }
    TW_EACH(group) result[l] = value;
  }
  TW_EACH(together) d[l] = result[l];
  return TW_NEXT;
}

TW_HANDLER(activemask) {
  uint32_t mask = exec;
  TW_RESULT(uint32_t, mask);
}

// o: d (or the sink), p, members
TW_HANDLER(elect) {
  const uint32_t* members = TW_SRC(uint32_t, 2);
  TW_TOGETHER(members)
  for (uint32_t left = together; left;) {
    uint32_t group = tw_group(left, members), leader = (uint32_t)__builtin_ctz(group);
    left &= ~group;
    if (i->o[0] >= 0) {
      uint32_t* d = TW_DST(uint32_t, 0);
      TW_EACH(group) d[l] = leader;
    }
    tw_set_predicate(w, i->o[1], 1u << leader, group);
  }
  return TW_NEXT;
}

#endif

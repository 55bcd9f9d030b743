// Accesses: each is held against what its cells remember, and then remembered.

#include "races_internal.h"

typedef struct {
  tw_races* races;
  tw_cta_races* cta;
  tw_cta_races* home;  // whose shared memory it is
  tw_page* page;       // locked while it is here
  bool shared, is_async;
  bool one_cta;  // the stamps there are all of this CTA, or old
  int warp, kind, order, instr;
  uint32_t clock;
  uint32_t who;       // of a write by lane 0
  uint32_t warp_who;  // of a record
  uint32_t flags;     // of a record, or of a plain write
  int conflicts;
  tw_race_report* out;
} tw_race_access;

// -- reports --

static bool first_time(tw_races* races, int kind, bool shared, int instr, int other) {
  uint64_t key = ((uint64_t)(uint32_t)instr << 32 | (uint32_t)other << 8 | (uint32_t)kind << 1 | shared) + 1;
  uint32_t slot = (uint32_t)(key * 0x9e3779b97f4a7c15ull >> 40) % TW_SEEN_SLOTS;
  for (int i = 0; i < TW_SEEN_SLOTS; i++, slot = (slot + 1) % TW_SEEN_SLOTS) {
    uint64_t held = atomic_load_explicit(&races->seen[slot], memory_order_relaxed);
    if (!held && atomic_compare_exchange_strong(&races->seen[slot], &held, key)) return true;
    if (held == key) return false;
  }
  return false;
}

typedef struct {
  uint32_t ordinal, thread, instr;
  bool is_atomic, is_async;
} tw_other;

static uint32_t index_of(tw_races* races, uint32_t ordinal) {
  if (races->locked) pthread_mutex_lock(&races->mutex);
  uint32_t index = ordinal < races->index_count ? races->indices[ordinal] : 0;
  if (races->locked) pthread_mutex_unlock(&races->mutex);
  return index;
}

static void conflict(tw_race_access* a, int kind, const tw_cell* cell, uint32_t lane, tw_other other) {
  a->conflicts++;
  if (!a->out || a->out->kind != TW_RACE_NONE) return;
  if (!first_time(a->races, kind, a->shared, a->instr, (int)other.instr)) return;
  tw_page* page = a->page;
  *a->out = (tw_race_report){
      .kind = kind,
      .is_shared = a->shared,
      .address = (page->id << TW_PAGE_SHIFT) + ((uint64_t)(cell - page->cells) << page->shift),
      .cta = a->cta->index,
      .thread = (uint32_t)a->warp * 32 + lane,
      .instr = a->instr,
      .other_cta = a->one_cta ? a->cta->index : index_of(a->races, other.ordinal),
      .other_thread = other.thread,
      .other_instr = (int32_t)other.instr,
      .is_atomic = a->order != TW_ORDER_WEAK || a->kind == TW_RACE_ATOMIC,
      .other_is_atomic = other.is_atomic,
      .is_async = a->is_async,
      .other_is_async = other.is_async,
  };
}

// -- holding an access against a cell --

// Before the last barrier of the whole CTA, which costs one comparison to see.
static inline bool before_barrier(const tw_race_access* a, uint32_t ordinal, uint32_t clock) {
  return clock < a->cta->barrier_clock && (a->one_cta || ordinal == a->cta->ordinal);
}

static __attribute__((noinline)) void check_write(tw_race_access* a, const tw_cell* cell, uint32_t lanes,
                                                  bool plain_write, uint32_t value) {
  const tw_write* write = &cell->write;
  tw_other other = {.ordinal = write->who >> 10, .thread = write->who & 1023, .instr = write->what >> 8,
                    .is_async = (write->what & TW_WRITE_ASYNC) != 0};
  if (write->what & TW_WRITE_IN_FLIGHT) {
    bool reads = a->kind == TW_RACE_READ;
    if (a->one_cta && write->clock < a->cta->start_clock) return;  // of an earlier CTA
    conflict(a, reads ? TW_RACE_ASYNC_NOT_WAITED : TW_RACE_ASYNC_OVERWRITTEN, cell, tw_lowest(lanes), other);
    return;
  }
  if (before_barrier(a, other.ordinal, write->clock)) return;
  if (plain_write && !((write->what | a->flags) & TW_WRITE_VALUE_NONE)) {
    if (write->value == value || write->what & TW_WRITE_VALUE_SPLIT) return;
  }
  int kind = a->kind == TW_RACE_READ ? TW_RACE_READ_AFTER_WRITE : TW_RACE_WRITE_AFTER_WRITE;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    uint32_t lane = tw_lowest(rest);
    if (write->who == a->who + lane) continue;
    if (tw_ordered(a->cta, a->warp, (int)lane, other.ordinal, other.thread, write->clock)) continue;
    conflict(a, kind, cell, lane, other);
  }
}

static bool compatible(const tw_race_access* a, const tw_record* record, bool strong, bool writes) {
  bool other_writes = record->what & TW_RECORD_WRITES;
  if (!writes && !other_writes) return true;
  if (!strong || !(record->what & TW_RECORD_STRONG)) return false;
  uint32_t either = record->what | a->flags;
  if (either & TW_RECORD_CTA_SCOPE && record->who >> 5 != a->cta->ordinal) return false;
  if (either & TW_RECORD_LOCKSTEP && record->who == a->warp_who) return writes && other_writes;
  return true;
}

static void check_record(tw_race_access* a, const tw_cell* cell, const tw_record* record, uint32_t lanes, bool strong) {
  bool writes = a->kind != TW_RACE_READ, other_writes = record->what & TW_RECORD_WRITES;
  if (before_barrier(a, record->who >> 5, record->clock) || compatible(a, record, strong, writes)) return;
  int kind = !writes         ? TW_RACE_READ_AFTER_WRITE
             : !other_writes ? TW_RACE_WRITE_AFTER_READ
                             : TW_RACE_WRITE_AFTER_WRITE;
  for (uint32_t mine = lanes; mine; mine &= mine - 1) {
    uint32_t lane = tw_lowest(mine);
    uint32_t others = record->who == a->warp_who ? record->lanes & ~(1u << lane) : record->lanes;
    for (; others; others &= others - 1) {
      tw_other other = {.ordinal = record->who >> 5, .thread = (record->who & 31) * 32 + tw_lowest(others),
                        .instr = record->what >> 8, .is_atomic = (record->what & TW_RECORD_STRONG) != 0};
      if (tw_ordered(a->cta, a->warp, (int)lane, other.ordinal, other.thread, record->clock)) continue;
      conflict(a, kind, cell, lane, other);
      break;
    }
  }
}

// Those of the lanes that come after the record, or are it.
static uint32_t lanes_after(tw_race_access* a, const tw_record* record, uint32_t lanes) {
  uint32_t after = 0;
  for (uint32_t mine = lanes; mine; mine &= mine - 1) {
    uint32_t lane = tw_lowest(mine);
    for (uint32_t others = record->lanes; others; others &= others - 1) {
      uint32_t thread = (record->who & 31) * 32 + tw_lowest(others);
      if (!tw_ordered(a->cta, a->warp, (int)lane, record->who >> 5, thread, record->clock)) continue;
      after |= 1u << lane;
      break;
    }
  }
  return after;
}

static __attribute__((noinline)) void check_records(tw_race_access* a, const tw_cell* cell, uint32_t lanes,
                                                    bool strong) {
  const tw_record* record = &cell->record;
  if (!record->clock) return;
  if (!(record->what & TW_RECORD_MANY)) {
    check_record(a, cell, record, lanes, strong);
    return;
  }
  if (a->kind == TW_RACE_READ && !(record->what & TW_RECORD_WRITES)) return;
  uint32_t either = record->what | a->flags;
  if (strong && !(either & (TW_RECORD_PLAIN | TW_RECORD_CTA_SCOPE | TW_RECORD_LOCKSTEP))) return;
  uint32_t observed = 0;  // of the lanes: those that come after someone who has seen all strong writes further on
  for (uint32_t link = record->lanes; link; link = a->page->links[link].next) {
    const tw_record* one = &a->page->links[link].record;
    uint32_t open = one->what & TW_RECORD_WRITES ? lanes & ~observed : lanes;
    if (open) check_record(a, cell, one, open, strong);
    if (one->what & TW_RECORD_OBSERVES) observed |= lanes_after(a, one, lanes & ~observed);
  }
}

// -- remembering reads and strong accesses --

// An atomic comes after the strong writes it finds, so whoever comes after it comes after them.
static bool replaces(const tw_race_access* a, const tw_record* old) {
  if (a->kind != TW_RACE_ATOMIC || !(old->what & TW_RECORD_STRONG) || !(old->what & TW_RECORD_WRITES)) return false;
  return !(old->what & TW_RECORD_LOCKSTEP) && compatible(a, old, true, true);
}

// Lanes of `old` that the new access does not make superfluous. A lane may go when one of the new lanes comes after it
// and races with whatever it would have raced with.
static uint32_t still_needed(tw_race_access* a, const tw_record* old, uint32_t lanes) {
  uint32_t ordinal = old->who >> 5, flags = old->what & 0xff;
  if (before_barrier(a, ordinal, old->clock) && (a->one_cta || flags == a->flags)) return 0;
  if (replaces(a, old)) return 0;
  if (flags != a->flags) return old->lanes;
  bool same_warp = old->who == a->warp_who;
  // Which strong accesses go together depends on the CTA, for volatile ones on the warp.
  if (a->flags && (ordinal != a->cta->ordinal || (a->flags & TW_RECORD_LOCKSTEP && !same_warp))) return old->lanes;
  uint32_t needed = same_warp ? old->lanes & ~lanes : old->lanes;
  if (!same_warp && !a->cta->any_roots) return needed;
  for (uint32_t rest = needed; rest; rest &= rest - 1) {
    uint32_t other = tw_lowest(rest);
    for (uint32_t mine = lanes; mine; mine &= mine - 1) {
      int lane = (int)tw_lowest(mine);
      if (!tw_ordered(a->cta, a->warp, lane, ordinal, (old->who & 31) * 32 + other, old->clock)) continue;
      needed &= ~(1u << other);
      break;
    }
  }
  return needed;
}

static bool merges(const tw_race_access* a, const tw_record* old) {
  uint32_t what = (uint32_t)a->instr << 8 | a->flags;
  return a->kind != TW_RACE_ATOMIC && old->who == a->warp_who && old->clock == a->clock && old->what == what;
}

// The head of a list: in `what` how many records it holds, and the flags of all of them.
static uint32_t summary(uint32_t what) {
  return what & TW_RECORD_STRONG ? what & 0xf : TW_RECORD_PLAIN | (what & 0xf);
}

static bool begin_list(tw_race_access* a, tw_record* record) {
  uint32_t link = tw_link_new(a->races, a->page);
  if (!link) return false;
  a->page->links[link] = (tw_link){.record = *record};
  record->lanes = link;
  record->what = 1u << 8 | TW_RECORD_MANY | summary(record->what);
  return true;
}

// A full list: out goes what this access or a newer record of the same warp makes superfluous, then the oldest half.
static void thin_list(tw_race_access* a, tw_record* head, uint32_t lanes, uint32_t limit) {
  tw_link* links = a->page->links;
  uint32_t count = 0, flags = 0;
  for (uint32_t* from = &head->lanes; *from;) {
    tw_link* link = &links[*from];
    tw_record* record = &link->record;
    // An observation counts from when it was made: a later one of the same thread does not stand for it.
    bool observation = record->what & TW_RECORD_OBSERVES && head->what & TW_RECORD_WRITES;
    if (!observation) record->lanes = still_needed(a, record, lanes);
    for (uint32_t newer = head->lanes; !observation && newer != *from && record->lanes; newer = links[newer].next) {
      const tw_record* other = &links[newer].record;
      bool same = other->who == record->who && (other->what & 0xff) == (record->what & 0xff);
      if (same && other->clock >= record->clock) record->lanes &= ~other->lanes;
    }
    if (record->lanes && count < limit / 2) {
      count++;
      flags |= summary(record->what);
      from = &link->next;
      continue;
    }
    uint32_t gone = *from;
    *from = link->next;
    link->next = a->page->link_free;
    a->page->link_free = gone;
  }
  head->what = count << 8 | TW_RECORD_MANY | flags;
}

static void drop_replaced(tw_race_access* a, tw_record* head) {
  tw_link* links = a->page->links;
  for (uint32_t* from = &head->lanes; *from;) {
    tw_link* link = &links[*from];
    if (!replaces(a, &link->record)) {
      from = &link->next;
      continue;
    }
    uint32_t gone = *from;
    *from = link->next;
    link->next = a->page->link_free;
    a->page->link_free = gone;
    head->what -= 1u << 8;
  }
}

static void add_to_list(tw_race_access* a, tw_record* head, uint32_t lanes, const tw_record* fresh) {
  uint32_t limit = a->shared ? TW_MAX_RECORDS_SHARED : TW_MAX_RECORDS_GLOBAL;
  if (a->kind == TW_RACE_ATOMIC && head->what & TW_RECORD_WRITES) drop_replaced(a, head);
  if (head->what >> 8 >= limit) thin_list(a, head, lanes, limit);
  if (head->clock < a->clock) head->clock = a->clock;
  if (head->who >> 5 != a->warp_who >> 5) head->who = ~0u;  // of several CTAs
  // Whoever reads a cell twice mostly does so with few others in between. Strong accesses keep their order.
  uint32_t at = head->lanes;
  for (int i = a->flags ? 3 : 0; at && i < 4; i++, at = a->page->links[at].next) {
    tw_record* record = &a->page->links[at].record;
    if (merges(a, record)) {
      record->lanes |= lanes;
      return;
    }
  }
  uint32_t link = tw_link_new(a->races, a->page);
  if (!link) return;
  a->page->links[link] = (tw_link){.record = *fresh, .next = head->lanes};
  head->lanes = link;
  head->what = (head->what + (1u << 8)) | summary(fresh->what);
}

static __attribute__((noinline)) void remember(tw_race_access* a, tw_record* record, uint32_t lanes) {
  tw_record fresh = {.who = a->warp_who, .lanes = lanes, .clock = a->clock, .what = (uint32_t)a->instr << 8 | a->flags};
  if (record->clock && record->what & TW_RECORD_MANY) {
    if (a->one_cta && record->clock < a->cta->barrier_clock) {
      tw_links_drop(a->page, record);
    } else {
      add_to_list(a, record, lanes, &fresh);
      return;
    }
  }
  if (record->clock && merges(a, record)) {
    record->lanes |= lanes;
    return;
  }
  if (record->clock) {
    record->lanes = still_needed(a, record, lanes);
    if (record->lanes) {
      if (begin_list(a, record)) add_to_list(a, record, lanes, &fresh);
      return;
    }
  }
  *record = fresh;
}

// -- one cell --

static inline bool write_is_safe(const tw_race_access* a, const tw_write* write, uint32_t lanes) {
  if (!write->clock) return true;
  if (write->what & TW_WRITE_IN_FLIGHT) return false;
  return before_barrier(a, write->who >> 10, write->clock) ||
         (write->who - a->who < 32 && lanes == 1u << (write->who - a->who));
}

static inline void read_cell(tw_race_access* a, tw_cell* cell, uint32_t lanes) {
  tw_record* record = &cell->record;
  tw_record fresh = {.who = a->warp_who, .lanes = lanes, .clock = a->clock, .what = (uint32_t)a->instr << 8};
  if (!write_is_safe(a, &cell->write, lanes)) check_write(a, cell, lanes, false, 0);
  if (!record->clock) {
    *record = fresh;
  } else if (record->what & 0xff) {
    check_records(a, cell, lanes, false);
    remember(a, record, lanes);
  } else if (before_barrier(a, record->who >> 5, record->clock) ||
             (record->who == a->warp_who && !(record->lanes & ~lanes))) {
    *record = fresh;
  } else {
    remember(a, record, lanes);
  }
}

static inline void write_cell(tw_race_access* a, tw_cell* cell, uint32_t lane, uint32_t value) {
  tw_record* record = &cell->record;
  if (!write_is_safe(a, &cell->write, 1u << lane)) check_write(a, cell, 1u << lane, true, value);
  if (record->clock) {
    bool own = record->who == a->warp_who && record->lanes == 1u << lane && !(record->what & TW_RECORD_MANY);
    if (!own && !before_barrier(a, record->who >> 5, record->clock)) check_records(a, cell, 1u << lane, false);
    if (record->what & TW_RECORD_MANY) tw_links_drop(a->page, record);
    else record->clock = 0;
  }
  uint32_t what = (uint32_t)a->instr << 8 | a->flags;
  cell->write = (tw_write){.who = a->who + lane, .clock = a->clock, .what = what, .value = value};
}

static void strong_cell(tw_race_access* a, tw_cell* cell, uint32_t lanes) {
  if (!write_is_safe(a, &cell->write, lanes)) check_write(a, cell, lanes, false, 0);
  check_records(a, cell, lanes, true);
  remember(a, &cell->record, lanes);
}

static inline uint32_t value_of(const uint8_t* bytes, int shift) {
  uint64_t low, high;
  uint32_t word;
  uint16_t half;
  switch (shift) {
    case 0: return bytes[0];
    case 1: memcpy(&half, bytes, 2); return half;
    case 2: memcpy(&word, bytes, 4); return word;
    case 3: memcpy(&low, bytes, 8); break;
    default:
      memcpy(&low, bytes, 8);
      memcpy(&high, bytes + 8, 8);
      low ^= high * 0xff51afd7ed558ccdull;
  }
  low *= 0x9e3779b97f4a7c15ull;
  return (uint32_t)(low >> 32);
}

// -- a piece of an access: a power of two up to 16 bytes, aligned --

static inline void leave_page(tw_race_access* a) {
  if (a->page && !a->shared) tw_page_unlock(a->races, a->page);
  a->page = NULL;
}

static bool enter_page(tw_race_access* a, uint64_t id, int shift) {
  leave_page(a);
  tw_page* page = a->shared ? tw_page_shared(a->home, (uint32_t)id, shift) : tw_page_global(a->races, a->cta, id, shift);
  if (!page) return false;
  if (!a->shared) tw_page_lock(a->races, page);
  a->page = page;
  return true;
}

static inline bool at_page(tw_race_access* a, uint64_t address, int shift) {
  uint64_t id = address >> TW_PAGE_SHIFT;
  if ((!a->page || a->page->id != id) && !enter_page(a, id, shift)) return false;
  return a->page->shift <= shift || tw_page_refine(a->races, a->page, shift);
}

static void synchronise(tw_race_access* a, uint64_t address, int shift, uint32_t lane) {
  uint32_t first = (uint32_t)(address % TW_PAGE_BYTES) / 4, words = shift <= 2 ? 1 : 1u << (shift - 2);
  int kind = a->order & TW_ORDER_MASK;
  bool writes = a->kind != TW_RACE_READ;
  bool releases = kind == TW_ORDER_RELEASE || kind == TW_ORDER_ACQ_REL;
  tw_cta_races* cta = a->cta;
  if (!a->page->sync && !(writes && (releases || cta->any_fenced || cta->shared_release))) return;
  tw_sync* sync = tw_page_sync(a->races, a->page);
  for (uint32_t word = first; sync && word < first + words; word++) {
    if (a->kind != TW_RACE_WRITE) tw_observe(cta, a->warp, (int)lane, &sync[word], a->order);
    if (writes) tw_release(cta, a->warp, (int)lane, &sync[word], a->order, a->kind == TW_RACE_ATOMIC || shift < 2);
  }
}

static inline void touch(tw_race_access* a, uint64_t address, int shift, uint32_t lanes, const uint8_t* value) {
  if (!at_page(a, address, shift)) return;
  int fine = a->page->shift;
  tw_cell* cell = &a->page->cells[address % TW_PAGE_BYTES >> fine];
  tw_cell* end = cell + ((size_t)1 << (shift - fine));
  if (a->order != TW_ORDER_WEAK) {
    for (; cell < end; cell++) strong_cell(a, cell, lanes);
    bool orders = (a->order & TW_ORDER_MASK) < TW_ORDER_GUESS;
    for (uint32_t rest = orders ? lanes : 0; rest; rest &= rest - 1) synchronise(a, address, shift, tw_lowest(rest));
  } else if (a->kind == TW_RACE_READ) {
    for (; cell < end; cell++) read_cell(a, cell, lanes);
  } else {
    for (; cell < end; cell++, value += value ? (size_t)1 << fine : 0) {
      write_cell(a, cell, tw_lowest(lanes), value ? value_of(value, fine) : 0);
    }
  }
}

// Any size and alignment, in pieces.
static void touch_oddly(tw_race_access* a, uint64_t address, int size, uint32_t lanes, const uint8_t* value) {
  while (size > 0) {
    int shift = TW_MAX_GRANULE_SHIFT;
    while (1 << shift > size || address & ((1u << shift) - 1)) shift--;
    touch(a, address, shift, lanes, value);
    address += 1u << shift;
    if (value) value += 1u << shift;
    size -= 1 << shift;
  }
}

static bool start(tw_race_access* a, tw_races* races, tw_cta_races* cta, int warp, int kind, int order, int instr,
                  tw_race_report* out) {
  if (out) out->kind = TW_RACE_NONE;
  if (cta->ignored || warp < 0 || warp >= cta->warps) return false;
  if (kind == TW_RACE_ATOMIC && !(order & TW_ORDER_MASK)) order |= TW_ORDER_RELAXED;
  if (!(order & TW_ORDER_MASK)) order = TW_ORDER_WEAK;
  *a = (tw_race_access){.races = races, .cta = cta, .home = cta, .warp = warp, .kind = kind, .order = order, .out = out};
  a->instr = instr < 0 ? 0 : instr > TW_MAX_INSTR ? TW_MAX_INSTR : instr;
  a->clock = cta->warp_clock[warp];
  a->who = cta->ordinal << 10 | (uint32_t)warp << 5;
  a->warp_who = cta->ordinal << 5 | (uint32_t)warp;
  if (order != TW_ORDER_WEAK) {
    bool observes = kind != TW_RACE_WRITE && (order & TW_ORDER_MASK) != TW_ORDER_GUESS;
    a->flags = TW_RECORD_STRONG | (kind == TW_RACE_READ ? 0 : TW_RECORD_WRITES) |
               (observes ? TW_RECORD_OBSERVES : 0) |
               (order & TW_SCOPE_CTA ? TW_RECORD_CTA_SCOPE : 0);
  }
  return true;
}

static void finish(tw_race_access* a) {
  leave_page(a);
  int kind = a->order & TW_ORDER_MASK;
  if (kind == TW_ORDER_RELEASE || kind == TW_ORDER_ACQ_REL) tw_tick(a->cta, a->warp);
}

// -- the lanes of an access --

static int shift_of(int size) {
  return size > 0 && size <= 16 && !(size & (size - 1)) ? __builtin_ctz((unsigned)size) : -1;
}

static bool consecutive(uint32_t mask, const uint64_t address[32], int size) {
  uint64_t wrong = 0, step = (uint64_t)size;
  for (uint64_t lane = 0; lane < 32; lane++) wrong |= address[lane] ^ (address[0] + lane * step);
  bool one_page = address[0] >> TW_PAGE_SHIFT == address[31] >> TW_PAGE_SHIFT;
  return mask == ~0u && !wrong && !(address[0] & (step - 1)) && one_page;
}

// One unless nothing in the cell can be in conflict with lane i, which a single comparison with the last barrier of the
// whole CTA, or the lane's own earlier access, must show. `loud` are flags of records that need a closer look.
static inline uint32_t is_loud(const tw_race_access* a, const tw_cell* cell, uint32_t i, uint32_t barrier,
                               uint32_t loud) {
  const tw_write* w = &cell->write;
  const tw_record* r = &cell->record;
  uint32_t other_cta = a->one_cta ? 0 : ~0u;
  uint32_t write_elsewhere = (w->who ^ a->who) >> 10 & other_cta;
  uint32_t record_elsewhere = (r->who ^ a->warp_who) >> 5 & other_cta;
  uint32_t write_late = (write_elsewhere != 0) | (w->clock >= barrier);
  uint32_t record_late = (record_elsewhere != 0) | (r->clock >= barrier);
  write_late &= (uint32_t)(w->clock != 0) & (uint32_t)(w->who != a->who + i);
  record_late &= (uint32_t)((r->who != a->warp_who) | (r->lanes != 1u << i));
  record_late |= (r->what & loud) != 0;
  return write_late | (w->what & TW_WRITE_IN_FLIGHT) | (record_late & (uint32_t)(r->clock != 0));
}

// The whole warp at 32 cells in a row that are all quiet: the common case, with no branch per cell. False: not that
// case, and nothing was done.
static bool touch_row(tw_race_access* a, uint64_t address, int shift, const uint8_t* values, int stride) {
  if (a->order != TW_ORDER_WEAK || !at_page(a, address, shift) || a->page->shift != shift) return false;
  const tw_race_access by = *a;
  tw_cell* cells = &a->page->cells[address % TW_PAGE_BYTES >> shift];
  uint32_t barrier = a->cta->barrier_clock, loud = 0, what = (uint32_t)by.instr << 8;
  uint32_t flags = by.kind == TW_RACE_READ ? 0xff : TW_RECORD_MANY;
  for (uint32_t i = 0; i < 32; i++) loud |= is_loud(&by, &cells[i], i, barrier, flags);
  if (loud) return false;
  for (uint32_t i = 0; i < 32 && by.kind == TW_RACE_READ; i++) {
    cells[i].record = (tw_record){.who = by.warp_who, .lanes = 1u << i, .clock = by.clock, .what = what};
  }
  for (uint32_t i = 0; i < 32 && by.kind != TW_RACE_READ; i++) {
    uint32_t value = values ? value_of(values + (ptrdiff_t)i * stride, shift) : 0;
    cells[i].write = (tw_write){.who = by.who + i, .clock = by.clock, .what = what | by.flags, .value = value};
    cells[i].record.clock = 0;
  }
  return true;
}

static int touch_lanes(tw_race_access* a, uint32_t mask, const uint64_t address[32], int size, const void* values,
                       int stride) {
  int shift = shift_of(size);
  if (shift >= 0 && consecutive(mask, address, size) && touch_row(a, address[0], shift, values, stride)) mask = 0;
  while (mask) {
    uint32_t lane = tw_lowest(mask), lanes = 1u << lane;
    uint64_t at = address[lane];
    mask &= mask - 1;
    if (a->kind == TW_RACE_READ) {
      for (; mask && address[tw_lowest(mask)] == at; mask &= mask - 1) lanes |= mask & -mask;
    }
    const uint8_t* value = values ? (const uint8_t*)values + (ptrdiff_t)lane * stride : NULL;
    if (shift >= 0 && !(at & ((uint32_t)size - 1))) touch(a, at, shift, lanes, value);
    else touch_oddly(a, at, size, lanes, value);
  }
  finish(a);
  return a->conflicts;
}

#define FOR_EACH_LANE(lane, mask) \
  for (uint32_t rest_ = (mask), lane; rest_ && (lane = tw_lowest(rest_), 1); rest_ &= rest_ - 1)

static void in_shared_memory(tw_race_access* a, tw_cta_races* home) {
  a->shared = true;
  a->home = home;
  a->one_cta = !home->open;
}

static int touch_shared(tw_race_access* a, uint32_t mask, const uint32_t addr[32], int size, const void* values,
                        int stride) {
  uint64_t address[32];
  uint32_t inside = 0;
  if (size < 1 || size > 64) return 0;
  for (uint32_t lane = 0; lane < 32; lane++) {
    address[lane] = addr[lane];
    inside |= (uint32_t)(address[lane] + (uint32_t)size <= a->cta->shared_bytes) << lane;
  }
  in_shared_memory(a, a->home);
  return touch_lanes(a, mask & inside, address, size, values, stride);
}

// -- public: accesses --

int tw_race_shared(tw_cta_races* cta, int warp, uint32_t mask, const uint32_t addr[32], int size, int kind, int order,
                   const void* values, int value_stride, int instr, tw_race_report* out) {
  return tw_race_peer(cta, cta, warp, mask, addr, size, kind, order, values, value_stride, instr, out);
}

int tw_race_peer(tw_cta_races* home, tw_cta_races* cta, int warp, uint32_t mask, const uint32_t addr[32], int size,
                 int kind, int order, const void* values, int value_stride, int instr, tw_race_report* out) {
  tw_race_access a;
  if (!start(&a, cta->launch, cta, warp, kind, order, instr, out) || home->ignored) return 0;
  a.home = home;
  if ((a.order & TW_ORDER_MASK) == TW_ORDER_VOLATILE) a.flags |= TW_RECORD_LOCKSTEP;
  if (a.order == TW_ORDER_WEAK && kind == TW_RACE_WRITE && !values) a.flags = TW_WRITE_VALUE_NONE;
  return touch_shared(&a, mask, addr, size, values, value_stride);
}

int tw_race_global(tw_races* races, tw_cta_races* cta, int warp, uint32_t mask, const uint64_t addr[32], int size,
                   int kind, int order, const void* values, int value_stride, int instr, tw_race_report* out) {
  tw_race_access a;
  if (!start(&a, races, cta, warp, kind, order, instr, out) || size < 1 || size > 64) return 0;
  if (a.order == TW_ORDER_WEAK && kind == TW_RACE_WRITE && !values) a.flags = TW_WRITE_VALUE_NONE;
  FOR_EACH_LANE(lane, mask) {
    if (addr[lane] > UINT64_MAX - 64) mask &= ~(1u << lane);
  }
  return touch_lanes(&a, mask, addr, size, values, value_stride);
}

static void observe(tw_race_access* a, uint64_t address, int size, uint32_t lane) {
  uint64_t id = address >> TW_PAGE_SHIFT;
  int shift = shift_of(size);
  if (shift < 0 || address & ((uint32_t)size - 1)) return;
  if ((!a->page || a->page->id != id) && !enter_page(a, id, shift)) return;
  synchronise(a, address, shift, lane);
}

void tw_race_observe_shared(tw_cta_races* cta, int warp, uint32_t mask, const uint32_t addr[32], int size, int order) {
  tw_race_observe_peer(cta, cta, warp, mask, addr, size, order);
}

void tw_race_observe_peer(tw_cta_races* home, tw_cta_races* cta, int warp, uint32_t mask, const uint32_t addr[32],
                          int size, int order) {
  tw_race_access a;
  if (!start(&a, cta->launch, cta, warp, TW_RACE_READ, order, 0, NULL) || home->ignored) return;
  in_shared_memory(&a, home);
  FOR_EACH_LANE(lane, mask) {
    if (addr[lane] < cta->shared_bytes) observe(&a, addr[lane], size, lane);
  }
}

void tw_race_observe_global(tw_races* races, tw_cta_races* cta, int warp, uint32_t mask, const uint64_t addr[32],
                            int size, int order) {
  tw_race_access a;
  if (!start(&a, races, cta, warp, TW_RACE_READ, order, 0, NULL)) return;
  FOR_EACH_LANE(lane, mask) observe(&a, addr[lane], size, lane);
  leave_page(&a);
}

// -- public: cp.async --

int tw_race_async_issue(tw_cta_races* cta, int warp, uint32_t mask, const uint32_t addr[32], int size,
                        const void* values, int value_stride, int instr, tw_race_report* out) {
  tw_race_access a;
  if (!start(&a, cta->launch, cta, warp, TW_RACE_WRITE, TW_ORDER_WEAK, instr, out)) return 0;
  a.is_async = true;
  a.flags = TW_WRITE_IN_FLIGHT | TW_WRITE_ASYNC | (values ? 0 : TW_WRITE_VALUE_NONE);
  FOR_EACH_LANE(lane, mask) {
    uint32_t thread = (uint32_t)warp * 32 + lane;
    if (cta->in_flight[thread]++) continue;
    cta->async_instr[thread] = a.instr;
    cta->async_address[thread] = addr[lane];
  }
  return touch_shared(&a, mask, addr, size, values, value_stride);
}

// Calls `visit` for every cell of a range, which may be split for it.
typedef void cell_visit(tw_race_access* a, tw_cell* cell, uint32_t lane);
static void each_cell(tw_race_access* a, uint64_t address, uint64_t bytes, uint32_t lane, cell_visit* visit) {
  for (uint64_t end = address + bytes; address < end;) {
    int shift = TW_MAX_GRANULE_SHIFT;
    while (1ull << shift > end - address || address & ((1u << shift) - 1)) shift--;
    if (at_page(a, address, shift)) {
      tw_cell* cell = &a->page->cells[address % TW_PAGE_BYTES >> a->page->shift];
      tw_cell* last = cell + ((size_t)1 << (shift - a->page->shift));
      for (; cell < last; cell++) visit(a, cell, lane);
    }
    address += 1u << shift;
  }
}

static void arrived(tw_race_access* a, tw_cell* cell, uint32_t lane) {
  tw_write* write = &cell->write;
  if (write->who != a->who + lane || !(write->what & TW_WRITE_IN_FLIGHT)) return;
  write->what &= ~(uint32_t)TW_WRITE_IN_FLIGHT;
  write->clock = a->clock;
}

void tw_race_async_complete(tw_cta_races* cta, int warp, uint32_t mask, const uint32_t addr[32], int size) {
  tw_race_access a;
  if (!start(&a, cta->launch, cta, warp, TW_RACE_WRITE, TW_ORDER_WEAK, 0, NULL)) return;
  in_shared_memory(&a, cta);
  if (size < 1 || size > 64 || (uint32_t)size > cta->shared_bytes) return;
  FOR_EACH_LANE(lane, mask) {
    uint32_t thread = (uint32_t)warp * 32 + lane, address = addr[lane];
    if (cta->in_flight[thread]) cta->in_flight[thread]--;
    if (address > cta->shared_bytes - (uint32_t)size) continue;
    each_cell(&a, address, (uint64_t)size, lane, arrived);
  }
}

// -- public: the asynchronous proxy --

static bool inside_shared(const tw_cta_races* cta, uint32_t offset, uint32_t bytes) {
  return offset <= cta->shared_bytes && bytes <= cta->shared_bytes - offset;
}

// A fence of the writer's warp or of the reader's, later than the write, is taken for one on the way between them.
static void check_fenced(tw_race_access* a, tw_cell* cell, uint32_t lane) {
  const tw_write* write = &cell->write;
  if (write->clock < a->cta->start_clock || write->what & TW_WRITE_ASYNC) return;
  if (write->who >> 10 != a->cta->ordinal) return;
  uint32_t thread = write->who & 1023;
  if (write->clock < a->cta->proxy_clock[thread / 32] || write->clock < a->cta->proxy_clock[a->warp]) return;
  conflict(a, TW_RACE_NOT_FENCED, cell, lane,
           (tw_other){.ordinal = a->cta->ordinal, .thread = thread, .instr = write->what >> 8});
}

int tw_race_bulk_read(tw_cta_races* cta, int warp, int lane, uint32_t offset, uint32_t bytes, int instr,
                      tw_race_report* out) {
  tw_race_access a;
  if (!start(&a, cta->launch, cta, warp, TW_RACE_READ, TW_ORDER_WEAK, instr, out)) return 0;
  if (!inside_shared(cta, offset, bytes)) return 0;
  in_shared_memory(&a, cta);
  a.is_async = true;
  touch_oddly(&a, offset, (int)bytes, 1u << lane, NULL);
  if (!a.conflicts) each_cell(&a, offset, bytes, (uint32_t)lane, check_fenced);
  return a.conflicts;
}

int tw_race_tile_read(tw_cta_races* cta, int warp, uint32_t mask, const uint32_t addr[32], int instr,
                      tw_race_report* out) {
  tw_race_access a;
  if (!start(&a, cta->launch, cta, warp, TW_RACE_READ, TW_ORDER_WEAK, instr, out)) return 0;
  a.is_async = true;
  if (touch_shared(&a, mask, addr, TW_TILE_CHUNK, NULL, 0)) return a.conflicts;
  FOR_EACH_LANE(lane, mask) {
    if (inside_shared(cta, addr[lane], TW_TILE_CHUNK)) each_cell(&a, addr[lane], TW_TILE_CHUNK, lane, check_fenced);
  }
  return a.conflicts;
}

int tw_race_bulk_global(tw_races* races, tw_cta_races* cta, int warp, int lane, uint64_t address, uint64_t bytes,
                        int kind, int instr, tw_race_report* out) {
  tw_race_access a;
  if (!start(&a, races, cta, warp, kind, TW_ORDER_WEAK, instr, out)) return 0;
  a.is_async = true;
  touch_oddly(&a, address, (int)bytes, 1u << lane, NULL);
  finish(&a);
  return a.conflicts;
}

int tw_race_bulk_issue(tw_cta_races* cta, tw_cta_races* home, int warp, int lane, uint32_t offset, uint32_t bytes,
                       int instr, tw_race_report* out) {
  tw_race_access a;
  if (!start(&a, cta->launch, cta, warp, TW_RACE_WRITE, TW_ORDER_WEAK, instr, out)) return 0;
  if (!inside_shared(home, offset, bytes)) return 0;
  in_shared_memory(&a, home);
  a.is_async = true;
  a.flags = TW_WRITE_IN_FLIGHT | TW_WRITE_ASYNC | TW_WRITE_VALUE_NONE;
  touch_oddly(&a, offset, (int)bytes, 1u << lane, NULL);
  return a.conflicts;
}

static void has_arrived(tw_race_access* a, tw_cell* cell, uint32_t lane) {
  tw_write* write = &cell->write;
  if (!(write->what & TW_WRITE_IN_FLIGHT) || write->what >> 8 != (uint32_t)a->instr) return;
  write->what &= ~(uint32_t)TW_WRITE_IN_FLIGHT;
  bool foreign = write->who >> 10 != a->cta->ordinal;
  // Without a thread to stand for the proxy a copy that another CTA sent is forgotten: its stamp would be of no clock.
  write->clock = foreign && !tw_has_proxy_thread(a->cta) ? 0 : a->clock;
  if (tw_has_proxy_thread(a->cta)) write->who = a->cta->ordinal << 10 | lane;
}

const tw_past* tw_race_bulk_arrived(tw_cta_races* home, uint32_t offset, uint32_t bytes, int instr,
                                    const tw_past* so_far) {
  tw_race_access a;
  if (!start(&a, home->launch, home, 0, TW_RACE_WRITE, TW_ORDER_WEAK, instr, NULL)) return so_far;
  if (!inside_shared(home, offset, bytes)) return so_far;
  in_shared_memory(&a, home);
  const tw_past* past = tw_proxy_past(home, so_far, &a.clock);
  each_cell(&a, offset, bytes, TW_PROXY_THREAD, has_arrived);
  return past;
}

int tw_race_bulk_store(tw_races* races, tw_cta_races* cta, int warp, int lane, uint64_t address, uint64_t bytes,
                       int instr, tw_race_report* out) {
  tw_race_access a;
  if (!start(&a, races, cta, warp, TW_RACE_WRITE, TW_ORDER_WEAK, instr, out)) return 0;
  a.is_async = true;
  a.flags = TW_WRITE_IN_FLIGHT | TW_WRITE_ASYNC | TW_WRITE_VALUE_NONE;
  touch_oddly(&a, address, (int)bytes, 1u << lane, NULL);
  finish(&a);
  return a.conflicts;
}

void tw_race_bulk_stored(tw_races* races, tw_cta_races* cta, int warp, int lane, uint64_t address, uint64_t bytes) {
  tw_race_access a;
  if (!start(&a, races, cta, warp, TW_RACE_WRITE, TW_ORDER_WEAK, 0, NULL)) return;
  each_cell(&a, address, bytes, (uint32_t)lane, arrived);
  leave_page(&a);
}

int tw_race_exit(tw_cta_races* cta, int warp, uint32_t mask, tw_race_report* out) {
  if (out) out->kind = TW_RACE_NONE;
  if (cta->ignored || warp < 0 || warp >= cta->warps) return 0;
  mask &= cta->live[warp];
  cta->live[warp] &= ~mask;
  int left = 0;
  FOR_EACH_LANE(lane, mask) {
    uint32_t thread = (uint32_t)warp * 32 + lane;
    if (!cta->in_flight[thread]) continue;
    int instr = cta->async_instr[thread];
    left++;
    if (!out || out->kind != TW_RACE_NONE) continue;
    if (!first_time(cta->launch, TW_RACE_ASYNC_NOT_CONSUMED, true, instr, instr)) continue;
    *out = (tw_race_report){.kind = TW_RACE_ASYNC_NOT_CONSUMED, .is_shared = 1, .address = cta->async_address[thread],
                            .cta = cta->index, .thread = thread, .instr = instr, .other_cta = cta->index,
                            .other_thread = thread, .other_instr = instr, .is_async = 1, .other_is_async = 1};
  }
  return left;
}

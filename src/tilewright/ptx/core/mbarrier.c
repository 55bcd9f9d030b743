// mbarriers: phases that end when the announced arrivals and bytes have come, and the threads that wait for it.
#include "asynchronous.h"

#include <stdlib.h>

#include "lanes.h"

enum { EXPIRATIONS = 64 };
#define ALL_WARPS UINT32_MAX

static void report(tw_warp* w, const tw_instr* i, int lane, uint64_t offset, int detail, int64_t number, int other_pc) {
  tw_finding f = tw_finding_of(w, TW_FIND_MBARRIER, tw_index_of(w, i), lane);
  f.address = TW_SHARED_WINDOW + offset, f.detail = detail, f.size = (int32_t)number;
  f.other_instruction = other_pc, f.other_block = w->cta->linear, f.other_thread = f.thread;
  tw_report_full(w->cta->engine, &f);
}

// What the eight bytes hold: also the state that an arrival returns.
static uint64_t state_of(const tw_mbarrier* b) {
  return (uint64_t)(b->phase & 1) << 63 | (uint64_t)(b->bytes & 0x1fffff) << 40 | (uint64_t)b->pending << 20 | b->expected;
}

static void keep(tw_cta* home, const tw_mbarrier* b) {
  uint64_t state = state_of(b);
  memcpy(home->shared + b->offset, &state, 8);
  memset(home->shared_state + b->offset, TW_STATE_WRITTEN, 8);
}

static void tell(tw_warp* w, const tw_instr* i, uint32_t lanes, const tw_cta* home, uint32_t offset, int how) {
  if (!home->races) return;
  tw_race_report race;
  uint32_t address[TW_LANES];
  for (int l = 0; l < TW_LANES; l++) address[l] = offset;
  int order = how == TW_RACE_WRITE ? TW_ORDER_WEAK : TW_ORDER_OBJECT;
  int found = tw_race_peer(home->races, w->cta->races, w->index, lanes, address, 8, how, order, NULL, 0, tw_index_of(w, i), &race);
  if (found) tw_report_race(w, TW_FIND_RACE_SHARED, tw_index_of(w, i), 8, &race, found);
}

// -- finding them --

tw_mbarrier* tw_mbarrier_at(tw_warp* w, const tw_instr* i, int lane, uint32_t address, tw_cta** home) {
  uint32_t offset;
  *home = tw_shared_home(w, i, lane, address, 8, 8, &offset);
  tw_bulk* bulk = *home ? tw_bulk_of(*home) : NULL;
  if (!bulk) return NULL;
  uint16_t number = bulk->barrier_at[offset / 8];
  tw_mbarrier* b = number ? &bulk->barriers[number - 1] : NULL;
  if (!b || !b->live) {
    report(w, i, lane, offset, TW_MBARRIER_NOT_INITIALISED, 0, -1);
    return NULL;
  }
  uint64_t held, state = state_of(b);
  memcpy(&held, (*home)->shared + offset, 8);
  if (held != state) {
    report(w, i, lane, offset, TW_MBARRIER_OVERWRITTEN, 0, b->init_pc);
    keep(*home, b);
  }
  return b;
}

// The one for which a bulk copy counts, in another proxy than its initialisation.
tw_mbarrier* tw_mbarrier_counting(tw_warp* w, const tw_instr* i, int lane, uint32_t address, tw_cta** home) {
  tw_mbarrier* b = tw_mbarrier_at(w, i, lane, address, home);
  if (!b || b->shown == ALL_WARPS || (*home == w->cta && b->shown >> w->index & 1)) return b;
  report(w, i, lane, b->offset, TW_MBARRIER_NOT_SHOWN, 0, b->init_pc);
  b->shown = ALL_WARPS;
  (*home)->bulk->unshown--;
  return b;
}

// A fence shows what its own warp has initialised. One to the asynchronous proxy also serves for what the same warp
// copies later (`to_own`), whoever has initialised the barrier.
void tw_mbarrier_show(tw_warp* w, bool to_own) {
  tw_bulk* bulk = w->cta->bulk;
  for (int32_t k = 0; bulk && bulk->unshown && k < bulk->barrier_count; k++) {
    tw_mbarrier* b = &bulk->barriers[k];
    if (b->shown == ALL_WARPS) continue;
    if (b->init_warp == w->index) b->shown = ALL_WARPS, bulk->unshown--;
    else if (to_own) b->shown |= 1u << w->index;
  }
}

static tw_mbarrier* new_mbarrier(tw_cta* cta, uint32_t offset) {
  tw_bulk* bulk = tw_bulk_of(cta);
  if (!bulk) return NULL;
  uint16_t* number = &bulk->barrier_at[offset / 8];
  if (!*number) {
    if (bulk->barrier_count == bulk->barrier_capacity) {
      int32_t capacity = bulk->barrier_capacity ? 2 * bulk->barrier_capacity : 16;
      tw_mbarrier* grown = realloc(bulk->barriers, (size_t)capacity * sizeof *grown);
      if (!grown) return NULL;
      bulk->barriers = grown, bulk->barrier_capacity = capacity;
    }
    bulk->barriers[bulk->barrier_count] = (tw_mbarrier){0};
    *number = (uint16_t)++bulk->barrier_count;
  }
  return &bulk->barriers[*number - 1];
}

int tw_mbarrier_init(tw_warp* w, const tw_instr* i, uint32_t exec, const uint32_t* address, const uint32_t* count) {
  uint32_t first = exec ? (uint32_t)__builtin_ctz(exec) : 0;
  TW_EACH(exec) {
    uint32_t offset;
    if (l != first && address[l] == address[first] && count[l] == count[first]) continue;  // a whole warp does it: once
    tw_cta* home = tw_shared_home(w, i, (int)l, address[l], 8, 8, &offset);
    if (!home) continue;
    if (!count[l] || count[l] > TW_MOST_ARRIVALS) report(w, i, (int)l, offset, TW_MBARRIER_COUNT, count[l], -1);
    tell(w, i, 1u << l, home, offset, TW_RACE_WRITE);
    tw_mbarrier* b = new_mbarrier(home, offset);
    if (!b) continue;
    bool own = home == w->cta;
    home->bulk->unshown += own - (b->live && b->shown != ALL_WARPS);
    *b = (tw_mbarrier){.offset = offset, .live = true, .expected = count[l], .pending = count[l],
                       .init_pc = tw_index_of(w, i), .arrive_pc = -1, .expect_pc = -1, .init_warp = w->index,
                       .shown = own ? 0 : ALL_WARPS};
    keep(home, b);
  }
  return TW_NEXT;
}

int tw_mbarrier_invalidate(tw_warp* w, const tw_instr* i, uint32_t exec, const uint32_t* address) {
  TW_EACH(exec) {
    tw_cta* home;
    tw_mbarrier* b = tw_mbarrier_at(w, i, (int)l, address[l], &home);
    if (!b) continue;
    tell(w, i, 1u << l, home, b->offset, TW_RACE_WRITE);
    home->bulk->unshown -= b->shown != ALL_WARPS;
    b->live = false, b->shown = ALL_WARPS;
  }
  return TW_NEXT;
}

// -- phases --

static void wake(tw_cta* home, tw_mbarrier* b) {
  uint32_t number = home->bulk->barrier_at[b->offset / 8];
  if (!b->waiting) return;
  b->waiting = false;
  for (int k = 0; k < home->warp_count; k++) {
    tw_warp* w = &home->warps[k];
    for (int32_t c = 0; c < w->context_count; c++)
      if (w->contexts[c].state == TW_AT_MBARRIER && w->contexts[c].barrier == number) w->contexts[c].state = TW_READY;
  }
  home->progressed = true;
}

// Copies that were sent in a phase which has ended without their bytes: its expect_tx names too few.
static void look_for_late(tw_cta* home, tw_mbarrier* b) {
  tw_bulk* bulk = home->bulk;
  for (int32_t k = 0; k < bulk->arrival_count; k++) {
    tw_arrival* a = &bulk->arrivals[k];
    if (a->barrier != b->offset || !a->data || a->phase >= b->phase) continue;
    tw_finding f = {.kind = TW_FIND_MBARRIER, .instruction = a->instruction, .block = a->block, .thread = a->thread,
                    .count = 1, .address = TW_SHARED_WINDOW + b->offset, .size = (int32_t)a->bytes,
                    .other_instruction = b->expect_pc, .other_block = a->block, .other_thread = a->thread,
                    .detail = TW_MBARRIER_TOO_EARLY};
    tw_report_full(home->engine, &f);
    a->phase = b->phase;
  }
}

static void end_phase(tw_cta* home, tw_mbarrier* b) {
  b->phase++;
  b->pending = b->expected;
  if (home->races) b->completed = tw_race_join(home->races, b->arriving, b->completed);
  b->arriving = NULL;
  look_for_late(home, b);
  home->bulk->expired = 0;
  wake(home, b);
}

static void end_if_complete(tw_cta* home, tw_mbarrier* b) {
  if (!b->pending && !b->bytes) end_phase(home, b);
  else if (!b->pending) wake(home, b);  // to see whether copies under way end it
  keep(home, b);
}

void tw_mbarrier_nudge(tw_cta* home, tw_mbarrier* b) {
  if (!b->pending) wake(home, b);
}

void tw_mbarrier_add_bytes(tw_warp* w, const tw_instr* i, int lane, tw_cta* home, tw_mbarrier* b, int64_t bytes) {
  int64_t sum = b->bytes + bytes;
  if (sum > TW_MOST_BYTES || sum < -TW_MOST_BYTES) report(w, i, lane, b->offset, TW_MBARRIER_BYTES, sum, -1);
  else b->bytes = (int32_t)sum;
  end_if_complete(home, b);
}

static void arrive_once(tw_cta* home, tw_mbarrier* b, uint32_t count, bool drops) {
  b->pending -= count;
  if (drops) b->expected -= count;
  end_if_complete(home, b);
}

// The cp.async of threads that an mbarrier is to count: they arrive, and so do the threads.
static void finish_copies(tw_cta* home, tw_mbarrier* b) {
  tw_bulk* bulk = home->bulk;
  for (int32_t k = 0; k < bulk->arrival_count; k++) {
    tw_arrival a = bulk->arrivals[k];
    if (a.data || a.barrier != b->offset) continue;
    tw_bulk_forget(bulk, k--);
    tw_warp* w = &home->warps[a.thread / TW_LANES];
    uint32_t lane = 1u << a.thread % TW_LANES;
    tw_async_complete(w, lane, UINT32_MAX);
    if (home->races) b->arriving = tw_race_publish(home->races, w->index, lane, b->arriving);
    if (b->pending) arrive_once(home, b, 1, false);
  }
}

// Lets copies arrive, in the order in which they were sent, if that ends the phase.
static void settle(tw_cta* home, tw_mbarrier* b) {
  tw_bulk* bulk = home->bulk;
  finish_copies(home, b);
  if (b->pending || !b->bytes) return;
  int64_t missing = b->bytes;
  int32_t enough = -1;
  for (int32_t k = 0; k < bulk->arrival_count && enough < 0; k++) {
    if (bulk->arrivals[k].barrier != b->offset) continue;
    missing -= bulk->arrivals[k].bytes;
    if (!missing) enough = k;
  }
  for (int32_t k = 0; k <= enough; k++) {
    if (bulk->arrivals[k].barrier != b->offset) continue;
    b->bytes -= (int32_t)bulk->arrivals[k].bytes;
    tw_bulk_deliver(home, k--, b);
    enough--;
  }
  if (!b->bytes) end_phase(home, b);  // else more came than was announced
  keep(home, b);
}

// -- arriving --

int tw_mbarrier_arrive(tw_warp* w, const tw_instr* i, uint32_t exec, const uint32_t* address, const uint32_t* count,
                       const uint32_t* bytes, uint64_t* states) {
  uint32_t left = exec;
  while (left) {  // one mbarrier at a time, in the order of its first lane
    int first = __builtin_ctz(left);
    uint32_t same = 0;
    TW_EACH(left) same |= (uint32_t)(address[l] == address[first]) << l;
    left &= ~same;
    tw_cta* home;
    tw_mbarrier* b = tw_mbarrier_at(w, i, first, address[first], &home);
    if (!b) continue;
    tell(w, i, same, home, b->offset, TW_RACE_ATOMIC);
    settle(home, b);
    if (w->cta->races && !(i->flags & TW_MBARRIER_RELAXED))
      b->arriving = tw_race_publish(w->cta->races, w->index, same, b->arriving);
    TW_EACH(same) {
      uint32_t number = count ? count[l] : 1;
      if (states) states[l] = state_of(b);
      if (bytes) b->expect_pc = tw_index_of(w, i), tw_mbarrier_add_bytes(w, i, (int)l, home, b, bytes[l]);
      b->arrive_pc = tw_index_of(w, i);
      if (number > b->pending) {
        report(w, i, (int)l, b->offset, TW_MBARRIER_TOO_MANY, number, b->init_pc);
        continue;
      }
      if (i->flags & TW_MBARRIER_NO_COMPLETE && number == b->pending)
        report(w, i, (int)l, b->offset, TW_MBARRIER_COMPLETES, number, b->init_pc);
      arrive_once(home, b, number, i->flags & TW_MBARRIER_DROPS);
    }
  }
  w->cta->wrote = true;
  return TW_NEXT;
}

int tw_mbarrier_bytes(tw_warp* w, const tw_instr* i, uint32_t exec, const uint32_t* address, const uint32_t* bytes) {
  bool completes = i->flags & 1;
  TW_EACH(exec) {
    tw_cta* home;
    tw_mbarrier* b = tw_mbarrier_at(w, i, (int)l, address[l], &home);
    if (!b) continue;
    tell(w, i, 1u << l, home, b->offset, TW_RACE_ATOMIC);
    settle(home, b);
    if (!completes) b->expect_pc = tw_index_of(w, i);
    tw_mbarrier_add_bytes(w, i, (int)l, home, b, completes ? -(int64_t)bytes[l] : bytes[l]);
  }
  return TW_NEXT;
}

// The thread arrives when the cp.async it has issued so far have; flags 1: the arrival is one of those announced.
int tw_mbarrier_after_copies(tw_warp* w, const tw_instr* i, uint32_t exec, const uint32_t* address) {
  TW_EACH(exec) {
    tw_cta* home;
    tw_mbarrier* b = tw_mbarrier_at(w, i, (int)l, address[l], &home);
    if (!b) continue;
    tell(w, i, 1u << l, home, b->offset, TW_RACE_ATOMIC);
    if (!(i->flags & 1)) b->pending++;
    keep(home, b);
    tw_bulk* bulk = home->bulk;
    if (!tw_bulk_room(bulk)) return TW_STOP;
    bulk->arrivals[bulk->arrival_count++] =
        (tw_arrival){.barrier = b->offset, .instruction = tw_index_of(w, i), .block = w->cta->linear,
                     .thread = w->index * TW_LANES + (int)l};
    wake(home, b);
  }
  return TW_NEXT;
}

// -- waiting --

// The lanes of `same` whose phase has ended; they know what those did who arrived in it.
static uint32_t ended(tw_warp* w, const tw_instr* i, uint32_t same, tw_cta* home, tw_mbarrier* b, const void* which) {
  uint32_t done = 0;
  TW_EACH(same) {
    uint64_t parity = i->flags & TW_MBARRIER_PARITY ? ((const uint32_t*)which)[l] & 1 : ((const uint64_t*)which)[l] >> 63;
    if ((b->phase & 1) != parity) done |= 1u << l;
  }
  if (done && home->races && !(i->flags & TW_MBARRIER_RELAXED)) tw_race_learn(home->races, w->index, done, b->completed);
  return done;
}

int tw_mbarrier_wait(tw_warp* w, const tw_instr* i, uint32_t exec, const uint32_t* address, const void* which) {
  uint32_t done = 0, left = exec, number = 0;
  tw_cta* cta = w->cta;
  while (left) {
    int first = __builtin_ctz(left);
    uint32_t same = 0;
    TW_EACH(left) same |= (uint32_t)(address[l] == address[first]) << l;
    left &= ~same;
    tw_cta* home;
    tw_mbarrier* b = tw_mbarrier_at(w, i, first, address[first], &home);
    if (!b) {
      done |= same;  // reported; whoever waits in a loop is to get on
      continue;
    }
    tell(w, i, same, home, b->offset, TW_RACE_READ);
    settle(home, b);
    number = home->bulk->barrier_at[b->offset / 8];
    done |= ended(w, i, same, home, b, which);
  }
  bool polls = cta->engine->launch->seeded && !(tw_random(&cta->worker->random) & 7);
  if (!done && exec == w->mask && !polls) {
    tw_set_aside(w, TW_AT_MBARRIER, tw_index_of(w, i), false);
    w->contexts[w->context_count - 1].barrier = (uint16_t)number;
    cta->bulk->barriers[number - 1].waiting = true;
    return TW_SWITCH;
  }
  if (!done) w->quantum -= 256, w->spinning = true;
  tw_set_predicate(w, i->o[0], done, exec);
  return TW_NEXT;
}

// Nothing else can run: threads that wait at an mbarrier are told "not yet", as the hardware tells them after a while.
// False: none waits, or all have been told so often that it will never be otherwise.
bool tw_mbarrier_expire(tw_cta* cta) {
  bool any = false;
  if (!cta->bulk || cta->bulk->expired >= EXPIRATIONS) return false;
  for (int k = 0; k < cta->warp_count; k++) {
    tw_warp* w = &cta->warps[k];
    for (int32_t c = 0; c < w->context_count; c++) {
      tw_context* x = &w->contexts[c];
      if (x->state != TW_AT_MBARRIER) continue;
      const tw_instr* i = &cta->program->code[x->pc];
      if (i->o[0] >= 0) *(uint32_t*)(void*)(w->frames[x->frame].registers + (i->o[0] & ~3)) &= ~x->mask;
      x->state = TW_READY;
      x->pc++;
      any = true;
    }
  }
  cta->bulk->expired++;
  return any;
}

// Whether some of what its phase waits for has come.
bool tw_mbarrier_has_begun(const tw_cta* cta, uint32_t number) {
  const tw_mbarrier* b = &cta->bulk->barriers[number - 1];
  return b->pending < b->expected;
}

void tw_mbarrier_describe(const tw_cta* cta, uint32_t number) {
  const tw_mbarrier* b = &cta->bulk->barriers[number - 1];
  int64_t coming = 0;
  for (int32_t k = 0; k < cta->bulk->arrival_count; k++)
    if (cta->bulk->arrivals[k].barrier == b->offset) coming += cta->bulk->arrivals[k].bytes;
  tw_message(cta->engine, " %u %d %u %u %lld %u", b->offset, b->init_pc, b->expected, b->pending,
             (long long)(b->bytes - coming), b->phase);
}

// What a block keeps of its mbarriers and of the bulk copies that are under way. Made when the first one is used.
//
// A copy into shared memory leaves at once and arrives when somebody looks at its mbarrier and the phase can end; until
// then its destination is poison. A copy out of shared memory is done at once, but the bytes it read may not be
// overwritten, nor those it wrote be read, until its thread has waited for its group.
#ifndef TW_ASYNCHRONOUS_H
#define TW_ASYNCHRONOUS_H

#include "cluster.h"
#include "machine.h"

enum { TW_MOST_ARRIVALS = (1 << 20) - 1, TW_MOST_BYTES = (1 << 20) - 1 };

// What can be wrong with an mbarrier, or with how it is used: the detail of a TW_FIND_MBARRIER.
enum {
  TW_MBARRIER_NOT_INITIALISED = 1,
  TW_MBARRIER_COUNT = 2,        // initialised with a number of arrivals that no phase can have
  TW_MBARRIER_TOO_MANY = 3,     // arrivals: more than the phase still waits for
  TW_MBARRIER_BYTES = 4,        // expected or arrived: more than the barrier can count
  TW_MBARRIER_OVERWRITTEN = 5,  // a plain store changed its eight bytes
  TW_MBARRIER_TOO_EARLY = 6,    // a phase ended while copies that were sent in it were under way
  TW_MBARRIER_COMPLETES = 7,    // a .noComplete arrival that ends the phase
  TW_MBARRIER_ELSEWHERE = 8,    // it is to count what goes to another block
  TW_MBARRIER_NOT_SHOWN = 9,    // no fence has shown its initialisation to the asynchronous proxy
};

typedef struct {
  uint32_t offset;
  bool live, waiting;          // initialised; threads wait for it
  uint32_t expected, pending;  // arrivals of a phase, and those that are missing
  int32_t bytes;               // still to come; below zero: announced later than they came
  uint32_t phase;              // how many have ended
  int32_t init_pc, arrive_pc, expect_pc;  // -1: nobody has
  int32_t init_warp;
  uint32_t shown;            // warps whose copies may count for it: all, once the initialising warp has fenced
  const tw_past* arriving;   // what those know who arrived in this phase
  const tw_past* completed;  // and in those before
} tw_mbarrier;

typedef struct {  // a copy on its way into this block's shared memory, or the cp.async of a thread that are to arrive
  uint8_t* data;  // NULL: the latter
  uint32_t offset, bytes;
  uint32_t barrier, phase;  // where its mbarrier lies, and the phase in which it was sent
  int32_t instruction, block, thread;
} tw_arrival;

typedef struct {
  uint64_t address;
  uint32_t at, bytes;  // in the box, one row after the other
} tw_stretch;

typedef struct {  // a copy that one of this block's threads sent out of shared memory
  uint32_t offset, bytes;
  uint32_t group;
  int32_t instruction, thread;
  bool was_read, reduces;
  tw_stretch* runs;  // in global memory
  int32_t run_count;
} tw_departure;

struct tw_bulk {
  tw_mbarrier* barriers;
  int32_t barrier_count, barrier_capacity;
  uint16_t* barrier_at;  // by eight bytes of shared memory: its number plus one
  tw_arrival* arrivals;
  int32_t arrival_count, arrival_capacity;
  tw_departure* departures;
  int32_t departure_count, departure_capacity;
  int32_t unshown;  // barriers that are not shown to all warps
  int32_t expired;  // rounds of waits in a row that were told "not yet" because nothing else could run
  uint32_t open_group[TW_RACE_MAX_THREADS];
};

// -- bulk.c --
bool tw_bulk_room(tw_bulk* bulk);  // for one more arrival
void tw_bulk_forget(tw_bulk* bulk, int32_t arrival);
tw_bulk* tw_bulk_of(tw_cta* cta);  // NULL: out of memory, and the launch stops
bool tw_bulk_send(tw_warp* w, const tw_instr* i, int lane, uint32_t to, uint32_t barrier, const uint8_t* data, uint32_t bytes);
bool tw_bulk_source(tw_warp* w, const tw_instr* i, int lane, uint32_t from, uint32_t bytes);
bool tw_bulk_depart(tw_warp* w, const tw_instr* i, int lane, uint32_t from, uint32_t bytes, tw_stretch* runs, int32_t count,
                    bool reduces);
void tw_bulk_deliver(tw_cta* home, int32_t number, tw_mbarrier* barrier);
void tw_bulk_commit(tw_warp* w, uint32_t exec);
void tw_bulk_wait(tw_warp* w, uint32_t exec, uint32_t keep, bool only_read);
// -- mbarrier.c --
tw_mbarrier* tw_mbarrier_at(tw_warp* w, const tw_instr* i, int lane, uint32_t address, tw_cta** home);
tw_mbarrier* tw_mbarrier_counting(tw_warp* w, const tw_instr* i, int lane, uint32_t address, tw_cta** home);
void tw_mbarrier_show(tw_warp* w, bool to_own);
void tw_mbarrier_add_bytes(tw_warp* w, const tw_instr* i, int lane, tw_cta* home, tw_mbarrier* barrier, int64_t bytes);

void tw_mbarrier_nudge(tw_cta* home, tw_mbarrier* barrier);  // copies were sent that may end its phase

// A place in shared memory of this block or another of its cluster; NULL: reported, there is none.
static inline tw_cta* tw_shared_home(tw_warp* w, const tw_instr* i, int lane, uint32_t address, uint32_t bytes, int align,
                                     uint32_t* offset) {
  tw_cta* home = tw_cluster_block(w->cta, address, offset);
  int kind = *offset % (uint32_t)align ? TW_FIND_MISALIGNED : TW_FIND_SHARED_BOUNDS;
  if (home && kind != TW_FIND_MISALIGNED && *offset <= home->shared_bytes && bytes <= home->shared_bytes - *offset)
    return tw_cluster_present(w, tw_index_of(w, i), lane, home, *offset, (int)bytes) ? home : NULL;
  tw_report(w, kind, tw_index_of(w, i), lane, TW_SHARED_WINDOW + address, (int)bytes, 0);
  return NULL;
}

#endif

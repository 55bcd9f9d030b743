// Private to races*.c: clocks, what threads know of each other, and the shadow of memory.
//
// Stamps. Each CTA has one counter, `now`, that grows at every synchronisation in it. An access is stamped with the
// value its warp took at the warp's last synchronisation. "Thread t knows u up to c" means: every access of u stamped
// below c happened before whatever t does next. Knowledge is held where it is shared most:
//   barrier_clock        all threads know all threads up to here: the last barrier of the whole CTA
//   warp_sync[w]         all lanes of w know all lanes of w up to here: the last full synchronisation of the warp
//   lane_known[w][l][k]  lane l knows lane k: synchronisations of part of a warp
//   roots                everything else (named barriers, acquired releases, other CTAs): a graph of tw_past
// A tw_past never changes, so a synchronisation is a new node that points to older ones. Only a question that the first
// three cannot answer walks the graph, and what was walked is kept in a table (tw_known).
#ifndef TW_RACES_INTERNAL_H
#define TW_RACES_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "races.h"

enum {
  TW_PAGE_SHIFT = 10,
  TW_PAGE_BYTES = 1 << TW_PAGE_SHIFT,
  TW_PAGE_WORDS = TW_PAGE_BYTES / 4,
  TW_MAX_GRANULE_SHIFT = 4,
  TW_PAGE_BUCKETS = 1 << 14,
  TW_PAGE_CACHE = 64,
  TW_SEEN_SLOTS = 1 << 12,
  TW_MAX_RECORDS_SHARED = 40,  // other accesses a cell remembers beside its last plain write
  TW_MAX_RECORDS_GLOBAL = 12,
  TW_MAX_ORDINAL = (1 << 22) - 1,
  TW_MAX_INSTR = (1 << 24) - 1,
  TW_KEY_WHOLE_CTA = 63,
  TW_PROXY_THREAD = 1023,  // stands for bulk copies that have arrived, in CTAs that have no such thread
};

#define TW_NOW_LIMIT 0xfffffff0u

// -- what is known to have happened before --

struct tw_past {
  const tw_past* parent[2];  // known too
  const uint32_t* lane_row;  // 32 stamps: lane k of `warp` up to lane_row[k]; or NULL
  const uint32_t* cta_row;   // one stamp per thread of the CTA; or NULL
  uint32_t ordinal;          // the CTA the stamps belong to
  uint32_t whole_cta;        // any thread up to here
  uint32_t whole_warp;       // any lane of `warp` up to here
  uint32_t lanes, clock;     // these lanes of `warp` up to here
  uint32_t proxy;            // the CTA's asynchronous proxy up to here, as far as the parents show at once
  uint16_t warp;
  uint16_t threads;  // length of cta_row
  bool foreign;      // knows of another CTA
  bool followed;     // another node of its line knows this one
  uint32_t line, step;  // each node of a line knows those of smaller steps; 0: of none
};

// The line of nodes that one thread, warp or CTA knows one after the other.
typedef struct {
  uint32_t line, step;
} tw_line;

typedef struct {
  uint64_t key;  // ordinal << 6 | warp or TW_KEY_WHOLE_CTA, plus 1; 0: free
  uint32_t all;
  uint32_t lanes[32];
} tw_known_entry;

typedef struct {
  uint32_t line;           // 0: free
  uint32_t seen, reached;  // steps that earlier walks and this one came to
  uint32_t walk;           // the last walk that came to it
} tw_known_line;

typedef struct {
  tw_races* launch;         // whose budget pays
  uint32_t limit;           // most slots of any table
  const tw_past* absorbed;  // the last root taken in
  const tw_past** visited;
  uint32_t visited_count, visited_capacity;
  tw_known_entry* entries;
  uint32_t entry_count, entry_capacity;
  tw_known_line* lines;
  uint32_t line_count, line_capacity;
  uint32_t walk;
  bool forgot;    // the present walk has emptied `visited`
  bool overflow;  // too much to hold: everything counts as known
} tw_known;

// What a thread has fenced: this much a later strong write of its own passes on.
typedef struct {
  uint32_t clock, whole_cta, whole_warp;
  const tw_past* root;
  const tw_past* made;  // the same as a node, once one was needed
} tw_fenced;

// -- the shadow --

// Flags in the low byte of `what`; the instruction is above it.
enum {
  TW_WRITE_IN_FLIGHT = 1,    // cp.async not waited for
  TW_WRITE_ASYNC = 2,        // came by cp.async
  TW_WRITE_VALUE_NONE = 4,   // the value is not known: equal to none
  TW_WRITE_VALUE_SPLIT = 8,  // part of a wider value: counts as equal to any
  TW_RECORD_STRONG = 1,
  TW_RECORD_WRITES = 2,
  TW_RECORD_CTA_SCOPE = 4,
  TW_RECORD_LOCKSTEP = 8,  // volatile in shared memory: not strong inside its warp
  TW_RECORD_MANY = 16,     // the head of a list: `lanes` is the index of the first link
  TW_RECORD_PLAIN = 32,    // in the head of a list: some of it is plain reads
  TW_RECORD_OBSERVES = 64, // strong and reads: whatever strong writes came before are before what follows it
};

typedef struct {
  uint32_t who;  // ordinal << 10 | thread
  uint32_t clock;
  uint32_t what;
  uint32_t value;
} tw_write;

typedef struct {
  uint32_t who;  // ordinal << 5 | warp
  uint32_t lanes;
  uint32_t clock;  // 0: nothing recorded
  uint32_t what;
} tw_record;

typedef struct {
  tw_write write;    // the last plain write
  tw_record record;  // reads and strong accesses since
} tw_cell;

typedef struct {
  tw_record record;
  uint32_t next;  // 0: last
} tw_link;

typedef struct {
  const tw_past* gpu;
  const tw_past* cta;  // releases of .cta scope, of the CTA that made the node
} tw_sync;

typedef struct tw_page tw_page;
struct tw_page {
  uint64_t id;
  tw_page* next;         // in its bucket
  tw_page* made_before;  // of the launch's pages
  tw_cell* cells;
  tw_sync* sync;   // by word, or NULL
  tw_link* links;  // links[0] is not used
  uint32_t link_count, link_capacity, link_free;
  uint8_t shift;  // log2 of the bytes of a cell
  bool shared;
  atomic_flag lock;
};

typedef struct tw_block tw_block;
struct tw_block {
  tw_block* next;
  size_t used, size;
};

struct tw_races {
  bool locked;
  atomic_uint missed;          // TW_MISSED_*
  atomic_uint lines;           // begun so far
  atomic_int clocks_exhausted; // no more nodes: what cannot be shown unordered counts as ordered
  atomic_size_t budget_left;
  _Atomic(tw_page*)* buckets;
  _Atomic(tw_page*) pages;  // the last made
  pthread_mutex_t mutex;  // blocks, indices
  tw_block* blocks;
  uint32_t* indices;  // linear CTA index by ordinal
  uint32_t index_count, index_capacity;
  _Atomic(uint64_t) seen[TW_SEEN_SLOTS];
};

typedef struct {
  uint64_t id;
  tw_page* page;
} tw_page_slot;

enum { TW_LEVEL_CTA = 0, TW_LEVEL_GPU = 1 };

struct tw_cta_races {
  tw_races* launch;
  tw_block* block;  // where this CTA makes nodes
  uint32_t ordinal, index;
  int threads, warps;
  bool ignored;  // more CTAs than ordinals: nothing is checked
  bool open;     // others reach its shared memory
  uint32_t now, start_clock, barrier_clock;
  uint32_t warp_clock[32], warp_sync[32], live[32];
  uint32_t partial;  // warps with entries in lane_known since their last full synchronisation
  bool any_roots, any_pending, any_fenced;
  // knowledge beyond barriers of the whole CTA
  const tw_past* cta_root;
  const tw_past* warp_root[32];
  const tw_past* thread_root[TW_RACE_MAX_THREADS];
  uint32_t rooted[32];  // lanes with a thread_root
  tw_line cta_line, warp_line[32], thread_line[TW_RACE_MAX_THREADS];
  tw_known cta_known, warp_known[32];
  tw_known* thread_known;  // [TW_RACE_MAX_THREADS], or NULL
  const tw_past** stack;   // scratch of the walk
  uint32_t stack_capacity;
  // observed but not yet acquired
  const tw_past* pending[2][TW_RACE_MAX_THREADS];
  uint32_t pending_lanes[32];
  // fenced but not yet released
  tw_fenced fenced[2][TW_RACE_MAX_THREADS];
  uint32_t fenced_lanes[2][32];
  uint32_t unshared_fences[32];  // lanes that fenced since their warp last synchronised
  // fenced by anyone before the last barrier of the whole CTA
  bool shared_release;
  uint32_t release_row[TW_RACE_MAX_THREADS];
  uint32_t release_whole_cta;
  const tw_past* release_root;
  const tw_past* release_made;
  const tw_past* arrivals[TW_RACE_MAX_BARRIERS];
  const tw_past* arrival_releases[2][TW_RACE_MAX_BARRIERS];
  // cp.async
  uint32_t in_flight[TW_RACE_MAX_THREADS];
  int32_t async_instr[TW_RACE_MAX_THREADS];
  uint32_t async_address[TW_RACE_MAX_THREADS];
  uint32_t proxy_clock[32];  // of each warp's last fence.proxy.async
  uint32_t proxy_known[32];  // what bulk copies brought is known to all lanes of the warp up to here
  // shared memory
  uint32_t shared_bytes, shared_pages;
  tw_page** pages;
  tw_page_slot cache[TW_PAGE_CACHE];
  uint32_t lane_known[32][32][32];
};

// -- races_past.c --
void* tw_past_memory(tw_cta_races* cta, size_t bytes);
const tw_past* tw_past_join(tw_cta_races* cta, const tw_past* a, const tw_past* b);
tw_past* tw_past_new(tw_cta_races* cta, const tw_past* a, const tw_past* b);
void tw_past_grow(tw_cta_races* cta, const tw_past** root, tw_line* line, const tw_past* past);
const tw_past* tw_past_follow(tw_cta_races* cta, const tw_past* past, const tw_past* so_far);
void tw_known_reset(tw_known* known);
void tw_known_free(tw_known* known);
bool tw_knows(tw_cta_races* cta, int warp, int lane, uint32_t ordinal, uint32_t thread, uint32_t clock);

// -- races_order.c --
void tw_order_begin(tw_cta_races* cta);
void tw_observe(tw_cta_races* cta, int warp, int lane, const tw_sync* sync, int order);
void tw_release(tw_cta_races* cta, int warp, int lane, tw_sync* sync, int order, bool keeps);
void tw_tick(tw_cta_races* cta, int warp);
const tw_past* tw_proxy_past(tw_cta_races* cta, const tw_past* so_far, uint32_t* stamp);

// -- races_shadow.c --
tw_page* tw_page_global(tw_races* races, tw_cta_races* cta, uint64_t id, int shift);
tw_page* tw_page_shared(tw_cta_races* cta, uint32_t id, int shift);
bool tw_page_refine(tw_races* races, tw_page* page, int shift);
tw_sync* tw_page_sync(tw_races* races, tw_page* page);
void tw_page_lock(const tw_races* races, tw_page* page);
void tw_page_unlock(const tw_races* races, tw_page* page);
void tw_page_free(tw_page* page);
void tw_page_clear(tw_page* page);
uint32_t tw_link_new(tw_races* races, tw_page* page);
void tw_links_drop(tw_page* page, tw_record* record);

static inline bool tw_from_elsewhere(const tw_cta_races* cta, const tw_past* past) {
  return past && (past->foreign || past->ordinal != cta->ordinal);
}

static inline void tw_miss(tw_races* races, uint32_t what) {
  if (~atomic_load_explicit(&races->missed, memory_order_relaxed) & what) atomic_fetch_or(&races->missed, what);
}

static inline bool tw_has_proxy_thread(const tw_cta_races* cta) { return cta->threads <= TW_PROXY_THREAD / 32 * 32; }

static inline uint32_t tw_lowest(uint32_t mask) { return (uint32_t)__builtin_ctz(mask); }

// Does `thread` of CTA `ordinal` at stamp `clock` come before what this lane does now? Everything but the roots.
static inline bool tw_ordered(tw_cta_races* cta, int warp, int lane, uint32_t ordinal, uint32_t thread,
                              uint32_t clock) {
  if (ordinal == cta->ordinal) {
    if (clock < cta->barrier_clock) return true;
    if (thread >> 5 == (uint32_t)warp) {
      uint32_t other = thread & 31;
      if (other == (uint32_t)lane || clock < cta->warp_sync[warp]) return true;
      if (clock < cta->lane_known[warp][lane][other]) return true;
    } else if (thread == TW_PROXY_THREAD && clock < cta->proxy_known[warp]) {
      return true;
    }
  }
  if (!cta->any_roots && !atomic_load_explicit(&cta->launch->clocks_exhausted, memory_order_relaxed)) return false;
  return tw_knows(cta, warp, lane, ordinal, thread, clock);
}

#endif

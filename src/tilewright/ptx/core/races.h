// Happens-before race detection in shared and global memory.
//
// The interpreter tells what its threads do; this says which two accesses nothing orders. It knows no memory contents,
// no registers and no instructions: an instruction is a number (`instr`) that comes back in reports. Sources: races*.c.
//
// Life of the objects
//   tw_races       one per launch: the shadow of global memory, shared by all OS threads. A launch boundary orders
//                  everything, so a new launch starts with a new one.
//   tw_cta_races   one per CTA in progress, used by one OS thread at a time: clocks and the shadow of shared memory.
//                  Reuse it for the next CTA: tw_cta_races_begin forgets the CTA before.
//
// When to call what
//   every ld/st/atom/red on shared or global memory        tw_race_shared, tw_race_global
//   bar.sync, bar.red, barrier.sync when it lets threads go tw_race_barrier
//   bar.arrive when it is executed                          tw_race_barrier_arrive
//   bar.warp.sync, shfl.sync, vote.sync, mma.sync, ...       tw_race_syncwarp, with the lanes that take part
//   fence, membar, __threadfence                            tw_race_fence
//   cp.async                                                tw_race_async_issue, and at its wait tw_race_async_complete
//   bulk copies, fence.proxy.async                          tw_race_bulk_*, tw_race_proxy_fence
//   mbarrier arrivals and waits                             tw_race_publish, tw_race_learn
//   exit of lanes                                           tw_race_exit
// Global reads of a region that nobody may write need not be told; telling them costs time and memory only.
//
// Several OS threads: publish before you write, look after you read. So a strong store (volatile, relaxed, release) is
// told before the bytes change, a strong load after they were read, and an atom is told before and then once more with
// tw_race_observe after it. With one OS thread tw_race_observe may be left out.
//
// What is a race: two accesses to one byte by different threads, at least one of them a write, not both strong at a
// scope that holds both threads, and nothing ordering them. Two plain stores of the same bytes are let pass.
// What orders: program order; barriers; warp synchronisation; a release (fence then strong write, or .release) that a
// strong read followed by a fence (or .acquire) of another thread observes, also through a chain of atomics; a strong
// write is before whatever follows a strong read that saw it (so the last to count may reset the counter); barriers
// pass on what their threads fenced and what they observed, so "fence, bar.sync, one thread's atomic, bar.sync, read"
// is ordered and the same without the fence is not.
//
// A guess (TW_ORDER_GUESS) is a plain read of what a compare-and-swap loop then swaps: what it read is only used if the
// swap finds the same there, so atomics may come between. It is in conflict with plain writes, and orders nothing.
//
// Where it is less than exact it stays silent, never the other way: a cell remembers its last plain write and a bounded
// number of other accesses since; a store of an equal value hides the store it was equal to. And where its memory does
// not suffice, which tw_races_missed tells: new places are no longer watched, a thread that has observed very many
// releases counts as knowing everything.
#ifndef TW_RACES_H
#define TW_RACES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_races tw_races;
typedef struct tw_cta_races tw_cta_races;
typedef struct tw_past tw_past;  // what had happened before some moment; lives as long as the launch

enum { TW_RACE_MAX_THREADS = 1024, TW_RACE_MAX_WARPS = 32, TW_RACE_MAX_BARRIERS = 16 };

// kind of an access
enum { TW_RACE_READ = 0, TW_RACE_WRITE = 1, TW_RACE_ATOMIC = 2 /* atom, red: reads and writes */ };

// order of an access, one of these | TW_SCOPE_CTA if its scope is .cta. ATOMIC with WEAK counts as RELAXED.
// In shared memory VOLATILE is strong between warps but plain inside one: code that leans on the lanes of a warp
// running in step is broken, volatile or not.
enum {
  TW_ORDER_WEAK = 0,
  TW_ORDER_VOLATILE = 1,  // .volatile, .mmio
  TW_ORDER_RELAXED = 2,
  TW_ORDER_ACQUIRE = 3,
  TW_ORDER_RELEASE = 4,
  TW_ORDER_ACQ_REL = 5,
  TW_ORDER_GUESS = 6,  // of a read only; its scope is that of the swap
  TW_ORDER_OBJECT = 7,  // of an mbarrier: strong, and what it orders is told apart (tw_race_publish)
  TW_ORDER_MASK = 7,
  TW_SCOPE_GPU = 0,  // .gpu and .sys
  TW_SCOPE_CTA = 8,
};

typedef enum {
  TW_RACE_NONE = 0,
  TW_RACE_READ_AFTER_WRITE = 1,   // this thread read what the other wrote
  TW_RACE_WRITE_AFTER_READ = 2,   // this thread wrote over what the other read
  TW_RACE_WRITE_AFTER_WRITE = 3,  // both wrote, and not the same
  TW_RACE_ASYNC_NOT_WAITED = 4,   // read of bytes that a cp.async has yet to bring; the other is who issued it
  TW_RACE_ASYNC_OVERWRITTEN = 5,  // write (or another cp.async) over bytes that a cp.async has yet to bring
  TW_RACE_ASYNC_NOT_CONSUMED = 6, // thread ended with a cp.async it never waited for (tw_race_exit)
  TW_RACE_NOT_FENCED = 7,         // the asynchronous proxy reads what a thread wrote, and no fence.proxy.async followed
} tw_race_kind;

typedef struct {
  int32_t kind;         // tw_race_kind; TW_RACE_NONE if every conflict of the call was reported before
  int32_t is_shared;    // 1: `address` is a shared offset
  uint64_t address;     // first byte in conflict
  uint32_t cta, thread; // this side: linear ids
  int32_t instr;
  uint32_t other_cta, other_thread;
  int32_t other_instr;
  uint8_t is_atomic, other_is_atomic; // strong (atomic, volatile, relaxed...)
  uint8_t is_async, other_is_async;   // by cp.async
} tw_race_report;

// -- objects; the create functions return NULL when memory is short --

// `workers`: OS threads that will call; 1 does without locks. `budget_bytes`: most memory for shadows; 0 for 1 GiB.
tw_races* tw_races_create(int workers, size_t budget_bytes);
void tw_races_destroy(tw_races* races);         // after every tw_cta_races of it
// What memory did not suffice for; 0: every access was watched and everything that orders was remembered.
enum {
  TW_MISSED_SHARED = 1,  // accesses to shared memory that were not watched
  TW_MISSED_GLOBAL = 2,
  TW_MISSED_ORDER = 4,   // accesses taken as ordered because it was no longer known whether they are
};
uint32_t tw_races_missed(const tw_races* races);

tw_cta_races* tw_cta_races_create(tw_races* races, uint32_t shared_bytes);
void tw_cta_races_begin(tw_cta_races* cta, uint32_t cta_index, int threads);
void tw_cta_races_open(tw_cta_races* cta);  // before it begins: other CTAs, of a cluster, reach its shared memory
void tw_cta_races_destroy(tw_cta_races* cta);

// -- accesses: return the number of conflicts (lanes times pieces), and fill `out` for the first pair of instructions
//    not reported before in this launch --

// `values`: for writes, the bytes stored by lane l at (const char *)values + l * value_stride; NULL: unknown, so no
// two such stores count as the same. Any size from 1 to 64 and any alignment will do; powers of two are fast.
// A shared access outside [0, shared_bytes) is ignored.
int tw_race_shared(tw_cta_races* cta, int warp, uint32_t mask, const uint32_t addr[32], int size, int kind, int order,
                   const void* values, int value_stride, int instr, tw_race_report* out);
int tw_race_global(tw_races* races, tw_cta_races* cta, int warp, uint32_t mask, const uint64_t addr[32], int size,
                   int kind, int order, const void* values, int value_stride, int instr, tw_race_report* out);

// The same in the shared memory of `home`, another CTA that the same OS thread runs and that is open.
int tw_race_peer(tw_cta_races* home, tw_cta_races* cta, int warp, uint32_t mask, const uint32_t addr[32], int size,
                 int kind, int order, const void* values, int value_stride, int instr, tw_race_report* out);

// The reading half of an atomic or strong load once more, after it was done (see above).
void tw_race_observe_shared(tw_cta_races* cta, int warp, uint32_t mask, const uint32_t addr[32], int size, int order);
void tw_race_observe_peer(tw_cta_races* home, tw_cta_races* cta, int warp, uint32_t mask, const uint32_t addr[32],
                          int size, int order);
void tw_race_observe_global(tw_races* races, tw_cta_races* cta, int warp, uint32_t mask, const uint64_t addr[32],
                            int size, int order);

// -- ordering --

// Lanes lane_masks[w] of warps 0..warps-1 waited at barrier `id` and are let go together. Arrivals (bar.arrive) told
// for this id since it last opened are taken in. When every thread that has not ended takes part: O(warps).
void tw_race_barrier(tw_cta_races* cta, int id, const uint32_t* lane_masks, int warps);
void tw_race_barrier_arrive(tw_cta_races* cta, int id, int warp, uint32_t mask);
void tw_race_syncwarp(tw_cta_races* cta, int warp, uint32_t mask);
void tw_race_fence(tw_cta_races* cta, int warp, uint32_t mask, int scope /* TW_SCOPE_CTA or TW_SCOPE_GPU */);

// -- clusters: `arrivals` gathers what those who arrive know, and is told to those who wait --

void tw_race_cluster_arrive(tw_cta_races* cta, int warp, uint32_t mask, int relaxed, const tw_past** arrivals);
void tw_race_cluster_wait(tw_cta_races* cta, int warp, uint32_t mask, const tw_past* arrivals);
void tw_race_cluster_all(tw_cta_races* cta, const tw_past* arrivals);  // every thread of the CTA that has not ended waits

// The last access that lanes of a warp made to the shared memory of another CTA.
typedef struct {
  uint32_t ordinal, clock, lanes;  // 0 lanes: none
  uint32_t address;
  int32_t instr, size;
  uint32_t begun;    // the warp knows that the other has begun
  uint32_t opening;  // of the cluster's barrier, the first that the visitor arrives at later
} tw_visit;
void tw_race_visit(const tw_cta_races* cta, int warp, uint32_t lanes, tw_visit* visit);
int tw_race_after_beginning(const tw_cta_races* home, tw_cta_races* cta, int warp, int lane);  // of another CTA
// Whether one of these lanes comes after the visit by a warp of that number.
int tw_race_after_visit(tw_cta_races* cta, int warp, uint32_t lanes, int visitor, const tw_visit* visit);

// -- cp.async: the shared side; tell the global side with tw_race_global(TW_RACE_READ) when the bytes are read --

int tw_race_async_issue(tw_cta_races* cta, int warp, uint32_t mask, const uint32_t addr[32], int size,
                        const void* values, int value_stride, int instr, tw_race_report* out);
// The copies of `size` bytes to addr[l] issued by these lanes have arrived, because these lanes waited for them.
void tw_race_async_complete(tw_cta_races* cta, int warp, uint32_t mask, const uint32_t addr[32], int size);

// -- the asynchronous proxy: bulk copies and the like, each for one lane, of any number of bytes --

// It reads shared memory that threads must have written before, and shown to it with fence.proxy.async.
int tw_race_bulk_read(tw_cta_races* cta, int warp, int lane, uint32_t offset, uint32_t bytes, int instr,
                      tw_race_report* out);
// The same of a wgmma: TW_TILE_CHUNK bytes at each lane's place.
enum { TW_TILE_CHUNK = 16 };
int tw_race_tile_read(tw_cta_races* cta, int warp, uint32_t mask, const uint32_t addr[32], int instr,
                      tw_race_report* out);
// It reads (TW_RACE_READ) global memory, or reduces into it (TW_RACE_ATOMIC).
int tw_race_bulk_global(tw_races* races, tw_cta_races* cta, int warp, int lane, uint64_t address, uint64_t bytes,
                        int kind, int instr, tw_race_report* out);
// It writes shared memory of `home`, the lane's own CTA or another of its cluster: in flight until it has arrived.
int tw_race_bulk_issue(tw_cta_races* cta, tw_cta_races* home, int warp, int lane, uint32_t offset, uint32_t bytes,
                       int instr, tw_race_report* out);
// It has arrived: what is known to whoever is told so, together with `so_far`.
const tw_past* tw_race_bulk_arrived(tw_cta_races* home, uint32_t offset, uint32_t bytes, int instr,
                                    const tw_past* so_far);
// It writes global memory: in flight until the lane has waited for it.
int tw_race_bulk_store(tw_races* races, tw_cta_races* cta, int warp, int lane, uint64_t address, uint64_t bytes,
                       int instr, tw_race_report* out);
void tw_race_bulk_stored(tw_races* races, tw_cta_races* cta, int warp, int lane, uint64_t address, uint64_t bytes);
void tw_race_proxy_fence(tw_cta_races* cta, int warp, uint32_t mask);

// -- ordering through objects that the caller keeps --

// What these lanes know and did until now, together with `so_far`; and that they are told all of it.
const tw_past* tw_race_publish(tw_cta_races* cta, int warp, uint32_t mask, const tw_past* so_far);
void tw_race_learn(tw_cta_races* cta, int warp, uint32_t mask, const tw_past* past);
const tw_past* tw_race_join(tw_cta_races* cta, const tw_past* one, const tw_past* other);

// These lanes ended. Returns how many of them never waited for a cp.async of theirs (TW_RACE_ASYNC_NOT_CONSUMED,
// `instr` is the copy, `address` where it was to go).
int tw_race_exit(tw_cta_races* cta, int warp, uint32_t mask, tw_race_report* out);

#ifdef __cplusplus
}
#endif
#endif

// The machine: warps of 32 lanes, their frames and contexts, blocks, and what one OS thread holds.
//
// A warp runs one context at a time: a set of lanes that share a program counter. A divergent branch splits a context
// and makes a node that waits at the branch's immediate post-dominator until every lane under it has arrived or left.
#ifndef TW_MACHINE_H
#define TW_MACHINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "api.h"
#include "races.h"

#define TW_LANES 32
#define TW_ALL 0xffffffffu
#define TW_BARRIERS 16
#define TW_MAX_CONTEXTS 32
#define TW_MAX_CALL_DEPTH 256
#define TW_MAX_WARPS 32
#define TW_MAX_CLUSTER 16  // blocks
#define TW_FRAME_LIMIT (64 << 20)    // bytes of frames of one warp
#define TW_ASYNC_LIMIT (1 << 16)     // copies in flight of one warp

#define TW_POISON 0xc5  // what an asynchronous copy has yet to bring

// Spaces of an address in a finding, whose kernel knows it by the launch's windows.
#define TW_SHARED_WINDOW 0xfffe000000000000ull
#define TW_LOCAL_WINDOW 0xfffd000000000000ull
#define TW_PARAMETER_WINDOW 0xfffc000000000000ull
#define TW_FUNCTION_WINDOW 0x7b0000000000ull
#define TW_WINDOW_BYTES (1ull << 32)
#define TW_LOCAL_END 0xfffd00u  // a stack ends here

// Bits of `mod`. Arithmetic: rounding in the low three bits.
enum {
  TW_MOD_ROUNDING = 7,
  TW_MOD_FTZ = 8,
  TW_MOD_SAT = 16,
  TW_MOD_RELU = 32,
  TW_MOD_NAN = 64,
  TW_MOD_XORSIGN = 128,
  TW_MOD_ABS = 256,
  TW_MOD_CARRY_IN = 512,
  TW_MOD_CARRY_OUT = 1024,
};

// Bits of `mod` in memory operations.
enum {
  TW_MEM_ELEMENT = 3,        // log2 of an element's bytes
  TW_MEM_REGISTER = 3 << 2,  // log2 of a register lane's bytes
  TW_MEM_SIGNED = 1 << 4,
  TW_MEM_WIDE = 1 << 5,      // the address register has 64 bits
  TW_MEM_ORDER = 15 << 6,    // TW_ORDER_* and TW_SCOPE_* of races.h; not weak: others may change it meanwhile
  TW_MEM_SPACE = 7 << 10,    // TW_SPACE_*
  TW_MEM_READ_ONLY = 1 << 14, // ld.global.nc: the bytes must stay as they are for the whole launch
};
#define TW_ORDER_OF(mod) ((int)((mod) >> 6 & 15))
#define TW_SPACE_OF(mod) ((mod) >> 10 & 7)
enum { TW_SPACE_GENERIC = 0, TW_SPACE_GLOBAL = 1, TW_SPACE_SHARED = 2, TW_SPACE_LOCAL = 3, TW_SPACE_PARAMETER = 4,
       TW_SPACE_CLUSTER = 5 };

typedef struct tw_warp tw_warp;
typedef struct tw_instr tw_instr;
typedef struct tw_cta tw_cta;
typedef struct tw_cluster tw_cluster;
typedef struct tw_engine tw_engine;
typedef struct tw_worker tw_worker;
typedef struct tw_bulk tw_bulk;

// What a handler tells the loop.
enum { TW_NEXT = 0, TW_JUMP = 1, TW_SWITCH = 2, TW_STOP = 3 };

typedef int (*tw_handler)(tw_warp* warp, const tw_instr* instr, uint32_t exec);

struct tw_instr {
  tw_handler run;
  uint16_t op;
  uint8_t flags;
  uint8_t count;
  int32_t guard;
  int32_t o[8];
  int64_t imm;
  uint32_t extra;
  uint32_t mod;
};

// Flags of an instruction that the loop itself looks at.
enum { TW_FLAG_CONTROL = 128 };  // runs even when no lane is active

struct tw_program {
  tw_instr* code;
  int64_t code_count;
  int32_t* extra;
  uint8_t* constants;
  tw_function* functions;
  int64_t function_count;
  int32_t kernel;
  int32_t static_shared_bytes;
  uint32_t local_bytes;  // of one thread, all activations
  uint8_t* shared_state;
  int32_t loop_count;
  int32_t* loop_marks;
  bool has_guard_zones;  // between variables in shared memory
};

typedef enum {
  TW_READY = 0, TW_AT_BARRIER, TW_AT_SYNC, TW_AT_MBARRIER, TW_AT_CLUSTER, TW_AT_WARPGROUP
} tw_context_state;

typedef struct {
  uint32_t mask;
  int32_t pc;
  int32_t node;   // innermost node it belongs to, or -1
  int32_t frame;  // index into the warp's frames
  uint8_t state;  // tw_context_state
  uint16_t barrier;
  uint32_t wanted;  // lanes a collective waits for
} tw_context;

typedef struct {
  int32_t pc;  // where its lanes meet
  int32_t parent;
  int32_t frame;
  int32_t callee_frame;  // -1 unless it is a call
  uint32_t pending, arrived;
  bool used;
} tw_node;

typedef struct {
  uint8_t* registers;
  uint32_t local_base;
  int32_t function;
  int32_t call_pc;
  int32_t caller;
  int32_t depth;
  int32_t capacity;
  bool used;
} tw_frame;

typedef struct {
  uint8_t data[16];
  uint32_t address;  // in shared memory
  uint32_t group;    // of its lane
  int32_t instruction;
  uint8_t bytes, lane;
} tw_async_copy;

// A register that a wgmma is still writing or reading.
typedef struct {
  uint32_t group;  // of the warp's commits, plus one; 0: none
  int32_t pc;      // the wgmma
  bool sum;        // of the accumulator, not of a
} tw_register_flight;

struct tw_warp {
  uint8_t* base[2];  // frame, constants
  uint32_t mask;     // of the running context
  uint32_t live;
  int32_t pc;
  int32_t node;
  int32_t frame;
  int32_t index;
  tw_cta* cta;
  int64_t quantum;
  uint32_t started;  // lanes that exist
  uint32_t local_used;
  bool spinning;     // gave up its turn because it polls memory
  bool awaited;      // the launch before is known to have ended
  bool done;
  int32_t starved;   // turns used up since lanes last met or left
  int32_t forced_pc; // a collective that goes ahead without the lanes that never came; -1: none
  // contexts that are not running; the running one is in the fields above when `running`
  bool running;
  int32_t context_count;
  tw_context contexts[TW_MAX_CONTEXTS];
  tw_node* nodes;
  int32_t node_capacity;
  tw_frame* frames;
  int32_t frame_capacity;
  int64_t frame_bytes;
  uint8_t* local;        // [lane][local_stride]
  uint8_t* local_state;
  uint32_t local_stride;
  uint32_t* trips;  // begun so far, of each loop; NULL where nobody asks
  uint32_t carry;  // condition-code register, one bit per lane
  uint32_t cluster_arrived;  // at the cluster's barrier, which has not opened since
  uint32_t cluster_passes;   // it has opened since, and they have yet to wait
  uint32_t cluster_opening;  // the last of its openings that lanes have waited for, from 1
  tw_async_copy* copies;
  int32_t copy_count, copy_capacity;
  uint32_t open_group[TW_LANES];
  // wgmma
  uint32_t issued, committed, retired;  // instructions; groups
  bool fenced;                          // has executed wgmma.fence
  uint32_t fences, turns_given;         // that it came to; how often it let others come to the last one first
  tw_register_flight* flights;          // by register of the kernel's frame; NULL until one is needed
  int32_t flight_count;
  uint32_t registers;                   // that setmaxnreg gave each thread; 0: not known
  uint32_t tid[3][TW_LANES] __attribute__((aligned(64)));
};

typedef struct {
  int64_t expected;  // 0: every live thread of the block
  int64_t arrived;
  bool open;  // somebody has arrived
  bool mixed; // reported already that its threads came from different places
  int32_t first_pc, first_thread;
  uint32_t lanes[TW_MAX_WARPS];    // arrived, by warp
  uint32_t waiting[TW_MAX_WARPS];  // of those, the ones that wait
  uint32_t predicate_and, predicate_or, predicate_count;
} tw_barrier;

// Blocks that run side by side; a block of a launch without clusters is one of its own.
struct tw_cluster {
  tw_cta* blocks[TW_MAX_CLUSTER];  // by rank
  int32_t size;
  int32_t running;  // blocks that have not ended
  uint32_t openings;  // of its barrier, so far
  bool open;          // somebody has arrived at it
  bool relaxed;       // without releasing what it did
  const tw_past* arrivals;  // what those who arrived know, for races
  const tw_past* opened;    // and what those who wait are told
};

// An operand of a wgmma in shared memory, as its descriptor has it.
typedef struct {
  uint32_t start, lead, stride, base, pitch, swizzle;
  bool transposed;  // contiguous along m or n rather than along k
} tw_tile;

// One that is read until the group it belongs to is waited for.
typedef struct {
  tw_tile tile;
  int32_t blocks;  // of 8 rows or columns
  int32_t pc;
  uint32_t group;
} tw_tile_read;

// Four warps that execute wgmma together.
#define TW_WARPGROUP_MEMORY 64
typedef struct {
  uint32_t issued;                   // by the warp that is furthest
  int32_t pcs[TW_WARPGROUP_MEMORY];  // of the last ones
  uint32_t completed;                // groups that a warp has waited for
  tw_tile_read* reads;
  int32_t read_count, read_capacity;
  const tw_past* known;  // what its warps knew when they committed
} tw_warpgroup;

struct tw_cta {
  tw_engine* engine;
  tw_worker* worker;
  const tw_program* program;
  int32_t linear;
  uint32_t id[3];
  tw_cluster* cluster;
  tw_cluster own_cluster;  // used by the block of rank 0
  int32_t rank;
  int32_t end_pc;  // where its last threads ended
  int32_t warp_count;
  int32_t thread_count;
  int32_t live_threads;
  uint8_t* shared;
  uint8_t* shared_state;
  uint32_t shared_bytes;
  bool watch_shared;  // reads look at shared_state
  tw_barrier barriers[TW_BARRIERS];
  tw_cta_races* races;
  tw_bulk* bulk;  // mbarriers and bulk copies; NULL until there are any
  tw_warpgroup warpgroups[TW_MAX_WARPS / 4];
  uint8_t* tile_readers;  // of each 16 bytes of shared memory: operands of unfinished wgmmas that hold it; NULL: none yet
  bool progressed, only_polls;  // in the last pass over its warps
  bool used;                    // another block ran here before
  bool awaited, early;          // a warp executed griddepcontrol.wait; one that knew of none launched dependents
  int32_t place;                // among those that its worker made
  int32_t turn;
  int32_t idle_rounds;  // in a row that it has only polled, with no other block running
  bool wrote;           // in memory, since that was last asked
  tw_warp* warps;
  tw_visit* visits;  // of other blocks of the cluster to its shared memory, by rank and warp; NULL: nobody asks
};

enum { TW_RECENT_SECTORS = 2048 };  // 64 KB: what a block has of an L1 cache, where there are a few

struct tw_worker {
  tw_engine* engine;
  pthread_t thread;
  const tw_region** cache;  // last region of each instruction
  tw_count* counts;
  uint64_t sectors[TW_RECENT_SECTORS];  // that its blocks read last, each with its block
  uint8_t* coverage;
  tw_touch* touches;  // the launch's own: only one worker runs the block that is looked at
  uint64_t random;
  int64_t thread_instructions, warp_instructions, unflushed;
  int index;
  uint64_t clock;
  bool failed;
  bool hollow;  // the access that is noted brings no values
};

struct tw_engine {
  tw_launch* launch;
  const tw_program* program;
  pthread_mutex_t lock;
  int32_t* finding_index;  // by kind and instruction; 0: none yet
  atomic_int stop;
  atomic_llong next_block;
  atomic_llong executed;
  atomic_llong finished;
  int64_t block_total;  // to run: of clusters, where a block without one is a cluster of its own
  int32_t cluster_size;
  int32_t* order;  // of the same, when seeded
  uint32_t shared_bytes;
  uint32_t local_stride;
  uint32_t local_origin;  // the address that local memory begins at
  tw_races* races;
  uint32_t checks;

  int32_t out_of_memory;
};

// -- findings.c --
void tw_report(tw_warp* w, int kind, int instruction, int lane, uint64_t address, int size, int detail);
tw_finding tw_finding_of(const tw_warp* w, int kind, int instruction, int lane);  // of one lane, to be filled in
void tw_report_full(tw_engine* e, const tw_finding* finding);
void tw_message(tw_engine* e, const char* format, ...) __attribute__((format(printf, 2, 3)));
void tw_report_race(tw_warp* w, int kind, int instruction, int size, const tw_race_report* race, int conflicts);

// -- divergence.c --
int tw_fan_out(tw_warp* w, int count, const uint32_t* masks, const int32_t* targets, int32_t meet);
int tw_meet(tw_warp* w, int32_t pc);
int tw_leave(tw_warp* w, uint32_t mask);
int tw_call(tw_warp* w, uint32_t exec, const tw_instr* i, int32_t function);
int tw_return(tw_warp* w, uint32_t mask);
void tw_set_aside(tw_warp* w, tw_context_state state, int32_t pc, bool last);
bool tw_pick_context(tw_warp* w);
bool tw_has_ready(const tw_warp* w);
bool tw_release_early(tw_warp* w);
bool tw_warp_begin(tw_warp* w);
void tw_warp_free(tw_warp* w);

// -- barriers.c --
int tw_barrier_reach(tw_warp* w, const tw_instr* i, uint32_t exec);
void tw_barriers_recheck(tw_cta* cta);
int tw_gather_lanes(tw_warp* w, const tw_instr* i, uint32_t exec, const uint32_t* masks, uint32_t* together);
bool tw_force_collective(tw_cta* cta);
void tw_describe_waits(tw_cta* cta);

void tw_stand(tw_warp* w, uint32_t lanes, int pc, tw_context_state state, uint8_t barrier);

// -- cluster.c --
void tw_cluster_begin(tw_cta** blocks, int32_t size);
void tw_cluster_recheck(tw_cluster* cluster);
int tw_cluster_arrive(tw_warp* w, const tw_instr* i, uint32_t exec);
int tw_cluster_wait(tw_warp* w, const tw_instr* i, uint32_t exec);
bool tw_block_can_run(const tw_cta* cta);
void tw_cluster_describe(const tw_cta* cta);
void tw_cluster_leave(tw_warp* w, int pc, uint32_t lanes);
// Whether a block is there to be reached, which is reported where it may not be; and that lanes reach it.
bool tw_cluster_present(tw_warp* w, int pc, int lane, tw_cta* home, uint32_t offset, int size);
void tw_cluster_visit(tw_warp* w, int pc, uint32_t lanes, tw_cta* home, uint32_t offset, int size);

// -- leftovers.c: what memory holds that nothing wrote --
enum { TW_REMAINS_SHARED, TW_REMAINS_LOCAL, TW_REMAINS_REGISTERS, TW_REMAINS_KINDS };
void tw_leave_unwritten(const tw_cta* cta, int kind, uint8_t* memory, size_t bytes, bool used, uint64_t place);
void tw_keep_remains(const tw_cta* cta);

// -- async.c --
void tw_async_complete(tw_warp* w, uint32_t mask, uint32_t keep);
void tw_async_abandoned(tw_warp* w, uint32_t mask);

// -- bulk.c --
void tw_bulk_begin(tw_cta* cta);
void tw_bulk_end(tw_cta* cta);
void tw_bulk_free(tw_cta* cta);
void tw_bulk_abandoned(tw_warp* w, uint32_t exec);
bool tw_bulk_overwrites(tw_warp* w, int instruction, int lane, const tw_cta* home, uint32_t offset, uint32_t bytes);

// -- mbarrier.c; flags of its instructions --
enum { TW_MBARRIER_PARITY = 1, TW_MBARRIER_NO_COMPLETE = 1, TW_MBARRIER_DROPS = 2, TW_MBARRIER_RELAXED = 4 };
int tw_mbarrier_init(tw_warp* w, const tw_instr* i, uint32_t exec, const uint32_t* address, const uint32_t* count);
int tw_mbarrier_invalidate(tw_warp* w, const tw_instr* i, uint32_t exec, const uint32_t* address);
int tw_mbarrier_arrive(tw_warp* w, const tw_instr* i, uint32_t exec, const uint32_t* address, const uint32_t* count,
                       const uint32_t* bytes, uint64_t* states);
int tw_mbarrier_bytes(tw_warp* w, const tw_instr* i, uint32_t exec, const uint32_t* address, const uint32_t* bytes);
int tw_mbarrier_after_copies(tw_warp* w, const tw_instr* i, uint32_t exec, const uint32_t* address);
int tw_mbarrier_wait(tw_warp* w, const tw_instr* i, uint32_t exec, const uint32_t* address, const void* which);
bool tw_mbarrier_expire(tw_cta* cta);
bool tw_mbarrier_has_begun(const tw_cta* cta, uint32_t number);
void tw_mbarrier_describe(const tw_cta* cta, uint32_t number);

// -- wgmma.c --
enum {  // details of TW_FIND_WARPGROUP
  TW_WARPGROUP_INCOMPLETE = 1,
  TW_WARPGROUP_PARTED,
  TW_WARPGROUP_ENDED,
  TW_WARPGROUP_DIFFERS,
  TW_WARPGROUP_REGISTERS,
};
#define TW_REGISTERS_OF_A_MULTIPROCESSOR 65536
tw_tile tw_tile_of(uint64_t descriptor, bool transposed);
void tw_wgmma_begin(tw_cta* cta);  // forgets the block before
void tw_wgmma_free(tw_cta* cta);
void tw_warpgroup_whole(tw_warp* w, int32_t pc, int lane);
bool tw_wgmma_issue(tw_warp* w, int32_t pc, int lane, const tw_tile* a, const tw_tile* b, int blocks);
void tw_wgmma_commit(tw_warp* w, uint32_t together);
bool tw_wgmma_ready(const tw_warp* w, uint32_t pending);
bool tw_wgmma_early(tw_warp* w);
void tw_wgmma_retire(tw_warp* w, int32_t pc, uint32_t pending, uint32_t together);
void tw_wgmma_recheck(tw_warp* w);
void tw_wgmma_overwritten(tw_warp* w, int32_t pc, int lane, const tw_cta* home, uint32_t offset, uint32_t bytes);
void tw_wgmma_mark(tw_warp* w, int32_t slot, int32_t pc, bool sum);
void tw_wgmma_touch(tw_warp* w, int32_t pc, int lane, int32_t slot, bool writes);
void tw_wgmma_copy(tw_warp* w, int32_t pc, int lane, int32_t to, int32_t from);

// Where 16 bytes of a tile lie: row `row` of the core matrix at `block` (of 8 rows or columns) and `half` of k.
static inline uint32_t tw_tile_chunk(const tw_tile* t, int block, int half, int row) {
  uint32_t b = (uint32_t)block, h = (uint32_t)half, at = t->start + (uint32_t)row * t->pitch, wide = t->pitch / 16;
  if (!t->swizzle) at += b * t->stride + h * t->lead;
  else if (t->transposed) at += b % wide * 16 + b / wide * t->lead + h * t->stride;
  else at += b * t->stride + h * 16;
  return at ^ (((at >> 7) - t->base) & t->swizzle) << 4;
}

// -- printing.c --
void tw_print(tw_warp* w, const tw_instr* i, uint32_t exec);
void tw_assertion(tw_warp* w, const tw_instr* i, uint32_t exec);

// -- interpreter.h, compiled once per width of vectors; schedule.c calls the chosen one --
typedef struct {
  const char* name;
  void (*run_warp)(tw_warp* w);
  const tw_handler* handlers;
} tw_interpreter;
extern const tw_interpreter tw_interpreter_baseline;
#if defined(__x86_64__)
extern const tw_interpreter tw_interpreter_avx2;
#endif
const tw_interpreter* tw_chosen_interpreter(void);

// -- coverage.c --
void tw_cover_loop(tw_warp* w, int32_t mark, int32_t loop);
void tw_cover_end(tw_cta* cta, bool stopped);

// -- counting.c --
void tw_note_touch(const tw_warp* w, tw_touch* touch, uint32_t mask, const uint64_t* address, int size, int how);
void tw_count_global(tw_count* count, uint32_t mask, const uint64_t* address, int size, bool contiguous);
void tw_count_new(const tw_cta* cta, tw_count* count, uint32_t mask, const uint64_t* address, int size);
void tw_count_shared(tw_count* count, uint32_t mask, const uint32_t* address, int size, bool contiguous);

static inline int32_t tw_index_of(const tw_warp* w, const tw_instr* i) {
  return (int32_t)(i - w->cta->program->code);
}

static inline uint64_t tw_random(uint64_t* state) {  // splitmix64
  uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

#endif

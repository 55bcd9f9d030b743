// What the Python side sees of the interpreter: plain structures and a handful of functions.
//
// Every structure is mirrored in native.py; `tw_layout` lets it check the sizes at load time.
#ifndef TW_API_H
#define TW_API_H

#include <stdint.h>

// One decoded instruction as lowering writes it. An operand is a byte offset into the frame, or, with bit 0 set, into
// the constants; bit 1 negates a predicate.
typedef struct {
  uint16_t op;
  uint8_t flags;   // small facts an operation needs, see the operation
  uint8_t count;   // vector elements, or further operands
  int32_t guard;   // predicate operand, or -1
  int32_t o[8];
  int64_t imm;     // address offset, branch reconvergence, immediate data
  uint32_t extra;  // index of further operands in the program's list
  uint32_t mod;    // modifier bits, see modifiers in machine.h
} tw_encoded;

typedef struct {
  int32_t entry;         // index of its first instruction; -1: not part of this program
  int32_t frame_bytes;
  int32_t local_bytes;   // of one thread's activation
  int32_t parameter_at;  // frame offset of its parameters, [32 lanes][parameter_stride]
  int32_t parameter_stride;
  int32_t result_at;
  int32_t result_stride;
  int32_t parameter_bytes;  // without the rounding of the stride
} tw_function;

typedef struct {
  uint64_t address;  // as kernels see it
  uint64_t bytes;
  uint8_t* data;
  uint8_t* state;  // one byte per byte: TW_STATE_*; NULL: all initialised, all inside
  uint16_t* recent;  // per byte: TW_RECENT_* of this launch, above them those of the launches before; NULL: nobody asks
  uint32_t flags;   // TW_REGION_*
  uint32_t id;      // its place in the Memory's list, for names
} tw_region;

#define TW_ALL_WINDOWS_BYTES (1ull << 36)

enum { TW_REGION_WRITABLE = 1, TW_REGION_INPUT = 2, TW_REGION_CONSTANT = 4 };
// Bits of `recent`: two for each launch, the lowest this one's and the highest those of all that are older.
enum { TW_RECENT_WRITTEN = 1, TW_RECENT_READ = 2, TW_RECENT_ALL_WRITTEN = 0x5555 };
enum { TW_STATE_NEVER = 0, TW_STATE_WRITTEN = 1, TW_STATE_IN_FLIGHT = 2, TW_STATE_OUTSIDE = 3,
       TW_STATE_READING = 4 };  // written, and a bulk copy still reads it

enum {
  TW_CHECK_UNINITIALISED = 1,
  TW_CHECK_RACES = 2,
  TW_CHECK_WARP = 4,
  TW_CHECK_COUNTERS = 8,
  TW_CHECK_COVERAGE = 16,
  TW_CHECK_TOUCHES = 32,
};

// What is noted of each instruction: whether lanes ran it, or came to it and did not; which operand a selection took for
// them; and of the mark at the head of a loop how many trips a warp made, each time it came there.
enum {
  TW_COVERED_RAN = 1,
  TW_COVERED_SKIPPED = 2,
  TW_COVERED_FIRST = 4,
  TW_COVERED_SECOND = 8,
  TW_TRIPS_ONE = 16,
  TW_TRIPS_TWO = 32,
  TW_TRIPS_SEVERAL = 64,
  TW_TRIPS_MANY = 128,
};

typedef struct {
  int32_t kind;  // TW_FIND_*
  int32_t instruction;
  int32_t block;   // linear index of the block
  int32_t thread;  // linear index in the block
  int64_t count;
  uint64_t address;  // generic address or a number, by kind
  int32_t size;      // bytes of the access
  int32_t other_instruction;  // -1: none
  int32_t other_block;
  int32_t other_thread;
  int32_t detail;       // by kind
  int32_t other_kind;   // of a race: what the other side did
} tw_finding;

enum {
  TW_FIND_GLOBAL_BOUNDS = 0,
  TW_FIND_SHARED_BOUNDS,
  TW_FIND_LOCAL_BOUNDS,
  TW_FIND_MISALIGNED,
  TW_FIND_UNINITIALISED_SHARED,
  TW_FIND_UNINITIALISED_GLOBAL,
  TW_FIND_UNINITIALISED_LOCAL,
  TW_FIND_RACE_SHARED,
  TW_FIND_RACE_GLOBAL,
  TW_FIND_BARRIER_DIVERGENCE,
  TW_FIND_SHUFFLE_MASK,
  TW_FIND_DEADLOCK,
  TW_FIND_ASYNC_NOT_WAITED,
  TW_FIND_ASYNC_NOT_CONSUMED,
  TW_FIND_INPUT_WRITTEN,
  TW_FIND_TRAP,
  TW_FIND_ASSERTION,
  TW_FIND_BUDGET,
  TW_FIND_BAD_CALL,
  TW_FIND_STACK,
  TW_FIND_STALE_READ,    // through the read-only cache, of what this launch wrote
  TW_FIND_NOT_AWAITED,   // before griddepcontrol.wait, of what the launch before writes or reads
  TW_FIND_LATER_BLOCK,   // waits for a block that need not have started
  TW_FIND_PEER_ABSENT,   // shared memory of another block of the cluster, which may have ended or not begun
  TW_FIND_MBARRIER,      // used as no mbarrier may be; the detail is one of TW_MBARRIER_*
  TW_FIND_NO_PROXY_FENCE,  // the asynchronous proxy reads what threads wrote and no fence.proxy.async showed it
  TW_FIND_BULK_COPY,       // a bulk copy that the hardware refuses
  TW_FIND_WGMMA_IN_FLIGHT,   // a register of a wgmma that nobody has waited for is touched
  TW_FIND_WGMMA_NOT_FENCED,  // a wgmma uses registers that were written since the last wgmma.fence
  TW_FIND_WARPGROUP,         // an instruction of a warpgroup that its warps do not execute as one
  TW_FIND_KINDS
};

// Counters of one instruction, in this order.
typedef struct {
  uint64_t executions, lanes, requests, sectors, ideal_sectors, passes, ideal_passes, bytes, lines, new_sectors;
} tw_count;

// The first request that an instruction made to global memory, of the first warp of the first block that is run.
typedef struct {
  uint64_t address[32];  // of each lane that takes part
  uint32_t lanes;        // 0: there was none
  int32_t size;          // bytes per lane
  int32_t how;           // TW_RACE_READ, _WRITE or _ATOMIC of races.h
  int32_t unused;
} tw_touch;

// -- what the addresses of a sliced program show --

enum { TW_CONTENT_MISSING = 0, TW_CONTENT_GIVEN = 1, TW_CONTENT_WRITTEN = 2 };  // of a region: none, its own, where it was written

// Of one region. Bits stand for its units of 2**shift bytes; NULL: nobody asks.
typedef struct {
  uint64_t* written;
  uint64_t* fresh;    // by plain stores of this launch
  uint64_t* read;
  uint64_t* hollow;   // written without the value, which was sliced away
  uint32_t* owners;   // of each unit, the thread that wrote it last in this launch, plus one
  int32_t shift;
  int32_t content;    // TW_CONTENT_*
  int32_t hollowed;   // something was written without its value, where no bits are kept of that
  int32_t misfit;     // something was written that is no whole number of units
  int64_t twice;      // units that plain stores of this launch wrote again; with owners, only those of other threads
} tw_region_notes;

typedef struct {
  int32_t region, instruction;
  uint64_t unit;
  uint32_t first, second;  // threads of the launch
} tw_twice;

typedef struct {
  uint64_t key;
  int64_t blocks;
  int32_t example;
  int32_t unused;
} tw_path;

typedef struct {
  tw_region_notes* regions;  // in the order of the launch's
  uint64_t* touched;         // by instruction: a bit for each region
  tw_twice* twice;
  tw_path* paths;
  int32_t twice_count, twice_capacity, path_count, path_capacity;
  int32_t missing;  // region on whose contents an address depends, plus one, which are not known
  int32_t missing_instruction;
  uint64_t random;
} tw_notes;

typedef struct tw_program tw_program;

typedef struct {
  const tw_program* program;
  const tw_region* regions;  // sorted by address
  int64_t region_count;
  int32_t grid[3], block[3], cluster[3];
  int32_t explicit_cluster;  // the launch or the kernel asks for clusters
  const uint8_t* parameters;
  int64_t parameter_bytes;
  int32_t dynamic_shared_bytes;
  uint32_t checks;
  int32_t cooperative;
  int32_t overlaps;  // the launch before may still be running, until griddepcontrol.wait
  int32_t inherits;  // blocks find in registers, shared and local memory what others left there, not the fill
  int32_t seeded;    // 2: as many blocks side by side as a GPU may have
  uint64_t seed;
  uint64_t windows, shared_window, local_window, parameter_window;  // the lowest; generic addresses of the spaces
  uint64_t circumstance;  // a number of the run: what clocks and multiprocessors show
  uint32_t total_shared_bytes, aggregate_shared_bytes;  // as a GPU counts them
  uint64_t workspace;  // address that %envreg1 and %envreg2 give: the grid barrier of cooperative groups
  int64_t instruction_budget;
  int64_t race_bytes;  // most memory of the race detector
  const uint8_t* fill;  // what registers, shared and local memory are made of, over and over, until something writes them
  int64_t fill_bytes;
  uint8_t* remains;  // what the last launch left in shared memory, in local memory and in registers, each a third; or NULL
  int64_t remains_bytes;
  int32_t workers;
  int32_t max_findings;
  const int32_t* blocks;  // linear indices of the clusters to run (of the blocks, without clusters); NULL: all
  int64_t block_count;
  uint32_t open_at_start, open_when_awaited;  // bits of `recent`: of launches that may run beside what is before, after the wait
  // results
  tw_finding* findings;
  int64_t finding_count;
  tw_count* counts;  // one per instruction, or NULL
  uint8_t* coverage;  // one per instruction, or NULL
  tw_touch* touches;  // one per instruction, or NULL
  char* printed;
  int64_t printed_capacity, printed_bytes;
  char* messages;  // who waits for whom, one line each
  int64_t message_capacity, message_bytes;
  int64_t thread_instructions, warp_instructions;
  int32_t awaited, awaited_first;  // some thread did; in some block before it let the next launch start
  int32_t ending;  // 0 completed, 1 stopped, 2 out of memory
  uint32_t missed;  // what the race detector could not watch: TW_MISSED_* of races.h
  tw_notes* notes;  // of a sliced program; NULL: of none
} tw_launch;

typedef struct {
  const tw_encoded* code;
  int64_t code_count;
  const int32_t* extra;
  int64_t extra_count;
  const uint8_t* constants;
  int64_t constant_bytes;
  const tw_function* functions;
  int64_t function_count;
  int32_t kernel;  // index into functions
  int32_t static_shared_bytes;
  int32_t local_bytes;  // of one thread, all activations together
  int32_t has_guard_zones;
  int32_t loop_count;
  const int32_t* loop_marks;  // the `loop_enter` of each loop
  const uint8_t* shared_state;  // initial TW_STATE_* of the static part, for guard zones
} tw_program_source;

int64_t tw_layout(int64_t which);
int64_t tw_opcode_count(void);
const char* tw_opcode_name(int64_t index);
const char* tw_width(void);  // which code was chosen for this processor
void tw_choose_width(int32_t baseline);
tw_program* tw_program_new(const tw_program_source* source);
void tw_program_free(tw_program* program);
int32_t tw_run(tw_launch* launch);
int64_t tw_mark(uint64_t* bits, uint64_t first, uint64_t count, int64_t stride, int64_t times);

#endif

// The interpreter proper: the handlers, their table and the loop. Compiled once per width of vectors, so a file that
// includes this first defines TW_INTERPRETER (the name of the table it makes) and sets its target.
#include <stdlib.h>

#include "machine.h"

#include "numeric.h"

#include "integer.h"
#include "bits.h"
#include "compare.h"
#include "floating.h"
#include "convert.h"
#include "memory.h"
#include "atomics.h"
#include "async.h"
#include "distributed.h"
#include "mbarrier.h"
#include "bulk.h"
#include "collective.h"
#include "matrix.h"
#include "wgmma.h"
#include "noted.h"
#include "control.h"

// flags: which register
enum {
  SPECIAL_TID_X, SPECIAL_TID_Y, SPECIAL_TID_Z, SPECIAL_NTID_X, SPECIAL_NTID_Y, SPECIAL_NTID_Z,
  SPECIAL_CTAID_X, SPECIAL_CTAID_Y, SPECIAL_CTAID_Z, SPECIAL_NCTAID_X, SPECIAL_NCTAID_Y, SPECIAL_NCTAID_Z,
  SPECIAL_LANEID, SPECIAL_WARPID, SPECIAL_NWARPID, SPECIAL_SMID, SPECIAL_NSMID, SPECIAL_GRIDID,
  SPECIAL_LANEMASK_EQ, SPECIAL_LANEMASK_LE, SPECIAL_LANEMASK_LT, SPECIAL_LANEMASK_GE, SPECIAL_LANEMASK_GT,
  SPECIAL_CLOCK, SPECIAL_CLOCK_HI, SPECIAL_DYNAMIC_SHARED, SPECIAL_TOTAL_SHARED, SPECIAL_ZERO, SPECIAL_ONE,
  SPECIAL_ENVREG1, SPECIAL_ENVREG2,
  SPECIAL_CLUSTER_CTAID_X, SPECIAL_CLUSTER_CTAID_Y, SPECIAL_CLUSTER_CTAID_Z,
  SPECIAL_CLUSTER_NCTAID_X, SPECIAL_CLUSTER_NCTAID_Y, SPECIAL_CLUSTER_NCTAID_Z,
  SPECIAL_CLUSTERID_X, SPECIAL_CLUSTERID_Y, SPECIAL_CLUSTERID_Z,
  SPECIAL_NCLUSTERID_X, SPECIAL_NCLUSTERID_Y, SPECIAL_NCLUSTERID_Z,
  SPECIAL_CTARANK, SPECIAL_NCTARANK, SPECIAL_EXPLICIT_CLUSTER, SPECIAL_AGGREGATE_SHARED, SPECIAL_CLOCK64,
  SPECIAL_TIMER, SPECIAL_TIMER_HI,
};
// Those from SPECIAL_CLUSTER_CTAID_X to SPECIAL_NCLUSTERID_Z.
static uint32_t tw_special_of_cluster(const tw_warp* w, int which) {
  const tw_launch* launch = w->cta->engine->launch;
  int axis = (which - SPECIAL_CLUSTER_CTAID_X) % 3;
  uint32_t blocks = (uint32_t)launch->cluster[axis], id = w->cta->id[axis];
  if (which < SPECIAL_CLUSTER_NCTAID_X) return id % blocks;
  if (which < SPECIAL_CLUSTERID_X) return blocks;
  if (which < SPECIAL_NCLUSTERID_X) return id / blocks;
  return (uint32_t)launch->grid[axis] / blocks;
}

// What no kernel may depend on: numbers of the run, as a GPU's are. Each block has its own, by `what` they are for.
enum { SMS = 132, MOST_WARPS_OF_AN_SM = 64 };
static uint64_t circumstance_of(const tw_warp* w, uint64_t what) {
  uint64_t state = w->cta->engine->launch->circumstance ^ (uint64_t)w->cta->linear * 0xd1342543de82ef95ull ^ what << 32;
  return tw_random(&state);
}
static uint64_t now(const tw_warp* w) {
  return (w->cta->engine->launch->circumstance >> 20) + w->cta->worker->clock;
}
static uint64_t nanoseconds(const tw_warp* w) {  // since 1970, every 32nd of them
  return (1700000000000000000ull + (w->cta->engine->launch->circumstance >> 8) + w->cta->worker->clock / 2) & ~31ull;
}

static uint32_t tw_special(tw_warp* w, int which, uint32_t lane) {
  const tw_launch* launch = w->cta->engine->launch;
  switch (which) {
    case SPECIAL_TID_X: return w->tid[0][lane];
    case SPECIAL_TID_Y: return w->tid[1][lane];
    case SPECIAL_TID_Z: return w->tid[2][lane];
    case SPECIAL_NTID_X: case SPECIAL_NTID_Y: case SPECIAL_NTID_Z: return (uint32_t)launch->block[which - SPECIAL_NTID_X];
    case SPECIAL_CTAID_X: case SPECIAL_CTAID_Y: case SPECIAL_CTAID_Z: return w->cta->id[which - SPECIAL_CTAID_X];
    case SPECIAL_NCTAID_X: case SPECIAL_NCTAID_Y: case SPECIAL_NCTAID_Z: return (uint32_t)launch->grid[which - SPECIAL_NCTAID_X];
    case SPECIAL_LANEID: return lane;
    case SPECIAL_WARPID: return ((uint32_t)w->index + (uint32_t)circumstance_of(w, 1) % 16 * 4) % MOST_WARPS_OF_AN_SM;
    case SPECIAL_NWARPID: return MOST_WARPS_OF_AN_SM;
    case SPECIAL_SMID: return (uint32_t)(circumstance_of(w, 2) % SMS);
    case SPECIAL_NSMID: return SMS;
    case SPECIAL_GRIDID: return (uint32_t)(launch->circumstance >> 40);
    case SPECIAL_LANEMASK_EQ: return 1u << lane;
    case SPECIAL_LANEMASK_LE: return (1u << lane) | ((1u << lane) - 1);
    case SPECIAL_LANEMASK_LT: return (1u << lane) - 1;
    case SPECIAL_LANEMASK_GE: return ~((1u << lane) - 1);
    case SPECIAL_LANEMASK_GT: return ~((1u << lane) | ((1u << lane) - 1));
    case SPECIAL_CLOCK: return (uint32_t)now(w);
    case SPECIAL_CLOCK_HI: return (uint32_t)(now(w) >> 32);
    case SPECIAL_TIMER: return (uint32_t)nanoseconds(w);
    case SPECIAL_TIMER_HI: return (uint32_t)(nanoseconds(w) >> 32);
    case SPECIAL_DYNAMIC_SHARED: return (uint32_t)launch->dynamic_shared_bytes;
    case SPECIAL_TOTAL_SHARED: return launch->total_shared_bytes;
    case SPECIAL_AGGREGATE_SHARED: return launch->aggregate_shared_bytes;
    case SPECIAL_ONE: return 1;
    case SPECIAL_ENVREG1: return (uint32_t)(launch->workspace >> 32);
    case SPECIAL_ENVREG2: return (uint32_t)launch->workspace;
    case SPECIAL_CTARANK: return (uint32_t)w->cta->rank;
    case SPECIAL_NCTARANK: return (uint32_t)w->cta->cluster->size;
    case SPECIAL_EXPLICIT_CLUSTER: return (uint32_t)launch->explicit_cluster;
    default: return which >= SPECIAL_CLUSTER_CTAID_X ? tw_special_of_cluster(w, which) : 0;
  }
}
// count: bytes of the destination's lanes. A clock moves each time it is read, differently in every run.
TW_HANDLER(special) {
  void* d = tw_slot(w, i->o[0]);
  bool clock = i->flags == SPECIAL_CLOCK || i->flags == SPECIAL_CLOCK_HI || i->flags >= SPECIAL_CLOCK64;
  if (clock) {
    w->cta->worker->clock += 24 + circumstance_of(w, 3 + w->cta->worker->clock) % 64;
    tw_polled(w);
  }
  bool varies = i->flags <= SPECIAL_TID_Z || i->flags == SPECIAL_LANEID ||
                (i->flags >= SPECIAL_LANEMASK_EQ && i->flags <= SPECIAL_LANEMASK_GT);
  uint64_t value = i->flags == SPECIAL_CLOCK64                       ? now(w)
                   : i->flags == SPECIAL_TIMER && i->count == 8 ? nanoseconds(w)
                                                                : tw_special(w, i->flags, 0);
  TW_EACH(exec) {
    if (varies) value = tw_special(w, i->flags, l);
    if (i->count == 8) ((uint64_t*)d)[l] = value;
    else if (i->count == 2) ((uint16_t*)d)[l] = (uint16_t)value;
    else ((uint32_t*)d)[l] = (uint32_t)value;
  }
  return TW_NEXT;
}

TW_HANDLER(printf) {
  tw_print(w, i, exec);
  return TW_NEXT;
}
TW_HANDLER(assertfail) {
  if (!exec) return TW_NEXT;
  tw_assertion(w, i, exec);
  atomic_store(&w->cta->engine->stop, 1);
  return TW_STOP;
}

static const tw_handler table[] = {
#define OP(name) op_##name,
#include "opcodes.def"
#undef OP
};

// Runs a warp until its turn is used up, nothing in it can run, or the launch stops.
static void run_warp(tw_warp* w) {
  tw_worker* worker = w->cta->worker;
  const tw_instr* code = w->cta->program->code;
  tw_count* counts = worker->counts;
  uint8_t* coverage = worker->coverage;
  int64_t threads = 0, warps = 0;
  if (!w->running && !tw_pick_context(w)) return;
  for (;;) {
    const tw_instr* i = code + w->pc;
    uint32_t mask = w->mask;
    int64_t lanes = __builtin_popcount(mask);
    int then;
    for (;;) {
      uint32_t exec = mask;
      if (i->guard >= 0) exec &= tw_predicate(w, i->guard);
      threads += lanes;
      warps++;
      if (counts) {
        tw_count* count = &counts[i - code];
        count->executions++;
        count->lanes += (uint64_t)__builtin_popcount(exec);
      }
      if (coverage) coverage[i - code] |= (uint8_t)((exec != 0) * TW_COVERED_RAN | (exec != mask) * TW_COVERED_SKIPPED);
      then = exec || i->flags & TW_FLAG_CONTROL ? i->run(w, i, exec) : TW_NEXT;
      if (then != TW_NEXT) break;
      i++;
    }
    if (then == TW_JUMP) {
      if (__builtin_expect(w->quantum > 0, 1)) continue;
      tw_set_aside(w, TW_READY, w->pc, true);
      w->starved++;
      break;
    }
    if (then == TW_STOP) break;
    if (w->quantum <= 0 || !tw_pick_context(w)) break;
  }
  worker->thread_instructions += threads;
  worker->warp_instructions += warps;
  worker->unflushed += threads;
}

const tw_interpreter TW_INTERPRETER = {TW_INTERPRETER_NAME, run_warp, table};

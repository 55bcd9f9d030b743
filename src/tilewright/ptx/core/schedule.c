// Blocks and warps in turn, over several OS threads; loading a program; starting and ending a launch.
#include <sched.h>
#include <stdlib.h>

#include "cluster.h"
#include "notes.h"

enum { TURN = 8192, SHORT_TURN = 2, PASSES_BEFORE_OTHERS = 256, MOST_RESIDENT = 4096, IDLE_ROUNDS = 256, FEW_RESIDENT = 4, MANY_RESIDENT = 1024 };
enum { CTA_DONE, CTA_WAITS, CTA_STOPPED };
#define RESIDENT_BYTES (3ll << 29)
#define MANY_RESIDENT_BYTES (1ll << 28)

// -- one block --

static void free_cta(tw_cta* cta) {
  if (!cta) return;
  for (int k = 0; k < cta->warp_count; k++) tw_warp_free(&cta->warps[k]);
  free(cta->warps);
  free(cta->shared);
  free(cta->shared_state);
  free(cta->visits);
  tw_bulk_free(cta);
  if (cta->races) tw_cta_races_destroy(cta->races);
  tw_wgmma_free(cta);
  free(cta);
}

static bool new_warp(tw_cta* cta, int index) {
  tw_warp* w = &cta->warps[index];
  const tw_launch* launch = cta->engine->launch;
  w->cta = cta, w->index = index;
  w->local_stride = cta->engine->local_stride;
  if (w->local_stride) {
    w->local = calloc(TW_LANES, w->local_stride);
    w->local_state = calloc(TW_LANES, w->local_stride);
    if (!w->local || !w->local_state) return false;
  }
  if (cta->worker->coverage) {
    w->trips = calloc((size_t)cta->program->loop_count + 1, sizeof *w->trips);
    if (!w->trips) return false;
  }
  for (int l = 0; l < TW_LANES; l++) {
    uint32_t thread = (uint32_t)(index * TW_LANES + l), x = (uint32_t)launch->block[0], y = (uint32_t)launch->block[1];
    if (thread < (uint32_t)cta->thread_count) w->started |= 1u << l;
    w->tid[0][l] = thread % x, w->tid[1][l] = thread / x % y, w->tid[2][l] = thread / x / y;
  }
  return true;
}

static tw_cta* new_cta(tw_worker* worker) {
  tw_engine* e = worker->engine;
  const tw_launch* launch = e->launch;
  tw_cta* cta = calloc(1, sizeof *cta);
  if (!cta) return NULL;
  cta->engine = e, cta->worker = worker, cta->program = e->program;
  cta->thread_count = launch->block[0] * launch->block[1] * launch->block[2];
  int warps = (cta->thread_count + TW_LANES - 1) / TW_LANES;
  cta->shared_bytes = e->shared_bytes;
  size_t warp_bytes = ((size_t)warps * sizeof(tw_warp) + 63) / 64 * 64;
  cta->warps = aligned_alloc(64, warp_bytes);
  cta->shared = aligned_alloc(128, ((size_t)cta->shared_bytes + 255) / 128 * 128);
  cta->shared_state = malloc((size_t)cta->shared_bytes + 64);
  if (e->races) cta->races = tw_cta_races_create(e->races, cta->shared_bytes);
  bool reached = e->races && e->cluster_size > 1;
  if (reached) cta->visits = calloc(TW_MAX_CLUSTER * TW_MAX_WARPS, sizeof *cta->visits);
  if (!cta->warps || !cta->shared || !cta->shared_state || (e->races && !cta->races) || (reached && !cta->visits)) {
    free_cta(cta);
    return NULL;
  }
  if (reached) tw_cta_races_open(cta->races);
  memset(cta->warps, 0, warp_bytes);
  cta->watch_shared = e->checks & TW_CHECK_UNINITIALISED || e->program->has_guard_zones;
  cta->warp_count = warps;
  for (int k = 0; k < warps; k++)
    if (!new_warp(cta, k)) {
      free_cta(cta);
      return NULL;
    }
  return cta;
}

static bool begin_cta(tw_cta* cta, int32_t linear) {
  const tw_launch* launch = cta->engine->launch;
  const tw_program* p = cta->program;
  cta->linear = linear;
  cta->id[0] = (uint32_t)(linear % launch->grid[0]);
  cta->id[1] = (uint32_t)(linear / launch->grid[0] % launch->grid[1]);
  cta->id[2] = (uint32_t)(linear / launch->grid[0] / launch->grid[1]);
  cta->live_threads = cta->thread_count;
  cta->turn = cta->idle_rounds = 0;
  cta->only_polls = cta->awaited = cta->early = false;
  memset(cta->barriers, 0, sizeof cta->barriers);
  tw_wgmma_begin(cta);
  tw_leave_unwritten(cta, TW_REMAINS_SHARED, cta->shared, cta->shared_bytes, cta->used, (uint64_t)linear);
  memset(cta->shared_state, TW_STATE_NEVER, cta->shared_bytes);
  if (p->static_shared_bytes) memcpy(cta->shared_state, p->shared_state, (size_t)p->static_shared_bytes);
  tw_bulk_begin(cta);
  if (cta->races) tw_cta_races_begin(cta->races, (uint32_t)linear, cta->thread_count);
  for (int k = 0; k < cta->warp_count; k++)
    if (!tw_warp_begin(&cta->warps[k])) return false;
  cta->used = true;
  return true;
}

static bool budget_is_spent(tw_cta* cta, tw_warp* w) {
  tw_engine* e = cta->engine;
  tw_worker* worker = cta->worker;
  long long all = atomic_fetch_add(&e->executed, worker->unflushed) + worker->unflushed;
  worker->unflushed = 0;
  if (all < e->launch->instruction_budget) return false;
  int expected = 0;
  if (atomic_compare_exchange_strong(&e->stop, &expected, 1)) {
    int32_t pc = w->running ? w->pc : w->context_count ? w->contexts[0].pc : 0;
    uint32_t mask = w->running ? w->mask : w->context_count ? w->contexts[0].mask : 1;
    tw_report(w, TW_FIND_BUDGET, pc, mask ? __builtin_ctz(mask) : 0, 0, 0, 0);
    tw_describe_waits(cta);
  }
  return true;
}

// Nothing of the block runs: lanes that wait to meet others of their warp, which wait for something else, go ahead.
static bool release_early(tw_cta* cta) {
  bool released = false;
  for (int k = 0; k < cta->warp_count; k++) released |= tw_release_early(&cta->warps[k]);
  return released;
}

static bool peers_can_run(const tw_cta* cta, bool if_only_to_poll) {
  for (int32_t rank = 0; rank < cta->cluster->size; rank++) {
    const tw_cta* peer = cta->cluster->blocks[rank];
    if (tw_block_can_run(peer) && (if_only_to_poll || !peer->only_polls)) return true;
  }
  return false;
}

// Nothing of the cluster runs: who waits for lanes that never come, or for an mbarrier, goes on without.
static bool give_up(tw_cta* cta) { return tw_force_collective(cta) || tw_mbarrier_expire(cta); }

static bool peers_give_up(tw_cta* cta) {
  for (int32_t rank = 0; rank < cta->cluster->size; rank++) {
    tw_cta* peer = cta->cluster->blocks[rank];
    if (peer != cta && !tw_has_ended(peer) && (release_early(peer) || give_up(peer))) return true;
  }
  return false;
}

static void report_deadlock(tw_cta* cta) {
  const tw_context* shown = NULL;  // the one that tells most: an mbarrier for which some have come and some not
  tw_warp* whose = NULL;
  int most = -1;
  for (int k = 0; k < cta->warp_count; k++) {
    tw_warp* w = &cta->warps[k];
    for (int32_t c = 0; c < w->context_count; c++) {
      const tw_context* x = &w->contexts[c];
      int tells = x->state != TW_AT_MBARRIER ? 0 : 1 + tw_mbarrier_has_begun(cta, x->barrier);
      if (tells > most) most = tells, shown = x, whose = w;
    }
  }
  if (shown) tw_report(whose, TW_FIND_DEADLOCK, shown->pc, __builtin_ctz(shown->mask), shown->barrier, 0, shown->state);
  for (int32_t rank = 0; rank < cta->cluster->size; rank++) tw_describe_waits(cta->cluster->blocks[rank]);
  atomic_store(&cta->engine->stop, 1);
}

// Runs a block until it is done, or until it only waits for other blocks.
static int run_cta(tw_cta* cta) {
  tw_engine* e = cta->engine;
  tw_worker* worker = cta->worker;
  const tw_interpreter* interpreter = tw_chosen_interpreter();
  bool seeded = e->launch->seeded;
  // Of a sample, what warps read is counted as if they went side by side: one finds in the cache what the other left.
  int turn = e->launch->counts && e->launch->blocks ? SHORT_TURN : TURN;
  int passes = seeded ? 1 + (int)(tw_random(&worker->random) % 8) : PASSES_BEFORE_OTHERS * (TURN / turn);
  if (e->launch->seeded > 1) passes = 1;  // all of them side by side
  cta->only_polls = false;
  for (int pass = 0; pass < passes; pass++) {
    bool ran = false, only_polls = true;
    cta->progressed = false;
    int start = seeded ? (int)(tw_random(&worker->random) % (uint64_t)cta->warp_count) : 0;
    for (int k = 0; k < cta->warp_count; k++) {
      tw_warp* w = &cta->warps[(start + k) % cta->warp_count];
      if (w->done) continue;
      if (w->starved > 4 * (w->context_count + 1)) tw_release_early(w);
      if (!tw_has_ready(w)) continue;
      if (atomic_load_explicit(&e->stop, memory_order_relaxed)) return CTA_STOPPED;
      w->quantum = seeded ? 1 + (int64_t)(tw_random(&worker->random) % 512) : turn;
      w->spinning = false;
      interpreter->run_warp(w);
      ran = true;
      bool used_up = w->quantum <= 0 && tw_has_ready(w);
      if (!(used_up && w->spinning)) only_polls = false;
      if (!w->live) w->done = true, cta->progressed = true;
      if (worker->unflushed > 1 << 20 && budget_is_spent(cta, w)) return CTA_STOPPED;
    }
    if (!cta->live_threads) return CTA_DONE;
    if (atomic_load_explicit(&e->stop, memory_order_relaxed)) return CTA_STOPPED;
    if (!ran) {
      if (peers_can_run(cta, false)) return CTA_WAITS;  // what they do may bring its lanes together again
      if (release_early(cta)) continue;
      if (peers_can_run(cta, true)) return CTA_WAITS;
      if (give_up(cta)) continue;
      if (peers_give_up(cta)) return CTA_WAITS;
      report_deadlock(cta);
      return CTA_STOPPED;
    }
    cta->only_polls = only_polls && !cta->progressed;
    if (cta->only_polls) return CTA_WAITS;
  }
  return CTA_WAITS;
}

// A block that has only polled while nothing else ran waits for one that has not started. Where blocks start in order
// all those before it have ended: it needs a later one beside it, and only a cooperative launch is promised that.
// False: it is to poll once more, alone, before that is said.
static bool polled_enough_alone(tw_cta* cta) {
  tw_engine* e = cta->engine;
  const tw_launch* launch = e->launch;
  bool in_order = !launch->seeded && !launch->blocks && launch->workers == 1;
  if (!cta->only_polls || launch->cooperative || !in_order || cta->idle_rounds == IDLE_ROUNDS) return true;
  if (atomic_load(&e->next_block) >= e->block_total) return true;
  cta->idle_rounds = cta->wrote ? 0 : cta->idle_rounds + 1;
  cta->wrote = false;
  if (cta->idle_rounds < IDLE_ROUNDS) return false;
  for (int k = 0; k < cta->warp_count; k++) {
    tw_warp* w = &cta->warps[k];
    for (int32_t c = 0; w->spinning && c < w->context_count; c++) {
      const tw_context* polls = &w->contexts[c];
      if (polls->state == TW_READY) tw_report(w, TW_FIND_LATER_BLOCK, polls->pc, __builtin_ctz(polls->mask), 0, 0, 0);
    }
  }
  return true;
}

// -- one OS thread --

// Blocks are started by clusters, and taken again when all of their cluster have ended: until then others may look at
// their shared memory.
typedef struct {
  tw_cta** resident;
  int count, capacity;
  tw_cta** idle;
  int idle_count;
  tw_cta** made;
  int made_count;
} pool;

static int64_t next_cluster(tw_engine* e) {
  long long at = atomic_fetch_add(&e->next_block, 1);
  if (at >= e->block_total) return -1;
  if (e->order) return e->order[at];
  return e->launch->blocks ? e->launch->blocks[at] : at;
}

// The block of that rank, in the order of the grid.
static int32_t block_of(const tw_launch* launch, int64_t cluster, int32_t rank) {
  const int32_t* extent = launch->cluster;
  int32_t x = launch->grid[0] / extent[0], y = launch->grid[1] / extent[1];
  int32_t first[3] = {(int32_t)(cluster % x) * extent[0], (int32_t)(cluster / x % y) * extent[1],
                      (int32_t)(cluster / x / y) * extent[2]};
  int32_t i = first[0] + rank % extent[0], j = first[1] + rank / extent[0] % extent[1];
  return i + launch->grid[0] * (j + launch->grid[1] * (first[2] + rank / extent[0] / extent[1]));
}

static tw_cta* idle_cta(tw_worker* worker, pool* p) {
  if (p->idle_count) return p->idle[--p->idle_count];
  tw_cta* cta = new_cta(worker);
  if (cta) cta->place = p->made_count, p->made[p->made_count++] = cta;
  return cta;
}

static bool start_another(tw_worker* worker, pool* p) {
  tw_engine* e = worker->engine;
  tw_cta* blocks[TW_MAX_CLUSTER];
  if (p->made_count - p->idle_count + e->cluster_size > p->capacity) return false;
  int64_t cluster = next_cluster(e);
  if (cluster < 0) return false;
  for (int32_t rank = 0; rank < e->cluster_size; rank++) {
    tw_cta* cta = blocks[rank] = idle_cta(worker, p);
    if (!cta || !begin_cta(cta, block_of(e->launch, cluster, rank))) {
      e->out_of_memory = 1;
      atomic_store(&e->stop, 1);
      return false;
    }
    p->resident[p->count++] = cta;
  }
  tw_cluster_begin(blocks, e->cluster_size);
  return true;
}

static void end_waits(const tw_cta* cta) {
  tw_launch* launch = cta->engine->launch;
  if (cta->awaited) launch->awaited = 1;
  if (cta->awaited && !cta->early) launch->awaited_first = 1;
}

static void end_block(pool* p, int at) {
  tw_cluster* cluster = p->resident[at]->cluster;
  tw_bulk_end(p->resident[at]);
  end_waits(p->resident[at]);
  tw_cover_end(p->resident[at], false);
  p->resident[at] = p->resident[--p->count];
  if (--cluster->running) return;
  tw_worker* worker = cluster->blocks[0]->worker;
  if (worker->engine->launch->notes && worker->coverage) tw_note_path(worker, cluster->blocks[0]->linear);
  for (int32_t rank = 0; rank < cluster->size; rank++) p->idle[p->idle_count++] = cluster->blocks[rank];
}

// In order, a cluster is carried to its end before another begins, unless it only polls: perhaps for one to come.
static bool wants_another(const tw_engine* e, const pool* p) {
  bool works = false;
  for (int k = 0; e->cluster_size > 1 && k < p->count; k++)
    works |= !p->resident[k]->only_polls && tw_block_can_run(p->resident[k]);
  return !works;
}

static int64_t bytes_of_a_cta(const tw_engine* e) {
  const tw_launch* launch = e->launch;
  int64_t warps = ((int64_t)launch->block[0] * launch->block[1] * launch->block[2] + 31) / 32;
  int64_t frame = e->program->functions[e->program->kernel].frame_bytes;
  return warps * (frame + 64ll * e->local_stride + (int64_t)sizeof(tw_warp)) + 16ll * e->shared_bytes + 4096;
}

static void* run_worker(void* argument) {
  tw_worker* worker = argument;
  tw_engine* e = worker->engine;
  int64_t room = RESIDENT_BYTES / bytes_of_a_cta(e) + 1;
  if (room < e->cluster_size) room = e->cluster_size;
  pool p = {.capacity = room > MOST_RESIDENT ? MOST_RESIDENT : (int)room};
  p.resident = calloc((size_t)p.capacity, sizeof *p.resident);
  p.idle = calloc((size_t)p.capacity, sizeof *p.idle);
  p.made = calloc((size_t)p.capacity, sizeof *p.made);
  if (!p.resident || !p.idle || !p.made) e->out_of_memory = 1, atomic_store(&e->stop, 1);
  int at = 0, wanted = e->cluster_size > 1 ? 2 * e->cluster_size : FEW_RESIDENT;  // blocks side by side, when seeded
  if (e->launch->seeded > 1) {
    int64_t many = MANY_RESIDENT_BYTES / bytes_of_a_cta(e);
    if (many > wanted) wanted = many > MANY_RESIDENT ? MANY_RESIDENT : (int)many;
  }
  while (!atomic_load(&e->stop)) {
    if (e->launch->seeded) {
      while (p.count < wanted && start_another(worker, &p)) {}
      at = p.count ? (int)(tw_random(&worker->random) % (uint64_t)p.count) : 0;
    }
    if (at >= p.count && !(wants_another(e, &p) && start_another(worker, &p))) {
      if (!p.count) break;
      at = 0;
      if (p.count == 1) sched_yield();
    }
    if (atomic_load(&e->stop)) break;
    int ended = run_cta(p.resident[at]);
    if (ended == CTA_WAITS && p.count == 1 && !polled_enough_alone(p.resident[0])) continue;
    if (ended == CTA_DONE) {
      end_block(&p, at);
      if (at >= p.count) at = p.count;  // a new one first, then the others again
    } else if (ended == CTA_WAITS) {
      if (p.resident[at]->only_polls && wanted == p.count) wanted++;  // perhaps for one that has not started
      at++;
    } else {
      break;
    }
  }
  for (int k = 0; p.resident && k < p.count; k++) tw_cover_end(p.resident[k], true);
  for (int k = 0; p.made && k < p.made_count; k++) {
    if (worker->index == 0) tw_keep_remains(p.made[k]);
    free_cta(p.made[k]);
  }
  free(p.resident);
  free(p.idle);
  free(p.made);
  return NULL;
}

// -- a launch --

static bool shuffle_blocks(tw_engine* e) {
  const tw_launch* launch = e->launch;
  if (!launch->seeded || e->block_total > 1 << 24) return true;
  e->order = malloc((size_t)e->block_total * sizeof *e->order);
  if (!e->order) return false;
  uint64_t state = launch->seed;
  for (int64_t k = 0; k < e->block_total; k++) {
    int64_t other = (int64_t)(tw_random(&state) % (uint64_t)(k + 1));
    int32_t block = launch->blocks ? launch->blocks[k] : (int32_t)k;
    e->order[k] = e->order[other];
    e->order[other] = block;
  }
  return true;
}

static bool new_worker(tw_engine* e, tw_worker* worker, int index) {
  static const tw_region nowhere;
  int64_t count = e->program->code_count;
  worker->engine = e;
  worker->index = index;
  worker->random = e->launch->seed * 0x9e3779b97f4a7c15ull + (uint64_t)index + 1;
  worker->cache = malloc((size_t)count * sizeof *worker->cache);
  if (!worker->cache) return false;
  for (int64_t k = 0; k < count; k++) worker->cache[k] = &nowhere;
  if (e->launch->counts) {
    worker->counts = calloc((size_t)count, sizeof *worker->counts);
    if (!worker->counts) return false;
  }
  worker->touches = e->launch->touches;
  if (e->launch->coverage) {
    worker->coverage = calloc((size_t)count, sizeof *worker->coverage);
    if (!worker->coverage) return false;
  }
  return true;
}

static void finish_worker(tw_engine* e, tw_worker* worker) {
  tw_launch* launch = e->launch;
  launch->thread_instructions += worker->thread_instructions;
  launch->warp_instructions += worker->warp_instructions;
  if (worker->counts && launch->counts) {
    const uint64_t* from = (const uint64_t*)worker->counts;
    uint64_t* to = (uint64_t*)launch->counts;
    int64_t numbers = e->program->code_count * (int64_t)(sizeof(tw_count) / sizeof(uint64_t));
    for (int64_t k = 0; k < numbers; k++) to[k] += from[k];
  }
  for (int64_t k = 0; worker->coverage && k < e->program->code_count; k++) launch->coverage[k] |= worker->coverage[k];
  free(worker->coverage);
  free(worker->cache);
  free(worker->counts);
}

static void run_workers(tw_engine* e, int count) {
  tw_worker* workers = calloc((size_t)count, sizeof *workers);
  bool ready = workers && shuffle_blocks(e);
  for (int k = 0; ready && k < count; k++) ready = new_worker(e, &workers[k], k);
  int started = 1;
  if (ready) {
    while (started < count && pthread_create(&workers[started].thread, NULL, run_worker, &workers[started]) == 0) started++;
    run_worker(&workers[0]);
    for (int k = 1; k < started; k++) pthread_join(workers[k].thread, NULL);
  } else {
    e->out_of_memory = 1;
  }
  for (int k = 0; workers && k < count; k++) finish_worker(e, &workers[k]);
  free(workers);
}

int32_t tw_run(tw_launch* launch) {
  tw_engine engine = {.launch = launch, .program = launch->program, .checks = launch->checks};
  const tw_program* p = launch->program;
  engine.cluster_size = launch->cluster[0] * launch->cluster[1] * launch->cluster[2];
  int64_t blocks = (int64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
  engine.block_total = launch->blocks ? launch->block_count : blocks / engine.cluster_size;
  engine.shared_bytes = (uint32_t)p->static_shared_bytes + (uint32_t)launch->dynamic_shared_bytes;
  engine.local_stride = p->local_bytes;
  engine.local_origin = (TW_LOCAL_END - p->local_bytes) & ~255u;
  pthread_mutex_init(&engine.lock, NULL);
  engine.finding_index = calloc((size_t)p->code_count * TW_FIND_KINDS, sizeof *engine.finding_index);
  int workers = launch->workers < 1 ? 1 : launch->workers > 64 ? 64 : launch->workers;
  if (workers > engine.block_total) workers = (int)engine.block_total;
  if (launch->checks & TW_CHECK_RACES) engine.races = tw_races_create(workers, (size_t)launch->race_bytes);
  if (!engine.finding_index || (launch->checks & TW_CHECK_RACES && !engine.races)) engine.out_of_memory = 1;
  else run_workers(&engine, workers);
  launch->ending = engine.out_of_memory ? 2 : atomic_load(&engine.stop) ? 1 : 0;
  if (engine.races) {
    launch->missed = tw_races_missed(engine.races);
    tw_races_destroy(engine.races);
  }
  free(engine.finding_index);
  free(engine.order);
  pthread_mutex_destroy(&engine.lock);
  return launch->ending;
}

// The graph of what happened before, and the tables that answer questions about it.

#include "races_internal.h"

enum {
  BLOCK_BYTES = 1 << 16,
  GLANCE_NODES = 32,
  KEPT_SLOTS = 1 << 10,  // larger tables are not kept for the next CTA
  VISITED_SLOTS = 1 << 12,  // from here on what was visited is forgotten before the table grows
};

// -- nodes: made by one CTA, read by all, freed with the launch --

void* tw_past_memory(tw_cta_races* cta, size_t bytes) {
  tw_races* races = cta->launch;
  bytes = (bytes + 15) & ~(size_t)15;
  tw_block* block = cta->block;
  if (!block || block->used + bytes > block->size) {
    size_t size = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
    size_t left = atomic_load_explicit(&races->budget_left, memory_order_relaxed);
    block = left < size ? NULL : malloc(sizeof(tw_block) + 16 + size);
    if (!block) {
      atomic_store(&races->clocks_exhausted, 1);
      return NULL;
    }
    atomic_fetch_sub_explicit(&races->budget_left, size, memory_order_relaxed);
    block->used = 0;
    block->size = size;
    pthread_mutex_lock(&races->mutex);
    block->next = races->blocks;
    races->blocks = block;
    pthread_mutex_unlock(&races->mutex);
    cta->block = block;
  }
  void* memory = (char*)block + ((sizeof(tw_block) + 15) & ~(size_t)15) + block->used;
  block->used += bytes;
  return memory;
}

tw_past* tw_past_new(tw_cta_races* cta, const tw_past* a, const tw_past* b) {
  tw_past* past = tw_past_memory(cta, sizeof(tw_past));
  if (!past) return NULL;
  memset(past, 0, sizeof *past);
  past->parent[0] = a;
  past->parent[1] = b;
  past->ordinal = cta->ordinal;
  past->foreign = tw_from_elsewhere(cta, a) || tw_from_elsewhere(cta, b);
  if (a && a->ordinal == cta->ordinal) past->proxy = a->proxy;
  if (b && b->ordinal == cta->ordinal && b->proxy > past->proxy) past->proxy = b->proxy;
  return past;
}

static bool holds(const tw_past* a, const tw_past* b) {
  if (a == b) return true;
  for (int i = 0; i < 2; i++) {
    const tw_past* parent = a->parent[i];
    if (parent && (parent == b || parent->parent[0] == b || parent->parent[1] == b)) return true;
  }
  return false;
}

const tw_past* tw_past_join(tw_cta_races* cta, const tw_past* a, const tw_past* b) {
  if (!a) return b;
  if (!b || holds(a, b)) return a;
  if (holds(b, a)) return b;
  const tw_past* joined = tw_past_new(cta, a, b);
  return joined ? joined : a;  // without memory nothing is reported as unordered any more
}

static uint32_t new_line(tw_cta_races* cta) { return atomic_fetch_add(&cta->launch->lines, 1) + 1; }

// What somebody knows grows; a walk that has come to one step of the line need not look at those before.
void tw_past_grow(tw_cta_races* cta, const tw_past** root, tw_line* line, const tw_past* past) {
  const tw_past* old = *root;
  const tw_past* joined = *root = tw_past_join(cta, past, old);
  if (joined == past || joined == old) return;
  if (!line->line) line->line = new_line(cta);
  ((tw_past*)joined)->line = line->line;
  ((tw_past*)joined)->step = ++line->step;
}

// The same of an object, which hands on all that it was told so far.
const tw_past* tw_past_follow(tw_cta_races* cta, const tw_past* past, const tw_past* so_far) {
  const tw_past* joined = tw_past_join(cta, past, so_far);
  if (joined == past || joined == so_far) return joined;
  bool follows = so_far->line && !so_far->followed;
  ((tw_past*)joined)->line = follows ? so_far->line : new_line(cta);
  ((tw_past*)joined)->step = follows ? so_far->step + 1 : 1;
  ((tw_past*)so_far)->followed = true;
  return joined;
}

// -- tables --

static bool take(tw_known* known, size_t bytes) {
  atomic_size_t* budget = &known->launch->budget_left;
  if (atomic_load_explicit(budget, memory_order_relaxed) < bytes) return false;
  atomic_fetch_sub_explicit(budget, bytes, memory_order_relaxed);
  return true;
}

void tw_known_reset(tw_known* known) {
  bool large = known->visited_capacity > KEPT_SLOTS || known->entry_capacity > KEPT_SLOTS;
  if (large || known->line_capacity > KEPT_SLOTS) tw_known_free(known);
  if (known->visited_count) memset(known->visited, 0, known->visited_capacity * sizeof *known->visited);
  if (known->entry_count) memset(known->entries, 0, known->entry_capacity * sizeof *known->entries);
  if (known->line_count) memset(known->lines, 0, known->line_capacity * sizeof *known->lines);
  known->visited_count = known->entry_count = known->line_count = 0;
  known->absorbed = NULL;
  known->overflow = false;
}

void tw_known_free(tw_known* known) {
  size_t bytes = known->visited_capacity * sizeof *known->visited + known->entry_capacity * sizeof *known->entries +
                 known->line_capacity * sizeof *known->lines;
  if (known->launch) atomic_fetch_add_explicit(&known->launch->budget_left, bytes, memory_order_relaxed);
  free(known->visited);
  free(known->entries);
  free(known->lines);
  memset(known, 0, sizeof *known);
}

static uint32_t mix(uint64_t key) {
  key *= 0x9e3779b97f4a7c15ull;
  return (uint32_t)(key >> 32);
}

// Looked at again are then only those that no line leads to.
static bool forget_visited(tw_known* known) {
  if (known->forgot || known->visited_capacity < VISITED_SLOTS) return false;
  memset(known->visited, 0, known->visited_capacity * sizeof *known->visited);
  known->visited_count = 0;
  return known->forgot = true;
}

static bool visit(tw_known* known, const tw_past* past) {
  if (known->visited_count * 2 >= known->visited_capacity && !forget_visited(known)) {
    uint32_t capacity = known->visited_capacity ? known->visited_capacity * 2 : 64;
    size_t more = (capacity - known->visited_capacity) * sizeof *known->visited;
    const tw_past** larger = capacity > known->limit || !take(known, more) ? NULL : calloc(capacity, sizeof *larger);
    if (!larger) {
      known->overflow = true;
      return false;
    }
    for (uint32_t i = 0; i < known->visited_capacity; i++) {
      if (!known->visited[i]) continue;
      uint32_t slot = mix((uintptr_t)known->visited[i]) & (capacity - 1);
      while (larger[slot]) slot = (slot + 1) & (capacity - 1);
      larger[slot] = known->visited[i];
    }
    free(known->visited);
    known->visited = larger;
    known->visited_capacity = capacity;
  }
  uint32_t slot = mix((uintptr_t)past) & (known->visited_capacity - 1);
  for (; known->visited[slot]; slot = (slot + 1) & (known->visited_capacity - 1)) {
    if (known->visited[slot] == past) return false;
  }
  known->visited[slot] = past;
  known->visited_count++;
  return true;
}

static uint64_t key_of(uint32_t ordinal, uint32_t part) { return ((uint64_t)ordinal << 6 | part) + 1; }

static tw_known_entry* find(const tw_known* known, uint64_t key) {
  if (!known->entry_capacity) return NULL;
  uint32_t slot = mix(key) & (known->entry_capacity - 1);
  for (; known->entries[slot].key; slot = (slot + 1) & (known->entry_capacity - 1)) {
    if (known->entries[slot].key == key) return &known->entries[slot];
  }
  return NULL;
}

static tw_known_entry* find_or_add(tw_known* known, uint64_t key) {
  tw_known_entry* found = find(known, key);
  if (found) return found;
  if (known->entry_count * 2 >= known->entry_capacity) {
    uint32_t capacity = known->entry_capacity ? known->entry_capacity * 2 : 16;
    size_t more = (capacity - known->entry_capacity) * sizeof *known->entries;
    tw_known_entry* larger = capacity > known->limit || !take(known, more) ? NULL : calloc(capacity, sizeof *larger);
    if (!larger) {
      known->overflow = true;
      return NULL;
    }
    for (uint32_t i = 0; i < known->entry_capacity; i++) {
      if (!known->entries[i].key) continue;
      uint32_t slot = mix(known->entries[i].key) & (capacity - 1);
      while (larger[slot].key) slot = (slot + 1) & (capacity - 1);
      larger[slot] = known->entries[i];
    }
    free(known->entries);
    known->entries = larger;
    known->entry_capacity = capacity;
  }
  uint32_t slot = mix(key) & (known->entry_capacity - 1);
  while (known->entries[slot].key) slot = (slot + 1) & (known->entry_capacity - 1);
  known->entries[slot].key = key;
  known->entry_count++;
  return &known->entries[slot];
}

static tw_known_line* line_slot(tw_known_line* lines, uint32_t capacity, uint32_t line) {
  uint32_t slot = mix(line) & (capacity - 1);
  while (lines[slot].line && lines[slot].line != line) slot = (slot + 1) & (capacity - 1);
  return &lines[slot];
}

static tw_known_line* known_line(tw_known* known, uint32_t line) {
  if (known->line_count * 2 >= known->line_capacity) {
    uint32_t capacity = known->line_capacity ? known->line_capacity * 2 : 16;
    size_t more = (capacity - known->line_capacity) * sizeof *known->lines;
    tw_known_line* larger = capacity > known->limit || !take(known, more) ? NULL : calloc(capacity, sizeof *larger);
    if (!larger) {
      known->overflow = true;
      return NULL;
    }
    for (uint32_t i = 0; i < known->line_capacity; i++) {
      if (known->lines[i].line) *line_slot(larger, capacity, known->lines[i].line) = known->lines[i];
    }
    free(known->lines);
    known->lines = larger;
    known->line_capacity = capacity;
  }
  tw_known_line* found = line_slot(known->lines, known->line_capacity, line);
  if (!found->line) {
    found->line = line;
    known->line_count++;
  }
  return found;
}

// Whether an earlier walk has come to the node or to one behind it in its line.
static bool seen_before(tw_known* known, const tw_past* past) {
  tw_known_line* line = past->line ? known_line(known, past->line) : NULL;
  if (!line) return false;
  if (line->walk != known->walk) line->seen = line->reached;
  line->walk = known->walk;
  if (past->step <= line->seen) return true;
  if (line->reached < past->step) line->reached = past->step;
  return false;
}

static void lift(uint32_t* clock, uint32_t to) {
  if (*clock < to) *clock = to;
}

static void learn(tw_known* known, const tw_past* past) {
  if (past->whole_cta) {
    tw_known_entry* entry = find_or_add(known, key_of(past->ordinal, TW_KEY_WHOLE_CTA));
    if (entry) lift(&entry->all, past->whole_cta);
  }
  if (past->lanes || past->lane_row || past->whole_warp) {
    tw_known_entry* entry = find_or_add(known, key_of(past->ordinal, past->warp));
    if (entry) {
      lift(&entry->all, past->whole_warp);
      for (uint32_t lane = 0; lane < 32; lane++) {
        if (past->lanes >> lane & 1) lift(&entry->lanes[lane], past->clock);
        if (past->lane_row) lift(&entry->lanes[lane], past->lane_row[lane]);
      }
    }
  }
  for (uint32_t thread = 0; past->cta_row && thread < past->threads; thread++) {
    if (!past->cta_row[thread]) continue;
    tw_known_entry* entry = find_or_add(known, key_of(past->ordinal, thread >> 5));
    if (entry) lift(&entry->lanes[thread & 31], past->cta_row[thread]);
  }
}

static bool push(tw_cta_races* cta, uint32_t* depth, const tw_past* past) {
  if (*depth == cta->stack_capacity) {
    uint32_t capacity = cta->stack_capacity ? cta->stack_capacity * 2 : 256;
    const tw_past** larger = realloc(cta->stack, capacity * sizeof *larger);
    if (!larger) return false;
    cta->stack = larger;
    cta->stack_capacity = capacity;
  }
  cta->stack[(*depth)++] = past;
  return true;
}

static void absorb(tw_cta_races* cta, tw_known* known, const tw_past* root) {
  uint32_t depth = 0;
  if (known->absorbed == root) return;
  known->absorbed = root;
  known->walk++;
  known->forgot = false;
  if (!push(cta, &depth, root)) known->overflow = true;
  while (depth && !known->overflow) {
    const tw_past* past = cta->stack[--depth];
    if (seen_before(known, past) || !visit(known, past)) continue;
    learn(known, past);
    for (int i = 0; i < 2; i++) {
      if (past->parent[i] && !push(cta, &depth, past->parent[i])) known->overflow = true;
    }
  }
}

static bool tells(const tw_past* past, uint32_t ordinal, uint32_t thread, uint32_t clock) {
  if (past->ordinal != ordinal) return false;
  if (clock < past->whole_cta) return true;
  if (past->cta_row && thread < past->threads && clock < past->cta_row[thread]) return true;
  if (thread >> 5 != past->warp) return false;
  uint32_t lane = thread & 31;
  return clock < past->whole_warp || (past->lanes >> lane & 1 && clock < past->clock) ||
         (past->lane_row && clock < past->lane_row[lane]);
}

// Mostly the answer is among the newest nodes, and no table is needed.
static bool glance(const tw_past* root, uint32_t ordinal, uint32_t thread, uint32_t clock) {
  const tw_past* queue[GLANCE_NODES] = {root};
  int count = 1;
  for (int i = 0; i < count; i++) {
    if (tells(queue[i], ordinal, thread, clock)) return true;
    for (int k = 0; k < 2; k++) {
      if (queue[i]->parent[k] && count < GLANCE_NODES) queue[count++] = queue[i]->parent[k];
    }
  }
  return false;
}

static bool answers(tw_cta_races* cta, tw_known* known, uint32_t limit, const tw_past* root, uint32_t ordinal,
                    uint32_t thread, uint32_t clock) {
  if (!root) return false;
  if (known->absorbed != root && glance(root, ordinal, thread, clock)) return true;
  known->launch = cta->launch;
  known->limit = limit;
  absorb(cta, known, root);
  if (known->overflow) {
    tw_miss(cta->launch, TW_MISSED_ORDER);
    return true;
  }
  const tw_known_entry* entry = find(known, key_of(ordinal, TW_KEY_WHOLE_CTA));
  if (entry && clock < entry->all) return true;
  entry = find(known, key_of(ordinal, thread >> 5));
  return entry && (clock < entry->all || clock < entry->lanes[thread & 31]);
}

bool tw_knows(tw_cta_races* cta, int warp, int lane, uint32_t ordinal, uint32_t thread, uint32_t clock) {
  enum { LIMIT_CTA = 1 << 20, LIMIT_WARP = 1 << 19, LIMIT_THREAD = 1 << 17 };
  if (atomic_load_explicit(&cta->launch->clocks_exhausted, memory_order_relaxed)) {
    tw_miss(cta->launch, TW_MISSED_ORDER);
    return true;
  }
  if (answers(cta, &cta->cta_known, LIMIT_CTA, cta->cta_root, ordinal, thread, clock)) return true;
  if (answers(cta, &cta->warp_known[warp], LIMIT_WARP, cta->warp_root[warp], ordinal, thread, clock)) return true;
  int self = warp * 32 + lane;
  if (!cta->thread_root[self]) return false;
  if (!cta->thread_known) cta->thread_known = calloc(TW_RACE_MAX_THREADS, sizeof *cta->thread_known);
  if (!cta->thread_known) {
    tw_miss(cta->launch, TW_MISSED_ORDER);
    return true;
  }
  return answers(cta, &cta->thread_known[self], LIMIT_THREAD, cta->thread_root[self], ordinal, thread, clock);
}

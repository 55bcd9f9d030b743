// Where the lanes of a warp part and meet: contexts, nodes, calls.
#include <stdlib.h>

#include "machine.h"

static int32_t new_node(tw_warp* w) {
  for (int32_t k = 0; k < w->node_capacity; k++)
    if (!w->nodes[k].used) return k;
  int32_t capacity = w->node_capacity ? 2 * w->node_capacity : 16;
  tw_node* grown = realloc(w->nodes, (size_t)capacity * sizeof *grown);
  if (!grown) return -1;
  memset(grown + w->node_capacity, 0, (size_t)(capacity - w->node_capacity) * sizeof *grown);
  w->nodes = grown;
  int32_t first = w->node_capacity;
  w->node_capacity = capacity;
  return first;
}

static int out_of_memory(tw_warp* w) {
  w->cta->engine->out_of_memory = 1;
  atomic_store(&w->cta->engine->stop, 1);
  return TW_STOP;
}

static void push(tw_warp* w, uint32_t mask, int32_t pc, int32_t node, int32_t frame) {
  w->contexts[w->context_count++] = (tw_context){.mask = mask, .pc = pc, .node = node, .frame = frame, .state = TW_READY};
}

static void free_frame(tw_warp* w, int32_t frame) {
  w->frames[frame].used = false;
}

// Every lane under the node has arrived or left: those that arrived go on together.
static void complete(tw_warp* w, int32_t node) {
  tw_node* n = &w->nodes[node];
  if (n->arrived) push(w, n->arrived, n->pc, n->parent, n->frame);
  if (n->callee_frame >= 0) free_frame(w, n->callee_frame);
  n->used = false;
  w->starved = 0;
}

// Splits the running context over several targets that meet again at `meet` (-1: only at the end).
int tw_fan_out(tw_warp* w, int count, const uint32_t* masks, const int32_t* targets, int32_t meet) {
  int32_t node = w->node;
  bool same = node >= 0 && w->nodes[node].pc == meet && w->nodes[node].frame == w->frame && w->nodes[node].callee_frame < 0;
  if (meet >= 0 && !same) {
    node = new_node(w);
    if (node < 0) return out_of_memory(w);
    w->nodes[node] = (tw_node){.pc = meet, .parent = w->node, .frame = w->frame, .callee_frame = -1, .pending = w->mask,
                               .used = true};
  }
  int32_t first = w->context_count;
  for (int k = 0; k < count; k++) {
    if (meet >= 0 && targets[k] == meet) {
      w->nodes[node].arrived |= masks[k];
      w->nodes[node].pending &= ~masks[k];
    } else {
      push(w, masks[k], targets[k], node, w->frame);
    }
  }
  int32_t pushed = w->context_count - first, run = w->context_count - 1;
  if (pushed > 1 && w->cta->engine->launch->seeded)
    run = first + (int32_t)(tw_random(&w->cta->worker->random) % (uint64_t)pushed);
  tw_context c = w->contexts[run];
  w->contexts[run] = w->contexts[--w->context_count];
  w->mask = c.mask, w->pc = c.pc, w->node = c.node;
  return TW_JUMP;
}

// The running context stands where a node may be waiting for it.
int tw_meet(tw_warp* w, int32_t pc) {
  while (w->node >= 0) {
    tw_node* n = &w->nodes[w->node];
    if (n->pc != pc || n->frame != w->frame || n->callee_frame >= 0) break;
    n->arrived |= w->mask;
    n->pending &= ~w->mask;
    w->starved = 0;
    if (n->pending) {
      w->running = false;
      return TW_SWITCH;
    }
    w->mask = n->arrived;
    w->node = n->parent;
    n->used = false;
  }
  w->pc = pc + 1;
  return TW_JUMP;
}

// Takes lanes out of every node from the running context's up to, not including, `until`.
static void withdraw(tw_warp* w, uint32_t mask, int32_t until) {
  int32_t node = w->node;
  while (node >= 0 && node != until) {
    int32_t parent = w->nodes[node].parent;
    w->nodes[node].pending &= ~mask;
    if (!w->nodes[node].pending) {
      if (w->node == node) w->node = parent;  // only when nothing of the running context is left under it
      complete(w, node);
    }
    node = parent;
  }
}

// Lanes end. The others of the context go on.
int tw_leave(tw_warp* w, uint32_t mask) {
  w->live &= ~mask;
  w->cta->live_threads -= __builtin_popcount(mask & w->started);
  w->starved = 0;
  withdraw(w, mask, -1);
  w->mask &= ~mask;
  if (w->mask) {
    w->pc++;
    return TW_JUMP;
  }
  w->running = false;
  return TW_SWITCH;
}

// -- calls --

static int32_t new_frame(tw_warp* w, int32_t bytes) {
  int32_t k = 0;
  while (k < w->frame_capacity && w->frames[k].used) k++;
  if (k == w->frame_capacity) {
    int32_t capacity = w->frame_capacity ? 2 * w->frame_capacity : 4;
    tw_frame* grown = realloc(w->frames, (size_t)capacity * sizeof *grown);
    if (!grown) return -1;
    memset(grown + w->frame_capacity, 0, (size_t)(capacity - w->frame_capacity) * sizeof *grown);
    w->frames = grown;
    w->frame_capacity = capacity;
  }
  tw_frame* f = &w->frames[k];
  bool used = f->capacity >= bytes;
  if (!used) {
    free(f->registers);
    w->frame_bytes += bytes - f->capacity;
    f->capacity = 0;
    f->registers = aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64);
    if (!f->registers) return -1;
    f->capacity = bytes;
  }
  tw_leave_unwritten(w->cta, TW_REMAINS_REGISTERS, f->registers, (size_t)bytes, used, (uint64_t)w->index);
  f->used = true;
  return k;
}

static void copy_lanes(uint8_t* to, int32_t to_stride, const uint8_t* from, int32_t from_stride, uint32_t mask) {
  int32_t bytes = to_stride < from_stride ? to_stride : from_stride;
  if (bytes <= 0) return;
  for (int l = 0; l < TW_LANES; l++)
    if (mask >> l & 1) memcpy(to + l * to_stride, from + l * from_stride, (size_t)bytes);
}

// The call's further operands: count of arguments, then per argument frame offset, stride, bytes and place among the
// callee's parameters; then the same for at most one result.
int tw_call(tw_warp* w, uint32_t exec, const tw_instr* i, int32_t function) {
  const tw_program* p = w->cta->program;
  const tw_function* f = &p->functions[function];
  const tw_frame* caller = &w->frames[w->frame];
  int32_t depth = caller->depth + 1;
  uint32_t base = caller->local_base + (uint32_t)p->functions[caller->function].local_bytes;
  if (depth > TW_MAX_CALL_DEPTH || base + (uint64_t)f->local_bytes > w->local_stride ||
      w->frame_bytes + f->frame_bytes > TW_FRAME_LIMIT) {
    tw_report(w, TW_FIND_STACK, w->pc, __builtin_ctz(exec), (uint64_t)depth, 0, 0);
    atomic_store(&w->cta->engine->stop, 1);
    return TW_STOP;
  }
  int32_t frame = new_frame(w, f->frame_bytes), node = new_node(w);
  if (frame < 0 || node < 0) return out_of_memory(w);
  const tw_frame* from = &w->frames[w->frame];
  tw_frame* to = &w->frames[frame];
  to->function = function, to->call_pc = w->pc, to->caller = w->frame, to->depth = depth, to->local_base = base;
  const int32_t* list = p->extra + i->extra;
  int32_t arguments = *list++;
  for (int32_t k = 0; k < arguments; k++, list += 4)
    for (int l = 0; l < TW_LANES; l++)
      if (exec >> l & 1)
        memcpy(to->registers + f->parameter_at + l * f->parameter_stride + list[3], from->registers + list[0] + l * list[1],
               (size_t)list[2]);
  for (int l = 0; l < TW_LANES; l++)
    if (exec >> l & 1) memset(w->local_state + (size_t)l * w->local_stride + base, TW_STATE_NEVER, (size_t)f->local_bytes);
  if (base + (uint32_t)f->local_bytes > w->local_used) w->local_used = base + (uint32_t)f->local_bytes;
  w->nodes[node] = (tw_node){.pc = w->pc + 1, .parent = w->node, .frame = w->frame, .callee_frame = frame, .pending = exec,
                             .arrived = w->mask & ~exec, .used = true};
  w->node = node;
  w->mask = exec;
  w->frame = frame;
  w->base[0] = to->registers;
  w->pc = f->entry;
  return TW_JUMP;
}

int tw_return(tw_warp* w, uint32_t mask) {
  int32_t node = w->node;
  while (w->nodes[node].callee_frame < 0) node = w->nodes[node].parent;
  const tw_program* p = w->cta->program;
  tw_frame *callee = &w->frames[w->frame], *caller = &w->frames[callee->caller];
  const tw_function* f = &p->functions[callee->function];
  const int32_t* list = p->extra + p->code[callee->call_pc].extra;
  list += 1 + 4 * list[0];
  if (*list) copy_lanes(caller->registers + list[1], list[2], callee->registers + f->result_at, f->result_stride, mask);
  withdraw(w, mask, node);
  tw_node* n = &w->nodes[node];
  n->arrived |= mask;
  n->pending &= ~mask;
  w->starved = 0;
  w->mask &= ~mask;
  if (n->pending) {
    if (w->mask) {
      w->pc++;
      return TW_JUMP;
    }
    w->running = false;
    return TW_SWITCH;
  }
  free_frame(w, n->callee_frame);
  w->mask = n->arrived, w->pc = n->pc, w->node = n->parent, w->frame = n->frame;
  w->base[0] = w->frames[w->frame].registers;
  n->used = false;
  return TW_JUMP;
}

// -- choosing what runs --

// Puts the running context away; `last`: behind the others, so that they have their turn first.
void tw_set_aside(tw_warp* w, tw_context_state state, int32_t pc, bool last) {
  tw_context c = {.mask = w->mask, .pc = pc, .node = w->node, .frame = w->frame, .state = (uint8_t)state};
  if (last) {
    memmove(w->contexts + 1, w->contexts, (size_t)w->context_count * sizeof c);
    w->contexts[0] = c;
    w->context_count++;
  } else {
    w->contexts[w->context_count++] = c;
  }
  w->running = false;
}

bool tw_has_ready(const tw_warp* w) {
  if (w->running) return true;
  for (int32_t k = 0; k < w->context_count; k++)
    if (w->contexts[k].state == TW_READY) return true;
  return false;
}

bool tw_pick_context(tw_warp* w) {
  int32_t found = -1;
  if (w->cta->engine->launch->seeded && w->context_count > 1) {
    int32_t start = (int32_t)(tw_random(&w->cta->worker->random) % (uint64_t)w->context_count);
    for (int32_t k = 0; k < w->context_count && found < 0; k++) {
      int32_t at = (start + k) % w->context_count;
      if (w->contexts[at].state == TW_READY) found = at;
    }
  } else {
    for (int32_t k = w->context_count - 1; k >= 0 && found < 0; k--)
      if (w->contexts[k].state == TW_READY) found = k;
  }
  if (found < 0) return false;
  tw_context c = w->contexts[found];
  memmove(w->contexts + found, w->contexts + found + 1, (size_t)(w->context_count - found - 1) * sizeof c);
  w->context_count--;
  w->mask = c.mask, w->pc = c.pc, w->node = c.node, w->frame = c.frame;
  w->base[0] = w->frames[w->frame].registers;
  w->running = true;
  return true;
}

// Lanes that wait at a meeting point while the others only spin go ahead alone: one of them may hold the lock.
bool tw_release_early(tw_warp* w) {
  bool released = false;
  w->starved = 0;
  for (int32_t k = 0; k < w->node_capacity; k++) {
    tw_node* n = &w->nodes[k];
    if (!n->used || !n->arrived) continue;
    push(w, n->arrived, n->pc, n->parent, n->frame);
    n->arrived = 0;
    released = true;
  }
  return released;
}

// -- a warp's life --

bool tw_warp_begin(tw_warp* w) {
  const tw_program* p = w->cta->program;
  const tw_function* kernel = &p->functions[p->kernel];
  for (int32_t k = 0; k < w->node_capacity; k++) w->nodes[k].used = false;
  for (int32_t k = 0; k < w->frame_capacity; k++) w->frames[k].used = false;
  int32_t frame = new_frame(w, kernel->frame_bytes);
  if (frame < 0) return false;
  tw_frame* f = &w->frames[frame];
  f->function = p->kernel, f->call_pc = -1, f->caller = -1, f->depth = 0, f->local_base = 0;
  w->base[0] = f->registers;
  w->base[1] = p->constants;
  w->mask = w->live = w->started;
  w->pc = kernel->entry;
  w->node = -1;
  w->frame = frame;
  w->running = true;
  w->done = w->spinning = false;
  w->awaited = !w->cta->engine->launch->overlaps;
  w->starved = 0;
  w->forced_pc = -1;
  w->context_count = 0;
  w->carry = 0;
  w->cluster_arrived = w->cluster_passes = w->cluster_opening = 0;
  w->copy_count = 0;
  if (w->trips) memset(w->trips, 0, (size_t)p->loop_count * sizeof *w->trips);
  memset(w->open_group, 0, sizeof w->open_group);
  if (w->local_stride) {
    uint32_t used = w->local_used ? w->local_used : (uint32_t)kernel->local_bytes;
    for (int l = 0; l < TW_LANES; l++) {
      size_t at = (size_t)l * w->local_stride;
      memset(w->local_state + at, TW_STATE_NEVER, used);
      tw_leave_unwritten(w->cta, TW_REMAINS_LOCAL, w->local + at, used, w->cta->used, (uint64_t)(w->index * TW_LANES + l));
    }
    w->local_used = (uint32_t)kernel->local_bytes;
  }
  return true;
}

void tw_warp_free(tw_warp* w) {
  for (int32_t k = 0; k < w->frame_capacity; k++) free(w->frames[k].registers);
  free(w->frames);
  free(w->nodes);
  free(w->local);
  free(w->local_state);
  free(w->copies);
  free(w->flights);
  free(w->trips);
}

// A decoded program, the names of its operations, and which interpreter runs it.
#include <stdlib.h>

#include "machine.h"

static const char* const names[] = {
#define OP(name) #name,
#include "opcodes.def"
#undef OP
};
enum { OPCODES = sizeof names / sizeof *names };

int64_t tw_opcode_count(void) { return OPCODES; }
const char* tw_opcode_name(int64_t index) { return index >= 0 && index < OPCODES ? names[index] : ""; }

int64_t tw_layout(int64_t which) {
  const int64_t sizes[] = {sizeof(tw_encoded), sizeof(tw_function), sizeof(tw_region), sizeof(tw_finding),
                           sizeof(tw_count),   sizeof(tw_launch),   sizeof(tw_program_source), sizeof(tw_touch),
                           sizeof(tw_region_notes), sizeof(tw_twice), sizeof(tw_path), sizeof(tw_notes)};
  return which >= 0 && which < (int64_t)(sizeof sizes / sizeof *sizes) ? sizes[which] : -1;
}

static const tw_interpreter* chosen;

const tw_interpreter* tw_chosen_interpreter(void) {
  if (chosen) return chosen;
  const tw_interpreter* best = &tw_interpreter_baseline;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
      __builtin_cpu_supports("bmi2"))
    best = &tw_interpreter_avx2;
#endif
  chosen = best;
  return best;
}

const char* tw_width(void) { return tw_chosen_interpreter()->name; }

// 0: what the processor can do best; 1: the baseline. Programs made before keep theirs.
void tw_choose_width(int32_t which) {
  chosen = NULL;
  if (which == 1) chosen = &tw_interpreter_baseline;
}

static void* copy(const void* from, size_t bytes) {
  void* to = aligned_alloc(64, (bytes + 127) / 64 * 64);
  if (to) memset(to, 0, (bytes + 127) / 64 * 64);
  if (to && bytes) memcpy(to, from, bytes);
  return to;
}

void tw_program_free(tw_program* p) {
  if (!p) return;
  free(p->code);
  free(p->extra);
  free(p->constants);
  free(p->functions);
  free(p->shared_state);
  free(p->loop_marks);
  free(p);
}

tw_program* tw_program_new(const tw_program_source* s) {
  tw_program* p = calloc(1, sizeof *p);
  if (!p) return NULL;
  const tw_interpreter* interpreter = tw_chosen_interpreter();
  p->code_count = s->code_count;
  p->code = aligned_alloc(64, (size_t)s->code_count * sizeof(tw_instr));
  p->extra = copy(s->extra, (size_t)s->extra_count * sizeof *p->extra);
  p->constants = copy(s->constants, (size_t)s->constant_bytes);
  p->functions = copy(s->functions, (size_t)s->function_count * sizeof *p->functions);
  p->shared_state = copy(s->shared_state, (size_t)s->static_shared_bytes);
  p->loop_marks = copy(s->loop_marks, (size_t)s->loop_count * sizeof *p->loop_marks);
  if (!p->code || !p->extra || !p->constants || !p->functions || !p->shared_state || !p->loop_marks) {
    tw_program_free(p);
    return NULL;
  }
  p->function_count = s->function_count;
  p->kernel = s->kernel;
  p->loop_count = s->loop_count;
  p->static_shared_bytes = s->static_shared_bytes;
  p->local_bytes = (uint32_t)s->local_bytes;
  p->has_guard_zones = s->has_guard_zones;
  for (int64_t k = 0; k < s->code_count; k++) {
    const tw_encoded* from = &s->code[k];
    tw_instr* to = &p->code[k];
    if (from->op >= OPCODES) {
      tw_program_free(p);
      return NULL;
    }
    *to = (tw_instr){.run = interpreter->handlers[from->op], .op = from->op, .flags = from->flags, .count = from->count,
                     .guard = from->guard, .imm = from->imm, .extra = from->extra, .mod = from->mod};
    memcpy(to->o, from->o, sizeof to->o);
  }
  return p;
}

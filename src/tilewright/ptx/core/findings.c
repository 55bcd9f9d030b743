// Findings: one per kind and instruction, the first thread shown, the others counted.
#include <stdarg.h>
#include <stdio.h>

#include "machine.h"

void tw_report_full(tw_engine* e, const tw_finding* f) {
  pthread_mutex_lock(&e->lock);
  tw_launch* launch = e->launch;
  int32_t* slot = &e->finding_index[(int64_t)f->kind * e->program->code_count + f->instruction];
  if (!*slot) {
    if (launch->finding_count < launch->max_findings) {
      launch->findings[launch->finding_count++] = *f;
      *slot = (int32_t)launch->finding_count;
    }
  } else {
    tw_finding* known = &launch->findings[*slot - 1];
    int64_t count = known->count + f->count;
    if (f->block < known->block) *known = *f;  // the same one is shown however many OS threads there are
    known->count = count;
  }
  pthread_mutex_unlock(&e->lock);
}

tw_finding tw_finding_of(const tw_warp* w, int kind, int instruction, int lane) {
  return (tw_finding){.kind = kind,
                      .instruction = instruction,
                      .block = w->cta->linear,
                      .thread = w->index * TW_LANES + lane,
                      .count = 1,
                      .other_instruction = -1,
                      .other_block = -1,
                      .other_thread = -1};
}

void tw_report(tw_warp* w, int kind, int instruction, int lane, uint64_t address, int size, int detail) {
  tw_finding f = tw_finding_of(w, kind, instruction, lane);
  f.address = address, f.size = size, f.detail = detail;
  tw_report_full(w->cta->engine, &f);
}

void tw_report_race(tw_warp* w, int kind, int instruction, int size, const tw_race_report* race, int conflicts) {
  if (race->kind == TW_RACE_NONE) {
    // Reported before: only the count goes up, at the same instruction.
    tw_engine* e = w->cta->engine;
    pthread_mutex_lock(&e->lock);
    int32_t slot = e->finding_index[(int64_t)kind * e->program->code_count + instruction];
    if (slot) e->launch->findings[slot - 1].count += conflicts;
    pthread_mutex_unlock(&e->lock);
    return;
  }
  if (race->kind == TW_RACE_ASYNC_NOT_WAITED) kind = TW_FIND_ASYNC_NOT_WAITED;
  if (race->kind == TW_RACE_ASYNC_NOT_CONSUMED) kind = TW_FIND_ASYNC_NOT_CONSUMED;
  if (race->kind == TW_RACE_NOT_FENCED) kind = TW_FIND_NO_PROXY_FENCE;
  tw_finding f = {.kind = kind,
                  .instruction = race->instr >= 0 ? race->instr : instruction,
                  .block = (int32_t)race->cta,
                  .thread = (int32_t)race->thread,
                  .count = conflicts,
                  .address = race->is_shared ? TW_SHARED_WINDOW + race->address : race->address,
                  .size = size,
                  .other_instruction = race->other_instr,
                  .other_block = (int32_t)race->other_cta,
                  .other_thread = (int32_t)race->other_thread,
                  .detail = race->kind,
                  .other_kind = race->other_is_async};
  tw_report_full(w->cta->engine, &f);
}

void tw_message(tw_engine* e, const char* format, ...) {
  tw_launch* launch = e->launch;
  pthread_mutex_lock(&e->lock);
  int64_t room = launch->message_capacity - launch->message_bytes;
  if (room > 1) {
    va_list arguments;
    va_start(arguments, format);
    int wrote = vsnprintf(launch->messages + launch->message_bytes, (size_t)room, format, arguments);
    va_end(arguments);
    if (wrote > 0) launch->message_bytes += wrote < room ? wrote : room - 1;
  }
  pthread_mutex_unlock(&e->lock);
}

// printf and assert from kernels: text through the machine's addresses, with every length bounded.
#include <stdio.h>

#include "lanes.h"

enum { LONGEST_FORMAT = 4096, LONGEST_STRING = 4096, LONGEST_LINE = 16384 };

// One byte at a generic address; false: there is none.
static bool peek(const tw_warp* w, int lane, uint64_t address, uint8_t* byte) {
  const tw_launch* launch = w->cta->engine->launch;
  if (address - launch->local_window < TW_WINDOW_BYTES) {
    uint64_t offset = address - launch->local_window - w->cta->engine->local_origin;
    if (offset >= w->local_stride) return false;
    *byte = w->local[(size_t)lane * w->local_stride + offset];
    return true;
  }
  if (address - launch->shared_window < TW_WINDOW_BYTES) {
    uint64_t offset = address - launch->shared_window;
    if (offset >= w->cta->shared_bytes) return false;
    *byte = w->cta->shared[offset];
    return true;
  }
  int64_t low = 0, high = launch->region_count;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (launch->regions[middle].address <= address) low = middle + 1;
    else high = middle;
  }
  if (!low || address - launch->regions[low - 1].address >= launch->regions[low - 1].bytes) return false;
  *byte = launch->regions[low - 1].data[address - launch->regions[low - 1].address];
  return true;
}

static bool peek_bytes(const tw_warp* w, int lane, uint64_t address, void* to, int count) {
  for (int k = 0; k < count; k++)
    if (!peek(w, lane, address + (uint64_t)k, (uint8_t*)to + k)) return false;
  return true;
}

static int peek_string(const tw_warp* w, int lane, uint64_t address, char* to, int capacity) {
  int length = 0;
  while (length < capacity - 1) {
    uint8_t byte;
    if (!peek(w, lane, address + (uint64_t)length, &byte) || !byte) break;
    to[length++] = (char)byte;
  }
  to[length] = 0;
  return length;
}

static void emit(tw_engine* e, const char* text, int length) {
  tw_launch* launch = e->launch;
  pthread_mutex_lock(&e->lock);
  int64_t room = launch->printed_capacity - launch->printed_bytes;
  if (length > room) length = (int)room;
  if (length > 0) memcpy(launch->printed + launch->printed_bytes, text, (size_t)length);
  launch->printed_bytes += length > 0 ? length : 0;
  pthread_mutex_unlock(&e->lock);
}

typedef struct {
  const tw_warp* w;
  int lane;
  uint64_t arguments;
  char* out;
  int length;
} printer;

static bool take(printer* p, void* value, int bytes) {
  p->arguments = (p->arguments + (uint64_t)bytes - 1) / (uint64_t)bytes * (uint64_t)bytes;
  if (!peek_bytes(p->w, p->lane, p->arguments, value, bytes)) return false;
  p->arguments += (uint64_t)bytes;
  return true;
}

static void append(printer* p, const char* text) {
  size_t room = (size_t)(LONGEST_LINE - 1 - p->length), length = strlen(text);
  if (length > room) length = room;
  memcpy(p->out + p->length, text, length);
  p->length += (int)length;
}

static int digits(const char** s, int* value) {  // false when it is too long to honour
  *value = 0;
  while (**s >= '0' && **s <= '9') {
    *value = *value * 10 + (**s - '0');
    if (*value > 1000) return 0;
    ++*s;
  }
  return 1;
}

// One conversion: flags, width, precision and length are read here; the host's snprintf gets a rebuilt, bounded one.
static const char* conversion(printer* p, const char* s) {
  char flags[8] = "", spec[40], text[LONGEST_STRING + 1100];
  int flag_count = 0, width = 0, precision = -1, longs = 0;
  const char* start = s;
  while (*s && strchr("-+ #0", *s) && flag_count < 5) flags[flag_count++] = *s++;
  flags[flag_count] = 0;
  if (*s == '*') {
    if (!take(p, &width, 4)) return start;
    s++;
  } else if (!digits(&s, &width)) return start;
  if (*s == '.') {
    s++;
    if (*s == '*') {
      if (!take(p, &precision, 4)) return start;
      s++;
    } else if (!digits(&s, &precision)) return start;
  }
  if (width > 1000 || width < -1000 || precision > 1000) width = 0, precision = -1;
  while (*s == 'l' || *s == 'h' || *s == 'z' || *s == 'j' || *s == 't') longs += *s == 'l' || *s == 'z' || *s == 'j' || *s == 't', s++;
  char kind = *s;
  if (!kind) return s;
  s++;
  if (kind == '%') {
    append(p, "%");
    return s;
  }
  if (strchr("diouxXc", kind)) {
    long long value = 0;
    if (longs && kind != 'c') {
      if (!take(p, &value, 8)) return s;
    } else {
      int narrow = 0;
      if (!take(p, &narrow, 4)) return s;
      value = kind == 'd' || kind == 'i' ? narrow : (long long)(unsigned)narrow;
    }
    if (kind == 'c') {
      snprintf(spec, sizeof spec, "%%%s*c", flags);
      snprintf(text, sizeof text, spec, width, (int)value);
    } else {
      snprintf(spec, sizeof spec, "%%%s*.*ll%c", flags, kind);
      snprintf(text, sizeof text, spec, width, precision, value);
    }
  } else if (strchr("fFeEgGaA", kind)) {
    double value = 0;
    if (!take(p, &value, 8)) return s;
    snprintf(spec, sizeof spec, "%%%s*.*%c", flags, kind);
    snprintf(text, sizeof text, spec, width, precision, value);
  } else if (kind == 'p') {
    unsigned long long value = 0;
    if (!take(p, &value, 8)) return s;
    snprintf(text, sizeof text, "0x%llx", value);
  } else if (kind == 's') {
    uint64_t value = 0;
    char string[LONGEST_STRING];
    if (!take(p, &value, 8)) return s;
    peek_string(p->w, p->lane, value, string, precision >= 0 && precision < LONGEST_STRING - 1 ? precision + 1 : LONGEST_STRING);
    snprintf(spec, sizeof spec, "%%%s*s", flags);
    snprintf(text, sizeof text, spec, width, string);
  } else {
    snprintf(text, sizeof text, "%%%c", kind);
  }
  append(p, text);
  return s;
}

static uint64_t argument(const tw_warp* w, const tw_instr* i, int which, int lane) {
  uint64_t value;  // parameters live in the frame: base, stride
  memcpy(&value, (uint8_t*)tw_slot(w, i->o[2 * which]) + lane * i->o[2 * which + 1], 8);
  return value;
}

// o: format (base, stride), arguments (base, stride), result (base or the sink, stride)
void tw_print(tw_warp* w, const tw_instr* i, uint32_t exec) {
  char format[LONGEST_FORMAT], out[LONGEST_LINE];
  TW_EACH(exec) {
    int lane = (int)l;
    printer p = {.w = w, .lane = lane, .arguments = argument(w, i, 1, lane), .out = out, .length = 0};
    peek_string(w, lane, argument(w, i, 0, lane), format, LONGEST_FORMAT);
    const char* s = format;
    while (*s && p.length < LONGEST_LINE - 1) {
      if (*s == '%') s = conversion(&p, s + 1);
      else out[p.length++] = *s++;
    }
    emit(w->cta->engine, out, p.length);
    if (i->o[4] >= 0) {
      int32_t done = 0;
      memcpy((uint8_t*)tw_slot(w, i->o[4]) + lane * i->o[5], &done, 4);
    }
  }
}

// o: message, file, line, function, each base and stride
void tw_assertion(tw_warp* w, const tw_instr* i, uint32_t exec) {
  int lane = __builtin_ctz(exec);
  char message[512], file[512], function[512], line[2048];
  peek_string(w, lane, argument(w, i, 0, lane), message, sizeof message);
  peek_string(w, lane, argument(w, i, 1, lane), file, sizeof file);
  uint32_t number;
  memcpy(&number, (uint8_t*)tw_slot(w, i->o[4]) + lane * i->o[5], 4);
  peek_string(w, lane, argument(w, i, 3, lane), function, sizeof function);
  int length = snprintf(line, sizeof line, "%s:%u: %s: assertion `%s` failed\n", file, number, function, message);
  if (length > (int)sizeof line - 1) length = (int)sizeof line - 1;
  emit(w->cta->engine, line, length);
  tw_report(w, TW_FIND_ASSERTION, tw_index_of(w, i), lane, 0, 0, 0);
}

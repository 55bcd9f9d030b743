// cvt in full generality: a source is unpacked to sign, exponent and significand, a destination is packed from them.
#include "numeric_convert.h"

#include <string.h>

#include "numeric_half.h"

typedef struct {
  const char* name;
  int bits;          // of one element
  int is_signed;     // integers
  int is_float;
  int elements;      // 2 for packed types
} tw_type_facts;

static const tw_type_facts tw_types[TW_NUMBER_TYPES] = {
    [TW_U8] = {"u8", 8, 0, 0, 1},         [TW_U16] = {"u16", 16, 0, 0, 1},
    [TW_U32] = {"u32", 32, 0, 0, 1},      [TW_U64] = {"u64", 64, 0, 0, 1},
    [TW_S8] = {"s8", 8, 1, 0, 1},         [TW_S16] = {"s16", 16, 1, 0, 1},
    [TW_S32] = {"s32", 32, 1, 0, 1},      [TW_S64] = {"s64", 64, 1, 0, 1},
    [TW_F16] = {"f16", 16, 0, 1, 1},      [TW_BF16] = {"bf16", 16, 0, 1, 1},
    [TW_F32] = {"f32", 32, 0, 1, 1},      [TW_F64] = {"f64", 64, 0, 1, 1},
    [TW_TF32] = {"tf32", 32, 0, 1, 1},    [TW_F16X2] = {"f16x2", 16, 0, 1, 2},
    [TW_BF16X2] = {"bf16x2", 16, 0, 1, 2}, [TW_E4M3X2] = {"e4m3x2", 8, 0, 1, 2},
    [TW_E5M2X2] = {"e5m2x2", 8, 0, 1, 2},
};

static tw_format tw_format_of(tw_number_type type) {
  switch (type) {
    case TW_F64: return TW_FORMAT_F64;
    case TW_F16:
    case TW_F16X2: return TW_FORMAT_F16;
    case TW_BF16:
    case TW_BF16X2: return TW_FORMAT_BF16;
    case TW_E4M3X2: return TW_FORMAT_E4M3;
    case TW_E5M2X2: return TW_FORMAT_E5M2;
    case TW_TF32: // the upper 19 bits of an f32
      return (tw_format){10, 127, 0x3fbffu, 0x3fc00u, TW_NAN_F32 >> 13, 1u << 18};
    default: return TW_FORMAT_F32;
  }
}

static uint64_t tw_low_bits(int bits) { return bits == 64 ? ~0ull : (1ull << bits) - 1; }

// -- reading modifiers --

typedef struct {
  int rounding; // -1: none written
  int flags;
  int types[2];
  int type_count;
} tw_cvt_modifiers;

static int tw_read_modifier(const char* word, size_t length, tw_cvt_modifiers* found) {
  static const struct { const char* name; int rounding; int flags; } words[] = {
      {"rn", TW_RN, 0},   {"rz", TW_RZ, 0},   {"rm", TW_RM, 0},   {"rp", TW_RP, 0},   {"rna", TW_RNA, 0},
      {"rni", TW_RN, TW_CVT_INTEGRAL}, {"rzi", TW_RZ, TW_CVT_INTEGRAL},
      {"rmi", TW_RM, TW_CVT_INTEGRAL}, {"rpi", TW_RP, TW_CVT_INTEGRAL},
      {"ftz", -1, TW_CVT_FTZ}, {"sat", -1, TW_CVT_SAT}, {"relu", -1, TW_CVT_RELU}, {"satfinite", -1, TW_CVT_SATFINITE},
  };
  for (size_t i = 0; i < sizeof words / sizeof *words; ++i)
    if (strlen(words[i].name) == length && !memcmp(words[i].name, word, length)) {
      if (words[i].rounding >= 0 && found->rounding >= 0) return 0;
      if (words[i].rounding >= 0) found->rounding = words[i].rounding;
      found->flags |= words[i].flags;
      return 1;
    }
  for (int type = 0; type < TW_NUMBER_TYPES; ++type)
    if (strlen(tw_types[type].name) == length && !memcmp(tw_types[type].name, word, length)) {
      if (found->type_count == 2) return 0;
      found->types[found->type_count++] = type;
      return 1;
    }
  return 0;
}

static int tw_is_fp8(int type) { return type == TW_E4M3X2 || type == TW_E5M2X2; }

// Which packed pairs exist: f32 -> x2 (two operands), f16x2 -> fp8, fp8 -> f16x2.
static int tw_packed_pair_known(int destination, int source) {
  if (tw_types[destination].elements == 1) return 0;
  if (source == TW_F32) return 1;
  return (tw_is_fp8(destination) && source == TW_F16X2) || (tw_is_fp8(source) && destination == TW_F16X2);
}

static int tw_floats_known(int destination, int source, const tw_cvt_modifiers* m) {
  const tw_type_facts *to = &tw_types[destination], *from = &tw_types[source];
  int integral = (m->flags & TW_CVT_INTEGRAL) != 0;
  if (to->elements == 2 || from->elements == 2) {
    if (!tw_packed_pair_known(destination, source) || integral || m->rounding < 0) return 0;
    return !tw_is_fp8(destination) || (m->flags & TW_CVT_SATFINITE);
  }
  if (source == TW_TF32) return 0;
  if (destination == TW_TF32) return source == TW_F32 && m->rounding >= 0 && !integral;
  if (destination == source) return m->rounding < 0 || integral; // only rounding to an integer, ftz and sat
  if (integral) return 0;
  int exact = to->bits > from->bits && !(destination == TW_BF16 || source == TW_BF16) ? 1
              : source == TW_BF16 && to->bits >= 32;
  return exact ? m->rounding < 0 : m->rounding >= 0;
}

tw_conversion tw_conversion_find(const char* modifiers) {
  tw_cvt_modifiers m = {-1, 0, {0, 0}, 0};
  for (const char* word = modifiers; *word;) {
    size_t length = strcspn(word, ".");
    if (!length || !tw_read_modifier(word, length, &m)) return -1;
    word += length;
    if (*word == '.' && !*++word) return -1;
  }
  if (m.type_count != 2) return -1;
  int destination = m.types[0], source = m.types[1];
  const tw_type_facts *to = &tw_types[destination], *from = &tw_types[source];
  int integral = (m.flags & TW_CVT_INTEGRAL) != 0, known;
  if (m.rounding == TW_RNA && destination != TW_TF32) return -1;
  if ((m.flags & TW_CVT_RELU) && !to->is_float) return -1;
  if (to->is_float && from->is_float)
    known = tw_floats_known(destination, source, &m);
  else if (to->is_float)
    known = to->elements == 1 && destination != TW_TF32 && m.rounding >= 0 && !integral;
  else if (from->is_float)
    known = from->elements == 1 && source != TW_TF32 && integral;
  else
    known = m.rounding < 0;
  if (!known) return -1;
  return TW_CONVERSION(destination, source, m.rounding < 0 ? TW_RN : m.rounding, m.flags);
}

int tw_conversion_operands(tw_conversion conversion) {
  return tw_types[TW_CVT_DESTINATION(conversion)].elements == 2 && TW_CVT_SOURCE(conversion) == TW_F32 ? 2 : 1;
}

// -- one element --

static tw_unpacked tw_round_integral(tw_unpacked number, tw_rounding rounding) {
  if (number.kind != TW_CLASS_FINITE || number.exponent >= 63) return number;
  int shift = 63 - number.exponent, inexact;
  uint64_t whole = tw_round_shift(number.significand, shift > 65 ? 65 : shift, number.negative, rounding, &inexact);
  return tw_unpack_integer(whole, number.negative);
}

// NaN is 0 unless 64-bit floats or integers take part; then it is the integer with only its top bit set.
static uint64_t tw_float_to_integer(tw_unpacked number, tw_number_type source, const tw_type_facts* to,
                                    tw_rounding rounding) {
  uint64_t least = to->is_signed ? 1ull << (to->bits - 1) : 0; // magnitude of the lowest value
  uint64_t most = to->is_signed ? (1ull << (to->bits - 1)) - 1 : tw_low_bits(to->bits);
  if (number.kind == TW_CLASS_NAN) return source == TW_F64 || to->bits == 64 ? 1ull << (to->bits - 1) : 0;
  if (number.kind == TW_CLASS_FINITE) number = tw_round_integral(number, rounding);
  if (number.kind == TW_CLASS_ZERO) return 0;
  int huge = number.kind == TW_CLASS_INFINITE || number.exponent > 63;
  uint64_t magnitude = huge ? ~0ull : number.significand >> (63 - number.exponent);
  uint64_t limit = number.negative ? least : most;
  if (huge || magnitude > limit) magnitude = limit;
  return (number.negative ? 0 - magnitude : magnitude) & tw_low_bits(to->bits);
}

static uint64_t tw_integer_to_integer(uint64_t bits, int negative, const tw_type_facts* from, const tw_type_facts* to,
                                      int saturate) {
  uint64_t mask = tw_low_bits(to->bits);
  if (!saturate) return bits & mask;
  uint64_t most = to->is_signed ? mask >> 1 : mask;
  if (negative) {
    if (!to->is_signed) return 0;
    int64_t lowest = -(int64_t)most - 1;
    return (uint64_t)((int64_t)bits < lowest ? lowest : (int64_t)bits) & mask;
  }
  (void)from;
  return bits > most ? most : bits;
}

static uint64_t tw_finish_float(uint64_t code, tw_number_type destination, int flags) {
  tw_format format = tw_format_of(destination);
  uint64_t magnitude = code & (format.sign - 1);
  int nan = magnitude > format.infinity || (format.mantissa_bits == 3 && magnitude == format.infinity);
  if ((flags & TW_CVT_FTZ) && destination == TW_F32) code = tw_flush_f32_bits((uint32_t)code);
  if (flags & TW_CVT_SAT) {
    uint64_t one = (uint64_t)format.bias << format.mantissa_bits;
    if (nan || (code & format.sign)) return 0;
    return code > one ? one : code;
  }
  if ((flags & TW_CVT_RELU) && !nan && (code & format.sign)) code = 0;
  return code;
}

// A NaN that comes from f64 or goes there keeps its sign and the upper bits of its payload, and is made quiet.
static uint64_t tw_nan_with_payload(uint64_t bits, tw_number_type source, tw_number_type destination, int flags) {
  tw_format from = tw_format_of(source), to = tw_format_of(destination);
  if ((flags & TW_CVT_FTZ) && source == TW_F32) bits = TW_NAN_F32;
  uint64_t payload = bits & ((1ull << from.mantissa_bits) - 1);
  int wider = to.mantissa_bits - from.mantissa_bits;
  payload = wider >= 0 ? payload << wider : payload >> -wider;
  return (bits & from.sign ? to.sign : 0) | to.infinity | payload | 1ull << (to.mantissa_bits - 1);
}

static uint64_t tw_float_to_float(uint64_t bits, tw_number_type source, tw_number_type destination,
                                  tw_rounding rounding, int flags) {
  tw_unpacked number = tw_unpack(bits, tw_format_of(source));
  if (number.kind == TW_CLASS_NAN && !(flags & (TW_CVT_SAT | TW_CVT_RELU))) {
    if (source == TW_BF16 && destination == TW_F32) return bits << 16;
    if (source == TW_F64 || destination == TW_F64) return tw_nan_with_payload(bits, source, destination, flags);
  }
  if (flags & TW_CVT_INTEGRAL) number = tw_round_integral(number, rounding);
  uint64_t code = tw_pack(number, tw_format_of(destination), rounding, (flags & TW_CVT_SATFINITE) != 0);
  return tw_finish_float(code, destination, flags);
}

static uint64_t tw_convert_element(tw_number_type destination, tw_number_type source, tw_rounding rounding, int flags,
                                   uint64_t bits) {
  const tw_type_facts *to = &tw_types[destination], *from = &tw_types[source];
  bits &= tw_low_bits(from->bits);
  if (from->is_float) {
    if ((flags & TW_CVT_FTZ) && source == TW_F32) bits = tw_flush_f32_bits((uint32_t)bits);
    if (!to->is_float)
      return tw_float_to_integer(tw_unpack(bits, tw_format_of(source)), source, to, rounding);
    return tw_float_to_float(bits, source, destination, rounding, flags);
  }
  int negative = from->is_signed && (bits >> (from->bits - 1) & 1);
  if (negative) bits |= ~tw_low_bits(from->bits);
  if (!to->is_float) return tw_integer_to_integer(bits, negative, from, to, flags & TW_CVT_SAT);
  tw_unpacked number = tw_unpack_integer(negative ? 0 - bits : bits, negative);
  return tw_finish_float(tw_pack(number, tw_format_of(destination), rounding, 0), destination, flags);
}

// .rna works on the bits as they are, infinities and NaN included; .satfinite then takes a step back from them.
static uint64_t tw_to_tf32(uint32_t bits, tw_rounding rounding, int flags) {
  if (rounding != TW_RNA) return tw_convert_element(TW_TF32, TW_F32, rounding, flags, bits) << 13;
  uint32_t rounded = tw_f32_to_tf32_rna(tw_f32_of(bits));
  int special = (rounded & 0x7fffffffu) >= 0x7f800000u;
  return rounded - ((flags & TW_CVT_SATFINITE) && special ? 0x2000u : 0u);
}

uint64_t tw_convert(tw_conversion conversion, uint64_t a, uint64_t b) {
  tw_number_type destination = TW_CVT_DESTINATION(conversion), source = TW_CVT_SOURCE(conversion);
  tw_rounding rounding = TW_CVT_ROUNDING(conversion);
  int flags = TW_CVT_FLAGS(conversion);
  if (tw_types[destination].elements == 1) {
    if (destination == TW_TF32) return tw_to_tf32((uint32_t)a, rounding, flags);
    return tw_convert_element(destination, source, rounding, flags, a);
  }
  uint64_t upper, lower;
  if (source == TW_F32) {
    upper = a;
    lower = b;
  } else {
    upper = a >> tw_types[source].bits;
    lower = a;
  }
  uint64_t high = tw_convert_element(destination, source, rounding, flags, upper);
  uint64_t low = tw_convert_element(destination, source, rounding, flags, lower);
  return high << tw_types[destination].bits | low;
}

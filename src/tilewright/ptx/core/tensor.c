// Matrix instructions by name, their register counts, fragment layouts, and the choice of the multiplication.
#include "tensor.h"

#include <string.h>

#include "tensor_shape.h"

typedef struct {
  const char* name;
  int bits;
} tw_type_entry;

static const tw_type_entry tw_types[TW_MMA_TYPES] = {
    [TW_MMA_F16] = {"f16", 16},   [TW_MMA_BF16] = {"bf16", 16}, [TW_MMA_TF32] = {"tf32", 32},
    [TW_MMA_E4M3] = {"e4m3", 8},  [TW_MMA_E5M2] = {"e5m2", 8},  [TW_MMA_F32] = {"f32", 32},
    [TW_MMA_F64] = {"f64", 64},   [TW_MMA_S8] = {"s8", 8},      [TW_MMA_U8] = {"u8", 8},
    [TW_MMA_S4] = {"s4", 4},      [TW_MMA_U4] = {"u4", 4},      [TW_MMA_B1] = {"b1", 1},
    [TW_MMA_S32] = {"s32", 32},
};

// -- reading modifiers --

typedef struct {
  tw_mma_shape shape;
  int types[4], type_count;
  char layouts[2]; // 'r' or 'c'
  int layout_count;
  int xor_popc, and_popc, popc, rn;
  char role; // of a fragment: 'a', 'b', 'c' or 'd'
  int load, store, mma, memory_space;
} tw_words;

static int tw_read_number(const char** text) {
  int value = 0;
  while (**text >= '0' && **text <= '9' && value < 10000) value = 10 * value + (*(*text)++ - '0');
  return value;
}

static int tw_read_shape(const char* word, const char* end, tw_mma_shape* shape) {
  if (*word++ != 'm') return 0;
  shape->m = tw_read_number(&word);
  if (*word++ != 'n') return 0;
  shape->n = tw_read_number(&word);
  if (*word++ != 'k') return 0;
  shape->k = tw_read_number(&word);
  return word == end && shape->m && shape->n && shape->k;
}

static int tw_is(const char* word, size_t length, const char* name) {
  return strlen(name) == length && !memcmp(word, name, length);
}

static int tw_read_flag(const char* word, size_t length, tw_words* found) {
  if (tw_is(word, length, "sync") || tw_is(word, length, "aligned")) return 1;
  if (tw_is(word, length, "row") || tw_is(word, length, "col")) {
    if (found->layout_count == 2) return 0;
    found->layouts[found->layout_count++] = word[0];
    return 1;
  }
  if (tw_is(word, length, "satfinite")) return found->shape.saturate = 1;
  if (tw_is(word, length, "xor")) return found->xor_popc = 1;
  if (tw_is(word, length, "and")) return found->and_popc = 1;
  if (tw_is(word, length, "popc")) return found->popc = 1;
  if (tw_is(word, length, "rn")) return found->rn = 1;
  if (tw_is(word, length, "load")) return found->load = 1;
  if (tw_is(word, length, "store")) return found->store = 1;
  if (tw_is(word, length, "global") || tw_is(word, length, "shared") || tw_is(word, length, "shared::cta"))
    return found->memory_space = 1;
  if (length == 1 && word[0] >= 'a' && word[0] <= 'd') {
    found->role = word[0];
    return 1;
  }
  return 0;
}

static int tw_read_words(const char* modifiers, tw_words* found) {
  for (const char* word = modifiers; *word;) {
    size_t length = strcspn(word, ".");
    int type = 0;
    if (!length) return 0;
    while (type < TW_MMA_TYPES && !tw_is(word, length, tw_types[type].name)) ++type;
    if (type < TW_MMA_TYPES) {
      if (found->type_count == 4) return 0;
      found->types[found->type_count++] = type;
    } else if (word[0] == 'm' && length > 1) {
      if (!tw_read_shape(word, word + length, &found->shape)) return 0;
    } else if (!tw_read_flag(word, length, found)) {
      return 0;
    }
    word += length;
    if (*word == '.' && !*++word) return 0;
  }
  return found->shape.m != 0;
}

// -- which instructions exist --

typedef struct {
  short m, n, k;
  int operands;     // set of types of a and b
  int accumulators; // set of types of c and d
  int wmma;         // 0 mma, 1 wmma
} tw_known;

#define S(type) (1 << TW_MMA_##type)
#define TW_FP8 (S(E4M3) | S(E5M2))
#define TW_BYTES (S(S8) | S(U8))
#define TW_NIBBLES (S(S4) | S(U4))

static const tw_known tw_known_shapes[] = {
    {16, 8, 8, S(F16), S(F16) | S(F32), 0},
    {16, 8, 16, S(F16), S(F16) | S(F32), 0},
    {16, 8, 8, S(BF16), S(F32), 0},
    {16, 8, 16, S(BF16), S(F32), 0},
    {16, 8, 4, S(TF32), S(F32), 0},
    {16, 8, 8, S(TF32), S(F32), 0},
    {16, 8, 16, TW_FP8, S(F16) | S(F32), 0},
    {16, 8, 32, TW_FP8, S(F16) | S(F32), 0},
    {8, 8, 16, TW_BYTES, S(S32), 0},
    {16, 8, 16, TW_BYTES, S(S32), 0},
    {16, 8, 32, TW_BYTES, S(S32), 0},
    {8, 8, 32, TW_NIBBLES, S(S32), 0},
    {16, 8, 32, TW_NIBBLES, S(S32), 0},
    {16, 8, 64, TW_NIBBLES, S(S32), 0},
    {8, 8, 128, S(B1), S(S32), 0},
    {16, 8, 128, S(B1), S(S32), 0},
    {16, 8, 256, S(B1), S(S32), 0},
    {8, 8, 4, S(F64), S(F64), 0},
    {16, 8, 4, S(F64), S(F64), 0},
    {16, 8, 8, S(F64), S(F64), 0},
    {16, 8, 16, S(F64), S(F64), 0},
    {16, 16, 16, S(F16), S(F16) | S(F32), 1},
    {32, 8, 16, S(F16), S(F16) | S(F32), 1},
    {8, 32, 16, S(F16), S(F16) | S(F32), 1},
    {16, 16, 16, S(BF16), S(F32), 1},
    {32, 8, 16, S(BF16), S(F32), 1},
    {8, 32, 16, S(BF16), S(F32), 1},
    {16, 16, 16, TW_BYTES, S(S32), 1},
    {32, 8, 16, TW_BYTES, S(S32), 1},
    {8, 32, 16, TW_BYTES, S(S32), 1},
    {16, 16, 8, S(TF32), S(F32), 1},
    {8, 8, 4, S(F64), S(F64), 1},
    {8, 8, 32, TW_NIBBLES, S(S32), 1},
    {8, 8, 128, S(B1), S(S32), 1},
};
#define TW_KNOWN_COUNT ((int)(sizeof tw_known_shapes / sizeof *tw_known_shapes))

// An instruction as one integer: the row of the table above and what the table leaves open.
enum { TW_A_AT = 6, TW_B_AT = 10, TW_C_AT = 14, TW_D_AT = 18, TW_SATURATE_AT = 22, TW_AND_AT = 23 };

static tw_mma_shape tw_shape_of(int mma) {
  const tw_known* known = &tw_known_shapes[mma & 63];
  tw_mma_shape shape = {known->m, known->n, known->k,
                        mma >> TW_A_AT & 15, mma >> TW_B_AT & 15, mma >> TW_C_AT & 15, mma >> TW_D_AT & 15,
                        mma >> TW_SATURATE_AT & 1, mma >> TW_AND_AT & 1, 0};
  return shape;
}

static int tw_same_shape(const tw_known* known, const tw_mma_shape* shape) {
  return known->m == shape->m && known->n == shape->n && known->k == shape->k;
}

static int tw_find(const tw_words* words, int wmma) {
  const tw_mma_shape* shape = &words->shape;
  const int* t = words->types; // d, a, b, c
  for (int row = 0; row < TW_KNOWN_COUNT; ++row) {
    const tw_known* known = &tw_known_shapes[row];
    if (known->wmma != wmma || !tw_same_shape(known, shape)) continue;
    if (!(known->operands >> t[1] & 1) || !(known->operands >> t[2] & 1)) continue;
    if (!(known->accumulators >> t[0] & 1) || !(known->accumulators >> t[3] & 1)) continue;
    return row | t[1] << TW_A_AT | t[2] << TW_B_AT | t[3] << TW_C_AT | t[0] << TW_D_AT |
           shape->saturate << TW_SATURATE_AT | words->and_popc << TW_AND_AT;
  }
  return -1;
}

// Rules the table does not hold: .b1 needs its operation, .rn belongs to f64, .satfinite to 4- and 8-bit integers.
static int tw_flags_fit(const tw_words* words) {
  int a = words->types[1];
  int bits = words->xor_popc + words->and_popc;
  if (words->load || words->store || words->role || words->memory_space) return 0;
  if (a == TW_MMA_B1 ? bits != 1 || !words->popc : bits || words->popc) return 0;
  if (words->rn && a != TW_MMA_F64) return 0;
  return !words->shape.saturate || a == TW_MMA_S8 || a == TW_MMA_U8 || a == TW_MMA_S4 || a == TW_MMA_U4;
}

int tw_mma_find(const char* modifiers) {
  tw_words words = {0};
  if (!tw_read_words(modifiers, &words) || words.type_count != 4 || !tw_flags_fit(&words)) return -1;
  if (words.layout_count != 2 || words.layouts[0] != 'r' || words.layouts[1] != 'c') return -1;
  return tw_find(&words, 0);
}

int tw_wmma_mma_find(const char* modifiers) {
  tw_words words = {0};
  if (!tw_read_words(modifiers, &words) || words.layout_count != 2) return -1;
  if (words.type_count == 2) { // d and c alone: a and b are f16
    words.types[3] = words.types[1];
    words.types[1] = words.types[2] = TW_MMA_F16;
    words.type_count = 4;
  }
  if (words.type_count != 4 || !tw_flags_fit(&words)) return -1;
  return tw_find(&words, 1);
}

// -- registers --

static int tw_pack(int type) { return tw_types[type].bits >= 32 ? 1 : 32 / tw_types[type].bits; }

// Registers of one operand; wmma gives every f16 operand fragment eight.
static int tw_register_count(int rows, int columns, int type, int is_accumulator, int wmma) {
  if (!is_accumulator && wmma && type == TW_MMA_F16) return 8;
  return rows * columns / (32 * tw_pack(type));
}

void tw_mma_registers(int mma, int counts[4], int bits[4]) {
  tw_mma_shape s = tw_shape_of(mma);
  int wmma = tw_known_shapes[mma & 63].wmma;
  counts[0] = tw_register_count(s.m, s.n, s.d, 1, wmma);
  counts[1] = tw_register_count(s.m, s.k, s.a, 0, wmma);
  counts[2] = tw_register_count(s.k, s.n, s.b, 0, wmma);
  counts[3] = tw_register_count(s.m, s.n, s.c, 1, wmma);
  for (int i = 0; i < 4; ++i) bits[i] = s.a == TW_MMA_F64 ? 64 : 32;
}

static int tw_has_wide_vectors(void) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
  return 0;
#endif
}

static void tw_multiply(tw_mma_shape shape, void* const d[], const void* const a[], const void* const b[],
                        const void* const c[]) {
  if (tw_has_wide_vectors())
    tw_multiply_wide(&shape, d, a, b, c);
  else
    tw_multiply_plain(&shape, d, a, b, c);
}

void tw_mma(int mma, void* const d[], const void* const a[], const void* const b[], const void* const c[]) {
  tw_multiply(tw_shape_of(mma), d, a, b, c);
}

// -- wgmma --

// An instruction as one integer: columns / 8, then the types and what is left open.
enum { TW_WGMMA_A_AT = 6, TW_WGMMA_B_AT = 10, TW_WGMMA_D_AT = 14, TW_WGMMA_SATURATE_AT = 18 };

static tw_mma_shape tw_wgmma_shape(int wgmma) {
  int a = wgmma >> TW_WGMMA_A_AT & 15, d = wgmma >> TW_WGMMA_D_AT & 15;
  return (tw_mma_shape){.m = 16, .n = 8 * (wgmma & 63), .k = 256 / tw_types[a].bits, .a = a,
                        .b = wgmma >> TW_WGMMA_B_AT & 15, .c = d, .d = d,
                        .saturate = wgmma >> TW_WGMMA_SATURATE_AT & 1, .bit_and = 1, .warpgroup = 1};
}

static int tw_wgmma_types_fit(const int t[3]) {
  const int d = 1 << t[0], both = 1 << t[1] | 1 << t[2];
  if (both == S(F16) || !(both & ~TW_FP8)) return (d & (S(F16) | S(F32))) != 0;
  if (both == S(BF16) || both == S(TF32)) return d == S(F32);
  return (!(both & ~TW_BYTES) || both == S(B1)) && d == S(S32);
}

int tw_wgmma_find(const char* modifiers) {
  tw_words words = {0};
  if (!tw_read_words(modifiers, &words) || words.type_count != 3 || words.layout_count || !tw_flags_fit(&words)) return -1;
  const tw_mma_shape* shape = &words.shape;
  const int* t = words.types; // d, a, b
  int integers = t[0] == TW_MMA_S32, n = shape->n;
  if (!tw_wgmma_types_fit(t) || words.rn || words.xor_popc || shape->m != 64 || shape->k != 256 / tw_types[t[1]].bits) return -1;
  if (n % 8 || n > 256 || (integers && n > 32 && n % 16)) return -1;
  return n / 8 | t[1] << TW_WGMMA_A_AT | t[2] << TW_WGMMA_B_AT | t[0] << TW_WGMMA_D_AT |
         shape->saturate << TW_WGMMA_SATURATE_AT;
}

int tw_wgmma_columns(int wgmma) { return 8 * (wgmma & 63); }
int tw_wgmma_sums(int wgmma) { return tw_wgmma_columns(wgmma) / (tw_wgmma_shape(wgmma).d == TW_MMA_F16 ? 4 : 2); }
int tw_wgmma_element_bits(int wgmma) { return tw_types[wgmma >> TW_WGMMA_A_AT & 15].bits; }
int tw_wgmma_is_float(int wgmma) { return (wgmma >> TW_WGMMA_D_AT & 15) != TW_MMA_S32; }

void tw_wgmma(int wgmma, void* const d[], const void* const a[], const void* const b[], const void* const c[]) {
  tw_multiply(tw_wgmma_shape(wgmma), d, a, b, c);
}

// -- fragments of wmma in memory --

// A fragment as one integer: the row of the table, its type, its part, whether memory is by columns.
enum { TW_FRAGMENT_TYPE_AT = 6, TW_FRAGMENT_PART_AT = 10, TW_FRAGMENT_COLUMNS_AT = 12 };

typedef struct {
  int rows, columns; // of the part
  int type, part;    // part: 0 a, 1 b, 2 c or d
  int by_columns;
  tw_mma_shape shape;
} tw_fragment;

static tw_fragment tw_fragment_of(int fragment) {
  const tw_known* known = &tw_known_shapes[fragment & 63];
  tw_fragment f = {0};
  f.type = fragment >> TW_FRAGMENT_TYPE_AT & 15;
  f.part = fragment >> TW_FRAGMENT_PART_AT & 3;
  f.by_columns = fragment >> TW_FRAGMENT_COLUMNS_AT & 1;
  f.rows = f.part == 1 ? known->k : known->m;
  f.columns = f.part == 0 ? known->k : known->n;
  f.shape.m = known->m;
  f.shape.n = known->n;
  f.shape.k = known->k;
  return f;
}

int tw_fragment_find(const char* modifiers) {
  tw_words words = {0};
  if (!tw_read_words(modifiers, &words) || words.type_count != 1 || words.layout_count != 1) return -1;
  if (words.load + words.store != 1 || !words.role || words.shape.saturate || words.popc || words.rn) return -1;
  if (words.xor_popc || words.and_popc) return -1;
  if (words.load ? words.role == 'd' : words.role != 'd') return -1;
  int part = words.role == 'a' ? 0 : words.role == 'b' ? 1 : 2;
  for (int row = 0; row < TW_KNOWN_COUNT; ++row) {
    const tw_known* known = &tw_known_shapes[row];
    int types = part == 2 ? known->accumulators : known->operands;
    if (!known->wmma || !tw_same_shape(known, &words.shape) || !(types >> words.types[0] & 1)) continue;
    return row | words.types[0] << TW_FRAGMENT_TYPE_AT | part << TW_FRAGMENT_PART_AT |
           (words.layouts[0] == 'c') << TW_FRAGMENT_COLUMNS_AT;
  }
  return -1;
}

int tw_fragment_registers(int fragment) {
  tw_fragment f = tw_fragment_of(fragment);
  return tw_register_count(f.rows, f.columns, f.type, f.part == 2, 1);
}

int tw_fragment_register_bits(int fragment) { return tw_fragment_of(fragment).type == TW_MMA_F64 ? 64 : 32; }
int tw_fragment_elements(int fragment) { return tw_pack(tw_fragment_of(fragment).type); }
int tw_fragment_element_bits(int fragment) { return tw_types[tw_fragment_of(fragment).type].bits; }

int tw_fragment_default_stride(int fragment) {
  tw_fragment f = tw_fragment_of(fragment);
  return f.by_columns ? f.rows : f.columns;
}

int64_t tw_fragment_offset(int fragment, int lane, int reg, int element, int64_t stride) {
  tw_fragment f = tw_fragment_of(fragment);
  int pack = tw_pack(f.type), group = lane >> 2, thread = lane & 3, row, column;
  int row_blocks = f.shape.m / 8;
  if (f.part == 2) {
    int pair = pack == 2 ? reg : reg / 2, second = pack == 2 ? element : reg % 2;
    row = group + 8 * (pair % row_blocks);
    column = 8 * (pair / row_blocks) + 2 * thread + second;
  } else {
    int width = 4 * pack, filled = f.rows * f.columns / (32 * pack), r = reg % filled;
    if (f.part == 0) {
      row = group + 8 * (r % row_blocks);
      column = width * (r / row_blocks) + thread * pack + element;
    } else {
      int k_blocks = f.shape.k / width;
      row = width * (r % k_blocks) + thread * pack + element;
      column = group + 8 * (r / k_blocks);
    }
  }
  return f.by_columns ? column * stride + row : row * stride + column;
}

// -- 8x8 matrices of 16-bit elements --

void tw_ldmatrix(const uint8_t rows[][16], int count, int transpose, uint32_t* const d[]) {
  for (int matrix = 0; matrix < count; ++matrix) {
    uint16_t elements[8][8];
    memcpy(elements, rows[8 * matrix], sizeof elements);
    for (int lane = 0; lane < 32; ++lane) {
      int i = lane >> 2, j = 2 * (lane & 3);
      uint32_t low = transpose ? elements[j][i] : elements[i][j];
      uint32_t high = transpose ? elements[j + 1][i] : elements[i][j + 1];
      d[matrix][lane] = low | high << 16;
    }
  }
}

void tw_stmatrix(const uint32_t* const a[], int count, int transpose, uint8_t rows[][16]) {
  for (int matrix = 0; matrix < count; ++matrix) {
    uint16_t elements[8][8];
    for (int lane = 0; lane < 32; ++lane) {
      int i = lane >> 2, j = 2 * (lane & 3);
      uint16_t low = (uint16_t)a[matrix][lane], high = (uint16_t)(a[matrix][lane] >> 16);
      *(transpose ? &elements[j][i] : &elements[i][j]) = low;
      *(transpose ? &elements[j + 1][i] : &elements[i][j + 1]) = high;
    }
    memcpy(rows[8 * matrix], elements, sizeof elements);
  }
}

void tw_movmatrix(const uint32_t a[32], uint32_t d[32]) {
  uint8_t rows[8][16];
  uint32_t* const destinations[1] = {d};
  const uint32_t* const sources[1] = {a};
  tw_stmatrix(sources, 1, 0, rows);
  tw_ldmatrix((const uint8_t(*)[16])rows, 1, 1, destinations);
}

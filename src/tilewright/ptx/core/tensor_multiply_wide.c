// Matrix multiplication for processors with AVX2, FMA and F16C; tensor.c asks the processor before it comes here.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,fma,f16c")
#endif
#define TW_MULTIPLY tw_multiply_wide
#include "tensor_multiply.h"

// The interpreter for x86-64 processors with AVX2, FMA and F16C; chosen at run time.
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,popcnt,lzcnt")
#define TW_INTERPRETER tw_interpreter_avx2
#define TW_INTERPRETER_NAME "avx2"
#include "interpreter.h"
#else
typedef int tw_no_avx2_here;
#endif

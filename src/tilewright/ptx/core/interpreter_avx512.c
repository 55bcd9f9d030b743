// The interpreter for x86-64 processors with AVX-512; chosen at run time.
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,popcnt,lzcnt,avx512f,avx512bw,avx512dq,avx512vl,avx512cd")
#define TW_INTERPRETER tw_interpreter_avx512
#define TW_INTERPRETER_NAME "avx512"
#include "interpreter.h"
#else
typedef int tw_no_avx512_here;
#endif

// Arithmetic as the hardware does it: all of it, for a translation unit that interprets PTX.
//
// Include after any `#pragma GCC target`, so that the inline functions are compiled for it. Loops over lanes become
// vector code with -O3 -fno-trapping-math -fno-math-errno: nothing here looks at floating-point exceptions or errno.
#ifndef TW_NUMERIC_H
#define TW_NUMERIC_H

#include "numeric_approximate.h"
#include "numeric_arithmetic.h"
#include "numeric_bits.h"
#include "numeric_convert.h"
#include "numeric_half.h"

#endif

// The interpreter for any processor of the architecture.
#define TW_INTERPRETER tw_interpreter_baseline
#define TW_INTERPRETER_NAME "baseline"
#include "interpreter.h"

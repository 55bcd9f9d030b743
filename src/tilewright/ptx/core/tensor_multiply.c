// Matrix multiplication for any processor.
#define TW_MULTIPLY tw_multiply_plain
#include "tensor_multiply.h"

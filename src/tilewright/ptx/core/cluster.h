// Whose shared memory an address means. A shared::cluster address is an offset in the low 24 bits and, above them, the
// rank of the block plus one; nothing there means the block that uses it, so a plain shared::cta address is one too.
#ifndef TW_CLUSTER_H
#define TW_CLUSTER_H

#include "machine.h"

#define TW_RANK_SHIFT 24

// The block whose shared memory the address lies in, and where; NULL: there is no such block.
static inline tw_cta* tw_cluster_block(tw_cta* cta, uint32_t shared_address, uint32_t* offset) {
  *offset = shared_address & ((1u << TW_RANK_SHIFT) - 1);
  return shared_address >> TW_RANK_SHIFT ? NULL : cta;
}

#endif

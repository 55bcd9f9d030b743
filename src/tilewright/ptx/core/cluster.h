// Whose shared memory an address means. A shared::cluster address is an offset in the low 24 bits and, above them, the
// rank of the block plus one; nothing there means the block that uses it, so a plain shared::cta address is one too.
#ifndef TW_CLUSTER_H
#define TW_CLUSTER_H

#include "machine.h"

#define TW_RANK_SHIFT 24
#define TW_NO_RANK 255u  // what stands for every rank that no cluster has

// The block whose shared memory the address lies in, and where; NULL: there is no such block.
static inline tw_cta* tw_cluster_block(tw_cta* cta, uint32_t shared_address, uint32_t* offset) {
  uint32_t rank = shared_address >> TW_RANK_SHIFT;
  *offset = shared_address & ((1u << TW_RANK_SHIFT) - 1);
  if (!rank) return cta;
  return rank <= (uint32_t)cta->cluster->size ? cta->cluster->blocks[rank - 1] : NULL;
}

// The address that every block of the cluster knows a place in the shared memory of `home` by.
static inline uint32_t tw_cluster_address(const tw_cta* home, uint32_t offset) {
  return offset | (uint32_t)(home->rank + 1) << TW_RANK_SHIFT;
}

static inline bool tw_has_ended(const tw_cta* cta) { return !cta->live_threads; }

#endif

// What the addresses of a launch show: which units of each region are written and read, which of them twice, and which
// ways its blocks take. Kept for programs from which the stored values were sliced away.
#ifndef TW_NOTES_H
#define TW_NOTES_H

#include "machine.h"

void tw_note_global(tw_warp* w, const tw_instr* i, uint32_t good, const uint64_t* address, int size, int how);
void tw_note_run(tw_warp* w, const tw_instr* i, int lane, const tw_region* r, uint64_t offset, uint64_t bytes, int how);
void tw_note_path(tw_worker* worker, int32_t block);

#endif

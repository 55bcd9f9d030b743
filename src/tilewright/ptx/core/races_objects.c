// The launch's and the CTA's objects: made, begun again, freed.

#include "races_internal.h"

tw_races* tw_races_create(int workers, size_t budget_bytes) {
  tw_races* races = calloc(1, sizeof *races);
  if (!races) return NULL;
  races->locked = workers != 1;
  atomic_init(&races->budget_left, budget_bytes ? budget_bytes : (size_t)1 << 30);
  races->buckets = calloc(TW_PAGE_BUCKETS, sizeof *races->buckets);
  if (!races->buckets || pthread_mutex_init(&races->mutex, NULL)) {
    free(races->buckets);
    free(races);
    return NULL;
  }
  return races;
}

void tw_races_destroy(tw_races* races) {
  if (!races) return;
  for (tw_page* page = races->pages; page;) {
    tw_page* next = page->made_before;
    tw_page_free(page);
    page = next;
  }
  for (tw_block* block = races->blocks; block;) {
    tw_block* next = block->next;
    free(block);
    block = next;
  }
  pthread_mutex_destroy(&races->mutex);
  free(races->indices);
  free(races->buckets);
  free(races);
}

uint32_t tw_races_missed(const tw_races* races) { return atomic_load(&races->missed); }

tw_cta_races* tw_cta_races_create(tw_races* races, uint32_t shared_bytes) {
  tw_cta_races* cta = calloc(1, sizeof *cta);
  if (!cta) return NULL;
  cta->launch = races;
  cta->shared_bytes = shared_bytes;
  cta->shared_pages = shared_bytes / TW_PAGE_BYTES + 1;
  cta->pages = calloc(cta->shared_pages, sizeof *cta->pages);
  cta->now = 1;
  if (cta->pages) return cta;
  free(cta);
  return NULL;
}

static void forget_shared(tw_cta_races* cta) {
  for (uint32_t i = 0; i < cta->shared_pages; i++) {
    tw_page_free(cta->pages[i]);
    cta->pages[i] = NULL;
  }
}

static bool enroll(tw_races* races, uint32_t index, uint32_t* ordinal) {
  bool fits = true;
  pthread_mutex_lock(&races->mutex);
  if (races->index_count == races->index_capacity) {
    uint32_t capacity = races->index_capacity ? races->index_capacity * 2 : 64;
    uint32_t* larger = capacity > TW_MAX_ORDINAL ? NULL : realloc(races->indices, capacity * sizeof *larger);
    fits = larger != NULL;
    if (fits) {
      races->indices = larger;
      races->index_capacity = capacity;
    }
  }
  if (fits) {
    *ordinal = races->index_count;
    races->indices[races->index_count++] = index;
  }
  pthread_mutex_unlock(&races->mutex);
  return fits;
}

void tw_cta_races_begin(tw_cta_races* cta, uint32_t cta_index, int threads) {
  threads = threads < 0 ? 0 : threads > TW_RACE_MAX_THREADS ? TW_RACE_MAX_THREADS : threads;
  cta->index = cta_index;
  cta->threads = threads;
  cta->warps = (threads + 31) / 32;
  memset(cta->live, 0, sizeof cta->live);
  for (int warp = 0; warp < cta->warps; warp++) {
    int lanes = threads - warp * 32;
    cta->live[warp] = lanes >= 32 ? ~0u : (1u << lanes) - 1;
  }
  cta->ignored = !enroll(cta->launch, cta_index, &cta->ordinal);
  if (cta->ignored) tw_miss(cta->launch, TW_MISSED_SHARED | TW_MISSED_GLOBAL);
  if (cta->now > TW_NOW_LIMIT / 2) {  // far from the end of the counter again; shared stamps would be of the future
    forget_shared(cta);
    memset(cta->lane_known, 0, sizeof cta->lane_known);
    cta->now = 1;
  }
  // Stamps of another CTA are compared with nothing of this one: what the CTA before left must not be taken for those.
  for (uint32_t i = 0; cta->open && i < cta->shared_pages; i++) {
    if (cta->pages[i]) tw_page_clear(cta->pages[i]);
  }
  tw_order_begin(cta);
}

void tw_cta_races_open(tw_cta_races* cta) { cta->open = true; }

void tw_cta_races_destroy(tw_cta_races* cta) {
  if (!cta) return;
  forget_shared(cta);
  tw_known_free(&cta->cta_known);
  tw_known_free(&cta->walked);
  for (int warp = 0; warp < 32; warp++) tw_known_free(&cta->warp_known[warp]);
  for (int thread = 0; cta->thread_known && thread < TW_RACE_MAX_THREADS; thread++) {
    tw_known_free(&cta->thread_known[thread]);
  }
  free(cta->thread_known);
  free(cta->stack);
  free(cta->pages);
  free(cta);
}

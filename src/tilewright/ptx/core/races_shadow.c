// The shadow of memory: pages of cells, made when first touched, as fine as the accesses they see.
//
// A page starts with cells as wide as its first access (up to 16 bytes) and is split when a narrower one comes, so that
// a cell is never touched in part.

#include <sched.h>

#include "races_internal.h"

static bool take(tw_races* races, size_t bytes) {
  size_t left = atomic_load_explicit(&races->budget_left, memory_order_relaxed);
  do {
    if (left < bytes) return false;
  } while (!atomic_compare_exchange_weak_explicit(&races->budget_left, &left, left - bytes, memory_order_relaxed,
                                                  memory_order_relaxed));
  return true;
}

static size_t cell_bytes(int shift) { return sizeof(tw_cell) * ((size_t)TW_PAGE_BYTES >> shift); }

static uint32_t missed_in(bool shared) { return shared ? TW_MISSED_SHARED : TW_MISSED_GLOBAL; }

static tw_page* page_new(tw_races* races, bool shared, uint64_t id, int shift) {
  bool paid = take(races, sizeof(tw_page) + cell_bytes(shift));
  tw_page* page = paid ? calloc(1, sizeof *page) : NULL;
  tw_cell* cells = paid ? calloc(1, cell_bytes(shift)) : NULL;
  if (!page || !cells) {
    free(page);
    free(cells);
    tw_miss(races, missed_in(shared));
    return NULL;
  }
  page->shared = shared;
  page->id = id;
  page->cells = cells;
  page->shift = (uint8_t)shift;
  atomic_flag_clear(&page->lock);
  return page;
}

void tw_page_free(tw_page* page) {
  if (!page) return;
  free(page->cells);
  free(page->sync);
  free(page->links);
  free(page);
}

// As it was when it was made, but as fine as it has become.
void tw_page_clear(tw_page* page) {
  memset(page->cells, 0, cell_bytes(page->shift));
  if (page->sync) memset(page->sync, 0, TW_PAGE_WORDS * sizeof *page->sync);
  page->link_count = page->link_capacity ? 1 : 0;
  page->link_free = 0;
}

static tw_page* search(tw_page* page, uint64_t id) {
  while (page && page->id != id) page = page->next;
  return page;
}

// Pages are only ever added, at the head of their bucket, so a search needs no lock.
tw_page* tw_page_global(tw_races* races, tw_cta_races* cta, uint64_t id, int shift) {
  tw_page_slot* slot = &cta->cache[id % TW_PAGE_CACHE];
  if (slot->page && slot->id == id) return slot->page;
  _Atomic(tw_page*)* bucket = &races->buckets[(id * 0x9e3779b97f4a7c15ull >> 40) % TW_PAGE_BUCKETS];
  tw_page* head = atomic_load_explicit(bucket, memory_order_acquire);
  tw_page* page = search(head, id);
  if (!page) {
    tw_page* fresh = page_new(races, false, id, shift);
    if (!fresh) return NULL;
    do {
      page = search(head, id);
      if (page) break;
      fresh->next = head;
    } while (!atomic_compare_exchange_weak_explicit(bucket, &head, fresh, memory_order_acq_rel, memory_order_acquire));
    if (page) {
      tw_page_free(fresh);
    } else {
      page = fresh;
      page->made_before = atomic_load_explicit(&races->pages, memory_order_relaxed);
      while (!atomic_compare_exchange_weak(&races->pages, &page->made_before, page)) continue;
    }
  }
  slot->id = id;
  slot->page = page;
  return page;
}

tw_page* tw_page_shared(tw_cta_races* cta, uint32_t id, int shift) {
  tw_page** page = &cta->pages[id];
  if (!*page) *page = page_new(cta->launch, true, id, shift);
  return *page;
}

void tw_page_lock(const tw_races* races, tw_page* page) {
  if (!races->locked) return;
  for (int spins = 0; atomic_flag_test_and_set_explicit(&page->lock, memory_order_acquire); spins++) {
    if (spins > 64) sched_yield();
  }
}

void tw_page_unlock(const tw_races* races, tw_page* page) {
  if (races->locked) atomic_flag_clear_explicit(&page->lock, memory_order_release);
}

tw_sync* tw_page_sync(tw_races* races, tw_page* page) {
  if (page->sync) return page->sync;
  if (take(races, TW_PAGE_WORDS * sizeof *page->sync)) page->sync = calloc(TW_PAGE_WORDS, sizeof *page->sync);
  if (!page->sync) atomic_store(&races->clocks_exhausted, 1);  // a release is lost: no longer sure of any race
  return page->sync;
}

// -- lists of records --

uint32_t tw_link_new(tw_races* races, tw_page* page) {
  uint32_t link = page->link_free;
  if (link) {
    page->link_free = page->links[link].next;
    return link;
  }
  if (page->link_count == page->link_capacity) {
    uint32_t capacity = page->link_capacity ? page->link_capacity * 2 : 64;
    bool paid = take(races, (capacity - page->link_capacity) * sizeof *page->links);
    tw_link* larger = paid ? realloc(page->links, capacity * sizeof *larger) : NULL;
    if (!larger) {
      tw_miss(races, missed_in(page->shared));
      return 0;
    }
    page->links = larger;
    page->link_capacity = capacity;
    if (!page->link_count) page->link_count = 1;
  }
  return page->link_count++;
}

void tw_links_drop(tw_page* page, tw_record* record) {
  uint32_t first = record->lanes, last = first;
  if (first) {
    while (page->links[last].next) last = page->links[last].next;
    page->links[last].next = page->link_free;
    page->link_free = first;
  }
  memset(record, 0, sizeof *record);
}

// -- splitting --

static bool copy_links(tw_races* races, tw_page* page, tw_record* record) {
  uint32_t from = record->lanes, previous = 0;
  record->lanes = 0;
  for (; from; from = page->links[from].next) {
    uint32_t link = tw_link_new(races, page);
    if (!link) return false;
    page->links[link].record = page->links[from].record;
    page->links[link].next = 0;
    if (previous) page->links[previous].next = link;
    else record->lanes = link;
    previous = link;
  }
  return true;
}

bool tw_page_refine(tw_races* races, tw_page* page, int shift) {
  tw_cell* cells = take(races, cell_bytes(shift)) ? malloc(cell_bytes(shift)) : NULL;
  if (!cells) {
    tw_miss(races, missed_in(page->shared));
    return false;
  }
  size_t copies = (size_t)1 << (page->shift - shift);
  for (size_t i = 0; i < (size_t)TW_PAGE_BYTES >> page->shift; i++) {
    tw_cell cell = page->cells[i];
    if (cell.write.clock && !(cell.write.what & TW_WRITE_VALUE_NONE)) cell.write.what |= TW_WRITE_VALUE_SPLIT;
    for (size_t k = 0; k < copies; k++) {
      cells[i * copies + k] = cell;
      tw_record* record = &cells[i * copies + k].record;
      if (k && record->clock && record->what & TW_RECORD_MANY && !copy_links(races, page, record)) {
        memset(record, 0, sizeof *record);
      }
    }
  }
  free(page->cells);
  page->cells = cells;
  page->shift = (uint8_t)shift;
  return true;
}

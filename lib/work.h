/* The work list: what a step asks of the kernels, free of trees and of bytes.  It is built when the structure of the
 * batch changed, used by every layer, and only its lengths advance in between (the paper's lazy context copy,
 * section 3.3). */
#ifndef CATTN_WORK_H
#define CATTN_WORK_H

#include <stddef.h>
#include <stdint.h>

/* One sequence of the step, in the caller's order; so are the rows. */
struct cattn_work_item {
    uint32_t first_row, n_rows;
    uint64_t position; /* of its first row; row j sees the tokens at positions <= position + j */
};

/* Consecutive chunks that the same items see.  A run comes after the runs before it on the path of its items, so
 * that each item meets its chunks in ascending order; runs of several items come before all runs of one. */
struct cattn_work_run {
    uint32_t first_chunk; /* absolute number: the first token is at first_chunk * chunk_tokens */
    uint32_t n_chunks;
    size_t slots; /* index into work->slots of n_chunks slots */
    size_t items; /* index into work->run_items of n_items item numbers, ascending */
    uint32_t n_items;
};

/* Tokens of one slot that this step stores: those of rows row, row + 1, ... */
struct cattn_work_write {
    uint32_t slot;
    uint32_t begin, end; /* tokens [begin, end) of the chunk */
    uint32_t row;        /* of token `begin` */
    uint32_t dirty;      /* one past the last token ever written to the slot since it was taken */
};

struct cattn_work_scratch;

struct cattn_work {
    uint64_t structure; /* another number whenever items, rows, slots or runs are not what they were */
    uint64_t revision;  /* another number whenever anything changed */
    uint32_t chunk_tokens;
    uint32_t n_rows, n_items;
    size_t n_runs, n_writes;
    struct cattn_work_item *items;
    struct cattn_work_run *runs;
    uint32_t *slots;
    uint32_t *run_items;
    struct cattn_work_write *writes;
    struct cattn_work_scratch *scratch; /* private to work.c */
};

/* Upper bounds of a list that is about to be built. */
struct cattn_work_bounds {
    uint64_t n_items, n_rows;
    uint64_t n_chunks;   /* of all items once the step ends, shared ones as often */
    uint64_t max_tokens; /* of the longest item once the step ends */
};

/* What an item contributes: the chunks of its path once the step ends, first to last, an own tail included. */
struct cattn_work_path {
    const uint32_t *slots;
    uint32_t n_chunks;
    uint32_t n_rows;
    uint64_t position; /* of its first row */
};

/* An empty list for a pool of n_slots slots.  CATTN_ENOMEM. */
int cattn_work_init(struct cattn_work *work, uint32_t n_slots, uint32_t chunk_tokens);
void cattn_work_release(struct cattn_work *work);

/* Makes room, so that build and add_write cannot fail: n_chunks is the sum over the items.  CATTN_ENOMEM: nothing
 * changed. */
int cattn_work_reserve(struct cattn_work *work, size_t n_items, size_t n_chunks, size_t n_writes);

/* Finds the runs and numbers the rows.  share = 0: each item gets runs of its own, as if nothing were shared (for
 * baselines).  The list of writes is emptied. */
void cattn_work_build(struct cattn_work *work, const struct cattn_work_path *paths, size_t n_items, int share);

/* The same items, rows and slots with other positions: one per item.  (Rejected drafts move an item back.)  Returns by
 * how many tokens they have advanced together, modulo 2^64. */
uint64_t cattn_work_advance(struct cattn_work *work, const struct cattn_work_path *paths);

/* Empties the list of writes; appends to it. */
void cattn_work_clear_writes(struct cattn_work *work);
void cattn_work_add_write(struct cattn_work *work, const struct cattn_work_write *write);

/* Tokens of K and V that one attend reads: each run once; each run once for each of its items.  With a window (else 0)
 * those that some row of the run, or of the item, sees, up to whole chunks. */
void cattn_work_count_tokens(const struct cattn_work *work, uint32_t window, uint32_t n_sink_tokens, uint64_t *shared,
                             uint64_t *unshared);

#endif

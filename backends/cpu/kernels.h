/* The table of a CPU kernel.  A kernel folds blocks of K and V into states; it knows no tree, no thread and no
 * layer.  kernels.def lists them; selection, tests and benchmarks follow that list. */
#ifndef CATTN_KERNELS_H
#define CATTN_KERNELS_H

#include "layout.h"
#include "state.h"

/* Rows of one KV head in a thread's hands: (query row, query head of the group), numbered from 0. */
struct cattn_rows {
    const struct cattn_layout *layout;
    const unsigned char *blocks; /* of this layer and head: slot s lies at s * layout->block_bytes */
    float scale_log2;            /* scores q.k times this are in log2 units */
    const uint64_t *position;    /* [row]: it sees tokens at positions up to its own */
    const float *q;              /* [row][q_stride], zero past k_dim, not scaled: that is left to the scores */
    size_t q_stride;
    float *states; /* [row][state_stride] */
    size_t state_stride;
};

struct cattn_kernel {
    const char *name;
    int exact;         /* keeps the Bit rule: doc/design.md */
    uint32_t features; /* of cpu.h that it needs */
    int (*takes)(const struct cattn_shape *shape);

    /* Folds n_chunks consecutive chunks, the first at token `first` of the sequences, into the states of
     * rows[0..n_rows).  All chunks lie in one span.  `next` is a block that is likely to be read after the last. */
    void (*fold)(const struct cattn_rows *all, const uint32_t *slots, uint32_t n_chunks, uint64_t first,
                 const uint32_t *rows, uint32_t n_rows, const unsigned char *next);
};

/* Kernel i that this machine can run; NULL past the last. */
const struct cattn_kernel *cattn_kernel_at(unsigned i);

/* By name, or the best one (name NULL) that takes the shape; NULL: unknown, not usable, or not for this shape. */
const struct cattn_kernel *cattn_kernel_find(const char *name, const struct cattn_shape *shape);

/* How many of the n tokens that start at `first` a row at `position` sees. */
static inline uint32_t cattn_visible(uint64_t position, uint64_t first, uint32_t n)
{
    if (position < first)
        return 0;
    return position - first < n ? (uint32_t)(position - first) + 1 : n;
}

static inline uint32_t cattn_block_tokens(const struct cattn_layout *layout)
{
    return layout->chunk_tokens < CATTN_BLOCK ? layout->chunk_tokens : CATTN_BLOCK;
}

#endif

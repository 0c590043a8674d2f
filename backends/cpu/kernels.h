/* The table of a CPU kernel.  A kernel folds blocks of K and V into states; it knows no tree, no thread and no
 * layer.  kernels.def lists them; selection, tests and benchmarks follow that list. */
#ifndef CATTN_KERNELS_H
#define CATTN_KERNELS_H

#include "layout.h"
#include "state.h"

enum { CATTN_AHEAD = 4 }; /* chunks behind a fold that its kernel is told of */

/* How q.k becomes a score in log2 units: struct cattn_variant with its factors put together. */
struct cattn_scoring {
    float scale;            /* of q.k; to log2 units, or with a cap to what tanh is taken of */
    float cap;              /* of tanh, to log2 units; 0: no soft cap */
    uint64_t window;        /* tokens up to its own that a row sees; UINT64_MAX: all */
    uint64_t n_sink_tokens; /* leading tokens that every row sees */
};

/* Rows of one KV head in a thread's hands: (query row, query head of the group), numbered from 0. */
struct cattn_rows {
    const struct cattn_layout *layout;
    const unsigned char *blocks; /* of this layer and head: slot s lies at s * layout->block_bytes */
    struct cattn_scoring scoring;
    const uint64_t *position; /* [row]: it sees tokens at positions up to its own */
    const float *slope;       /* [row]: ALiBi, log2 units a token; NULL: none */
    const unsigned char *q;   /* [row][q_bytes], as load_query left it */
    size_t q_bytes;
    float *states; /* [row][state_stride] */
    size_t state_stride;
    void *scratch; /* the kernel's, one for each thread */
};

struct cattn_kernel {
    const char *name;
    int exact;         /* keeps the Bit rule: doc/design.md */
    uint32_t features; /* of cpu.h that it needs */
    int (*takes)(const struct cattn_shape *shape);

    /* A query in the kernel's own form, prepared once for all chunks that it meets in a layer: query_bytes, a multiple
     * of 64, from the k_dim elements of q (any io dtype) that start at `first`. */
    size_t (*query_bytes)(const struct cattn_layout *layout);
    void (*load_query)(const struct cattn_layout *layout, const void *q, uint32_t dtype, size_t first, void *query);

    /* Bytes of scratch that a thread's folds need, 64-byte aligned; what is done before the first and after the last of
     * them in a call.  NULL: none, nothing. */
    size_t (*scratch_bytes)(const struct cattn_layout *layout);
    void (*enter)(void *scratch);
    void (*leave)(void *scratch);

    /* Folds n_chunks consecutive chunks, the first at token `first` of the sequences, into the states of
     * rows[0..n_rows), which ascend.  All chunks lie in one span.  next[0..CATTN_AHEAD) are the blocks that are likely
     * to be read after the last; NULL past what is known. */
    void (*fold)(const struct cattn_rows *all, const uint32_t *slots, uint32_t n_chunks, uint64_t first,
                 const uint32_t *rows, uint32_t n_rows, const unsigned char *const *next);
};

/* Kernel i that this machine can run; NULL past the last. */
const struct cattn_kernel *cattn_kernel_at(unsigned i);

/* By name, or the best one (name NULL) that takes the shape; NULL: unknown, not usable, or not for this shape. */
const struct cattn_kernel *cattn_kernel_find(const char *name, const struct cattn_shape *shape);

/* Queries as floats, zero behind k_dim: the form of kernels that have none of their own. */
size_t cattn_query_bytes_f32(const struct cattn_layout *layout);
void cattn_load_query_f32(const struct cattn_layout *layout, const void *q, uint32_t dtype, size_t first, void *query);

/* The first n of 64. */
static inline uint64_t cattn_first_bits(uint64_t n)
{
    return n < 64 ? (UINT64_C(1) << n) - 1 : UINT64_MAX;
}

/* Which of the n <= 64 tokens that start at `first` a row sees, a bit each. */
static inline uint64_t cattn_visible(const struct cattn_rows *all, uint32_t row, uint64_t first, uint32_t n)
{
    const struct cattn_scoring *scoring = &all->scoring;
    const uint64_t position = all->position[row];
    if (position < first)
        return 0;
    const uint64_t distance = position - first;
    uint64_t seen = cattn_first_bits(distance < n ? distance + 1 : n);
    if (distance >= scoring->window) {
        const uint64_t sinks = scoring->n_sink_tokens > first ? scoring->n_sink_tokens - first : 0;
        seen &= ~cattn_first_bits(distance - scoring->window + 1) | cattn_first_bits(sinks);
    }
    return seen;
}

static inline uint32_t cattn_block_tokens(const struct cattn_layout *layout)
{
    return layout->chunk_tokens < CATTN_BLOCK ? layout->chunk_tokens : CATTN_BLOCK;
}

#endif

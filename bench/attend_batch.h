/* A batch of sequences in a cache of the public interface, ready to decode: for what the variants of one shape do not
 * show. */
#ifndef BENCH_ATTEND_BATCH_H
#define BENCH_ATTEND_BATCH_H

#include <stdint.h>

#include "attend.h"

/* n sequences whose first `shared` tokens are those of one document, the same for all groups, and whose `private` ones
 * are their own. */
struct bench_group {
    uint32_t n, shared, private;
};

struct bench_batch {
    cattn_cache *cache;
    cattn_step *step;
    struct cattn_item *items; /* [sequence] */
    uint32_t n_sequences, n_layers, most_rows;
    int32_t *tokens; /* [most_tokens]; the next one of each sequence: [sequence] */
    float *q, *k, *v, *out;
    uint64_t layer_bytes; /* of K and V that a step must read */
};

/* Heads, chunk, dtype, threads and kernel are the shape's; as many layers as fill `memory`.  A status of the
 * library. */
int bench_batch_open(struct bench_batch *batch, const struct bench_shape *shape, const struct bench_group *groups,
                     uint32_t n_groups, uint64_t memory);
void bench_batch_close(struct bench_batch *batch);

/* Begins a step of one token for each sequence. */
int bench_batch_begin(struct bench_batch *batch);

/* The buffers of a call, with K and V or without. */
struct cattn_io bench_batch_io(const struct bench_batch *batch, int with_kv);

#endif

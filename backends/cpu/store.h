/* The pool of K and V: reserves it, writes new tokens into it, copies slots.
 *
 * Nothing is cleared when a slot is taken.  What holds instead: V between the last token of a slot and the end of
 * its granule is zero, so that a kernel which reads whole granules adds nothing for tokens that are not there. */
#ifndef CATTN_STORE_H
#define CATTN_STORE_H

#include "layout.h"

struct cattn_pool {
    struct cattn_layout layout;
    uint32_t n_layers;
    uint32_t io_dtype;
    const struct cattn_packing *packing;
    unsigned char *bytes;
    size_t n_bytes;
};

/* CATTN_ENOMEM. */
int cattn_pool_open(struct cattn_pool *pool, const struct cattn_shape *shape);
void cattn_pool_close(struct cattn_pool *pool);

/* The blocks of one layer and KV head. */
static inline unsigned char *cattn_pool_blocks(const struct cattn_pool *pool, uint32_t layer, uint32_t head)
{
    return pool->bytes + cattn_head_offset(&pool->layout, layer, head);
}

/* Stores K and V of one layer and KV head for all writes of the work list. */
void cattn_pool_write(struct cattn_pool *pool, const struct cattn_work *work, const struct cattn_call *call,
                      uint32_t head);

void cattn_pool_copy(struct cattn_pool *pool, uint32_t from, uint32_t to, uint32_t n_tokens);

/* All of a slot becomes zero. */
void cattn_pool_clear(struct cattn_pool *pool, uint32_t slot);

/* For tests: the pool of a store; every byte of a new store's pool becomes part of a NaN. */
const struct cattn_pool *cattn_store_pool(const struct cattn_store *store);
void cattn_store_fill_nan(struct cattn_store *store);

#endif

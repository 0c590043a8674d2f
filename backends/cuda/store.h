/* The pool of K and V in device memory, ordered layer, KV head, slot; a block is what kernels.h says.
 *
 * Nothing is cleared when a slot is taken, and nothing has to be: the kernels read no token past those that a row
 * sees. */
#ifndef CATTN_CUDA_STORE_H
#define CATTN_CUDA_STORE_H

#include "backend.h"
#include "queue.h"

struct cattn_cuda_pool {
    struct cattn_cuda_queue *queue;
    unsigned char *bytes;
    uint32_t n_slots, n_layers, n_kv_heads;
    size_t key_bytes, value_bytes; /* of a token */
    size_t keys_bytes, block_bytes;
};

/* Bytes of an element as it is stored; 0: not stored by this backend. */
size_t cattn_cuda_element_bytes(uint32_t dtype);

/* The current device is the queue's for this and all below.  CATTN_ENOMEM, CATTN_EDEVICE. */
int cattn_cuda_pool_open(struct cattn_cuda_pool *pool, struct cattn_cuda_queue *queue, const struct cattn_shape *shape);
void cattn_cuda_pool_close(struct cattn_cuda_pool *pool);

/* All put their work on the stream; a failure is the queue's. */
void cattn_cuda_pool_copy(struct cattn_cuda_pool *pool, uint32_t from, uint32_t to, uint32_t n_tokens);
void cattn_cuda_pool_clear(struct cattn_cuda_pool *pool, uint32_t slot);

/* These wait for it. */
void cattn_cuda_pool_get(struct cattn_cuda_pool *pool, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin,
                         uint32_t n, unsigned char *tokens);
void cattn_cuda_pool_put(struct cattn_cuda_pool *pool, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin,
                         uint32_t n, const unsigned char *tokens);

/* The blocks of a layer. */
static inline void *cattn_cuda_pool_layer(const struct cattn_cuda_pool *pool, uint32_t layer)
{
    return pool->bytes + (size_t)layer * pool->n_kv_heads * pool->n_slots * pool->block_bytes;
}

#endif

#include "store.h"

#include <string.h>

#include "memory.h"
#include "pack.h"

int cattn_pool_open(struct cattn_pool *pool, const struct cattn_shape *shape)
{
    pool->layout = cattn_layout_of(shape);
    pool->n_layers = shape->n_layers;
    pool->io_dtype = shape->io_dtype;
    pool->packing = cattn_packing_find();
    pool->n_bytes = cattn_head_offset(&pool->layout, shape->n_layers, 0);
    pool->bytes = cattn_pool_alloc(pool->n_bytes, 1, true);
    return pool->bytes ? CATTN_OK : CATTN_ENOMEM;
}

void cattn_pool_close(struct cattn_pool *pool)
{
    cattn_pool_free(pool->bytes, pool->n_bytes, 1);
}

static uint32_t granule_end(uint32_t n_tokens)
{
    return cattn_round_up(n_tokens, CATTN_GRANULE);
}

/* Zeroes what a kernel would read behind the tokens just written.  A write that opens a granule finds anything
 * there; any other finds zeros except where a longer text was written before. */
static void clear_rest(const struct cattn_layout *layout, unsigned char *block, const struct cattn_work_write *write)
{
    const int opens = write->begin + CATTN_GRANULE <= granule_end(write->end);
    if (opens || write->dirty > write->end)
        cattn_clear_v(layout, block, write->end);
}

void cattn_pool_write(struct cattn_pool *pool, const struct cattn_work *work, const struct cattn_call *call,
                      uint32_t head)
{
    const struct cattn_layout *layout = &pool->layout;
    const struct cattn_packing *packing = pool->packing;
    unsigned char *blocks = cattn_pool_blocks(pool, call->layer, head);
    const struct cattn_work_write *write = work->writes, *end = write + work->n_writes;
    for (; write < end; write++) {
        unsigned char *block = blocks + write->slot * layout->block_bytes;
        if (write + 1 < end)
            cattn_fetch_packed(layout, blocks + write[1].slot * layout->block_bytes, write[1].begin);
        for (uint32_t t = write->begin; t < write->end; t++) {
            const size_t row = write->row + (t - write->begin);
            packing->key(layout, block, t, call->k, pool->io_dtype, row * call->k_row + head * call->k_head);
            packing->value(layout, block, t, call->v, pool->io_dtype, row * call->v_row + head * call->v_head);
        }
        clear_rest(layout, block, write);
    }
}

/* Whole groups of tokens are contiguous in both layouts; what is copied beyond n_tokens is never looked at (K) or
 * cleared (V). */
static void copy_block(const struct cattn_layout *layout, const unsigned char *from, unsigned char *to,
                       uint32_t n_tokens)
{
    const size_t size = cattn_dtype_size(layout->dtype);
    memcpy(to, from, cattn_round_up(n_tokens, 16) * size * layout->k_pad);
    memcpy(to + layout->v_offset, from + layout->v_offset, granule_end(n_tokens) * size * layout->v_pad);
    if (layout->dtype == CATTN_I8) {
        memcpy(cattn_k_scales(layout, to), cattn_k_scales(layout, from), n_tokens * sizeof(float));
        memcpy(cattn_v_scales(layout, to), cattn_v_scales(layout, from), n_tokens * sizeof(float));
    }
    cattn_clear_v(layout, to, n_tokens);
}

void cattn_pool_copy(struct cattn_pool *pool, uint32_t from, uint32_t to, uint32_t n_tokens)
{
    const struct cattn_layout *layout = &pool->layout;
    for (uint32_t layer = 0; layer < pool->n_layers; layer++)
        for (uint32_t head = 0; head < layout->n_kv_heads; head++) {
            unsigned char *blocks = cattn_pool_blocks(pool, layer, head);
            copy_block(layout, blocks + from * layout->block_bytes, blocks + to * layout->block_bytes, n_tokens);
        }
}

void cattn_pool_clear(struct cattn_pool *pool, uint32_t slot)
{
    const size_t n_bytes = pool->layout.block_bytes;
    for (uint32_t layer = 0; layer < pool->n_layers; layer++)
        for (uint32_t head = 0; head < pool->layout.n_kv_heads; head++)
            memset(cattn_pool_blocks(pool, layer, head) + slot * n_bytes, 0, n_bytes);
}

#include "store.h"

#include <string.h>

#include "memory.h"

int cattn_pool_open(struct cattn_pool *pool, const struct cattn_shape *shape) {
    pool->layout = cattn_layout_of(shape);
    pool->n_layers = shape->n_layers;
    pool->io_dtype = shape->io_dtype;
    pool->n_bytes = cattn_head_offset(&pool->layout, shape->n_layers, 0);
    pool->bytes = cattn_pool_alloc(pool->n_bytes, 1);
    return pool->bytes ? CATTN_OK : CATTN_ENOMEM;
}

void cattn_pool_close(struct cattn_pool *pool) {
    cattn_pool_free(pool->bytes, pool->n_bytes, 1);
}

static uint32_t granule_end(uint32_t n_tokens) {
    return cattn_round_up(n_tokens, CATTN_GRANULE);
}

/* A key: its elements lie 16 tokens apart (32 for bf16 pairs). */
static void write_key(const struct cattn_layout *layout, unsigned char *block, uint32_t t, const void *key,
                      uint32_t dtype, size_t offset) {
    for (uint32_t d = 0; d < layout->k_dim; d++)
        cattn_put(block, layout->dtype, cattn_k_index(layout, t, d), cattn_load(key, dtype, offset + d));
    for (uint32_t d = layout->k_dim; d < layout->k_pad; d++)
        cattn_put(block, layout->dtype, cattn_k_index(layout, t, d), 0);
}

static void write_value(const struct cattn_layout *layout, unsigned char *values, uint32_t t, const void *value,
                        uint32_t dtype, size_t offset) {
    for (uint32_t d = 0; d < layout->v_dim; d++)
        cattn_put(values, layout->dtype, cattn_v_index(layout, t, d), cattn_load(value, dtype, offset + d));
    for (uint32_t d = layout->v_dim; d < layout->v_pad; d++)
        cattn_put(values, layout->dtype, cattn_v_index(layout, t, d), 0);
}

static void clear_values(const struct cattn_layout *layout, unsigned char *values, uint32_t begin, uint32_t end) {
    for (uint32_t t = begin; t < end; t++)
        for (uint32_t d = 0; d < layout->v_pad; d++)
            cattn_put(values, layout->dtype, cattn_v_index(layout, t, d), 0);
}

/* Zeroes what a kernel would read behind the tokens just written.  A write that opens a granule finds anything
 * there; any other finds zeros except where a longer text was written before. */
static void clear_rest(const struct cattn_layout *layout, unsigned char *values, const struct cattn_work_write *write) {
    const uint32_t end = granule_end(write->end);
    const int opens = write->begin + CATTN_GRANULE <= end;
    clear_values(layout, values, write->end, opens || write->dirty > end ? end : write->dirty);
}

void cattn_pool_write(struct cattn_pool *pool, const struct cattn_work *work, const struct cattn_call *call,
                      uint32_t head) {
    const struct cattn_layout *layout = &pool->layout;
    unsigned char *blocks = cattn_pool_blocks(pool, call->layer, head);
    for (size_t i = 0; i < work->n_writes; i++) {
        const struct cattn_work_write *write = &work->writes[i];
        unsigned char *block = blocks + write->slot * layout->block_bytes;
        for (uint32_t t = write->begin; t < write->end; t++) {
            const size_t row = write->row + (t - write->begin);
            write_key(layout, block, t, call->k, pool->io_dtype, row * call->k_row + head * call->k_head);
            write_value(layout, block + layout->v_offset, t, call->v, pool->io_dtype,
                        row * call->v_row + head * call->v_head);
        }
        clear_rest(layout, block + layout->v_offset, write);
    }
}

/* Whole groups of tokens are contiguous in both layouts; what is copied beyond n_tokens is never looked at (K) or
 * cleared (V). */
static void copy_block(const struct cattn_layout *layout, const unsigned char *from, unsigned char *to,
                       uint32_t n_tokens) {
    const size_t size = cattn_dtype_size(layout->dtype);
    memcpy(to, from, cattn_round_up(n_tokens, 16) * size * layout->k_pad);
    memcpy(to + layout->v_offset, from + layout->v_offset, granule_end(n_tokens) * size * layout->v_pad);
    clear_values(layout, to + layout->v_offset, n_tokens, granule_end(n_tokens));
}

void cattn_pool_copy(struct cattn_pool *pool, uint32_t from, uint32_t to, uint32_t n_tokens) {
    const struct cattn_layout *layout = &pool->layout;
    for (uint32_t layer = 0; layer < pool->n_layers; layer++)
        for (uint32_t head = 0; head < layout->n_kv_heads; head++) {
            unsigned char *blocks = cattn_pool_blocks(pool, layer, head);
            copy_block(layout, blocks + from * layout->block_bytes, blocks + to * layout->block_bytes, n_tokens);
        }
}

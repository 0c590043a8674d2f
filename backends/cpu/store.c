#include "store.h"

#include <string.h>

#include "memory.h"

int cattn_pool_open(struct cattn_pool *pool, const struct cattn_shape *shape)
{
    pool->layout = cattn_layout_of(shape);
    pool->n_layers = shape->n_layers;
    pool->io_dtype = shape->io_dtype;
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

/* A token's key or value on its way into the pool, zero up to its padded length. */
struct vector {
    float x[CATTN_MAX_HEAD_DIM];
};

static void load_vector(struct vector *vector, const void *array, uint32_t dtype, size_t first, uint32_t n,
                        uint32_t pad)
{
    cattn_load_row(vector->x, array, dtype, first, n);
    memset(vector->x + n, 0, (pad - n) * sizeof *vector->x);
}

/* For each data type a copy of its own, with the choices outside the loop. */
static inline void write_key_as(uint32_t dtype, const struct cattn_layout *layout, unsigned char *keys, uint32_t t,
                                const struct vector *key)
{
    const size_t first = cattn_k_index(layout, t, 0);
    for (size_t d = 0; d < layout->k_pad; d++)
        cattn_put(keys, dtype, first + (dtype == CATTN_BF16 ? d / 2 * 32 + d % 2 : d * 16), key->x[d]);
}

static inline void write_value_as(uint32_t dtype, const struct cattn_layout *layout, unsigned char *values, uint32_t t,
                                  const struct vector *value)
{
    for (size_t d = 0; d < layout->v_pad; d += 16) {
        const size_t first = cattn_v_index(layout, t, d);
        for (size_t i = 0; i < 16; i++)
            cattn_put(values, dtype, first + (dtype == CATTN_BF16 ? 2 * i : i), value->x[d + i]);
    }
}

static void write_key(const struct cattn_layout *layout, unsigned char *keys, uint32_t t, const struct vector *key)
{
    switch (layout->dtype) {
    case CATTN_F32: write_key_as(CATTN_F32, layout, keys, t, key); break;
    case CATTN_F16: write_key_as(CATTN_F16, layout, keys, t, key); break;
    default: write_key_as(CATTN_BF16, layout, keys, t, key); break;
    }
}

static void write_value(const struct cattn_layout *layout, unsigned char *values, uint32_t t,
                        const struct vector *value)
{
    switch (layout->dtype) {
    case CATTN_F32: write_value_as(CATTN_F32, layout, values, t, value); break;
    case CATTN_F16: write_value_as(CATTN_F16, layout, values, t, value); break;
    default: write_value_as(CATTN_BF16, layout, values, t, value); break;
    }
}

static void clear_values(const struct cattn_layout *layout, unsigned char *values, uint32_t begin, uint32_t end)
{
    struct vector zero;
    memset(zero.x, 0, layout->v_pad * sizeof *zero.x);
    for (uint32_t t = begin; t < end; t++)
        write_value(layout, values, t, &zero);
}

/* Zeroes what a kernel would read behind the tokens just written.  A write that opens a granule finds anything
 * there; any other finds zeros except where a longer text was written before. */
static void clear_rest(const struct cattn_layout *layout, unsigned char *values, const struct cattn_work_write *write)
{
    const uint32_t end = granule_end(write->end);
    const int opens = write->begin + CATTN_GRANULE <= end;
    clear_values(layout, values, write->end, opens || write->dirty > end ? end : write->dirty);
}

void cattn_pool_write(struct cattn_pool *pool, const struct cattn_work *work, const struct cattn_call *call,
                      uint32_t head)
{
    const struct cattn_layout *layout = &pool->layout;
    unsigned char *blocks = cattn_pool_blocks(pool, call->layer, head);
    struct vector vector;
    for (size_t i = 0; i < work->n_writes; i++) {
        const struct cattn_work_write *write = &work->writes[i];
        unsigned char *block = blocks + write->slot * layout->block_bytes;
        for (uint32_t t = write->begin; t < write->end; t++) {
            const size_t row = write->row + (t - write->begin);
            load_vector(&vector, call->k, pool->io_dtype, row * call->k_row + head * call->k_head, layout->k_dim,
                        layout->k_pad);
            write_key(layout, block, t, &vector);
            load_vector(&vector, call->v, pool->io_dtype, row * call->v_row + head * call->v_head, layout->v_dim,
                        layout->v_pad);
            write_value(layout, block + layout->v_offset, t, &vector);
        }
        clear_rest(layout, block + layout->v_offset, write);
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
    clear_values(layout, to + layout->v_offset, n_tokens, granule_end(n_tokens));
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

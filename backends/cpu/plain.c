#include "plain.h"

#include <string.h>

#include "pack.h"

size_t cattn_plain_bytes(const struct cattn_layout *layout)
{
    const size_t size = cattn_dtype_size(layout->dtype);
    return (layout->k_dim + layout->v_dim) * size + (layout->dtype == CATTN_I8 ? 2 * sizeof(float) : 0);
}

static unsigned char *block_of(const struct cattn_pool *pool, uint32_t slot, uint32_t layer, uint32_t head)
{
    return cattn_pool_blocks(pool, layer, head) + slot * pool->layout.block_bytes;
}

/* Elements first, first + stride, ... of an array, in pieces of `together` neighbours. */
static void gather(unsigned char *to, const unsigned char *from, uint32_t n, uint32_t together, size_t stride,
                   size_t size)
{
    for (uint32_t i = 0; i < n; i += together, from += stride * size) {
        const size_t bytes = (n - i < together ? n - i : together) * size;
        for (size_t k = 0; k < bytes; k++)
            *to++ = from[k];
    }
}

static void get_k(const struct cattn_layout *l, const unsigned char *block, uint32_t t, unsigned char *to)
{
    const size_t size = cattn_dtype_size(l->dtype);
    const uint32_t together = l->dtype == CATTN_I8 ? 4 : l->dtype == CATTN_BF16 ? 2 : 1;
    gather(to, block + cattn_k_index(l, t, 0) * size, l->k_dim, together, 16 * together, size);
    if (l->dtype == CATTN_I8)
        for (uint32_t d = 0; d < l->k_dim; d++)
            to[d] ^= 0x80;
}

static void get_v(const struct cattn_layout *l, const unsigned char *block, uint32_t t, unsigned char *to)
{
    const size_t size = cattn_dtype_size(l->dtype);
    const uint32_t apart = l->dtype == CATTN_I8 ? 4 : l->dtype == CATTN_BF16 ? 2 : 1;
    for (uint32_t d = 0; d < l->v_dim; d += 16, to += 16 * size) {
        const unsigned char *from = block + l->v_offset + cattn_v_index(l, t, d) * size;
        gather(to, from, l->v_dim - d < 16 ? l->v_dim - d : 16, 1, apart, size);
    }
}

void cattn_pool_get(const struct cattn_pool *pool, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin,
                    uint32_t n, unsigned char *tokens)
{
    const struct cattn_layout *l = &pool->layout;
    const unsigned char *block = block_of(pool, slot, layer, head);
    const size_t size = cattn_dtype_size(l->dtype), k_bytes = l->k_dim * size, v_bytes = l->v_dim * size;
    for (uint32_t t = begin; t < begin + n; t++, tokens += cattn_plain_bytes(l)) {
        get_k(l, block, t, tokens);
        get_v(l, block, t, tokens + k_bytes);
        if (l->dtype == CATTN_I8) {
            memcpy(tokens + k_bytes + v_bytes, cattn_k_scales(l, block) + t, sizeof(float));
            memcpy(tokens + k_bytes + v_bytes + sizeof(float), cattn_v_scales(l, block) + t, sizeof(float));
        }
    }
}

void cattn_pool_put(struct cattn_pool *pool, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin, uint32_t n,
                    const unsigned char *tokens)
{
    const struct cattn_layout *l = &pool->layout;
    unsigned char *block = block_of(pool, slot, layer, head);
    const size_t size = cattn_dtype_size(l->dtype), k_bytes = l->k_dim * size, v_bytes = l->v_dim * size;
    for (uint32_t t = begin; t < begin + n; t++, tokens += cattn_plain_bytes(l)) {
        cattn_packing_plain.key(l, block, t, tokens, l->dtype, 0);
        cattn_packing_plain.value(l, block, t, tokens + k_bytes, l->dtype, 0);
        if (l->dtype == CATTN_I8) {
            memcpy(cattn_k_scales(l, block) + t, tokens + k_bytes + v_bytes, sizeof(float));
            memcpy(cattn_v_scales(l, block) + t, tokens + k_bytes + v_bytes + sizeof(float), sizeof(float));
        }
    }
}

/* Where a key or a value lies in memory.
 *
 * The pool is ordered layer, KV head, slot, so that the slots of one head share pages.  A block (one slot of one
 * layer and head) is contiguous and 64-byte aligned, K before V, and behind them the scales of i8, K before V, an f32
 * for each token:
 *
 *          f32, f16                  bf16                            i8
 *     K    [t/16][d][16]             [t/16][d/2][16][2]              [t/16][d/4][16][4]             lane = token
 *     V    [t/32][d/16][t%32][16]    [t/32][d/16][t%32/2][16][2]     [t/32][d/16][t%32/4][16][4]    lane = d
 *
 * Neither scores nor sums of values need a horizontal sum or a transposition, and the bf16 tiles of 1 KB (16 tokens
 * x 32 d of K, 32 tokens x 16 d of V) are what a matrix unit takes as they are.  Where 2 or 4 elements share 32 bits
 * they are consecutive d (K) or tokens (V), as the instructions want that multiply and add them.  The d of K is padded
 * to 32 (bf16), 4 (i8) or 2, the d of V to 16; the padding of every stored token is zero.
 *
 * An element of i8 is (byte - 128) * scale in K, whose bytes are unsigned for the sake of such an instruction, and
 * byte * scale in V. */
#ifndef CATTN_LAYOUT_H
#define CATTN_LAYOUT_H

#include "backend.h"
#include "number.h"

enum {
    CATTN_GRANULE = 32, /* tokens of one operation: never split or shifted */
    CATTN_BLOCK = 64,   /* tokens between two decisions about the maximum, or a chunk if that is smaller */
    CATTN_SPAN = 1024   /* tokens after which a state is cut */
};

struct cattn_layout {
    uint32_t n_kv_heads, n_slots, chunk_tokens;
    uint32_t dtype;
    uint32_t k_dim, v_dim; /* as given */
    uint32_t k_pad, v_pad; /* as stored */
    size_t v_offset;       /* bytes, from the start of a block */
    size_t scales_offset;
    size_t block_bytes;
};

static inline uint32_t cattn_round_up(uint32_t n, uint32_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

static inline struct cattn_layout cattn_layout_of(const struct cattn_shape *shape)
{
    struct cattn_layout l;
    const size_t size = cattn_dtype_size(shape->kv_dtype);
    l.n_kv_heads = shape->n_kv_heads;
    l.n_slots = shape->n_slots;
    l.chunk_tokens = shape->chunk_tokens;
    l.dtype = shape->kv_dtype;
    l.k_dim = shape->head_dim;
    l.v_dim = shape->v_head_dim;
    l.k_pad = cattn_round_up(l.k_dim, l.dtype == CATTN_BF16 ? 32 : l.dtype == CATTN_I8 ? 4 : 2);
    l.v_pad = cattn_round_up(l.v_dim, 16);
    l.v_offset = l.chunk_tokens * size * l.k_pad; /* chunks are multiples of 32 tokens: aligned */
    l.scales_offset = l.v_offset + l.chunk_tokens * size * l.v_pad;
    l.block_bytes = l.scales_offset + (l.dtype == CATTN_I8 ? 2 * l.chunk_tokens * sizeof(float) : 0);
    return l;
}

/* Bytes from the start of the pool to the blocks of a layer and head, one block per slot. */
static inline size_t cattn_head_offset(const struct cattn_layout *l, uint32_t layer, uint32_t head)
{
    return ((size_t)layer * l->n_kv_heads + head) * l->n_slots * l->block_bytes;
}

/* Element of a block's K or V that belongs to token t of the chunk. */
static inline size_t cattn_k_index(const struct cattn_layout *l, size_t t, size_t d)
{
    if (l->dtype == CATTN_BF16)
        return ((t / 16 * (l->k_pad / 2) + d / 2) * 16 + t % 16) * 2 + d % 2;
    if (l->dtype == CATTN_I8)
        return ((t / 16 * (l->k_pad / 4) + d / 4) * 16 + t % 16) * 4 + d % 4;
    return (t / 16 * l->k_pad + d) * 16 + t % 16;
}

static inline size_t cattn_v_index(const struct cattn_layout *l, size_t t, size_t d)
{
    const size_t tile = t / 32 * (l->v_pad / 16) + d / 16;
    if (l->dtype == CATTN_BF16)
        return tile * 512 + t % 32 / 2 * 32 + d % 16 * 2 + t % 2;
    if (l->dtype == CATTN_I8)
        return tile * 512 + t % 32 / 4 * 64 + d % 16 * 4 + t % 4;
    return tile * 512 + t % 32 * 16 + d % 16;
}

/* The scales of a block of i8, by token. */
static inline float *cattn_k_scales(const struct cattn_layout *l, const unsigned char *block)
{
    return (float *)(uintptr_t)(block + l->scales_offset);
}

static inline float *cattn_v_scales(const struct cattn_layout *l, const unsigned char *block)
{
    return cattn_k_scales(l, block) + l->chunk_tokens;
}

/* What is stored, whatever the type. */
static inline float cattn_stored_k(const struct cattn_layout *l, const unsigned char *block, size_t t, size_t d)
{
    const size_t i = cattn_k_index(l, t, d);
    return l->dtype == CATTN_I8 ? (float)(block[i] - 128) * cattn_k_scales(l, block)[t]
                                : cattn_load(block, l->dtype, i);
}

static inline float cattn_stored_v(const struct cattn_layout *l, const unsigned char *block, size_t t, size_t d)
{
    const unsigned char *values = block + l->v_offset;
    const size_t i = cattn_v_index(l, t, d);
    return l->dtype == CATTN_I8 ? (float)(int8_t)values[i] * cattn_v_scales(l, block)[t]
                                : cattn_load(values, l->dtype, i);
}

#endif

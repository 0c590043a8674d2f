/* The vector kernel, included once per instruction set after its simd_*.h; KERNEL_NAME and KERNEL_FEATURES are set.
 *
 * It keeps the Bit rule (doc/design.md): what is done for a row depends on its position, the chunk size and its own
 * numbers.  A score is two sums over d, even and odd, each ascending, added once; values are added in the order of
 * tokens into one sum.  How many rows go together, and how many vectors, is free. */
#include <math.h>
#include <stddef.h>

#include "kernels.h"

enum { MOST_VECTORS = 4 }; /* of a tile */

/* Loops over a tile, so that its sums live in registers at any optimisation level. */
#define UNROLL _Pragma("GCC unroll 8")

/* The rows that go through a block together. */
struct group {
    const float *q[SIMD_ROWS];
    float *state[SIMD_ROWS];
    uint32_t visible[SIMD_ROWS];          /* tokens of the block that it sees */
    float s[SIMD_ROWS][CATTN_BLOCK];      /* scores, then weights */
};

/* A block of K and V. */
struct block {
    const unsigned char *k, *v;
    ptrdiff_t ahead;                      /* from it to the block to be fetched meanwhile */
    uint32_t n_tokens;                    /* whole granules */
};

static int takes(const struct cattn_shape *shape) {
    (void)shape;
    return 1;
}

/* 2^x for x <= 128: exact for whole x, relative error 1e-7. */
SIMD_INLINE vec exp2_of(vec x) {
    const vec f = vec_fraction(x);
    vec y = vec_set(0x1.c54174p-13f);
    y = vec_fma(y, f, vec_set(0x1.46d64ep-10f));
    y = vec_fma(y, f, vec_set(0x1.3d0b92p-7f));
    y = vec_fma(y, f, vec_set(0x1.c68912p-5f));
    y = vec_fma(y, f, vec_set(0x1.ebfd58p-3f));
    y = vec_fma(y, f, vec_set(0x1.62e42cp-1f));
    y = vec_fma(y, f, vec_set(1));
    return vec_scale(y, x);
}

/* ---- scores ---------------------------------------------------------------------------------------- */

/* Dimensions 2*pair and 2*pair + 1 of 16 tokens. */
SIMD_INLINE void load_key_pair(const unsigned char *group, uint32_t dtype, size_t pair, ptrdiff_t ahead, const int fetch,
                               vec *even, vec *odd) {
    const size_t bytes = pair * 32 * cattn_dtype_size(dtype);
    const unsigned char *p = group + bytes;
    if (fetch)
        __builtin_prefetch(p + ahead, 0, 2);
    if (dtype == CATTN_F32) {
        if (fetch)
            __builtin_prefetch(p + ahead + 64, 0, 2);
        *even = vec_load((const float *)p);
        *odd = vec_load((const float *)p + 16);
    } else if (dtype == CATTN_F16) {
        *even = vec_load_f16((const uint16_t *)p);
        *odd = vec_load_f16((const uint16_t *)p + 16);
    } else {
        vec_load_pairs((const uint16_t *)p, even, odd);
    }
}

/* R rows by V vectors of tokens. */
SIMD_INLINE void score_tile(struct group *g, const struct block *b, const struct cattn_layout *layout, uint32_t dtype,
                            uint32_t token, const int fetch, const int R, const int V) {
    const size_t group_bytes = (size_t)16 * layout->k_pad * cattn_dtype_size(dtype);
    const unsigned char *k = b->k + token / 16 * group_bytes;
    vec even[SIMD_ROWS][MOST_VECTORS], odd[SIMD_ROWS][MOST_VECTORS];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < V; v++)
            even[r][v] = odd[r][v] = vec_set(0);
    for (size_t pair = 0; pair < (layout->k_dim + 1) / 2; pair++) {
        vec k_even[MOST_VECTORS], k_odd[MOST_VECTORS];
        UNROLL for (int v = 0; v < V; v++)
            load_key_pair(k + v * group_bytes, dtype, pair, b->ahead, fetch, &k_even[v], &k_odd[v]);
        UNROLL for (int r = 0; r < R; r++) {
            const vec q_even = vec_set(g->q[r][2 * pair]), q_odd = vec_set(g->q[r][2 * pair + 1]);
            UNROLL for (int v = 0; v < V; v++) {
                even[r][v] = vec_fma(q_even, k_even[v], even[r][v]);
                odd[r][v] = vec_fma(q_odd, k_odd[v], odd[r][v]);
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < V; v++)
            vec_store(&g->s[r][token + 16 * v], vec_add(even[r][v], odd[r][v]));
}

SIMD_INLINE void score_block(struct group *g, const struct block *b, const struct cattn_layout *layout, uint32_t dtype,
                             const int fetch, const int R) {
    uint32_t token = 0;
    for (; token + 16 * SIMD_SCORE_VECTORS(R) <= b->n_tokens; token += 16 * SIMD_SCORE_VECTORS(R))
        score_tile(g, b, layout, dtype, token, fetch, R, SIMD_SCORE_VECTORS(R));
    if (SIMD_SCORE_VECTORS(R) > 2 && token < b->n_tokens)
        score_tile(g, b, layout, dtype, token, fetch, R, 2);
}

/* ---- weights --------------------------------------------------------------------------------------- */

static void rescale(float *state, float m, uint32_t v_pad) {
    const vec factor = vec_set(vec_first(exp2_of(vec_set(state[0] - m))));
    for (uint32_t i = CATTN_STATE_L; i < CATTN_STATE_O + v_pad; i += 16)
        vec_store(state + i, vec_mul(vec_load(state + i), factor));
    state[0] = m;
}

/* Scores become weights 2^(score - m); l takes them in. */
static void weigh_row(float *s, float *state, uint32_t visible, uint32_t n_tokens, float scale, uint32_t v_pad) {
    enum { MOST = CATTN_BLOCK / 16 };
    const uint32_t n = n_tokens / 16;
    vec x[MOST], largest = vec_set(-INFINITY);
    for (uint32_t i = 0; i < n; i++) {
        x[i] = vec_mul(vec_load(s + 16 * i), vec_set(scale));
        if (visible < 16 * (i + 1))
            x[i] = vec_keep(x[i], visible > 16 * i ? visible - 16 * i : 0);
        largest = vec_max(x[i], largest);
    }
    const float maximum = vec_largest(largest);
    if (maximum > state[0] + 8 && maximum > -INFINITY)
        rescale(state, ceilf(maximum), v_pad);
    const vec m = vec_set(state[0] > -INFINITY ? state[0] : 0);
    vec l = vec_load(state + CATTN_STATE_L);
    for (uint32_t i = 0; i < n; i++) {
        const vec p = exp2_of(vec_sub(x[i], m));
        vec_store(s + 16 * i, p);
        l = vec_add(l, p);
    }
    vec_store(state + CATTN_STATE_L, l);
}

/* ---- values ---------------------------------------------------------------------------------------- */

/* Two tokens, 2*pair and 2*pair + 1 of the block, dimensions 16*column + 0..15. */
SIMD_INLINE void load_value_pair(const struct block *b, const struct cattn_layout *layout, uint32_t dtype, size_t pair,
                                 size_t column, const int fetch, vec *first, vec *second) {
    if (dtype == CATTN_BF16) {
        const size_t tile = (pair / 16 * (layout->v_pad / 16) + column) * 16 + pair % 16;
        const unsigned char *p = b->v + tile * 64;
        if (fetch)
            __builtin_prefetch(p + b->ahead, 0, 2);
        vec_load_pairs((const uint16_t *)p, first, second);
    } else {
        const size_t size = cattn_dtype_size(dtype), row = layout->v_pad * size;
        const unsigned char *p = b->v + 2 * pair * row + 16 * column * size;
        if (fetch) {
            __builtin_prefetch(p + b->ahead, 0, 2);
            __builtin_prefetch(p + b->ahead + row, 0, 2);
        }
        *first = dtype == CATTN_F32 ? vec_load((const float *)p) : vec_load_f16((const uint16_t *)p);
        p += row;
        *second = dtype == CATTN_F32 ? vec_load((const float *)p) : vec_load_f16((const uint16_t *)p);
    }
}

/* R rows by V vectors of dimensions. */
SIMD_INLINE void value_tile(struct group *g, const struct block *b, const struct cattn_layout *layout, uint32_t dtype,
                            size_t column, const int fetch, const int R, const int V) {
    vec o[SIMD_ROWS][MOST_VECTORS];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < V; v++)
            o[r][v] = vec_load(g->state[r] + CATTN_STATE_O + 16 * (column + v));
    for (uint32_t pair = 0; pair < b->n_tokens / 2; pair++) {
        vec first[MOST_VECTORS], second[MOST_VECTORS];
        UNROLL for (int v = 0; v < V; v++)
            load_value_pair(b, layout, dtype, pair, column + v, fetch, &first[v], &second[v]);
        UNROLL for (int r = 0; r < R; r++) {
            const vec p_first = vec_set(g->s[r][2 * pair]), p_second = vec_set(g->s[r][2 * pair + 1]);
            UNROLL for (int v = 0; v < V; v++)
                o[r][v] = vec_fma(p_second, second[v], vec_fma(p_first, first[v], o[r][v]));
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < V; v++)
            vec_store(g->state[r] + CATTN_STATE_O + 16 * (column + v), o[r][v]);
}

SIMD_INLINE void value_block(struct group *g, const struct block *b, const struct cattn_layout *layout, uint32_t dtype,
                             const int fetch, const int R) {
    size_t column = 0, n = layout->v_pad / 16;
    for (; column + SIMD_VALUE_VECTORS(R) <= n; column += SIMD_VALUE_VECTORS(R))
        value_tile(g, b, layout, dtype, column, fetch, R, SIMD_VALUE_VECTORS(R));
    for (; column < n; column++)
        value_tile(g, b, layout, dtype, column, fetch, R, 1);
}

/* ---- blocks ---------------------------------------------------------------------------------------- */

SIMD_INLINE void fold_group(struct group *g, const struct block *b, const struct cattn_rows *all, uint32_t dtype,
                            const int fetch, const int R) {
    const struct cattn_layout *layout = all->layout;
    score_block(g, b, layout, dtype, fetch, R);
    for (int r = 0; r < R; r++)
        weigh_row(g->s[r], g->state[r], g->visible[r], b->n_tokens, all->scale_log2, layout->v_pad);
    value_block(g, b, layout, dtype, fetch, R);
}

/* One instance per number of rows. */
SIMD_INLINE void fold_rows(struct group *g, const struct block *b, const struct cattn_rows *all, uint32_t dtype,
                           const int fetch, uint32_t n) {
    switch (n) {
    case 1: fold_group(g, b, all, dtype, fetch, 1); break;
    case 2: fold_group(g, b, all, dtype, fetch, 2); break;
    case 3: fold_group(g, b, all, dtype, fetch, 3); break;
#if SIMD_ROWS > 3
    case 4: fold_group(g, b, all, dtype, fetch, 4); break;
    case 5: fold_group(g, b, all, dtype, fetch, 5); break;
    default: fold_group(g, b, all, dtype, fetch, 6); break;
#endif
    }
}

/* The block for all rows that see some of it. */
SIMD_INLINE void fold_block(const struct cattn_rows *all, struct block *b, uint32_t most_tokens, uint64_t first,
                            const uint32_t *rows, uint32_t n_rows, uint32_t dtype) {
    struct group g;
    int fetched = 0; /* by the first rows, for all */
    for (uint32_t i = 0; i < n_rows;) {
        uint32_t n = 0, most = 0;
        for (; i < n_rows && n < SIMD_ROWS; i++) {
            const uint32_t visible = cattn_visible(all->position[rows[i]], first, most_tokens);
            if (!visible)
                continue;
            g.q[n] = all->q + rows[i] * all->q_stride;
            g.state[n] = all->states + rows[i] * all->state_stride;
            g.visible[n++] = visible;
            most = visible > most ? visible : most;
        }
        b->n_tokens = cattn_round_up(most, CATTN_GRANULE);
        if (n && !fetched)
            fold_rows(&g, b, all, dtype, 1, n);
        else if (n)
            fold_rows(&g, b, all, dtype, 0, n);
        fetched |= n > 0;
    }
}

SIMD_INLINE void fold_chunks(const struct cattn_rows *all, const uint32_t *slots, uint32_t n_chunks, uint64_t first,
                             const uint32_t *rows, uint32_t n_rows, const unsigned char *next, uint32_t dtype) {
    const struct cattn_layout *layout = all->layout;
    const size_t size = cattn_dtype_size(dtype);
    const uint32_t most = cattn_block_tokens(layout);
    for (uint32_t i = 0; i < n_chunks; i++, first += layout->chunk_tokens) {
        const unsigned char *chunk = all->blocks + slots[i] * layout->block_bytes;
        const unsigned char *after = i + 1 < n_chunks ? all->blocks + slots[i + 1] * layout->block_bytes : next;
        for (uint32_t token = 0; token < layout->chunk_tokens; token += most) {
            const size_t k = token * size * layout->k_pad, v = layout->v_offset + token * size * layout->v_pad;
            struct block b = {chunk + k, chunk + v, after - chunk, 0};
            fold_block(all, &b, most, first + token, rows, n_rows, dtype);
        }
    }
}

static void fold(const struct cattn_rows *all, const uint32_t *slots, uint32_t n_chunks, uint64_t first,
                 const uint32_t *rows, uint32_t n_rows, const unsigned char *next) {
    switch (all->layout->dtype) {
    case CATTN_F32: fold_chunks(all, slots, n_chunks, first, rows, n_rows, next, CATTN_F32); break;
    case CATTN_F16: fold_chunks(all, slots, n_chunks, first, rows, n_rows, next, CATTN_F16); break;
    default: fold_chunks(all, slots, n_chunks, first, rows, n_rows, next, CATTN_BF16); break;
    }
}

#define KERNEL_SYMBOL_OF(name) cattn_kernel_##name
#define KERNEL_SYMBOL(name) KERNEL_SYMBOL_OF(name)
#define KERNEL_STRING_OF(name) #name
#define KERNEL_STRING(name) KERNEL_STRING_OF(name)

const struct cattn_kernel KERNEL_SYMBOL(KERNEL_NAME) = {KERNEL_STRING(KERNEL_NAME), 1, KERNEL_FEATURES, takes, fold};

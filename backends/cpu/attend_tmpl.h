/* The vector kernel, included once per instruction set after its simd_*.h; KERNEL_NAME and KERNEL_FEATURES are set, and
 * where it is for one type alone, under the name of the kernel for the others, KERNEL_I8_ONLY and KERNEL_SHOWN.
 *
 * It keeps the Bit rule (doc/design.md): what is done for a row depends on its position, the chunk size and its own
 * numbers.  A score is two sums over d, even and odd, each ascending, added once; values are added in the order of
 * tokens into one sum.  How many rows go together, and how many vectors, is free. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "fetch.h"
#include "scores_tmpl.h"

enum {
    MOST_VECTORS = 4,             /* of a tile */
    MOST_GROUPS = 36 / SIMD_ROWS, /* that go through a block together */
    FEW_GROUPS = 3                /* see fold_together */
};

/* Loops over a tile, so that its sums live in registers at any optimisation level. */
#define UNROLL(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < (n); i++)

enum { MOST_ROWS = SIMD_ROWS > SIMD_I8_ROWS ? SIMD_ROWS : SIMD_I8_ROWS };

/* The rows that go through a block together. */
struct group {
    const void *q[MOST_ROWS];
    float *state[MOST_ROWS];
    uint64_t visible[MOST_ROWS]; /* tokens of the block that it sees */
    struct bias bias[MOST_ROWS];
    float s[MOST_ROWS][CATTN_BLOCK]; /* scores, then weights */
    /* i8: the weights as whole numbers, in units */
    uint32_t factors[MOST_ROWS][CATTN_BLOCK / 2];
    float unit[MOST_ROWS];
    int n;
};

/* A block of K and V.  Small steps through it: `group` from 16 tokens of K to the next, `tile_row` from 32 tokens of V
 * to the next. */
struct block {
    const unsigned char *k, *v;
    const float *k_scales, *v_scales; /* of i8 */
    ptrdiff_t ahead;                  /* from it to the block that is fetched meanwhile, ... */
    uint32_t turn, n_turns;           /* ... by so many groups in turn */
    size_t group, tile_row;
    uint32_t begin, n_tokens;    /* whole granules: [begin, n_tokens) hold all that some row sees */
    uint32_t k_steps, v_columns; /* pairs (i8: fours) of d, sixteens of d */
};

/* Where the vectors of a tile lie: sixteen tokens of K, or sixteen dimensions of V. */
struct tile {
    const unsigned char *at;
    size_t vector;  /* from one to the next */
    size_t granule; /* V: to its next 32 tokens */
};

static struct tile key_tile(const struct block *b, uint32_t token)
{
    const struct tile tile = {b->k + token / 16 * b->group, b->group, 0};
    return tile;
}

static struct tile column_tile(const struct block *b, uint32_t column, uint32_t dtype)
{
    const size_t vector = CATTN_GRANULE * 16 * cattn_dtype_size(dtype);
    const struct tile tile = {b->v + column * vector, vector, b->tile_row};
    return tile;
}

#include "attend_i8_tmpl.h"

/* The first or second of two vectors that lie together: consecutive d (K) or tokens (V). */
SIMD_INLINE vec load_half(const unsigned char *p, uint32_t dtype, const int half)
{
    switch (dtype) {
    case CATTN_F32: return vec_load((const float *)p + 16 * half);
    case CATTN_F16: return vec_load_f16((const uint16_t *)p + 16 * half);
    default: return vec_load_bf16_pairs((const uint16_t *)p, half);
    }
}

/* A group that is alone with a block fetches the lines that it reads, a block on. */
SIMD_INLINE void fetch_pair(const unsigned char *p, uint32_t dtype)
{
    __builtin_prefetch(p, 0, 2);
    if (dtype == CATTN_F32)
        __builtin_prefetch(p + 64, 0, 2);
}

/* ---- scores ---------------------------------------------------------------------------------------- */

/* R rows by V vectors of tokens. */
SIMD_INLINE void score_tile(struct group *g, const struct block *b, const struct tile *t, uint32_t token,
                            uint32_t dtype, const int fetch, const int R, const int V)
{
    const size_t step = 32 * cattn_dtype_size(dtype);
    const float *q[SIMD_ROWS];
    vec even[SIMD_ROWS][MOST_VECTORS], odd[SIMD_ROWS][MOST_VECTORS];
    UNROLL (r, R) {
        q[r] = g->q[r];
        UNROLL (v, V)
            even[r][v] = odd[r][v] = vec_set(0);
    }
    for (size_t pair = 0; pair < b->k_steps; pair++) {
        const unsigned char *p = t->at + pair * step;
        UNROLL (half, 2) {
            vec key[MOST_VECTORS];
            UNROLL (v, V) {
                if (fetch && !half)
                    fetch_pair(p + v * t->vector + b->ahead, dtype);
                key[v] = load_half(p + v * t->vector, dtype, half);
            }
            UNROLL (r, R) {
                const vec x = vec_set(q[r][2 * pair + half]);
                UNROLL (v, V)
                    *(half ? &odd[r][v] : &even[r][v]) = vec_fma(x, key[v], half ? odd[r][v] : even[r][v]);
            }
        }
    }
    UNROLL (r, R)
        UNROLL (v, V)
            vec_store(&g->s[r][token + 16 * v], vec_add(even[r][v], odd[r][v]));
}

/* ---- weights --------------------------------------------------------------------------------------- */

static void rescale(float *state, float m, uint32_t v_columns)
{
    const vec factor = vec_set(vec_first(exp2_of(vec_set(state[0] - m))));
    for (uint32_t i = CATTN_STATE_L; i < CATTN_STATE_O + 16 * v_columns; i += 16)
        vec_store(state + i, vec_mul(vec_load(state + i), factor));
    state[0] = m;
}

/* Scores become weights 2^(score - m); l takes them in.  With i8 the sums of whole numbers get their scales first, and
 * the weights take the scales of V with them. */
SIMD_INLINE void weigh(struct group *g, int r, const struct block *b, float scale, const int i8)
{
    enum { MOST = CATTN_BLOCK / 16 };
    float *s = g->s[r], *state = g->state[r];
    const vec factor = vec_set(i8 ? ((const struct i8_query *)g->q[r])->scale * scale : scale);
    vec x[MOST], largest = vec_set(-INFINITY);
    for (uint32_t i = b->begin / 16; i < b->n_tokens / 16; i++) {
        const vec unit = i8 ? vec_mul(vec_load(b->k_scales + 16 * i), factor) : factor;
        x[i] = score_of(vec_mul(vec_load(s + 16 * i), unit), &g->bias[r], 16 * i, g->visible[r]);
        largest = vec_max(x[i], largest);
    }
    const float maximum = vec_largest(largest);
    if (maximum > state[0] + 8 && maximum > -INFINITY)
        rescale(state, ceilf(maximum), b->v_columns);
    const vec m = vec_set(state[0] > -INFINITY ? state[0] : 0);
    vec l = vec_load(state + CATTN_STATE_L);
    for (uint32_t i = b->begin / 16; i < b->n_tokens / 16; i++) {
        const vec p = exp2_of(vec_sub(x[i], m));
        l = vec_add(l, p);
        vec_store(s + 16 * i,
                  i8 ? vec_only(vec_mul(p, vec_load(b->v_scales + 16 * i)), g->visible[r] >> 16 * i & 0xffff) : p);
    }
    vec_store(state + CATTN_STATE_L, l);
    if (i8)
        quantise_weights(g, r, b);
}

static void weigh_row(struct group *g, int r, const struct block *b, float scale)
{
    weigh(g, r, b, scale, 0);
}

static void weigh_i8_row(struct group *g, int r, const struct block *b, float scale)
{
    weigh(g, r, b, scale, 1);
}

/* ---- values ---------------------------------------------------------------------------------------- */

/* R rows by V vectors of dimensions. */
SIMD_INLINE void value_tile(struct group *g, const struct block *b, const struct tile *t, uint32_t column,
                            uint32_t dtype, const int fetch, const int R, const int V)
{
    const size_t step = 32 * cattn_dtype_size(dtype);
    vec o[SIMD_ROWS][MOST_VECTORS];
    UNROLL (r, R)
        UNROLL (v, V)
            o[r][v] = vec_load(g->state[r] + CATTN_STATE_O + 16 * (column + v));
    for (size_t first = b->begin; first < b->n_tokens; first += CATTN_GRANULE) {
        const unsigned char *values = t->at + first / CATTN_GRANULE * t->granule;
        const float *p = g->s[0] + first;
        for (int pair = 0; pair < CATTN_GRANULE / 2; pair++, p += 2, values += step) {
            UNROLL (half, 2) {
                vec value[MOST_VECTORS];
                UNROLL (v, V) {
                    const unsigned char *from = values + v * t->vector;
                    if (fetch && !half)
                        fetch_pair(from + b->ahead, dtype);
                    value[v] = load_half(from, dtype, half);
                    if (SIMD_FEW_REGISTERS) { /* else weights are kept, and sums are not */
                        SIMD_FORGET(p);
                        UNROLL (r, R)
                            o[r][v] = vec_fma(vec_set(p[r * CATTN_BLOCK + half]), value[v], o[r][v]);
                    }
                }
                if (!SIMD_FEW_REGISTERS)
                    UNROLL (r, R) {
                        const vec weight = vec_set(p[r * CATTN_BLOCK + half]);
                        UNROLL (v, V)
                            o[r][v] = vec_fma(weight, value[v], o[r][v]);
                    }
            }
        }
    }
    UNROLL (r, R)
        UNROLL (v, V)
            vec_store(g->state[r] + CATTN_STATE_O + 16 * (column + v), o[r][v]);
}

/* ---- blocks ---------------------------------------------------------------------------------------- */

/* The tiles of a data type. */
SIMD_INLINE void scores(struct group *g, const struct block *b, const struct tile *t, uint32_t token, uint32_t dtype,
                        const int fetch, const int R, const int V)
{
    if (dtype == CATTN_I8)
        score_i8_tile(g, b, t, token, fetch, R, V);
    else
        score_tile(g, b, t, token, dtype, fetch, R, V);
}

SIMD_INLINE void values(struct group *g, const struct block *b, const struct tile *t, uint32_t column, uint32_t dtype,
                        const int fetch, const int R, const int V)
{
    if (dtype == CATTN_I8)
        value_i8_tile(g, b, t, column, fetch, R, V);
    else
        value_tile(g, b, t, column, dtype, fetch, R, V);
}

SIMD_INLINE void weigh_rows(struct group *g, const struct block *b, float scale, uint32_t dtype)
{
    for (int r = 0; r < g->n; r++)
        if (dtype == CATTN_I8)
            weigh_i8_row(g, r, b, scale);
        else
            weigh_row(g, r, b, scale);
}

/* A group that is alone with a block: the number of vectors that suits its number of rows, R. */
SIMD_INLINE void fold_alone(struct group *g, const struct block *b, float scale, uint32_t dtype, const int R)
{
    const uint32_t V = dtype == CATTN_I8 ? SIMD_I8_VECTORS(R) : SIMD_SCORE_VECTORS(R);
    const uint32_t W = dtype == CATTN_I8 ? SIMD_I8_VECTORS(R) : SIMD_VALUE_VECTORS(R);
    const uint32_t tokens = b->n_tokens / 16;
    const int fetch = dtype == CATTN_I8 ? SIMD_I8_FETCH_ALONE : SIMD_FETCH_ALONE;
    uint32_t token = b->begin / 16, column = 0;
    for (uint32_t n; token < tokens; token += n) {
        const struct tile t = key_tile(b, 16 * token);
        n = token + V <= tokens ? V : 2;
        if (n == V)
            scores(g, b, &t, 16 * token, dtype, fetch, R, V);
        else
            scores(g, b, &t, 16 * token, dtype, fetch, R, 2);
    }
    weigh_rows(g, b, scale, dtype);
    for (uint32_t n; column < b->v_columns; column += n) {
        const struct tile t = column_tile(b, column, dtype);
        n = column + W <= b->v_columns ? W : 1;
        if (n == W)
            values(g, b, &t, column, dtype, fetch, R, W);
        else
            values(g, b, &t, column, dtype, fetch, R, 1);
    }
}

/* The tiles of several groups have the size that suits full ones. */
#define TOKENS(dtype)  ((dtype) == CATTN_I8 ? SIMD_I8_VECTORS(SIMD_I8_ROWS) : SIMD_SCORE_VECTORS(SIMD_ROWS))
#define COLUMNS(dtype) ((dtype) == CATTN_I8 ? SIMD_I8_VECTORS(SIMD_I8_ROWS) : SIMD_VALUE_VECTORS(SIMD_ROWS))

/* For each number of rows and data type; not one big function, which takes a compiler a minute.  [1]: fetches meanwhile
 * what lies a block on. */
struct functions {
    void (*alone)(struct group *g, const struct block *b, float scale);
    void (*scores[2])(struct group *g, const struct block *b, const struct tile *t, uint32_t token);
    void (*values[2])(struct group *g, const struct block *b, const struct tile *t, uint32_t column);
    void (*value)(struct group *g, const struct block *b, const struct tile *t, uint32_t column);
};

/* clang-format off */
#define TILES(R, dtype, fetch)                                                                                   \
    static void scores_##R##_##dtype##_##fetch(struct group *g, const struct block *b, const struct tile *t,     \
                                               uint32_t token) {                                                 \
        scores(g, b, t, token, dtype, fetch, R, TOKENS(dtype));                                                  \
    }                                                                                                            \
    static void values_##R##_##dtype##_##fetch(struct group *g, const struct block *b, const struct tile *t,     \
                                               uint32_t column) {                                                \
        values(g, b, t, column, dtype, fetch, R, COLUMNS(dtype));                                                \
    }
#define FUNCTIONS(R, dtype)                                                                                      \
    TILES(R, dtype, 0)                                                                                           \
    TILES(R, dtype, 1)                                                                                           \
    static void alone_##R##_##dtype(struct group *g, const struct block *b, float scale) {                       \
        fold_alone(g, b, scale, dtype, R);                                                                       \
    }                                                                                                            \
    static void value_##R##_##dtype(struct group *g, const struct block *b, const struct tile *t,                \
                                    uint32_t column) {                                                           \
        values(g, b, t, column, dtype, 0, R, 1);                                                                 \
    }
#define IN_TABLE(R, dtype)                                                                                       \
    {alone_##R##_##dtype, {scores_##R##_##dtype##_0, scores_##R##_##dtype##_1},                                  \
     {values_##R##_##dtype##_0, values_##R##_##dtype##_1}, value_##R##_##dtype},
#define EACH_OF_3(F, dtype)      F(1, dtype) F(2, dtype) F(3, dtype)
#define EACH_OF_6(F, dtype)      EACH_OF_3(F, dtype) F(4, dtype) F(5, dtype) F(6, dtype)
#define EACH_OF_(n, F, dtype)    EACH_OF_##n(F, dtype)
#define EACH_OF(n, F, dtype)     EACH_OF_(n, F, dtype)
#define EACH_ROWS(F, dtype)      EACH_OF(SIMD_ROWS, F, dtype)
#define EACH_I8_ROWS(F)          EACH_OF(SIMD_I8_ROWS, F, CATTN_I8)

EACH_I8_ROWS(FUNCTIONS)
#if !KERNEL_I8_ONLY
EACH_ROWS(FUNCTIONS, CATTN_F32)
EACH_ROWS(FUNCTIONS, CATTN_F16)
EACH_ROWS(FUNCTIONS, CATTN_BF16)
#endif

static const struct functions functions[][MOST_ROWS] = {
#if !KERNEL_I8_ONLY
    [CATTN_F32] = {EACH_ROWS(IN_TABLE, CATTN_F32)},
    [CATTN_F16] = {EACH_ROWS(IN_TABLE, CATTN_F16)},
    [CATTN_BF16] = {EACH_ROWS(IN_TABLE, CATTN_BF16)},
#endif
    [CATTN_I8] = {EACH_I8_ROWS(IN_TABLE)},
};
/* clang-format on */

/* ---- tiles of half the size, made f32 once for several groups */

enum { MOST_WIDE = 256 }; /* head_dim of such tiles: what they take must leave room in the first-level cache */

struct wide {
    _Alignas(64) float at[2 * 16 * MOST_WIDE];
};

static int widens(const struct cattn_layout *layout)
{
    return (layout->dtype == CATTN_F16 || layout->dtype == CATTN_BF16) && layout->k_pad <= MOST_WIDE;
}

static void widen_vector(float *to, const unsigned char *from, size_t n_pairs, uint32_t dtype)
{
    for (size_t i = 0; i < n_pairs; i++, from += 64, to += 32) {
        vec_store(to, dtype == CATTN_F16 ? load_half(from, CATTN_F16, 0) : load_half(from, CATTN_BF16, 0));
        vec_store(to + 16, dtype == CATTN_F16 ? load_half(from, CATTN_F16, 1) : load_half(from, CATTN_BF16, 1));
    }
}

static void widen_keys(struct tile *t, struct wide *wide, uint32_t n_vectors, uint32_t k_steps, uint32_t dtype)
{
    for (uint32_t v = 0; v < n_vectors; v++)
        widen_vector(wide->at + v * 32 * k_steps, t->at + v * t->vector, k_steps, dtype);
    *t = (struct tile){(const unsigned char *)wide->at, k_steps * 32 * sizeof(float), 0};
}

static void widen_values(struct tile *t, struct wide *wide, uint32_t n_vectors, const struct block *b, uint32_t dtype)
{
    const size_t vector = CATTN_GRANULE * 16, granule = n_vectors * vector;
    for (uint32_t i = b->begin / CATTN_GRANULE; i < b->n_tokens / CATTN_GRANULE; i++)
        for (uint32_t v = 0; v < n_vectors; v++)
            widen_vector(wide->at + i * granule + v * vector, t->at + i * t->granule + v * t->vector, CATTN_GRANULE / 2,
                         dtype);
    *t = (struct tile){(const unsigned char *)wide->at, vector * sizeof(float), granule * sizeof(float)};
}

/* Several groups: each tile of the block for all of them while it is in the first-level cache.  What comes next is
 * fetched by all of them, or, if they are few, by the first, line by line: their steps would be too large. */
static void fold_together(const struct cattn_rows *all, struct group *g, uint32_t n, const struct block *b)
{
    const uint32_t dtype = all->layout->dtype, tokens = b->n_tokens / 16, columns = b->v_columns;
    const uint32_t token_step = TOKENS(dtype), column_step = COLUMNS(dtype);
    const int few = n <= FEW_GROUPS, spread = b->ahead && !few, widen = !few && widens(all->layout);
    const struct functions *of = functions[widen ? CATTN_F32 : dtype]; /* [rows - 1] */
    const unsigned char *k_ahead = spread ? b->k + b->ahead : NULL, *v_ahead = spread ? b->v + b->ahead : NULL;
    struct fetch k =
        fetch_of(k_ahead, tokens * b->group, b->turn, b->n_turns, (tokens - b->begin / 16) / token_step * n);
    struct fetch v =
        fetch_of(v_ahead, tokens / 2 * b->tile_row, b->turn, b->n_turns, (columns + column_step - 1) / column_step * n);
    struct wide wide;
    for (uint32_t token = b->begin / 16; token < tokens; token += token_step) {
        struct tile t = key_tile(b, 16 * token);
        if (widen)
            widen_keys(&t, &wide, token_step, b->k_steps, dtype);
        for (uint32_t i = 0; i < n; i++) {
            fetch_step(&k);
            of[g[i].n - 1].scores[few && i == 0](&g[i], b, &t, 16 * token);
        }
    }
    for (uint32_t i = 0; i < n; i++)
        weigh_rows(&g[i], b, all->scoring.scale, dtype);
    for (uint32_t column = 0, n_columns; column < columns; column += n_columns) {
        struct tile t = column_tile(b, column, dtype);
        n_columns = column + column_step <= columns ? column_step : 1;
        if (widen)
            widen_values(&t, &wide, n_columns, b, dtype);
        for (uint32_t i = 0; i < n; i++) {
            fetch_step(&v);
            if (n_columns == column_step)
                of[g[i].n - 1].values[few && i == 0](&g[i], b, &t, column);
            else
                of[g[i].n - 1].value(&g[i], b, &t, column);
        }
    }
}

/* Takes rows that see some of the block into a group; returns where it stopped. */
static uint32_t fill_group(const struct cattn_rows *all, struct group *g, uint32_t most_tokens, uint64_t first,
                           const uint32_t *rows, uint32_t i, uint32_t n_rows, uint64_t *seen)
{
    const int most_rows = all->layout->dtype == CATTN_I8 ? SIMD_I8_ROWS : SIMD_ROWS;
    for (g->n = 0; i < n_rows && g->n < most_rows; i++) {
        const uint64_t visible = cattn_visible(all, rows[i], first, most_tokens);
        if (!visible)
            continue;
        g->q[g->n] = all->q + rows[i] * all->q_bytes;
        g->state[g->n] = all->states + rows[i] * all->state_stride;
        g->bias[g->n] = bias_of(all, rows[i], first);
        g->visible[g->n++] = visible;
        *seen |= visible;
    }
    return i;
}

/* The block, whose first token is at `first`, for all rows that see some of it. */
static void fold_block(const struct cattn_rows *all, struct block *b, uint32_t most_tokens, uint64_t first,
                       const uint32_t *rows, uint32_t n_rows)
{
    const uint32_t dtype = all->layout->dtype;
    const uint32_t most_rows = MOST_GROUPS * (dtype == CATTN_I8 ? SIMD_I8_ROWS : SIMD_ROWS);
    struct group g[MOST_GROUPS];
    b->turn = 0;
    b->n_turns = (n_rows + most_rows - 1) / most_rows;
    for (uint32_t i = 0; i < n_rows; b->turn++) {
        uint64_t seen = 0;
        uint32_t n = 0;
        while (i < n_rows && n < MOST_GROUPS) {
            i = fill_group(all, &g[n], most_tokens, first, rows, i, n_rows, &seen);
            n += g[n].n > 0;
        }
        if (!n)
            return;
        b->begin = seen & UINT32_MAX ? 0 : CATTN_GRANULE;
        b->n_tokens = seen >> CATTN_GRANULE ? 2 * CATTN_GRANULE : CATTN_GRANULE;
        if (n == 1 && b->n_turns == 1)
            functions[dtype][g->n - 1].alone(g, b, all->scoring.scale);
        else
            fold_together(all, g, n, b);
    }
}

static void fold(const struct cattn_rows *all, const uint32_t *slots, uint32_t n_chunks, uint64_t first,
                 const uint32_t *rows, uint32_t n_rows, const unsigned char *const *next)
{
    const struct cattn_layout *layout = all->layout;
    const size_t size = cattn_dtype_size(layout->dtype), k_token = layout->k_pad * size, v_token = layout->v_pad * size;
    const uint32_t most = cattn_block_tokens(layout);
    struct block b = {.group = 16 * k_token,
                      .tile_row = 32 * v_token,
                      .k_steps = layout->dtype == CATTN_I8 ? (layout->k_dim + 3) / 4 : (layout->k_dim + 1) / 2,
                      .v_columns = layout->v_pad / 16};
    for (uint32_t i = 0; i < n_chunks; i++, first += layout->chunk_tokens) {
        const unsigned char *chunk = all->blocks + slots[i] * layout->block_bytes;
        const unsigned char *after = i + 1 < n_chunks ? all->blocks + slots[i + 1] * layout->block_bytes : next[0];
        b.ahead = after ? after - chunk : 0;
        for (uint32_t token = 0; token < layout->chunk_tokens; token += most) {
            b.k = chunk + token * k_token;
            b.v = chunk + layout->v_offset + token * v_token;
            if (layout->dtype == CATTN_I8) {
                b.k_scales = cattn_k_scales(layout, chunk) + token;
                b.v_scales = cattn_v_scales(layout, chunk) + token;
            }
            fold_block(all, &b, most, first + token, rows, n_rows);
        }
    }
}

static int takes(const struct cattn_shape *shape)
{
#if KERNEL_I8_ONLY
    return shape->kv_dtype == CATTN_I8;
#else
    (void)shape;
    return 1;
#endif
}

static size_t query_bytes(const struct cattn_layout *layout)
{
    return layout->dtype == CATTN_I8 ? i8_query_bytes(layout) : cattn_query_bytes_f32(layout);
}

static void load_query(const struct cattn_layout *layout, const void *q, uint32_t dtype, size_t first, void *query)
{
    if (layout->dtype == CATTN_I8)
        load_i8_query(layout, q, dtype, first, query);
    else
        cattn_load_query_f32(layout, q, dtype, first, query);
}

#ifndef KERNEL_SHOWN
#  define KERNEL_SHOWN KERNEL_NAME
#endif
#define KERNEL_SYMBOL_OF(name) cattn_kernel_##name
#define KERNEL_SYMBOL(name)    KERNEL_SYMBOL_OF(name)
#define KERNEL_STRING_OF(name) #name
#define KERNEL_STRING(name)    KERNEL_STRING_OF(name)

const struct cattn_kernel KERNEL_SYMBOL(KERNEL_NAME) = {
    .name = KERNEL_STRING(KERNEL_SHOWN),
    .exact = 1,
    .features = KERNEL_FEATURES,
    .takes = takes,
    .query_bytes = query_bytes,
    .load_query = load_query,
    .fold = fold,
};

/* The vector kernel, included once per instruction set after its simd_*.h; KERNEL_NAME and KERNEL_FEATURES are set.
 *
 * It keeps the Bit rule (doc/design.md): what is done for a row depends on its position, the chunk size and its own
 * numbers.  A score is two sums over d, even and odd, each ascending, added once; values are added in the order of
 * tokens into one sum.  How many rows go together, and how many vectors, is free. */
#include <math.h>
#include <stddef.h>

#include "fetch.h"
#include "scores_tmpl.h"

enum { MOST_VECTORS = 4 /* of a tile */, MOST_GROUPS = 36 / SIMD_ROWS /* that go through a block together */ };

/* Loops over a tile, so that its sums live in registers at any optimisation level. */
#define UNROLL(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < (n); i++)

/* The rows that go through a block together. */
struct group {
    const float *q[SIMD_ROWS];
    float *state[SIMD_ROWS];
    uint64_t visible[SIMD_ROWS]; /* tokens of the block that it sees */
    struct bias bias[SIMD_ROWS];
    float s[SIMD_ROWS][CATTN_BLOCK]; /* scores, then weights */
    int n;
};

/* A block of K and V.  Small steps through it: `group` from 16 tokens of K to the next, `tile_row` from 32 tokens of V
 * to the next. */
struct block {
    const unsigned char *k, *v;
    ptrdiff_t ahead;        /* from it to the block that is fetched meanwhile, ... */
    uint32_t turn, n_turns; /* ... by so many groups in turn */
    size_t group, tile_row;
    uint32_t begin, n_tokens;    /* whole granules: [begin, n_tokens) hold all that some row sees */
    uint32_t k_pairs, v_columns; /* pairs of d, sixteens of d */
};

static int takes(const struct cattn_shape *shape)
{
    (void)shape;
    return 1;
}

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
SIMD_INLINE void score_tile(struct group *g, const struct block *b, uint32_t token, uint32_t dtype, const int fetch,
                            const int R, const int V)
{
    const size_t step = 32 * cattn_dtype_size(dtype);
    const unsigned char *k = b->k + token / 16 * b->group;
    vec even[SIMD_ROWS][MOST_VECTORS], odd[SIMD_ROWS][MOST_VECTORS];
    UNROLL (r, R)
        UNROLL (v, V)
            even[r][v] = odd[r][v] = vec_set(0);
    for (size_t pair = 0; pair < b->k_pairs; pair++) {
        UNROLL (v, V) {
            const unsigned char *p = k + v * b->group + pair * step;
            if (fetch)
                fetch_pair(p + b->ahead, dtype);
            const vec k_even = load_half(p, dtype, 0);
            UNROLL (r, R)
                even[r][v] = vec_fma(vec_set(g->q[r][2 * pair]), k_even, even[r][v]);
            const vec k_odd = load_half(p, dtype, 1);
            UNROLL (r, R)
                odd[r][v] = vec_fma(vec_set(g->q[r][2 * pair + 1]), k_odd, odd[r][v]);
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

/* Scores become weights 2^(score - m); l takes them in. */
static void weigh_row(struct group *g, int r, const struct block *b, float scale)
{
    enum { MOST = CATTN_BLOCK / 16 };
    float *s = g->s[r], *state = g->state[r];
    vec x[MOST], largest = vec_set(-INFINITY);
    for (uint32_t i = b->begin / 16; i < b->n_tokens / 16; i++) {
        x[i] = score_of(vec_mul(vec_load(s + 16 * i), vec_set(scale)), &g->bias[r], 16 * i, g->visible[r]);
        largest = vec_max(x[i], largest);
    }
    const float maximum = vec_largest(largest);
    if (maximum > state[0] + 8 && maximum > -INFINITY)
        rescale(state, ceilf(maximum), b->v_columns);
    const vec m = vec_set(state[0] > -INFINITY ? state[0] : 0);
    vec l = vec_load(state + CATTN_STATE_L);
    for (uint32_t i = b->begin / 16; i < b->n_tokens / 16; i++) {
        const vec p = exp2_of(vec_sub(x[i], m));
        vec_store(s + 16 * i, p);
        l = vec_add(l, p);
    }
    vec_store(state + CATTN_STATE_L, l);
}

/* ---- values ---------------------------------------------------------------------------------------- */

/* R rows by V vectors of dimensions. */
SIMD_INLINE void value_tile(struct group *g, const struct block *b, uint32_t column, uint32_t dtype, const int fetch,
                            const int R, const int V)
{
    const size_t step = 32 * cattn_dtype_size(dtype), tile = 16 * step;
    vec o[SIMD_ROWS][MOST_VECTORS];
    UNROLL (r, R)
        UNROLL (v, V)
            o[r][v] = vec_load(g->state[r] + CATTN_STATE_O + 16 * (column + v));
    for (size_t first = b->begin; first < b->n_tokens; first += CATTN_GRANULE) {
        const unsigned char *values = b->v + first / CATTN_GRANULE * b->tile_row + column * tile;
        const float *p = g->s[0] + first;
        for (int pair = 0; pair < CATTN_GRANULE / 2; pair++, p += 2, values += step) {
            UNROLL (v, V) {
                const unsigned char *from = values + v * tile;
                if (fetch)
                    fetch_pair(from + b->ahead, dtype);
                UNROLL (half, 2) {
                    const vec value = load_half(from, dtype, half);
                    SIMD_FORGET(p);
                    UNROLL (r, R)
                        o[r][v] = vec_fma(vec_set(p[r * CATTN_BLOCK + half]), value, o[r][v]);
                }
            }
        }
    }
    UNROLL (r, R)
        UNROLL (v, V)
            vec_store(g->state[r] + CATTN_STATE_O + 16 * (column + v), o[r][v]);
}

/* ---- blocks ---------------------------------------------------------------------------------------- */

/* A group that is alone with a block: the number of vectors that suits its number of rows, R. */
SIMD_INLINE void fold_alone(struct group *g, const struct block *b, float scale, uint32_t dtype, const int R)
{
    const uint32_t V = SIMD_SCORE_VECTORS(R), W = SIMD_VALUE_VECTORS(R), tokens = b->n_tokens / 16;
    uint32_t token = b->begin / 16, column = 0;
    for (; token + V <= tokens; token += V)
        score_tile(g, b, 16 * token, dtype, SIMD_FETCH_ALONE, R, V);
    for (; V > 2 && token < tokens; token += 2)
        score_tile(g, b, 16 * token, dtype, SIMD_FETCH_ALONE, R, 2);
    for (int r = 0; r < R; r++)
        weigh_row(g, r, b, scale);
    for (; column + W <= b->v_columns; column += W)
        value_tile(g, b, column, dtype, SIMD_FETCH_ALONE, R, W);
    for (; column < b->v_columns; column++)
        value_tile(g, b, column, dtype, SIMD_FETCH_ALONE, R, 1);
}

/* clang-format off */
/* The tiles of several groups have the size that suits a full one. */
enum { TOKENS = SIMD_SCORE_VECTORS(SIMD_ROWS), COLUMNS = SIMD_VALUE_VECTORS(SIMD_ROWS) };

/* Functions for each number of rows and data type; not one big one, which takes a compiler a minute. */
#if SIMD_ROWS == 6
#  define EACH_ROWS(F) F(1) F(2) F(3) F(4) F(5) F(6)
#else
#  define EACH_ROWS(F) F(1) F(2) F(3)
#endif
#define EACH_DTYPE(F, R) F(R, CATTN_F32) F(R, CATTN_F16) F(R, CATTN_BF16)
#define FUNCTIONS_OF(R, dtype)                                                                          \
    static void alone_##R##_##dtype(struct group *g, const struct block *b, float scale) {              \
        fold_alone(g, b, scale, dtype, R);                                                              \
    }                                                                                                   \
    static void scores_##R##_##dtype(struct group *g, const struct block *b, uint32_t token) {          \
        score_tile(g, b, token, dtype, 0, R, TOKENS);                                                   \
    }                                                                                                   \
    static void values_##R##_##dtype(struct group *g, const struct block *b, uint32_t column) {         \
        value_tile(g, b, column, dtype, 0, R, COLUMNS);                                                 \
    }                                                                                                   \
    static void value_##R##_##dtype(struct group *g, const struct block *b, uint32_t column) {          \
        value_tile(g, b, column, dtype, 0, R, 1);                                                       \
    }
#define FUNCTIONS(R) EACH_DTYPE(FUNCTIONS_OF, R)
#define IN_TABLE_OF(R, dtype) \
    [dtype] = {alone_##R##_##dtype, scores_##R##_##dtype, values_##R##_##dtype, value_##R##_##dtype},
#define IN_TABLE(R) {EACH_DTYPE(IN_TABLE_OF, R)},

EACH_ROWS(FUNCTIONS)
/* clang-format on */

static const struct functions {
    void (*alone)(struct group *g, const struct block *b, float scale);
    void (*scores)(struct group *g, const struct block *b, uint32_t token);
    void (*values)(struct group *g, const struct block *b, uint32_t column);
    void (*value)(struct group *g, const struct block *b, uint32_t column);
} functions[SIMD_ROWS][3] = {EACH_ROWS(IN_TABLE)};

static const struct functions *functions_of(const struct cattn_rows *all, const struct group *g)
{
    return &functions[g->n - 1][all->layout->dtype];
}

/* Several groups: each tile of the block for all of them while it is in the first-level cache. */
static void fold_together(const struct cattn_rows *all, struct group *g, uint32_t n, const struct block *b)
{
    const uint32_t tokens = b->n_tokens / 16, columns = b->v_columns;
    const unsigned char *k_ahead = b->ahead ? b->k + b->ahead : NULL, *v_ahead = b->ahead ? b->v + b->ahead : NULL;
    struct fetch k = fetch_of(k_ahead, tokens * b->group, b->turn, b->n_turns, (tokens - b->begin / 16) / TOKENS * n);
    struct fetch v =
        fetch_of(v_ahead, tokens / 2 * b->tile_row, b->turn, b->n_turns, (columns + COLUMNS - 1) / COLUMNS * n);
    uint32_t column = 0;
    for (uint32_t token = b->begin / 16; token < tokens; token += TOKENS)
        for (uint32_t i = 0; i < n; i++) {
            fetch_step(&k);
            functions_of(all, &g[i])->scores(&g[i], b, 16 * token);
        }
    for (uint32_t i = 0; i < n; i++)
        for (int r = 0; r < g[i].n; r++)
            weigh_row(&g[i], r, b, all->scoring.scale);
    for (; column + COLUMNS <= columns; column += COLUMNS)
        for (uint32_t i = 0; i < n; i++) {
            fetch_step(&v);
            functions_of(all, &g[i])->values(&g[i], b, column);
        }
    for (; column < columns; column++)
        for (uint32_t i = 0; i < n; i++) {
            fetch_step(&v);
            functions_of(all, &g[i])->value(&g[i], b, column);
        }
}

/* Takes rows that see some of the block into a group; returns where it stopped. */
static uint32_t fill_group(const struct cattn_rows *all, struct group *g, uint32_t most_tokens, uint64_t first,
                           const uint32_t *rows, uint32_t i, uint32_t n_rows, uint64_t *seen)
{
    for (g->n = 0; i < n_rows && g->n < SIMD_ROWS; i++) {
        const uint64_t visible = cattn_visible(all, rows[i], first, most_tokens);
        if (!visible)
            continue;
        g->q[g->n] = (const float *)(all->q + rows[i] * all->q_bytes);
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
    struct group g[MOST_GROUPS];
    b->turn = 0;
    b->n_turns = (n_rows + MOST_GROUPS * SIMD_ROWS - 1) / (MOST_GROUPS * SIMD_ROWS);
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
            functions_of(all, g)->alone(g, b, all->scoring.scale);
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
                      .k_pairs = (layout->k_dim + 1) / 2,
                      .v_columns = layout->v_pad / 16};
    for (uint32_t i = 0; i < n_chunks; i++, first += layout->chunk_tokens) {
        const unsigned char *chunk = all->blocks + slots[i] * layout->block_bytes;
        const unsigned char *after = i + 1 < n_chunks ? all->blocks + slots[i + 1] * layout->block_bytes : next[0];
        b.ahead = after ? after - chunk : 0;
        for (uint32_t token = 0; token < layout->chunk_tokens; token += most) {
            b.k = chunk + token * k_token;
            b.v = chunk + layout->v_offset + token * v_token;
            fold_block(all, &b, most, first + token, rows, n_rows);
        }
    }
}

#define KERNEL_SYMBOL_OF(name) cattn_kernel_##name
#define KERNEL_SYMBOL(name)    KERNEL_SYMBOL_OF(name)
#define KERNEL_STRING_OF(name) #name
#define KERNEL_STRING(name)    KERNEL_STRING_OF(name)

const struct cattn_kernel KERNEL_SYMBOL(KERNEL_NAME) = {
    .name = KERNEL_STRING(KERNEL_NAME),
    .exact = 1,
    .features = KERNEL_FEATURES,
    .takes = takes,
    .query_bytes = cattn_query_bytes_f32,
    .load_query = cattn_load_query_f32,
    .fold = fold,
};

/* The kernels on AMX tiles, both phases, prefill and decode, any number of rows.  AMX_NAME is the kernel, AMX_SPLIT
 * what it takes: 0 bf16 K and V; 1 f32, each number as two of bf16, `high` and what is missing, `low`.  Of the product
 * of two such numbers three parts are computed; low times low is left out.  Blocks of f32 are split as they come, once
 * for all groups of rows.
 *
 * It keeps the Bit rule (doc/design.md).  A tile operation over 32 d, or over 32 tokens, is one operation, whose result
 * for a row depends on nothing in the tile's other rows.  q and the weights are rounded to bf16 (to two); l sums the
 * weights as they are after rounding, so that a single large one gives its value as it is held.
 *
 * Blocks of tokens go through in units of up to four (amxf32: one), of one group of rows after the other.  Scores of a
 * block are computed while those of the block before become weights: the matrix unit and the vector unit work side by
 * side, from one unit to the next as well.  Values come once a unit, so that the sums of a row are loaded and stored
 * once for all of it.  Scores and weights alone fit the first-level cache. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "cpu.h"
#include "simd_avx512.h"

#include "fetch.h"
#include "scores_tmpl.h"

enum {
    GRANULES = CATTN_BLOCK / CATTN_GRANULE,
    TILE_ROWS = 16,
    TILE_BYTES = TILE_ROWS * 64, /* of K: 16 tokens x 32 d; of V: 32 tokens x 16 d; of q and weights: 16 rows x 32 */
    MOST_ROWS = 2 * TILE_ROWS,   /* that go through a unit together */
    PLANES = AMX_SPLIT ? 2 : 1,  /* of bf16 */
    N_PARTS = AMX_SPLIT ? 3 : 1, /* of a product that are computed */
    MOST_BLOCKS = AMX_SPLIT ? 1 : 4, /* of a unit; also how far ahead lines are fetched */
    MOST_GROUPS = 8
};

/* What was split a moment ago is in the caches; other K and V pass by the first-level one, which the scores, weights
 * and sums of a group fill. */
#if AMX_SPLIT
#  define TILE_LOAD_KV _tile_loadd
#else
#  define TILE_LOAD_KV _tile_stream_loadd
#endif

#define UNROLL(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

/* All tiles alike: rows that a tile has and nobody needs cost next to nothing. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t columns[16]; /* bytes */
    uint8_t rows[16];
} tiles = {.palette = 1,
           .columns = {64, 64, 64, 64, 64, 64, 64, 64},
           .rows = {TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS}};

/* Rows that go through some blocks together: all see some of each. */
struct group {
    uint32_t turn, seeing; /* which they are: of those of this turn a bit each */
    uint32_t n, row[MOST_ROWS];
    float *state[MOST_ROWS];
    const unsigned char *q; /* rows of q_step bytes */
    float *o;               /* rows of o_step floats */
    size_t q_step, o_step;
    unsigned char *staged_q; /* where q and o of rows are while they do not lie together by themselves, */
    float *staged_o;         /* or are too few for a tile: [MOST_ROWS][query_bytes], [MOST_ROWS][v_pad] */
    _Alignas(64) float m[MOST_ROWS];
};

struct block {
    const unsigned char *k, *v;
    const unsigned char *ahead;              /* a block like this one to be fetched meanwhile; NULL: none is known */
    uint32_t asked;                          /* for so much of it already: WITH_TILES, or nothing */
    size_t v_behind;                         /* its V lies behind its K by so much */
    uint64_t first;                          /* position of its first token */
    uint32_t begin, end;                     /* its tokens, in whole granules, that hold all that the group sees */
    int plain;                               /* scores are q.k * scale, and all are seen */
    uint64_t visible[MOST_ROWS];             /* unless it is plain */
    float (*s)[CATTN_BLOCK];                 /* scores: [row] */
    uint16_t (*p)[MOST_ROWS][CATTN_GRANULE]; /* weights: [plane * GRANULES + granule][row] */
};

/* Blocks that go through a group together. */
struct unit {
    struct group *group;
    uint32_t n, waiting; /* blocks; those from `waiting` on have not been added to o yet */
    struct block block[MOST_BLOCKS];
};

#if AMX_SPLIT
/* A block as the tiles take it. */
struct split {
    uint32_t block, granules; /* which one, of the fold; those that are there, a bit each */
    uint16_t *k, *v;          /* [plane] tiles */
};
#endif

struct scratch {
    _Alignas(64) float s[2][MOST_ROWS][CATTN_BLOCK]; /* of a block and of the next */
    _Alignas(64) uint16_t p[MOST_BLOCKS][PLANES * GRANULES][MOST_ROWS][CATTN_GRANULE];
    struct unit unit[2], *last; /* one is begun before the last is done; NULL: there is none */
    uint32_t n_units, n_scored; /* so far; blocks */
    struct group group[MOST_GROUPS];
#if AMX_SPLIT
    struct split split[2 * MOST_BLOCKS]; /* of the blocks at hand and of those before */
    uint32_t n_split;                    /* so far */
#endif
};

/* What a fold is about. */
struct fold {
    const struct cattn_rows *all;
    struct scratch *scratch;
    const uint32_t *slots;
    const unsigned char *const *next;
    uint64_t first;
    uint32_t block_tokens, n_blocks, per_chunk; /* blocks */
    uint32_t n_turns;                           /* groups take a block in turn, and share the fetching */
    uint32_t k_tiles, v_tiles;                  /* 32 d of K, 16 d of V */
    size_t k_step, v_step;                      /* bytes from 16 tokens of K, from 32 of V, to the next: tiles */
    size_t k_plane, v_plane;                    /* of K, of V of a block in tiles */
    size_t k_bytes, v_bytes;                    /* of K, of V of a block as it is stored */
    size_t q_plane;                             /* of a query */
};

static inline uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static int takes(const struct cattn_shape *shape)
{
    return shape->kv_dtype == (AMX_SPLIT ? CATTN_F32 : CATTN_BF16);
}

/* ---- numbers: what the two kernels do differently ------------------------------------------------------ */

#if AMX_SPLIT
/* Two vectors as pairs of bf16, lane by lane: that order costs least, and nobody minds it who has all in it. */
SIMD_INLINE __m512i pairs_of(vec first, vec second)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(first), 16),
                                   _mm512_castps_si512(second));
}

/* To the nearest number of bf16; what is half way goes away from zero. */
SIMD_INLINE vec to_nearest(vec x)
{
    const __m512i up = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000)));
}

/* x becomes its high part; its low one is returned. */
SIMD_INLINE vec split(vec *x)
{
    const vec high = to_nearest(*x), low = to_nearest(vec_sub(*x, high));
    *x = high;
    return low;
}

/* Returns the sum of each pair, as it is after rounding. */
SIMD_INLINE vec store_split(void *high, void *low, vec first, vec second)
{
    const vec first_low = split(&first), second_low = split(&second);
    _mm512_store_si512(high, pairs_of(first, second));
    _mm512_store_si512(low, pairs_of(first_low, second_low));
    return vec_add(vec_add(first, first_low), vec_add(second, second_low));
}

/* An infinity has no parts whose products with zeros are zero: it becomes the largest number of bf16.  All NaNs
 * become one that is not rounded to something else. */
SIMD_INLINE vec finite(vec x)
{
    const vec most = vec_set(0x1.fep127f), limited = vec_min(most, vec_max(vec_sub(vec_set(0), most), x));
    return _mm512_mask_mov_ps(limited, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), vec_set(NAN));
}

/* 32 of q, of K or of V, whose low parts lie `plane` elements behind. */
SIMD_INLINE void store_numbers(uint16_t *to, size_t plane, vec first, vec second)
{
    store_split(to, to + plane, finite(first), finite(second));
}

/* 32 weights of a row; returns `sum` with them in it. */
SIMD_INLINE vec store_weights(uint16_t *to, vec first, vec second, vec sum)
{
    return vec_add(sum, store_split(to, to + GRANULES * MOST_ROWS * CATTN_GRANULE, first, second));
}

SIMD_INLINE vec weight_of(vec x)
{
    return exp2_of(x);
}
#else
SIMD_INLINE void store_numbers(uint16_t *to, size_t plane, vec first, vec second)
{
    (void)plane;
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

SIMD_INLINE vec store_weights(uint16_t *to, vec first, vec second, vec sum)
{
    const __m512bh both = _mm512_cvtne2ps_pbh(second, first);
    _mm512_store_si512(to, (__m512i)both);
    return _mm512_dpbf16_ps(sum, both, (__m512bh)_mm512_set1_epi16(0x3f80)); /* times 1 */
}

/* 2^x, exact for whole x, relative error 1e-4: a weight is rounded to bf16, which is coarser. */
SIMD_INLINE vec weight_of(vec x)
{
    const vec f = vec_fraction(x);
    vec y = vec_set(0x1.3baaa6p-4f);
    y = vec_fma(y, f, vec_set(0x1.d2378ap-3f));
    y = vec_fma(y, f, vec_set(0x1.63e658p-1f));
    return vec_scale(vec_fma(y, f, vec_set(1)), x);
}
#endif

/* ---- queries: rows of bf16, which are tiles as they are ---------------------------------------------- */

static uint32_t k_wide(const struct cattn_layout *layout)
{
    return cattn_round_up(layout->k_dim, 32);
}

static size_t query_bytes(const struct cattn_layout *layout)
{
    return PLANES * k_wide(layout) * sizeof(uint16_t);
}

/* Up to sixteen elements from the first on, zeros behind them; nothing past n is read. */
SIMD_INLINE vec load_some(const void *q, uint32_t dtype, size_t first, uint32_t n)
{
    const __mmask16 some = (__mmask16)cattn_first_bits(n < 16 ? n : 16);
    if (dtype == CATTN_F32)
        return _mm512_maskz_loadu_ps(some, (const float *)q + first);
    if (dtype == CATTN_BF16)
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, (const uint16_t *)q + first)), 16));
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, (const uint16_t *)q + first));
}

static void load_query(const struct cattn_layout *layout, const void *q, uint32_t dtype, size_t first, void *query)
{
    uint16_t *to = query;
    const uint32_t n = layout->k_dim;
    if (!AMX_SPLIT && dtype == CATTN_BF16) {
        memcpy(to, (const uint16_t *)q + first, n * sizeof *to);
        memset(to + n, 0, (k_wide(layout) - n) * sizeof *to);
        return;
    }
    for (uint32_t d = 0; d < k_wide(layout); d += 32) {
        const vec low = load_some(q, dtype, first + d, d < n ? n - d : 0);
        const vec high = load_some(q, dtype, first + d + 16, d + 16 < n ? n - d - 16 : 0);
        store_numbers(to + d, k_wide(layout), low, high);
    }
}

/* ---- weights ----------------------------------------------------------------------------------------- */

/* What weigh_row works on, looked up once a block. */
struct weighing {
    uint32_t row, n, begin, end; /* rows; tokens */
    const float *s, *m;
    float factor;
    uint16_t *p;
    float *const *state;
};

/* Scores that are not plain have been worked out already. */
SIMD_INLINE float factor_of(const struct fold *f, const struct block *block)
{
    return block->plain ? f->all->scoring.scale : 1;
}

static struct weighing weighing_of(const struct fold *f, const struct unit *u, uint32_t b)
{
    const struct block *block = &u->block[b];
    const struct group *g = u->group;
    const struct weighing w = {.n = g->n,
                               .begin = block->begin,
                               .end = block->end,
                               .s = block->s[0],
                               .m = g->m,
                               .factor = factor_of(f, block),
                               .p = block->p[0][0],
                               .state = g->state};
    return w;
}

/* The scores of row r become weights; l takes them in, pair by pair.  G: granules. */
SIMD_INLINE void weigh_row(const struct weighing w, size_t r, const int G)
{
    const float *s = w.s + w.begin + r * CATTN_BLOCK;
    uint16_t *p = w.p + (w.begin * MOST_ROWS + r * CATTN_GRANULE);
    float *l = w.state[r] + CATTN_STATE_L;
    const vec m = vec_max(vec_set(w.m[r]), vec_set(-FLT_MAX)), factor = vec_set(w.factor);
    vec sum = vec_load(l);
    UNROLL (i, G) {
        /* Not in one operation: what the product loses by rounding may be more than any weight. */
        const vec low = weight_of(vec_sub(vec_mul(vec_load(s + CATTN_GRANULE * i), factor), m));
        const vec high = weight_of(vec_sub(vec_mul(vec_load(s + CATTN_GRANULE * i + 16), factor), m));
        sum = store_weights(p + i * MOST_ROWS * CATTN_GRANULE, low, high, sum);
    }
    vec_store(l, sum);
}

/* Some more rows.  Not inline: the registers with the tiles' addresses would be spilt. */
static __attribute__((noinline)) void weigh_rows(struct weighing *w, uint32_t n)
{
    const struct weighing all = *w;
    const uint32_t stop = smaller(all.row + n, all.n);
    if (all.end - all.begin > CATTN_GRANULE)
        for (uint32_t r = all.row; r < stop; r++)
            weigh_row(all, r, 2);
    else
        for (uint32_t r = all.row; r < stop; r++)
            weigh_row(all, r, 1);
    w->row = stop;
}

/* The largest lane of each of sixteen vectors, in order. */
SIMD_INLINE vec largest_of_each(const vec v[TILE_ROWS])
{
    __m512d two[8];
    vec four[4];
    UNROLL (i, 8)
        two[i] = _mm512_castps_pd(
            vec_max(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1])));
    UNROLL (i, 4)
        four[i] = vec_max(_mm512_castpd_ps(_mm512_unpacklo_pd(two[2 * i], two[2 * i + 1])),
                          _mm512_castpd_ps(_mm512_unpackhi_pd(two[2 * i], two[2 * i + 1])));
    const vec a = vec_max(_mm512_shuffle_f32x4(four[0], four[1], 0x88), _mm512_shuffle_f32x4(four[0], four[1], 0xdd));
    const vec b = vec_max(_mm512_shuffle_f32x4(four[2], four[3], 0x88), _mm512_shuffle_f32x4(four[2], four[3], 0xdd));
    return vec_max(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

/* The largest score of each row of a tile.  G: granules of the block. */
SIMD_INLINE vec maxima(const float *s, const int G)
{
    vec v[TILE_ROWS];
    UNROLL (r, TILE_ROWS) {
        v[r] = vec_max(vec_load(s + r * CATTN_BLOCK), vec_load(s + r * CATTN_BLOCK + 16));
        if (G > 1)
            v[r] = vec_max(v[r], vec_max(vec_load(s + r * CATTN_BLOCK + 32), vec_load(s + r * CATTN_BLOCK + 48)));
    }
    return largest_of_each(v);
}

/* Scores that are more than q.k * scale, or of which some are hidden, are worked out here. */
static void adjust_scores(const struct fold *f, const struct group *g, const struct block *block)
{
    const vec scale = vec_set(f->all->scoring.scale);
    for (uint32_t r = 0; r < g->n; r++) {
        const struct bias bias = bias_of(f->all, g->row[r], block->first);
        float *s = block->s[r];
        for (uint32_t t = block->begin; t < block->end; t += 16)
            vec_store(s + t, score_of(vec_mul(vec_load(s + t), scale), &bias, t, block->visible[r]));
    }
}

static void raise_maximum(const struct fold *f, struct group *g, uint32_t r, float m)
{
    const float by = g->m[r] - m;
    g->m[r] = g->state[r][0] = m;
    const vec factor = vec_set(vec_first(exp2_of(vec_set(by))));
    float *l = g->state[r] + CATTN_STATE_L, *o = g->o + r * g->o_step;
    vec_store(l, vec_mul(vec_load(l), factor));
    for (uint32_t i = 0; i < f->v_tiles; i++)
        vec_store(o + 16 * i, vec_mul(vec_load(o + 16 * i), factor));
}

/* The rows of a tile, a bit each, whose largest score is so far above their maximum that it must be raised. */
static uint32_t find_raised(const struct fold *f, const struct group *g, const struct block *block, uint32_t first_row,
                            float largest[TILE_ROWS])
{
    const float *s = block->s[first_row] + block->begin;
    const vec most = block->end - block->begin > CATTN_GRANULE ? maxima(s, 2) : maxima(s, 1);
    const vec x = vec_mul(most, vec_set(factor_of(f, block)));
    const __mmask16 raised = _mm512_cmp_ps_mask(x, vec_add(vec_load(g->m + first_row), vec_set(8)), _CMP_GT_OQ);
    if (raised)
        vec_store(largest, x);
    return raised & (uint32_t)cattn_first_bits(g->n - first_row);
}

/* ---- tiles, for R tiles of rows: an instance for each number ------------------------------------------ */

/* Some compilers' tile loads do not say that they read memory: what was stored before must not be put off. */
SIMD_INLINE void settle(void)
{
    __asm__ volatile("" : : : "memory");
}

/* What is done besides: of the block ahead lines are fetched, K and V, halves of either in turn.  In amx
 * scores take twice as long as values and fetch twice as much; in amxf32 most is fetched while blocks are split.  If K
 * and V differ in size, lines behind the smaller one are fetched too. */
enum { WITH_TILES = 11, WITH_SCORES = AMX_SPLIT ? 14 : 11, WITH_ALL = 16 };

static struct fetch fetch_ahead(const struct fold *f, const struct group *g, const struct block *block, uint32_t begin,
                                uint32_t end, uint32_t n_steps)
{
    const size_t k_bytes = f->k_bytes, v_bytes = f->v_bytes;
    const uint32_t n = (uint32_t)((k_bytes > v_bytes ? k_bytes : v_bytes) / 128);
    const uint32_t first = n * g->turn / f->n_turns, own = n * (g->turn + 1) / f->n_turns - first;
    struct fetch fetch =
        fetch_lines(block->ahead, first + own * begin / WITH_ALL, first + own * end / WITH_ALL, n_steps);
    fetch.others[0] = k_bytes / 2;
    fetch.others[1] = block->v_behind;
    fetch.others[2] = fetch.others[1] + v_bytes / 2;
    return fetch;
}

struct aside {
    struct fetch fetch;
    struct weighing *weighing;
    uint32_t rows; /* with each step */
};

SIMD_INLINE void aside_step(struct aside *aside)
{
    struct weighing *w = aside->weighing;
    fetch_step(&aside->fetch);
    if (w->row < w->n)
        weigh_rows(w, aside->rows);
}

/* R x 2 products of q and K. */
SIMD_INLINE void add_scores(const unsigned char *q0, const unsigned char *q1, size_t q_step, const unsigned char *k0,
                            const unsigned char *k1, struct aside *aside, const int R)
{
    _tile_loadd(4, q0, q_step);
    TILE_LOAD_KV(6, k0, 64);
    _tile_dpbf16ps(0, 4, 6);
    aside_step(aside);
    TILE_LOAD_KV(7, k1, 64);
    _tile_dpbf16ps(1, 4, 7);
    aside_step(aside);
    if (R > 1) {
        _tile_loadd(5, q1, q_step);
        _tile_dpbf16ps(2, 5, 6);
        aside_step(aside);
        _tile_dpbf16ps(3, 5, 7);
        aside_step(aside);
    }
}

/* Scores of a block; meanwhile those of an earlier one become weights, some rows behind each product: the matrix unit
 * takes one in sixteen cycles, and what waits for the vector unit must not keep the next one out of the processor's
 * window. */
SIMD_INLINE void score_block(const struct fold *f, const struct group *g, const struct block *block, struct weighing *w,
                             const int R)
{
    const size_t q_step = g->q_step, k_step = f->k_step, k_tiles = f->k_tiles;
    const uint32_t end = block->end;
    const unsigned char *q0 = g->q, *q1 = g->q + TILE_ROWS * q_step, *const k = block->k;
    float *const s = block->s[0];
    const uint32_t n_products = (end - block->begin) / 16 * f->k_tiles * N_PARTS * (uint32_t)R;
    struct aside aside = {.fetch = fetch_ahead(f, g, block, block->asked, WITH_SCORES, n_products),
                          .weighing = w,
                          .rows = (w->n + n_products - 1) / n_products};
    settle();
    for (uint32_t t = block->begin; t < end; t += CATTN_GRANULE) {
        const unsigned char *k0 = k + t / 16 * k_step, *k1 = k0 + k_step;
        float *s0 = s + t, *s1 = s0 + TILE_ROWS * CATTN_BLOCK;
        _tile_zero(0);
        _tile_zero(1);
        if (R > 1) {
            _tile_zero(2);
            _tile_zero(3);
        }
        for (size_t i = 0; i < k_tiles; i++) {
            add_scores(q0 + 64 * i, q1 + 64 * i, q_step, k0 + TILE_BYTES * i, k1 + TILE_BYTES * i, &aside, R);
            if (PLANES > 1) {
                add_scores(q0 + 64 * i, q1 + 64 * i, q_step, k0 + f->k_plane + TILE_BYTES * i,
                           k1 + f->k_plane + TILE_BYTES * i, &aside, R);
                add_scores(q0 + f->q_plane + 64 * i, q1 + f->q_plane + 64 * i, q_step, k0 + TILE_BYTES * i,
                           k1 + TILE_BYTES * i, &aside, R);
            }
        }
        _tile_stored(0, s0, CATTN_BLOCK * sizeof(float));
        _tile_stored(1, s0 + 16, CATTN_BLOCK * sizeof(float));
        if (R > 1) {
            _tile_stored(2, s1, CATTN_BLOCK * sizeof(float));
            _tile_stored(3, s1 + 16, CATTN_BLOCK * sizeof(float));
        }
    }
    settle();
}

/* R x C products of weights and V. */
SIMD_INLINE void add_products(uint16_t (*p)[CATTN_GRANULE], const unsigned char *v, struct fetch *fetch, const int R,
                              const int C)
{
    _tile_loadd(4, p[0], 64);
    TILE_LOAD_KV(6, v, 64);
    _tile_dpbf16ps(0, 4, 6);
    fetch_step(fetch);
    if (C > 1) {
        TILE_LOAD_KV(7, v + TILE_BYTES, 64);
        _tile_dpbf16ps(1, 4, 7);
        fetch_step(fetch);
    }
    if (R > 1) {
        _tile_loadd(5, p[TILE_ROWS], 64);
        _tile_dpbf16ps(2, 5, 6);
        fetch_step(fetch);
        if (C > 1) {
            _tile_dpbf16ps(3, 5, 7);
            fetch_step(fetch);
        }
    }
}

/* Columns [column, column + C) of o take in the values of blocks [begin, end). */
SIMD_INLINE void add_columns(const struct fold *f, const struct unit *u, uint32_t column, uint32_t begin, uint32_t end,
                             struct fetch *fetch, const int R, const int C)
{
    const size_t o_bytes = u->group->o_step * sizeof(float);
    float *o0 = u->group->o + 16 * column, *o1 = o0 + TILE_ROWS * u->group->o_step;
    _tile_loadd(0, o0, o_bytes);
    if (C > 1)
        _tile_loadd(1, o0 + 16, o_bytes);
    if (R > 1)
        _tile_loadd(2, o1, o_bytes);
    if (R > 1 && C > 1)
        _tile_loadd(3, o1 + 16, o_bytes);
    for (uint32_t b = begin; b < end; b++) {
        const struct block *block = &u->block[b];
        for (uint32_t granule = block->begin / CATTN_GRANULE; granule < block->end / CATTN_GRANULE; granule++) {
            const unsigned char *v = block->v + granule * f->v_step + (size_t)column * TILE_BYTES;
            add_products(block->p[granule], v, &fetch[b], R, C);
            if (PLANES > 1) {
                add_products(block->p[granule], v + f->v_plane, &fetch[b], R, C);
                add_products(block->p[GRANULES + granule], v, &fetch[b], R, C);
            }
        }
    }
    _tile_stored(0, o0, o_bytes);
    if (C > 1)
        _tile_stored(1, o0 + 16, o_bytes);
    if (R > 1)
        _tile_stored(2, o1, o_bytes);
    if (R > 1 && C > 1)
        _tile_stored(3, o1 + 16, o_bytes);
}

/* Weights times values of the blocks that wait, up to `end`. */
SIMD_INLINE void add_values_of(const struct fold *f, struct unit *u, uint32_t end, const int R)
{
    struct fetch fetch[MOST_BLOCKS];
    uint32_t column = 0;
    for (uint32_t b = u->waiting; b < end; b++) {
        const struct block *block = &u->block[b];
        const uint32_t n_products = (block->end - block->begin) / CATTN_GRANULE * f->v_tiles * N_PARTS * (uint32_t)R;
        fetch[b] = fetch_ahead(f, u->group, block, WITH_SCORES, WITH_ALL, n_products);
    }
    settle();
    for (; column + 2 <= f->v_tiles; column += 2)
        add_columns(f, u, column, u->waiting, end, fetch, R, 2);
    if (column < f->v_tiles)
        add_columns(f, u, column, u->waiting, end, fetch, R, 1);
    settle();
    u->waiting = end;
}

static __attribute__((noinline)) void score_1(const struct fold *f, const struct group *g, const struct block *block,
                                              struct weighing *w)
{
    score_block(f, g, block, w, 1);
}

static __attribute__((noinline)) void score_2(const struct fold *f, const struct group *g, const struct block *block,
                                              struct weighing *w)
{
    score_block(f, g, block, w, 2);
}

static __attribute__((noinline)) void add_values_1(const struct fold *f, struct unit *u, uint32_t end)
{
    add_values_of(f, u, end, 1);
}

static __attribute__((noinline)) void add_values_2(const struct fold *f, struct unit *u, uint32_t end)
{
    add_values_of(f, u, end, 2);
}

static void add_values(const struct fold *f, struct unit *u, uint32_t end)
{
    if (u->waiting == end)
        return;
    if (u->group->n > TILE_ROWS)
        add_values_2(f, u, end);
    else
        add_values_1(f, u, end);
}

/* ---- the pipeline: scores of a block, while those of the block before become weights ------------------ */

/* The last block before block b of the unit, which may be another group's. */
static struct weighing weighing_before(const struct fold *f, const struct unit *u, uint32_t b)
{
    const struct unit *last = f->scratch->last;
    if (b)
        return weighing_of(f, u, b - 1);
    if (last)
        return weighing_of(f, last, last->n - 1);
    return (struct weighing){.n = 0};
}

/* The first maxima of rows whose states are empty: l and o are zero and need no scaling.  Returns the rows left. */
static uint32_t raise_empty(struct group *g, uint32_t first, uint32_t raised, const float largest[TILE_ROWS])
{
    const vec m = vec_load(g->m + first);
    const __mmask16 empty = _mm512_mask_cmp_ps_mask((__mmask16)raised, m, vec_set(-INFINITY), _CMP_EQ_OQ);
    vec_store(g->m + first, _mm512_mask_roundscale_ps(m, empty, vec_load(largest), _MM_FROUND_CEIL));
    for (uint32_t rows = empty; rows; rows &= rows - 1) {
        const uint32_t r = first + (uint32_t)__builtin_ctz(rows);
        g->state[r][0] = g->m[r];
    }
    return raised & ~(uint32_t)empty;
}

/* Raises the maxima that the scores of block b ask for; the weights that wait are added first, since they belong to the
 * maxima as they were. */
static void raise_maxima(const struct fold *f, struct unit *u, uint32_t b)
{
    struct group *g = u->group;
    float largest[TILE_ROWS];
    for (uint32_t first = 0; first < g->n; first += TILE_ROWS) {
        uint32_t raised = find_raised(f, g, &u->block[b], first, largest);
        for (raised = raised ? raise_empty(g, first, raised, largest) : 0; raised; raised &= raised - 1) {
            const uint32_t r = (uint32_t)__builtin_ctz(raised);
            add_values(f, u, b);
            raise_maximum(f, g, first + r, ceilf(largest[r]));
        }
    }
}

/* The values of a unit come when the next one's first scores are there. */
static void fold_unit(const struct fold *f, struct unit *u)
{
    struct scratch *scratch = f->scratch;
    for (uint32_t b = 0; b < u->n; b++) {
        struct block *block = &u->block[b];
        struct weighing w = weighing_before(f, u, b);
        block->s = scratch->s[scratch->n_scored++ % 2];
        if (u->group->n > TILE_ROWS)
            score_2(f, u->group, block, &w);
        else
            score_1(f, u->group, block, &w);
        if (!b && scratch->last)
            add_values(f, scratch->last, scratch->last->n);
        if (!block->plain)
            adjust_scores(f, u->group, block);
        raise_maxima(f, u, b);
    }
    scratch->last = u;
}

/* Nothing is left to be done for the units so far. */
static void drain(const struct fold *f)
{
    struct unit *last = f->scratch->last;
    if (!last)
        return;
    struct weighing w = weighing_of(f, last, last->n - 1);
    weigh_rows(&w, w.n);
    add_values(f, last, last->n);
    f->scratch->last = NULL;
}

/* ---- groups ------------------------------------------------------------------------------------------ */

static float *o_of(const struct cattn_rows *all, uint32_t row)
{
    return all->states + row * all->state_stride + CATTN_STATE_O;
}

static void stage_group(const struct fold *f, struct group *g)
{
    const struct cattn_rows *all = f->all;
    const size_t v_pad = all->layout->v_pad;
    for (uint32_t i = 0; i < g->n; i++) {
        memcpy(g->staged_q + i * all->q_bytes, all->q + g->row[i] * all->q_bytes, all->q_bytes);
        memcpy(g->staged_o + i * v_pad, o_of(all, g->row[i]), v_pad * sizeof *g->o);
    }
    g->q = g->staged_q;
    g->o = g->staged_o;
    g->o_step = v_pad;
}

static void leave_group(const struct fold *f, struct group *g)
{
    const size_t v_pad = f->all->layout->v_pad;
    if (g->n && g->o == g->staged_o)
        for (uint32_t i = 0; i < g->n; i++)
            memcpy(o_of(f->all, g->row[i]), g->staged_o + i * v_pad, v_pad * sizeof *g->o);
    g->n = 0;
}

static void enter_group(const struct fold *f, struct group *g, uint32_t turn, const uint32_t *rows, uint32_t seeing)
{
    const struct cattn_rows *all = f->all;
    g->turn = turn;
    g->seeing = seeing;
    for (; seeing; seeing &= seeing - 1) {
        const uint32_t row = rows[__builtin_ctz(seeing)];
        g->row[g->n] = row;
        g->state[g->n] = all->states + row * all->state_stride;
        g->m[g->n] = g->state[g->n][0];
        g->n++;
    }
    g->q_step = all->q_bytes;
    if (g->n % TILE_ROWS == 0 && g->row[g->n - 1] - g->row[0] == g->n - 1) {
        g->q = all->q + g->row[0] * all->q_bytes;
        g->o = o_of(all, g->row[0]);
        g->o_step = all->state_stride;
    } else
        stage_group(f, g);
}

/* The group of the rows of a turn that see something: mostly the same as the last time. */
static struct group *group_of(const struct fold *f, uint32_t turn, const uint32_t *rows, uint32_t seeing)
{
    struct group *g = &f->scratch->group[turn % MOST_GROUPS];
    if (g->n && g->turn == turn && g->seeing == seeing)
        return g;
    drain(f);
    leave_group(f, g);
    enter_group(f, g, turn, rows, seeing);
    return g;
}

/* ---- units ------------------------------------------------------------------------------------------- */

/* Block i of the fold, or one of those behind it as far as they are known; NULL: not. */
static const unsigned char *k_of(const struct fold *f, uint32_t i)
{
    const size_t offset = i % f->per_chunk * f->k_bytes;
    const unsigned char *chunk;
    if (i < f->n_blocks)
        chunk = f->all->blocks + f->slots[i / f->per_chunk] * f->all->layout->block_bytes;
    else
        chunk = (i - f->n_blocks) / f->per_chunk < CATTN_AHEAD ? f->next[(i - f->n_blocks) / f->per_chunk] : NULL;
    return chunk ? chunk + offset : NULL;
}

/* V lies behind K by so much, which differs from block to block of a chunk. */
static size_t v_behind_k(const struct fold *f, uint32_t i)
{
    return f->all->layout->v_offset + i % f->per_chunk * (f->v_bytes - f->k_bytes);
}

/* Whether all rows see all tokens of n blocks: what is found out quickly, and mostly so. */
static int all_see(const struct fold *f, uint32_t i, uint32_t n, const uint32_t *rows, uint32_t n_rows)
{
    const uint64_t first = f->first + (uint64_t)i * f->block_tokens, others = (uint64_t)n * f->block_tokens - 1;
    int all = 1;
    for (uint32_t r = 0; r < n_rows; r++) {
        const uint64_t position = f->all->position[rows[r]], distance = position - first;
        all &= position >= first + others && distance < f->all->scoring.window;
    }
    return all;
}

/* The rows that see some of block i, a bit each, and what of it. */
static uint32_t look(const struct fold *f, uint32_t i, const uint32_t *rows, uint32_t n_rows, uint64_t *visible)
{
    uint32_t seeing = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        visible[r] = cattn_visible(f->all, rows[r], f->first + (uint64_t)i * f->block_tokens, f->block_tokens);
        seeing |= (uint32_t)(visible[r] != 0) << r;
    }
    return seeing;
}

#if AMX_SPLIT
/* 16 tokens of K: d and d + 16 of 32 make pairs. */
static void split_keys(const struct fold *f, const float *from, uint16_t *to, struct fetch *fetch)
{
    const uint32_t n = f->all->layout->k_pad;
    for (uint32_t tile = 0; tile < f->k_tiles; tile++)
        for (uint32_t d = 32 * tile; d < 32 * tile + 16; d++, to += 32) {
            const vec first = d < n ? vec_load(from + d * 16) : vec_set(0);
            const vec second = d + 16 < n ? vec_load(from + (d + 16) * 16) : vec_set(0);
            store_numbers(to, f->k_plane / sizeof *to, first, second);
            fetch_step(fetch);
        }
}

/* 32 tokens of V: t and t + 16 make pairs. */
static void split_values(const struct fold *f, const float *from, uint16_t *to, struct fetch *fetch)
{
    for (uint32_t tile = 0; tile < f->v_tiles; tile++, from += CATTN_GRANULE * 16)
        for (uint32_t t = 0; t < 16; t++, to += 32) {
            store_numbers(to, f->v_plane / sizeof *to, vec_load(from + t * 16), vec_load(from + (t + 16) * 16));
            fetch_step(fetch);
        }
}

/* Where block i is, or where the oldest one was: each unit splits no more than MOST_BLOCKS, and the one before it may
 * still need as many. */
static struct split *split_of(const struct fold *f, uint32_t i)
{
    struct scratch *scratch = f->scratch;
    for (uint32_t s = 0; s < 2 * MOST_BLOCKS; s++)
        if (scratch->split[s].block == i)
            return &scratch->split[s];
    struct split *split = &scratch->split[scratch->n_split++ % (2 * MOST_BLOCKS)];
    split->block = i;
    split->granules = 0;
    return split;
}

/* What of the block is needed is split unless it has been: for rows of another turn. */
static void find_tiles(const struct fold *f, const struct group *group, struct block *block, uint32_t i)
{
    struct split *split = split_of(f, i);
    const float *k = (const float *)(const void *)k_of(f, i);
    const float *v = k + v_behind_k(f, i) / sizeof *v;
    const uint32_t k_pad = f->all->layout->k_pad, v_pad = f->all->layout->v_pad;
    const uint32_t needed = (2u << (block->end - 1) / CATTN_GRANULE) - (1u << block->begin / CATTN_GRANULE);
    uint32_t missing = needed & ~split->granules;
    const uint32_t n_pairs = (uint32_t)__builtin_popcount(missing) * 16 * (2 * f->k_tiles + f->v_tiles);
    block->asked = missing ? WITH_TILES : 0;
    struct fetch fetch = fetch_ahead(f, group, block, 0, block->asked, n_pairs);
    for (; missing; missing &= missing - 1) {
        const uint32_t g = (uint32_t)__builtin_ctz(missing), t = g * CATTN_GRANULE;
        split_keys(f, k + t * k_pad, split->k + 2 * g * f->k_step / sizeof *split->k, &fetch);
        split_keys(f, k + (t + 16) * k_pad, split->k + (2 * g + 1) * f->k_step / sizeof *split->k, &fetch);
        split_values(f, v + t * v_pad, split->v + g * f->v_step / sizeof *split->v, &fetch);
    }
    split->granules |= needed;
    block->k = (const unsigned char *)split->k;
    block->v = (const unsigned char *)split->v;
}
#else
static void find_tiles(const struct fold *f, const struct group *group, struct block *block, uint32_t i)
{
    (void)group;
    block->asked = 0;
    block->k = k_of(f, i);
    block->v = block->k + v_behind_k(f, i);
}
#endif

/* Visible NULL: all rows see all. */
static void set_block(const struct fold *f, struct unit *u, uint32_t i, const uint64_t *visible)
{
    const struct cattn_rows *all = f->all;
    const uint64_t whole = cattn_first_bits(f->block_tokens);
    uint64_t some = visible ? 0 : whole, every = whole;
    uint32_t n = 0;
    struct block *block = &u->block[u->n];
    for (uint32_t seeing = u->group->seeing; visible && seeing; seeing &= seeing - 1, n++) {
        block->visible[n] = visible[__builtin_ctz(seeing)];
        some |= block->visible[n];
        every &= block->visible[n];
    }
    block->plain = every == whole && !(all->scoring.cap > 0) && !all->slope;
    for (uint32_t r = 0; !visible && !block->plain && r < u->group->n; r++)
        block->visible[r] = whole;
    block->v_behind = v_behind_k(f, i + MOST_BLOCKS);
    block->ahead = k_of(f, i + MOST_BLOCKS);
    block->first = f->first + (uint64_t)i * f->block_tokens;
    block->begin = some & UINT32_MAX ? 0 : CATTN_GRANULE;
    block->end = some >> CATTN_GRANULE ? 2 * CATTN_GRANULE : CATTN_GRANULE;
    block->p = f->scratch->p[u->n++];
    find_tiles(f, u->group, block, i);
}

static struct unit *next_unit(const struct fold *f, struct group *g)
{
    struct unit *u = &f->scratch->unit[f->scratch->n_units++ % 2];
    u->group = g;
    u->n = u->waiting = 0;
    return u;
}

/* n blocks for the rows of a turn: as many at a time as the same rows see. */
static void fold_turn(const struct fold *f, uint32_t first, uint32_t n, uint32_t turn, const uint32_t *rows,
                      uint32_t n_rows)
{
    uint64_t visible[MOST_BLOCKS][MOST_ROWS];
    uint32_t seeing[MOST_BLOCKS];
    const int all = all_see(f, first, n, rows, n_rows);
    for (uint32_t b = 0; b < n; b++)
        seeing[b] = all ? (uint32_t)cattn_first_bits(n_rows) : look(f, first + b, rows, n_rows, visible[b]);
    for (uint32_t b = 0; b < n;) {
        const uint32_t same = seeing[b];
        if (!same) {
            b++;
            continue;
        }
        struct unit *u = next_unit(f, group_of(f, turn, rows, same));
        for (; b < n && seeing[b] == same; b++)
            set_block(f, u, first + b, all ? NULL : visible[b]);
        fold_unit(f, u);
    }
}

static size_t k_plane_bytes(const struct cattn_layout *layout)
{
    return cattn_block_tokens(layout) * k_wide(layout) * sizeof(uint16_t);
}

static size_t v_plane_bytes(const struct cattn_layout *layout)
{
    return cattn_block_tokens(layout) * layout->v_pad * sizeof(uint16_t);
}

static void begin(struct scratch *scratch, const struct cattn_layout *layout)
{
    unsigned char *p = (unsigned char *)(scratch + 1);
    scratch->last = NULL;
    scratch->n_units = scratch->n_scored = 0;
    for (int i = 0; i < MOST_GROUPS; i++) {
        struct group *g = &scratch->group[i];
        g->n = 0;
        g->staged_o = (float *)p;
        p += MOST_ROWS * layout->v_pad * sizeof(float);
        g->staged_q = p;
        p += MOST_ROWS * query_bytes(layout);
    }
#if AMX_SPLIT
    scratch->n_split = 0;
    for (int i = 0; i < 2 * MOST_BLOCKS; i++) {
        struct split *split = &scratch->split[i];
        split->block = UINT32_MAX;
        split->k = (uint16_t *)(void *)p;
        p += PLANES * k_plane_bytes(layout);
        split->v = (uint16_t *)(void *)p;
        p += PLANES * v_plane_bytes(layout);
    }
#endif
}

static size_t scratch_bytes(const struct cattn_layout *layout)
{
    const size_t group = MOST_ROWS * (layout->v_pad * sizeof(float) + query_bytes(layout));
    const size_t split = PLANES * (k_plane_bytes(layout) + v_plane_bytes(layout));
    return sizeof(struct scratch) + MOST_GROUPS * group + (AMX_SPLIT ? 2 * MOST_BLOCKS * split : 0);
}

static void enter(void *scratch)
{
    (void)scratch;
    _tile_loadconfig(&tiles);
}

static void leave(void *scratch)
{
    (void)scratch;
    _tile_release();
}

static void fold(const struct cattn_rows *all, const uint32_t *slots, uint32_t n_chunks, uint64_t first,
                 const uint32_t *rows, uint32_t n_rows, const unsigned char *const *next)
{
    const struct cattn_layout *layout = all->layout;
    struct scratch *scratch = all->scratch;
    const uint32_t per_chunk = layout->chunk_tokens / cattn_block_tokens(layout);
    const struct fold f = {.all = all,
                           .scratch = scratch,
                           .slots = slots,
                           .next = next,
                           .first = first,
                           .block_tokens = cattn_block_tokens(layout),
                           .n_blocks = n_chunks * per_chunk,
                           .per_chunk = per_chunk,
                           .n_turns = (n_rows + MOST_ROWS - 1) / MOST_ROWS,
                           .k_tiles = k_wide(layout) / 32,
                           .v_tiles = layout->v_pad / 16,
                           .k_step = 16 * k_wide(layout) * sizeof(uint16_t),
                           .v_step = CATTN_GRANULE * layout->v_pad * sizeof(uint16_t),
                           .k_plane = k_plane_bytes(layout),
                           .v_plane = v_plane_bytes(layout),
                           .k_bytes = cattn_block_tokens(layout) * layout->k_pad * cattn_dtype_size(layout->dtype),
                           .v_bytes = cattn_block_tokens(layout) * layout->v_pad * cattn_dtype_size(layout->dtype),
                           .q_plane = k_wide(layout) * sizeof(uint16_t)};
    begin(scratch, layout);
    for (uint32_t i = 0; i < f.n_blocks; i += MOST_BLOCKS)
        for (uint32_t turn = 0; turn < f.n_turns; turn++) {
            const uint32_t done = turn * MOST_ROWS;
            fold_turn(&f, i, smaller(f.n_blocks - i, MOST_BLOCKS), turn, rows + done,
                      smaller(n_rows - done, MOST_ROWS));
        }
    drain(&f);
    for (int i = 0; i < MOST_GROUPS; i++)
        leave_group(&f, &scratch->group[i]);
}

const struct cattn_kernel AMX_NAME = {
    .name = AMX_SPLIT ? "amxf32" : "amx",
    .exact = 1,
    .features = CATTN_CPU_AVX2 | CATTN_CPU_AVX512 | CATTN_CPU_AMX,
    .takes = takes,
    .query_bytes = query_bytes,
    .load_query = load_query,
    .scratch_bytes = scratch_bytes,
    .enter = enter,
    .leave = leave,
    .fold = fold,
};

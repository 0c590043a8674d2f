/* The kernel on AMX tiles: bf16 K and V, both phases, prefill and decode, any number of rows.
 *
 * It keeps the Bit rule (doc/design.md).  A tile operation over 32 d, or over 32 tokens, is one operation, whose result
 * for a row depends on nothing in the tile's other rows.  q and the weights are rounded to bf16; l sums the weights as
 * they are after rounding, so that a single large one gives its value unchanged.
 *
 * Blocks of tokens go through in units of up to four.  Scores of a block are computed while those of the block before
 * become weights: the matrix unit and the vector unit work side by side.  Values come once a unit, so that the sums of
 * a row are loaded and stored once for all of it.  Scores and weights stay in the first-level cache. */
#include <math.h>
#include <string.h>

#include "cpu.h"
#include "simd_avx512.h"

#include "fetch.h"
#include "scores_tmpl.h"

enum {
    TILE_ROWS = 16,
    TILE_BYTES = TILE_ROWS * 64, /* of K: 16 tokens x 32 d; of V: 32 tokens x 16 d; of q and weights: 16 rows x 32 */
    MOST_ROWS = 2 * TILE_ROWS,   /* that go through a unit together */
    MOST_BLOCKS = 4,             /* of a unit; also how far ahead lines are fetched */
    MOST_STAGES = 8
};

#define UNROLL(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

/* All tiles alike: rows that a tile has and nobody needs cost next to nothing. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t columns[16]; /* bytes */
    uint8_t rows[16];
} tiles = {.palette = 1,
           .columns = {64, 64, 64, 64, 64, 64, 64, 64},
           .rows = {TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS}};

struct block {
    const unsigned char *k, *v;
    const unsigned char *ahead; /* a block like this one to be fetched meanwhile; NULL: none is known */
    uint64_t first;             /* position of its first token */
    uint32_t begin, end;        /* its tokens, in whole granules, that hold all that the group sees */
    uint64_t visible[MOST_ROWS];
};

/* Rows that go through some blocks together: all see some of each. */
struct group {
    uint32_t n, row[MOST_ROWS];
    float *state[MOST_ROWS];
    const unsigned char *q; /* rows of q_step bytes */
    size_t q_step;
    float *o; /* rows of o_step floats */
    size_t o_step;
    uint32_t turn, n_turns; /* groups share the fetching */
};

/* Where q and o of rows are while they do not lie together by themselves, or are too few for a tile. */
struct stage {
    uint32_t n, row[MOST_ROWS];
    unsigned char *q; /* [MOST_ROWS][query_bytes] */
    float *o;         /* [MOST_ROWS][v_pad] */
};

struct scratch {
    _Alignas(64) float s[2][MOST_ROWS][CATTN_BLOCK]; /* scores of a block and of the next */
    _Alignas(64) uint16_t p[MOST_BLOCKS][CATTN_BLOCK / CATTN_GRANULE][MOST_ROWS][CATTN_GRANULE]; /* weights */
    _Alignas(64) float m[MOST_ROWS], factor[MOST_ROWS];                                          /* of the scores */
    struct block block[MOST_BLOCKS];
    struct group group;
    struct stage stage[MOST_STAGES];
};

/* What a fold is about. */
struct fold {
    const struct cattn_rows *all;
    struct scratch *scratch;
    const uint32_t *slots;
    const unsigned char *const *next;
    uint64_t first;
    uint32_t block_tokens, n_blocks, per_chunk; /* blocks */
    uint32_t k_tiles, v_tiles;                  /* 32 d of K, 16 d of V */
    size_t k_step, v_step;                      /* bytes from 16 tokens of K, from 32 of V, to the next */
};

static inline uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static int takes(const struct cattn_shape *shape)
{
    return shape->kv_dtype == CATTN_BF16;
}

/* ---- queries: rows of bf16, which are tiles as they are ---------------------------------------------- */

static size_t query_bytes(const struct cattn_layout *layout)
{
    return layout->k_pad * sizeof(uint16_t);
}

/* Up to sixteen elements from the first on, zeros behind them; nothing past n is read. */
SIMD_INLINE vec load_some(const void *q, uint32_t dtype, size_t first, uint32_t n)
{
    const __mmask16 some = (__mmask16)cattn_first_bits(n < 16 ? n : 16);
    if (dtype == CATTN_F32)
        return _mm512_maskz_loadu_ps(some, (const float *)q + first);
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, (const uint16_t *)q + first));
}

static void load_query(const struct cattn_layout *layout, const void *q, uint32_t dtype, size_t first, void *query)
{
    uint16_t *to = query;
    const uint32_t n = layout->k_dim;
    if (dtype == CATTN_BF16) {
        memcpy(to, (const uint16_t *)q + first, n * sizeof *to);
        memset(to + n, 0, (layout->k_pad - n) * sizeof *to);
        return;
    }
    for (uint32_t d = 0; d < layout->k_pad; d += 32) {
        const vec low = load_some(q, dtype, first + d, d < n ? n - d : 0);
        const vec high = load_some(q, dtype, first + d + 16, d + 16 < n ? n - d - 16 : 0);
        _mm512_storeu_si512(to + d, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

/* ---- weights ----------------------------------------------------------------------------------------- */

/* 2^x, exact for whole x, relative error 1e-4: a weight is rounded to bf16, which is coarser. */
SIMD_INLINE vec weight_of(vec x)
{
    const vec f = vec_fraction(x);
    vec y = vec_set(0x1.3baaa6p-4f);
    y = vec_fma(y, f, vec_set(0x1.d2378ap-3f));
    y = vec_fma(y, f, vec_set(0x1.63e658p-1f));
    return vec_scale(vec_fma(y, f, vec_set(1)), x);
}

/* What weigh_row works on, looked up once a block. */
struct weighing {
    const float *s;
    uint16_t *p;
    float *const *state;
    const float *m, *factor;
    uint32_t begin, end; /* tokens */
};

static struct weighing weighing_of(struct scratch *scratch, uint32_t b)
{
    const struct block *block = &scratch->block[b];
    const struct weighing w = {
        scratch->s[b % 2][0], scratch->p[b][0][0], scratch->group.state, scratch->m, scratch->factor,
        block->begin,         block->end};
    return w;
}

/* The scores of row r become weights; l takes them in, pair by pair. */
SIMD_INLINE void weigh_row(const struct weighing w, size_t r)
{
    const float *s = w.s + r * CATTN_BLOCK, own_m = w.m[r];
    float *l = w.state[r] + CATTN_STATE_L;
    const vec m = vec_set(own_m > -INFINITY ? own_m : 0), factor = vec_set(w.factor[r]);
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    vec sum = vec_load(l);
    for (size_t t = w.begin; t < w.end; t += CATTN_GRANULE) {
        /* Not in one operation: what the product loses by rounding may be more than any weight. */
        const vec low = weight_of(vec_sub(vec_mul(vec_load(s + t), factor), m));
        const vec high = weight_of(vec_sub(vec_mul(vec_load(s + t + 16), factor), m));
        const __m512bh p = _mm512_cvtne2ps_pbh(high, low);
        _mm512_store_si512(w.p + t * MOST_ROWS + r * CATTN_GRANULE, (__m512i)p);
        sum = _mm512_dpbf16_ps(sum, p, ones);
    }
    vec_store(l, sum);
}

static void weigh_rows(struct scratch *scratch, uint32_t b)
{
    const struct weighing w = weighing_of(scratch, b);
    for (uint32_t r = 0, n = scratch->group.n; r < n; r++)
        weigh_row(w, r);
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

/* The largest score of each row of a tile. */
static vec maxima(const struct scratch *scratch, uint32_t b, uint32_t first_row)
{
    const struct block *block = &scratch->block[b];
    vec v[TILE_ROWS];
    UNROLL (r, TILE_ROWS) {
        const float *s = scratch->s[b % 2][first_row + (uint32_t)r];
        v[r] = vec_max(vec_load(s + block->begin), vec_load(s + block->begin + 16));
        if (block->end - block->begin > CATTN_GRANULE)
            v[r] = vec_max(v[r], vec_max(vec_load(s + 32), vec_load(s + 48)));
    }
    return largest_of_each(v);
}

/* Scores that are more than q.k * scale, or of which some are hidden, are worked out here and need no factor then. */
static void adjust_scores(const struct fold *f, uint32_t b)
{
    struct scratch *scratch = f->scratch;
    const struct group *g = &scratch->group;
    const struct block *block = &scratch->block[b];
    const float scale = f->all->scoring.scale;
    const int biased = f->all->scoring.cap > 0 || f->all->slope;
    const uint64_t all = cattn_first_bits(f->block_tokens);
    for (uint32_t r = 0; r < g->n; r++) {
        scratch->factor[r] = scale;
        if (!biased && block->visible[r] == all)
            continue;
        const struct bias bias = bias_of(f->all, g->row[r], block->first);
        float *s = scratch->s[b % 2][r];
        for (uint32_t t = block->begin; t < block->end; t += 16)
            vec_store(s + t, score_of(vec_mul(vec_load(s + t), vec_set(scale)), &bias, t, block->visible[r]));
        scratch->factor[r] = 1;
    }
}

static void raise_maximum(const struct fold *f, uint32_t r, float m)
{
    const struct group *g = &f->scratch->group;
    const vec factor = vec_set(vec_first(exp2_of(vec_set(f->scratch->m[r] - m))));
    float *l = g->state[r] + CATTN_STATE_L, *o = g->o + r * g->o_step;
    vec_store(l, vec_mul(vec_load(l), factor));
    for (uint32_t i = 0; i < f->v_tiles; i++)
        vec_store(o + 16 * i, vec_mul(vec_load(o + 16 * i), factor));
    f->scratch->m[r] = g->state[r][0] = m;
}

/* The rows of a tile, a bit each, whose largest score is so far above their maximum that it must be raised. */
static uint32_t find_raised(const struct scratch *scratch, uint32_t b, uint32_t first_row, float largest[TILE_ROWS])
{
    const vec x = vec_mul(maxima(scratch, b, first_row), vec_load(scratch->factor + first_row));
    const vec most = vec_add(vec_load(scratch->m + first_row), vec_set(8));
    const __mmask16 raised = _mm512_cmp_ps_mask(x, most, _CMP_GT_OQ);
    vec_store(largest, x);
    return _mm512_mask_cmp_ps_mask(raised, x, vec_set(-INFINITY), _CMP_GT_OQ) &
           (uint32_t)cattn_first_bits(scratch->group.n - first_row);
}

/* ---- tiles, for R tiles of rows: an instance for each number ------------------------------------------ */

/* Some compilers' tile loads do not say that they read memory: what was stored before must not be put off. */
SIMD_INLINE void settle(void)
{
    __asm__ volatile("" : : : "memory");
}

/* Scores of block b; meanwhile those of block b - 1 become weights, if `weigh`. */
SIMD_INLINE void score_block(const struct fold *f, uint32_t b, const int weigh, const int R)
{
    struct scratch *scratch = f->scratch;
    const struct group *g = &scratch->group;
    const struct block *block = &scratch->block[b];
    const unsigned char *q0 = g->q, *q1 = g->q + TILE_ROWS * g->q_step;
    const uint32_t n_steps = (block->end - block->begin) / CATTN_GRANULE * f->k_tiles;
    struct fetch fetch = fetch_of(block->ahead, f->block_tokens / 16 * f->k_step, g->turn, g->n_turns, n_steps);
    const struct weighing w = weighing_of(scratch, weigh ? b - 1 : b);
    const uint32_t n = g->n, rows_a_step = (n + n_steps - 1) / n_steps;
    uint32_t row = 0;
    settle();
    for (uint32_t t = block->begin; t < block->end; t += CATTN_GRANULE) {
        const unsigned char *k0 = block->k + t / 16 * f->k_step, *k1 = k0 + f->k_step;
        float *s0 = scratch->s[b % 2][0] + t, *s1 = scratch->s[b % 2][TILE_ROWS] + t;
        _tile_zero(0);
        _tile_zero(1);
        if (R > 1) {
            _tile_zero(2);
            _tile_zero(3);
        }
        for (size_t i = 0; i < f->k_tiles; i++) {
            _tile_loadd(4, q0 + 64 * i, g->q_step);
            _tile_loadd(6, k0 + TILE_BYTES * i, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, k1 + TILE_BYTES * i, 64);
            _tile_dpbf16ps(1, 4, 7);
            if (R > 1) {
                _tile_loadd(5, q1 + 64 * i, g->q_step);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            fetch_step(&fetch);
            if (weigh)
                for (const uint32_t stop = smaller(row + rows_a_step, n); row < stop; row++)
                    weigh_row(w, row);
        }
        _tile_stored(0, s0, CATTN_BLOCK * sizeof(float));
        _tile_stored(1, s0 + 16, CATTN_BLOCK * sizeof(float));
        if (R > 1) {
            _tile_stored(2, s1, CATTN_BLOCK * sizeof(float));
            _tile_stored(3, s1 + 16, CATTN_BLOCK * sizeof(float));
        }
    }
}

/* Columns [column, column + C) of o take in the values of blocks [begin, end). */
SIMD_INLINE void add_columns(const struct fold *f, uint32_t column, uint32_t begin, uint32_t end, struct fetch *fetch,
                             const int R, const int C)
{
    struct scratch *scratch = f->scratch;
    const size_t o_bytes = scratch->group.o_step * sizeof(float);
    float *o0 = scratch->group.o + 16 * column, *o1 = o0 + TILE_ROWS * scratch->group.o_step;
    _tile_loadd(0, o0, o_bytes);
    if (C > 1)
        _tile_loadd(1, o0 + 16, o_bytes);
    if (R > 1)
        _tile_loadd(2, o1, o_bytes);
    if (R > 1 && C > 1)
        _tile_loadd(3, o1 + 16, o_bytes);
    for (uint32_t b = begin; b < end; b++) {
        const struct block *block = &scratch->block[b];
        for (uint32_t granule = block->begin / CATTN_GRANULE; granule < block->end / CATTN_GRANULE; granule++) {
            const unsigned char *v = block->v + granule * f->v_step + (size_t)column * TILE_BYTES;
            _tile_loadd(4, scratch->p[b][granule][0], 64);
            _tile_loadd(6, v, 64);
            _tile_dpbf16ps(0, 4, 6);
            if (C > 1) {
                _tile_loadd(7, v + TILE_BYTES, 64);
                _tile_dpbf16ps(1, 4, 7);
            }
            if (R > 1) {
                _tile_loadd(5, scratch->p[b][granule][TILE_ROWS], 64);
                _tile_dpbf16ps(2, 5, 6);
                if (C > 1)
                    _tile_dpbf16ps(3, 5, 7);
            }
            fetch_step(&fetch[b]);
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

/* Weights times values of blocks [begin, end). */
SIMD_INLINE void add_values(const struct fold *f, uint32_t begin, uint32_t end, const int R)
{
    const struct scratch *scratch = f->scratch;
    struct fetch fetch[MOST_BLOCKS];
    uint32_t column = 0;
    settle();
    for (uint32_t b = begin; b < end; b++) {
        const struct block *block = &scratch->block[b];
        const unsigned char *ahead = block->ahead ? block->ahead + (block->v - block->k) : NULL;
        const uint32_t n_steps = (block->end - block->begin) / CATTN_GRANULE * ((f->v_tiles + 1) / 2);
        fetch[b] = fetch_of(ahead, f->block_tokens / CATTN_GRANULE * f->v_step, scratch->group.turn,
                            scratch->group.n_turns, n_steps);
    }
    for (; column + 2 <= f->v_tiles; column += 2)
        add_columns(f, column, begin, end, fetch, R, 2);
    if (column < f->v_tiles)
        add_columns(f, column, begin, end, fetch, R, 1);
}

/* Raises the maxima that the scores of block b ask for; the weights that wait are added first, since they belong to the
 * maxima as they were.  Returns the first block whose weights still wait. */
SIMD_INLINE uint32_t raise_maxima(const struct fold *f, uint32_t b, uint32_t waiting, const int R)
{
    float largest[TILE_ROWS];
    for (uint32_t tile = 0; tile < (uint32_t)R; tile++)
        for (uint32_t raised = find_raised(f->scratch, b, tile * TILE_ROWS, largest); raised; raised &= raised - 1) {
            const uint32_t r = (uint32_t)__builtin_ctz(raised);
            if (waiting < b)
                add_values(f, waiting, b, R);
            waiting = b;
            raise_maximum(f, tile * TILE_ROWS + r, ceilf(largest[r]));
        }
    return waiting;
}

SIMD_INLINE void fold_group(const struct fold *f, uint32_t n_blocks, const int R)
{
    struct scratch *scratch = f->scratch;
    uint32_t waiting = 0;
    for (uint32_t r = 0; r < scratch->group.n; r++)
        scratch->m[r] = scratch->group.state[r][0];
    score_block(f, 0, 0, R);
    for (uint32_t b = 0; b < n_blocks; b++) {
        adjust_scores(f, b);
        waiting = raise_maxima(f, b, waiting, R);
        if (b + 1 < n_blocks)
            score_block(f, b + 1, 1, R);
        else
            weigh_rows(scratch, b);
    }
    add_values(f, waiting, n_blocks, R);
}

static __attribute__((noinline)) void fold_group_1(const struct fold *f, uint32_t n_blocks)
{
    fold_group(f, n_blocks, 1);
}

static __attribute__((noinline)) void fold_group_2(const struct fold *f, uint32_t n_blocks)
{
    fold_group(f, n_blocks, 2);
}

/* ---- rows -------------------------------------------------------------------------------------------- */

static float *o_of(const struct cattn_rows *all, uint32_t row)
{
    return all->states + row * all->state_stride + CATTN_STATE_O;
}

static void leave_stage(const struct fold *f, struct stage *stage)
{
    const size_t v_pad = f->all->layout->v_pad;
    for (uint32_t i = 0; i < stage->n; i++)
        memcpy(o_of(f->all, stage->row[i]), stage->o + i * v_pad, v_pad * sizeof *stage->o);
    stage->n = 0;
}

static void enter_stage(const struct fold *f, struct stage *stage, const struct group *g)
{
    const struct cattn_rows *all = f->all;
    const size_t v_pad = all->layout->v_pad;
    if (stage->n == g->n && memcmp(stage->row, g->row, g->n * sizeof *g->row) == 0)
        return;
    leave_stage(f, stage);
    stage->n = g->n;
    memcpy(stage->row, g->row, g->n * sizeof *g->row);
    for (uint32_t i = 0; i < g->n; i++) {
        memcpy(stage->q + i * all->q_bytes, all->q + g->row[i] * all->q_bytes, all->q_bytes);
        memcpy(stage->o + i * v_pad, o_of(all, g->row[i]), v_pad * sizeof *stage->o);
    }
}

/* Says where the tiles of the group's q and o begin. */
static void place_group(const struct fold *f, struct group *g)
{
    const struct cattn_rows *all = f->all;
    struct stage *stage = &f->scratch->stage[g->turn % MOST_STAGES];
    const int whole = g->n % TILE_ROWS == 0 && g->row[g->n - 1] - g->row[0] == g->n - 1;
    g->q_step = all->q_bytes;
    if (whole) {
        leave_stage(f, stage);
        g->q = all->q + g->row[0] * all->q_bytes;
        g->o = o_of(all, g->row[0]);
        g->o_step = all->state_stride;
    } else {
        enter_stage(f, stage, g);
        g->q = stage->q;
        g->o = stage->o;
        g->o_step = all->layout->v_pad;
    }
}

/* ---- units ------------------------------------------------------------------------------------------- */

/* Block i of the fold, or one of those behind it as far as they are known; NULL: not. */
static const unsigned char *k_of(const struct fold *f, uint32_t i)
{
    const size_t offset = (i % f->per_chunk) * f->block_tokens / 16 * f->k_step;
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
    const uint32_t token = i % f->per_chunk * f->block_tokens;
    return f->all->layout->v_offset + token / CATTN_GRANULE * f->v_step - token / 16 * f->k_step;
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

static void set_block(const struct fold *f, struct block *block, uint32_t i, uint32_t seeing, const uint64_t *visible)
{
    uint64_t some = 0;
    uint32_t n = 0;
    block->k = k_of(f, i);
    block->v = block->k + v_behind_k(f, i);
    block->ahead = k_of(f, i + MOST_BLOCKS);
    block->first = f->first + (uint64_t)i * f->block_tokens;
    for (; seeing; seeing &= seeing - 1)
        some |= block->visible[n++] = visible[__builtin_ctz(seeing)];
    block->begin = some & UINT32_MAX ? 0 : CATTN_GRANULE;
    block->end = some >> CATTN_GRANULE ? 2 * CATTN_GRANULE : CATTN_GRANULE;
}

static void set_group(const struct fold *f, const uint32_t *rows, uint32_t seeing)
{
    struct group *g = &f->scratch->group;
    g->n = 0;
    for (; seeing; seeing &= seeing - 1) {
        g->row[g->n] = rows[__builtin_ctz(seeing)];
        g->state[g->n] = f->all->states + g->row[g->n] * f->all->state_stride;
        g->n++;
    }
    place_group(f, g);
}

/* n blocks for some rows: as many at a time as the same rows see. */
static void fold_unit(const struct fold *f, uint32_t first, uint32_t n, const uint32_t *rows, uint32_t n_rows)
{
    uint64_t visible[MOST_BLOCKS][MOST_ROWS];
    uint32_t seeing[MOST_BLOCKS];
    for (uint32_t b = 0; b < n; b++)
        seeing[b] = look(f, first + b, rows, n_rows, visible[b]);
    for (uint32_t begin = 0, end; begin < n; begin = end) {
        for (end = begin + 1; end < n && seeing[end] == seeing[begin];)
            end++;
        if (!seeing[begin])
            continue;
        set_group(f, rows, seeing[begin]);
        for (uint32_t b = begin; b < end; b++)
            set_block(f, &f->scratch->block[b - begin], first + b, seeing[b], visible[b]);
        if (f->scratch->group.n > TILE_ROWS)
            fold_group_2(f, end - begin);
        else
            fold_group_1(f, end - begin);
    }
}

static void lay_out_stages(struct scratch *scratch, const struct cattn_layout *layout)
{
    unsigned char *p = (unsigned char *)(scratch + 1);
    for (int i = 0; i < MOST_STAGES; i++) {
        scratch->stage[i].n = 0;
        scratch->stage[i].o = (float *)p;
        p += MOST_ROWS * layout->v_pad * sizeof(float);
        scratch->stage[i].q = p;
        p += MOST_ROWS * query_bytes(layout);
    }
}

static size_t scratch_bytes(const struct cattn_layout *layout)
{
    return sizeof(struct scratch) + MOST_STAGES * MOST_ROWS * (layout->v_pad * sizeof(float) + query_bytes(layout));
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
                           .k_tiles = layout->k_pad / 32,
                           .v_tiles = layout->v_pad / 16,
                           .k_step = 16 * layout->k_pad * sizeof(uint16_t),
                           .v_step = CATTN_GRANULE * layout->v_pad * sizeof(uint16_t)};
    struct group *g = &scratch->group;
    lay_out_stages(scratch, layout);
    g->n_turns = (n_rows + MOST_ROWS - 1) / MOST_ROWS;
    for (uint32_t i = 0; i < f.n_blocks; i += MOST_BLOCKS)
        for (g->turn = 0; g->turn < g->n_turns; g->turn++) {
            const uint32_t begin = g->turn * MOST_ROWS;
            fold_unit(&f, i, smaller(f.n_blocks - i, MOST_BLOCKS), rows + begin, smaller(n_rows - begin, MOST_ROWS));
        }
    for (int i = 0; i < MOST_STAGES; i++)
        leave_stage(&f, &scratch->stage[i]);
}

const struct cattn_kernel cattn_kernel_amx = {
    .name = "amx",
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

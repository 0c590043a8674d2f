/* The kernels of the CUDA backend.  A block of threads computes one piece of the plan for one KV head, in two ways: by
 * tensor cores for the data types and sizes that models have, and a general way for all others.  Both serve runs that
 * many rows share (chunk-first) and runs of one sequence (sequence-first); they differ in how many rows a tile has.
 *
 * Nothing here is CUDA but what ptx.h says, so that the same source runs as C++ on a host. */
#include "kernels.h"

#include "chunkattention.h"
#include "ptx.h"

enum { THREADS = 128, WARPS = THREADS / 32, GRANULE = 32 }; /* a chunk is whole granules */

static const uint32_t FAR = 0x7fffffff; /* no token is so far away */

/* ---- data types ---- */

struct f32 {
    typedef float element;
    PTX_DEVICE float load(float x) { return x; }
    PTX_DEVICE float store(float x) { return x; }
};

struct f16 {
    typedef uint16_t element;
    static const uint32_t ONES = 0x3c003c00; /* 1, 1 */
    /* Weights go up to 2^15, so that those far below the largest are not lost to a type that ends at 2^-24. */
    PTX_DEVICE float headroom() { return 15.0f; }
    PTX_DEVICE float load(uint16_t bits) { return ptx_f16_to_f32(bits); }
    PTX_DEVICE uint16_t store(float x) { return ptx_f32_to_f16(x); }
    PTX_DEVICE uint32_t pack(float low, float high) { return ptx_pack_f16(low, high); }
    PTX_DEVICE void mma(float d[4], const uint32_t a[4], const uint32_t b[2]) { ptx_mma_f16(d, a, b); }
};

struct bf16 {
    typedef uint16_t element;
    static const uint32_t ONES = 0x3f803f80;
    PTX_DEVICE float headroom() { return 0.0f; }
    PTX_DEVICE float load(uint16_t bits) { return ptx_bf16_to_f32(bits); }
    PTX_DEVICE uint16_t store(float x) { return ptx_f32_to_bf16(x); }
    PTX_DEVICE uint32_t pack(float low, float high) { return ptx_pack_bf16(low, high); }
    PTX_DEVICE void mma(float d[4], const uint32_t a[4], const uint32_t b[2]) { ptx_mma_bf16(d, a, b); }
};

PTX_DEVICE float load_element(const void *base, uint32_t dtype, uint64_t i)
{
    switch (dtype) {
    case CATTN_F32: return ((const float *)base)[i];
    case CATTN_F16: return ptx_f16_to_f32(((const uint16_t *)base)[i]);
    default: return ptx_bf16_to_f32(((const uint16_t *)base)[i]);
    }
}

PTX_DEVICE void store_element(void *base, uint32_t dtype, uint64_t i, float x)
{
    switch (dtype) {
    case CATTN_F32: ((float *)base)[i] = x; break;
    case CATTN_F16: ((uint16_t *)base)[i] = ptx_f32_to_f16(x); break;
    default: ((uint16_t *)base)[i] = ptx_f32_to_bf16(x);
    }
}

struct alignas(16) bytes16 {
    uint32_t word[4];
};

struct alignas(8) bytes8 {
    uint32_t word[2];
};

struct alignas(16) float4s {
    float x[4];
};

PTX_DEVICE int is_aligned(const void *base, uint64_t strides_in_bytes, uint32_t bytes)
{
    return (((uint64_t)(uintptr_t)base | strides_in_bytes) & (bytes - 1)) == 0;
}

/* ---- numbers ---- */

PTX_DEVICE float minus_infinity()
{
    return -INFINITY;
}

static constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

PTX_DEVICE int smaller(int a, int b)
{
    return a < b ? a : b;
}

PTX_DEVICE int larger(int a, int b)
{
    return a > b ? a : b;
}

PTX_DEVICE uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

PTX_DEVICE uint32_t lane_of()
{
    return ptx_thread() % 32;
}

PTX_DEVICE uint32_t warp_of()
{
    return ptx_thread() / 32;
}

/* Over the lanes that differ from the own one in the bits of `lanes`, which is 2^i - 1. */
PTX_DEVICE float sum_over(int lanes, float x)
{
    for (int mask = 1; mask <= lanes; mask *= 2)
        x += ptx_shuffle_xor(x, mask);
    return x;
}

PTX_DEVICE float max_over(int lanes, float x)
{
    for (int mask = 1; mask <= lanes; mask *= 2)
        x = fmaxf(x, ptx_shuffle_xor(x, mask));
    return x;
}

PTX_DEVICE int max_over(int lanes, int x)
{
    for (int mask = 1; mask <= lanes; mask *= 2)
        x = larger(x, (int)ptx_shuffle_xor((uint32_t)x, mask));
    return x;
}

/* ---- what a kernel is given ---- */

/* With what the host has worked out, since a division in a kernel costs registers: x in log2 units is product * factor,
 * or cap * tanh(product * factor) if there is a cap. */
struct attention : cattn_cuda_call {
    float factor, cap;
};

/* ---- the work of a block: one tile of packed rows over one split of a run's tokens, for one KV head ---- */

/* Tokens and positions are counted from the first token of the run, and positions may lie before it. */
struct work {
    struct cattn_cuda_run run;
    uint32_t head, group; /* the KV head; query heads that read it */
    uint32_t packed;      /* packed rows of the run */
    uint32_t tile_rows;   /* 0: nothing to do */
    uint32_t first, n_rows;
    uint32_t split;
    int begin, end;  /* of the split */
    uint32_t window; /* tokens that a row sees */
    int sinks;       /* tokens before this one are seen whatever the window */
};

PTX_DEVICE struct work find_work(const struct cattn_cuda_call &c)
{
    struct work w;
    const struct cattn_cuda_piece piece = c.plan.pieces[ptx_block_x() / c.n_kv_heads];
    w.run = c.plan.runs[piece.run];
    w.head = ptx_block_x() % c.n_kv_heads;
    w.group = c.n_heads / c.n_kv_heads;
    w.packed = w.run.n_rows * w.group;
    w.tile_rows = piece.tile_rows;
    w.first = piece.tile * piece.tile_rows;
    w.n_rows = smaller(piece.tile_rows, w.packed - w.first);
    w.split = piece.split;
    w.begin = (int)(piece.split * w.run.split_tokens);
    w.end = (int)smaller((uint32_t)w.begin + w.run.split_tokens, w.run.n_tokens);
    w.window = c.window == 0 ? FAR : smaller(c.window, FAR);
    w.sinks = c.n_sink_tokens > w.run.first_token ? (int)smaller(c.n_sink_tokens - w.run.first_token, FAR) : 0;
    return w;
}

/* A row of a tile.  Those past the last are the last once more: they are computed, where that is simpler, but never
 * stored. */
struct row {
    uint32_t packed, row, head;
};

PTX_DEVICE struct row find_row(const struct cattn_cuda_call &c, const struct work &w, uint32_t i)
{
    struct row r;
    r.packed = w.first + smaller(i, w.n_rows - 1);
    r.row = c.plan.run_rows[w.run.rows + r.packed / w.group];
    r.head = w.head * w.group + r.packed % w.group;
    return r;
}

PTX_DEVICE int position_of(const struct cattn_cuda_call &c, const struct work &w, const struct row &r)
{
    return (int)(c.plan.row_positions[r.row] - w.run.first_token);
}

PTX_DEVICE uint64_t state_of(const struct cattn_cuda_run &run, uint32_t split, uint32_t n_kv_heads, uint32_t head,
                             uint32_t packed, uint32_t r)
{
    return run.states + ((uint64_t)split * n_kv_heads + head) * packed + r;
}

/* Where the key, or the value, of a token lies in the pool. */
PTX_DEVICE uint64_t element_of(const struct cattn_cuda_call &c, const struct work &w, int t, bool value)
{
    const int shift = 5 + (c.chunk_tokens >= 64) + (c.chunk_tokens >= 128) + (c.chunk_tokens >= 256);
    const uint32_t slot = c.plan.slots[w.run.slots + ((uint32_t)t >> shift)];
    const uint32_t token = (uint32_t)t & (c.chunk_tokens - 1);
    return ((uint64_t)w.head * c.n_slots + slot) * c.block_elements +
           (value ? c.chunk_tokens * c.head_dim + token * c.v_head_dim : token * c.head_dim);
}

/* (No branches: the distance of a token that comes later wraps around, and does not count.) */
PTX_DEVICE bool sees(const struct work &w, int position, int t)
{
    return (t <= position) & (t < w.end) & (((uint32_t)position - (uint32_t)t < w.window) | (t < w.sinks));
}

/* ---- from states to outputs ---- */

/* Adds what a head's sink weighs. */
PTX_DEVICE void add_sink(const struct cattn_cuda_call &c, uint32_t head, float *m, float *l, float *factor)
{
    *factor = 1.0f;
    if (c.sinks == NULL || !(c.sinks[head] > minus_infinity()))
        return;
    const float x = ptx_mul(c.sinks[head], LOG2_E);
    const float larger = fmaxf(*m, x);
    *factor = ptx_exp2(*m - larger);
    *l = *l * *factor + ptx_exp2(x - larger);
    *m = larger;
}

PTX_DEVICE float natural_log_sum(float m, float l)
{
    return l > 0.0f ? (m + log2f(l)) * LN_2 : minus_infinity();
}

/* What sums of weighted values are to be multiplied by to become the output. */
PTX_DEVICE float close_row(const struct cattn_cuda_call &c, uint32_t head, float *m, float *l)
{
    float factor;
    add_sink(c, head, m, l, &factor);
    return *l > 0.0f ? factor * (1.0f / *l) : 0.0f;
}

PTX_DEVICE void store_lse(const struct cattn_cuda_call &c, uint32_t row, uint32_t head, float m, float l)
{
    if (c.lse != NULL)
        c.lse[(uint64_t)row * c.n_heads + head] = natural_log_sum(m, l);
}

/* ---- the fast way ----
 *
 * Four warps.  The packed rows of a tile are cut into groups of 16, the height of an mma; where there are fewer groups
 * than warps, the warps of a group share out the tokens of what is in shared memory, and their states are merged at the
 * end.  So tiles of few rows and of many keep all warps at work.
 *
 * Keys and values come to shared memory in tiles, two of each.  The copy of one is issued as soon as all have read what
 * lay there, keys before values, so that about one and a half tiles are on their way while a warp computes. */

template <int D, int ROWS> struct shape {
    static const int TILE = D > 128 ? 32 : CATTN_CUDA_TILE;
    static const int GROUPS = ROWS / 16;
    static const int SHARES = WARPS / GROUPS < TILE / 16 ? WARPS / GROUPS : TILE / 16;
    static const int TOKENS = TILE / SHARES; /* of a warp */
    static const int STEPS = TOKENS / 16;    /* of the mma that multiplies weights and values */
    static const int TILE_BYTES = TILE * D * 2;
    static const bool KEEPS_Q = D <= 128; /* in registers; they come by where the second tile of values will be */
};

/* A row of the tile, as all warps look it up. */
struct tile_row {
    uint32_t row, head;
    int position;
};

/* Shared memory, in bytes from its begin: two tiles of keys, two of values, queries, rows, views.  (Blocks of head_dim
 * 96 fill the 100 KB of compute capability 8.6 by two, but for 256 bytes.) */
template <int D> struct memory {
    typedef shape<D, CATTN_CUDA_TILE> most;
    static const uint32_t KEYS = 0, VALUES = 2 * most::TILE_BYTES;
    static const uint32_t QUERIES = VALUES + (most::KEEPS_Q ? 1 : 2) * most::TILE_BYTES;
    static const uint32_t ROWS = QUERIES + CATTN_CUDA_TILE * D * 2;
    static const uint32_t VIEWS = ROWS + CATTN_CUDA_TILE * sizeof(struct tile_row);
    static const uint32_t BYTES = VIEWS + WARPS * 2 * 16;
};

template <int D> PTX_DEVICE struct tile_row *row_at(uint32_t i)
{
    return (struct tile_row *)(ptx_shared() + memory<D>::ROWS) + i;
}

template <int D, int ROWS> PTX_DEVICE void put_rows(const struct cattn_cuda_call &c, const struct work &w)
{
    const uint32_t i = ptx_thread();
    if (i >= ROWS)
        return;
    const struct row r = find_row(c, w, i);
    *row_at<D>(i) = {r.row, r.head, position_of(c, w, r)};
}

/* Places in shared memory are counted in bytes from its begin.  This is where 16 bytes of a row of a tile lie, elements
 * 8 * piece to 8 * piece + 7.  ldmatrix reads one piece of 8 consecutive rows at a time; the exclusive or puts these 8
 * into the 8 different sixteens of 128 bytes, which is as wide as all banks.  (Rows of 96 elements are one and a half
 * times 128 bytes: every second is shifted by half as it is.)  The piece is even + odd; an even part that is known when
 * this is compiled costs one operation at most. */
template <int D> PTX_DEVICE uint32_t place(uint32_t tile, uint32_t row, uint32_t even, uint32_t odd)
{
    const uint32_t spread = D % 64 == 0 ? 7 : 3;
    const uint32_t rotated = D % 64 == 0 ? row & spread : row / 2 & spread;
    return ((tile + row * D * 2 + (rotated ^ odd) * 16) ^ (even & spread) * 16) + (even & ~spread) * 16;
}

/* Copies the keys, or the values, of the tile that begins with token t.  Zeros stand for what no row of the block sees:
 * whatever lies there in the pool must not meet a weight, be it 0. */
template <int D>
PTX_DEVICE void copy_tile(const struct cattn_cuda_call &c, const struct work &w, int t, bool values, uint32_t tile)
{
    const uint32_t pieces = D / 8, tokens = D == 96 ? 8 : THREADS / pieces; /* that all threads copy at once */
    const uint32_t token = ptx_thread() / pieces, piece = ptx_thread() % pieces;
    if (t >= w.end || token >= tokens)
        return;
    PTX_UNROLL
    for (uint32_t g = 0; g < shape<D, 16>::TILE; g += GRANULE) {
        const uint16_t *from = (const uint16_t *)c.pool + element_of(c, w, smaller(t + (int)g, w.end - 1), values);
        from += token * D + piece * 8;
        const int left = w.end - t - (int)(g + token);
        PTX_UNROLL
        for (uint32_t i = 0; i < GRANULE; i += tokens)
            ptx_copy16(ptx_shared() + place<D>(tile, g + i + token, piece & ~1u, piece & 1), from + i * D,
                       (int)i < left ? 16 : 0);
    }
}

template <int D, int ROWS> PTX_DEVICE void copy_queries(const struct cattn_cuda_call &c)
{
    const bool aligned = is_aligned(c.q, (c.q_row | c.q_head) * 2, 16);
    for (uint32_t i = ptx_thread(); i < ROWS * D / 8; i += THREADS) {
        const uint32_t piece = i % (D / 8);
        const struct tile_row &r = *row_at<D>(i / (D / 8));
        const uint16_t *q = (const uint16_t *)c.q + r.row * c.q_row + r.head * c.q_head + piece * 8;
        char *to = ptx_shared() + place<D>(memory<D>::QUERIES, i / (D / 8), piece & ~1u, piece & 1);
        if (aligned)
            ptx_copy16(to, q, 16);
        else
            for (int k = 0; k < 8; k++)
                ((uint16_t *)to)[k] = q[k];
    }
}

/* The positions of some rows. */
struct alignas(16) view {
    int lowest, highest;
    int window; /* where the first window begins */
};

/* What a warp's rows see, and all rows: it is needed once a tile, and has no register of its own in between. */
template <int D> PTX_DEVICE struct view *view_at(uint32_t which)
{
    return (struct view *)(ptx_shared() + memory<D>::VIEWS) + warp_of() * 2 + which;
}

/* Of `rows` rows, a power of two, from row `first` of the tile. */
template <int D> PTX_DEVICE struct view find_view(const struct work &w, uint32_t first, uint32_t rows)
{
    struct view v = {(int)FAR, -(int)FAR, 0};
    for (uint32_t i = lane_of() % rows; i < rows; i += 32) {
        const int position = row_at<D>(first + i)->position;
        v.lowest = smaller(v.lowest, position);
        v.highest = larger(v.highest, position);
    }
    v.lowest = -max_over(31, -v.lowest);
    v.highest = max_over(31, v.highest);
    v.window = larger(v.lowest, 0) - (int)w.window + 1;
    return v;
}

/* Whether one of the rows may see one of n tokens from t. */
PTX_DEVICE bool some_see_some(const struct work &w, const struct view &v, int t, int n)
{
    return t < w.end && t <= v.highest && (t + n > v.window || t < w.sinks);
}

PTX_DEVICE bool all_see_all(const struct work &w, const struct view &v, int t, int n)
{
    return t + n <= w.end && t + n - 1 <= v.lowest && ((uint32_t)(v.highest - t) < w.window || t + n <= w.sinks);
}

/* The tile behind the one at t, without those that lie before all windows. */
template <int TILE> PTX_DEVICE int next_tile(const struct work &w, const struct view &v, int t)
{
    t += TILE;
    return t < w.sinks || v.window < t + TILE ? t : t + (v.window - t) / TILE * TILE;
}

/* Two rows of a warp's 16, number lane / 4 and that + 8, as four lanes have them together. */
struct pair {
    float m[2], l[2];
    float alpha[2]; /* what the last tile does to o and l, */
    bool seen[2];   /* if the row saw any of it */
};

/* The left side of an mma: 16 queries, elements 16 * k and up. */
template <int D> PTX_DEVICE void load_queries(uint32_t q[4], uint32_t queries, uint32_t first, uint32_t k)
{
    ptx_ldmatrix_x4(q, ptx_shared() + place<D>(queries, first + lane_of() % 16, 2 * k, lane_of() / 16));
}

/* Sixteen queries, kept in registers or else loaded, times the keys of the tokens from `token` on. */
template <class T, int D, int STEPS>
PTX_DEVICE void multiply_keys(const uint32_t (*kept)[4], uint32_t queries, uint32_t first, uint32_t keys,
                              uint32_t token, float (*s)[4])
{
    const uint32_t lane = lane_of(), row = token + lane / 16 * 8 + lane % 8;
    PTX_UNROLL
    for (uint32_t k = 0; k < D / 16; k++) {
        uint32_t q[4];
        if (kept == NULL)
            load_queries<D>(q, queries, first, k);
        PTX_UNROLL
        for (uint32_t n = 0; n < STEPS; n++) {
            uint32_t b[4];
            ptx_ldmatrix_x4(b, ptx_shared() + place<D>(keys, row, 2 * k, lane / 8 % 2) + n * 16 * D * 2);
            T::mma(s[2 * n], kept == NULL ? q : kept[k], b);
            T::mma(s[2 * n + 1], kept == NULL ? q : kept[k], b + 2);
        }
    }
}

/* From products to x in log2 units; -inf for what is not seen.  s[n][i] is of row i / 2 and token t + 8 n + i % 2.  The
 * products are rounded before anything is subtracted: joined with the subtraction of a large maximum they would not
 * cancel. */
template <int D, int N>
PTX_DEVICE void scale_scores(const struct attention &c, const struct work &w, uint32_t first, int t, bool all_seen,
                             float (*s)[4])
{
    PTX_UNROLL
    for (int i = 0; i < N * 4; i++)
        s[i / 4][i % 4] = ptx_mul(s[i / 4][i % 4], c.factor);
    if (c.softcap > 0.0f) {
        PTX_UNROLL
        for (int i = 0; i < N * 4; i++)
            s[i / 4][i % 4] = ptx_mul(c.cap, tanhf(s[i / 4][i % 4]));
    }
    if (c.alibi_slopes == NULL && all_seen)
        return;
    PTX_UNROLL
    for (uint32_t r = 0; r < 2; r++) {
        const struct tile_row row = *row_at<D>(first + lane_of() / 4 + 8 * r);
        const float slope = c.alibi_slopes == NULL ? 0.0f : ptx_mul(c.alibi_slopes[row.head], LOG2_E);
        PTX_UNROLL
        for (int i = 0; i < N * 2; i++) {
            const int token = t + i / 2 * 8 + i % 2;
            float &x = s[i / 2][2 * r + i % 2];
            if (c.alibi_slopes != NULL)
                x = fmaf(slope, (float)(token - row.position), x);
            if (!sees(w, row.position, token))
                x = minus_infinity();
        }
    }
}

/* Numbers from here on are so far apart that a difference of a headroom would be rounded, and a weight be infinite. */
static constexpr float EXACT = 16777216.0f;

/* From x to weights, two in a register, as the mma takes them for its left side. */
template <class T, int STEPS> PTX_DEVICE void weigh(float (*s)[4], struct pair &p, uint32_t (*weights)[4])
{
    PTX_UNROLL
    for (int r = 0; r < 2; r++) {
        float most = minus_infinity();
        PTX_UNROLL
        for (int n = 0; n < 2 * STEPS; n++)
            most = fmaxf(most, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        most = max_over(3, most);
        const float m = fmaxf(p.m[r], fabsf(most) < EXACT ? most - T::headroom() : most);
        p.seen[r] = most > minus_infinity();
        p.alpha[r] = ptx_exp2(p.m[r] - m);
        p.m[r] = m;
        const float base = p.seen[r] ? m : 0.0f;
        PTX_UNROLL
        for (int n = 0; n < 2 * STEPS; n++)
            weights[n / 2][n % 2 * 2 + r] = T::pack(ptx_exp2(s[n][2 * r] - base), ptx_exp2(s[n][2 * r + 1] - base));
    }
}

/* d = d * alpha + tile for rows that have seen something of the tile.  For the others the tile may be NaN, if a value
 * that they do not see is: their state stays what it is. */
PTX_DEVICE void take(const struct pair &p, const float tile[4], float d[4])
{
    PTX_UNROLL
    for (int i = 0; i < 4; i++)
        if (p.seen[i / 2])
            d[i] = fmaf(d[i], p.alpha[i / 2], tile[i]);
}

/* Weights times values into o, and times ones into l: the weights as rounded are what outputs are divided by, so that
 * they stay within what the values span. */
template <class T, int D, int STEPS>
PTX_DEVICE void multiply_values(const uint32_t (*weights)[4], uint32_t values, uint32_t token, struct pair &p,
                                float (*o)[4])
{
    const uint32_t lane = lane_of(), row = token + lane % 16, ones[2] = {T::ONES, T::ONES};
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f}, l[4] = {p.l[0], 0.0f, p.l[1], 0.0f};
    PTX_UNROLL
    for (int k = 0; k < STEPS; k++)
        T::mma(sums, weights[k], ones);
    take(p, sums, l);
    p.l[0] = l[0];
    p.l[1] = l[2];
    PTX_UNROLL
    for (uint32_t n = 0; n < D / 16; n++) {
        float tile[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
        PTX_UNROLL
        for (uint32_t k = 0; k < STEPS; k++) {
            uint32_t b[4];
            ptx_ldmatrix_x4_trans(b, ptx_shared() + place<D>(values, row, 2 * n, lane / 16) + k * 16 * D * 2);
            T::mma(tile[0], weights[k], b);
            T::mma(tile[1], weights[k], b + 2);
        }
        take(p, tile[0], o[2 * n]);
        take(p, tile[1], o[2 * n + 1]);
        if (D > 128)
            ptx_warp_barrier(); /* keeps the compiler from loading more values ahead than it has registers for */
    }
}

/* The states of all warps in shared memory: o of (share, row), then m and l of each. */
template <int D, int ROWS> struct states {
    /* Rows are spread so that lanes with other rows and the same columns meet other banks. */
    PTX_DEVICE float *o(uint32_t share, uint32_t row, uint32_t column)
    {
        return (float *)ptx_shared() + (share * ROWS + row) * D + (column ^ (row & 3) * 8);
    }
    PTX_DEVICE float *ml(uint32_t share, uint32_t row)
    {
        return (float *)ptx_shared() + shape<D, ROWS>::SHARES * ROWS * D + (share * ROWS + row) * 2;
    }
};

template <int D, int ROWS>
PTX_DEVICE void put_states(uint32_t share, uint32_t first, const struct pair &p, const float (*o)[4])
{
    const uint32_t lane = lane_of();
    PTX_UNROLL
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t row = first + lane / 4 + 8 * r;
        if (lane % 4 == 0) {
            states<D, ROWS>::ml(share, row)[0] = p.m[r];
            states<D, ROWS>::ml(share, row)[1] = p.l[r];
        }
        PTX_UNROLL
        for (uint32_t n = 0; n < D / 8; n++) {
            float *to = states<D, ROWS>::o(share, row, 8 * n + lane % 4 * 2);
            to[0] = o[n][2 * r];
            to[1] = o[n][2 * r + 1];
        }
    }
}

template <class T>
PTX_DEVICE void store_output4(const struct cattn_cuda_call &c, const struct tile_row &r, uint32_t column,
                              const float x[4])
{
    uint16_t *out = (uint16_t *)c.out + r.row * c.out_row + r.head * c.out_head + column;
    if (is_aligned(c.out, (c.out_row | c.out_head) * 2, 8)) {
        const struct bytes8 both = {{T::pack(x[0], x[1]), T::pack(x[2], x[3])}};
        *(struct bytes8 *)out = both;
    } else {
        for (int i = 0; i < 4; i++)
            out[i] = T::store(x[i]);
    }
}

/* Merges the shares of four columns of a row, and writes them to where they belong. */
template <class T, int D, int ROWS>
PTX_DEVICE void finish4(const struct cattn_cuda_call &c, const struct work &w, uint32_t i, uint32_t column)
{
    const uint32_t shares = shape<D, ROWS>::SHARES;
    float m = minus_infinity(), l = 0.0f;
    for (uint32_t s = 0; s < shares; s++)
        m = fmaxf(m, states<D, ROWS>::ml(s, i)[0]);
    struct float4s o = {{0.0f, 0.0f, 0.0f, 0.0f}};
    for (uint32_t s = 0; s < shares; s++) {
        const float *ml = states<D, ROWS>::ml(s, i);
        if (!(ml[0] > minus_infinity()))
            continue;
        const float weight = ptx_exp2(ml[0] - m);
        const struct float4s x = *(const struct float4s *)states<D, ROWS>::o(s, i, column);
        l = fmaf(weight, ml[1], l);
        for (int k = 0; k < 4; k++)
            o.x[k] = fmaf(weight, x.x[k], o.x[k]);
    }
    const struct tile_row &r = *row_at<D>(i);
    if (w.run.direct) {
        const float factor = close_row(c, r.head, &m, &l);
        for (int k = 0; k < 4; k++)
            o.x[k] = ptx_mul(o.x[k], factor) + 0.0f;
        store_output4<T>(c, r, column, o.x);
        if (column == 0)
            store_lse(c, r.row, r.head, m, l);
    } else {
        const uint64_t state = state_of(w.run, w.split, c.n_kv_heads, w.head, w.packed, w.first + i);
        if (column == 0) {
            c.ml[2 * state] = m;
            c.ml[2 * state + 1] = l;
        }
        *(struct float4s *)(c.o + state * D + column) = o;
    }
}

/* (The work is found anew: to keep it would cost registers where they are short.) */
template <class T, int D, int ROWS> PTX_DEVICE void finish_tile(const struct cattn_cuda_call &c)
{
    const struct work w = find_work(c);
    for (uint32_t i = ptx_thread(); i < w.n_rows * (D / 4); i += THREADS)
        finish4<T, D, ROWS>(c, w, i / (D / 4), i % (D / 4) * 4);
}

template <class T, int D, int ROWS> PTX_DEVICE void attend_tile(const struct attention &c, struct work w)
{
    typedef shape<D, ROWS> S;
    const uint32_t first = warp_of() % S::GROUPS * 16, share = warp_of() / S::GROUPS, own_token = share * S::TOKENS;
    const uint32_t keys = memory<D>::KEYS, values = memory<D>::VALUES, queries = memory<D>::QUERIES;

    put_rows<D, ROWS>(c, w);
    ptx_barrier();
    const struct view all = find_view<D>(w, 0, ROWS), own = find_view<D>(w, first, 16);
    if (lane_of() == 0) {
        *view_at<D>(0) = share < S::SHARES && first < w.n_rows ? own : view{(int)FAR, -(int)FAR, 0}; /* sees nothing */
        *view_at<D>(1) = all;
    }
    ptx_warp_barrier();
    w.end = smaller(w.end, all.highest + 1); /* no row of the tile sees more */
    int t = next_tile<S::TILE>(w, all, w.begin - S::TILE), next = next_tile<S::TILE>(w, all, t);
    copy_queries<D, ROWS>(c);
    ptx_copy_commit();
    copy_tile<D>(c, w, t, false, keys);
    ptx_copy_commit();
    copy_tile<D>(c, w, t, true, values);
    ptx_copy_commit();
    copy_tile<D>(c, w, next, false, keys + S::TILE_BYTES);
    ptx_copy_commit();

    struct pair p = {{minus_infinity(), minus_infinity()}, {0.0f, 0.0f}, {0.0f, 0.0f}, {false, false}};
    float o[D / 8][4];
    PTX_UNROLL
    for (int i = 0; i < D / 2; i++)
        o[i / 4][i % 4] = 0.0f;
    uint32_t q[D / 16][4];
    if (S::KEEPS_Q) {
        ptx_copy_wait<3>();
        ptx_barrier();
        PTX_UNROLL
        for (int k = 0; k < D / 16; k++)
            load_queries<D>(q[k], queries, first, k);
    }

    for (uint32_t stage = 0; t < w.end; stage ^= S::TILE_BYTES) {
        const int own_t = t + (int)own_token, after = next_tile<S::TILE>(w, *view_at<D>(1), next);
        const bool looks = ptx_any(some_see_some(w, *view_at<D>(0), own_t, S::TOKENS)); /* all lanes alike */
        float s[2 * S::STEPS][4];
        ptx_copy_wait<2>(); /* these keys, and not yet these values and the next keys */
        ptx_barrier();
        copy_tile<D>(c, w, next, true, values + (stage ^ S::TILE_BYTES));
        ptx_copy_commit();
        if (looks) {
            PTX_UNROLL
            for (int i = 0; i < 8 * S::STEPS; i++)
                s[i / 4][i % 4] = 0.0f;
            multiply_keys<T, D, S::STEPS>(S::KEEPS_Q ? q : NULL, queries, first, keys + stage, own_token, s);
        }
        ptx_copy_wait<2>(); /* these values, and not yet the next keys and values */
        ptx_barrier();
        copy_tile<D>(c, w, after, false, keys + stage);
        ptx_copy_commit();
        if (looks) {
            uint32_t weights[S::STEPS][4];
            scale_scores<D, 2 * S::STEPS>(c, w, first, own_t + (int)(lane_of() % 4 * 2),
                                          all_see_all(w, *view_at<D>(0), own_t, S::TOKENS), s);
            weigh<T, S::STEPS>(s, p, weights);
            multiply_values<T, D, S::STEPS>(weights, values + stage, own_token, p, o);
        }
        t = next;
        next = after;
    }

    ptx_copy_wait<0>();
    ptx_barrier();
    if (share < S::SHARES)
        put_states<D, ROWS>(share, first, p, o);
    ptx_barrier();
    finish_tile<T, D, ROWS>(c);
}

template <class T, int D> PTX_GLOBAL void PTX_BOUNDS(THREADS, 2) attend_fast(const struct attention c)
{
    const struct work w = find_work(c);
    if (w.tile_rows == 16)
        attend_tile<T, D, 16>(c, w);
    else if (w.tile_rows == 32)
        attend_tile<T, D, 32>(c, w);
    else if (w.tile_rows == 64)
        attend_tile<T, D, 64>(c, w);
}

/* ---- the general way: a warp a row, element by element; what a row does not see is not even read ---- */

enum { PER_LANE = CATTN_CUDA_MAX_HEAD_DIM / 32 };

template <class KV> PTX_DEVICE float dot(const float *q, const typename KV::element *k, uint32_t n)
{
    float sum = 0.0f;
    PTX_UNROLL
    for (uint32_t i = 0; i < PER_LANE; i++) {
        const uint32_t d = 32 * i + lane_of();
        if (d < n)
            sum = fmaf(q[i], KV::load(k[d]), sum);
    }
    return sum_over(31, sum);
}

PTX_DEVICE float score(const struct attention &c, uint32_t head, float product, int distance)
{
    float x = ptx_mul(product, c.factor);
    if (c.softcap > 0.0f)
        x = ptx_mul(c.cap, tanhf(x));
    if (c.alibi_slopes != NULL)
        x = fmaf(ptx_mul(c.alibi_slopes[head], LOG2_E), (float)distance, x);
    return x;
}

/* A row's state so far; l is what the lane has of the sum. */
struct row_state {
    float m, l, o[PER_LANE];
};

/* The tokens of a granule: lane i works out the weight of token t + i. */
template <class KV>
PTX_DEVICE void attend_granule(const struct attention &c, const struct work &w, const struct row &r, int position,
                               int t, const float *q, struct row_state &state)
{
    const int lane = (int)lane_of();
    const typename KV::element *const pool = (const typename KV::element *)c.pool;
    const typename KV::element *const keys = pool + element_of(c, w, t, false);
    const typename KV::element *const values = pool + element_of(c, w, t, true);
    float x = minus_infinity();
    for (int i = 0; i < GRANULE; i++) {
        if (!sees(w, position, t + i))
            continue;
        const float product = dot<KV>(q, keys + i * c.head_dim, c.head_dim);
        if (i == lane)
            x = score(c, r.head, product, t + i - position);
    }
    const float m = fmaxf(state.m, max_over(31, x));
    if (!(m > minus_infinity()))
        return;
    const float alpha = ptx_exp2(state.m - m), weight = ptx_exp2(x - m);
    state.m = m;
    state.l = fmaf(state.l, alpha, weight);
    PTX_UNROLL
    for (int k = 0; k < PER_LANE; k++)
        state.o[k] *= alpha;
    for (int i = 0; i < GRANULE; i++) {
        const float token_weight = ptx_shuffle(weight, i);
        if (!sees(w, position, t + i))
            continue;
        PTX_UNROLL
        for (int k = 0; k < PER_LANE; k++)
            if (32 * k + lane < (int)c.v_head_dim)
                state.o[k] = fmaf(token_weight, KV::load(values[i * c.v_head_dim + 32 * k + lane]), state.o[k]);
    }
}

PTX_DEVICE void finish_row(const struct cattn_cuda_call &c, const struct work &w, const struct row &r,
                           struct row_state &state)
{
    const uint32_t lane = lane_of();
    const uint64_t i = state_of(w.run, w.split, c.n_kv_heads, w.head, w.packed, r.packed);
    float l = sum_over(31, state.l), factor = 1.0f;
    if (w.run.direct)
        factor = close_row(c, r.head, &state.m, &l);
    PTX_UNROLL
    for (uint32_t k = 0; k < PER_LANE; k++) {
        const uint32_t d = 32 * k + lane;
        if (d >= c.v_head_dim)
            break;
        if (w.run.direct)
            store_element(c.out, c.io_dtype, r.row * c.out_row + r.head * c.out_head + d,
                          ptx_mul(state.o[k], factor) + 0.0f);
        else
            c.o[i * c.v_head_dim + d] = state.o[k];
    }
    if (lane != 0)
        return;
    if (w.run.direct) {
        store_lse(c, r.row, r.head, state.m, l);
    } else {
        c.ml[2 * i] = state.m;
        c.ml[2 * i + 1] = l;
    }
}

template <class KV> PTX_GLOBAL void PTX_BOUNDS(THREADS, 4) attend_general(const struct attention c)
{
    const struct work w = find_work(c);
    for (uint32_t i = warp_of(); i < w.n_rows; i += WARPS) {
        const struct row r = find_row(c, w, i);
        const int position = position_of(c, w, r), end = smaller(w.end, position + 1);
        const struct view own = {position, position, larger(position, 0) - (int)w.window + 1};
        struct row_state state = {minus_infinity(), 0.0f, {}};
        float q[PER_LANE];
        PTX_UNROLL
        for (uint32_t k = 0; k < PER_LANE; k++) {
            const uint32_t d = 32 * k + lane_of();
            state.o[k] = 0.0f;
            q[k] = d < c.head_dim ? load_element(c.q, c.io_dtype, r.row * c.q_row + r.head * c.q_head + d) : 0.0f;
        }
        for (int t = next_tile<GRANULE>(w, own, w.begin - GRANULE); t < end; t = next_tile<GRANULE>(w, own, t))
            attend_granule<KV>(c, w, r, position, t, q, state);
        finish_row(c, w, r, state);
    }
}

/* ---- the fold: a warp a row and head, states in ascending order of their tokens ---- */

/* The states of a row over one run: of split s it is number begin + s * step. */
struct split_states {
    uint64_t begin, step;
    uint32_t n;
};

PTX_DEVICE struct split_states find_states(const struct cattn_cuda_call &c, const struct cattn_cuda_item &item,
                                           uint32_t part, uint32_t row, uint32_t head)
{
    const struct cattn_cuda_part p = c.plan.parts[item.parts + part];
    const struct cattn_cuda_run &run = c.plan.runs[p.run];
    const uint32_t group = c.n_heads / c.n_kv_heads, packed = run.n_rows * group;
    const uint32_t r = (p.first + row - item.first_row) * group + head % group;
    struct split_states s;
    s.begin = state_of(run, 0, c.n_kv_heads, head / group, packed, r);
    s.step = (uint64_t)c.n_kv_heads * packed;
    s.n = run.n_splits;
    return s;
}

PTX_DEVICE float largest_m(const struct cattn_cuda_call &c, const struct cattn_cuda_item &item, uint32_t row,
                           uint32_t head)
{
    float m = minus_infinity();
    for (uint32_t part = 0; part < item.n_parts; part++) {
        const struct split_states s = find_states(c, item, part, row, head);
        for (uint32_t i = lane_of(); i < s.n; i += 32)
            m = fmaxf(m, c.ml[2 * (s.begin + i * s.step)]);
    }
    return max_over(31, m);
}

enum { FOLD_COLUMNS = 4, FOLD_WIDTH = 32 * FOLD_COLUMNS, FOLD_AHEAD = 4 };

/* What a state has for the columns of a lane, and what it counts for. */
struct fold_term {
    float weight, l, o[FOLD_COLUMNS];
};

PTX_DEVICE struct fold_term load_term(const struct cattn_cuda_call &c, uint64_t state, float most, uint32_t column)
{
    const float m = c.ml[2 * state];
    const bool seen = m > minus_infinity();
    struct fold_term term;
    term.weight = seen ? ptx_exp2(m - most) : 0.0f;
    term.l = c.ml[2 * state + 1];
    PTX_UNROLL
    for (uint32_t k = 0; k < FOLD_COLUMNS; k++)
        term.o[k] = seen && column + 32 * k < c.v_head_dim ? c.o[state * c.v_head_dim + column + 32 * k] : 0.0f;
    return term;
}

/* Adds up the states: l, and of the columns from `column` on those of this lane, 32 apart.  Some are asked for before
 * the first is needed. */
PTX_DEVICE float fold_columns(const struct cattn_cuda_call &c, const struct cattn_cuda_item &item, uint32_t row,
                              uint32_t head, float most, uint32_t column, float o[FOLD_COLUMNS])
{
    float l = 0.0f;
    for (uint32_t part = 0; part < item.n_parts; part++) {
        const struct split_states s = find_states(c, item, part, row, head);
        for (uint32_t i = 0; i < s.n; i += FOLD_AHEAD) {
            struct fold_term terms[FOLD_AHEAD];
            PTX_UNROLL
            for (uint32_t k = 0; k < FOLD_AHEAD; k++) {
                terms[k] = load_term(c, s.begin + smaller(i + k, s.n - 1) * s.step, most, column);
                if (i + k >= s.n)
                    terms[k].weight = 0.0f;
            }
            PTX_UNROLL
            for (uint32_t k = 0; k < FOLD_AHEAD; k++) {
                l = fmaf(terms[k].weight, terms[k].l, l);
                PTX_UNROLL
                for (uint32_t n = 0; n < FOLD_COLUMNS; n++)
                    o[n] = fmaf(terms[k].weight, terms[k].o[n], o[n]);
            }
        }
    }
    return l;
}

PTX_GLOBAL void PTX_BOUNDS(THREADS, 8) fold_states(const struct cattn_cuda_call c)
{
    const uint64_t i = (uint64_t)ptx_block_x() * WARPS + warp_of();
    const struct row r = {0, (uint32_t)(i / c.n_heads), (uint32_t)(i % c.n_heads)};
    if (r.row >= c.plan.n_rows)
        return;
    const struct cattn_cuda_item item = c.plan.items[c.plan.row_items[r.row]];
    if (item.direct)
        return;
    const float most = largest_m(c, item, r.row, r.head);
    const uint32_t lane = lane_of();
    for (uint32_t column = lane; column < c.v_head_dim + lane; column += FOLD_WIDTH) {
        float m = most, o[FOLD_COLUMNS] = {0.0f, 0.0f, 0.0f, 0.0f};
        float l = fold_columns(c, item, r.row, r.head, m, column, o);
        const float factor = close_row(c, r.head, &m, &l);
        for (uint32_t k = 0; k < FOLD_COLUMNS; k++)
            if (column + 32 * k < c.v_head_dim)
                store_element(c.out, c.io_dtype, r.row * c.out_row + r.head * c.out_head + column + 32 * k,
                              ptx_mul(o[k], factor) + 0.0f);
        if (column == 0)
            store_lse(c, r.row, r.head, m, l);
    }
}

/* ---- new keys and values: a warp for those of one token and KV head ---- */

PTX_DEVICE void store_vector(const struct cattn_cuda_call &c, const void *from, uint64_t begin, uint64_t to, uint32_t n,
                             bool wide)
{
    const uint32_t lane = lane_of();
    if (wide) {
        const struct bytes16 *const source = (const struct bytes16 *)((const uint16_t *)from + begin);
        struct bytes16 *const target = (struct bytes16 *)((uint16_t *)c.pool + to);
        for (uint32_t i = lane; i < n / 8; i += 32)
            target[i] = source[i];
    } else {
        for (uint32_t i = lane; i < n; i += 32)
            store_element(c.pool, c.kv_dtype, to + i, load_element(from, c.io_dtype, begin + i));
    }
}

/* Whether vectors of n elements can be copied by 16 bytes, without looking at the numbers. */
PTX_DEVICE bool is_wide(const struct cattn_cuda_call &c, const void *from, uint64_t strides, uint32_t n)
{
    return c.io_dtype == c.kv_dtype && c.io_dtype != CATTN_F32 && n % 8 == 0 && c.head_dim % 8 == 0 &&
           c.block_elements % 8 == 0 && is_aligned(c.pool, 0, 16) && is_aligned(from, strides * 2, 16);
}

PTX_GLOBAL void PTX_BOUNDS(THREADS, 8) store_tokens(const struct cattn_cuda_call c)
{
    const uint64_t i = (uint64_t)ptx_block_x() * WARPS + warp_of();
    if (i / c.n_kv_heads >= c.plan.n_writes)
        return;
    const struct cattn_cuda_write to = c.plan.writes[i / c.n_kv_heads];
    const uint32_t head = (uint32_t)(i % c.n_kv_heads);
    const uint64_t block = ((uint64_t)head * c.n_slots + to.slot) * c.block_elements;
    store_vector(c, c.k, to.row * c.k_row + head * c.k_head, block + (uint64_t)to.token * c.head_dim, c.head_dim,
                 is_wide(c, c.k, c.k_row | c.k_head, c.head_dim));
    store_vector(c, c.v, to.row * c.v_row + head * c.v_head,
                 block + (uint64_t)c.chunk_tokens * c.head_dim + (uint64_t)to.token * c.v_head_dim, c.v_head_dim,
                 is_wide(c, c.v, c.v_row | c.v_head, c.v_head_dim));
}

/* ---- lengths move on ---- */

struct advance {
    struct cattn_cuda_plan plan;
    uint32_t delta;
};

PTX_GLOBAL void PTX_BOUNDS(THREADS, 8) advance_plan(const struct advance a)
{
    const uint32_t i = ptx_block_x() * THREADS + ptx_thread();
    if (i < a.plan.n_rows)
        a.plan.row_positions[i] += a.delta;
    if (i < a.plan.n_writes)
        a.plan.writes[i].token += a.delta;
}

/* ---- the host's side ---- */

typedef void (*attend_kernel)(const struct attention);

struct choice {
    attend_kernel kernel;
    uint32_t shared_bytes;
};

template <class T> static struct choice choose_fast(uint32_t head_dim)
{
    switch (head_dim) {
    case 64: return {attend_fast<T, 64>, memory<64>::BYTES};
    case 96: return {attend_fast<T, 96>, memory<96>::BYTES};
    case 128: return {attend_fast<T, 128>, memory<128>::BYTES};
    case 256: return {attend_fast<T, 256>, memory<256>::BYTES};
    default: return {NULL, 0};
    }
}

static struct choice choose(uint32_t kv_dtype, uint32_t head_dim, bool fast)
{
    switch (kv_dtype) {
    case CATTN_F16: return fast ? choose_fast<f16>(head_dim) : choice{attend_general<f16>, 0};
    case CATTN_BF16: return fast ? choose_fast<bf16>(head_dim) : choice{attend_general<bf16>, 0};
    default: return fast ? choice{NULL, 0} : choice{attend_general<f32>, 0};
    }
}

/* Blocks for n warps.  (That a grid has at most 2^31 - 1 blocks is no limit: there is a state, or a row of the output,
 * for each, of 64 bytes at least.) */
static uint32_t blocks(uint64_t n)
{
    return (uint32_t)((n + WARPS - 1) / WARPS);
}

int cattn_cuda_store(const struct cattn_cuda_call *call, void *stream)
{
    const uint64_t n = (uint64_t)call->plan.n_writes * call->n_kv_heads;
    return n == 0 ? 0 : ptx_launch(store_tokens, blocks(n), 1, THREADS, 0, stream, *call);
}

static struct attention attention_of(const struct cattn_cuda_call *call)
{
    struct attention a;
    (struct cattn_cuda_call &)a = *call;
    a.factor = call->softcap > 0.0f ? call->scale / call->softcap : call->scale * LOG2_E;
    a.cap = call->softcap * LOG2_E;
    return a;
}

int cattn_cuda_attend(const struct cattn_cuda_call *call, int fast, void *stream)
{
    const struct choice chosen = choose(call->kv_dtype, call->head_dim, fast != 0);
    int error = 0;
    if (call->plan.n_pieces != 0)
        error = ptx_launch(chosen.kernel, call->plan.n_pieces * call->n_kv_heads, 1, THREADS, chosen.shared_bytes,
                           stream, attention_of(call));
    if (error == 0 && call->plan.n_folds != 0)
        error =
            ptx_launch(fold_states, blocks((uint64_t)call->plan.n_rows * call->n_heads), 1, THREADS, 0, stream, *call);
    return error;
}

int cattn_cuda_advance(const struct cattn_cuda_plan *plan, uint32_t delta, void *stream)
{
    const uint32_t n = plan->n_rows > plan->n_writes ? plan->n_rows : plan->n_writes;
    const struct advance a = {*plan, delta};
    return n == 0 ? 0 : ptx_launch(advance_plan, (n + THREADS - 1) / THREADS, 1, THREADS, 0, stream, a);
}

int cattn_cuda_is_fast(uint32_t io_dtype, uint32_t kv_dtype, uint32_t head_dim, uint32_t v_head_dim)
{
    return io_dtype == kv_dtype && head_dim == v_head_dim && choose(kv_dtype, head_dim, true).kernel != NULL;
}

static int prepare_attend(const struct choice &chosen)
{
    const int error = ptx_load(chosen.kernel);
    return error != 0 ? error : ptx_allow_shared(chosen.kernel, chosen.shared_bytes);
}

int cattn_cuda_prepare(void)
{
    static const uint32_t dtypes[] = {CATTN_F16, CATTN_BF16, CATTN_F32}, head_dims[] = {64, 96, 128, 256};
    int error = ptx_load(store_tokens);
    if (error == 0)
        error = ptx_load(fold_states);
    if (error == 0)
        error = ptx_load(advance_plan);
    for (uint32_t dtype : dtypes) {
        if (error == 0)
            error = prepare_attend(choose(dtype, 0, false));
        for (uint32_t head_dim : head_dims)
            if (error == 0 && dtype != CATTN_F32)
                error = prepare_attend(choose(dtype, head_dim, true));
    }
    return error;
}

int cattn_cuda_occupancy(uint32_t kv_dtype, uint32_t head_dim, int *n_blocks)
{
    struct choice chosen = choose(kv_dtype, head_dim, true);
    if (chosen.kernel == NULL)
        chosen = choose(kv_dtype, head_dim, false);
    return ptx_occupancy(chosen.kernel, THREADS, chosen.shared_bytes, n_blocks);
}

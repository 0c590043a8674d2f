#include "fold.h"
#include "arithmetic.h"
#include "dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define LOG2_E       1.44269504088896340736

static const uint32_t dims[] = {1,  2,  3,  7,   8,   15,  16,  17,  24,  31,  32,  33,  40,  64,   65,
                                72, 80, 96, 112, 120, 127, 128, 129, 160, 192, 256, 512, 576, 1023, 1024};
static const uint32_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 15, 16, 17, 31, 32, 33, 48, 64, 70, 300};
static const uint32_t chunks[] = {32, 64, 128, 256};
static const uint32_t dtypes[] = {CATTN_F32, CATTN_F16, CATTN_BF16, CATTN_I8};
static const char *const variant_names[] = {"plain", "scale", "softcap", "window", "sink-tokens", "alibi", "all"};

/* ---- cases ------------------------------------------------------------------------------------------ */

uint64_t fold_n_cases(void)
{
    return (uint64_t)COUNT(dtypes) * N_VARIANTS * COUNT(chunks) * COUNT(row_counts) * COUNT(dims);
}

const char *fold_variant_name(enum fold_variant variant)
{
    return variant_names[variant];
}

static uint64_t digit(uint64_t *number, uint64_t base)
{
    const uint64_t d = *number % base;
    *number /= base;
    return d;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Near the start most of the time, and where a position no longer fits in a float, in 32 bits. */
static uint64_t some_span(struct rng *rng)
{
    static const uint64_t spans[] = {0, 0, 0, 1, 2, 60, (1 << 14) - 1, 1 << 22, UINT64_C(1) << 30};
    return spans[rng_below(rng, COUNT(spans))];
}

struct fold_case fold_case_at(uint64_t number)
{
    struct fold_case c = {.number = number};
    struct rng rng;
    rng_init(&rng, number);
    c.kv_dtype = dtypes[digit(&number, COUNT(dtypes))];
    c.variant = (enum fold_variant)digit(&number, N_VARIANTS);
    c.chunk_tokens = chunks[digit(&number, COUNT(chunks))];
    c.n_rows = row_counts[digit(&number, COUNT(row_counts))];
    c.head_dim = dims[digit(&number, COUNT(dims))];
    c.v_head_dim = rng_chance(&rng, 60) ? c.head_dim : dims[rng_below(&rng, COUNT(dims))];
    c.io_dtype = (uint32_t)rng_below(&rng, CATTN_BF16 + 1);
    const uint32_t in_span = CATTN_SPAN / c.chunk_tokens, skipped = (uint32_t)rng_below(&rng, in_span);
    const uint32_t most = rng_chance(&rng, 15) ? in_span : (uint32_t)(256 / c.chunk_tokens + 1);
    c.first_chunk = some_span(&rng) * in_span + skipped;
    c.n_chunks = (uint32_t)rng_between(&rng, 1, least(most, in_span - skipped));
    c.n_tokens = c.n_chunks * c.chunk_tokens - (rng_chance(&rng, 60) ? (uint32_t)rng_below(&rng, c.chunk_tokens) : 0);
    c.chunks_per_fold = (uint32_t)rng_between(&rng, 1, c.n_chunks);
    c.guard = rng_chance(&rng, 50) ? GUARD_END : GUARD_START;
    c.gain = rng_chance(&rng, 20) ? 30 : rng_chance(&rng, 10) ? 1000 : 2;
    return c;
}

void fold_describe(const struct fold_case *c, char *text, size_t size)
{
    snprintf(text, size,
             "io %s, kv %s, head_dim %u, v_head_dim %u, rows %u, chunk %u, %s, first token %llu, tokens %u in %u "
             "chunks, %u a fold, guard %s, gain %g",
             dtype_name(c->io_dtype), dtype_name(c->kv_dtype), c->head_dim, c->v_head_dim, c->n_rows, c->chunk_tokens,
             variant_names[c->variant], (unsigned long long)(c->first_chunk * c->chunk_tokens), c->n_tokens,
             c->n_chunks, c->chunks_per_fold, c->guard == GUARD_END ? "behind" : "before", c->gain);
}

struct cattn_shape fold_shape(const struct fold_case *c)
{
    enum { SPARE_SLOTS = 3 };
    return (struct cattn_shape){.n_layers = 1,
                                .n_heads = 1,
                                .n_kv_heads = 1,
                                .head_dim = c->head_dim,
                                .v_head_dim = c->v_head_dim,
                                .chunk_tokens = c->chunk_tokens,
                                .io_dtype = c->io_dtype,
                                .kv_dtype = c->kv_dtype,
                                .n_slots = c->n_chunks + SPARE_SLOTS,
                                .n_threads = 1};
}

uint64_t fold_cost(const struct fold_case *c)
{
    return (uint64_t)c->n_rows * c->n_tokens * (c->head_dim + c->v_head_dim);
}

/* ---- data ------------------------------------------------------------------------------------------- */

/* Between -1 and 1. */
static double some_number(struct rng *rng)
{
    return ((double)rng_below(rng, 1 << 24) + 0.5) * 0x1p-23 - 1;
}

static uint64_t first_token(const struct fold_case *c)
{
    return c->first_chunk * c->chunk_tokens;
}

/* Of one decode, of a prefill, or of rows that have little in common: some see nothing, some see all. */
static void draw_positions(struct fold_data *f, struct rng *rng)
{
    const struct fold_case *c = &f->c;
    const uint64_t first = first_token(c), end = first + c->n_tokens;
    const int kind = (int)rng_below(rng, 3), is_full = c->n_tokens == c->n_chunks * c->chunk_tokens;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        f->position[r] = end - 1;
        if (kind == 1)
            f->position[r] -= least(end - 1, c->n_rows - 1 - r);
        else if (kind == 2 && rng_chance(rng, 10))
            f->position[r] = rng_below(rng, first + 1);
        else if (kind == 2 && is_full && rng_chance(rng, 20))
            f->position[r] = end + rng_below(rng, 2000);
        else if (kind == 2)
            f->position[r] = rng_between(rng, first, end - 1);
    }
}

static void draw_variant(struct fold_data *f, struct rng *rng)
{
    const struct fold_case *c = &f->c;
    const enum fold_variant v = c->variant;
    f->scale = 1 / sqrt(c->head_dim);
    if (v == FOLD_SCALE || v == FOLD_ALL)
        f->scale *= 0.2 + (double)rng_below(rng, 300) / 100;
    f->cap = v == FOLD_SOFTCAP || v == FOLD_ALL ? 1 + (double)rng_below(rng, 50) : 0;
    f->scoring.scale = (float)(f->cap > 0 ? f->scale / f->cap : f->scale * LOG2_E);
    f->scoring.cap = (float)(f->cap * LOG2_E);
    f->scoring.window = UINT64_MAX;
    if (v == FOLD_WINDOW || v == FOLD_SINK_TOKENS || v == FOLD_ALL)
        f->scoring.window = rng_between(rng, 1, c->n_tokens + 50);
    if (v == FOLD_SINK_TOKENS || v == FOLD_ALL)
        f->scoring.n_sink_tokens = first_token(c) / 2 + rng_below(rng, first_token(c) / 2 + c->n_tokens + 1);
    for (uint32_t r = 0; r < c->n_rows; r++)
        f->slope[r] = v != FOLD_ALIBI && v != FOLD_ALL
                          ? 0
                          : ldexpf(1, -(int)rng_below(rng, 9)) * (rng_chance(rng, 10) ? -0.01f : 1);
}

static void write_tokens(struct fold_data *f, const void *k, const void *v, const struct cattn_work_write *write)
{
    struct cattn_work_write one = *write;
    const struct cattn_work work = {.chunk_tokens = f->c.chunk_tokens, .writes = &one, .n_writes = 1};
    const struct cattn_call call = {.k = k, .v = v, .k_row = f->c.head_dim, .v_row = f->c.v_head_dim};
    cattn_pool_write(&f->pool, &work, &call, 0);
}

/* Tokens [begin, end) of a text that was given up: NaN, all of it. */
static void write_leftovers(struct fold_data *f, uint32_t slot, uint32_t begin, uint32_t end)
{
    const struct fold_case *c = &f->c;
    const uint32_t n = end - begin, dim = c->head_dim > c->v_head_dim ? c->head_dim : c->v_head_dim;
    const size_t bytes = (size_t)n * dim * sizeof(float);
    void *nan = memset(malloc(bytes), 0xff, bytes);
    write_tokens(f, nan, nan, &(struct cattn_work_write){slot, begin, end, 0, begin});
    free(nan);
}

/* Writes one chunk as steps would, in one or two goes, with other tokens in place of the last ones for a while. */
static void write_chunk(struct fold_data *f, struct rng *rng, const void *k, const void *v, uint32_t chunk, uint32_t n)
{
    const struct fold_case *c = &f->c;
    const uint32_t slot = f->slots[chunk], row = chunk * c->chunk_tokens;
    const uint32_t cut = rng_chance(rng, 50) ? (uint32_t)rng_below(rng, n) : 0;
    uint32_t dirty = cut;
    if (cut)
        write_tokens(f, k, v, &(struct cattn_work_write){slot, 0, cut, row, 0});
    if (rng_chance(rng, 40)) {
        dirty = (uint32_t)rng_between(rng, n, c->chunk_tokens);
        write_leftovers(f, slot, cut, dirty);
    }
    write_tokens(f, k, v, &(struct cattn_work_write){slot, cut, n, row + cut, dirty});
}

/* Keys or values: as they are handed over, and as they are stored.  Those for i8 are whole numbers over 64, up to the
 * largest one, which any way of rounding to i8 leaves alone. */
static void *draw_vectors(const struct fold_case *c, struct rng *rng, uint32_t dim, double *stored)
{
    const size_t n = (size_t)c->n_tokens * dim;
    void *given = guard_alloc(n * dtype_size(c->io_dtype), c->guard);
    for (size_t i = 0; i < n; i++) {
        double x = some_number(rng);
        if (c->kv_dtype == CATTN_I8)
            x = (i % dim ? rint(x * 127) : copysign(127, x)) / 64;
        x = dtype_round(c->io_dtype, x);
        dtype_store(c->io_dtype, given, i, x);
        stored[i] = c->kv_dtype == CATTN_I8 ? x : dtype_round(c->kv_dtype, x);
    }
    return given;
}

static void fill_pool(struct fold_data *f, struct rng *rng)
{
    const struct fold_case *c = &f->c;
    const size_t size = dtype_size(c->io_dtype) * c->n_tokens;
    void *k = draw_vectors(c, rng, c->head_dim, f->k), *v = draw_vectors(c, rng, c->v_head_dim, f->v);
    for (uint32_t chunk = 0; chunk < c->n_chunks; chunk++)
        write_chunk(f, rng, k, v, chunk, (uint32_t)least(c->chunk_tokens, c->n_tokens - chunk * c->chunk_tokens));
    guard_free(k, c->head_dim * size, c->guard);
    guard_free(v, c->v_head_dim * size, c->guard);
}

static int is_visible(const struct fold_data *f, uint32_t row, uint64_t token)
{
    const uint64_t position = f->position[row];
    return token <= position && (f->scoring.window == UINT64_MAX || position - token < f->scoring.window ||
                                 token < f->scoring.n_sink_tokens);
}

static int is_seen(const struct fold_data *f, uint64_t begin, uint64_t end)
{
    for (uint32_t r = 0; r < f->c.n_rows; r++)
        for (uint64_t token = begin; token < end; token++)
            if (is_visible(f, r, token))
                return 1;
    return 0;
}

/* A granule that no row sees is NaN, all of it: no kernel may go through it. */
static void spoil_hidden_granules(struct fold_data *f)
{
    const struct fold_case *c = &f->c;
    for (uint32_t t = 0; t < c->n_tokens; t += CATTN_GRANULE) {
        const uint32_t n = (uint32_t)least(CATTN_GRANULE, c->n_tokens - t), in_chunk = t % c->chunk_tokens;
        if (!is_seen(f, first_token(c) + t, first_token(c) + t + n))
            write_leftovers(f, f->slots[t / c->chunk_tokens], in_chunk, in_chunk + n);
    }
}

/* Where K is bf16 the numbers are such that queries kept as bf16 are the same. */
static void draw_queries(struct fold_data *f, struct rng *rng)
{
    const struct fold_case *c = &f->c;
    for (size_t i = 0; i < (size_t)c->n_rows * c->head_dim; i++) {
        const double x = some_number(rng) * c->gain;
        dtype_store(c->io_dtype, f->q, i,
                    dtype_round(c->io_dtype, c->kv_dtype == CATTN_BF16 ? dtype_round(CATTN_BF16, x) : x));
    }
}

/* The pool's own memory is exchanged for one between guard pages, full of NaN. */
static void open_pool(struct fold_data *f)
{
    ck_assert_int_eq(cattn_pool_open(&f->pool, &f->shape), CATTN_OK);
    const size_t n_bytes = f->pool.n_bytes;
    cattn_pool_close(&f->pool);
    f->pool.bytes = guard_alloc(n_bytes, f->c.guard);
}

/* ---- the answer ------------------------------------------------------------------------------------- */

/* Sums over a query and a key. */
struct product {
    double sum, of_magnitudes, of_k; /* q * k, |q * k|, |k| */
};

static struct product multiply(const double *q, const double *k, uint32_t n)
{
    struct product p = {0, 0, 0};
    for (uint32_t i = 0; i < n; i++) {
        p.sum += q[i] * k[i];
        p.of_magnitudes += fabs(q[i] * k[i]);
        p.of_k += fabs(k[i]);
    }
    return p;
}

/* A score; how wrong it may be is noted. */
static double score_of(const struct fold_data *f, uint32_t row, const double *q, double largest_q, uint32_t t,
                       struct fold_answer *answer)
{
    const uint32_t d = f->c.head_dim;
    const double distance = (double)(f->position[row] - first_token(&f->c) - t);
    const struct product p = multiply(q, f->k + (size_t)t * d, d);
    double x = p.sum * f->scale, error = (2 + sqrt(d) / 2) * 0x1p-24 * p.of_magnitudes * f->scale;
    if (f->cap > 0) {
        x = f->cap * tanh(x / f->cap);
        error += f->cap * 0x1p-21;
    }
    x -= f->slope[row] * distance;
    error += 0x1p-23 * (fabs(x) + fabs(f->slope[row] * distance));
    answer->score_error = fmax(answer->score_error, error);
    answer->query_error = fmax(answer->query_error, p.of_k * largest_q * 0x1p-13 * f->scale);
    answer->split_error = fmax(answer->split_error, 0x1p-14 * p.of_magnitudes * f->scale);
    return x;
}

/* The scores of a row become weights, not yet divided by their sum, which is returned. */
static double weigh(const struct fold_data *f, uint32_t row, double *weights, struct fold_answer *answer)
{
    const struct fold_case *c = &f->c;
    double *q = malloc(c->head_dim * sizeof *q), largest = 0, max = -INFINITY, sum = 0;
    for (uint32_t d = 0; d < c->head_dim; d++) {
        q[d] = dtype_load(c->io_dtype, f->q, (size_t)row * c->head_dim + d);
        largest = fmax(largest, fabs(q[d]));
    }
    for (uint32_t t = 0; t < c->n_tokens; t++) {
        const int visible = is_visible(f, row, first_token(c) + t);
        weights[t] = visible ? score_of(f, row, q, largest, t, answer) : -INFINITY;
        max = fmax(max, weights[t]);
    }
    for (uint32_t t = 0; t < c->n_tokens; t++)
        sum += weights[t] = weights[t] > -INFINITY ? exp(weights[t] - max) : 0;
    answer->lse = max + log(sum);
    free(q);
    return sum;
}

static void answer_row(struct fold_data *f, uint32_t row, double *weights)
{
    const struct fold_case *c = &f->c;
    struct fold_answer *answer = &f->answers[row];
    double *out = f->out + (size_t)row * c->v_head_dim, block_largest = 0;
    const double sum = weigh(f, row, weights, answer);
    answer->spread = calloc(c->v_head_dim, sizeof *answer->spread);
    for (uint32_t t = 0; t < c->n_tokens; t++) {
        if (t % cattn_block_tokens(&f->pool.layout) == 0)
            block_largest = 0;
        const double before = block_largest;
        for (uint32_t d = 0; weights[t] > 0 && d < c->v_head_dim; d++) {
            const double x = weights[t] / sum * f->v[(size_t)t * c->v_head_dim + d];
            out[d] += x;
            answer->spread[d] += fabs(x);
            block_largest = fmax(block_largest, fabs(x));
        }
        answer->largest += block_largest - before;
    }
}

static void answer_rows(struct fold_data *f)
{
    double *weights = malloc(f->c.n_tokens * sizeof *weights);
    for (uint32_t r = 0; r < f->c.n_rows; r++)
        answer_row(f, r, weights);
    free(weights);
}

/* ---- opening ---------------------------------------------------------------------------------------- */

void fold_open(struct fold_data *f, const struct fold_case *c)
{
    struct rng rng;
    rng_init(&rng, rng_mix(c->number + 1));
    *f = (struct fold_data){.c = *c};
    f->shape = fold_shape(c);
    open_pool(f);
    f->slots = malloc(f->shape.n_slots * sizeof *f->slots);
    for (uint32_t i = 0; i < f->shape.n_slots; i++)
        f->slots[i] = i;
    rng_shuffle(&rng, f->slots, f->shape.n_slots);
    f->position = calloc(c->n_rows, sizeof *f->position);
    f->slope = calloc(c->n_rows, sizeof *f->slope);
    f->q = calloc((size_t)c->n_rows * c->head_dim, dtype_size(c->io_dtype));
    f->k = calloc((size_t)c->n_tokens * c->head_dim, sizeof *f->k);
    f->v = calloc((size_t)c->n_tokens * c->v_head_dim, sizeof *f->v);
    f->answers = calloc(c->n_rows, sizeof *f->answers);
    f->out = calloc((size_t)c->n_rows * c->v_head_dim, sizeof *f->out);
    draw_positions(f, &rng);
    draw_variant(f, &rng);
    draw_queries(f, &rng);
    fill_pool(f, &rng);
    spoil_hidden_granules(f);
    guard_lock(f->pool.bytes, f->pool.n_bytes, c->guard, 1);
    answer_rows(f);
}

void fold_close(struct fold_data *f)
{
    guard_free(f->pool.bytes, f->pool.n_bytes, f->c.guard);
    for (uint32_t r = 0; r < f->c.n_rows; r++)
        free(f->answers[r].spread);
    free(f->slots), free(f->position), free(f->slope), free(f->q), free(f->k), free(f->v), free(f->answers),
        free(f->out);
}

/* ---- running ---------------------------------------------------------------------------------------- */

size_t fold_state_floats(const struct fold_data *f)
{
    return cattn_state_floats(f->pool.layout.v_pad);
}

enum { NO_ROW = UINT32_MAX };

/* The rows as a kernel sees them, each buffer between guard pages: those of the plan, and others that it must not
 * touch. */
struct table {
    struct cattn_rows rows;
    uint32_t n;         /* of all rows */
    uint32_t *row;      /* [n]: of the case, or NO_ROW */
    uint64_t *position; /* [n] */
    float *slope;       /* [n] */
    unsigned char *q;   /* [n][q_bytes] */
    float *states;      /* [n][state_stride] */
    void *scratch;
    size_t scratch_bytes;
};

static void table_open(struct table *t, const struct fold_data *f, const struct cattn_kernel *kernel,
                       const struct fold_plan *plan)
{
    const struct fold_case *c = &f->c;
    const struct cattn_layout *layout = &f->pool.layout;
    const size_t q_bytes = kernel->query_bytes(layout), stride = fold_state_floats(f);
    *t = (struct table){.n = plan->n + 3};
    t->scratch_bytes = kernel->scratch_bytes ? (kernel->scratch_bytes(layout) + 63) / 64 * 64 : 0;
    t->row = malloc(t->n * sizeof *t->row);
    t->position = guard_alloc(t->n * sizeof *t->position, c->guard);
    t->slope = guard_alloc(t->n * sizeof *t->slope, c->guard);
    t->q = guard_alloc(t->n * q_bytes, c->guard);
    t->states = guard_alloc(t->n * stride * sizeof(float), c->guard);
    t->scratch = guard_alloc(t->scratch_bytes, c->guard);
    for (uint32_t i = 0; i < t->n; i++) /* rows of others: before all, behind all, in the midst */
        t->row[i] = i == 0 || i + 1 == t->n || i == t->n / 2 ? NO_ROW : plan->order[i - 1 - (i > t->n / 2)];
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->row[i] == NO_ROW)
            continue;
        const uint32_t r = t->row[i];
        t->position[i] = f->position[r];
        t->slope[i] = (float)(f->slope[r] * LOG2_E);
        kernel->load_query(layout, f->q, c->io_dtype, (size_t)r * c->head_dim, t->q + i * q_bytes);
        cattn_state_clear(t->states + i * stride, layout->v_pad);
    }
    t->rows = (struct cattn_rows){.layout = layout,
                                  .blocks = f->pool.bytes,
                                  .scoring = f->scoring,
                                  .position = t->position,
                                  .slope = c->variant == FOLD_ALIBI || c->variant == FOLD_ALL ? t->slope : NULL,
                                  .q = t->q,
                                  .q_bytes = q_bytes,
                                  .states = t->states,
                                  .state_stride = stride,
                                  .scratch = t->scratch_bytes ? t->scratch : NULL};
    guard_lock(t->q, t->n * q_bytes, c->guard, 1);
}

static void table_close(struct table *t, const struct fold_data *f)
{
    const enum guard_side guard = f->c.guard;
    guard_free(t->position, t->n * sizeof *t->position, guard);
    guard_free(t->slope, t->n * sizeof *t->slope, guard);
    guard_free(t->q, t->n * t->rows.q_bytes, guard);
    guard_free(t->states, t->n * t->rows.state_stride * sizeof(float), guard);
    guard_free(t->scratch, t->scratch_bytes, guard);
    free(t->row);
}

/* The rows of a group, ascending, through n chunks: lists of exact length, with nothing behind them. */
static void fold_group(const struct fold_data *f, const struct cattn_kernel *kernel, const struct table *t,
                       const uint32_t *group_of, uint32_t group, uint32_t chunk, uint32_t n)
{
    const struct fold_case *c = &f->c;
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < t->n; i++)
        n_rows += t->row[i] != NO_ROW && group_of[i] == group;
    if (!n_rows)
        return;
    uint32_t *rows = guard_alloc(n_rows * sizeof *rows, c->guard), *slots = guard_alloc(n * sizeof *slots, c->guard);
    for (uint32_t i = 0, j = 0; i < t->n; i++)
        if (t->row[i] != NO_ROW && group_of[i] == group)
            rows[j++] = i;
    memcpy(slots, f->slots + chunk, n * sizeof *slots);
    const unsigned char *next[CATTN_AHEAD] = {NULL}; /* some, the last ones spare and full of NaN */
    for (uint32_t i = 0; i < CATTN_AHEAD && i < c->number % 6 && chunk + n + i < f->shape.n_slots; i++)
        next[i] = f->pool.bytes + f->slots[chunk + n + i] * f->pool.layout.block_bytes;
    kernel->fold(&t->rows, slots, n, first_token(c) + (uint64_t)chunk * c->chunk_tokens, rows, n_rows, next);
    guard_free(rows, n_rows * sizeof *rows, c->guard);
    guard_free(slots, n * sizeof *slots, c->guard);
}

static void fold_all(const struct fold_data *f, const struct cattn_kernel *kernel, const struct table *t,
                     struct rng *rng)
{
    enum { MOST_GROUPS = 4 };
    uint32_t *group_of = calloc(t->n, sizeof *group_of);
    for (uint32_t chunk = 0, n; chunk < f->c.n_chunks; chunk += n) {
        n = rng ? (uint32_t)rng_between(rng, 1, f->c.n_chunks) : f->c.chunks_per_fold;
        n = (uint32_t)least(n, f->c.n_chunks - chunk);
        const uint32_t n_groups = rng ? (uint32_t)rng_between(rng, 1, MOST_GROUPS) : 1;
        for (uint32_t i = 0; rng && i < t->n; i++)
            group_of[i] = (uint32_t)rng_below(rng, n_groups);
        for (uint32_t group = 0; group < n_groups; group++)
            fold_group(f, kernel, t, group_of, group, chunk, n);
    }
    free(group_of);
}

const char *fold_run(const struct fold_data *f, const struct cattn_kernel *kernel, const struct fold_plan *plan,
                     float *states)
{
    struct table t;
    const char *wrong = NULL;
    table_open(&t, f, kernel, plan);
    const uint64_t saved = cattn_enter_arithmetic();
    if (kernel->enter)
        kernel->enter(t.rows.scratch);
    fold_all(f, kernel, &t, plan->rng);
    if (kernel->leave)
        kernel->leave(t.rows.scratch);
    cattn_leave_arithmetic(saved);
    const size_t stride = t.rows.state_stride, bytes = stride * sizeof(float);
    for (uint32_t i = 0; i < t.n; i++) {
        const float *state = t.states + i * stride;
        if (t.row[i] != NO_ROW)
            memcpy(states + t.row[i] * stride, state, bytes);
        else
            for (size_t j = 0; j < bytes; j++)
                if (((const unsigned char *)state)[j] != 0xff)
                    wrong = "a row that was not listed was touched";
    }
    table_close(&t, f);
    return wrong;
}

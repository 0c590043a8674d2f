#include "engine.h"
#include "bounds.h"
#include "dtype.h"
#include "oracle.h"
#include "variant.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void (*engine_watch)(int in_layer);
void (*engine_adjust)(struct cattn_config *config);

enum tensor { TENSOR_Q = 1, TENSOR_K, TENSOR_V };

/* ---- the model -------------------------------------------------------------------------------------- */

uint64_t toy_root(uint64_t space)
{
    return rng_mix(space + 12345);
}

uint64_t toy_extend(uint64_t hash, int32_t token)
{
    return rng_mix(hash * 31 + (uint32_t)token + 1);
}

/* One head of one tensor of a token.  A few keys are long, so that the running maximum moves by leaps. */
static void model(double *x, size_t n, enum tensor tensor, uint64_t hash, int32_t token, uint32_t layer, uint32_t head,
                  double gain)
{
    uint64_t state = rng_mix(hash ^ ((uint64_t)layer << 40 | (uint64_t)head << 8 | tensor)), bits = 0;
    const int bad_kv = token == TOKEN_NAN || token == TOKEN_INF;
    if (tensor == TENSOR_Q ? token == TOKEN_NAN_QUERY : bad_kv) {
        for (size_t i = 0; i < n; i++)
            x[i] = token == TOKEN_INF ? INFINITY : nan("0xfffffffffffff"); /* all bits set: nothing may round it on */
        return;
    }
    if (tensor == TENSOR_K && state % 16 == 0)
        gain *= 4;
    for (size_t i = 0; i < n; i++) {
        if (i % 4 == 0)
            bits = rng_mix(state += 0x9e3779b97f4a7c15u);
        x[i] = gain * ((double)(bits >> 16 * (i % 4) & 0xffff) / 32768 - 1);
    }
}

static uint32_t v_dim(const struct engine *e)
{
    return e->config.v_head_dim;
}

/* ---- engine, sequences ------------------------------------------------------------------------------ */

struct cattn_config engine_config(uint64_t max_tokens)
{
    return (struct cattn_config){.size = sizeof(struct cattn_config),
                                 .n_layers = 1,
                                 .n_heads = 2,
                                 .n_kv_heads = 1,
                                 .head_dim = 16,
                                 .chunk_tokens = 32,
                                 .max_tokens = max_tokens,
                                 .n_threads = 1};
}

void engine_init(struct engine *e, const struct cattn_config *config, uint64_t salt)
{
    memset(e, 0, sizeof *e);
    e->config = *config;
    if (engine_adjust)
        engine_adjust(&e->config);
    rng_init(&e->rng, salt);
    e->gain = 3;
    e->nth = 3;
    int status = cattn_cache_create(&e->config, &e->cache);
    CHECK(status == CATTN_OK, "create: %s", cattn_strerror(status));
    ck_assert_int_eq(cattn_step_create(e->cache, &e->step), CATTN_OK);
    e->kernel = engine_info(e).kernel;
    if (e->config.v_head_dim == 0)
        e->config.v_head_dim = e->config.head_dim;
    if (e->config.chunk_tokens == 0)
        e->config.chunk_tokens = 64;
}

static void forget_step(struct engine *e)
{
    guard_free(e->q.data, e->q.bytes, e->guard);
    guard_free(e->k.data, e->k.bytes, e->guard);
    guard_free(e->v.data, e->v.bytes, e->guard);
    guard_free(e->out.data, e->out.bytes, e->guard);
    guard_free(e->lse.data, e->lse.bytes, e->guard);
    memset(&e->q, 0, sizeof e->q);
    e->k = e->v = e->out = e->lse = e->q;
    free(e->items);
    free(e->toys);
    e->items = NULL;
    e->toys = NULL;
    e->n_items = 0;
    e->n_rows = 0;
}

void engine_free(struct engine *e)
{
    forget_step(e);
    cattn_step_destroy(e->step);
    cattn_cache_destroy(e->cache);
}

static void toy_append(struct toy *toy, const int32_t *tokens, size_t n)
{
    size_t end = toy->length + toy->pending;
    if (end + n > toy->capacity) {
        toy->capacity = 2 * (end + n);
        toy->tokens = realloc(toy->tokens, toy->capacity * sizeof *toy->tokens);
        toy->hashes = realloc(toy->hashes, toy->capacity * sizeof *toy->hashes);
        ck_assert(toy->tokens && toy->hashes);
    }
    for (size_t i = end; i < end + n; i++) {
        toy->tokens[i] = tokens[i - end];
        toy->hashes[i] = toy_extend(i ? toy->hashes[i - 1] : toy_root(toy->space), toy->tokens[i]);
    }
    toy->pending += n;
}

static int is_image(int32_t token)
{
    return token >= TOKEN_IMAGE && token < TOKEN_IMAGE + 65536;
}

struct given given_tokens(const int32_t *tokens, size_t n)
{
    struct given x = {.tokens = calloc(n + 1, sizeof *x.tokens),
                      .images = calloc(n + 1, sizeof *x.images),
                      .extras = calloc(n + 1, sizeof *x.extras),
                      .ext = {.size = sizeof x.ext}};
    ck_assert(x.tokens && x.images && x.extras);
    for (size_t i = 0; i < n; i++) {
        x.tokens[i] = is_image(tokens[i]) ? TOKEN_PLACEHOLDER : tokens[i];
        x.images[i] = tokens[i] - TOKEN_IMAGE;
        if (is_image(tokens[i]) && i && tokens[i] == tokens[i - 1])
            x.extras[x.ext.n_extras - 1].n++;
        else if (is_image(tokens[i]))
            x.extras[x.ext.n_extras++] = (struct cattn_extra){i, 1, &x.images[i], sizeof *x.images};
    }
    x.ext.extras = x.extras;
    return x;
}

void given_free(struct given *x)
{
    free(x->tokens);
    free(x->images);
    free(x->extras);
}

int engine_try_open(struct engine *e, struct toy *toy, uint64_t space, const int32_t *tokens, size_t n)
{
    size_t n_cached = SIZE_MAX;
    memset(toy, 0, sizeof *toy);
    toy->space = e->one_model ? 0 : space;
    struct given x = given_tokens(tokens, n);
    int status = cattn_seq_open_ext(e->cache, &space, space ? sizeof space : 0, x.tokens, n,
                                    x.ext.n_extras ? &x.ext : NULL, &toy->seq, &n_cached);
    given_free(&x);
    if (status != CATTN_OK) {
        ck_assert(toy->seq == 0 && n_cached == SIZE_MAX);
        return status;
    }
    CHECK(n_cached == 0 || n_cached < n, "%zu of %zu tokens cached", n_cached, n);
    ck_assert(toy->seq != 0);
    toy_append(toy, tokens, n_cached);
    toy->length = n_cached;
    toy->pending = 0;
    return CATTN_OK;
}

size_t engine_open(struct engine *e, struct toy *toy, uint64_t space, const int32_t *tokens, size_t n)
{
    int status = engine_try_open(e, toy, space, tokens, n);
    CHECK(status == CATTN_OK, "open: %s", cattn_strerror(status));
    return toy->length;
}

int engine_try_fork(struct engine *e, const struct toy *toy, struct toy *forked)
{
    memset(forked, 0, sizeof *forked);
    int status = cattn_seq_fork(e->cache, toy->seq, &forked->seq);
    if (status != CATTN_OK) {
        ck_assert(forked->seq == 0);
        return status;
    }
    ck_assert(forked->seq != 0 && forked->seq != toy->seq);
    forked->space = toy->space;
    toy_append(forked, toy->tokens, toy->length);
    forked->length = toy->length;
    forked->pending = 0;
    return CATTN_OK;
}

void engine_fork(struct engine *e, const struct toy *toy, struct toy *forked)
{
    ck_assert_int_eq(engine_try_fork(e, toy, forked), CATTN_OK);
}

void engine_truncate(struct engine *e, struct toy *toy, size_t n)
{
    ck_assert_int_eq(cattn_seq_truncate(e->cache, toy->seq, n), CATTN_OK);
    toy->length = n;
}

void toy_free(struct toy *toy)
{
    free(toy->tokens);
    free(toy->hashes);
    memset(toy, 0, sizeof *toy);
}

void engine_close(struct engine *e, struct toy *toy)
{
    ck_assert_int_eq(cattn_seq_close(e->cache, toy->seq), CATTN_OK);
    toy_free(toy);
}

struct cattn_stats engine_stats(const struct engine *e)
{
    struct cattn_stats stats = {.size = sizeof stats};
    ck_assert_int_eq(cattn_cache_stats(e->cache, &stats), CATTN_OK);
    return stats;
}

struct cattn_info engine_info(const struct engine *e)
{
    struct cattn_info info = {.size = sizeof info};
    ck_assert_int_eq(cattn_cache_info(e->cache, &info), CATTN_OK);
    return info;
}

void engine_check(struct engine *e, const struct toy *toys, size_t n_toys)
{
    int status = cattn_cache_selfcheck(e->cache);
    CHECK(status == CATTN_OK, "selfcheck: %s", cattn_strerror(status));
    struct cattn_stats stats = engine_stats(e);
    CHECK(stats.used_slots + stats.free_slots + stats.evictable_slots == stats.n_slots, "%d + %d + %d of %d slots",
          (int)stats.used_slots, (int)stats.free_slots, (int)stats.evictable_slots, (int)stats.n_slots);
    ck_assert(stats.peak_used_slots >= stats.used_slots);
    for (size_t i = 0; i < n_toys; i++) {
        size_t length = SIZE_MAX, again = SIZE_MAX;
        const struct toy *toy = &toys[i];
        int32_t *tokens = calloc(toy->length + 1, sizeof *tokens);
        tokens[toy->length] = 77;
        ck_assert_int_eq(cattn_seq_length(e->cache, toy->seq, &length), CATTN_OK);
        CHECK(length == toy->length, "sequence %zu holds %zu tokens, not %zu", i, length, toy->length);
        ck_assert_int_eq(cattn_seq_tokens(e->cache, toy->seq, tokens, toy->length, &again), CATTN_OK);
        CHECK(again == length, "%zu, %zu", again, length);
        struct given x = given_tokens(toy->tokens, length);
        CHECK(length == 0 || !memcmp(tokens, x.tokens, length * sizeof *tokens), "tokens of sequence %zu", i);
        given_free(&x);
        ck_assert_int_eq(tokens[toy->length], 77);
        free(tokens);
    }
}

/* ---- steps ------------------------------------------------------------------------------------------ */

static void check_items(const struct engine *e, const struct engine_item *items)
{
    uint32_t first_row = 0;
    for (size_t i = 0; i < e->n_items; i++) {
        const struct cattn_item *x = &e->items[i];
        uint32_t least = x->min_rows < x->n_tokens ? x->min_rows : x->n_tokens;
        CHECK(x->first_row == first_row, "item %zu: first row %u, not %u", i, x->first_row, first_row);
        CHECK(x->n_rows >= (least ? least : 1) && x->n_rows <= x->n_tokens, "item %zu: %u rows", i, x->n_rows);
        CHECK(x->position == items[i].toy->length + x->n_tokens - x->n_rows, "item %zu: position %llu", i,
              (unsigned long long)x->position);
        first_row += x->n_rows;
    }
}

int engine_begin(struct engine *e, const struct engine_item *items, size_t n_items)
{
    struct cattn_item *own = calloc(n_items + 1, sizeof *own);
    struct given *given = calloc(n_items + 1, sizeof *given);
    struct cattn_info info = engine_info(e);
    for (size_t i = 0; i < n_items; i++) {
        const struct engine_item *x = &items[i];
        bool readable = x->tokens && x->n_tokens <= info.n_slots * info.chunk_tokens; /* more may not be there */
        given[i] = given_tokens(x->tokens, readable ? x->n_tokens : 0);
        own[i] = (struct cattn_item){.seq = x->toy->seq,
                                     .tokens = given[i].ext.n_extras ? given[i].tokens : x->tokens,
                                     .ext = given[i].ext.n_extras ? &given[i].ext : NULL,
                                     .n_tokens = x->n_tokens,
                                     .min_rows = x->min_rows,
                                     .first_row = 12345,
                                     .n_rows = 12345,
                                     .position = 12345};
    }
    uint64_t misses = engine_stats(e).misses;
    int status = cattn_step_begin(e->step, own, n_items);
    for (size_t i = 0; i < n_items; i++)
        given_free(&given[i]);
    free(given);
    if (status != CATTN_OK) {
        for (size_t i = 0; i < n_items; i++)
            ck_assert(own[i].first_row == 12345 && own[i].n_rows == 12345 && own[i].position == 12345);
        free(own);
        return status;
    }
    e->items = own;
    e->n_items = n_items;
    e->toys = calloc(n_items + 1, sizeof *e->toys);
    e->n_computed = engine_stats(e).misses - misses;
    check_items(e, items);
    for (size_t i = 0; i < n_items; i++) {
        e->toys[i] = items[i].toy;
        toy_append(items[i].toy, items[i].tokens, items[i].n_tokens);
        e->n_rows += own[i].n_rows;
    }
    CHECK(e->n_computed <= e->n_rows, "%llu tokens computed in %u rows", (unsigned long long)e->n_computed, e->n_rows);
    return CATTN_OK;
}

static void buffer_fit(struct engine *e, struct buffer *b, uint32_t dtype, size_t heads, size_t dim, size_t pad)
{
    b->head = dim + pad;
    b->row = heads * b->head + 2 * pad;
    /* No padding after the last value: it must touch the guard page. */
    size_t bytes = e->n_rows ? ((e->n_rows - 1) * b->row + (heads - 1) * b->head + dim) * dtype_size(dtype) : 0;
    if (!b->data || b->bytes != bytes) {
        guard_free(b->data, b->bytes, e->guard);
        b->bytes = bytes;
        b->data = guard_alloc(bytes, e->guard);
    }
    guard_lock(b->data, b->bytes, e->guard, 0);
    memset(b->data, 0xff, b->bytes);
}

static void load(struct engine *e, struct buffer *b, enum tensor tensor, uint32_t layer)
{
    uint32_t heads = tensor == TENSOR_Q ? e->config.n_heads : e->config.n_kv_heads;
    uint32_t dim = tensor == TENSOR_V ? v_dim(e) : e->config.head_dim;
    double *x = malloc(dim * sizeof *x);
    buffer_fit(e, b, e->config.io_dtype, heads, dim, e->pad);
    for (size_t i = 0; i < e->n_items; i++) {
        const struct cattn_item *item = &e->items[i];
        /* K and V of rows that were matched are dropped: NaN says so.  With one item it is known which they are. */
        uint32_t dropped = e->n_items == 1 && tensor != TENSOR_Q ? item->n_rows - (uint32_t)e->n_computed : 0;
        for (uint32_t j = dropped; j < item->n_rows; j++)
            for (uint32_t h = 0; h < heads; h++) {
                size_t at = (item->first_row + j) * b->row + h * b->head;
                uint64_t position = item->position + j;
                model(x, dim, tensor, e->toys[i]->hashes[position], e->toys[i]->tokens[position], layer, h,
                      tensor == TENSOR_Q ? e->gain : 1);
                for (uint32_t d = 0; d < dim; d++)
                    dtype_store(e->config.io_dtype, b->data, at + d, x[d]);
            }
    }
    guard_lock(b->data, b->bytes, e->guard, 1);
    free(x);
}

void engine_load(struct engine *e, uint32_t layer, struct cattn_io *io)
{
    load(e, &e->q, TENSOR_Q, layer);
    load(e, &e->k, TENSOR_K, layer);
    load(e, &e->v, TENSOR_V, layer);
    buffer_fit(e, &e->out, e->config.io_dtype, e->config.n_heads, v_dim(e), e->pad);
    buffer_fit(e, &e->lse, CATTN_F32, e->config.n_heads, 1, 0);
    *io = (struct cattn_io){
        .size = sizeof *io, .q = e->q.data, .k = e->k.data, .v = e->v.data, .out = e->out.data, .lse = e->lse.data};
    io->variant = e->variant;
    if (e->pad) {
        io->q_row = e->q.row, io->q_head = e->q.head;
        io->k_row = e->k.row, io->k_head = e->k.head;
        io->v_row = e->v.row, io->v_head = e->v.head;
        io->out_row = e->out.row, io->out_head = e->out.head;
    }
}

/* ---- the forms of a layer --------------------------------------------------------------------------- */

typedef int part_call(cattn_step *, uint32_t, const struct cattn_io *, uint32_t, uint32_t);

struct share {
    pthread_t thread;
    part_call *call;
    cattn_step *step;
    uint32_t layer, ith, nth;
    const struct cattn_io *io;
    int status;
};

static void *run_share(void *argument)
{
    struct share *s = argument;
    s->status = s->call(s->step, s->layer, s->io, s->ith, s->nth);
    return NULL;
}

static void run_shares(struct engine *e, part_call *call, uint32_t layer, const struct cattn_io *io, int threads)
{
    uint32_t *order = malloc(e->nth * sizeof *order);
    struct share *shares = calloc(e->nth, sizeof *shares);
    for (uint32_t i = 0; i < e->nth; i++)
        order[i] = i;
    rng_shuffle(&e->rng, order, e->nth);
    for (uint32_t i = 0; i < e->nth; i++) {
        shares[i] =
            (struct share){.call = call, .step = e->step, .layer = layer, .ith = order[i], .nth = e->nth, .io = io};
        if (threads)
            ck_assert_int_eq(pthread_create(&shares[i].thread, NULL, run_share, &shares[i]), 0);
        else
            run_share(&shares[i]);
    }
    for (uint32_t i = 0; i < e->nth; i++) {
        if (threads)
            pthread_join(shares[i].thread, NULL);
        CHECK(shares[i].status == CATTN_OK, "share %u of %u: %s", order[i], e->nth, cattn_strerror(shares[i].status));
    }
    free(order);
    free(shares);
}

/* What was put on a device is done, and its buffers are the engine's again. */
static void sync(struct engine *e)
{
    int status = cattn_sync(e->cache);
    CHECK(status == CATTN_OK, "sync: %s", cattn_strerror(status));
}

static void write_nan(struct engine *e, uint32_t layer, const struct cattn_io *io)
{
    struct cattn_io bad = *io;
    void *nan = guard_alloc(e->k.bytes > e->v.bytes ? e->k.bytes : e->v.bytes, GUARD_NONE);
    bad.k = bad.v = nan;
    ck_assert_int_eq(cattn_step_write(e->step, layer, &bad), CATTN_OK);
    sync(e);
    guard_free(nan, 0, GUARD_NONE);
}

static void run_form(struct engine *e, uint32_t layer, const struct cattn_io *io)
{
    struct cattn_io stored = *io;
    stored.k = stored.v = NULL;
    switch (e->form) {
    case FORM_REWRITE:
        ck_assert_int_eq(cattn_step_attend(e->step, layer, io), CATTN_OK);
        ck_assert_int_eq(cattn_step_attend(e->step, layer, &stored), CATTN_OK);
        break;
    case FORM_WRITE_ATTEND:
        ck_assert_int_eq(cattn_step_write(e->step, layer, io), CATTN_OK);
        ck_assert_int_eq(cattn_step_attend(e->step, layer, &stored), CATTN_OK);
        break;
    case FORM_PARTS: run_shares(e, cattn_step_attend_part, layer, io, 0); break;
    case FORM_WRITE_PARTS:
        run_shares(e, cattn_step_write_part, layer, io, 0);
        run_shares(e, cattn_step_attend_part, layer, &stored, 0);
        break;
    case FORM_WRITE_ATTEND_PARTS:
        ck_assert_int_eq(cattn_step_write(e->step, layer, io), CATTN_OK);
        run_shares(e, cattn_step_attend_part, layer, &stored, 0);
        break;
    case FORM_WRITE_PARTS_ATTEND:
        run_shares(e, cattn_step_write_part, layer, io, 0);
        ck_assert_int_eq(cattn_step_attend(e->step, layer, &stored), CATTN_OK);
        break;
    case FORM_THREADS: run_shares(e, cattn_step_attend_part, layer, io, 1); break;
    case FORM_WRITE_THREADS:
        run_shares(e, cattn_step_write_part, layer, io, 1);
        run_shares(e, cattn_step_attend_part, layer, &stored, 1);
        break;
    case FORM_WRITE: ck_assert_int_eq(cattn_step_write(e->step, layer, io), CATTN_OK); break;
    default: ck_assert_int_eq(cattn_step_attend(e->step, layer, io), CATTN_OK);
    }
}

/* ---- outputs ---------------------------------------------------------------------------------------- */

struct tokens {
    size_t n;
    double *k, *v;
    double k_norm, v_max; /* the largest norm of a key, the largest |v| */
};

static void store_vector(double *x, size_t n, uint32_t io_dtype, uint32_t kv_dtype)
{
    for (size_t i = 0; i < n; i++)
        x[i] = dtype_round(io_dtype, x[i]);
    dtype_round_vector(kv_dtype, x, n);
}

/* K and V of the first n tokens of a toy for one head, as the cache must have stored them. */
static void stored_tokens(const struct engine *e, const struct toy *toy, size_t n, uint32_t layer, uint32_t head,
                          struct tokens *t)
{
    uint32_t d = e->config.head_dim, dv = v_dim(e), io = e->config.io_dtype, kv = e->config.kv_dtype;
    *t = (struct tokens){.n = n, .k = malloc(n * d * sizeof(double)), .v = malloc(n * dv * sizeof(double))};
    for (size_t p = 0; p < n; p++) {
        double norm = 0;
        model(t->k + p * d, d, TENSOR_K, toy->hashes[p], toy->tokens[p], layer, head, 1);
        model(t->v + p * dv, dv, TENSOR_V, toy->hashes[p], toy->tokens[p], layer, head, 1);
        store_vector(t->k + p * d, d, io, kv);
        store_vector(t->v + p * dv, dv, io, kv);
        if (!isfinite(t->k[p * d]))
            continue; /* its norm would bound nothing */
        for (size_t i = 0; i < d; i++)
            norm += t->k[p * d + i] * t->k[p * d + i];
        for (size_t i = 0; i < dv; i++)
            t->v_max = fmax(t->v_max, fabs(t->v[p * dv + i]));
        t->k_norm = fmax(t->k_norm, sqrt(norm));
    }
}

/* Whether the query at `position` is not finite, or a token where that row, or one of its item's from `first` on, may
 * be touched by it: in a chunk of which some token is seen.  Tensor cores of a GPU take chunks of 32 by twos. */
static int is_poisoned(const struct engine *e, const struct toy *toy, uint64_t first, uint64_t position)
{
    size_t c = e->config.chunk_tokens, more = c == 32 && !strcmp(e->kernel, "mma") ? c : 0;
    size_t end = (position / c + 1) * c + more, all = toy->length + toy->pending;
    if (toy->tokens[position] == TOKEN_NAN_QUERY)
        return 1;
    for (size_t p = 0; p < end && p < all; p++)
        if (toy->tokens[p] == TOKEN_NAN || toy->tokens[p] == TOKEN_INF)
            for (size_t begin = p / c * c, t = begin < more ? 0 : begin - more; t < begin + c + more; t++)
                if (t >= first || oracle_sees(e->variant, first, t))
                    return 1;
    return 0;
}

static void check_head(const struct engine *e, const struct tokens *t, uint32_t row, uint32_t head, uint64_t position)
{
    uint32_t d = e->config.head_dim, dv = v_dim(e), io = e->config.io_dtype;
    struct row_size size = {.k = t->k_norm, .v = t->v_max, .position = position};
    double *q = malloc(d * sizeof *q), *expected = malloc(dv * sizeof *expected), norm = 0;
    for (size_t i = 0; i < d; i++) {
        q[i] = dtype_load(io, e->q.data, row * e->q.row + head * e->q.head + i);
        norm += q[i] * q[i];
    }
    size.q = sqrt(norm);
    double lse = oracle_row(q, t->k, t->v, position + 1, d, dv, e->variant, head, expected);
    struct bound bound = bound_of_row(e->kernel, io, e->config.kv_dtype, d, e->variant, head, &size);
    double got = dtype_load(CATTN_F32, e->lse.data, row * e->lse.row + head);
    CHECK(fabs(got - lse) <= bound.score + 2e-7 * fabs(lse),
          "lse of row %u (position %llu), head %u: %.9g, not %.9g +- %.2g; %s, %s", row, (unsigned long long)position,
          head, got, lse, bound.score, e->kernel, variant_text(e->variant));
    for (size_t i = 0; i < dv; i++) {
        double value = dtype_load(io, e->out.data, row * e->out.row + head * e->out.head + i);
        double error = bound.out + 1.01 * dtype_epsilon(io) * fabs(expected[i]);
        CHECK(fabs(value - expected[i]) <= error,
              "row %u (position %llu), head %u, dim %zu: %.9g, not %.9g +- %.2g; %s, %s", row,
              (unsigned long long)position, head, i, value, expected[i], error, e->kernel, variant_text(e->variant));
    }
    free(q);
    free(expected);
}

static void check_item(struct engine *e, const struct cattn_item *item, const struct toy *toy, uint32_t layer)
{
    uint32_t group = e->config.n_heads / e->config.n_kv_heads;
    unsigned char *wanted = malloc(item->n_rows);
    memset(wanted, e->check_rows == 0 || e->check_rows >= item->n_rows, item->n_rows);
    for (size_t i = 0; i < e->check_rows; i++)
        wanted[i ? rng_below(&e->rng, item->n_rows) : item->n_rows - 1] = 1;
    for (uint32_t h = 0; h < e->config.n_kv_heads; h++) {
        struct tokens t;
        stored_tokens(e, toy, item->position + item->n_rows, layer, h, &t);
        for (uint32_t j = 0; j < item->n_rows; j++)
            if (wanted[j] && !is_poisoned(e, toy, item->position, item->position + j))
                for (uint32_t g = 0; g < group; g++)
                    check_head(e, &t, item->first_row + j, h * group + g, item->position + j);
        free(t.k);
        free(t.v);
    }
    free(wanted);
}

/* Nothing is written between the values. */
static void check_padding(const struct engine *e)
{
    size_t size = dtype_size(e->config.io_dtype), n = e->out.bytes / size;
    const unsigned char *bytes = e->out.data;
    for (size_t i = 0; i < n; i++) {
        size_t in_row = i % e->out.row;
        if (in_row / e->out.head >= e->config.n_heads || in_row % e->out.head >= v_dim(e))
            for (size_t b = 0; b < size; b++)
                CHECK(bytes[i * size + b] == 0xff, "padding of out at element %zu", i);
    }
}

size_t engine_output_bytes(const struct engine *e)
{
    return e->config.n_heads * (v_dim(e) * dtype_size(e->config.io_dtype) + sizeof(float));
}

void engine_output(const struct engine *e, uint32_t row, unsigned char *bytes)
{
    size_t size = dtype_size(e->config.io_dtype), dim = v_dim(e) * size;
    for (size_t h = 0; h < e->config.n_heads; h++, bytes += dim)
        memcpy(bytes, (char *)e->out.data + (row * e->out.row + h * e->out.head) * size, dim);
    memcpy(bytes, (float *)e->lse.data + row * e->lse.row, e->config.n_heads * sizeof(float));
}

static void note(const struct engine *e, const struct cattn_item *item, struct trace *trace, uint32_t layer)
{
    for (uint32_t j = 0; j < item->n_rows; j++) {
        size_t at = layer * trace->capacity + item->position + j;
        if (item->position + j >= trace->capacity)
            break;
        engine_output(e, item->first_row + j, trace->rows + at * trace->row_bytes);
        trace->known[at] = 1;
    }
}

void engine_layer(struct engine *e, uint32_t layer)
{
    struct cattn_io io;
    engine_load(e, layer, &io);
    if (e->form == FORM_REWRITE)
        write_nan(e, layer, &io);
    if (engine_watch)
        engine_watch(1);
    run_form(e, layer, &io);
    if (engine_watch)
        engine_watch(0);
    sync(e);
    if (e->form == FORM_WRITE)
        return;
    if (e->pad)
        check_padding(e);
    for (size_t i = 0; i < e->n_items; i++) {
        if (!e->unchecked)
            check_item(e, &e->items[i], e->toys[i], layer);
        if (e->toys[i]->trace)
            note(e, &e->items[i], e->toys[i]->trace, layer);
    }
}

void engine_layers(struct engine *e)
{
    for (uint32_t layer = 0; layer < e->config.n_layers; layer++)
        engine_layer(e, layer);
}

static void settle(struct engine *e, int keep)
{
    for (size_t i = 0; i < e->n_items; i++) {
        e->toys[i]->length += keep ? e->toys[i]->pending : 0;
        e->toys[i]->pending = 0;
    }
    forget_step(e);
}

void engine_end(struct engine *e)
{
    int status = cattn_step_end(e->step);
    CHECK(status == CATTN_OK, "end: %s", cattn_strerror(status));
    settle(e, 1);
}

void engine_abort(struct engine *e)
{
    ck_assert_int_eq(cattn_step_abort(e->step), CATTN_OK);
    settle(e, 0);
}

void engine_step(struct engine *e, const struct engine_item *items, size_t n_items)
{
    int status = engine_begin(e, items, n_items);
    CHECK(status == CATTN_OK, "begin: %s", cattn_strerror(status));
    engine_layers(e);
    engine_end(e);
}

void engine_feed(struct engine *e, struct toy *toy, const int32_t *tokens, size_t n)
{
    engine_step(e, &(struct engine_item){.toy = toy, .tokens = tokens, .n_tokens = (uint32_t)n}, 1);
}

void engine_prefill(struct engine *e, struct toy *toy, uint64_t space, const int32_t *tokens, size_t n, size_t piece)
{
    for (size_t at = engine_open(e, toy, space, tokens, n); at < n;) {
        size_t m = piece && piece < n - at ? piece : n - at;
        engine_feed(e, toy, tokens + at, m);
        at += m;
    }
}

void random_tokens(struct rng *rng, int32_t *tokens, size_t n, int32_t vocabulary)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)rng_below(rng, (uint64_t)vocabulary);
}

/* ---- traces ----------------------------------------------------------------------------------------- */

struct trace *trace_new(const struct engine *e, size_t capacity)
{
    struct trace *t = calloc(1, sizeof *t);
    t->capacity = capacity;
    t->row_bytes = engine_output_bytes(e);
    t->n_layers = e->config.n_layers;
    t->rows = calloc(capacity * t->n_layers, t->row_bytes);
    t->known = calloc(capacity * t->n_layers, 1);
    ck_assert(t->rows && t->known);
    return t;
}

void trace_free(struct trace *t)
{
    if (t) {
        free(t->rows);
        free(t->known);
        free(t);
    }
}

size_t trace_known(const struct trace *t)
{
    size_t n = 0;
    for (size_t p = 0; p < t->capacity; p++)
        n += t->known[p];
    return n;
}

size_t trace_differences(const struct trace *a, const struct trace *b)
{
    size_t common = 0, different = 0;
    ck_assert(a->row_bytes == b->row_bytes && a->n_layers == b->n_layers);
    for (size_t layer = 0; layer < a->n_layers; layer++)
        for (size_t p = 0; p < a->capacity && p < b->capacity; p++) {
            size_t i = layer * a->capacity + p, j = layer * b->capacity + p;
            if (!a->known[i] || !b->known[j])
                continue;
            common++;
            different += memcmp(a->rows + i * a->row_bytes, b->rows + j * b->row_bytes, a->row_bytes) != 0;
        }
    ck_assert_uint_gt(common, 0);
    return different;
}

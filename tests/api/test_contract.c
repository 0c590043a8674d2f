/* The numeric contract: scores from very small to very large, and what is not a number in one sequence, which no other
 * sequence gets to see. */
#include "support/bounds.h"
#include "support/dtype.h"
#include "support/engine.h"
#include "support/oracle.h"
#include "support/suite.h"
#include "support/variant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 32 };

/* ---- scores of any size ------------------------------------------------------------------------------- */

enum { N_TOKENS = 2 * 64 + 29, HEADS = 2, HEAD_DIM = 24, V_DIM = 5 };

/* Scores are scale * (offset + something of either sign, hardly ever beyond 5). */
static const struct level {
    float scale;
    double offset;
} levels[] = {{1, 0}, {2e4f, 0}, {2e4f, -6}, {2e4f, 6}, {1e29f, -6}, {1e29f, 0}, {1e-30f, 0}, {1e-30f, -6}};

struct sample {
    double q[N_TOKENS * HEADS * HEAD_DIM], k[N_TOKENS * HEAD_DIM], v[N_TOKENS * V_DIM];
    unsigned char q_io[sizeof(float) * N_TOKENS * HEADS * HEAD_DIM], k_io[sizeof(float) * N_TOKENS * HEAD_DIM];
    unsigned char v_io[sizeof(float) * N_TOKENS * V_DIM], out[sizeof(float) * N_TOKENS * HEADS * V_DIM];
    float lse[N_TOKENS * HEADS];
    double v_least, v_most, k_norm;
};

static void draw(struct rng *rng, uint32_t dtype, double *x, void *io, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = dtype_round(dtype, (double)(rng_next(rng) >> 11) * 0x1p-52 - 1);
        dtype_store(dtype, io, i, x[i]);
    }
}

static void draw_sample(struct sample *s, struct rng *rng, uint32_t io_dtype, uint32_t kv_dtype, double offset)
{
    draw(rng, io_dtype, s->q, s->q_io, N_TOKENS * HEADS * HEAD_DIM);
    draw(rng, io_dtype, s->k, s->k_io, N_TOKENS * HEAD_DIM);
    draw(rng, io_dtype, s->v, s->v_io, N_TOKENS * V_DIM);
    for (size_t i = 0; i < N_TOKENS * HEADS; i++)
        dtype_store(io_dtype, s->q_io, i * HEAD_DIM, s->q[i * HEAD_DIM] = 1);
    s->v_least = s->v_most = s->v[0];
    s->k_norm = 0;
    for (size_t t = 0; t < N_TOKENS; t++) {
        double norm = 0, *k = s->k + t * HEAD_DIM, *v = s->v + t * V_DIM;
        dtype_store(io_dtype, s->k_io, t * HEAD_DIM, k[0] = offset);
        dtype_round_vector(kv_dtype, k, HEAD_DIM);
        dtype_round_vector(kv_dtype, v, V_DIM);
        for (size_t i = 0; i < HEAD_DIM; i++)
            norm += k[i] * k[i];
        s->k_norm = fmax(s->k_norm, sqrt(norm));
        for (size_t i = 0; i < V_DIM; i++) {
            s->v_least = fmin(s->v_least, v[i]);
            s->v_most = fmax(s->v_most, v[i]);
        }
    }
}

static void attend_sample(struct sample *s, const struct cattn_config *config, const struct cattn_variant *variant)
{
    struct cattn_io io = {
        .size = sizeof io, .variant = variant, .q = s->q_io, .k = s->k_io, .v = s->v_io, .out = s->out, .lse = s->lse};
    static const int32_t tokens[N_TOKENS];
    cattn_cache *cache;
    cattn_step *step;
    struct cattn_item item = {.tokens = tokens, .n_tokens = N_TOKENS};
    ck_assert_int_eq(cattn_cache_create(config, &cache), CATTN_OK);
    ck_assert_int_eq(cattn_step_create(cache, &step), CATTN_OK);
    ck_assert_int_eq(cattn_seq_open(cache, NULL, 0, NULL, 0, &item.seq, NULL), CATTN_OK);
    ck_assert_int_eq(cattn_step_begin(step, &item, 1), CATTN_OK);
    ck_assert_int_eq(cattn_step_attend(step, 0, &io), CATTN_OK);
    cattn_cache_destroy(cache);
}

/* The token with the largest score, and by how much. */
static size_t find_top(const struct sample *s, const double *q, size_t row, size_t head,
                       const struct cattn_variant *variant, double *gap)
{
    double largest = -INFINITY, second = -INFINITY;
    size_t top = 0;
    for (size_t t = 0; t <= row; t++) {
        if (!oracle_sees(variant, row, t))
            continue;
        const double x = oracle_score(q, s->k + t * HEAD_DIM, HEAD_DIM, variant, head, row - t);
        second = x > largest ? largest : fmax(second, x);
        top = x > largest ? t : top;
        largest = fmax(largest, x);
    }
    *gap = largest - second;
    return top;
}

/* Always a mix of values and as double precision says, as far as scores are known; and the value of one token where its
 * score is beyond doubt the largest, unchanged although its weight may be a rounded one: so is the sum.  1 in that
 * case. */
static int check_sample_row(const struct sample *s, const struct cattn_config *config, size_t row, size_t head,
                            const struct cattn_variant *variant, const char *text)
{
    const double *q = s->q + (row * HEADS + head) * HEAD_DIM;
    const uint32_t io = config->io_dtype, kv = config->kv_dtype, h = (uint32_t)head;
    double expected[V_DIM], norm = 0, gap;
    for (size_t i = 0; i < HEAD_DIM; i++)
        norm += q[i] * q[i];
    const struct row_size size = {sqrt(norm), s->k_norm, fmax(-s->v_least, s->v_most), row};
    const struct row_size exact = {.v = size.v, .position = row}; /* as if scores were exact */
    const struct bound bound = bound_of_row(config->kernel, io, kv, HEAD_DIM, variant, h, &size);
    const double weight_error = bound_of_row(config->kernel, io, kv, HEAD_DIM, NULL, h, &exact).out;
    const double lse = oracle_row(q, s->k, s->v, row + 1, HEAD_DIM, V_DIM, variant, head, expected);
    const size_t top = find_top(s, q, row, head, variant, &gap);
    const int decided = gap > 2 * bound.score + 40 && !variant->sinks;
    const double got_lse = s->lse[row * HEADS + head];
    CHECK(fabs(got_lse - lse) <= bound.score + 2e-7 * fabs(lse), "%s: lse of row %zu: %g, not %g", text, row, got_lse,
          lse);
    for (size_t i = 0; i < V_DIM; i++) {
        const double got = dtype_load(io, s->out, (row * HEADS + head) * V_DIM + i);
        const double rounding = 1.01 * dtype_epsilon(io) * size.v, v = s->v[top * V_DIM + i];
        const double least = variant->sinks ? fmin(s->v_least, 0) : s->v_least;
        const double most = variant->sinks ? fmax(s->v_most, 0) : s->v_most;
        CHECK(got >= least - weight_error - rounding && got <= most + weight_error + rounding,
              "%s: row %zu: %g, no mix of values from %g to %g", text, row, got, least, most);
        CHECK(fabs(got - expected[i]) <= bound.out + rounding, "%s: row %zu: %g, not %g +- %g", text, row, got,
              expected[i], bound.out + rounding);
        CHECK(!decided || fabs(got - v) <= 1e-6 * size.v + bound.value + rounding,
              "%s: row %zu: %g, not %g of token %zu", text, row, got, v, top);
    }
    return decided;
}

/* A level with one form of the variant; how many rows had a token beyond doubt. */
static size_t check_level(const struct kernel_choice *choice, const struct level *level, unsigned parts, uint64_t salt)
{
    static const uint32_t io_dtypes[] = {CATTN_F32, CATTN_BF16};
    struct sample *s = malloc(sizeof *s);
    struct cattn_variant *variant = variant_new(HEADS);
    size_t n_decided = 0;
    variant_draw(variant, parts, salt, HEADS, CHUNK, N_TOKENS);
    variant->scale = level->scale;
    for (size_t i = 0; i < 2; i++) {
        struct rng rng;
        char text[300];
        struct cattn_config config = engine_config(2 * N_TOKENS);
        config.kernel = choice->kernel;
        config.kv_dtype = choice->kv_dtype;
        config.io_dtype = io_dtypes[i];
        config.n_heads = HEADS;
        config.head_dim = HEAD_DIM;
        config.v_head_dim = V_DIM;
        config.chunk_tokens = salt % 2 ? CHUNK : 2 * CHUNK;
        rng_init(&rng, salt);
        draw_sample(s, &rng, config.io_dtype, config.kv_dtype, level->offset);
        attend_sample(s, &config, variant);
        snprintf(text, sizeof text, "%s, io %s, kv %s, offset %g, %s", config.kernel, dtype_name(config.io_dtype),
                 dtype_name(config.kv_dtype), level->offset, variant_text(variant));
        for (size_t row = 0; row < N_TOKENS; row++)
            for (size_t head = 0; head < HEADS; head++)
                n_decided += (size_t)check_sample_row(s, &config, row, head, variant, text);
    }
    variant_free(variant);
    free(s);
    return n_decided;
}

START_TEST(scores_of_any_size)
{
    static const unsigned parts[] = {0, VARIANT_WINDOW, VARIANT_SOFTCAP, VARIANT_ALIBI, VARIANT_SINKS, VARIANT_ALL};
    struct kernel_choice choice;
    for (unsigned k = 0; kernel_choice(k, &choice); k++) {
        size_t n_decided = 0;
        for (size_t l = 0; l < sizeof levels / sizeof *levels; l++)
            for (size_t p = 0; p < sizeof parts / sizeof *parts; p++)
                n_decided += check_level(&choice, &levels[l], parts[p], 10 * l + p);
        CHECK(n_decided > 1000, "%s, kv %s: the largest score was beyond doubt in %zu rows", choice.kernel,
              dtype_name(choice.kv_dtype), n_decided);
    }
}
END_TEST

/* ---- what is not a number ----------------------------------------------------------------------------- */

/* Sequence 0 is spoilt behind what it has in common with others: 1 shares two chunks with it and comes in the same
 * step, 2 has nothing in common, 3 comes later, when it is cached, and parts from it inside a chunk; 4 is a fork of 3.
 */
enum { N_MEMBERS = 5, SHARED = 2 * CHUNK, PROMPT = 4 * CHUNK + 11, BAD_AT = SHARED + 20, PARTS_AT = SHARED + 10 };
enum { N_DECODED = 3, LENGTH = PROMPT + 2 * N_DECODED };

struct isolation {
    struct cattn_config config;
    const struct cattn_variant *variant;
    enum engine_form form;
};

/* The next tokens of some members in one step. */
static void feed(struct engine *e, struct toy *toys, size_t first, size_t end, int32_t (*texts)[LENGTH], size_t until)
{
    struct engine_item items[N_MEMBERS];
    for (size_t i = first; i < end; i++)
        items[i - first] = (struct engine_item){
            .toy = &toys[i], .tokens = texts[i] + toys[i].length, .n_tokens = (uint32_t)(until - toys[i].length)};
    engine_step(e, items, end - first);
}

/* The traces of all members. */
static void run_members(const struct isolation *x, int32_t bad, struct trace **traces)
{
    struct engine e;
    struct toy toys[N_MEMBERS];
    int32_t texts[N_MEMBERS][LENGTH];
    engine_init(&e, &x->config, 7);
    e.variant = x->variant;
    e.form = x->form;
    e.nth = x->config.n_threads;
    e.unchecked = x->config.kv_dtype == CATTN_I8; /* checked elsewhere */
    random_tokens(&e.rng, texts[0], N_MEMBERS * LENGTH, 1000);
    memcpy(texts[1], texts[0], SHARED * sizeof **texts);
    memcpy(texts[3], texts[0], PARTS_AT * sizeof **texts);
    memcpy(texts[4], texts[3], PROMPT * sizeof **texts);
    texts[0][BAD_AT] = texts[0][BAD_AT + CHUNK] = texts[0][PROMPT - 1] = texts[0][PROMPT + 1] = bad;
    for (size_t i = 0; i < 4; i++) {
        size_t n_cached;
        if (i == 3) {
            feed(&e, toys, 0, 3, texts, SHARED + 5); /* in pieces, the spoilt part together with others */
            feed(&e, toys, 0, 3, texts, PROMPT);
        }
        n_cached = engine_open(&e, &toys[i], 0, texts[i], PROMPT);
        ck_assert(i < 3 ? n_cached == 0 : n_cached == PARTS_AT);
        toys[i].trace = traces[i] = trace_new(&e, LENGTH);
    }
    feed(&e, toys, 3, 4, texts, PROMPT);
    engine_fork(&e, &toys[3], &toys[4]);
    toys[4].trace = traces[4] = trace_new(&e, LENGTH);
    for (size_t n = PROMPT + 1; n <= LENGTH; n += n < PROMPT + N_DECODED ? 1 : N_DECODED)
        feed(&e, toys, 0, N_MEMBERS, texts, n);
    engine_check(&e, toys, N_MEMBERS);
    for (size_t i = 0; i < N_MEMBERS; i++)
        engine_close(&e, &toys[i]);
    engine_free(&e);
}

static int has_nan(const struct trace *trace)
{
    for (size_t p = 0; p < trace->capacity; p++)
        if (trace->known[p] && isnan(dtype_load(CATTN_F32, trace->rows + p * trace->row_bytes, 0)))
            return 1;
    return 0;
}

static void isolate(const struct isolation *x)
{
    static const int32_t bad[] = {TOKEN_NAN, TOKEN_INF, TOKEN_NAN_QUERY};
    struct trace *clean[N_MEMBERS], *got[N_MEMBERS];
    run_members(x, 1000, clean);
    for (size_t b = 0; b < sizeof bad / sizeof *bad; b++) {
        run_members(x, bad[b], got);
        ck_assert(bad[b] == TOKEN_INF ? trace_differences(clean[0], got[0]) > 0 : has_nan(got[0]));
        for (size_t i = 0; i < N_MEMBERS; i++) {
            CHECK(i == 0 || trace_differences(clean[i], got[i]) == 0,
                  "%s, kv %s, %u threads, form %d, bad token %zu: sequence %zu differs; %s", x->config.kernel,
                  dtype_name(x->config.kv_dtype), x->config.n_threads, (int)x->form, b, i, variant_text(x->variant));
            trace_free(got[i]);
        }
    }
    for (size_t i = 0; i < N_MEMBERS; i++)
        trace_free(clean[i]);
}

START_TEST(no_number_stays_in_its_sequence)
{
    static const unsigned parts[] = {0, VARIANT_WINDOW, VARIANT_ALL};
    static const enum engine_form forms[] = {FORM_ATTEND, FORM_WRITE_PARTS, FORM_PARTS};
    struct kernel_choice choice;
    for (unsigned k = 0; kernel_choice(k, &choice); k++)
        for (size_t i = 0; i < 9; i++) {
            struct isolation x = {.config = engine_config(60 * CHUNK), .form = forms[(i + k) % 3]};
            struct cattn_variant *variant = variant_new(6);
            x.config.kernel = choice.kernel;
            x.config.kv_dtype = choice.kv_dtype;
            x.config.n_heads = 6;
            x.config.n_kv_heads = 2;
            x.config.n_threads = (uint32_t)i / 3 + 1;
            variant_draw(variant, parts[i % 3], i, 6, CHUNK, LENGTH);
            if (parts[i % 3]) {
                variant->window = i / 3 == 0 ? 5 : i / 3 == 1 ? CHUNK + 3 : 70;
                variant->n_sink_tokens = (uint32_t)i / 3 * 4;
            }
            x.variant = variant;
            isolate(&x);
            variant_free(variant);
        }
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("contract");
    tcase_add_test(tcase, scores_of_any_size);
    tcase_add_test(tcase, no_number_stays_in_its_sequence);
    return suite_run(tcase);
}

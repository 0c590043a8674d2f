/* The promise of exact kernels: the bits of a sequence's output do not depend on the batch it is in, on what it shares,
 * on what was cached, on how its prefill was split, or on the thread count.
 *
 * Built with EXPECT_DIFFERENCE against a library whose spans are not cut, the program passes only if it sees the
 * promise broken there: that is what says the tests below look hard enough. */
#include "support/dtype.h"
#include "support/engine.h"
#include "support/suite.h"
#include "support/variant.h"

#include <stdlib.h>
#include <string.h>

enum { SPAN = 1024 };

static size_t n_compared, n_broken;

static void same_bits(const struct trace *expected, const struct trace *got, const char *text)
{
    size_t different = trace_differences(expected, got);
    n_compared++;
    n_broken += different != 0;
#ifndef EXPECT_DIFFERENCE
    CHECK(different == 0, "%zu outputs differ: %s", different, text);
#else
    (void)text;
#endif
}

/* Each part of a variant alone, all of them, and none. */
static const unsigned variants[] = {0,
                                    VARIANT_WINDOW,
                                    VARIANT_ALL,
                                    VARIANT_WINDOW | VARIANT_ALIBI,
                                    VARIANT_SOFTCAP,
                                    VARIANT_ALIBI,
                                    VARIANT_SINKS,
                                    VARIANT_SCALE};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

/* Values that matter to the result, so that a mistake would be seen: drawn ones may see no more than a token. */
static struct cattn_variant *variant_of(unsigned parts, uint32_t n_heads, uint32_t chunk, uint32_t window)
{
    struct cattn_variant *variant = variant_new(n_heads);
    variant_draw(variant, parts & ~(unsigned)VARIANT_ALIBI, parts, n_heads, chunk, window);
    if (parts & VARIANT_WINDOW) {
        variant->window = window;
        variant->n_sink_tokens = parts & VARIANT_ALIBI ? 4 : chunk + 1;
    }
    if (parts & VARIANT_SOFTCAP)
        variant->softcap = 3;
    if (parts & VARIANT_ALIBI) {
        static const float slopes[] = {0.01f, -0.003f, 0, 0x1p-5f, 0.1f, -0.01f};
        variant->alibi_slopes = slopes; /* as many as the heads of any test here */
    }
    return variant;
}

typedef void promise_test(const struct cattn_config *config);

#ifdef EXPECT_DIFFERENCE
enum { LONG_VARIANTS = 2, FEW_LONG_VARIANTS = 2 };
#else
enum { LONG_VARIANTS = 4, FEW_LONG_VARIANTS = 2 };
#endif

/* With EXPECT_DIFFERENCE: since n_broken was `before`. */
static void must_be_broken(size_t before, const char *kernel, const struct cattn_variant *variant)
{
#ifdef EXPECT_DIFFERENCE
    CHECK(n_broken > before, "%s: the promise holds; %s", kernel, variant_text(variant));
#else
    (void)before, (void)kernel, (void)variant;
#endif
}

/* Calls the test with every exact kernel and stored data type; one of these is enough to see the promise broken. */
static void for_each_kernel(promise_test *test)
{
    struct kernel_choice choice;
    const char *before = NULL;
    for (unsigned i = 0; kernel_choice(i, &choice); i++) {
        struct cattn_config config = engine_config(0);
#ifdef EXPECT_DIFFERENCE
        if (choice.kernel == before)
            continue;
#endif
        before = choice.kernel;
        if (!strcmp(choice.kernel, "generic") && !test_full() &&
            (choice.kv_dtype == CATTN_F16 || choice.kv_dtype == CATTN_BF16))
            continue; /* it reads all types alike, and slowly */
        config.backend = "cpu";
        config.kernel = choice.kernel;
        config.kv_dtype = choice.kv_dtype;
        if (choice.exact)
            test(&config);
    }
    (void)before;
    ck_assert_uint_gt(n_compared, 0);
}

#ifndef EXPECT_DIFFERENCE

/* ---- batches ---------------------------------------------------------------------------------------- */

enum sharing { SHARE_NOTHING, SHARE_CHUNK, SHARE_ALL };

struct scene {
    uint32_t batch;
    enum sharing sharing;
    int cached;
    uint32_t piece;
    uint32_t threads;
    enum engine_form form;
    const struct cattn_variant *variant;
};

enum { MAX_BATCH = 33, PROMPT = 2 * 32 + 21, DECODED = 14, LENGTH = PROMPT + DECODED };

static void describe(const struct scene *s, const struct cattn_config *c, char *text, size_t size)
{
    static const char *const names[] = {"nothing", "a chunk", "all"};
    snprintf(text, size, "%s, kv %s: batch of %u that shares %s, %s, pieces of %u, %u threads, form %d; %s", c->kernel,
             dtype_name(c->kv_dtype), s->batch, names[s->sharing], s->cached ? "cached" : "cold", s->piece, s->threads,
             (int)s->form, variant_text(s->variant));
}

/* The next tokens of all members in one step: the subject's own, the mates' as long as they need them. */
static void step_together(struct engine *e, struct toy *toys, uint32_t batch, int32_t (*texts)[LENGTH], uint32_t piece,
                          size_t until)
{
    struct engine_item items[MAX_BATCH];
    size_t n_items = 0;
    for (uint32_t i = 0; i < batch; i++) {
        size_t left = until > toys[i].length ? until - toys[i].length : 0;
        uint32_t n = left < piece ? (uint32_t)left : piece;
        if (n)
            items[n_items++] = (struct engine_item){
                .toy = &toys[i], .tokens = texts[i] + toys[i].length, .n_tokens = n, .min_rows = i == 0 ? n : 0};
    }
    engine_step(e, items, n_items);
}

/* Runs the subject, texts[0], among its mates; its place in the batch is the middle. */
static struct trace *run_scene(const struct cattn_config *base, const struct scene *s, const int32_t *subject)
{
    struct cattn_config config = *base;
    config.max_tokens = (s->batch + 1) * (LENGTH + 64);
    config.n_threads = s->threads;
    struct engine e;
    struct toy toys[MAX_BATCH], forerunner;
    int32_t(*texts)[LENGTH] = malloc(MAX_BATCH * sizeof *texts);
    engine_init(&e, &config, s->batch);
    e.unchecked = 1;
    e.nth = s->threads;
    e.variant = s->variant;
    random_tokens(&e.rng, texts[0], MAX_BATCH * LENGTH, 1000);
    memcpy(texts[0], subject, sizeof *texts);
    size_t common = s->sharing == SHARE_NOTHING ? 0 : s->sharing == SHARE_CHUNK ? config.chunk_tokens : PROMPT;
    for (uint32_t i = 1; i < s->batch; i++)
        memcpy(texts[i], subject, common * sizeof **texts);
    if (s->cached) {
        e.form = FORM_WRITE;
        engine_prefill(&e, &forerunner, 0, subject, PROMPT, 0);
        engine_close(&e, &forerunner);
    }
    e.form = s->form;
    for (uint32_t i = 0; i < s->batch; i++)
        engine_open(&e, &toys[i], 0, texts[i], PROMPT);
    toys[0].trace = trace_new(&e, LENGTH);
    while (toys[0].length < PROMPT)
        step_together(&e, toys, s->batch, texts, s->piece, PROMPT);
    while (toys[0].length < LENGTH)
        step_together(&e, toys, s->batch, texts, toys[0].length % 5 ? 1 : 3, LENGTH);
    struct trace *trace = toys[0].trace;
    for (uint32_t i = 0; i < s->batch; i++)
        engine_close(&e, &toys[i]);
    engine_free(&e);
    free(texts);
    return trace;
}

static void check_scene(const struct cattn_config *config, const struct scene *s, const int32_t *subject,
                        const struct trace *reference)
{
    char text[400];
    struct trace *trace = run_scene(config, s, subject);
    describe(s, config, text, sizeof text);
    same_bits(reference, trace, text);
    trace_free(trace);
}

static void batches_of(const struct cattn_config *base, unsigned parts)
{
    static const uint32_t sizes[] = {1, 2, 8, 33}, pieces[] = {1000, 7, 33, 1};
    struct cattn_config config = *base;
    config.n_heads = 6;
    config.n_kv_heads = 2;
    config.head_dim = 20;
    struct rng rng;
    int32_t subject[LENGTH];
    rng_init(&rng, 1 + parts);
    random_tokens(&rng, subject, LENGTH, 1000);
    struct cattn_variant *variant = variant_of(parts, config.n_heads, config.chunk_tokens, 29);
    const struct scene alone = {.batch = 1, .piece = 1000, .threads = 1, .variant = variant};
    struct trace *reference = run_scene(&config, &alone, subject);
    ck_assert_uint_eq(trace_known(reference), LENGTH);
    for (size_t i = 0; i < 4 * 3 * 2 * 4 * 3; i++) {
        struct scene s = {.batch = sizes[i % 4],
                          .sharing = (enum sharing)(i / 4 % 3),
                          .cached = i / 12 % 2,
                          .piece = pieces[i / 24 % 4],
                          .threads = (uint32_t)(i / 96 + 1),
                          .variant = variant};
        s.form = (enum engine_form)rng_below(&rng, FORM_THREADS);
        if (s.piece == 1 && s.batch > 2)
            continue;
        /* The stored type changes the kernel's loads and the variant its scores, not the schedule: a part of the
         * product will do. */
        if (test_full() || rng_chance(&rng, parts ? 6 : config.kv_dtype == CATTN_F32 ? 100 : 25))
            check_scene(&config, &s, subject, reference);
    }
    trace_free(reference);
    variant_free(variant);
}

static void batches(const struct cattn_config *config)
{
    for (size_t v = 0; v < N_VARIANTS; v++)
        batches_of(config, variants[v]);
}

#endif

/* ---- long sequences --------------------------------------------------------------------------------- */

enum { LONG = 3 * SPAN + 190, LAST = 40, ROWS = 33 };

/* Prefill in pieces, all rows attended, then the last tokens one by one. */
static struct trace *run_long(const struct cattn_config *base, const struct cattn_variant *variant,
                              const int32_t *tokens, uint32_t piece, uint32_t threads, enum engine_form form,
                              size_t check_rows)
{
    struct cattn_config config = *base;
    config.n_threads = threads;
    config.max_tokens = LONG + 2 * config.chunk_tokens;
    struct engine e;
    struct toy toy;
    engine_init(&e, &config, 3);
    e.form = form;
    e.nth = threads;
    e.variant = variant;
    e.check_rows = check_rows;
    e.unchecked = check_rows == 0;
    engine_open(&e, &toy, 0, NULL, 0);
    toy.trace = trace_new(&e, LONG);
    while (toy.length < LONG) {
        size_t left = LONG - toy.length;
        uint32_t n = left <= LAST ? 1 : left - LAST < piece ? (uint32_t)left - LAST : piece;
        engine_feed(&e, &toy, tokens + toy.length, n);
    }
    struct trace *trace = toy.trace;
    engine_close(&e, &toy);
    engine_free(&e);
    return trace;
}

static struct cattn_config long_config(const struct cattn_config *base)
{
    struct cattn_config config = *base;
    config.n_heads = 2;
    config.n_kv_heads = 1; /* so that threads must split something else */
    config.head_dim = 8;
    config.chunk_tokens = 64;
    return config;
}

/* A window that passes over a whole span and more. */
enum { LONG_WINDOW = 700 };

static void long_alone_of(const struct cattn_config *base, unsigned parts, const int32_t *tokens)
{
    static const uint32_t pieces[] = {LONG, 1000, 257};
    struct cattn_config config = long_config(base);
    struct cattn_variant *variant = variant_of(parts, config.n_heads, config.chunk_tokens, LONG_WINDOW);
    struct trace *reference = run_long(&config, variant, tokens, LONG, 1, FORM_ATTEND, 4);
    const size_t broken = n_broken;
    ck_assert_uint_eq(trace_known(reference), LONG);
    for (uint32_t threads = 1; threads <= 3; threads++)
        for (size_t i = 0; i < 3; i++) {
            char text[400];
            enum engine_form form = i == 0 ? FORM_ATTEND : i == 1 ? FORM_WRITE_PARTS : FORM_WRITE_ATTEND;
            if (config.kv_dtype != CATTN_F32 && !test_full() && (i == 0 || threads == 2))
                continue;
            if (parts && !test_full() && (i == 0 || threads != 3))
                continue;
            struct trace *trace = run_long(&config, variant, tokens, pieces[i], threads, form, 0);
            snprintf(text, sizeof text, "%s, kv %s: long, pieces of %u, %u threads, form %d; %s", config.kernel,
                     dtype_name(config.kv_dtype), pieces[i], threads, (int)form, variant_text(variant));
            same_bits(reference, trace, text);
            trace_free(trace);
        }
    must_be_broken(broken, config.kernel, variant);
    trace_free(reference);
    variant_free(variant);
}

static void long_alone(const struct cattn_config *config)
{
    struct rng rng;
    int32_t *tokens = malloc(LONG * sizeof *tokens);
    rng_init(&rng, 2);
    random_tokens(&rng, tokens, LONG, 1000);
    for (size_t v = 0; v < (test_full()                     ? N_VARIANTS
                            : config->kv_dtype == CATTN_F32 ? LONG_VARIANTS
                                                            : FEW_LONG_VARIANTS);
         v++)
        long_alone_of(config, variants[v], tokens);
    free(tokens);
}

/* The subject holds all but its last tokens, and a mate shares its first `common` tokens.  Their next rows are computed
 * in one step, which is then taken back. */
static void with_mate(struct engine *e, struct toy *subject, size_t common, const int32_t *tokens, uint32_t rows,
                      const struct trace *reference, uint32_t threads)
{
    struct toy mate;
    char text[400];
    int32_t *own = malloc((common + SPAN) * sizeof *own);
    size_t length = common + (rng_chance(&e->rng, 30) ? rng_between(&e->rng, 300, SPAN) : rng_between(&e->rng, 3, 70));
    random_tokens(&e->rng, own, length, 1000);
    memcpy(own, tokens, common * sizeof *own);
    own[common] = 1000; /* not a token of the subject */
    enum engine_form form = e->form;
    uint32_t mate_rows = (uint32_t)rng_between(&e->rng, 1, 3);
    e->form = FORM_WRITE;
    engine_prefill(e, &mate, 0, own, length - mate_rows, 0);
    e->form = form;
    memset(subject->trace->known, 0, subject->trace->capacity);
    struct engine_item items[2] = {
        {.toy = &mate, .tokens = own + length - mate_rows, .n_tokens = mate_rows},
        {.toy = subject, .tokens = tokens + subject->length, .n_tokens = rows, .min_rows = rows}};
    ck_assert_int_eq(engine_begin(e, items, 2), CATTN_OK);
    engine_layers(e);
    snprintf(text, sizeof text, "%s, kv %s, chunk %u: %zu tokens shared, %u rows, %u threads, form %d; %s",
             e->config.kernel, dtype_name(e->config.kv_dtype), e->config.chunk_tokens, common, rows, threads, (int)form,
             variant_text(e->variant));
    same_bits(reference, subject->trace, text);
    engine_abort(e);
    engine_close(e, &mate);
    free(own);
}

static void shared_ends(const struct cattn_config *config, const struct cattn_variant *variant, const int32_t *tokens,
                        uint32_t threads, const struct trace *reference)
{
    struct cattn_config own = *config;
    own.n_threads = threads;
    own.max_tokens = 3 * LONG;
    struct engine e;
    struct toy subject;
    engine_init(&e, &own, threads);
    e.unchecked = 1;
    e.nth = threads;
    e.variant = variant;
    e.form = FORM_WRITE;
    engine_prefill(&e, &subject, 0, tokens, LONG - LAST, 0);
    subject.trace = trace_new(&e, LONG);
    for (size_t common = SPAN; common <= 2 * SPAN; common += config->chunk_tokens)
        for (uint32_t rows = 1; rows <= ROWS; rows += ROWS - 1) {
            static const enum engine_form forms[] = {FORM_ATTEND, FORM_WRITE_PARTS, FORM_PARTS, FORM_WRITE_ATTEND};
            e.form = forms[rng_below(&e.rng, 4)];
            with_mate(&e, &subject, common, tokens, rows, reference, threads);
        }
    trace_free(subject.trace);
    engine_close(&e, &subject);
    engine_free(&e);
}

static void long_shared_of(const struct cattn_config *config, unsigned parts, const int32_t *tokens)
{
    struct cattn_variant *variant = variant_of(parts, config->n_heads, config->chunk_tokens, LONG_WINDOW);
    struct trace *reference = run_long(config, variant, tokens, LONG, 1, FORM_ATTEND, 4);
    const size_t broken = n_broken;
    if (!parts || test_full())
        shared_ends(config, variant, tokens, 1, reference);
    shared_ends(config, variant, tokens, 3, reference);
    must_be_broken(broken, config->kernel, variant);
    trace_free(reference);
    variant_free(variant);
}

static void long_shared(const struct cattn_config *base)
{
    struct rng rng;
    int32_t *tokens = malloc(LONG * sizeof *tokens);
    rng_init(&rng, 4);
    random_tokens(&rng, tokens, LONG, 1000);
    for (uint32_t chunk = 32; chunk <= 256; chunk *= 2) {
        struct cattn_config config = long_config(base);
        config.chunk_tokens = chunk;
        if (config.kv_dtype != CATTN_F32 && chunk != 64 && !test_full())
            continue;
        long_shared_of(&config, 0, tokens);
        for (size_t v = 1; v < N_VARIANTS; v++)
            if (test_full() || (chunk == 128 && v < 3))
                long_shared_of(&config, variants[v], tokens);
    }
    free(tokens);
}

#ifndef EXPECT_DIFFERENCE

/* ---- what is taken back leaves no trace ------------------------------------------------------------- */

enum undo { UNDO_NOTHING, UNDO_TRUNCATE, UNDO_ABORT, N_UNDO };

/* Tokens whose K and V are not finite are appended to the first `at` and taken back; then the text goes on. */
static struct trace *run_undone(const struct cattn_config *base, const int32_t *tokens, size_t at, size_t bad_tokens,
                                enum undo undo, int32_t bad_token)
{
    enum { END = 3 * 32 };
    struct cattn_config config = *base;
    config.max_tokens = 8 * 32;
    struct engine e;
    struct toy toy;
    int32_t bad[END];
    engine_init(&e, &config, at);
    e.unchecked = 1;
    for (size_t i = 0; i < END; i++)
        bad[i] = bad_token;
    engine_open(&e, &toy, 0, NULL, 0);
    toy.trace = trace_new(&e, END);
    if (at)
        engine_feed(&e, &toy, tokens, at);
    struct engine_item item = {.toy = &toy, .tokens = bad, .n_tokens = (uint32_t)bad_tokens};
    if (undo != UNDO_NOTHING) {
        ck_assert_int_eq(engine_begin(&e, &item, 1), CATTN_OK);
        engine_layers(&e);
    }
    if (undo == UNDO_TRUNCATE) {
        engine_end(&e);
        engine_truncate(&e, &toy, at);
    } else if (undo == UNDO_ABORT) {
        engine_abort(&e);
    }
    memset(toy.trace->known, 0, END);
    while (toy.length < END) {
        size_t n = toy.length % 3 + 1 < END - toy.length ? toy.length % 3 + 1 : END - toy.length;
        engine_feed(&e, &toy, tokens + toy.length, n);
    }
    struct trace *trace = toy.trace;
    engine_close(&e, &toy);
    engine_free(&e);
    return trace;
}

static void undone_rows(const struct cattn_config *config)
{
    static const size_t starts[] = {0, 1, 15, 16, 31, 32, 33, 47, 63, 64}, counts[] = {1, 2, 17, 31, 32};
    struct rng rng;
    int32_t tokens[3 * 32];
    rng_init(&rng, 5);
    random_tokens(&rng, tokens, 3 * 32, 1000);
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        for (size_t j = 0; j < sizeof counts / sizeof *counts; j++) {
            char text[200];
            struct trace *clean = run_undone(config, tokens, starts[i], counts[j], UNDO_NOTHING, 0);
            for (int undo = UNDO_TRUNCATE; undo < N_UNDO; undo++) {
                int32_t bad = (i + j) % 2 ? TOKEN_NAN : TOKEN_INF;
                struct trace *trace = run_undone(config, tokens, starts[i], counts[j], (enum undo)undo, bad);
                snprintf(text, sizeof text, "%s, kv %s: %zu bad tokens at %zu, undo %d", config->kernel,
                         dtype_name(config->kv_dtype), counts[j], starts[i], undo);
                same_bits(clean, trace, text);
                trace_free(trace);
            }
            trace_free(clean);
        }
}

START_TEST(test_batches)
{
    for_each_kernel(batches);
}
END_TEST

START_TEST(test_undone_rows)
{
    for_each_kernel(undone_rows);
}
END_TEST

#endif

START_TEST(test_long_alone)
{
    for_each_kernel(long_alone);
}
END_TEST

START_TEST(test_long_shared)
{
    for_each_kernel(long_shared);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("promise");
#ifndef EXPECT_DIFFERENCE
    tcase_add_test(tcase, test_batches);
    tcase_add_test(tcase, test_undone_rows);
#endif
    tcase_add_test(tcase, test_long_alone);
    tcase_add_test(tcase, test_long_shared);
    return suite_run(tcase);
}

/* The calls cut into shares: any number, in any order, on any thread.  Meant to be run under ThreadSanitizer, too. */
#define _POSIX_C_SOURCE 200809L
#include "support/engine.h"
#include "support/suite.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 32, N_TOYS = 4, PROMPT = 3 * CHUNK + 5, LENGTH = PROMPT + 12 };

static struct cattn_config parts_config(uint32_t n_threads)
{
    struct cattn_config config = engine_config(100 * CHUNK);
    config.n_layers = 2;
    config.n_heads = 6;
    config.n_kv_heads = 3;
    config.n_threads = n_threads;
    return config;
}

/* A few sequences that share a prompt in part, prefilled and decoded in one form.  The trace is of the first. */
static struct trace *run(uint32_t n_threads, enum engine_form form, uint32_t nth)
{
    struct cattn_config config = parts_config(n_threads);
    struct engine e;
    struct toy toys[N_TOYS];
    struct engine_item items[N_TOYS];
    int32_t tokens[N_TOYS][LENGTH];
    engine_init(&e, &config, 1);
    e.form = form;
    e.nth = nth;
    e.check_rows = 4;
    random_tokens(&e.rng, tokens[0], N_TOYS * LENGTH, 1000);
    for (size_t i = 0; i < N_TOYS; i++) {
        memcpy(tokens[i], tokens[0], i * CHUNK * sizeof **tokens);
        engine_open(&e, &toys[i], 0, tokens[i], PROMPT);
        items[i] = (struct engine_item){.toy = &toys[i], .tokens = tokens[i], .n_tokens = PROMPT};
    }
    struct trace *trace = toys[0].trace = trace_new(&e, LENGTH);
    engine_step(&e, items, N_TOYS);
    while (toys[0].length < LENGTH) {
        for (size_t i = 0; i < N_TOYS; i++)
            items[i] = (struct engine_item){.toy = &toys[i], .tokens = tokens[i] + toys[i].length, .n_tokens = 2};
        engine_step(&e, items, N_TOYS);
    }
    engine_check(&e, toys, N_TOYS);
    for (size_t i = 0; i < N_TOYS; i++)
        engine_close(&e, &toys[i]);
    engine_free(&e);
    return trace;
}

START_TEST(any_number_of_shares)
{
    /* Fewer than, as many as, and more than the threads and the heads. */
    static const uint32_t threads[] = {1, 2, 3, 8}, shares[] = {1, 2, 3, 5, 8, 64};
    struct trace *reference = run(1, FORM_ATTEND, 0);
    for (size_t t = 0; t < 4; t++)
        for (size_t s = 0; s < 6; s++)
            for (int form = FORM_PARTS; form < N_FORMS; form++) {
                struct trace *trace = run(threads[t], (enum engine_form)form, shares[s]);
                CHECK(trace_differences(reference, trace) == 0, "form %d, %u threads, %u shares", form, threads[t],
                      shares[s]);
                trace_free(trace);
            }
    trace_free(reference);
}
END_TEST

START_TEST(most_shares)
{
    struct trace *trace = run(2, FORM_PARTS, 1024);
    trace_free(trace);
    trace = run(2, FORM_WRITE_PARTS, 1024);
    trace_free(trace);
}
END_TEST

/* Long enough that spans are split among shares; one KV head, so that nothing else can be. */
START_TEST(shares_of_spans)
{
    enum { LONG = 3 * 1024 + 100, N_DECODED = 6 };
    int32_t *tokens = malloc((LONG + N_DECODED) * sizeof *tokens);
    struct trace *reference = NULL;
    for (int form = FORM_ATTEND; form < N_FORMS; form++) {
        struct cattn_config config = engine_config(LONG + 200);
        struct engine e;
        struct toy toy;
        config.n_threads = form == FORM_ATTEND ? 1 : 4;
        config.head_dim = 8;
        config.chunk_tokens = 64;
        engine_init(&e, &config, 2);
        random_tokens(&e.rng, tokens, LONG + N_DECODED, 1000);
        e.form = FORM_WRITE;
        engine_prefill(&e, &toy, 0, tokens, LONG, 0);
        e.form = (enum engine_form)form;
        e.nth = 4;
        toy.trace = trace_new(&e, LONG + N_DECODED);
        engine_feed(&e, &toy, tokens + LONG, 1);
        engine_feed(&e, &toy, tokens + LONG + 1, 3);
        engine_feed(&e, &toy, tokens + LONG + 4, 2);
        if (reference) {
            CHECK(trace_differences(reference, toy.trace) == 0, "form %d", form);
            trace_free(toy.trace);
        } else {
            reference = toy.trace;
        }
        engine_close(&e, &toy);
        engine_free(&e);
    }
    trace_free(reference);
    free(tokens);
}
END_TEST

/* ---- threads that stay, with a barrier of their own between the phases ------------------------------- */

enum { N_WORKERS = 3, N_STEPS = 20 };

struct crew {
    pthread_barrier_t barrier;
    struct engine *e;
    struct cattn_io io;
    uint32_t layer;
    int apart; /* write and attend are two phases */
    int stop;
    int failures[N_WORKERS];
};

struct worker {
    pthread_t thread;
    struct crew *crew;
    uint32_t ith;
};

static void *work(void *argument)
{
    struct worker *w = argument;
    struct crew *c = w->crew;
    for (;;) {
        pthread_barrier_wait(&c->barrier);
        if (c->stop)
            return NULL;
        struct cattn_io io = c->io;
        if (c->apart) {
            c->failures[w->ith] |= cattn_step_write_part(c->e->step, c->layer, &io, w->ith, N_WORKERS);
            pthread_barrier_wait(&c->barrier);
            io.k = io.v = NULL;
        }
        c->failures[w->ith] |= cattn_step_attend_part(c->e->step, c->layer, &io, w->ith, N_WORKERS);
        pthread_barrier_wait(&c->barrier);
    }
}

static void run_layer(struct crew *c, uint32_t layer)
{
    engine_load(c->e, layer, &c->io);
    c->layer = layer;
    pthread_barrier_wait(&c->barrier);
    if (c->apart)
        pthread_barrier_wait(&c->barrier);
    pthread_barrier_wait(&c->barrier);
}

START_TEST(standing_threads)
{
    struct cattn_config config = parts_config(N_WORKERS);
    struct crew crew = {.stop = 0};
    struct worker workers[N_WORKERS];
    struct engine e, alone;
    struct toy toy, twin;
    int32_t tokens[N_STEPS];
    engine_init(&e, &config, 3);
    engine_init(&alone, &config, 3);
    random_tokens(&e.rng, tokens, N_STEPS, 1000);
    engine_open(&e, &toy, 0, NULL, 0);
    engine_open(&alone, &twin, 0, NULL, 0);
    crew.e = &e;
    pthread_barrier_init(&crew.barrier, NULL, N_WORKERS + 1);
    for (uint32_t i = 0; i < N_WORKERS; i++) {
        workers[i] = (struct worker){.crew = &crew, .ith = i};
        ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    unsigned char *expected = malloc(2 * engine_output_bytes(&e)), *got = expected + engine_output_bytes(&e);
    for (size_t i = 0; i < N_STEPS; i++) {
        crew.apart = i % 2;
        ck_assert_int_eq(engine_begin(&e, &(struct engine_item){.toy = &toy, .tokens = tokens + i, .n_tokens = 1}, 1),
                         0);
        ck_assert_int_eq(
            engine_begin(&alone, &(struct engine_item){.toy = &twin, .tokens = tokens + i, .n_tokens = 1}, 1), 0);
        for (uint32_t layer = 0; layer < config.n_layers; layer++) {
            run_layer(&crew, layer);
            engine_layer(&alone, layer);
            engine_output(&e, 0, got);
            engine_output(&alone, 0, expected);
            ck_assert_mem_eq(got, expected, engine_output_bytes(&e));
        }
        engine_end(&e);
        engine_end(&alone);
    }
    crew.stop = 1;
    pthread_barrier_wait(&crew.barrier);
    for (uint32_t i = 0; i < N_WORKERS; i++) {
        pthread_join(workers[i].thread, NULL);
        ck_assert_int_eq(crew.failures[i], CATTN_OK);
    }
    pthread_barrier_destroy(&crew.barrier);
    free(expected);
    engine_close(&e, &toy);
    engine_close(&alone, &twin);
    engine_free(&e);
    engine_free(&alone);
}
END_TEST

/* ---- what is refused -------------------------------------------------------------------------------- */

START_TEST(refused_shares)
{
    struct cattn_config config = parts_config(2);
    struct engine e;
    struct toy toy;
    struct cattn_io io, stored;
    int32_t tokens[3] = {1, 2, 3};
    engine_init(&e, &config, 4);
    engine_open(&e, &toy, 0, NULL, 0);
    io = (struct cattn_io){.size = sizeof io};
    ck_assert_int_eq(cattn_step_write_part(e.step, 0, &io, 0, 1), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_attend_part(e.step, 0, &io, 0, 1), CATTN_ESTATE);
    ck_assert_int_eq(engine_begin(&e, &(struct engine_item){.toy = &toy, .tokens = tokens, .n_tokens = 3}, 1),
                     CATTN_OK);
    engine_load(&e, 0, &io);
    stored = io;
    stored.k = stored.v = NULL;
    ck_assert_int_eq(cattn_step_attend_part(e.step, 0, &stored, 0, 2), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_write_part(e.step, 0, &io, 0, 0), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_write_part(e.step, 0, &io, 2, 2), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_write_part(e.step, 0, &io, 0, 1025), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_write_part(e.step, 2, &io, 0, 2), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_write_part(e.step, 0, &stored, 0, 2), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_attend_part(e.step, 0, &io, 1, 1), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_attend_part(e.step, 0, &io, 0, 0), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_attend_part(e.step, 2, &io, 0, 1), CATTN_EINVAL);
    /* The layer is written when the last share has returned, and only then. */
    ck_assert_int_eq(cattn_step_write_part(e.step, 0, &io, 1, 2), CATTN_OK);
    ck_assert_int_eq(cattn_step_write_part(e.step, 0, &io, 0, 3), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_attend_part(e.step, 0, &stored, 0, 2), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_end(e.step), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_write_part(e.step, 0, &io, 0, 2), CATTN_OK);
    ck_assert_int_eq(cattn_step_attend_part(e.step, 0, &stored, 1, 2), CATTN_OK);
    ck_assert_int_eq(cattn_step_attend_part(e.step, 0, &stored, 0, 2), CATTN_OK);
    ck_assert_int_eq(cattn_step_end(e.step), CATTN_ESTATE);
    engine_load(&e, 1, &io);
    ck_assert_int_eq(cattn_step_attend_part(e.step, 1, &io, 1, 2), CATTN_OK);
    ck_assert_int_eq(cattn_step_end(e.step), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_attend_part(e.step, 1, &io, 0, 2), CATTN_OK);
    engine_end(&e);
    /* What was left half written does not count in the next step. */
    ck_assert_int_eq(engine_begin(&e, &(struct engine_item){.toy = &toy, .tokens = tokens, .n_tokens = 1}, 1),
                     CATTN_OK);
    engine_load(&e, 0, &io);
    ck_assert_int_eq(cattn_step_write_part(e.step, 0, &io, 0, 2), CATTN_OK);
    engine_abort(&e);
    ck_assert_int_eq(engine_begin(&e, &(struct engine_item){.toy = &toy, .tokens = tokens, .n_tokens = 1}, 1),
                     CATTN_OK);
    engine_load(&e, 0, &io);
    ck_assert_int_eq(cattn_step_write_part(e.step, 0, &io, 1, 3), CATTN_OK);
    ck_assert_int_eq(cattn_step_write_part(e.step, 0, &io, 2, 3), CATTN_OK);
    ck_assert_int_eq(cattn_step_end(e.step), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_write_part(e.step, 0, &io, 0, 3), CATTN_OK);
    engine_layer(&e, 1);
    engine_end(&e);
    engine_close(&e, &toy);
    engine_free(&e);
}
END_TEST

enum { SPANS_LONG = 3 * 1024 + 100, N_SHARES = 4 };

/* One KV head and more than three spans, so that shares must divide spans. */
static void open_long(struct engine *e, struct toy *toy, int32_t *tokens, size_t more)
{
    struct cattn_config config = engine_config(SPANS_LONG + 200);
    config.n_threads = N_SHARES;
    config.chunk_tokens = 64;
    engine_init(e, &config, 6);
    random_tokens(&e->rng, tokens, SPANS_LONG + more, 1000);
    e->form = FORM_WRITE;
    engine_prefill(e, toy, 0, tokens, SPANS_LONG, 0);
}

/* Shares that were never called, because the step was given up in the middle, are not missed by the next step. */
START_TEST(given_up_in_the_middle)
{
    struct engine e;
    struct toy toy;
    struct cattn_io io;
    int32_t *tokens = malloc((SPANS_LONG + 20) * sizeof *tokens);
    open_long(&e, &toy, tokens, 20);
    for (uint32_t called = 1; called < N_SHARES; called++)
        for (int ended = 0; ended <= 1; ended++) {
            struct engine_item item = {.toy = &toy, .tokens = tokens + toy.length, .n_tokens = 1};
            ck_assert_int_eq(engine_begin(&e, &item, 1), CATTN_OK);
            engine_load(&e, 0, &io);
            ck_assert_int_eq(cattn_step_write(e.step, 0, &io), CATTN_OK);
            io.k = io.v = NULL;
            for (uint32_t i = 0; i < called; i++)
                ck_assert_int_eq(cattn_step_attend_part(e.step, 0, &io, N_SHARES - 1 - i, N_SHARES), CATTN_OK);
            if (ended)
                engine_end(&e);
            else
                engine_abort(&e);
            e.form = called % 2 ? FORM_ATTEND : FORM_WRITE_PARTS;
            e.nth = N_SHARES;
            engine_feed(&e, &toy, tokens + toy.length, 1);
        }
    engine_close(&e, &toy);
    engine_free(&e);
    free(tokens);
}
END_TEST

/* A share that comes twice counts once, and a whole attend gives up the shares before it: same bits, each time. */
START_TEST(repeated_shares)
{
    struct engine e;
    struct toy toy;
    struct cattn_io io;
    int32_t *tokens = malloc((SPANS_LONG + 1) * sizeof *tokens);
    open_long(&e, &toy, tokens, 1);
    size_t n = engine_output_bytes(&e);
    unsigned char *expected = malloc(2 * n), *got = expected + n;
    struct engine_item item = {.toy = &toy, .tokens = tokens + SPANS_LONG, .n_tokens = 1};
    ck_assert_int_eq(engine_begin(&e, &item, 1), CATTN_OK);
    e.form = FORM_ATTEND;
    engine_layer(&e, 0);
    engine_output(&e, 0, expected);
    engine_load(&e, 0, &io);
    io.k = io.v = NULL;
    for (uint32_t twice = 0; twice < N_SHARES; twice++) {
        memset(e.out.data, 0xff, e.out.bytes);
        for (uint32_t i = 0; i < N_SHARES; i++) {
            ck_assert_int_eq(cattn_step_attend_part(e.step, 0, &io, i, N_SHARES), CATTN_OK);
            if (i == twice && i + 1 < N_SHARES)
                ck_assert_int_eq(cattn_step_attend_part(e.step, 0, &io, i, N_SHARES), CATTN_OK);
        }
        engine_output(&e, 0, got);
        CHECK(!memcmp(got, expected, n), "share %u twice", twice);
        memset(e.out.data, 0xff, e.out.bytes);
        ck_assert_int_eq(cattn_step_attend_part(e.step, 0, &io, twice, N_SHARES), CATTN_OK);
        ck_assert_int_eq(cattn_step_attend(e.step, 0, &io), CATTN_OK);
        engine_output(&e, 0, got);
        CHECK(!memcmp(got, expected, n), "share %u, then all", twice);
    }
    engine_end(&e);
    engine_close(&e, &toy);
    engine_free(&e);
    free(expected);
    free(tokens);
}
END_TEST

START_TEST(empty_step_in_shares)
{
    struct cattn_config config = parts_config(2);
    struct engine e;
    engine_init(&e, &config, 5);
    for (int form = 0; form < N_FORMS; form++) {
        e.form = (enum engine_form)form;
        engine_step(&e, NULL, 0);
    }
    ck_assert_int_eq(engine_begin(&e, NULL, 0), CATTN_OK);
    engine_end(&e);
    engine_free(&e);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("parts");
    tcase_add_test(tcase, any_number_of_shares);
    tcase_add_test(tcase, most_shares);
    tcase_add_test(tcase, shares_of_spans);
    tcase_add_test(tcase, standing_threads);
    tcase_add_test(tcase, refused_shares);
    tcase_add_test(tcase, given_up_in_the_middle);
    tcase_add_test(tcase, repeated_shares);
    tcase_add_test(tcase, empty_step_in_shares);
    return suite_run(tcase);
}

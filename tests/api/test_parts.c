/* The calls cut into shares: any number, in any order, on any thread.  Meant to be run under ThreadSanitizer, too. */
#define _POSIX_C_SOURCE 200809L
#include "support/engine.h"
#include "support/suite.h"
#include "support/variant.h"

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

/* A step with one item. */
static int begin(struct engine *e, struct toy *toy, const int32_t *tokens, uint32_t n_tokens)
{
    return engine_begin(e, &(struct engine_item){.toy = toy, .tokens = tokens, .n_tokens = n_tokens}, 1);
}

/* A few sequences that share a prompt in part, prefilled and decoded in one form.  The trace is of the first. */
static struct trace *run(uint32_t n_threads, enum engine_form form, uint32_t nth, const struct cattn_variant *variant)
{
    struct cattn_config config = parts_config(n_threads);
    struct engine e;
    struct toy toys[N_TOYS];
    struct engine_item items[N_TOYS];
    int32_t tokens[N_TOYS][LENGTH];
    engine_init(&e, &config, 1);
    e.form = form;
    e.nth = nth;
    e.variant = variant;
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

/* The plain one, one with all there is, one with a window alone. */
enum { N_VARIANTS = 3 };

static struct cattn_variant *variant_number(size_t i, uint32_t n_heads, size_t length)
{
    static const unsigned parts[N_VARIANTS] = {0, VARIANT_ALL, VARIANT_WINDOW};
    struct cattn_variant *variant = variant_new(n_heads);
    variant_draw(variant, parts[i], i, n_heads, CHUNK, length);
    if (parts[i]) {
        variant->window = (uint32_t)length / 3;
        variant->n_sink_tokens = 4;
    }
    return variant;
}

START_TEST(any_number_of_shares)
{
    /* Fewer than, as many as, and more than the threads and the heads. */
    static const uint32_t threads[] = {1, 2, 3, 8}, shares[] = {1, 2, 3, 5, 8, 64};
    struct trace *references[N_VARIANTS];
    struct cattn_variant *variants[N_VARIANTS];
    for (size_t v = 0; v < N_VARIANTS; v++) {
        variants[v] = variant_number(v, parts_config(1).n_heads, LENGTH);
        references[v] = run(1, FORM_ATTEND, 0, variants[v]);
    }
    for (size_t t = 0; t < 4; t++)
        for (size_t s = 0; s < 6; s++)
            for (int form = FORM_PARTS; form < N_FORMS; form++) {
                const size_t v = (t + s + (size_t)form) % N_VARIANTS;
                struct trace *trace = run(threads[t], (enum engine_form)form, shares[s], variants[v]);
                CHECK(trace_differences(references[v], trace) == 0, "form %d, %u threads, %u shares, variant %zu", form,
                      threads[t], shares[s], v);
                trace_free(trace);
            }
    for (size_t v = 0; v < N_VARIANTS; v++) {
        trace_free(references[v]);
        variant_free(variants[v]);
    }
}
END_TEST

START_TEST(most_shares)
{
    struct trace *trace = run(2, FORM_PARTS, 1024, NULL);
    trace_free(trace);
    trace = run(2, FORM_WRITE_PARTS, 1024, NULL);
    trace_free(trace);
}
END_TEST

/* Long enough that spans are split among shares; one KV head, so that nothing else can be. */
static void share_spans(size_t v)
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
        struct cattn_variant *variant = variant_number(v, config.n_heads, LONG);
        e.variant = variant;
        e.form = FORM_WRITE;
        engine_prefill(&e, &toy, 0, tokens, LONG, 0);
        e.form = (enum engine_form)form;
        e.nth = 4;
        toy.trace = trace_new(&e, LONG + N_DECODED);
        engine_feed(&e, &toy, tokens + LONG, 1);
        engine_feed(&e, &toy, tokens + LONG + 1, 3);
        engine_feed(&e, &toy, tokens + LONG + 4, 2);
        if (reference) {
            CHECK(trace_differences(reference, toy.trace) == 0, "form %d, variant %zu", form, v);
            trace_free(toy.trace);
        } else {
            reference = toy.trace;
        }
        engine_close(&e, &toy);
        engine_free(&e);
        variant_free(variant);
    }
    trace_free(reference);
    free(tokens);
}

START_TEST(shares_of_spans)
{
    for (size_t v = 0; v < N_VARIANTS; v++)
        share_spans(v);
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
        ck_assert_int_eq(begin(&e, &toy, tokens + i, 1), 0);
        ck_assert_int_eq(begin(&alone, &twin, tokens + i, 1), 0);
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
    ck_assert_int_eq(begin(&e, &toy, tokens, 3), CATTN_OK);
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
    ck_assert_int_eq(begin(&e, &toy, tokens, 1), CATTN_OK);
    engine_load(&e, 0, &io);
    ck_assert_int_eq(cattn_step_write_part(e.step, 0, &io, 0, 2), CATTN_OK);
    engine_abort(&e);
    ck_assert_int_eq(begin(&e, &toy, tokens, 1), CATTN_OK);
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

/* ---- shares that come again, and passes that are given up --------------------------------------------- */

enum { SPANS_LONG = 3 * 1024 + 100, ROOM = 64, N_SHARES = 4, N_LAYERS = 2 };

/* One KV head and more than three spans, so that shares must divide spans. */
struct spans {
    struct engine e;
    struct toy toy;
    int32_t *tokens;
    size_t n_bytes; /* of a row of output */
    unsigned char *expected, *got[N_LAYERS];
};

static void spans_open(struct spans *s)
{
    struct cattn_config config = engine_config(SPANS_LONG + 200);
    config.n_layers = N_LAYERS;
    config.n_threads = N_SHARES;
    config.chunk_tokens = 64;
    engine_init(&s->e, &config, 6);
    s->tokens = malloc((SPANS_LONG + ROOM) * sizeof *s->tokens);
    random_tokens(&s->e.rng, s->tokens, SPANS_LONG + ROOM, 1000);
    s->e.form = FORM_WRITE;
    engine_prefill(&s->e, &s->toy, 0, s->tokens, SPANS_LONG, 0);
    s->e.form = FORM_ATTEND;
    s->n_bytes = engine_output_bytes(&s->e);
    s->expected = malloc((1 + N_LAYERS) * s->n_bytes);
    for (size_t layer = 0; layer < N_LAYERS; layer++)
        s->got[layer] = s->expected + (1 + layer) * s->n_bytes;
}

static void spans_close(struct spans *s)
{
    engine_close(&s->e, &s->toy);
    engine_free(&s->e);
    free(s->tokens);
    free(s->expected);
}

/* A step of one row. */
static void spans_begin(struct spans *s)
{
    ck_assert_uint_lt(s->toy.length, SPANS_LONG + ROOM);
    ck_assert_int_eq(begin(&s->e, &s->toy, s->tokens + s->toy.length, 1), CATTN_OK);
}

typedef int part_call(cattn_step *, uint32_t, const struct cattn_io *, uint32_t, uint32_t);

static void call_share(struct spans *s, part_call *call, uint32_t layer, const struct cattn_io *io, uint32_t i,
                       uint32_t times)
{
    for (uint32_t t = 0; t < times; t++)
        ck_assert_int_eq(call(s->e.step, layer, io, i, N_SHARES), CATTN_OK);
}

/* A pass in which one share comes more often than once. */
static void call_shares(struct spans *s, part_call *call, uint32_t layer, const struct cattn_io *io, uint32_t again,
                        uint32_t times)
{
    for (uint32_t i = 0; i < N_SHARES; i++)
        call_share(s, call, layer, io, i, i == again ? times : 1);
}

static void write_in_shares(struct spans *s, uint32_t layer, uint32_t again, uint32_t times)
{
    struct cattn_io io;
    engine_load(&s->e, layer, &io);
    call_shares(s, cattn_step_write_part, layer, &io, again, times);
}

/* Buffers with an erased output; K and V were stored before. */
static struct cattn_io load_stored(struct spans *s, uint32_t layer)
{
    struct cattn_io io;
    engine_load(&s->e, layer, &io);
    io.k = io.v = NULL;
    return io;
}

/* What shares have put out in each layer is what whole calls put out; those the engine compares with the oracle. */
static void check_layers(struct spans *s, const char *what)
{
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        engine_layer(&s->e, layer);
        engine_output(&s->e, 0, s->expected);
        CHECK(!memcmp(s->got[layer], s->expected, s->n_bytes), "layer %u: %s", layer, what);
    }
}

/* A share that comes again does nothing; if it comes when all have returned it begins another pass, which may be
 * finished or not.  The layers after it do not see any of this. */
static void repeat_share(struct spans *s, uint32_t again, uint32_t times, uint32_t after, int finished)
{
    char what[100];
    snprintf(what, sizeof what, "share %u came %u times, and %u times after the last%s", again, times, after,
             finished ? ", with all others" : "");
    spans_begin(s);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        write_in_shares(s, layer, again, again + 1 < N_SHARES ? times : 1);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        struct cattn_io io = load_stored(s, layer);
        call_shares(s, cattn_step_attend_part, layer, &io, again, layer ? 1 : times);
        call_share(s, cattn_step_attend_part, layer, &io, again, layer ? 0 : after);
        if (finished && !layer)
            call_shares(s, cattn_step_attend_part, layer, &io, again, 1);
        engine_output(&s->e, 0, s->got[layer]);
    }
    check_layers(s, what);
    engine_end(&s->e);
}

START_TEST(repeated_shares)
{
    struct spans s;
    spans_open(&s);
    for (uint32_t again = 0; again < N_SHARES; again++)
        for (uint32_t times = 1; times <= 3; times++)
            for (uint32_t after = 0; after <= 2; after++)
                repeat_share(&s, again, times, after, after && times % 2);
    spans_close(&s);
}
END_TEST

/* Shares of write that begin another pass keep attention away until they are finished or given up. */
START_TEST(write_shares_after_the_last)
{
    struct spans s;
    struct cattn_io io, stored;
    spans_open(&s);
    for (int by_whole = 0; by_whole <= 1; by_whole++) {
        spans_begin(&s);
        for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
            engine_load(&s.e, layer, &io);
            stored = io;
            stored.k = stored.v = NULL;
            call_shares(&s, cattn_step_write_part, layer, &io, 1, 2);
            call_share(&s, cattn_step_write_part, layer, &io, 1, 1);
            ck_assert_int_eq(cattn_step_attend_part(s.e.step, layer, &stored, 0, N_SHARES), CATTN_EINVAL);
            if (by_whole)
                ck_assert_int_eq(cattn_step_write(s.e.step, layer, &io), CATTN_OK);
            else
                call_shares(&s, cattn_step_write_part, layer, &io, 1, 1);
            call_shares(&s, cattn_step_attend_part, layer, &stored, 1, 1);
            engine_output(&s.e, 0, s.got[layer]);
        }
        check_layers(&s, by_whole ? "given up by a whole call" : "finished");
        engine_end(&s.e);
    }
    spans_close(&s);
}
END_TEST

enum giver { BY_WRITE, BY_ATTEND, BY_END, BY_ABORT, N_GIVERS };

static void give_up(struct spans *s, enum giver giver)
{
    struct cattn_io io;
    engine_load(&s->e, 0, &io);
    switch (giver) {
    case BY_WRITE: ck_assert_int_eq(cattn_step_write(s->e.step, 0, &io), CATTN_OK); return;
    case BY_ATTEND:
        io.k = io.v = NULL;
        ck_assert_int_eq(cattn_step_attend(s->e.step, 0, &io), CATTN_OK);
        return;
    case BY_END: engine_end(&s->e); break;
    default: engine_abort(&s->e);
    }
    spans_begin(s);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        write_in_shares(s, layer, 0, 1);
}

/* Shares that never came are not missed, and those that did do not count in the next pass, in this step or another. */
START_TEST(given_up_in_the_middle)
{
    struct spans s;
    spans_open(&s);
    for (uint32_t called = 1; called < N_SHARES; called++)
        for (int giver = 0; giver < N_GIVERS; giver++) {
            char what[100];
            snprintf(what, sizeof what, "%u shares had come, giver %d", called, giver);
            spans_begin(&s);
            for (uint32_t layer = 0; layer < N_LAYERS; layer++)
                write_in_shares(&s, layer, 0, 1);
            struct cattn_io io = load_stored(&s, 0);
            for (uint32_t i = 0; i < called; i++)
                call_share(&s, cattn_step_attend_part, 0, &io, N_SHARES - 1 - i, 1);
            give_up(&s, (enum giver)giver);
            for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
                io = load_stored(&s, layer);
                call_shares(&s, cattn_step_attend_part, layer, &io, 0, 1);
                engine_output(&s.e, 0, s.got[layer]);
            }
            check_layers(&s, what);
            engine_end(&s.e);
        }
    spans_close(&s);
}
END_TEST

/* A whole attend in the step after one that was left in the middle. */
START_TEST(whole_after_given_up)
{
    struct spans s;
    spans_open(&s);
    for (uint32_t called = 1; called < N_SHARES; called++)
        for (int ended = 0; ended <= 1; ended++) {
            spans_begin(&s);
            for (uint32_t layer = 0; layer < N_LAYERS; layer++)
                write_in_shares(&s, layer, 0, 1);
            struct cattn_io io = load_stored(&s, 0);
            for (uint32_t i = 0; i < called; i++)
                call_share(&s, cattn_step_attend_part, 0, &io, i, 1);
            if (ended)
                engine_end(&s.e);
            else
                engine_abort(&s.e);
            engine_feed(&s.e, &s.toy, s.tokens + s.toy.length, 1);
        }
    spans_close(&s);
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
    tcase_add_test(tcase, repeated_shares);
    tcase_add_test(tcase, write_shares_after_the_last);
    tcase_add_test(tcase, given_up_in_the_middle);
    tcase_add_test(tcase, whole_after_given_up);
    tcase_add_test(tcase, empty_step_in_shares);
    return suite_run(tcase);
}

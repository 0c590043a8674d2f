/* Images in prompts: placeholders are the same tokens whatever the image is, and K and V are not. */
#define _DEFAULT_SOURCE 1
#include "support/engine.h"
#include "support/suite.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 32, TEXT = 40, IMAGE = 50, LENGTH = TEXT + IMAGE + 45 };

static const uint64_t space = 3;

/* Text, an image, and text: but for the image all are equal. */
static void make_prompt(int32_t *tokens, int image)
{
    for (int32_t i = 0; i < LENGTH; i++)
        tokens[i] = i % 11;
    for (int i = TEXT; i < TEXT + IMAGE; i++)
        tokens[i] = TOKEN_IMAGE + image;
}

static struct cattn_config config_of(const struct kernel_choice *choice)
{
    struct cattn_config config = engine_config(64 * CHUNK);
    config.kernel = choice->kernel;
    config.kv_dtype = choice->kv_dtype;
    return config;
}

/* The outputs of a prompt that has the cache for itself. */
static struct trace *alone(const struct cattn_config *config, const int32_t *tokens)
{
    struct engine e;
    struct toy toy;
    engine_init(&e, config, 1);
    engine_open(&e, &toy, space, tokens, LENGTH);
    struct trace *trace = toy.trace = trace_new(&e, LENGTH);
    engine_feed(&e, &toy, tokens, LENGTH);
    engine_close(&e, &toy);
    engine_free(&e);
    return trace;
}

/* The engine compares outputs with the oracle, which has K and V of the right image. */
START_TEST(images_are_shared_if_equal_and_never_else)
{
    struct kernel_choice choice;
    for (unsigned i = 0; kernel_choice(i, &choice); i++) {
        struct cattn_config config = config_of(&choice);
        struct engine e;
        struct toy toys[4];
        int32_t tokens[3][LENGTH];
        struct trace *expected[3];
        for (int k = 0; k < 3; k++) {
            make_prompt(tokens[k], k);
            expected[k] = alone(&config, tokens[k]);
        }
        ck_assert_uint_eq(trace_differences(expected[0], expected[1]), LENGTH - TEXT);
        engine_init(&e, &config, 1);
        engine_prefill(&e, &toys[0], space, tokens[0], LENGTH, 17);
        ck_assert_uint_eq(engine_open(&e, &toys[1], space, tokens[1], LENGTH), TEXT); /* ends inside of a chunk */
        ck_assert_uint_eq(engine_open(&e, &toys[2], space, tokens[2], LENGTH), TEXT);
        ck_assert_uint_eq(engine_open(&e, &toys[3], space, tokens[0], LENGTH), LENGTH / CHUNK * CHUNK);
        for (int k = 1; k < 4; k++)
            toys[k].trace = trace_new(&e, LENGTH);
        struct engine_item items[] = {{.toy = &toys[1], .tokens = tokens[1] + TEXT, .n_tokens = LENGTH - TEXT},
                                      {.toy = &toys[2], .tokens = tokens[2] + TEXT, .n_tokens = LENGTH - TEXT},
                                      {.toy = &toys[3],
                                       .tokens = tokens[0] + toys[3].length,
                                       .n_tokens = (uint32_t)(LENGTH - toys[3].length),
                                       .min_rows = 1}};
        engine_step(&e, items, 3);
        for (int k = 1; k < 4; k++) {
            if (choice.exact)
                ck_assert_uint_eq(trace_differences(toys[k].trace, expected[k % 3]), 0);
            trace_free(toys[k].trace);
        }
        engine_check(&e, toys, 4);
        /* one chunk of text for all; what follows for each image, but the last one, which is for each sequence */
        ck_assert_uint_eq(engine_stats(&e).used_slots, 1 + 3 * (LENGTH / CHUNK - 1) + 4);
        for (int k = 0; k < 4; k++)
            engine_close(&e, &toys[k]);
        for (int k = 0; k < 3; k++)
            trace_free(expected[k]);
        engine_free(&e);
    }
}
END_TEST

static int change_pin(struct engine *e, const int32_t *tokens, int pins)
{
    struct given x = given_tokens(tokens, LENGTH);
    int status = pins ? cattn_prefix_pin(e->cache, &space, sizeof space, x.tokens, LENGTH, &x.ext)
                      : cattn_prefix_unpin(e->cache, &space, sizeof space, x.tokens, LENGTH, &x.ext);
    given_free(&x);
    return status;
}

static size_t cached(struct engine *e, const int32_t *tokens)
{
    struct toy toy;
    size_t n = engine_open(e, &toy, space, tokens, LENGTH);
    engine_close(e, &toy);
    return n;
}

START_TEST(images_are_saved_and_loaded)
{
    char path[] = "cattn-extras-XXXXXX";
    struct kernel_choice choice;
    struct engine from, to;
    struct toy toy;
    int32_t tokens[3][LENGTH];
    ck_assert(kernel_choice(0, &choice));
    ck_assert_int_ge(mkstemp(path), 0);
    struct cattn_config config = config_of(&choice);
    engine_init(&from, &config, 1);
    for (int k = 0; k < 2; k++) {
        make_prompt(tokens[k], k);
        engine_prefill(&from, &toy, space, tokens[k], LENGTH, 0);
        engine_close(&from, &toy);
        ck_assert_int_eq(change_pin(&from, tokens[k], 1), CATTN_OK);
    }
    make_prompt(tokens[2], 2);
    ck_assert_int_eq(change_pin(&from, tokens[2], 1), CATTN_ENOTFOUND);
    int status = cattn_prefix_save(from.cache, path, "model", 5);
    engine_init(&to, &config, 2);
    if (status == CATTN_OK) {
        engine_prefill(&to, &toy, space, tokens[2], LENGTH, 0); /* other numbers are taken */
        ck_assert_int_eq(cattn_prefix_load(to.cache, path, "model", 5, NULL), CATTN_OK);
        engine_check(&to, &toy, 1);
        for (int k = 0; k < 2; k++) {
            struct trace *expected = alone(&config, tokens[k]);
            ck_assert_uint_eq(cached(&to, tokens[k]), LENGTH / CHUNK * CHUNK);
            struct toy reader;
            engine_open(&to, &reader, space, tokens[k], LENGTH);
            reader.trace = trace_new(&to, LENGTH);
            engine_feed(&to, &reader, tokens[k] + reader.length, LENGTH - reader.length);
            if (choice.exact)
                ck_assert_uint_eq(trace_differences(reader.trace, expected), 0);
            trace_free(reader.trace);
            trace_free(expected);
            engine_close(&to, &reader);
            ck_assert_int_eq(change_pin(&to, tokens[k], 0), CATTN_OK);
        }
        engine_close(&to, &toy);
    } else {
        ck_assert_int_eq(status, CATTN_ENOTSUP); /* a build that cannot save */
    }
    engine_free(&from);
    engine_free(&to);
    unlink(path);
}
END_TEST

/* ---- threads */

struct other {
    pthread_t thread;
    struct engine *e;
    int number;
    atomic_int *stop;
    const char *fault;
};

/* Opens prompts, has a look at them, pins, and goes. */
static void *disturb(void *argument)
{
    struct other *o = argument;
    for (int i = 0; !o->fault && (i < 50 || !atomic_load(o->stop)); i++) {
        int32_t tokens[LENGTH], found[LENGTH];
        size_t n_cached, n;
        cattn_seq seq;
        make_prompt(tokens, (i + o->number) % 4);
        struct given x = given_tokens(tokens, LENGTH);
        if (cattn_seq_open_ext(o->e->cache, &space, sizeof space, x.tokens, LENGTH, &x.ext, &seq, &n_cached) ||
            cattn_seq_tokens(o->e->cache, seq, found, LENGTH, &n) || n != n_cached ||
            memcmp(found, x.tokens, n * sizeof *found))
            o->fault = "open or tokens";
        if (!cattn_prefix_pin(o->e->cache, &space, sizeof space, x.tokens, LENGTH, &x.ext) &&
            cattn_prefix_unpin(o->e->cache, &space, sizeof space, x.tokens, LENGTH, &x.ext))
            o->fault = "unpin";
        if (cattn_seq_close(o->e->cache, seq) || cattn_cache_selfcheck(o->e->cache))
            o->fault = "close or selfcheck";
        given_free(&x);
    }
    return NULL;
}

START_TEST(threads_bring_images_while_one_steps)
{
    struct cattn_config config = engine_config(24 * CHUNK);
    config.flags = CATTN_CONCURRENT;
    struct engine e;
    atomic_int stop = 0;
    struct other others[2];
    struct cattn_cache *cache;
    int status = cattn_cache_create(&config, &cache);
    if (status == CATTN_ENOTSUP)
        return;
    cattn_cache_destroy(cache);
    engine_init(&e, &config, 1);
    for (int i = 0; i < 2; i++) {
        others[i] = (struct other){.e = &e, .number = i, .stop = &stop};
        ck_assert_int_eq(pthread_create(&others[i].thread, NULL, disturb, &others[i]), 0);
    }
    for (int i = 0; i < 12; i++) {
        struct toy toy;
        int32_t tokens[LENGTH];
        make_prompt(tokens, i % 5);
        size_t at = engine_open(&e, &toy, space, tokens, LENGTH);
        for (; at < LENGTH; at += 60)
            engine_feed(&e, &toy, tokens + at, at + 60 < LENGTH ? 60 : LENGTH - at);
        engine_close(&e, &toy);
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++) {
        pthread_join(others[i].thread, NULL);
        CHECK(!others[i].fault, "%s", others[i].fault);
    }
    engine_free(&e);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("extras");
    tcase_add_test(tests, images_are_shared_if_equal_and_never_else);
    tcase_add_test(tests, images_are_saved_and_loaded);
    tcase_add_test(tests, threads_bring_images_while_one_steps);
    return suite_run(tests);
}

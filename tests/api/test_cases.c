/* Faults that other engines shipped, in small form, one test each; those of threads are in test_threads. */
#define _POSIX_C_SOURCE 200809L
#include "cache.h"
#include "support/dtype.h"
#include "support/engine.h"
#include "support/suite.h"

#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(_OPENMP)
#  include <omp.h>
#endif
#if defined(__SSE__)
#  include <xmmintrin.h>
#endif

enum { CHUNK = 32 };

/* Feeds each toy one token of its own in one step. */
static void decode(struct engine *e, struct toy *toys, size_t n, int32_t first_token)
{
    struct engine_item items[64];
    int32_t tokens[64];
    for (size_t i = 0; i < n; i++) {
        tokens[i] = first_token + (int32_t)i;
        items[i] = (struct engine_item){.toy = &toys[i], .tokens = &tokens[i], .n_tokens = 1};
    }
    engine_step(e, items, n);
}

static struct cattn_config config_of(const struct kernel_choice *choice, uint64_t max_tokens)
{
    struct cattn_config config = engine_config(max_tokens);
    config.kernel = choice->kernel;
    config.kv_dtype = choice->kv_dtype;
    return config;
}

/* Once for each kernel and stored data type. */
typedef void case_test(const struct kernel_choice *choice);

static void for_each_choice(case_test *test)
{
    struct kernel_choice choice;
    for (unsigned k = 0; kernel_choice(k, &choice); k++)
        test(&choice);
}

/* The rows of a batch whose private part, or whose shared part, is empty. */
static void empty_parts(const struct kernel_choice *choice)
{
    struct cattn_config config = config_of(choice, 40 * CHUNK);
    struct engine e;
    struct toy toys[3];
    int32_t tokens[2 * CHUNK], token = 9;
    engine_init(&e, &config, 1);
    random_tokens(&e.rng, tokens, 2 * CHUNK, 1000);
    engine_prefill(&e, &toys[0], 0, tokens, 2 * CHUNK, 0);
    engine_fork(&e, &toys[0], &toys[1]);
    engine_open(&e, &toys[2], 0, &token, 1);
    /* Toys 0 and 1 end with a shared chunk: the row of the last token sees nothing of their own. */
    engine_truncate(&e, &toys[0], 2 * CHUNK - 1);
    struct engine_item items[3] = {{.toy = &toys[0], .tokens = tokens + 2 * CHUNK - 1, .n_tokens = 1},
                                   {.toy = &toys[1], .tokens = &token, .n_tokens = 1},
                                   {.toy = &toys[2], .tokens = &token, .n_tokens = 1}};
    engine_step(&e, items, 3);
    engine_check(&e, toys, 3);
    for (size_t i = 0; i < 3; i++)
        engine_close(&e, &toys[i]);
    engine_free(&e);
}

START_TEST(a1_empty_parts)
{
    for_each_choice(empty_parts);
}
END_TEST

static void stale_slots(const struct kernel_choice *choice)
{
    enum { SLOTS = 6 };
    static const size_t lengths[] = {CHUNK - 1, CHUNK + 1, 1};
    static const int32_t stale[] = {TOKEN_NAN, TOKEN_INF};
    struct cattn_config config = config_of(choice, SLOTS * CHUNK);
    int32_t bad[SLOTS * CHUNK], tokens[2 * CHUNK];
    for (size_t s = 0; s < 2; s++)
        for (size_t l = 0; l < 3; l++) {
            struct engine e;
            struct toy toy;
            engine_init(&e, &config, 2);
            random_tokens(&e.rng, tokens, 2 * CHUNK, 1000);
            for (size_t i = 0; i < SLOTS * CHUNK; i++)
                bad[i] = stale[s];
            engine_prefill(&e, &toy, 0, bad, SLOTS * CHUNK, 0);
            engine_close(&e, &toy);
            engine_prefill(&e, &toy, 0, tokens, lengths[l], 0);
            engine_feed(&e, &toy, tokens, 3);
            engine_check(&e, &toy, 1);
            ck_assert_uint_gt(engine_stats(&e).evictions, 0);
            engine_close(&e, &toy);
            engine_free(&e);
        }
}

START_TEST(a2_stale_slots)
{
    for_each_choice(stale_slots);
}
END_TEST

START_TEST(a3_proper_prefixes)
{
    static const size_t lengths[] = {1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 7};
    struct cattn_config config = engine_config(40 * CHUNK);
    struct engine e;
    struct toy whole, part;
    int32_t tokens[2 * CHUNK + 7];
    engine_init(&e, &config, 3);
    random_tokens(&e.rng, tokens, 2 * CHUNK + 7, 1000);
    engine_prefill(&e, &whole, 0, tokens, 2 * CHUNK + 7, 0);
    for (size_t i = 0; i < 6; i++) {
        size_t n = lengths[i], n_cached = engine_open(&e, &part, 0, tokens, n);
        ck_assert_uint_lt(n_cached, n);
        ck_assert_uint_ge(n_cached, (n - 1) / CHUNK * CHUNK);
        engine_feed(&e, &part, tokens + n_cached, n - n_cached);
        engine_feed(&e, &part, tokens, 2);
        engine_close(&e, &part);
    }
    engine_check(&e, &whole, 1);
    engine_close(&e, &whole);
    engine_free(&e);
}
END_TEST

START_TEST(a4_equal_prompts_together)
{
    struct cattn_config config = engine_config(40 * CHUNK);
    struct engine e;
    struct toy toys[2], other;
    int32_t tokens[2 * CHUNK];
    engine_init(&e, &config, 4);
    random_tokens(&e.rng, tokens, 2 * CHUNK, 1000);
    engine_open(&e, &toys[0], 0, tokens, 2 * CHUNK);
    engine_open(&e, &toys[1], 0, tokens, 2 * CHUNK);
    struct engine_item items[2] = {{.toy = &toys[0], .tokens = tokens, .n_tokens = 2 * CHUNK},
                                   {.toy = &toys[1], .tokens = tokens, .n_tokens = 2 * CHUNK}};
    engine_step(&e, items, 2);
    ck_assert_uint_eq(engine_stats(&e).used_slots, 2);
    for (int32_t i = 0; i < 3 * CHUNK; i++)
        decode(&e, toys, 2, 1000 + 2 * i);
    ck_assert_uint_eq(engine_stats(&e).used_slots, 2 + 2 * 3);
    engine_close(&e, &toys[0]);
    ck_assert_uint_eq(engine_stats(&e).used_slots, 2 + 3);
    engine_prefill(&e, &other, 0, tokens + 1, CHUNK + 3, 0);
    decode(&e, &toys[1], 1, 5);
    engine_check(&e, &toys[1], 1);
    engine_close(&e, &toys[1]);
    engine_close(&e, &other);
    ck_assert_uint_eq(engine_stats(&e).used_slots, 0);
    engine_free(&e);
}
END_TEST

static void hits_and_misses(const struct kernel_choice *choice)
{
    static const size_t lengths[] = {3 * CHUNK, 2 * CHUNK + 5, 2 * CHUNK + 9, 1};
    struct cattn_config config = config_of(choice, 60 * CHUNK);
    struct engine e;
    struct toy toys[4];
    struct engine_item items[4];
    int32_t tokens[4][3 * CHUNK];
    engine_init(&e, &config, 5);
    random_tokens(&e.rng, tokens[0], 4 * 3 * CHUNK, 1000);
    memcpy(tokens[1], tokens[0], 2 * CHUNK * sizeof **tokens);
    engine_prefill(&e, &toys[0], 0, tokens[0], lengths[0], 0);
    engine_close(&e, &toys[0]);
    for (size_t i = 0; i < 4; i++) {
        size_t n_cached = engine_open(&e, &toys[i], 0, tokens[i], lengths[i]);
        ck_assert_uint_eq(n_cached / CHUNK, i < 2 ? 2 : 0);
        items[i] = (struct engine_item){
            .toy = &toys[i], .tokens = tokens[i] + n_cached, .n_tokens = (uint32_t)(lengths[i] - n_cached)};
    }
    engine_step(&e, items, 4);
    for (int32_t i = 0; i < 5; i++)
        decode(&e, toys, 4, i);
    engine_check(&e, toys, 4);
    for (size_t i = 0; i < 4; i++)
        engine_close(&e, &toys[i]);
    engine_free(&e);
}

START_TEST(a5_hits_and_misses_in_a_batch)
{
    for_each_choice(hits_and_misses);
}
END_TEST

static void alone(struct cattn_config config, const int32_t *tokens, size_t n)
{
    struct engine e;
    struct toy toy;
    config.max_tokens = n + 2 * config.chunk_tokens;
    engine_init(&e, &config, n);
    e.check_rows = 8;
    engine_prefill(&e, &toy, 0, tokens, n, 0);
    engine_feed(&e, &toy, tokens, 1);
    engine_check(&e, &toy, 1);
    engine_close(&e, &toy);
    engine_free(&e);
}

static void chunk_counts_and_sizes(const struct kernel_choice *choice)
{
    int32_t *tokens = calloc(3 * 256, sizeof *tokens);
    struct rng rng;
    rng_init(&rng, 6);
    random_tokens(&rng, tokens, 3 * 256, 1000);
    for (uint32_t c = 32; c <= 256; c *= 2) {
        size_t lengths[] = {c - 1, c, c + 1, 2 * c, 2 * c + 1, 3 * c - 1};
        for (size_t i = 0; i < 6; i++) {
            struct cattn_config config = config_of(choice, 0);
            config.chunk_tokens = c;
            config.head_dim = i % 2 ? 32 : 128;
            alone(config, tokens, lengths[i]);
        }
    }
    free(tokens);
}

START_TEST(a6_chunk_counts_and_sizes)
{
    for_each_choice(chunk_counts_and_sizes);
}
END_TEST

START_TEST(a7_every_length)
{
    struct kernel_choice choice;
    for (unsigned k = 0; kernel_choice(k, &choice); k++) {
        struct cattn_config config = config_of(&choice, 6 * CHUNK);
        struct engine e;
        struct toy toy;
        engine_init(&e, &config, 7);
        e.guard = GUARD_END;
        engine_open(&e, &toy, 0, NULL, 0);
        for (int32_t i = 0; i < 4 * CHUNK + 1; i++)
            decode(&e, &toy, 1, i);
        engine_check(&e, &toy, 1);
        engine_close(&e, &toy);
        engine_free(&e);
    }
}
END_TEST

START_TEST(a8_head_sizes)
{
    static const uint32_t sizes[] = {1, 2, 3, 7, 8, 16, 24, 40, 48, 72, 80, 96, 112, 120, 127, 128, 160, 192, 256};
    struct kernel_choice choice;
    for (unsigned k = 0; kernel_choice(k, &choice); k++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct cattn_config config = config_of(&choice, 4 * CHUNK);
            struct engine e;
            struct toy toy;
            int32_t tokens[CHUNK + 3] = {0};
            config.head_dim = sizes[i];
            engine_init(&e, &config, i);
            e.guard = i % 2 ? GUARD_END : GUARD_START;
            engine_prefill(&e, &toy, 0, tokens, CHUNK + 3, 0);
            engine_close(&e, &toy);
            engine_free(&e);
        }
}
END_TEST

START_TEST(a9_head_ratios)
{
    static const uint32_t ratios[][2] = {{5, 1}, {12, 2}, {28, 4}, {24, 4}, {9, 3}, {64, 4}, {71, 1}, {6, 1}, {7, 7}};
    int32_t tokens[CHUNK + 5] = {0};
    struct kernel_choice choice;
    for (unsigned k = 0; kernel_choice(k, &choice); k++)
        for (size_t i = 0; i < sizeof ratios / sizeof *ratios; i++) {
            struct cattn_config config = config_of(&choice, 0);
            config.n_heads = ratios[i][0];
            config.n_kv_heads = ratios[i][1];
            alone(config, tokens, CHUNK + 5);
        }
}
END_TEST

START_TEST(a16_used_slots_return_to_zero)
{
    enum { N = 8, ROUNDS = 100 };
    struct cattn_config config = engine_config(60 * CHUNK);
    struct engine e;
    struct toy toys[N];
    int32_t tokens[4 * CHUNK];
    engine_init(&e, &config, 16);
    e.check_rows = 1;
    e.unchecked = 1;
    random_tokens(&e.rng, tokens, 4 * CHUNK, 1000);
    for (int32_t round = 0; round < ROUNDS; round++) {
        uint32_t order[N];
        for (uint32_t i = 0; i < N; i++) {
            order[i] = i;
            tokens[2 * CHUNK] = 1000 + round * N + (int32_t)i;
            engine_prefill(&e, &toys[i], 0, tokens, 4 * CHUNK, 0);
        }
        rng_shuffle(&e.rng, order, N);
        for (uint32_t i = 0; i < N; i++)
            engine_close(&e, &toys[order[i]]);
        struct cattn_stats stats = engine_stats(&e);
        ck_assert_uint_eq(stats.used_slots, 0);
        ck_assert_uint_eq(stats.used_bytes, 0);
        ck_assert_uint_eq(stats.n_sequences, 0);
        ck_assert_uint_le(stats.peak_used_slots, 2 + 2 * N + 1);
    }
    engine_check(&e, NULL, 0);
    engine_free(&e);
}
END_TEST

static void shared_tail(const struct kernel_choice *choice)
{
    struct cattn_config config = config_of(choice, 20 * CHUNK);
    struct engine e;
    struct toy toys[3];
    int32_t tokens[CHUNK + 5];
    engine_init(&e, &config, 18);
    random_tokens(&e.rng, tokens, CHUNK + 5, 1000);
    engine_prefill(&e, &toys[0], 0, tokens, CHUNK + 5, 0);
    engine_fork(&e, &toys[0], &toys[1]);
    engine_prefill(&e, &toys[2], 0, tokens, CHUNK + 5, 0);
    for (int32_t i = 0; i < 2 * CHUNK; i++) {
        /* In turn, and then all at once. */
        if (i < CHUNK)
            decode(&e, &toys[i % 3], 1, 100 + i);
        else
            decode(&e, toys, 3, 3 * i);
        engine_check(&e, toys, 3);
    }
    for (size_t i = 0; i < 3; i++)
        engine_close(&e, &toys[i]);
    ck_assert_uint_eq(engine_stats(&e).used_slots, 0);
    engine_free(&e);
}

START_TEST(a18_shared_partly_filled_tail)
{
    for_each_choice(shared_tail);
}
END_TEST

enum cancel { BEFORE_BEGIN, AFTER_BEGIN, AFTER_WRITE, BETWEEN_LAYERS, AFTER_ATTEND, AFTER_END, N_CANCELS };

/* Stores the first layer, closes, attends: as the engine does it afterwards, and compares with the oracle. */
static void cancel_between_write_and_attend(struct engine *e, const struct toy *victim)
{
    struct cattn_io io;
    engine_load(e, 0, &io);
    ck_assert_int_eq(cattn_step_write(e->step, 0, &io), CATTN_OK);
    ck_assert_int_eq(cattn_seq_close(e->cache, victim->seq), CATTN_OK);
    io.k = io.v = NULL;
    ck_assert_int_eq(cattn_step_attend(e->step, 0, &io), CATTN_OK);
    unsigned char *bytes = malloc(e->out.bytes);
    memcpy(bytes, e->out.data, e->out.bytes);
    engine_layer(e, 0);
    ck_assert_mem_eq(bytes, e->out.data, e->out.bytes);
    free(bytes);
}

/* All layers of the open step, and the close in the middle of them. */
static void cancel_in_step(struct engine *e, const struct toy *victim, enum cancel when)
{
    if (when == AFTER_BEGIN)
        ck_assert_int_eq(cattn_seq_close(e->cache, victim->seq), CATTN_OK);
    if (when == AFTER_WRITE)
        cancel_between_write_and_attend(e, victim);
    else
        engine_layer(e, 0);
    if (when == BETWEEN_LAYERS)
        ck_assert_int_eq(cattn_seq_close(e->cache, victim->seq), CATTN_OK);
    engine_layer(e, 1);
    if (when == AFTER_ATTEND)
        ck_assert_int_eq(cattn_seq_close(e->cache, victim->seq), CATTN_OK);
}

static void cancel_at(enum cancel when, uint32_t flags)
{
    enum { N = 8, STEPS = 2 * N };
    struct cattn_config config = engine_config(60 * CHUNK);
    struct engine e;
    struct toy toys[N];
    int32_t prompt[CHUNK + 20];
    config.n_layers = 2;
    config.flags = flags;
    engine_init(&e, &config, 19);
    random_tokens(&e.rng, prompt, CHUNK + 20, 1000);
    for (size_t i = 0; i < N; i++)
        engine_prefill(&e, &toys[i], 0, prompt, CHUNK + 10 + i, 0);
    for (int32_t k = 0; k < STEPS; k++) {
        struct engine_item items[N];
        int32_t tokens[N];
        size_t victim = (size_t)k % N, n = 0;
        if (when == BEFORE_BEGIN)
            engine_close(&e, &toys[victim]);
        for (size_t i = 0; i < N; i++) {
            tokens[i] = 50 * k + (int32_t)i;
            if (when != BEFORE_BEGIN || i != victim)
                items[n++] = (struct engine_item){.toy = &toys[i], .tokens = &tokens[i], .n_tokens = 1};
        }
        ck_assert_int_eq(engine_begin(&e, items, n), CATTN_OK);
        cancel_in_step(&e, &toys[victim], when);
        if (k % 5 == 4)
            engine_abort(&e);
        else
            engine_end(&e);
        if (when == AFTER_END)
            engine_close(&e, &toys[victim]);
        else
            toy_free(&toys[victim]);
        engine_prefill(&e, &toys[victim], 0, prompt, CHUNK + 10 + victim, 0);
        engine_check(&e, toys, N);
    }
    for (size_t i = 0; i < N; i++)
        engine_close(&e, &toys[i]);
    engine_free(&e);
}

START_TEST(a19_cancel_at_any_point)
{
    for (int when = 0; when < N_CANCELS; when++) {
        cancel_at((enum cancel)when, 0);
        cancel_at((enum cancel)when, CATTN_NO_RETAIN | CATTN_ZERO_FREED);
    }
}
END_TEST

/* A hash that tells nothing apart: sharing must rest on the tokens alone. */
START_TEST(a20_everything_collides)
{
    enum { N = 12, LENGTH = 2 * CHUNK + 3 };
    struct cattn_config config = engine_config(100 * CHUNK);
    struct engine e;
    struct toy toys[N];
    int32_t tokens[N][LENGTH];
    engine_init(&e, &config, 20);
    e.cache->tree.constant_hash = true;
    random_tokens(&e.rng, tokens[0], N * LENGTH, 1000);
    for (size_t i = 0; i < N; i++) {
        if (i % 3 == 1) /* one token apart, in the first chunk or in the second */
            memcpy(tokens[i], tokens[i - 1], sizeof tokens[i]);
        if (i % 3 == 1)
            tokens[i][i % 2 ? CHUNK - 1 : CHUNK]++;
        engine_prefill(&e, &toys[i], i / 3 % 2, tokens[i], LENGTH, 0);
    }
    decode(&e, toys, N, 5);
    engine_check(&e, toys, N);
    for (size_t i = 0; i < N; i++) {
        struct toy twin;
        ck_assert_uint_ge(engine_open(&e, &twin, toys[i].space, tokens[i], LENGTH), 2 * CHUNK);
        ck_assert_mem_eq(twin.tokens, tokens[i], 2 * CHUNK * sizeof **tokens);
        engine_feed(&e, &twin, tokens[i], 1);
        engine_close(&e, &twin);
        engine_close(&e, &toys[i]);
    }
    engine_check(&e, NULL, 0);
    engine_free(&e);
}
END_TEST

START_TEST(a25_batch_of_one_and_of_none)
{
    static const uint32_t heads[][2] = {{1, 1}, {8, 2}};
    static const size_t lengths[] = {1, 2, CHUNK, CHUNK + 1};
    int32_t tokens[CHUNK + 1] = {0};
    struct kernel_choice choice;
    for (unsigned k = 0; kernel_choice(k, &choice); k++)
        for (size_t h = 0; h < 2; h++)
            for (size_t l = 0; l < 4; l++)
                for (uint32_t dim = 1; dim <= 64; dim *= 8) {
                    struct cattn_config config = config_of(&choice, 0);
                    config.n_heads = heads[h][0];
                    config.n_kv_heads = heads[h][1];
                    config.head_dim = dim;
                    alone(config, tokens, lengths[l]);
                }
    struct cattn_config config = engine_config(4 * CHUNK);
    struct engine e;
    engine_init(&e, &config, 25);
    struct cattn_stats before = engine_stats(&e);
    engine_step(&e, NULL, 0);
    ck_assert_int_eq(engine_begin(&e, NULL, 0), CATTN_OK);
    engine_end(&e);
    struct cattn_stats after = engine_stats(&e);
    ck_assert_mem_eq(&before, &after, sizeof before);
    engine_free(&e);
}
END_TEST

/* Namespaces share nothing, whatever their names have in common. */
START_TEST(namespaces)
{
    struct cattn_config config = engine_config(40 * CHUNK);
    struct engine e;
    struct toy a, b;
    int32_t tokens[2 * CHUNK];
    engine_init(&e, &config, 30);
    random_tokens(&e.rng, tokens, 2 * CHUNK, 1000);
    engine_prefill(&e, &a, 0, tokens, 2 * CHUNK, 0);
    for (uint64_t space = 1; space < 4; space++) {
        ck_assert_uint_eq(engine_open(&e, &b, space, tokens, 2 * CHUNK), 0);
        engine_feed(&e, &b, tokens, 2 * CHUNK);
        ck_assert_uint_eq(engine_stats(&e).used_slots, 4);
        engine_close(&e, &b);
    }
    cattn_seq seq;
    size_t n_cached;
    for (size_t n = 1; n < 8; n++) { /* names that are prefixes of one that is known */
        uint64_t name = 3;
        ck_assert_int_eq(cattn_seq_open(e.cache, &name, n, tokens, 2 * CHUNK, &seq, &n_cached), CATTN_OK);
        ck_assert_uint_eq(n_cached, 0);
        ck_assert_int_eq(cattn_seq_close(e.cache, seq), CATTN_OK);
    }
    engine_close(&e, &a);
    engine_free(&e);
}
END_TEST

/* ---- what is not a number ---------------------------------------------------------------------------- */

enum spoilt { NOTHING, ONE_QUERY, FIRST_KEYS, KEYS_OF_A_SPAN, N_SPOILT };
enum { SPAN = 1024, SPOILT_ROWS = SPAN + 70, SPOILT_HEAD = 1, N_RELATED = 3, N_ROWS = SPOILT_ROWS + 5 + 100 };

/* Toy 0 is spoilt; toy 1 has its first span in common, toy 2 nothing. */
static const uint32_t related_rows[N_RELATED] = {SPOILT_ROWS, 5, 100};

static void spoil_heads(struct engine *e, struct buffer *b, uint32_t row, uint32_t first_head, uint32_t end)
{
    guard_lock(b->data, b->bytes, e->guard, 0);
    for (uint32_t head = first_head; head < end; head++)
        dtype_store(e->config.io_dtype, b->data, row * b->row + head * b->head, NAN);
    guard_lock(b->data, b->bytes, e->guard, 1);
}

static void spoil(struct engine *e, enum spoilt what)
{
    uint32_t first = what == FIRST_KEYS ? 0 : SPAN;
    if (what == ONE_QUERY)
        spoil_heads(e, &e->q, SPOILT_ROWS - 3, SPOILT_HEAD, SPOILT_HEAD + 1);
    if (what == FIRST_KEYS || what == KEYS_OF_A_SPAN)
        for (uint32_t i = 0; i < 64; i++)
            spoil_heads(e, &e->k, first + i, 0, e->config.n_kv_heads);
}

/* One step; bytes: the outputs of its rows. */
static void spoilt_step(const struct cattn_config *config, enum spoilt what, unsigned char *bytes)
{
    struct engine e;
    struct toy toys[N_RELATED];
    struct engine_item items[N_RELATED];
    struct cattn_io io;
    int32_t tokens[N_RELATED][SPOILT_ROWS];
    engine_init(&e, config, 35);
    random_tokens(&e.rng, tokens[0], N_RELATED * SPOILT_ROWS, 1000);
    memcpy(tokens[1], tokens[0], SPAN * sizeof **tokens);
    for (size_t i = 0; i < N_RELATED; i++) {
        uint32_t n_tokens = i == 1 ? SPAN + related_rows[i] : related_rows[i];
        engine_open(&e, &toys[i], 0, NULL, 0);
        items[i] = (struct engine_item){.toy = &toys[i], .tokens = tokens[i], .n_tokens = n_tokens};
    }
    ck_assert_int_eq(engine_begin(&e, items, N_RELATED), CATTN_OK);
    ck_assert_uint_eq(e.n_rows, N_ROWS);
    engine_load(&e, 0, &io);
    spoil(&e, what);
    ck_assert_int_eq(cattn_step_attend(e.step, 0, &io), CATTN_OK);
    for (uint32_t row = 0; row < N_ROWS; row++)
        engine_output(&e, row, bytes + row * engine_output_bytes(&e));
    engine_end(&e);
    for (size_t i = 0; i < N_RELATED; i++)
        engine_close(&e, &toys[i]);
    engine_free(&e);
}

static int is_spoilt(enum spoilt what, uint32_t row, uint32_t head)
{
    switch (what) {
    case ONE_QUERY: return row == SPOILT_ROWS - 3 && head == SPOILT_HEAD;
    case FIRST_KEYS: return row < SPOILT_ROWS + related_rows[1];
    case KEYS_OF_A_SPAN: return row >= SPAN && row < SPOILT_ROWS;
    default: return 0;
    }
}

/* What is spoilt is NaN and nothing else, so that it is seen; all other rows have the bits of the clean run. */
static void compare_spoilt(const struct cattn_config *config, enum spoilt what, const unsigned char *clean,
                           const unsigned char *got)
{
    size_t dim = config->head_dim * sizeof(float), row_bytes = config->n_heads * (dim + sizeof(float));
    for (uint32_t row = 0; row < N_ROWS; row++)
        for (uint32_t head = 0; head < config->n_heads; head++) {
            size_t out = row * row_bytes + head * dim;
            size_t lse = row * row_bytes + config->n_heads * dim + head * sizeof(float);
            if (!is_spoilt(what, row, head)) {
                CHECK(!memcmp(got + out, clean + out, dim) && !memcmp(got + lse, clean + lse, sizeof(float)),
                      "%s, spoilt %d, %u threads: row %u, head %u differs", config->kernel, what, config->n_threads,
                      row, head);
                continue;
            }
            for (uint32_t i = 0; i < config->head_dim; i++)
                CHECK(isnan(dtype_load(CATTN_F32, got + out, i)), "%s, spoilt %d, %u threads: row %u, head %u: %g",
                      config->kernel, what, config->n_threads, row, head, dtype_load(CATTN_F32, got + out, i));
            CHECK(isnan(dtype_load(CATTN_F32, got + lse, 0)), "%s, spoilt %d, %u threads: lse of row %u, head %u: %g",
                  config->kernel, what, config->n_threads, row, head, dtype_load(CATTN_F32, got + lse, 0));
        }
}

START_TEST(nan_is_seen)
{
    static const uint32_t forms[][2] = {
        [CATTN_F32] = {32, 1}, [CATTN_F16] = {128, 4}, [CATTN_BF16] = {64, 2}, [CATTN_I8] = {64, 3}};
    struct kernel_choice choice;
    for (unsigned k = 0; kernel_choice(k, &choice); k++) {
        struct cattn_config config = config_of(&choice, 4 * SPAN);
        config.chunk_tokens = forms[choice.kv_dtype][0];
        config.n_threads = forms[choice.kv_dtype][1];
        size_t n = N_ROWS * config.n_heads * (config.head_dim + 1) * sizeof(float);
        unsigned char *clean = malloc(2 * n);
        spoilt_step(&config, NOTHING, clean);
        for (int what = NOTHING; what < N_SPOILT; what++) {
            spoilt_step(&config, (enum spoilt)what, clean + n);
            compare_spoilt(&config, (enum spoilt)what, clean, clean + n);
        }
        free(clean);
    }
}
END_TEST

/* ---- the host's settings ---------------------------------------------------------------------------- */

START_TEST(host_settings_are_left_alone)
{
    struct cattn_config config = engine_config(8 * CHUNK);
    config.n_threads = 2;
#if defined(_OPENMP)
    int threads = omp_get_max_threads(), dynamic = omp_get_dynamic();
#endif
    for (int form = 0; form < N_FORMS; form++) {
        struct engine e;
        struct toy toy;
        int32_t tokens[CHUNK + 1] = {0};
#if defined(__SSE__)
        /* Flush denormals, round up: neither the library's, nor may the library be misled by it. */
        unsigned saved = _mm_getcsr(), odd = 0x1f80 | 0x8000 | 0x4000;
#endif
        engine_init(&e, &config, 31);
        e.form = (enum engine_form)form;
        engine_open(&e, &toy, 0, NULL, 0);
        struct engine_item item = {.toy = &toy, .tokens = tokens, .n_tokens = CHUNK + 1};
        ck_assert_int_eq(engine_begin(&e, &item, 1), CATTN_OK);
        struct cattn_io io;
        engine_load(&e, 0, &io);
#if defined(__SSE__)
        _mm_setcsr(odd);
        int status = cattn_step_attend(e.step, 0, &io);
        unsigned left = _mm_getcsr();
        _mm_setcsr(saved);
        ck_assert_int_eq(status, CATTN_OK);
        CHECK((left & ~0x3fu) == odd, "MXCSR %#x, was %#x", left, odd);
        unsigned char *odd_bits = malloc(2 * engine_output_bytes(&e)), *bits = odd_bits + engine_output_bytes(&e);
        engine_output(&e, CHUNK, odd_bits);
        engine_load(&e, 0, &io);
        ck_assert_int_eq(cattn_step_attend(e.step, 0, &io), CATTN_OK);
        engine_output(&e, CHUNK, bits);
        ck_assert_mem_eq(bits, odd_bits, engine_output_bytes(&e));
        free(odd_bits);
#endif
        engine_layer(&e, 0);
        engine_end(&e);
        engine_close(&e, &toy);
        engine_free(&e);
    }
#if defined(_OPENMP)
    ck_assert_int_eq(omp_get_max_threads(), threads);
    ck_assert_int_eq(omp_get_dynamic(), dynamic);
#endif
}
END_TEST

/* The default scale of a head_dim whose root has to be rounded. */
START_TEST(rounding_mode_of_the_caller)
{
#if defined(FE_UPWARD) && defined(FE_DOWNWARD) && defined(FE_TOWARDZERO)
    static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    struct kernel_choice choice;
    for (unsigned k = 0; kernel_choice(k, &choice); k++) {
        struct cattn_config config = config_of(&choice, 8 * CHUNK);
        struct engine e;
        struct toy toy;
        struct cattn_io io;
        int32_t tokens[2 * CHUNK] = {0};
        config.head_dim = 40;
        engine_init(&e, &config, 34);
        engine_open(&e, &toy, 0, NULL, 0);
        struct engine_item item = {.toy = &toy, .tokens = tokens, .n_tokens = 2 * CHUNK};
        ck_assert_int_eq(engine_begin(&e, &item, 1), CATTN_OK);
        engine_layer(&e, 0);
        unsigned char *expected = malloc(e.out.bytes);
        memcpy(expected, e.out.data, e.out.bytes);
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
            engine_load(&e, 0, &io);
            ck_assert_int_eq(fesetround(modes[m]), 0);
            int status = cattn_step_attend(e.step, 0, &io), left = fegetround();
            ck_assert_int_eq(fesetround(FE_TONEAREST), 0);
            ck_assert_int_eq(status, CATTN_OK);
            ck_assert_int_eq(left, modes[m]);
            CHECK(!memcmp(e.out.data, expected, e.out.bytes), "%s, rounding mode %d", config.kernel, modes[m]);
        }
        engine_end(&e);
        engine_close(&e, &toy);
        engine_free(&e);
        free(expected);
    }
#endif
}
END_TEST

static void *run_on_small_stack(void *argument)
{
    struct engine *e = argument;
    struct toy toys[3];
    int32_t tokens[12 * CHUNK] = {0};
    tokens[0] = 1;
    engine_prefill(e, &toys[0], 0, tokens, 12 * CHUNK, 0);
    engine_fork(e, &toys[0], &toys[1]);
    engine_fork(e, &toys[0], &toys[2]);
    decode(e, toys, 3, 1);
    engine_truncate(e, &toys[1], 3);
    decode(e, toys, 3, 4);
    engine_check(e, toys, 3);
    for (size_t i = 0; i < 3; i++)
        engine_close(e, &toys[i]);
    return NULL;
}

START_TEST(small_stack)
{
    struct kernel_choice choice;
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    ck_assert_int_eq(pthread_attr_setstacksize(&attributes, 256 * 1024), 0);
    for (unsigned k = 0; kernel_choice(k, &choice); k++) {
        struct cattn_config config = config_of(&choice, 100 * CHUNK);
        struct engine e;
        config.head_dim = 256;
        config.n_heads = 8;
        config.n_threads = 1;
        engine_init(&e, &config, 32);
        e.check_rows = 1;
        ck_assert_int_eq(pthread_create(&thread, &attributes, run_on_small_stack, &e), 0);
        pthread_join(thread, NULL);
        engine_free(&e);
    }
    pthread_attr_destroy(&attributes);
}
END_TEST

/* A step destroyed while open is an aborted one; a cache takes everything with it. */
START_TEST(destroyed_while_open)
{
    struct cattn_config config = engine_config(8 * CHUNK);
    struct engine e;
    struct toy toy;
    int32_t token = 1;
    engine_init(&e, &config, 33);
    engine_open(&e, &toy, 0, NULL, 0);
    struct cattn_item item = {.seq = toy.seq, .tokens = &token, .n_tokens = 1};
    ck_assert_int_eq(cattn_step_begin(e.step, &item, 1), CATTN_OK);
    ck_assert_uint_eq(engine_stats(&e).used_slots, 1);
    cattn_step_destroy(e.step);
    ck_assert_uint_eq(engine_stats(&e).used_slots, 0);
    ck_assert_int_eq(cattn_step_create(e.cache, &e.step), CATTN_OK);
    engine_check(&e, &toy, 1);
    engine_feed(&e, &toy, &token, 1);
    cattn_step_destroy(e.step);
    ck_assert_int_eq(cattn_step_create(e.cache, &e.step), CATTN_OK);
    ck_assert_int_eq(cattn_step_begin(e.step, &item, 1), CATTN_OK);
    cattn_cache_destroy(e.cache);
    toy_free(&toy);
}
END_TEST

/* The numbers of passes do not run out: a step that has counted through all of them goes on. */
START_TEST(more_passes_than_numbers)
{
    struct cattn_config config = engine_config(8 * CHUNK);
    struct engine e;
    struct toy toy;
    engine_init(&e, &config, 36);
    engine_open(&e, &toy, 0, NULL, 0);
    for (int form = 0; form < N_FORMS; form++) {
        e.form = (enum engine_form)form;
        e.step->n_passes = UINT32_MAX - 1;
        for (int32_t i = 0; i < 4; i++)
            decode(&e, &toy, 1, i);
    }
    engine_close(&e, &toy);
    engine_free(&e);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("cases");
    tcase_add_test(tcase, a1_empty_parts);
    tcase_add_test(tcase, a2_stale_slots);
    tcase_add_test(tcase, a3_proper_prefixes);
    tcase_add_test(tcase, a4_equal_prompts_together);
    tcase_add_test(tcase, a5_hits_and_misses_in_a_batch);
    tcase_add_test(tcase, a6_chunk_counts_and_sizes);
    tcase_add_test(tcase, a7_every_length);
    tcase_add_test(tcase, a8_head_sizes);
    tcase_add_test(tcase, a9_head_ratios);
    tcase_add_test(tcase, a16_used_slots_return_to_zero);
    tcase_add_test(tcase, a18_shared_partly_filled_tail);
    tcase_add_test(tcase, a19_cancel_at_any_point);
    tcase_add_test(tcase, a20_everything_collides);
    tcase_add_test(tcase, a25_batch_of_one_and_of_none);
    tcase_add_test(tcase, namespaces);
    tcase_add_test(tcase, nan_is_seen);
    tcase_add_test(tcase, host_settings_are_left_alone);
    tcase_add_test(tcase, rounding_mode_of_the_caller);
    tcase_add_test(tcase, small_stack);
    tcase_add_test(tcase, destroyed_while_open);
    tcase_add_test(tcase, more_passes_than_numbers);
    return suite_run(tcase);
}

/* Sequences that generate equal tokens hold one copy, which is found when a chunk fills, and nobody's output changes.
 */
#include "support/engine.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

enum {
    CHUNK = 32,
    N_TWINS = 4,
    N_TOYS = N_TWINS + 1,
    PROMPT = CHUNK + 13,
    EQUAL = 4 * CHUNK,
    LENGTH = EQUAL + CHUNK + 9
};

/* How the twins go on. */
enum way { TOGETHER, IN_TURN, RAGGED, DRAFTS, FORKED, N_WAYS };

struct batch {
    struct engine e;
    struct rng rng;
    enum way way;
    struct toy toys[N_TOYS]; /* the last one is a stranger */
    int32_t texts[N_TOYS][LENGTH];
};

/* The twins say the same up to EQUAL. */
static void make_texts(struct batch *b)
{
    random_tokens(&b->rng, b->texts[0], N_TOYS * LENGTH, 1000);
    for (size_t i = 1; i < N_TWINS; i++)
        memcpy(b->texts[i], b->texts[0], EQUAL * sizeof **b->texts);
    for (size_t i = 0; i < N_TWINS; i++)
        b->texts[i][EQUAL] = 2000 + (int32_t)i;
}

static void batch_init(struct batch *b, const struct kernel_choice *choice, uint32_t flags, enum way way)
{
    struct cattn_config config = engine_config(60 * CHUNK);
    config.kernel = choice->kernel;
    config.kv_dtype = choice->kv_dtype;
    config.flags = flags;
    memset(b, 0, sizeof *b);
    engine_init(&b->e, &config, 1);
    rng_init(&b->rng, 2);
    b->way = way;
    b->e.check_rows = 1;
    make_texts(b);
}

/* ---- what must be held ------------------------------------------------------------------------------- */

static int is_known(const uint64_t *hashes, size_t n, uint64_t hash)
{
    while (n-- > 0)
        if (hashes[n] == hash)
            return 1;
    return 0;
}

/* Each distinct chunk once, and the tail of each sequence. */
static void check_slots(const struct batch *b, const char *when)
{
    uint64_t chunks[N_TOYS * (LENGTH / CHUNK + 1)];
    size_t n_chunks = 0, n_tails = 0, n_tail_tokens = 0;
    for (size_t i = 0; i < N_TOYS; i++) {
        const struct toy *toy = &b->toys[i];
        for (size_t end = CHUNK; end <= toy->length; end += CHUNK)
            if (!is_known(chunks, n_chunks, toy->hashes[end - 1]))
                chunks[n_chunks++] = toy->hashes[end - 1];
        n_tails += toy->length % CHUNK > 0;
        n_tail_tokens += toy->length % CHUNK;
    }
    struct cattn_stats stats = engine_stats(&b->e);
    CHECK(stats.used_slots == n_chunks + n_tails, "%s, way %d: %d slots for %zu chunks and %zu tails", when, b->way,
          (int)stats.used_slots, n_chunks, n_tails);
    CHECK(stats.cached_tokens == n_chunks * CHUNK + n_tail_tokens, "%s, way %d: %d tokens", when, b->way,
          (int)stats.cached_tokens);
}

/* ---- going on ---------------------------------------------------------------------------------------- */

/* Tokens that a toy is given in a step; 0: it is not in it. */
static size_t draw_tokens(struct batch *b, size_t i, size_t number)
{
    size_t left = LENGTH - b->toys[i].length, n = 1;
    if (i == N_TWINS || b->way == RAGGED)
        n = rng_chance(&b->rng, 60) ? rng_between(&b->rng, 1, 3) : 0;
    else if (b->way == IN_TURN)
        n = number % N_TWINS == i;
    else if (b->way == DRAFTS)
        n = 5;
    return n < left ? n : left;
}

static size_t collect(struct batch *b, size_t number, struct engine_item *items)
{
    uint32_t order[N_TOYS];
    size_t n_items = 0;
    for (uint32_t i = 0; i < N_TOYS; i++)
        order[i] = i;
    rng_shuffle(&b->rng, order, N_TOYS);
    for (size_t k = 0; k < N_TOYS; k++) {
        struct toy *toy = &b->toys[order[k]];
        uint32_t n = (uint32_t)draw_tokens(b, order[k], number);
        if (n)
            items[n_items++] = (struct engine_item){
                .toy = toy, .tokens = b->texts[order[k]] + toy->length, .n_tokens = n, .min_rows = n};
    }
    return n_items;
}

/* Takes back some drafts, none of a chunk that is complete. */
static void reject(struct batch *b)
{
    for (size_t i = 0; b->way == DRAFTS && i < N_TWINS; i++)
        if (b->toys[i].length < LENGTH && b->toys[i].length % CHUNK > 2)
            engine_truncate(&b->e, &b->toys[i], b->toys[i].length - rng_below(&b->rng, 3));
}

static void prefill(struct batch *b, size_t n_spaces)
{
    struct engine_item items[N_TOYS];
    size_t n = b->way == FORKED ? 1 : N_TWINS;
    for (size_t i = 0; i < n; i++) {
        engine_open(&b->e, &b->toys[i], i % n_spaces, b->texts[i], PROMPT);
        items[i] = (struct engine_item){.toy = &b->toys[i], .tokens = b->texts[i], .n_tokens = PROMPT};
    }
    engine_open(&b->e, &b->toys[N_TWINS], 0, NULL, 0);
    engine_step(&b->e, items, n); /* equal prompts at once: their chunk is made once */
    if (b->way != FORKED)
        check_slots(b, "prompts");
    for (; n < N_TWINS; n++)
        engine_fork(&b->e, &b->toys[0], &b->toys[n]);
    for (size_t i = 0; i < N_TWINS; i++)
        b->toys[i].trace = trace_new(&b->e, LENGTH);
}

static int is_done(const struct batch *b)
{
    for (size_t i = 0; i < N_TWINS; i++)
        if (b->toys[i].length < LENGTH)
            return 0;
    return 1;
}

static void run(struct batch *b, size_t n_spaces)
{
    struct engine_item items[N_TOYS];
    prefill(b, n_spaces);
    for (size_t number = 0; !is_done(b); number++) {
        engine_step(&b->e, items, collect(b, number, items));
        check_slots(b, "step");
        reject(b);
        check_slots(b, "rejected drafts");
    }
    engine_check(&b->e, b->toys, N_TOYS);
}

static void batch_free(struct batch *b)
{
    for (size_t i = 0; i < N_TOYS; i++) {
        trace_free(b->toys[i].trace);
        engine_close(&b->e, &b->toys[i]);
    }
    ck_assert_uint_eq(engine_stats(&b->e).used_slots, 0);
    engine_free(&b->e);
}

/* ---- tests ------------------------------------------------------------------------------------------- */

/* Each twin again, in a cache of its own. */
static void compare_with_alone(const struct batch *b, const struct kernel_choice *choice)
{
    for (size_t i = 0; i < N_TWINS; i++) {
        struct engine e;
        struct toy toy;
        engine_init(&e, &b->e.config, 1);
        e.unchecked = 1;
        engine_prefill(&e, &toy, b->toys[i].space, b->texts[i], PROMPT, 0);
        toy.trace = trace_new(&e, LENGTH);
        while (toy.length < LENGTH)
            engine_feed(&e, &toy, b->texts[i] + toy.length, 1);
        ck_assert_uint_eq(trace_known(toy.trace), LENGTH - PROMPT);
        ck_assert_uint_eq(trace_known(b->toys[i].trace), LENGTH - PROMPT);
        if (choice->exact)
            CHECK(trace_differences(toy.trace, b->toys[i].trace) == 0, "%s, kv %u, way %d: twin %zu", choice->kernel,
                  choice->kv_dtype, b->way, i);
        trace_free(toy.trace);
        engine_close(&e, &toy);
        engine_free(&e);
    }
}

START_TEST(twins_hold_one_copy)
{
    static struct batch b;
    struct kernel_choice choice;
    for (unsigned k = 0; kernel_choice(k, &choice); k++)
        for (int way = 0; way < N_WAYS; way++) {
            batch_init(&b, &choice, k % 2 ? CATTN_NO_RETAIN : 0, (enum way)way);
            run(&b, 1);
            compare_with_alone(&b, &choice);
            batch_free(&b);
        }
}
END_TEST

START_TEST(twins_in_two_namespaces)
{
    static struct batch b;
    struct kernel_choice choice;
    ck_assert(kernel_choice(0, &choice));
    for (int way = 0; way < FORKED; way++) {
        batch_init(&b, &choice, 0, (enum way)way);
        run(&b, 2);
        compare_with_alone(&b, &choice);
        batch_free(&b);
    }
}
END_TEST

/* The moment itself: the slower of two finds the chunk with its last token, whose K and V it does not store. */
START_TEST(found_when_the_chunk_fills)
{
    struct cattn_config config = engine_config(8 * CHUNK);
    struct engine e;
    struct toy toys[2];
    int32_t tokens[CHUNK];
    engine_init(&e, &config, 3);
    random_tokens(&e.rng, tokens, CHUNK, 1000);
    engine_open(&e, &toys[0], 0, NULL, 0);
    engine_open(&e, &toys[1], 0, NULL, 0);
    for (size_t n = 0; n + 1 < CHUNK; n++) {
        engine_feed(&e, &toys[0], tokens + n, 1);
        engine_feed(&e, &toys[1], tokens + n, 1);
    }
    engine_feed(&e, &toys[0], tokens + CHUNK - 1, 1);
    ck_assert_uint_eq(engine_stats(&e).used_slots, 2);
    ck_assert_uint_eq(engine_stats(&e).hits, 0);
    engine_feed(&e, &toys[1], tokens + CHUNK - 1, 1);
    ck_assert_uint_eq(engine_stats(&e).used_slots, 1);
    ck_assert_uint_eq(engine_stats(&e).hits, 1);
    ck_assert_uint_eq(engine_stats(&e).cached_tokens, CHUNK);
    engine_check(&e, toys, 2);
    engine_close(&e, &toys[0]);
    engine_close(&e, &toys[1]);
    engine_free(&e);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("duplicates");
    tcase_add_test(tcase, twins_hold_one_copy);
    tcase_add_test(tcase, twins_in_two_namespaces);
    tcase_add_test(tcase, found_when_the_chunk_fills);
    return suite_run(tcase);
}

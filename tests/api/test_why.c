/* Why a prompt was not shared, or not all of it. */
#include "support/engine.h"
#include "support/suite.h"

#include <string.h>

enum { CHUNK = 32, LONGEST = 12 * CHUNK };

static struct engine e;
static int32_t tokens[LONGEST], others[LONGEST];

static void start(uint64_t slots)
{
    struct cattn_config config = engine_config(slots * CHUNK);
    engine_init(&e, &config, 5);
    random_tokens(&e.rng, tokens, LONGEST, 1000);
    for (size_t i = 0; i < LONGEST; i++)
        others[i] = 5000 + tokens[i];
}

/* Caches the whole chunks of n tokens. */
static void leave(const int32_t *text, size_t n, uint64_t space)
{
    struct toy toy;
    engine_prefill(&e, &toy, space, text, n, 0);
    engine_close(&e, &toy);
}

static struct cattn_why why_of(const struct toy *toy)
{
    struct cattn_why why = {.size = sizeof why};
    ck_assert_int_eq(cattn_seq_why(e.cache, toy->seq, &why), CATTN_OK);
    return why;
}

/* Opens, asks, looks at the statistics, closes. */
static void expect(const int32_t *text, size_t n, uint64_t space, uint32_t reason, size_t n_cached)
{
    struct toy toy;
    struct cattn_stats before = engine_stats(&e), after;
    ck_assert_uint_eq(engine_open(&e, &toy, space, text, n), n_cached);
    struct cattn_why why = why_of(&toy);
    after = engine_stats(&e);
    engine_close(&e, &toy);
    CHECK(why.reason == reason, "%s, not %s", cattn_strwhy(why.reason), cattn_strwhy(reason));
    ck_assert(why.n_prompt == n && why.n_cached == n_cached && !why.hits && !why.misses);
    before.opens[reason]++;
    before.unfound_tokens[reason] += n ? n - 1 - n_cached : 0;
    ck_assert_mem_eq(before.opens, after.opens, sizeof before.opens);
    ck_assert_mem_eq(before.unfound_tokens, after.unfound_tokens, sizeof before.unfound_tokens);
}

START_TEST(all)
{
    start(20);
    expect(tokens, 0, 0, CATTN_WHY_ALL, 0);
    expect(tokens, 1, 0, CATTN_WHY_ALL, 0);
    leave(tokens, 2 * CHUNK + 1, 0);
    expect(tokens, 2 * CHUNK + 1, 0, CATTN_WHY_ALL, 2 * CHUNK);
    expect(tokens, 2 * CHUNK, 0, CATTN_WHY_ALL, 2 * CHUNK - 1); /* the last few in a part of a chunk */
    expect(tokens, 2, 0, CATTN_WHY_ALL, 1);
    engine_free(&e);
}
END_TEST

START_TEST(below_a_chunk)
{
    start(20);
    expect(tokens, CHUNK, 0, CATTN_WHY_BELOW_CHUNK, 0);
    leave(tokens, CHUNK - 1, 0); /* no whole chunk: nothing is left of it */
    expect(tokens, CHUNK - 1, 0, CATTN_WHY_BELOW_CHUNK, 0);
    leave(tokens, 2 * CHUNK + 9, 0);
    expect(tokens, 2 * CHUNK + 9, 0, CATTN_WHY_BELOW_CHUNK, 2 * CHUNK);
    leave(tokens, 3 * CHUNK, 0);
    tokens[2 * CHUNK + 5]++;
    expect(tokens, 3 * CHUNK, 0, CATTN_WHY_BELOW_CHUNK, 2 * CHUNK + 5);
    engine_free(&e);
}
END_TEST

START_TEST(an_empty_namespace)
{
    start(20);
    expect(tokens, CHUNK + 1, 0, CATTN_WHY_EMPTY, 0);
    leave(tokens, 2 * CHUNK, 0);
    expect(tokens, 2 * CHUNK, 8, CATTN_WHY_EMPTY, 0);
    ck_assert_int_eq(cattn_namespace_invalidate(e.cache, NULL, 0), CATTN_OK);
    expect(tokens, 2 * CHUNK, 0, CATTN_WHY_EMPTY, 0);
    /* what was evicted before the namespace was invalidated would not have been found */
    leave(tokens, 2 * CHUNK, 0);
    ck_assert_int_eq(cattn_cache_evict(e.cache, UINT64_MAX, NULL), CATTN_OK);
    ck_assert_int_eq(cattn_namespace_invalidate(e.cache, NULL, 0), CATTN_OK);
    expect(tokens, 2 * CHUNK, 0, CATTN_WHY_EMPTY, 0);
    engine_free(&e);
}
END_TEST

START_TEST(other_tokens)
{
    start(40);
    leave(tokens, 3 * CHUNK, 0);
    expect(others, 2 * CHUNK, 0, CATTN_WHY_DIFFERS, 0);
    memcpy(others, tokens, (CHUNK + 7) * sizeof *tokens);
    expect(others, 3 * CHUNK, 0, CATTN_WHY_DIFFERS, CHUNK + 7);
    others[CHUNK] = 7777; /* at the start of a chunk */
    expect(others, 3 * CHUNK, 0, CATTN_WHY_DIFFERS, CHUNK);
    engine_free(&e);
}
END_TEST

START_TEST(the_cached_path_ends)
{
    start(40);
    leave(tokens, 3 * CHUNK, 0);
    expect(tokens, 5 * CHUNK, 0, CATTN_WHY_ENDS, 3 * CHUNK);
    struct toy toy;
    size_t n = engine_open(&e, &toy, 0, tokens, 5 * CHUNK);
    struct engine_item item = {&toy, tokens + n, (uint32_t)(5 * CHUNK - n), 0};
    ck_assert_int_eq(engine_begin(&e, &item, 1), CATTN_OK);
    expect(tokens, 5 * CHUNK, 0, CATTN_WHY_ENDS, 3 * CHUNK); /* being computed, and not to be seen yet */
    engine_layers(&e);
    engine_end(&e);
    expect(tokens, 5 * CHUNK, 0, CATTN_WHY_ALL, 5 * CHUNK - 1);
    engine_close(&e, &toy);
    engine_free(&e);
}
END_TEST

START_TEST(evicted)
{
    start(40);
    leave(tokens, 4 * CHUNK, 0);
    ck_assert_int_eq(cattn_cache_evict(e.cache, 1, NULL), CATTN_OK);
    expect(tokens, 5 * CHUNK, 0, CATTN_WHY_EVICTED, 3 * CHUNK);
    leave(tokens, 4 * CHUNK, 0);
    expect(tokens, 6 * CHUNK, 0, CATTN_WHY_ENDS, 4 * CHUNK);
    leave(others, CHUNK, 0);
    ck_assert_int_eq(cattn_cache_evict(e.cache, 4, NULL), CATTN_OK);
    expect(tokens, 4 * CHUNK, 0, CATTN_WHY_EVICTED, 0);
    ck_assert_int_eq(cattn_cache_evict(e.cache, 1, NULL), CATTN_OK);
    expect(tokens, 4 * CHUNK, 0, CATTN_WHY_EVICTED, 0); /* the name is forgotten, but not that it was evicted */
    expect(tokens, 4 * CHUNK, 8, CATTN_WHY_EMPTY, 0);
    engine_free(&e);
}
END_TEST

START_TEST(a_pool_too_small_for_two_prompts)
{
    start(5);
    for (int i = 0; i < 5; i++) {
        leave(tokens, 3 * CHUNK + 1, 0);
        leave(others, 3 * CHUNK + 1, 0);
    }
    struct cattn_stats stats = engine_stats(&e);
    ck_assert_uint_eq(stats.opens[CATTN_WHY_EMPTY], 1);
    ck_assert_uint_ge(stats.opens[CATTN_WHY_EVICTED], 6);
    ck_assert_uint_gt(stats.unfound_tokens[CATTN_WHY_EVICTED], 5 * CHUNK);
    engine_free(&e);
}
END_TEST

START_TEST(steps_and_forks_count_for_themselves)
{
    struct toy a, b, fork;
    start(20);
    ck_assert_uint_eq(engine_open(&e, &a, 0, tokens, 2 * CHUNK), 0);
    ck_assert_uint_eq(engine_open(&e, &b, 0, tokens, 2 * CHUNK), 0);
    engine_feed(&e, &a, tokens, 2 * CHUNK);
    engine_feed(&e, &b, tokens, 2 * CHUNK); /* cached meanwhile: only the last one is a row, and it is a hit too */
    struct cattn_why why = why_of(&a);
    ck_assert(why.reason == CATTN_WHY_EMPTY && why.hits == 0 && why.misses == 2 * CHUNK);
    why = why_of(&b);
    ck_assert(why.reason == CATTN_WHY_EMPTY && why.hits == 2 * CHUNK && why.misses == 0);
    engine_fork(&e, &b, &fork);
    why = why_of(&fork);
    ck_assert(why.reason == CATTN_WHY_EMPTY && why.n_prompt == 2 * CHUNK && why.hits == 0 && why.misses == 0);
    engine_feed(&e, &fork, others, 3);
    engine_truncate(&e, &fork, 1);
    why = why_of(&fork);
    ck_assert(why.n_prompt == 2 * CHUNK && why.n_cached == 0 && why.hits == 0 && why.misses == 3);
    engine_close(&e, &fork);
    engine_close(&e, &a);
    engine_close(&e, &b);
    engine_free(&e);
}
END_TEST

START_TEST(wrong_arguments)
{
    struct toy toy;
    struct cattn_why why = {.size = sizeof why};
    start(20);
    engine_open(&e, &toy, 0, tokens, 3);
    ck_assert_int_eq(cattn_seq_why(NULL, toy.seq, &why), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_why(e.cache, toy.seq + 1, &why), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_why(e.cache, toy.seq, NULL), CATTN_EINVAL);
    why.size--;
    ck_assert_int_eq(cattn_seq_why(e.cache, toy.seq, &why), CATTN_EINVAL);
    engine_close(&e, &toy);
    engine_free(&e);
    for (uint32_t reason = 0; reason < CATTN_N_WHY; reason++) {
        ck_assert_str_ne(cattn_strwhy(reason), "unknown reason");
        for (uint32_t other = 0; other < reason; other++)
            ck_assert_str_ne(cattn_strwhy(reason), cattn_strwhy(other));
    }
    ck_assert_str_eq(cattn_strwhy(CATTN_N_WHY), "unknown reason");
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("why");
    tcase_add_test(tests, all);
    tcase_add_test(tests, below_a_chunk);
    tcase_add_test(tests, an_empty_namespace);
    tcase_add_test(tests, other_tokens);
    tcase_add_test(tests, the_cached_path_ends);
    tcase_add_test(tests, evicted);
    tcase_add_test(tests, a_pool_too_small_for_two_prompts);
    tcase_add_test(tests, steps_and_forks_count_for_themselves);
    tcase_add_test(tests, wrong_arguments);
    return suite_run(tests);
}

#define _DEFAULT_SOURCE 1 /* pthread_attr_setstacksize */
/* Trees that are very deep or very wide, on a stack of 256 KB: no walk may recurse. */
#include "small.h"
#include "support/suite.h"

#include <pthread.h>
#include <string.h>

#define C       32
#define DEPTH   200000
#define PROMPTS 5000

static void run_on_small_stack(void *(*body)(void *))
{
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    ck_assert_int_eq(pthread_attr_setstacksize(&attributes, 256 * 1024), 0);
    ck_assert_int_eq(pthread_create(&thread, &attributes, body, NULL), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
}

/* Opens it, computes what is not cached, closes it. */
static void serve(struct small *small, const int32_t *tokens, size_t n, size_t expected)
{
    size_t n_cached;
    cattn_seq seq = small_open(small, tokens, n, &n_cached);
    ck_assert_uint_eq(n_cached, expected);
    ck_assert_int_eq(small_append(small, seq, tokens + n_cached, (uint32_t)(n - n_cached)), CATTN_OK);
    ck_assert_int_eq(cattn_seq_close(small->cache, seq), CATTN_OK);
}

static void *deep_body(void *unused)
{
    const int32_t *tokens = small_tokens(1, DEPTH + PROMPTS);
    struct small small = small_make((DEPTH + PROMPTS) / C + 4, C, 1, 0);
    struct cattn_tree *tree = &small.cache->tree;
    cattn_seq seq = small_prefill(&small, tokens, DEPTH), fork;
    for (size_t n = DEPTH + 1; n <= DEPTH + PROMPTS; n++)
        serve(&small, tokens, n, (n - 1) / C * C);
    small_check(&small, DEPTH / C, PROMPTS / C);
    ck_assert_int_eq(cattn_tree_pin(tree, "ns", 2, tokens, DEPTH + PROMPTS), CATTN_OK);
    ck_assert_int_eq(cattn_seq_fork(small.cache, seq, &fork), CATTN_OK);
    ck_assert_int_eq(cattn_seq_truncate(small.cache, fork, 1), CATTN_OK);
    ck_assert_int_eq(cattn_seq_close(small.cache, fork), CATTN_OK);
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    small_check(&small, (DEPTH + PROMPTS) / C, 0);
    ck_assert_int_eq(cattn_tree_unpin(tree, "ns", 2, tokens, DEPTH + PROMPTS), CATTN_OK);
    cattn_tree_evict(tree, PROMPTS / C);
    serve(&small, tokens, DEPTH + 1, DEPTH); /* the leaves went first */
    cattn_tree_invalidate(tree, "ns", 2);
    small_check(&small, 0, 0);
    small_free(&small);
    return unused;
}

START_TEST(a23_deep_trees)
{
    run_on_small_stack(deep_body);
}
END_TEST

/* Siblings with the same first token, found whole however many there are. */
static void *wide_body(void *unused)
{
    enum { N = 3000 };
    struct small small = small_make(N + 4, 4, 1, 0);
    for (int round = 0; round < 2; round++) {
        for (int32_t i = 0; i < N; i++) {
            int32_t tokens[] = {1, 2, 3, 4, 5, i, i, i, 6};
            serve(&small, tokens, 9, round ? 8 : i ? 5 : 0);
        }
        small_check(&small, 0, N + 1);
    }
    cattn_tree_evict(&small.cache->tree, N / 2);
    small_check(&small, 0, N + 1 - N / 2);
    cattn_tree_evict(&small.cache->tree, N);
    small_check(&small, 0, 0);
    small_free(&small);
    return unused;
}

START_TEST(wide_trees)
{
    run_on_small_stack(wide_body);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("deep");
    tcase_add_test(tests, a23_deep_trees);
    tcase_add_test(tests, wide_trees);
    return suite_run(tests);
}

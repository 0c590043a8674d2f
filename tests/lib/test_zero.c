/* CATTN_ZERO_FREED: nothing is left in a slot that is free. */
#include "backends/cpu/store.h"
#include "churn.h"
#include "support/suite.h"

#include <string.h>

static struct small small;
static size_t n_left; /* free slots in which something is left */

static void count_left(void)
{
    const struct cattn_tree *tree = &small.cache->tree;
    for (uint32_t slot = 0; slot < tree->n_touched; slot++) {
        bool left = false;
        if (tree->slots[slot].root != CATTN_NONE)
            continue;
        for (uint32_t i = 0; i < tree->chunk_tokens; i++) {
            left |= cattn_tree_tokens(tree, slot)[i] != 0;
            for (uint32_t layer = 0; layer < small.cache->shape.n_layers; layer++)
                left |= cells_of(small.cache->store, layer, slot)[i] != 0;
        }
        n_left += left;
    }
}

static size_t left_by(uint32_t flags)
{
    struct rng rng;
    n_left = 0;
    for (uint64_t number = 0; number < 20; number++) {
        rng_init(&rng, number);
        small = small_make((uint32_t)rng_between(&rng, 2, 30), 4, 2, flags | (number % 2 ? CATTN_NO_RETAIN : 0));
        churn(&small, &rng, 150, count_left);
        small_free(&small);
    }
    return n_left;
}

START_TEST(nothing_is_left_if_so_asked)
{
    ck_assert_uint_eq(left_by(CATTN_ZERO_FREED), 0);
    ck_assert_uint_gt(left_by(0), 0);
}
END_TEST

static size_t bytes_left(const struct cattn_cache *cache)
{
    const struct cattn_pool *pool = cattn_store_pool(cache->store);
    size_t n = 0;
    for (size_t i = 0; i < pool->n_bytes; i++)
        n += pool->bytes[i] != 0;
    return n;
}

/* On the backend that is there, all data types. */
START_TEST(the_pool_is_zero_when_nothing_is_cached)
{
    static float rows[100 * 3];
    struct cattn_config config = {.size = sizeof config,
                                  .backend = "cpu",
                                  .n_layers = 2,
                                  .n_heads = 1,
                                  .n_kv_heads = 1,
                                  .head_dim = 3,
                                  .chunk_tokens = 32,
                                  .kv_dtype = (uint32_t)_i,
                                  .max_tokens = 200,
                                  .flags = CATTN_ZERO_FREED};
    struct cattn_io io = {.size = sizeof io, .k = rows, .v = rows};
    cattn_cache *cache;
    cattn_step *step;
    cattn_seq seq;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        rows[i] = 1 + (float)i;
    ck_assert_int_eq(cattn_cache_create(&config, &cache), CATTN_OK);
    ck_assert_int_eq(cattn_step_create(cache, &step), CATTN_OK);
    ck_assert_int_eq(cattn_seq_open(cache, NULL, 0, NULL, 0, &seq, NULL), CATTN_OK);
    struct cattn_item item = small_item(seq, small_tokens(1, 100), 100);
    ck_assert_int_eq(cattn_step_begin(step, &item, 1), CATTN_OK);
    for (uint32_t layer = 0; layer < 2; layer++)
        ck_assert_int_eq(cattn_step_write(step, layer, &io), CATTN_OK);
    ck_assert_int_eq(cattn_step_end(step), CATTN_OK);
    ck_assert_uint_ge(bytes_left(cache), 2 * 2 * 100 * 3);
    ck_assert_int_eq(cattn_seq_close(cache, seq), CATTN_OK);
    ck_assert_uint_ge(bytes_left(cache), 2 * 2 * 96 * 3);
    ck_assert_int_eq(cattn_cache_evict(cache, UINT64_MAX, NULL), CATTN_OK);
    ck_assert_uint_eq(bytes_left(cache), 0);
    cattn_cache_destroy(cache);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("zero");
    tcase_add_test(tests, nothing_is_left_if_so_asked);
    tcase_add_loop_test(tests, the_pool_is_zero_when_nothing_is_cached, CATTN_F32, CATTN_I8 + 1);
    return suite_run(tests);
}

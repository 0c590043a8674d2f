/* Priorities, times to live, the order by cost and quotas: directed cases, and random scripts on a naive model that
 * knows chunks as lists and looks at all of them for each decision. */
#include "failing_memory.h"
#include "quota.h"
#include "small.h"
#include "support/random.h"
#include "support/suite.h"

#include <stdio.h>
#include <string.h>

#define C 4 /* tokens of a chunk */

static struct small small;

/* ---- chunks are letters: the prefix "ab" is the chunk of a and below it that of b */

static const int32_t *text(const char *letters, size_t *n)
{
    static int32_t tokens[64 * C];
    *n = strlen(letters) * C;
    for (size_t i = 0; i < *n; i++)
        tokens[i] = letters[i / C] * 100 + (int32_t)(i % C);
    return tokens;
}

static bool cached(const char *ns, const char *letters)
{
    size_t n;
    const int32_t *tokens = text(letters, &n);
    return cattn_tree_leaf(&small.cache->tree, ns, strlen(ns), tokens, n) != CATTN_NONE;
}

static int retain(const char *ns, const char *letters, int32_t priority, uint64_t ttl)
{
    struct cattn_retention retention = {.size = sizeof(retention), .priority = priority, .ttl = ttl};
    size_t n;
    const int32_t *tokens = text(letters, &n);
    return cattn_prefix_retain(small.cache, ns, strlen(ns), tokens, n, NULL, &retention);
}

static int forget(const char *ns, const char *letters)
{
    size_t n;
    const int32_t *tokens = text(letters, &n);
    return cattn_prefix_retain(small.cache, ns, strlen(ns), tokens, n, NULL, NULL);
}

static int set_namespace(const char *ns, uint64_t reserve, uint64_t limit)
{
    struct cattn_namespace_config config = {.size = sizeof(config), .reserve_slots = reserve, .limit_slots = limit};
    return cattn_namespace_set(small.cache, ns, strlen(ns), &config);
}

static cattn_seq open_in(const char *ns)
{
    cattn_seq seq;
    ck_assert_int_eq(cattn_seq_open(small.cache, ns, strlen(ns), NULL, 0, &seq, NULL), CATTN_OK);
    return seq;
}

static void close_one(cattn_seq seq)
{
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
}

/* A sequence of these chunks, which are computed as far as they are not cached.  0: *status says why not. */
static cattn_seq hold(const char *ns, const char *letters, int *status)
{
    size_t n;
    const int32_t *tokens = text(letters, &n);
    cattn_seq seq = open_in(ns);
    *status = small_append(&small, seq, tokens, (uint32_t)n);
    if (!*status)
        return seq;
    close_one(seq);
    return 0;
}

/* The same, and it is closed. */
static int serve(const char *ns, const char *letters)
{
    int status;
    cattn_seq seq = hold(ns, letters, &status);
    if (seq)
        close_one(seq);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    return status;
}

static uint64_t evict(uint64_t n)
{
    uint64_t n_evicted;
    ck_assert_int_eq(cattn_cache_evict(small.cache, n, &n_evicted), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    return n_evicted;
}

static void advance(uint64_t now)
{
    ck_assert_int_eq(cattn_cache_advance(small.cache, now), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
}

static struct cattn_usage usage(const char *ns)
{
    struct cattn_usage usage = {.size = sizeof(usage)};
    ck_assert_int_eq(cattn_namespace_stats(small.cache, ns, strlen(ns), &usage), CATTN_OK);
    return usage;
}

/* ---- priorities */

START_TEST(a_higher_priority_is_evicted_later)
{
    small = small_make(8, C, 1, 0);
    serve("n", "ab");
    serve("n", "c");
    serve("n", "d");
    ck_assert_ptr_null(small.cache->tree.order.ranks);
    ck_assert_int_eq(retain("n", "ab", 5, 0), CATTN_OK);
    ck_assert_int_eq(retain("n", "d", -1, 0), CATTN_OK);
    evict(1);
    ck_assert(!cached("n", "d") && cached("n", "c") && cached("n", "ab"));
    serve("n", "e");
    evict(1);
    ck_assert(!cached("n", "c") && cached("n", "e") && cached("n", "ab"));
    evict(1);
    ck_assert(!cached("n", "e") && cached("n", "ab"));
    evict(1);
    ck_assert(!cached("n", "ab") && cached("n", "a"));
    small_free(&small);
}
END_TEST

START_TEST(a_parent_is_never_evicted_before_its_children)
{
    small = small_make(8, C, 1, 0);
    serve("n", "a");
    ck_assert_int_eq(retain("n", "a", -7, 0), CATTN_OK);
    serve("n", "ab");
    serve("n", "c");
    evict(1);
    ck_assert(!cached("n", "ab") && cached("n", "a") && cached("n", "c"));
    evict(1);
    ck_assert(!cached("n", "a") && cached("n", "c"));
    small_free(&small);
}
END_TEST

START_TEST(of_two_priorities_the_higher_holds_until_it_is_taken_back)
{
    small = small_make(8, C, 1, 0);
    serve("n", "ab");
    serve("n", "c");
    ck_assert_int_eq(retain("n", "a", 5, 0), CATTN_OK);
    ck_assert_int_eq(retain("n", "ab", 1, 0), CATTN_OK);
    ck_assert_int_eq(retain("n", "c", 3, 0), CATTN_OK);
    evict(2);
    ck_assert(!cached("n", "ab") && !cached("n", "c") && cached("n", "a"));
    serve("n", "c");
    ck_assert_int_eq(forget("n", "a"), CATTN_OK);
    evict(1);
    ck_assert(!cached("n", "a") && cached("n", "c"));
    ck_assert_int_eq(retain("n", "a", 5, 0), CATTN_ENOTFOUND);
    serve("n", "a"); /* what was evicted starts from nothing */
    ck_assert_int_eq(retain("n", "c", 1, 0), CATTN_OK);
    evict(1);
    ck_assert(!cached("n", "a"));
    small_free(&small);
}
END_TEST

/* ---- times to live */

START_TEST(what_is_over_is_evicted)
{
    small = small_make(8, C, 1, 0);
    serve("n", "abc");
    ck_assert_int_eq(retain("n", "ab", 9, 10), CATTN_OK);
    ck_assert_int_eq(retain("n", "a", 0, 20), CATTN_OK);
    advance(9);
    ck_assert(cached("n", "abc"));
    advance(10);
    ck_assert(cached("n", "abc")); /* c has no end, and lies below */
    evict(1);                      /* with c goes b */
    ck_assert(!cached("n", "ab") && cached("n", "a"));
    advance(19);
    ck_assert(cached("n", "a"));
    advance(20);
    ck_assert(!cached("n", "a"));
    ck_assert_uint_eq(small.cache->tree.evictions, 3);
    small_check(&small, 0, 0);
    small_free(&small);
}
END_TEST

START_TEST(what_is_in_use_goes_when_it_is_left)
{
    int status;
    small = small_make(8, C, 1, 0);
    cattn_seq seq = hold("n", "ab", &status);
    ck_assert_int_eq(retain("n", "ab", 0, 5), CATTN_OK);
    advance(100);
    ck_assert(cached("n", "ab"));
    close_one(seq);
    ck_assert(!cached("n", "a"));
    seq = hold("n", "ab", &status);
    ck_assert_int_eq(retain("n", "ab", 0, 5), CATTN_OK);
    advance(105);
    ck_assert_int_eq(retain("n", "a", 0, 5), CATTN_OK); /* in time */
    close_one(seq);
    ck_assert(!cached("n", "ab") && cached("n", "a"));
    advance(110);
    ck_assert(!cached("n", "a"));
    small_free(&small);
}
END_TEST

START_TEST(of_two_ends_the_later_holds)
{
    small = small_make(8, C, 1, 0);
    serve("n", "a");
    serve("n", "b");
    serve("n", "c");
    ck_assert_int_eq(retain("n", "a", 0, 10), CATTN_OK);
    ck_assert_int_eq(retain("n", "a", 0, 5), CATTN_OK);
    ck_assert_int_eq(retain("n", "b", 0, 10), CATTN_OK);
    ck_assert_int_eq(retain("n", "b", 0, 0), CATTN_OK);
    ck_assert_int_eq(retain("n", "c", 0, UINT64_MAX), CATTN_OK);
    advance(9);
    ck_assert(cached("n", "a"));
    ck_assert_int_eq(retain("n", "a", 0, 3), CATTN_OK);
    advance(11);
    ck_assert(cached("n", "a"));
    advance(12);
    ck_assert(!cached("n", "a"));
    ck_assert_int_eq(cattn_cache_advance(small.cache, 11), CATTN_EINVAL);
    advance(UINT64_MAX);
    ck_assert(cached("n", "b") && cached("n", "c")); /* no end, and one that never comes */
    ck_assert_int_eq(retain("n", "b", 0, 1), CATTN_OK);
    ck_assert_int_eq(forget("n", "b"), CATTN_OK);
    advance(UINT64_MAX);
    ck_assert(cached("n", "b"));
    small_free(&small);
}
END_TEST

/* ---- cost */

START_TEST(what_costs_more_stays_longer_but_not_for_ever)
{
    small = small_make(16, C, 1, CATTN_EVICT_BY_COST);
    serve("n", "abcdefgh"); /* h costs 6 + 7 * 4 + 2 */
    serve("n", "i");
    serve("n", "j");
    evict(2);
    ck_assert(!cached("n", "i") && !cached("n", "j") && cached("n", "abcdefgh"));
    for (int i = 0; i < 3; i++) { /* 8 more each than the one before: 16, 24, 32 */
        serve("n", "k");
        evict(1);
        ck_assert(!cached("n", "k") && cached("n", "abcdefgh"));
    }
    serve("n", "k");
    evict(1);
    ck_assert(!cached("n", "abcdefgh") && cached("n", "abcdefg"));
    evict(UINT64_MAX);
    small_free(&small);
    small = small_make(16, C, 1, 0);
    serve("n", "ab");
    serve("n", "i");
    evict(1);
    ck_assert(!cached("n", "ab") && cached("n", "i"));
    small_free(&small);
}
END_TEST

START_TEST(priority_comes_before_cost)
{
    small = small_make(16, C, 1, CATTN_EVICT_BY_COST);
    serve("n", "abcd");
    serve("n", "e");
    ck_assert_int_eq(retain("n", "e", 1, 0), CATTN_OK);
    evict(4);
    ck_assert(!cached("n", "a") && cached("n", "e"));
    small_free(&small);
}
END_TEST

/* ---- reserves */

START_TEST(nobody_evicts_what_another_has_reserved)
{
    small = small_make(6, C, 1, 0);
    ck_assert_int_eq(set_namespace("a", 2, 0), CATTN_OK);
    serve("a", "pqr");
    serve("b", "xyz");
    ck_assert_int_eq(serve("b", "uvw"), CATTN_OK); /* r is above the reserve, then its own go */
    ck_assert(cached("a", "pq") && !cached("a", "pqr"));
    ck_assert_uint_eq(usage("a").n_slots, 2);
    ck_assert_int_eq(serve("b", "12345"), CATTN_EFULL);
    ck_assert(cached("a", "pq") && cached("b", "uvw"));
    ck_assert_int_eq(serve("b", "1234"), CATTN_OK);
    ck_assert_int_eq(serve("a", "stuvw"), CATTN_OK); /* its own need is met from its own too */
    ck_assert_uint_eq(usage("a").n_slots, 5);
    ck_assert(set_namespace("a", 0, 0) == CATTN_OK);
    ck_assert_int_eq(serve("b", "123456"), CATTN_OK);
    small_free(&small);
}
END_TEST

START_TEST(a_demand_of_its_own_does_not_go_below_the_reserve)
{
    int status;
    small = small_make(6, C, 1, 0);
    ck_assert_int_eq(set_namespace("a", 4, 0), CATTN_OK);
    serve("a", "pq");
    cattn_seq seq = hold("b", "wxyz", &status);
    ck_assert_int_eq(status, CATTN_OK);
    struct cattn_item items[2];
    int32_t tokens[2][8 * C];
    size_t n[2];
    memcpy(tokens[0], text("rs", &n[0]), 2 * C * sizeof(int32_t));
    memcpy(tokens[1], text("1", &n[1]), C * sizeof(int32_t));
    items[0] = small_item(open_in("a"), tokens[0], (uint32_t)n[0]);
    items[1] = small_item(open_in("b"), tokens[1], (uint32_t)n[1]);
    ck_assert_int_eq(cattn_step_begin(small.step, items, 2), CATTN_EFULL);
    ck_assert(cached("a", "pq"));
    ck_assert_int_eq(cattn_step_begin(small.step, items, 1), CATTN_OK);
    small_finish(&small);
    ck_assert(!cached("a", "p") && cached("a", "rs"));
    close_one(seq);
    ck_assert_int_eq(cattn_step_begin(small.step, items + 1, 1), CATTN_OK);
    small_finish(&small);
    small_free(&small);
}
END_TEST

START_TEST(eviction_on_demand_takes_reserves_last)
{
    small = small_make(8, C, 1, 0);
    ck_assert_int_eq(set_namespace("a", 2, 0), CATTN_OK);
    serve("a", "pqr");
    serve("b", "xy");
    ck_assert_uint_eq(evict(3), 3);
    ck_assert(cached("a", "pq") && !cached("b", "x"));
    ck_assert_uint_eq(evict(UINT64_MAX), 2);
    ck_assert_uint_eq(usage("a").n_slots, 0);
    small_free(&small);
}
END_TEST

START_TEST(the_end_of_its_time_ends_a_reserve)
{
    small = small_make(8, C, 1, 0);
    ck_assert_int_eq(set_namespace("a", 2, 0), CATTN_OK);
    serve("a", "pq");
    ck_assert_int_eq(retain("a", "pq", 0, 1), CATTN_OK);
    advance(1);
    ck_assert(!cached("a", "p"));
    small_free(&small);
}
END_TEST

/* ---- limits */

START_TEST(at_its_limit_a_namespace_evicts_its_own)
{
    int status;
    small = small_make(10, C, 1, 0);
    ck_assert_int_eq(set_namespace("a", 0, 3), CATTN_OK);
    serve("b", "x");
    serve("a", "pqr");
    ck_assert_int_eq(serve("a", "st"), CATTN_OK); /* there are free slots, and x is older */
    ck_assert(cached("b", "x") && cached("a", "p") && !cached("a", "pq"));
    ck_assert_uint_eq(usage("a").n_slots, 3);
    ck_assert_int_eq(serve("a", "1234"), CATTN_ETOOBIG);
    cattn_seq seq = hold("a", "st", &status);
    ck_assert_int_eq(serve("a", "12"), CATTN_EFULL);
    ck_assert_int_eq(serve("a", "1"), CATTN_OK);
    ck_assert_int_eq(serve("b", "123456"), CATTN_OK);
    close_one(seq);
    ck_assert_int_eq(set_namespace("a", 0, 1), CATTN_OK);
    ck_assert_uint_eq(usage("a").n_slots, 3);
    ck_assert_int_eq(serve("a", "st"), CATTN_OK); /* takes no slot */
    ck_assert_int_eq(serve("a", "2"), CATTN_OK);
    ck_assert_uint_eq(usage("a").n_slots, 1);
    small_free(&small);
}
END_TEST

START_TEST(what_a_step_matches_is_not_what_its_limit_evicts)
{
    small = small_make(10, C, 1, 0);
    ck_assert_int_eq(set_namespace("a", 0, 3), CATTN_OK);
    serve("a", "pq");
    serve("a", "x");
    ck_assert_int_eq(serve("a", "pqr"), CATTN_OK);
    ck_assert(cached("a", "pqr") && !cached("a", "x"));
    ck_assert_int_eq(serve("a", "pqrs"), CATTN_ETOOBIG);
    ck_assert(cached("a", "pqr"));
    small_free(&small);
}
END_TEST

/* ---- settings */

START_TEST(settings_belong_to_the_name)
{
    int status;
    small = small_make(8, C, 1, 0);
    ck_assert_int_eq(set_namespace("a", 2, 5), CATTN_OK);
    ck_assert_uint_eq(usage("a").reserve_slots, 2);
    ck_assert_uint_eq(usage("a").limit_slots, 5);
    ck_assert_uint_eq(usage("a").n_sequences, 0);
    cattn_seq seq = hold("a", "pq", &status);
    ck_assert_int_eq(cattn_namespace_invalidate(small.cache, "a", 1), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    ck_assert_uint_eq(usage("a").n_slots, 0);
    ck_assert_uint_eq(usage("a").limit_slots, 5);
    ck_assert_int_eq(serve("a", "pqrst"), CATTN_OK);
    close_one(seq);
    ck_assert_int_eq(serve("a", "uvwxyz"), CATTN_ETOOBIG);
    evict(UINT64_MAX);
    ck_assert_uint_eq(usage("a").reserve_slots, 2);
    ck_assert_int_eq(set_namespace("a", 0, 0), CATTN_OK);
    struct cattn_usage gone = {.size = sizeof(gone)};
    ck_assert_int_eq(cattn_namespace_stats(small.cache, "a", 1, &gone), CATTN_ENOTFOUND);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    small_free(&small);
}
END_TEST

START_TEST(reserves_are_no_more_than_the_pool)
{
    small = small_make(8, C, 1, 0);
    ck_assert_int_eq(set_namespace("a", 9, 0), CATTN_EINVAL);
    ck_assert_int_eq(set_namespace("a", 5, 0), CATTN_OK);
    ck_assert_int_eq(set_namespace("b", 4, 0), CATTN_EINVAL);
    ck_assert_int_eq(set_namespace("b", 3, 0), CATTN_OK);
    ck_assert_int_eq(set_namespace("a", 6, 0), CATTN_EINVAL);
    ck_assert_int_eq(set_namespace("a", 5, 4), CATTN_EINVAL);
    ck_assert_int_eq(set_namespace("a", 1, UINT64_MAX), CATTN_OK);
    ck_assert_int_eq(set_namespace("b", 7, 7), CATTN_OK);
    ck_assert_int_eq(set_namespace("c", UINT64_MAX, 0), CATTN_EINVAL);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    small_free(&small);
}
END_TEST

START_TEST(bad_arguments_are_refused)
{
    struct cattn_retention retention = {.size = sizeof(retention)};
    struct cattn_namespace_config config = {.size = sizeof(config)};
    size_t n;
    const int32_t *tokens = text("a", &n);
    small = small_make(8, C, 1, 0);
    serve("n", "a");
    ck_assert_int_eq(cattn_prefix_retain(NULL, "n", 1, tokens, n, NULL, &retention), CATTN_EINVAL);
    ck_assert_int_eq(cattn_prefix_retain(small.cache, NULL, 1, tokens, n, NULL, &retention), CATTN_EINVAL);
    ck_assert_int_eq(cattn_prefix_retain(small.cache, "n", 1, NULL, n, NULL, &retention), CATTN_EINVAL);
    ck_assert_int_eq(cattn_prefix_retain(small.cache, "n", 1, tokens, C - 1, NULL, &retention), CATTN_ENOTFOUND);
    ck_assert_int_eq(cattn_prefix_retain(small.cache, "m", 1, tokens, n, NULL, &retention), CATTN_ENOTFOUND);
    retention.size--;
    ck_assert_int_eq(cattn_prefix_retain(small.cache, "n", 1, tokens, n, NULL, &retention), CATTN_EINVAL);
    ck_assert_int_eq(cattn_cache_advance(NULL, 0), CATTN_EINVAL);
    ck_assert_int_eq(cattn_namespace_set(NULL, "n", 1, &config), CATTN_EINVAL);
    ck_assert_int_eq(cattn_namespace_set(small.cache, NULL, 1, &config), CATTN_EINVAL);
    ck_assert_int_eq(cattn_namespace_set(small.cache, "n", 1, NULL), CATTN_EINVAL);
    config.size = 0;
    ck_assert_int_eq(cattn_namespace_set(small.cache, "n", 1, &config), CATTN_EINVAL);
    ck_assert_ptr_null(small.cache->tree.order.ranks);
    small_free(&small);
}
END_TEST

START_TEST(saved_prefixes_obey_quotas)
{
    static const char path[] = "test_evict.kv";
    uint64_t n_tokens;
    size_t n;
    small = small_make(8, C, 1, 0);
    serve("a", "pqr");
    const int32_t *tokens = text("pqr", &n);
    ck_assert_int_eq(cattn_prefix_pin(small.cache, "a", 1, tokens, n, NULL), CATTN_OK);
    int status = cattn_prefix_save(small.cache, path, "m", 1);
    small_free(&small);
    if (status == CATTN_ENOTSUP)
        return;
    ck_assert_int_eq(status, CATTN_OK);
    small = small_make(6, C, 1, 0);
    ck_assert_int_eq(set_namespace("a", 0, 2), CATTN_OK);
    ck_assert_int_eq(cattn_prefix_load(small.cache, path, "m", 1, &n_tokens), CATTN_ETOOBIG);
    ck_assert_int_eq(set_namespace("a", 0, 3), CATTN_OK);
    ck_assert_int_eq(set_namespace("b", 4, 0), CATTN_OK);
    serve("b", "wxyz");
    ck_assert_int_eq(cattn_prefix_load(small.cache, path, "m", 1, &n_tokens), CATTN_EFULL);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    ck_assert_int_eq(set_namespace("b", 3, 0), CATTN_OK);
    serve("a", "1");
    ck_assert_int_eq(cattn_prefix_load(small.cache, path, "m", 1, &n_tokens), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    ck_assert(cached("a", "pqr") && !cached("a", "1") && cached("b", "wxy"));
    ck_assert_int_eq(serve("a", "1"), CATTN_EFULL);
    small_free(&small);
    remove(path);
}
END_TEST

/* Changes one number of what the order consists of, and expects that the selfcheck sees it. */
static void expect_fault(void *field, size_t size, const char *name)
{
    unsigned char *bytes = field, before = bytes[0];
    bytes[0] = size == 1 ? !before : (unsigned char)(before + 3);
    ck_assert_msg(cattn_cache_selfcheck(small.cache) == CATTN_ESTATE, "%s goes unnoticed", name);
    bytes[0] = before;
    ck_assert_msg(cattn_cache_selfcheck(small.cache) == CATTN_OK, "%s", name);
}

/* clang-format off */
#define FIELDS                                                                                                         \
    X(order->loose) X(order->kept) X(order->next_end) X(order->n_settings) X(order->reserved) X(order->n_loose)        \
    X(order->asked) X(order->n_asked) X(order->leaves.links[leaf].up) X(order->leaves.links[leaf].rank)                \
    X(order->leaves.links[leaf].left) X(order->leaves.links[leaf].right) X(order->tops.links[root->shown].up)          \
    X(order->ends.links[leaf].up) X(order->ranks[leaf].depth) X(order->ranks[leaf].retained)                           \
    X(order->ranks[leaf].over) X(root->reserve) X(root->has_settings) X(root->leaves) X(root->shown)                   \
    X(root->n_loose) X(root->loose) X(root->is_asked) X(root->n_new) X(root->n_held) X(root->coming)
/* clang-format on */

START_TEST(selfcheck_notices_what_is_wrong)
{
    small = small_make(16, C, 1, CATTN_EVICT_BY_COST);
    ck_assert_int_eq(set_namespace("a", 2, 9), CATTN_OK);
    ck_assert_int_eq(set_namespace("b", 5, 0), CATTN_OK);
    serve("b", "p");
    serve("a", "pq");
    serve("a", "prs");
    ck_assert_int_eq(retain("a", "prs", 4, 100), CATTN_OK);
    ck_assert_int_eq(retain("b", "p", 4, 50), CATTN_OK);
    size_t n;
    const int32_t *tokens = text("prs", &n);
    uint32_t leaf = cattn_tree_leaf(&small.cache->tree, "a", 1, tokens, n);
    struct cattn_order *order = &small.cache->tree.order;
    struct cattn_root *root = cattn_roots_at(&small.cache->tree.roots, small.cache->tree.slots[leaf].root);
#define X(field) expect_fault(&(field), sizeof(field), #field);
    FIELDS
#undef X
    order->ranks[leaf].priority = -1;
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_ESTATE);
    order->ranks[leaf].priority = 4;
    order->ranks[leaf].end = 1;
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_ESTATE);
    order->ranks[leaf].end = 100;
    small_free(&small);
}
END_TEST

/* ---- the naive model */

enum { SPACES = 3, LETTERS = 3, DEEPEST = 6, MOST_CHUNKS = 128, HOLDERS = 8, ITEMS = 3 };

static const char *const spaces[SPACES] = {"a", "", "bc"};

struct chunk {
    bool used, retained, over;
    int space;
    char path[DEEPEST + 1];
    int refs; /* of sequences and pins */
    int32_t priority;
    uint64_t end, stamp, value;
};

struct space {
    uint64_t reserve, limit;
};

/* A sequence, or a pin. */
struct holder {
    bool used, is_pin;
    int space;
    char path[DEEPEST + 1];
    cattn_seq seq;
};

struct naive {
    uint64_t n_slots, clock, stamp, now, evictions;
    bool by_cost;
    struct space spaces[SPACES];
    struct chunk chunks[MOST_CHUNKS];
    struct holder holders[HOLDERS];
};

static struct naive naive;
static struct rng rng;
static bool armed; /* allocations fail in turn */

static struct chunk *find(struct naive *x, int space, const char *path, size_t length)
{
    for (size_t i = 0; i < MOST_CHUNKS; i++) {
        struct chunk *chunk = &x->chunks[i];
        if (chunk->used && chunk->space == space && strlen(chunk->path) == length &&
            !strncmp(chunk->path, path, length))
            return chunk;
    }
    return NULL;
}

static bool is_leaf(const struct naive *x, const struct chunk *chunk)
{
    size_t n = strlen(chunk->path);
    for (size_t i = 0; i < MOST_CHUNKS; i++) {
        const struct chunk *other = &x->chunks[i];
        if (other->used && other->space == chunk->space && strlen(other->path) == n + 1 &&
            !strncmp(other->path, chunk->path, n))
            return false;
    }
    return !chunk->refs;
}

static uint64_t count(const struct naive *x, int space, bool only_idle)
{
    uint64_t n = 0;
    for (size_t i = 0; i < MOST_CHUNKS; i++) {
        const struct chunk *chunk = &x->chunks[i];
        n += chunk->used && (space < 0 || chunk->space == space) && !(only_idle && chunk->refs);
    }
    return n;
}

static bool goes_before(const struct chunk *a, const struct chunk *b)
{
    if (a->priority != b->priority)
        return a->priority < b->priority;
    return a->value != b->value ? a->value < b->value : a->stamp < b->stamp;
}

/* The first leaf of the spaces that may lose one. */
static struct chunk *next_victim(struct naive *x, const bool *may_lose)
{
    struct chunk *first = NULL;
    for (size_t i = 0; i < MOST_CHUNKS; i++) {
        struct chunk *chunk = &x->chunks[i];
        if (chunk->used && may_lose[chunk->space] && is_leaf(x, chunk) && (!first || goes_before(chunk, first)))
            first = chunk;
    }
    return first;
}

static void remove_chunk(struct naive *x, struct chunk *chunk)
{
    while (chunk) {
        size_t n = strlen(chunk->path);
        if (!chunk->over && x->clock < chunk->value)
            x->clock = chunk->value;
        chunk->used = false;
        x->evictions++;
        chunk = n > 1 ? find(x, chunk->space, chunk->path, n - 1) : NULL;
        if (chunk && (!chunk->over || !is_leaf(x, chunk)))
            chunk = NULL;
    }
}

static void hold_path(struct naive *x, int space, const char *path)
{
    for (size_t n = 1; n <= strlen(path); n++)
        find(x, space, path, n)->refs++;
}

static void release_path(struct naive *x, int space, const char *path)
{
    for (size_t n = strlen(path); n; n--) {
        struct chunk *chunk = find(x, space, path, n);
        if (--chunk->refs)
            continue;
        chunk->stamp = ++x->stamp;
        chunk->value = x->by_cost ? x->clock + 6 + (n - 1) * C + C / 2 : 0;
        if (chunk->over && is_leaf(x, chunk))
            remove_chunk(x, chunk);
    }
}

/* What a step needs; the paths of its items are held in x. */
struct demand {
    int n;
    struct holder items[ITEMS];
    uint64_t n_new[SPACES];
    uint64_t n_kept[SPACES];
};

static uint64_t sum(const uint64_t *n)
{
    uint64_t all = 0;
    for (int i = 0; i < SPACES; i++)
        all += n[i];
    return all;
}

/* Chunks that the items have in common count once. */
static void count_demand(struct naive *x, struct demand *d)
{
    for (int i = 0; i < d->n; i++) {
        const struct holder *item = &d->items[i];
        for (size_t n = 1; n <= strlen(item->path); n++) {
            bool seen = false;
            for (int k = 0; k < i; k++)
                seen |= d->items[k].space == item->space && strlen(d->items[k].path) >= n &&
                        !strncmp(d->items[k].path, item->path, n);
            if (!seen && find(x, item->space, item->path, n))
                d->n_kept[item->space]++;
            else if (!seen)
                d->n_new[item->space]++;
        }
    }
}

static void hold_cached(struct naive *x, const struct demand *d)
{
    for (int i = 0; i < d->n; i++) {
        for (size_t n = 1; n <= strlen(d->items[i].path); n++) {
            struct chunk *chunk = find(x, d->items[i].space, d->items[i].path, n);
            if (chunk)
                chunk->refs += MOST_CHUNKS; /* for as long as slots are looked for */
        }
    }
}

/* Evicts what it must; false: there is not enough.  First each namespace's own down to its limit. */
static bool make_room(struct naive *x, const struct demand *d)
{
    uint64_t least[SPACES];
    for (int i = 0; i < SPACES; i++) {
        uint64_t n = count(x, i, false);
        bool own[SPACES] = {false};
        own[i] = true;
        least[i] = n < x->spaces[i].reserve ? n : x->spaces[i].reserve;
        while (d->n_new[i] && x->spaces[i].limit && count(x, i, false) + d->n_new[i] > x->spaces[i].limit) {
            struct chunk *victim = next_victim(x, own);
            if (!victim)
                return false;
            remove_chunk(x, victim);
        }
    }
    while (count(x, -1, false) + sum(d->n_new) > x->n_slots) {
        bool may_lose[SPACES];
        for (int i = 0; i < SPACES; i++)
            may_lose[i] = count(x, i, false) + d->n_new[i] > least[i];
        struct chunk *victim = next_victim(x, may_lose);
        if (!victim)
            return false;
        remove_chunk(x, victim);
    }
    return true;
}

static struct chunk *new_chunk(struct naive *x)
{
    size_t i = 0;
    while (x->chunks[i].used)
        ck_assert_uint_lt(++i, MOST_CHUNKS);
    return &x->chunks[i];
}

static void add_paths(struct naive *x, const struct demand *d)
{
    for (size_t i = 0; i < MOST_CHUNKS; i++)
        x->chunks[i].refs %= MOST_CHUNKS;
    for (int i = 0; i < d->n; i++) {
        const struct holder *item = &d->items[i];
        for (size_t n = 1; n <= strlen(item->path); n++) {
            if (find(x, item->space, item->path, n))
                continue;
            struct chunk *chunk = new_chunk(x);
            *chunk = (struct chunk){.used = true, .space = item->space, .end = UINT64_MAX};
            memcpy(chunk->path, item->path, n);
        }
    }
}

static int expected_status(const struct naive *x, const struct demand *d)
{
    static struct naive copy;
    copy = *x;
    hold_cached(&copy, d);
    if (!sum(d->n_new) || make_room(&copy, d))
        return CATTN_OK;
    for (int i = 0; i < SPACES; i++) {
        if (d->n_new[i] && x->spaces[i].limit && d->n_kept[i] + d->n_new[i] > x->spaces[i].limit)
            return CATTN_ETOOBIG;
    }
    return sum(d->n_kept) + sum(d->n_new) > x->n_slots ? CATTN_ETOOBIG : CATTN_EFULL;
}

/* ---- both */

static void compare(void)
{
    const struct cattn_tree *tree = &small.cache->tree;
    uint64_t n = 0;
    for (size_t i = 0; i < MOST_CHUNKS; i++) {
        const struct chunk *x = &naive.chunks[i];
        CHECK(!x->used || cached(spaces[x->space], x->path), "%s of %s is not cached", x->path, spaces[x->space]);
    }
    for (uint32_t slot = 0; slot < tree->n_touched; slot++)
        n += tree->slots[slot].root != CATTN_NONE;
    CHECK(n == count(&naive, -1, false), "%d slots", (int)n);
    CHECK(tree->n_evictable == count(&naive, -1, true), "%d evictable", (int)tree->n_evictable);
    CHECK(tree->evictions == naive.evictions, "%d evictions, not %d", (int)tree->evictions, (int)naive.evictions);
    CHECK(cattn_cache_selfcheck(small.cache) == CATTN_OK, "selfcheck");
}

/* Makes the call until no allocation fails; those that did have changed nothing. */
#define TRY(status, call)                                                                                              \
  for (size_t k_ = 1; failing_memory_set(armed ? k_ : 0), (status) = (call), failing_memory_hit(); k_++) {             \
    failing_memory_set(0);                                                                                             \
    ck_assert_int_eq(status, CATTN_ENOMEM);                                                                            \
    compare();                                                                                                         \
  }                                                                                                                    \
  failing_memory_set(0)

static int some_space(void)
{
    return (int)rng_below(&rng, SPACES);
}

static void some_path(char *path)
{
    size_t n = rng_between(&rng, 1, rng_chance(&rng, 30) ? DEEPEST : 3);
    memset(path, 0, DEEPEST + 1);
    for (size_t i = 0; i < n; i++)
        path[i] = (char)('a' + rng_below(&rng, LETTERS));
}

static struct holder *some_holder(bool used)
{
    struct holder *x = &naive.holders[rng_below(&rng, HOLDERS)];
    return x->used == used ? x : NULL;
}

static void do_step(void)
{
    struct demand d = {0};
    struct holder *places[ITEMS];
    struct cattn_item items[ITEMS];
    static int32_t tokens[ITEMS][DEEPEST * C];
    for (int tries = (int)rng_between(&rng, 1, ITEMS); tries; tries--) {
        struct holder *place = some_holder(false), *item = &d.items[d.n];
        size_t n;
        if (!place || place->seq)
            continue;
        *item = (struct holder){.used = true, .space = some_space()};
        some_path(item->path);
        item->seq = place->seq = open_in(spaces[item->space]);
        memcpy(tokens[d.n], text(item->path, &n), strlen(item->path) * C * sizeof(int32_t));
        items[d.n] = small_item(item->seq, tokens[d.n], (uint32_t)n);
        places[d.n++] = place;
    }
    if (!d.n)
        return;
    int status;
    count_demand(&naive, &d);
    int expected = expected_status(&naive, &d);
    TRY(status, cattn_step_begin(small.step, items, (size_t)d.n));
    CHECK(status == expected, "begin: %d, not %d", status, expected);
    if (status) {
        compare();
        for (int i = 0; i < d.n; i++) {
            close_one(d.items[i].seq);
            places[i]->seq = 0;
        }
        return;
    }
    hold_cached(&naive, &d);
    if (sum(d.n_new))
        make_room(&naive, &d);
    add_paths(&naive, &d);
    for (int i = 0; i < d.n; i++) {
        hold_path(&naive, d.items[i].space, d.items[i].path);
        *places[i] = d.items[i];
    }
    small_finish(&small);
}

static void do_pin(void)
{
    struct holder *place = some_holder(false), pin = {.used = true, .is_pin = true, .space = some_space()};
    const char *name = spaces[pin.space];
    size_t n;
    if (!place)
        return;
    some_path(pin.path);
    const int32_t *tokens = text(pin.path, &n);
    bool found = find(&naive, pin.space, pin.path, strlen(pin.path)) != NULL;
    ck_assert_int_eq(cattn_prefix_pin(small.cache, name, strlen(name), tokens, n, NULL), found ? CATTN_OK : CATTN_ENOTFOUND);
    if (!found)
        return;
    *place = pin;
    hold_path(&naive, pin.space, pin.path);
}

static void let_go(struct holder *x)
{
    const char *name = spaces[x->space];
    size_t n;
    const int32_t *tokens = text(x->path, &n);
    if (x->is_pin)
        ck_assert_int_eq(cattn_prefix_unpin(small.cache, name, strlen(name), tokens, n, NULL), CATTN_OK);
    else
        close_one(x->seq);
    release_path(&naive, x->space, x->path);
    *x = (struct holder){0};
}

static void do_let_go(void)
{
    struct holder *x = some_holder(true);
    if (x)
        let_go(x);
}

static void do_retain(void)
{
    struct cattn_retention retention = {.size = sizeof(retention),
                                        .priority = (int32_t)rng_below(&rng, 5) - 2,
                                        .ttl = rng_chance(&rng, 50) ? rng_between(&rng, 1, 8) : 0};
    bool given = rng_chance(&rng, 85);
    int space = some_space(), status;
    char path[DEEPEST + 1];
    size_t n;
    some_path(path);
    int32_t tokens[DEEPEST * C];
    memcpy(tokens, text(path, &n), strlen(path) * C * sizeof(int32_t));
    TRY(status, cattn_prefix_retain(small.cache, spaces[space], strlen(spaces[space]), tokens, n, NULL,
                                    given ? &retention : NULL));
    ck_assert_int_eq(status, find(&naive, space, path, strlen(path)) ? CATTN_OK : CATTN_ENOTFOUND);
    for (size_t k = 1; !status && k <= strlen(path); k++) {
        struct chunk *x = find(&naive, space, path, k);
        uint64_t end = retention.ttl ? naive.now + retention.ttl : UINT64_MAX;
        if (!given) {
            x->priority = 0;
            x->end = UINT64_MAX;
        } else if (!x->retained) {
            x->priority = retention.priority;
            x->end = end;
        } else {
            x->priority = x->priority < retention.priority ? retention.priority : x->priority;
            x->end = x->end < end ? end : x->end;
        }
        x->retained = given;
        x->over = false;
    }
}

static void do_advance(void)
{
    naive.now += rng_below(&rng, 4);
    ck_assert_int_eq(cattn_cache_advance(small.cache, naive.now), CATTN_OK);
    for (size_t i = 0; i < MOST_CHUNKS; i++) {
        struct chunk *x = &naive.chunks[i];
        if (!x->used || x->end > naive.now)
            continue;
        x->over = true;
        x->retained = false;
        x->priority = 0;
        x->end = UINT64_MAX;
    }
    for (size_t i = 0; i < MOST_CHUNKS; i++) {
        struct chunk *x = &naive.chunks[i];
        if (x->used && x->over && is_leaf(&naive, x))
            remove_chunk(&naive, x);
    }
}

static void do_evict(void)
{
    uint64_t n = rng_chance(&rng, 10) ? UINT64_MAX : rng_below(&rng, 4), n_evicted, before = naive.evictions;
    uint64_t idle = count(&naive, -1, true), most = n < idle ? idle - n : 0;
    ck_assert_int_eq(cattn_cache_evict(small.cache, n, &n_evicted), CATTN_OK);
    while (count(&naive, -1, true) > most) {
        bool loose[SPACES], all[SPACES] = {true, true, true};
        for (int i = 0; i < SPACES; i++)
            loose[i] = count(&naive, i, false) > naive.spaces[i].reserve;
        struct chunk *victim = next_victim(&naive, loose);
        remove_chunk(&naive, victim ? victim : next_victim(&naive, all));
    }
    ck_assert_uint_eq(n_evicted, naive.evictions - before);
}

static void do_set(void)
{
    int space = some_space(), status;
    uint64_t most = naive.n_slots, reserve = rng_chance(&rng, 50) ? rng_below(&rng, most + 2) : 0;
    uint64_t limit = rng_chance(&rng, 50) ? 1 + rng_below(&rng, most) : 0, others = 0;
    for (int i = 0; i < SPACES; i++)
        others += i == space ? 0 : naive.spaces[i].reserve;
    TRY(status, set_namespace(spaces[space], reserve, limit));
    ck_assert_int_eq(status, (limit && reserve > limit) || others + reserve > most ? CATTN_EINVAL : CATTN_OK);
    if (status)
        return;
    naive.spaces[space] = (struct space){reserve, limit};
    struct cattn_usage usage = {.size = sizeof(usage)};
    int found = cattn_namespace_stats(small.cache, spaces[space], strlen(spaces[space]), &usage);
    ck_assert(found == CATTN_OK || (!reserve && !limit));
    if (found == CATTN_OK)
        ck_assert(usage.reserve_slots == reserve && usage.limit_slots == limit);
}

static void do_invalidate(void)
{
    int space = some_space(), status;
    if (!rng_chance(&rng, 20))
        return;
    for (size_t i = 0; i < HOLDERS; i++) {
        struct holder *x = &naive.holders[i];
        if (x->used && x->space == space && !x->is_pin)
            let_go(x);
        else if (x->used && x->space == space)
            *x = (struct holder){0};
    }
    TRY(status, cattn_namespace_invalidate(small.cache, spaces[space], strlen(spaces[space])));
    ck_assert_int_eq(status, CATTN_OK);
    for (size_t i = 0; i < MOST_CHUNKS; i++)
        naive.chunks[i].used = naive.chunks[i].used && naive.chunks[i].space != space;
}

static void script(uint64_t seed)
{
    static void (*const all[])(void) = {do_step,   do_step,    do_step,  do_let_go, do_let_go,    do_pin,
                                        do_retain, do_advance, do_evict, do_set,    do_invalidate};
    rng_init(&rng, seed);
    naive = (struct naive){.n_slots = rng_between(&rng, 1, rng_chance(&rng, 30) ? 64 : 16), .by_cost = seed % 2};
    armed = rng_chance(&rng, 20);
    small = small_make((uint32_t)naive.n_slots, C, 1, naive.by_cost ? CATTN_EVICT_BY_COST : 0);
    small.cache->tree.constant_hash = rng_chance(&rng, 10);
    for (int i = 0; i < 250; i++) {
        all[rng_below(&rng, sizeof(all) / sizeof(*all))]();
        compare();
    }
    small_free(&small);
}

START_TEST(random_scripts)
{
    for (uint64_t seed = 0; seed < 20; seed++)
        script((uint64_t)_i * 20 + seed);
}
END_TEST

START_TEST(a_cache_by_cost_needs_memory)
{
    struct cattn_shape shape = cells_shape(5, C, 1);
    struct cattn_cache *cache;
    size_t live = failing_memory_live();
    int status;
    for (size_t fail_at = 1;; fail_at++) {
        failing_memory_set(fail_at);
        status = cattn_cache_make(&shape, &cells_backend, NULL, CATTN_EVICT_BY_COST, &cache);
        bool hit = failing_memory_hit();
        failing_memory_set(0);
        if (!hit)
            break;
        ck_assert_int_eq(status, CATTN_ENOMEM);
        ck_assert_uint_eq(failing_memory_live(), live);
    }
    ck_assert_int_eq(status, CATTN_OK);
    cattn_cache_destroy(cache);
    ck_assert_uint_eq(failing_memory_live(), live);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("evict");
    tcase_add_test(tests, a_higher_priority_is_evicted_later);
    tcase_add_test(tests, a_parent_is_never_evicted_before_its_children);
    tcase_add_test(tests, of_two_priorities_the_higher_holds_until_it_is_taken_back);
    tcase_add_test(tests, what_is_over_is_evicted);
    tcase_add_test(tests, what_is_in_use_goes_when_it_is_left);
    tcase_add_test(tests, of_two_ends_the_later_holds);
    tcase_add_test(tests, what_costs_more_stays_longer_but_not_for_ever);
    tcase_add_test(tests, priority_comes_before_cost);
    tcase_add_test(tests, nobody_evicts_what_another_has_reserved);
    tcase_add_test(tests, a_demand_of_its_own_does_not_go_below_the_reserve);
    tcase_add_test(tests, eviction_on_demand_takes_reserves_last);
    tcase_add_test(tests, the_end_of_its_time_ends_a_reserve);
    tcase_add_test(tests, at_its_limit_a_namespace_evicts_its_own);
    tcase_add_test(tests, what_a_step_matches_is_not_what_its_limit_evicts);
    tcase_add_test(tests, settings_belong_to_the_name);
    tcase_add_test(tests, reserves_are_no_more_than_the_pool);
    tcase_add_test(tests, bad_arguments_are_refused);
    tcase_add_test(tests, saved_prefixes_obey_quotas);
    tcase_add_test(tests, selfcheck_notices_what_is_wrong);
    tcase_add_test(tests, a_cache_by_cost_needs_memory);
    tcase_add_loop_test(tests, random_scripts, 0, 20);
    return suite_run(tests);
}

#include "small.h"
#include "support/suite.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct small small;

static size_t length_of(cattn_seq seq)
{
    size_t length;
    ck_assert_int_eq(cattn_seq_length(small.cache, seq, &length), CATTN_OK);
    return length;
}

static const struct cattn_sequence *sequence_of(cattn_seq seq)
{
    return cattn_sequence_find(small.cache, seq);
}

START_TEST(dead_and_forged_handles_are_refused)
{
    small = small_make(8, 4, 1, 0);
    size_t length;
    int32_t token;
    cattn_seq seq = small_open(&small, NULL, 0, NULL), forked;
    ck_assert_uint_ne(seq, 0);
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    cattn_seq again = small_open(&small, NULL, 0, NULL); /* the same place in the table */
    ck_assert_uint_eq(cattn_handle_place(again), cattn_handle_place(seq));
    cattn_seq bad[] = {0, seq, again + 1, again + CATTN_PLACES, UINT64_MAX, cattn_handle_place(again)};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct cattn_item item = small_item(bad[i], small_tokens(1, 1), 1);
        ck_assert_int_eq(cattn_seq_close(small.cache, bad[i]), CATTN_EINVAL);
        ck_assert_int_eq(cattn_seq_fork(small.cache, bad[i], &forked), CATTN_EINVAL);
        ck_assert_int_eq(cattn_seq_truncate(small.cache, bad[i], 0), CATTN_EINVAL);
        ck_assert_int_eq(cattn_seq_length(small.cache, bad[i], &length), CATTN_EINVAL);
        ck_assert_int_eq(cattn_seq_tokens(small.cache, bad[i], &token, 1, &length), CATTN_EINVAL);
        ck_assert_int_eq(cattn_step_begin(small.step, &item, 1), CATTN_EINVAL);
    }
    ck_assert_uint_eq(length_of(again), 0);
    small_free(&small);
}
END_TEST

static cattn_seq open_and_close(void)
{
    cattn_seq seq = small_open(&small, NULL, 0, NULL);
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    return seq;
}

/* Generations go once round, without the one that could make a handle 0. */
START_TEST(a_handle_is_not_given_twice)
{
    small = small_make(1, 4, 1, 0);
    struct cattn_sequences *sequences = &small.cache->sequences;
    cattn_seq first = open_and_close();
    ck_assert_uint_eq(cattn_handle_place(first), 0);
    ck_assert_uint_eq(open_and_close(), first + CATTN_PLACES);
    sequences->handles[0].handle = UINT64_MAX - CATTN_PLACES + 1;
    ck_assert_uint_eq(open_and_close(), UINT64_MAX - CATTN_PLACES + 1);
    ck_assert_uint_eq(open_and_close(), CATTN_PLACES);
    sequences->handles[0].handle = first - CATTN_PLACES;
    ck_assert_uint_eq(open_and_close(), first - CATTN_PLACES);
    cattn_seq other = small_open(&small, NULL, 0, NULL); /* the place is used up */
    ck_assert_uint_eq(cattn_handle_place(other), 1);
    small_free(&small);
}
END_TEST

START_TEST(generations_begin_anywhere)
{
    const uint64_t zero = 0x1f; /* for this place the seed gives the generation 0 */
    ck_assert_uint_eq(cattn_handle_first(zero, 0x1f), CATTN_PLACES + 0x1f);
    for (uint64_t seed = 0; seed < 64; seed++) {
        for (uint32_t place = 0; place < 64; place++) {
            cattn_seq seq = cattn_handle_first(seed, place);
            ck_assert_uint_eq(cattn_handle_place(seq), place);
            ck_assert_uint_ge(seq, CATTN_PLACES);
            ck_assert(place == seed || seq / CATTN_PLACES != cattn_handle_first(seed, (place + 1) % 64) / CATTN_PLACES);
            ck_assert(place == seed || seq != cattn_handle_first((seed + 1) % 64, place));
        }
    }
}
END_TEST

START_TEST(a_table_has_an_end)
{
    small = small_make(1, 4, 1, 0);
    struct cattn_sequences *sequences = &small.cache->sequences;
    cattn_seq seq = small_open(&small, NULL, 0, NULL), other;
    sequences->n = CATTN_PLACES;
    ck_assert_int_eq(cattn_seq_open(small.cache, NULL, 0, NULL, 0, &other, NULL), CATTN_ENOMEM);
    ck_assert_int_eq(cattn_seq_fork(small.cache, seq, &other), CATTN_ENOMEM);
    sequences->n = 1;
    ck_assert_int_eq(cattn_seq_fork(small.cache, seq, &other), CATTN_OK);
    small_free(&small);
}
END_TEST

/* Every cache of the same shape that makes the same calls gives other handles, and knows no others. */
START_TEST(handles_of_other_caches_are_refused)
{
    enum { N = 50 };
    cattn_seq theirs[N], copies[N];
    struct small other = small_make(1, 4, 1, 0);
    small = small_make(1, 4, 1, 0);
    for (int i = 0; i < N; i++) {
        theirs[i] = small_open(&other, NULL, 0, NULL);
        copies[i] = small_open(&small, NULL, 0, NULL);
    }
    for (int i = 0; i < N; i++) {
        ck_assert_uint_ne(theirs[i], copies[i]);
        ck_assert_int_eq(cattn_seq_close(small.cache, theirs[i]), CATTN_EINVAL);
    }
    small_free(&other);
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(cattn_seq_close(small.cache, theirs[i]), CATTN_EINVAL);
        ck_assert_int_eq(cattn_seq_close(small.cache, copies[i]), CATTN_OK);
    }
    small_free(&small);
}
END_TEST

START_TEST(arguments_are_looked_at)
{
    small = small_make(4, 4, 1, 0);
    cattn_seq seq;
    size_t n;
    int32_t token = 1;
    ck_assert_int_eq(cattn_seq_open(NULL, "a", 1, &token, 1, &seq, &n), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_open(small.cache, NULL, 1, &token, 1, &seq, &n), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_open(small.cache, "a", 1, NULL, 1, &seq, &n), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_open(small.cache, "a", 1, &token, 1, NULL, &n), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_open(small.cache, NULL, 0, NULL, 0, &seq, NULL), CATTN_OK);
    ck_assert_int_eq(cattn_seq_fork(small.cache, seq, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_length(small.cache, seq, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_tokens(small.cache, seq, NULL, 1, &n), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_tokens(small.cache, seq, NULL, 0, NULL), CATTN_OK);
    ck_assert_int_eq(cattn_seq_truncate(small.cache, seq, 1), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_truncate(small.cache, seq, 0), CATTN_OK);
    small_free(&small);
}
END_TEST

START_TEST(tokens_are_copied_as_far_as_there_is_room)
{
    small = small_make(4, 4, 1, 0);
    cattn_seq seq = small_prefill(&small, small_tokens(10, 6), 6);
    int32_t tokens[8] = {0};
    size_t length;
    ck_assert_int_eq(cattn_seq_tokens(small.cache, seq, tokens, 4, &length), CATTN_OK);
    ck_assert_uint_eq(length, 6);
    ck_assert_mem_eq(tokens, ((int32_t[]){10, 11, 12, 13, 0, 0, 0, 0}), sizeof(tokens));
    ck_assert_int_eq(cattn_seq_tokens(small.cache, seq, tokens, 8, &length), CATTN_OK);
    ck_assert_mem_eq(tokens, ((int32_t[]){10, 11, 12, 13, 14, 15, 0, 0}), sizeof(tokens));
    small_free(&small);
}
END_TEST

START_TEST(namespaces_share_nothing)
{
    small = small_make(8, 4, 1, 0);
    const char *names[] = {"", "\0", "a", "a\0", "a\0b"};
    size_t lengths[] = {0, 1, 1, 2, 3}, n_cached;
    small_prefill(&small, small_tokens(1, 5), 5); /* in "ns" */
    for (int i = 0; i < 5; i++) {
        cattn_seq seq;
        ck_assert_int_eq(cattn_seq_open(small.cache, names[i], lengths[i], small_tokens(1, 5), 5, &seq, &n_cached),
                         CATTN_OK);
        ck_assert_uint_eq(n_cached, 0);
        ck_assert_int_eq(small_append(&small, seq, small_tokens(1, 4), 4), CATTN_OK);
        small_check(&small, 3 + (uint32_t)i, 0);
    }
    for (int i = 0; i < 5; i++) {
        cattn_seq seq;
        ck_assert_int_eq(cattn_seq_open(small.cache, names[i], lengths[i], small_tokens(1, 5), 5, &seq, &n_cached),
                         CATTN_OK);
        ck_assert_uint_eq(n_cached, 4);
    }
    small_free(&small);
}
END_TEST

/* A fork writes into a slot of its own, whoever of the two goes first. */
START_TEST(a_shared_tail_has_one_writer)
{
    small = small_make(8, 4, 1, 0);
    cattn_seq seq = small_prefill(&small, small_tokens(1, 6), 6), forked;
    ck_assert_int_eq(cattn_seq_fork(small.cache, seq, &forked), CATTN_OK);
    small_check(&small, 2, 0);
    ck_assert_uint_eq(sequence_of(seq)->tail, sequence_of(forked)->tail);
    cattn_seq order[] = {_i ? seq : forked, _i ? forked : seq};
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(small_append(&small, order[i % 2], small_tokens(100 * (i % 2) + i, 1), 1), CATTN_OK);
    ck_assert_uint_eq(length_of(seq), 9);
    small_check(&small, 5, 0); /* one common chunk, two that differ, two tails */
    small_free(&small);
}
END_TEST

START_TEST(the_number_of_used_slots_comes_back_to_nothing)
{
    enum { BATCH = 8 };
    small = small_make(64, 4, 1, _i ? CATTN_NO_RETAIN : 0);
    uint32_t random = 7;
    for (int round = 0; round < 1000; round++) {
        cattn_seq seqs[BATCH];
        for (int i = 0; i < BATCH; i++) {
            int32_t tokens[17];
            memcpy(tokens, small_tokens(1, 9), 9 * sizeof(int32_t));
            for (int k = 9; k < 17; k++)
                tokens[k] = 1000 + i % 4;
            seqs[i] = small_prefill(&small, tokens, 17);
        }
        for (int n = BATCH; n; n--) {
            random = random * 1664525 + 1013904223;
            int i = (int)((random >> 16) % (unsigned)n);
            ck_assert_int_eq(cattn_seq_close(small.cache, seqs[i]), CATTN_OK);
            seqs[i] = seqs[n - 1];
        }
        if (round % 100 == 0)
            small_check(&small, 0, _i ? 0 : 2 + 4 * 2);
        ck_assert_uint_le(small.cache->tree.peak_used, 2 + 4 * 2 + 8);
    }
    small_free(&small);
}
END_TEST

/* 6,250 chunks deep, then prompts that grow by a token, on a stack of 64 KiB: nothing may recurse. */
static void *grow_deep(void *unused)
{
    enum { N = 200000, C = 32 };
    static int32_t tokens[N + 5000];
    size_t n_cached;
    for (int i = 0; i < N + 5000; i++)
        tokens[i] = i % 1000 * 7;
    cattn_seq seq = small_prefill(&small, tokens, N);
    for (size_t n = N; n < N + 5000; n += 50) {
        cattn_seq other = small_open(&small, tokens, n + 1, &n_cached);
        ck_assert_uint_eq(n_cached, (n == N ? N : n - 49) / C * C);
        ck_assert_int_eq(small_append(&small, other, tokens + n_cached, (uint32_t)(n + 1 - n_cached)), CATTN_OK);
        ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
        seq = other;
    }
    ck_assert_int_eq(cattn_seq_truncate(small.cache, seq, 1), CATTN_OK);
    ck_assert_int_eq(cattn_tree_pin(&small.cache->tree, "ns", 2, tokens, N), CATTN_OK);
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    cattn_tree_invalidate(&small.cache->tree, "ns", 2);
    return unused;
}

START_TEST(deep_trees_need_no_stack)
{
    small = small_make(7000, 32, 1, 0);
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    ck_assert_int_eq(pthread_attr_setstacksize(&attributes, 65536), 0);
    ck_assert_int_eq(pthread_create(&thread, &attributes, grow_deep, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
    small_check(&small, 0, 0);
    small_free(&small);
}
END_TEST

/* With one hash for everything prompts that differ still share what they have in common, and no more. */
START_TEST(colliding_prompts_do_not_share)
{
    small = small_make(16, 4, 1, 0);
    small.cache->tree.constant_hash = true;
    size_t n_cached;
    small_prefill(&small, small_tokens(1, 8), 8);
    small_open(&small, small_tokens(2, 8), 8, &n_cached);
    ck_assert_uint_eq(n_cached, 0);
    small_open(&small, (int32_t[]){1, 2, 3, 4, 5, 6, 9, 8}, 8, &n_cached);
    ck_assert_uint_eq(n_cached, 6);
    small_open(&small, (int32_t[]){1, 2, 3, 9, 5, 6, 7, 8}, 8, &n_cached);
    ck_assert_uint_eq(n_cached, 3);
    small_free(&small);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("sequence");
    tcase_add_test(tests, dead_and_forged_handles_are_refused);
    tcase_add_test(tests, a_handle_is_not_given_twice);
    tcase_add_test(tests, generations_begin_anywhere);
    tcase_add_test(tests, a_table_has_an_end);
    tcase_add_test(tests, handles_of_other_caches_are_refused);
    tcase_add_test(tests, arguments_are_looked_at);
    tcase_add_test(tests, tokens_are_copied_as_far_as_there_is_room);
    tcase_add_test(tests, namespaces_share_nothing);
    tcase_add_loop_test(tests, a_shared_tail_has_one_writer, 0, 2);
    tcase_add_loop_test(tests, the_number_of_used_slots_comes_back_to_nothing, 0, 2);
    tcase_add_test(tests, deep_trees_need_no_stack);
    tcase_add_test(tests, colliding_prompts_do_not_share);
    return suite_run(tests);
}

#define _DEFAULT_SOURCE 1 /* pthread_barrier_t */
#include "failing_memory.h"
#include "small.h"
#include "support/suite.h"

#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

static struct small small;

static int begin(cattn_seq seq, const int32_t *tokens, uint32_t n)
{
    struct cattn_item item = small_item(seq, tokens, n);
    return cattn_step_begin(small.step, &item, 1);
}

/* ---- begin, end, abort */

START_TEST(an_item_gets_the_rows_that_are_not_cached)
{
    small = small_make(16, 4, 1, 0);
    small_prefill(&small, small_tokens(1, 8), 8);
    cattn_seq seq = small_open(&small, NULL, 0, NULL), other = small_open(&small, NULL, 0, NULL);
    int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    struct cattn_item items[] = {small_item(seq, tokens, 10), small_item(other, tokens, 8)};
    items[1].min_rows = 3;
    ck_assert_int_eq(cattn_step_begin(small.step, items, 2), CATTN_OK);
    ck_assert_uint_eq(items[0].first_row, 0);
    ck_assert_uint_eq(items[0].n_rows, 2);
    ck_assert_uint_eq(items[0].position, 8);
    ck_assert_uint_eq(items[1].first_row, 2);
    ck_assert_uint_eq(items[1].n_rows, 3);
    ck_assert_uint_eq(items[1].position, 5);
    ck_assert_uint_eq(small.cache->work.n_writes, 1);
    ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
    small_free(&small);
}
END_TEST

START_TEST(wrong_items_are_refused)
{
    small = small_make(8, 4, 1, 0);
    cattn_seq seq = small_open(&small, NULL, 0, NULL), other = small_open(&small, NULL, 0, NULL);
    int32_t tokens[] = {1, 2};
    struct cattn_item items[] = {small_item(seq, tokens, 2), small_item(other, tokens, 2)};
    ck_assert_int_eq(cattn_step_begin(NULL, items, 2), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_begin(small.step, NULL, 1), CATTN_EINVAL);
    items[1].seq = seq;
    ck_assert_int_eq(cattn_step_begin(small.step, items, 2), CATTN_EINVAL);
    items[1] = small_item(other, NULL, 2);
    ck_assert_int_eq(cattn_step_begin(small.step, items, 2), CATTN_EINVAL);
    items[1] = small_item(other, tokens, 0);
    ck_assert_int_eq(cattn_step_begin(small.step, items, 2), CATTN_EINVAL);
    items[1] = small_item(other, tokens, 2);
    tokens[1] = -1;
    ck_assert_int_eq(cattn_step_begin(small.step, items, 2), CATTN_EINVAL);
    tokens[1] = 2;
    ck_assert_int_eq(cattn_step_begin(small.step, items, 2), CATTN_OK);
    ck_assert_int_eq(cattn_step_begin(small.step, NULL, 1), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
    ck_assert_int_eq(cattn_step_abort(small.step), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_end(small.step), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_end(NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_abort(NULL), CATTN_EINVAL);
    small_free(&small);
}
END_TEST

/* A prompt that can never fit says so and leaves everything as it was. */
START_TEST(what_is_too_big_is_told_from_what_is_full)
{
    small = small_make(8, 4, 1, 0);
    cattn_seq seq = small_open(&small, NULL, 0, NULL);
    ck_assert_int_eq(begin(seq, small_tokens(1, 36), 36), CATTN_ETOOBIG);
    ck_assert_int_eq(begin(seq, small_tokens(1, 36), UINT32_MAX), CATTN_ETOOBIG); /* not read that far */
    small_check(&small, 0, 0);
    ck_assert_int_eq(small_append(&small, seq, small_tokens(1, 8), 8), CATTN_OK);
    cattn_seq other = small_open(&small, NULL, 0, NULL);
    ck_assert_int_eq(begin(other, small_tokens(100, 28), 28), CATTN_EFULL);
    small_check(&small, 2, 0);
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    ck_assert_int_eq(small_append(&small, other, small_tokens(100, 28), 28), CATTN_OK);
    small_check(&small, 7, 1);
    small_free(&small);
}
END_TEST

/* Chunks that a step matched and gave back are as evictable as before, leaf first. */
START_TEST(an_abort_keeps_the_order_of_eviction)
{
    small = small_make(4, 4, 1, 0);
    ck_assert_int_eq(cattn_seq_close(small.cache, small_prefill(&small, small_tokens(1, 8), 8)), CATTN_OK);
    cattn_seq seq = small_open(&small, NULL, 0, NULL);
    ck_assert_int_eq(begin(seq, small_tokens(1, 9), 9), CATTN_OK);
    small_check(&small, 3, 0);
    ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
    small_check(&small, 0, 2);
    cattn_tree_evict(&small.cache->tree, 1);
    size_t n_cached;
    small_open(&small, small_tokens(1, 9), 9, &n_cached);
    ck_assert_uint_eq(n_cached, 4);
    small_free(&small);
}
END_TEST

START_TEST(equal_prompts_of_one_step_are_stored_once)
{
    small = small_make(32, 4, 1, 0);
    cattn_seq seqs[8];
    struct cattn_item items[8];
    int32_t tokens[23];
    memcpy(tokens, small_tokens(1, 23), sizeof(tokens));
    for (int i = 0; i < 8; i++)
        seqs[i] = small_open(&small, NULL, 0, NULL);
    for (uint32_t done = 0; done < 23; done += 7) {
        for (int i = 0; i < 8; i++)
            items[i] = small_item(seqs[i], tokens + done, done + 7 < 23 ? 7 : 23 - done);
        ck_assert_int_eq(cattn_step_begin(small.step, items, 8), CATTN_OK);
        small_finish(&small);
    }
    small_check(&small, 5 + 8, 0);
    small_free(&small);
}
END_TEST

START_TEST(a_step_without_items_is_a_step)
{
    small = small_make(4, 4, 2, 0);
    struct cattn_io io = {.size = sizeof(io)};
    ck_assert_int_eq(cattn_step_begin(small.step, NULL, 0), CATTN_OK);
    ck_assert_int_eq(cattn_step_write(small.step, 0, &io), CATTN_OK);
    ck_assert_int_eq(cattn_step_attend(small.step, 0, &io), CATTN_OK);
    ck_assert_int_eq(cattn_step_attend(small.step, 1, &io), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_end(small.step), CATTN_OK);
    ck_assert_uint_eq(small.cache->store->n_attends, 0);
    small_free(&small);
}
END_TEST

START_TEST(a_destroyed_step_is_aborted)
{
    small = small_make(8, 4, 1, 0);
    cattn_seq seq = small_open(&small, NULL, 0, NULL);
    struct cattn_step *other;
    ck_assert_int_eq(cattn_step_create(small.cache, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_create(NULL, &other), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_create(small.cache, &other), CATTN_OK);
    struct cattn_item item = small_item(seq, small_tokens(1, 5), 5);
    ck_assert_int_eq(cattn_step_begin(other, &item, 1), CATTN_OK);
    ck_assert_int_eq(cattn_step_begin(small.step, &item, 1), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_end(small.step), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_abort(small.step), CATTN_ESTATE);
    small_check(&small, 2, 0);
    cattn_step_destroy(other);
    small_check(&small, 0, 0);
    cattn_step_destroy(NULL);
    ck_assert_int_eq(begin(seq, small_tokens(1, 5), 5), CATTN_OK); /* and left open for cache_destroy */
    small_free(&small);
}
END_TEST

/* ---- the work list advances */

START_TEST(steady_decode_builds_and_allocates_nothing)
{
    enum { BATCH = 5, STEPS = 20 };
    small = small_make(64, 32, 2, 0);
    cattn_seq seqs[BATCH];
    struct cattn_item items[BATCH];
    for (int i = 0; i < BATCH; i++) {
        int32_t tokens[34];
        memcpy(tokens, small_tokens(1, 34), sizeof(tokens));
        tokens[33] = i;
        seqs[i] = small_prefill(&small, tokens, 34);
    }
    uint64_t structure = 0, revision = 0;
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < BATCH; i++)
            items[i] = small_item(seqs[i], small_tokens(step, 1), 1);
        failing_memory_set(0);
        ck_assert_int_eq(cattn_step_begin(small.step, items, BATCH), CATTN_OK);
        if (step) { /* but for the fake backend's own */
            ck_assert_uint_eq(failing_memory_count(), 1);
            ck_assert_uint_eq(small.cache->work.structure, structure);
            ck_assert_uint_ne(small.cache->work.revision, revision);
        }
        ck_assert_uint_eq(small.cache->work.n_writes, BATCH);
        ck_assert_uint_eq(items[2].position, 34 + (uint64_t)step);
        ck_assert_uint_eq(small.cache->work.items[2].position, 34 + (uint64_t)step);
        structure = small.cache->work.structure;
        revision = small.cache->work.revision;
        small_finish(&small);
    }
    small_free(&small);
}
END_TEST

static bool advances(cattn_seq a, cattn_seq b)
{
    uint64_t structure = small.cache->work.structure;
    struct cattn_item items[] = {small_item(a, (int32_t[]){1}, 1), small_item(b, (int32_t[]){2}, 1)};
    ck_assert_int_eq(cattn_step_begin(small.step, items, 2), CATTN_OK);
    small_finish(&small);
    return small.cache->work.structure == structure;
}

START_TEST(the_structure_changes_when_it_must)
{
    small = small_make(64, 32, 1, 0);
    struct cattn_step *other;
    cattn_seq a = small_prefill(&small, small_tokens(1, 40), 40), b = small_prefill(&small, small_tokens(2, 40), 40), c;
    ck_assert(!advances(a, b));
    ck_assert(advances(a, b));
    ck_assert(!advances(b, a));
    ck_assert(advances(b, a));
    ck_assert_int_eq(small_append(&small, a, small_tokens(5, 1), 1), CATTN_OK);
    ck_assert(!advances(b, a));
    ck_assert_int_eq(cattn_seq_truncate(small.cache, b, 41), CATTN_OK); /* a rejected draft: the tail stays */
    ck_assert(advances(b, a));
    ck_assert_int_eq(cattn_seq_truncate(small.cache, b, 31), CATTN_OK); /* takes a chunk back */
    ck_assert(!advances(b, a));
    ck_assert(!advances(b, a));
    ck_assert(advances(b, a));
    ck_assert_int_eq(cattn_seq_fork(small.cache, a, &c), CATTN_OK); /* borrows, and sees no more than there is */
    ck_assert(advances(b, a));
    ck_assert(!advances(b, c));
    ck_assert_int_eq(begin(b, small_tokens(1, 1), 1), CATTN_OK);
    ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
    ck_assert(!advances(b, c));
    ck_assert(advances(b, c));
    ck_assert_int_eq(cattn_step_create(small.cache, &other), CATTN_OK);
    struct cattn_item item = small_item(a, small_tokens(1, 1), 1);
    struct cattn_step *mine = small.step;
    small.step = other;
    ck_assert_int_eq(cattn_step_begin(other, &item, 1), CATTN_OK);
    small_finish(&small);
    small.step = mine;
    ck_assert(!advances(b, c));
    while (cattn_sequence_find(small.cache, b)->n_tokens % 32)
        advances(b, c);
    ck_assert(!advances(b, c)); /* a new slot */
    small_free(&small);
}
END_TEST

/* ---- calls of a layer */

static void open_two_rows(uint32_t n_layers)
{
    small = small_make(4, 4, n_layers, 0);
    ck_assert_int_eq(begin(small_open(&small, NULL, 0, NULL), small_tokens(1, 2), 2), CATTN_OK);
}

START_TEST(every_layer_must_be_written)
{
    open_two_rows(2);
    struct cattn_io kv = small_io(&small, true), none = small_io(&small, false);
    ck_assert_int_eq(cattn_step_attend(small.step, 1, &none), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_write(small.step, 1, &kv), CATTN_OK);
    ck_assert_int_eq(cattn_step_attend(small.step, 1, &none), CATTN_OK);
    ck_assert_int_eq(cattn_step_write(small.step, 1, &kv), CATTN_OK);
    ck_assert_int_eq(cattn_step_end(small.step), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_attend(small.step, 0, &kv), CATTN_OK);
    ck_assert_int_eq(cattn_step_end(small.step), CATTN_OK);
    ck_assert_int_eq(cattn_step_attend(small.step, 0, &kv), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_write_part(small.step, 0, &kv, 0, 1), CATTN_ESTATE);
    small_free(&small);
}
END_TEST

START_TEST(buffers_are_looked_at)
{
    open_two_rows(1);
    struct {
        struct cattn_io io;
        char more[8];
    } big = {.io = small_io(&small, true)};
    struct cattn_variant variant = {.size = sizeof(variant)};
    struct cattn_io good = big.io, io = good;
    big.io.size = sizeof(big);
    ck_assert_int_eq(cattn_step_attend(small.step, 0, &big.io), CATTN_OK);
    big.more[7] = 1;
    ck_assert_int_eq(cattn_step_attend(small.step, 0, &big.io), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_attend(small.step, 0, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_attend(NULL, 0, &io), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_attend(small.step, 1, &io), CATTN_EINVAL);
    size_t sizes[] = {0, sizeof(io) - 1, SIZE_MAX};
    for (int i = 0; i < 3; i++) {
        io.size = sizes[i];
        ck_assert_int_eq(cattn_step_attend(small.step, 0, &io), CATTN_EINVAL);
        variant.size = i == 1 ? sizeof(variant) - 1 : sizes[i];
        io = good;
        io.variant = &variant;
        ck_assert_int_eq(cattn_step_attend(small.step, 0, &io), CATTN_EINVAL);
        ck_assert_int_eq(cattn_step_write(small.step, 0, &io), CATTN_OK); /* not looked at */
    }
    float scales[] = {NAN, INFINITY, -1};
    variant.size = sizeof(variant);
    for (int i = 0; i < 3; i++) {
        variant.scale = scales[i];
        ck_assert_int_eq(cattn_step_attend(small.step, 0, &io), CATTN_EINVAL);
    }
    const void **pointers[] = {&io.q, &io.k, &io.v, (const void **)&io.out};
    for (int i = 0; i < 4; i++) {
        io = good;
        *pointers[i] = NULL;
        ck_assert_int_eq(cattn_step_attend(small.step, 0, &io), CATTN_EINVAL);
    }
    const void *inputs[] = {good.q, good.k, good.v};
    for (int i = 0; i < 3; i++) {
        io = good;
        io.out = (void *)inputs[i];
        ck_assert_int_eq(cattn_step_attend(small.step, 0, &io), CATTN_EINVAL);
    }
    io = good;
    io.k = io.v = NULL;
    ck_assert_int_eq(cattn_step_write(small.step, 0, &io), CATTN_EINVAL);
    small_free(&small);
}
END_TEST

/* The first `n` shares of `nth` in an order that depends on nth. */
static void write_shares(uint32_t n, uint32_t nth)
{
    struct cattn_io io = small_io(&small, true);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_int_eq(cattn_step_write_part(small.step, 0, &io, nth - 1 - i, nth), CATTN_OK);
}

static bool is_written(void)
{
    return small.step->passes[0].written;
}

START_TEST(a_layer_is_written_when_all_shares_have_returned)
{
    static const uint32_t counts[] = {1, 2, 3, 63, 64, 65, 1024};
    uint32_t nth = counts[_i];
    open_two_rows(1);
    write_shares(nth - 1, nth);
    ck_assert(!is_written());
    if (nth > 1) {
        write_shares(nth - 1, nth); /* again: they do not count twice */
        ck_assert(!is_written());
        ck_assert_int_eq(cattn_step_end(small.step), CATTN_ESTATE);
    }
    write_shares(nth, nth);
    ck_assert(is_written());
    small_free(&small);
}
END_TEST

START_TEST(shares_that_do_not_fit_together_are_refused)
{
    open_two_rows(2);
    struct cattn_io io = small_io(&small, true), none = small_io(&small, false);
    ck_assert_int_eq(cattn_step_write_part(small.step, 0, &io, 0, 0), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_write_part(small.step, 0, &io, 2, 2), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_write_part(small.step, 0, &io, 0, 1025), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_attend_part(small.step, 0, &none, 0, 2), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_attend_part(small.step, 0, &io, 0, 2), CATTN_OK);
    ck_assert_int_eq(cattn_step_attend_part(small.step, 0, &io, 1, 3), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_write_part(small.step, 0, &io, 1, 2), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_attend_part(small.step, 1, &io, 1, 3), CATTN_OK); /* another layer */
    ck_assert(!is_written());
    ck_assert_int_eq(cattn_step_attend_part(small.step, 0, &io, 1, 2), CATTN_OK);
    ck_assert(is_written());
    ck_assert_int_eq(cattn_step_attend_part(small.step, 0, &none, 4, 5), CATTN_OK); /* a new pass */
    ck_assert_int_eq(cattn_step_attend_part(small.step, 0, &io, 4, 5), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_attend(small.step, 0, &io), CATTN_OK); /* the whole takes the place of a pass */
    ck_assert_int_eq(cattn_step_attend_part(small.step, 0, &io, 0, 2), CATTN_OK);
    ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
    ck_assert_int_eq(begin(small_open(&small, NULL, 0, NULL), small_tokens(1, 2), 2), CATTN_OK);
    ck_assert(!is_written());
    ck_assert_int_eq(cattn_step_attend_part(small.step, 0, &io, 0, 7), CATTN_OK); /* nothing is left of the last step */
    small_free(&small);
}
END_TEST

enum { THREADS = 4, LAYERS = 50 };
static pthread_barrier_t barrier;

static void *take_shares(void *argument)
{
    uint32_t ith = (uint32_t)(size_t)argument;
    uint64_t rows[2] = {1, 2}, q, out;
    struct cattn_io io = {.size = sizeof(io), .q = &q, .k = rows, .v = rows, .out = &out};
    int failed = 0;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        failed |= cattn_step_write_part(small.step, layer, &io, ith, THREADS);
        pthread_barrier_wait(&barrier);
        struct cattn_io none = {.size = sizeof(none), .q = &q, .out = &out};
        failed |= cattn_step_attend_part(small.step, layer, &none, (ith + layer) % THREADS, THREADS);
        pthread_barrier_wait(&barrier);
    }
    return failed ? argument : NULL;
}

START_TEST(shares_come_from_many_threads)
{
    open_two_rows(LAYERS);
    pthread_t threads[THREADS];
    ck_assert_int_eq(pthread_barrier_init(&barrier, NULL, THREADS), 0);
    for (size_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, take_shares, (void *)i), 0);
    for (size_t i = 0; i < THREADS; i++) {
        void *result;
        ck_assert_int_eq(pthread_join(threads[i], &result), 0);
        ck_assert_ptr_null(result);
    }
    pthread_barrier_destroy(&barrier);
    ck_assert_int_eq(cattn_step_end(small.step), CATTN_OK);
    ck_assert_uint_eq(small.cache->read_bytes, LAYERS * 2 * sizeof(uint64_t)); /* two tokens, once a layer */
    small_free(&small);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("step");
    tcase_add_test(tests, an_item_gets_the_rows_that_are_not_cached);
    tcase_add_test(tests, wrong_items_are_refused);
    tcase_add_test(tests, what_is_too_big_is_told_from_what_is_full);
    tcase_add_test(tests, an_abort_keeps_the_order_of_eviction);
    tcase_add_test(tests, equal_prompts_of_one_step_are_stored_once);
    tcase_add_test(tests, a_step_without_items_is_a_step);
    tcase_add_test(tests, a_destroyed_step_is_aborted);
    tcase_add_test(tests, steady_decode_builds_and_allocates_nothing);
    tcase_add_test(tests, the_structure_changes_when_it_must);
    tcase_add_test(tests, every_layer_must_be_written);
    tcase_add_test(tests, buffers_are_looked_at);
    tcase_add_loop_test(tests, a_layer_is_written_when_all_shares_have_returned, 0, 7);
    tcase_add_test(tests, shares_that_do_not_fit_together_are_refused);
    tcase_add_test(tests, shares_come_from_many_threads);
    return suite_run(tests);
}

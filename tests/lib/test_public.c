/* Private namespaces that read a public one: what they find, what becomes of the border between the two when either
 * side grows, shrinks or is forgotten, and that nothing crosses it the other way. */
#include "failing_memory.h"
#include "small.h"
#include "support/suite.h"

#include <stdio.h>
#include <string.h>

enum { C = 4 };

static struct small small;

/* ---- help */

static int set(const char *name, const char *public)
{
    struct cattn_namespace_config config = {.size = sizeof config, .public_ns = public};
    config.public_ns_len = public ? strlen(public) : 0;
    return cattn_namespace_set(small.cache, name, strlen(name), &config);
}

/* Two tenants that read the operator's prompts, and one that does not. */
static void start(uint32_t n_slots, uint32_t flags)
{
    small = small_make(n_slots, C, 1, flags);
    ck_assert_int_eq(set("a", "op"), CATTN_OK);
    ck_assert_int_eq(set("b", "op"), CATTN_OK);
}

static cattn_seq open_in(const char *name, const int32_t *tokens, size_t n, size_t *n_cached)
{
    cattn_seq seq;
    ck_assert_int_eq(cattn_seq_open(small.cache, name, strlen(name), tokens, n, &seq, n_cached), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    return seq;
}

static void close_it(cattn_seq seq)
{
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
}

static void append(cattn_seq seq, const int32_t *tokens, size_t n)
{
    ck_assert_int_eq(small_append(&small, seq, tokens, (uint32_t)n), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
}

static cattn_seq prefill(const char *name, const int32_t *tokens, size_t n)
{
    size_t n_cached;
    cattn_seq seq = open_in(name, tokens, n, &n_cached);
    append(seq, tokens + n_cached, n - n_cached);
    return seq;
}

static void feed(const char *name, const int32_t *tokens, size_t n)
{
    close_it(prefill(name, tokens, n));
}

/* Of n tokens and one more. */
static size_t cached(const char *name, const int32_t *tokens, size_t n)
{
    int32_t text[256];
    size_t n_cached;
    memcpy(text, tokens, n * sizeof *text);
    text[n] = INT32_MAX;
    close_it(open_in(name, text, n + 1, &n_cached));
    return n_cached;
}

/* n tokens: the first n_public count up from 1, the others from 1000 * own. */
static const int32_t *text_of(size_t n_public, int32_t own, size_t n)
{
    static int32_t texts[8][256];
    static unsigned next;
    int32_t *text = texts[next++ % 8];
    for (size_t i = 0; i < n; i++)
        text[i] = (int32_t)i + (i < n_public ? 1 : 1000 * own);
    return text;
}

static const struct cattn_sequence *look(cattn_seq seq)
{
    return cattn_sequence_find(small.cache, seq);
}

static const struct cattn_slot *slot_of(cattn_seq seq, size_t chunk)
{
    return &small.cache->tree.slots[look(seq)->chunks[chunk]];
}

static size_t count_public(cattn_seq seq)
{
    size_t n = 0;
    for (size_t i = 0; i < look(seq)->n_chunks; i++)
        n += slot_of(seq, i)->root != look(seq)->root;
    return n;
}

static struct cattn_usage usage(const char *name)
{
    struct cattn_usage stats = {.size = sizeof stats};
    ck_assert_int_eq(cattn_namespace_stats(small.cache, name, strlen(name), &stats), CATTN_OK);
    return stats;
}

static int pin(const char *name, const int32_t *tokens, size_t n)
{
    int status = cattn_prefix_pin(small.cache, name, strlen(name), tokens, n, NULL);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    return status;
}

static int unpin(const char *name, const int32_t *tokens, size_t n)
{
    int status = cattn_prefix_unpin(small.cache, name, strlen(name), tokens, n, NULL);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    return status;
}

static void invalidate(const char *name)
{
    ck_assert_int_eq(cattn_namespace_invalidate(small.cache, name, strlen(name)), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
}

static void evict(uint64_t n)
{
    ck_assert_int_eq(cattn_cache_evict(small.cache, n, NULL), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
}

/* ---- finding */

START_TEST(tenants_share_what_is_public_and_nothing_else)
{
    start(64, 0);
    feed("op", text_of(9, 0, 9), 9); /* 2 chunks */
    cattn_seq a = prefill("a", text_of(8, 1, 18), 18), b = prefill("b", text_of(8, 1, 18), 18);
    ck_assert_uint_eq(count_public(a), 2);
    ck_assert_uint_eq(count_public(b), 2);
    for (size_t i = 0; i < 2; i++)
        ck_assert_uint_eq(look(a)->chunks[i], look(b)->chunks[i]);
    for (size_t i = 2; i < 4; i++)
        ck_assert_uint_ne(look(a)->chunks[i], look(b)->chunks[i]);
    ck_assert_uint_eq(cached("a", text_of(8, 1, 18), 18), 16);
    ck_assert_uint_eq(cached("op", text_of(8, 1, 18), 18), 8);
    ck_assert_uint_eq(cached("c", text_of(8, 1, 18), 18), 0);
    ck_assert_uint_eq(cached("a", text_of(8, 2, 18), 18), 8);
    close_it(b);
    evict(UINT64_MAX);
    ck_assert_uint_eq(cached("b", text_of(8, 1, 18), 18), 8); /* what a has is a's */
    small_free(&small);
}
END_TEST

START_TEST(what_is_private_stays_so)
{
    start(64, 0);
    feed("a", text_of(18, 0, 18), 18);
    ck_assert_uint_eq(cached("op", text_of(18, 0, 18), 18), 0);
    ck_assert_uint_eq(cached("b", text_of(18, 0, 18), 18), 0);
    ck_assert_uint_eq(cached("a", text_of(18, 0, 18), 18), 16);
    cattn_seq op = prefill("op", text_of(18, 0, 18), 18); /* computed again */
    ck_assert_uint_eq(usage("op").misses, 18);
    ck_assert_uint_eq(usage("op").n_slots, 5);
    ck_assert_uint_eq(usage("a").n_slots, 4);
    close_it(op);
    small_free(&small);
}
END_TEST

START_TEST(the_longest_path_is_found_wherever_it_leaves_the_public_one)
{
    start(64, 0);
    feed("op", text_of(9, 0, 5), 5); /* 1 public chunk */
    feed("a", text_of(20, 0, 21), 21);
    feed("op", text_of(12, 0, 13), 13); /* 3: what a has leaves it behind the first one of them */
    size_t n_cached;
    cattn_seq seq = open_in("a", text_of(20, 0, 21), 21, &n_cached);
    ck_assert_uint_eq(n_cached, 20);
    ck_assert_uint_eq(count_public(seq), 1);
    close_it(seq);
    seq = open_in("a", text_of(12, 0, 13), 13, &n_cached); /* as long: public */
    ck_assert_uint_eq(n_cached, 12);
    ck_assert_uint_eq(count_public(seq), 3);
    append(seq, text_of(20, 0, 21) + 12, 5); /* finds no longer way from here on, so that it computes the chunk */
    ck_assert_uint_eq(count_public(seq), 3);
    close_it(seq);
    seq = open_in("a", text_of(20, 0, 21), 17, &n_cached); /* two ways to 16 tokens: with most public chunks */
    ck_assert_uint_eq(n_cached, 16);
    ck_assert_uint_eq(count_public(seq), 3);
    close_it(seq);
    seq = open_in("a", text_of(20, 0, 21), 20, &n_cached); /* as long in whole chunks; the other goes on */
    ck_assert_uint_eq(n_cached, 19);
    ck_assert_uint_eq(count_public(seq), 1);
    close_it(seq);
    ck_assert_uint_eq(cached("b", text_of(20, 0, 21), 21), 12);
    small_free(&small);
}
END_TEST

/* In a step the same is done for what follows the path that the sequence has. */
START_TEST(a_step_matches_both_again)
{
    start(64, 0);
    size_t n_cached;
    cattn_seq early = open_in("a", text_of(20, 0, 22), 22, &n_cached), late = open_in("a", NULL, 0, NULL);
    feed("op", text_of(9, 0, 9), 9);
    append(early, text_of(20, 0, 22), 22);
    ck_assert_uint_eq(count_public(early), 2);
    ck_assert_uint_eq(look(early)->misses, 14);
    feed("op", text_of(12, 0, 13), 13);
    append(late, text_of(20, 0, 22), 13); /* 3 public ones; a has as many */
    ck_assert_uint_eq(count_public(late), 3);
    cattn_seq more = open_in("a", NULL, 0, NULL);
    append(more, text_of(20, 0, 22), 22); /* a has more */
    ck_assert_uint_eq(count_public(more), 2);
    ck_assert_uint_eq(look(more)->misses, 2);
    ck_assert_uint_eq(look(more)->chunks[4], look(early)->chunks[4]);
    small_free(&small);
}
END_TEST

START_TEST(one_step_can_have_all_of_them)
{
    start(16, 0);
    cattn_seq seqs[4] = {open_in("a", NULL, 0, NULL), open_in("op", NULL, 0, NULL), open_in("a", NULL, 0, NULL),
                         open_in("b", NULL, 0, NULL)};
    struct cattn_item items[4];
    for (size_t i = 0; i < 4; i++)
        items[i] = small_item(seqs[i], text_of(8, 1, 13), 13);
    for (int again = 0; again < 2; again++) {
        ck_assert_int_eq(cattn_step_begin(small.step, items, 4), CATTN_OK);
        ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
        ck_assert_uint_eq(items[0].n_rows, 13); /* nothing is public yet */
        ck_assert_uint_eq(items[1].n_rows, 13);
        ck_assert_uint_eq(items[2].n_rows, 1); /* what the first makes, and public first */
        ck_assert_uint_eq(items[3].n_rows, 1); /* what the second makes */
        if (!again)
            ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
        small_check(&small, again ? 10 : 0, 0);
    }
    small_finish(&small);
    ck_assert_uint_eq(count_public(seqs[0]), 0);
    ck_assert_uint_eq(count_public(seqs[2]), 3);
    ck_assert_uint_eq(count_public(seqs[3]), 3);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    small_free(&small);
}
END_TEST

START_TEST(own_chunks_follow_public_ones_of_the_same_step)
{
    start(16, 0);
    cattn_seq op = open_in("op", NULL, 0, NULL), b[2] = {open_in("b", NULL, 0, NULL), open_in("b", NULL, 0, NULL)};
    struct cattn_item items[3] = {small_item(op, text_of(8, 1, 9), 9), small_item(b[0], text_of(8, 2, 17), 17),
                                  small_item(b[1], text_of(8, 2, 17), 17)};
    ck_assert_int_eq(cattn_step_begin(small.step, items, 3), CATTN_OK);
    ck_assert_uint_eq(items[1].n_rows, 9);
    ck_assert_uint_eq(items[2].n_rows, 1);
    small_finish(&small);
    for (size_t i = 0; i < 2; i++)
        ck_assert_uint_eq(count_public(b[i]), 2);
    ck_assert_uint_eq(look(b[0])->chunks[3], look(b[1])->chunks[3]);
    ck_assert_uint_eq(cached("b", text_of(8, 2, 17), 17), 16);
    small_free(&small);
}
END_TEST

START_TEST(a_part_of_a_chunk_comes_from_either_side)
{
    start(64, 0);
    feed("op", text_of(9, 0, 9), 9);
    feed("op", text_of(5, 7, 9), 9); /* 1 .. 5, 7005 .. */
    feed("a", text_of(7, 8, 9), 9);  /* 1 .. 7, 8007 */
    size_t n_cached;
    cattn_seq seq = open_in("a", text_of(7, 9, 20), 20, &n_cached);
    ck_assert_uint_eq(n_cached, 7); /* public 5 .. 8, and own 5 .. 7: public */
    ck_assert_uint_ne(small.cache->tree.slots[look(seq)->tail].root, look(seq)->root);
    close_it(seq);
    seq = open_in("a", (int32_t[]){1, 2, 3, 4, 5, 6, 7, 8007, 9}, 8, &n_cached);
    ck_assert_uint_eq(n_cached, 7);
    close_it(seq);
    seq = open_in("a", (int32_t[]){1, 2, 3, 4, 5, 7005, 9, 9, 9}, 9, &n_cached);
    ck_assert_uint_eq(n_cached, 6);
    append(seq, (int32_t[]){10, 11, 12, 13}, 4); /* a copy */
    ck_assert_uint_eq(count_public(seq), 1);
    ck_assert_uint_eq(slot_of(seq, 1)->root, look(seq)->root);
    ck_assert_uint_eq(cached("op", (int32_t[]){1, 2, 3, 4, 5, 7005, 7006, 7007}, 8), 8);
    ck_assert_uint_eq(cached("op", (int32_t[]){1, 2, 3, 4, 5, 7005, 10, 11}, 8), 6);
    ck_assert_uint_eq(cached("b", text_of(7, 8, 9), 8), 7);
    small_free(&small);
}
END_TEST

/* ---- what changes the border */

START_TEST(truncate_takes_no_public_chunk_back)
{
    start(16, 0);
    feed("op", text_of(9, 0, 9), 9);
    cattn_seq a = prefill("a", text_of(8, 1, 14), 14), fork;
    ck_assert_int_eq(cattn_seq_truncate(small.cache, a, 6), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    ck_assert(!look(a)->owns); /* although nobody else refers to it */
    ck_assert_uint_eq(cached("op", text_of(9, 0, 9), 8), 8);
    ck_assert_int_eq(cattn_seq_fork(small.cache, a, &fork), CATTN_OK);
    append(a, text_of(0, 2, 6), 6);
    append(fork, text_of(0, 3, 6), 6);
    ck_assert_uint_eq(cached("op", text_of(9, 0, 9), 8), 8);
    ck_assert_uint_eq(usage("op").n_slots, 2);
    cattn_seq op = prefill("op", text_of(9, 0, 9), 9);
    ck_assert_int_eq(cattn_seq_truncate(small.cache, a, 10), CATTN_OK);
    ck_assert(look(a)->owns); /* its own chunk it does */
    ck_assert_int_eq(cattn_seq_truncate(small.cache, op, 6), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    close_it(a);
    close_it(fork);
    close_it(op);
    small_free(&small);
}
END_TEST

START_TEST(a_public_chunk_with_private_ones_below_is_kept_by_its_own_too)
{
    start(16, 0);
    cattn_seq op = prefill("op", text_of(9, 0, 8), 8);
    feed("a", text_of(8, 1, 14), 14);
    ck_assert_int_eq(cattn_seq_truncate(small.cache, op, 6), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    ck_assert(!look(op)->owns);
    ck_assert_uint_eq(cached("a", text_of(8, 1, 14), 14), 12);
    close_it(op);
    small_free(&small);
}
END_TEST

START_TEST(an_abort_gives_back_the_border)
{
    start(16, 0);
    feed("op", text_of(9, 0, 9), 9);
    cattn_seq a = prefill("a", text_of(8, 1, 10), 10);
    ck_assert_int_eq(cattn_seq_truncate(small.cache, a, 7), CATTN_OK); /* a borrow of a public chunk */
    struct cattn_item item = small_item(a, text_of(0, 4, 9), 9);
    ck_assert_int_eq(cattn_step_begin(small.step, &item, 1), CATTN_OK);
    ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
    small_check(&small, 2, 0);
    ck_assert_uint_eq(look(a)->n_tokens, 7);
    ck_assert_uint_eq(usage("a").n_slots, 0);
    append(a, text_of(0, 4, 9), 9);
    ck_assert_uint_eq(count_public(a), 1);
    small_free(&small);
}
END_TEST

START_TEST(eviction_goes_leaf_first_across_the_border)
{
    start(16, 0);
    feed("op", text_of(9, 0, 9), 9);
    feed("a", text_of(8, 1, 17), 17);
    feed("b", text_of(4, 2, 9), 9);
    small_check(&small, 0, 5);
    evict(1);
    ck_assert_uint_eq(cached("a", text_of(8, 1, 17), 17), 12); /* which uses the public ones, too */
    evict(1);
    ck_assert_uint_eq(cached("b", text_of(4, 2, 9), 9), 4);
    evict(1);
    ck_assert_uint_eq(cached("a", text_of(8, 1, 17), 17), 8);
    evict(1);
    ck_assert_uint_eq(cached("op", text_of(9, 0, 9), 9), 4);
    evict(1);
    small_check(&small, 0, 0);
    ck_assert_int_eq(
        cattn_namespace_stats(small.cache, "op", 2, &(struct cattn_usage){.size = sizeof(struct cattn_usage)}),
        CATTN_ENOTFOUND);
    small_free(&small);
}
END_TEST

START_TEST(without_retention_the_border_goes_with_its_last_user)
{
    start(16, CATTN_NO_RETAIN);
    cattn_seq op = prefill("op", text_of(9, 0, 9), 9), a = prefill("a", text_of(8, 1, 17), 17);
    close_it(op);
    small_check(&small, 5, 0);
    close_it(a);
    small_check(&small, 0, 0);
    small_free(&small);
}
END_TEST

/* ---- forgetting */

START_TEST(a_private_one_is_forgotten_alone)
{
    start(32, 0);
    feed("op", text_of(9, 0, 9), 9);
    feed("b", text_of(8, 1, 13), 13);
    cattn_seq a = prefill("a", text_of(8, 1, 14), 14);
    feed("a", text_of(8, 2, 14), 14);
    ck_assert_int_eq(pin("a", text_of(8, 2, 14), 14), CATTN_OK);
    invalidate("a");
    small_check(&small, 4, 1);
    ck_assert_uint_eq(cached("a", text_of(8, 1, 14), 14), 8); /* public still */
    ck_assert_uint_eq(cached("b", text_of(8, 1, 14), 13), 12);
    append(a, text_of(0, 3, 7), 7); /* goes on below the old name */
    ck_assert_uint_eq(look(a)->n_chunks, 5);
    ck_assert_uint_eq(cached("a", text_of(8, 1, 14), 14), 8);
    close_it(a);
    small_check(&small, 0, 3);
    small_free(&small);
}
END_TEST

START_TEST(a_public_one_is_forgotten_with_its_readers)
{
    start(32, 0);
    feed("op", text_of(9, 0, 9), 9);
    feed("c", text_of(9, 0, 9), 9);
    feed("a", text_of(0, 4, 9), 9); /* below no public one */
    ck_assert_int_eq(pin("op", text_of(9, 0, 9), 9), CATTN_OK);
    cattn_seq a = prefill("a", text_of(8, 1, 14), 14), b = prefill("b", text_of(4, 1, 14), 14);
    ck_assert_int_eq(pin("b", text_of(4, 1, 14), 14), CATTN_OK);
    invalidate("op");
    small_check(&small, 7, 2); /* c has what it had */
    struct cattn_stats stats = {.size = sizeof stats};
    ck_assert_int_eq(cattn_cache_stats(small.cache, &stats), CATTN_OK);
    ck_assert_uint_eq(stats.n_pins, 0);
    ck_assert_uint_eq(stats.pinned_slots, 0);
    ck_assert_uint_eq(cached("a", text_of(0, 4, 9), 9), 0);
    ck_assert_uint_eq(cached("op", text_of(9, 0, 9), 9), 0);
    ck_assert_uint_eq(cached("c", text_of(9, 0, 9), 9), 8);
    append(a, text_of(0, 3, 7), 7);
    append(b, text_of(0, 3, 7), 7);
    feed("op", text_of(9, 0, 9), 9);
    ck_assert_uint_eq(cached("a", text_of(8, 1, 14), 14), 8); /* of the new one */
    cattn_seq fork;
    ck_assert_int_eq(cattn_seq_fork(small.cache, a, &fork), CATTN_OK);
    ck_assert_int_eq(cattn_seq_truncate(small.cache, fork, 0), CATTN_OK);
    append(fork, text_of(9, 0, 9), 9); /* below the old one, which its origin holds */
    ck_assert_uint_eq(look(fork)->chunks[1], look(a)->chunks[1]);
    close_it(a);
    close_it(fork);
    close_it(b);
    small_check(&small, 0, 4);
    invalidate("op");
    small_check(&small, 0, 2);
    small_free(&small);
}
END_TEST

START_TEST(a_step_outlives_its_public_namespace)
{
    start(32, 0);
    cattn_seq op = open_in("op", NULL, 0, NULL), b = open_in("b", NULL, 0, NULL);
    struct cattn_item items[2] = {small_item(op, text_of(8, 1, 9), 9), small_item(b, text_of(8, 2, 17), 17)};
    ck_assert_int_eq(cattn_step_begin(small.step, items, 2), CATTN_OK);
    invalidate("op");
    close_it(b);
    small_finish(&small);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    ck_assert_uint_eq(cached("b", text_of(8, 2, 17), 17), 0);
    close_it(op);
    small_check(&small, 0, 0);
    small_free(&small);
}
END_TEST

/* ---- pins */

START_TEST(a_private_pin_holds_the_public_chunks_before_it)
{
    start(32, 0);
    feed("op", text_of(9, 0, 9), 9);
    feed("a", text_of(8, 1, 14), 14);
    ck_assert_int_eq(pin("a", text_of(8, 1, 14), 14), CATTN_OK);
    ck_assert_int_eq(pin("a", text_of(8, 1, 14), 9), CATTN_ENOTFOUND); /* all public */
    ck_assert_int_eq(pin("b", text_of(8, 1, 14), 14), CATTN_ENOTFOUND);
    ck_assert_int_eq(pin("op", text_of(8, 1, 14), 14), CATTN_ENOTFOUND);
    evict(UINT64_MAX);
    small_check(&small, 3, 0);
    ck_assert_uint_eq(usage("a").pinned_slots, 1);
    ck_assert_uint_eq(usage("op").pinned_slots, 2);
    ck_assert_int_eq(pin("op", text_of(9, 0, 9), 8), CATTN_OK);
    ck_assert_int_eq(unpin("a", text_of(9, 0, 9), 8), CATTN_ENOTFOUND); /* that is not a's to undo */
    ck_assert_int_eq(unpin("op", text_of(8, 1, 14), 14), CATTN_ENOTFOUND);
    ck_assert_int_eq(unpin("a", text_of(8, 1, 14), 14), CATTN_OK);
    small_check(&small, 2, 1);
    ck_assert_int_eq(unpin("op", text_of(9, 0, 9), 8), CATTN_OK);
    small_check(&small, 0, 3);
    small_free(&small);
}
END_TEST

START_TEST(a_pin_is_undone_although_the_public_tree_has_grown)
{
    start(32, 0);
    feed("a", text_of(12, 0, 13), 13);
    ck_assert_int_eq(pin("a", text_of(12, 0, 13), 13), CATTN_OK);
    feed("op", text_of(5, 0, 5), 5);
    cattn_seq seq = prefill("a", text_of(4, 9, 5), 5);
    ck_assert_int_eq(cattn_seq_truncate(small.cache, seq, 4), CATTN_OK);
    append(seq, text_of(12, 0, 13) + 4, 9); /* the same behind a public chunk */
    ck_assert_uint_eq(count_public(seq), 1);
    close_it(seq);
    ck_assert_int_eq(pin("a", text_of(12, 0, 13), 13), CATTN_OK);
    ck_assert_uint_eq(usage("op").pinned_slots, 1); /* with most public ones */
    feed("op", text_of(12, 0, 13), 13);
    ck_assert_int_eq(pin("a", text_of(12, 0, 13), 13), CATTN_OK); /* its own is there still */
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(unpin("a", text_of(12, 0, 13), 13), CATTN_OK);
    ck_assert_int_eq(unpin("a", text_of(12, 0, 13), 13), CATTN_ENOTFOUND);
    small_check(&small, 0, 8);
    evict(UINT64_MAX);
    small_check(&small, 0, 0);
    small_free(&small);
}
END_TEST

/* ---- what is said about it */

static uint32_t why(const char *name, const int32_t *tokens, size_t n)
{
    struct cattn_why why = {.size = sizeof why};
    cattn_seq seq = open_in(name, tokens, n, NULL);
    ck_assert_int_eq(cattn_seq_why(small.cache, seq, &why), CATTN_OK);
    close_it(seq);
    return why.reason;
}

START_TEST(reasons_tell_nothing_of_other_tenants)
{
    start(16, 0);
    ck_assert_int_eq(why("b", text_of(8, 2, 20), 20), CATTN_WHY_EMPTY);
    feed("a", text_of(8, 1, 14), 14);
    ck_assert_int_eq(why("b", text_of(8, 2, 20), 20), CATTN_WHY_EMPTY);
    invalidate("a");
    feed("op", text_of(9, 0, 9), 9);
    ck_assert_int_eq(why("b", text_of(8, 2, 20), 20), CATTN_WHY_ENDS);
    feed("a", text_of(8, 1, 14), 14);
    ck_assert_int_eq(why("b", text_of(8, 2, 20), 20), CATTN_WHY_ENDS); /* a has gone on, but that is not b's to know */
    ck_assert_int_eq(why("op", text_of(8, 2, 20), 20), CATTN_WHY_ENDS);
    ck_assert_int_eq(why("a", text_of(8, 2, 20), 20), CATTN_WHY_DIFFERS);
    ck_assert_int_eq(why("a", text_of(8, 1, 20), 20), CATTN_WHY_ENDS);
    ck_assert_int_eq(why("b", text_of(4, 2, 20), 20), CATTN_WHY_DIFFERS);
    ck_assert_int_eq(why("b", text_of(8, 2, 20), 11), CATTN_WHY_BELOW_CHUNK);
    ck_assert_int_eq(why("b", text_of(8, 2, 20), 9), CATTN_WHY_ALL);
    evict(1); /* a's */
    ck_assert_int_eq(why("a", text_of(8, 1, 20), 20), CATTN_WHY_EVICTED);
    ck_assert_int_eq(why("b", text_of(8, 1, 20), 20), CATTN_WHY_ENDS);
    feed("b", text_of(0, 2, 9), 9);
    evict(1);
    ck_assert_int_eq(why("b", text_of(8, 1, 20), 20), CATTN_WHY_EVICTED); /* the second public one */
    ck_assert_int_eq(why("b", text_of(4, 5, 20), 20), CATTN_WHY_ENDS);
    small_free(&small);
}
END_TEST

START_TEST(usage_counts_what_is_ones_own)
{
    start(32, 0);
    feed("op", text_of(9, 0, 9), 9);
    cattn_seq a = prefill("a", text_of(8, 1, 14), 14);
    prefill("b", text_of(8, 1, 14), 14);
    struct cattn_usage op = usage("op"), mine = usage("a");
    ck_assert_uint_eq(op.n_sequences, 0);
    ck_assert_uint_eq(op.n_slots, 2);
    ck_assert_uint_eq(op.evictable_slots, 0);
    ck_assert_uint_eq(mine.n_sequences, 1);
    ck_assert_uint_eq(mine.n_slots, 2);
    ck_assert_uint_eq(mine.hits, 8);
    ck_assert_uint_eq(mine.misses, 6);
    ck_assert_uint_eq(op.misses, 9);
    close_it(a);
    ck_assert_uint_eq(usage("a").evictable_slots, 1);
    small_free(&small);
}
END_TEST

static char drawing[1 << 16];

static int draw(void *context, const char *text, size_t n)
{
    (void)context;
    strncat(drawing, text, n);
    return 0;
}

START_TEST(the_border_is_drawn)
{
    start(32, 0);
    feed("op", text_of(9, 0, 9), 9);
    prefill("a", text_of(8, 1, 13), 12);
    ck_assert_int_eq(cattn_cache_dump_dot(small.cache, draw, NULL), CATTN_OK);
    ck_assert_ptr_nonnull(strstr(drawing, "r1 -> r0 [style=dashed, label=\"reads\"];"));
    ck_assert_ptr_nonnull(strstr(drawing, "c1 -> c2 [label=\"a\"];"));
    ck_assert_ptr_nonnull(strstr(drawing, "c0 -> c1;"));
    small_free(&small);
}
END_TEST

/* ---- settings */

START_TEST(one_level_only)
{
    start(32, 0);
    struct cattn_namespace_config config = {.size = sizeof config}, bad = {.size = sizeof bad, .public_ns_len = 1};
    ck_assert_int_eq(cattn_namespace_set(NULL, "x", 1, &config), CATTN_EINVAL);
    ck_assert_int_eq(cattn_namespace_set(small.cache, NULL, 1, &config), CATTN_EINVAL);
    ck_assert_int_eq(cattn_namespace_set(small.cache, "x", 1, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_namespace_set(small.cache, "x", 1, &bad), CATTN_EINVAL);
    config.size = 8;
    ck_assert_int_eq(cattn_namespace_set(small.cache, "x", 1, &config), CATTN_EINVAL);
    ck_assert_int_eq(set("x", "x"), CATTN_EINVAL);
    ck_assert_int_eq(set("", ""), CATTN_EINVAL);
    ck_assert_int_eq(set("x", "a"), CATTN_EINVAL);  /* which reads op */
    ck_assert_int_eq(set("op", "x"), CATTN_EINVAL); /* which a reads */
    ck_assert_int_eq(set("op", NULL), CATTN_OK);    /* it reads none */
    ck_assert_int_eq(set("x", NULL), CATTN_OK);
    ck_assert_int_eq(set("", "op"), CATTN_OK);
    ck_assert_int_eq(set("", NULL), CATTN_OK);
    ck_assert_int_eq(set("x", ""), CATTN_OK); /* the empty name is one */
    ck_assert_int_eq(set("", "op"), CATTN_EINVAL);
    feed("", text_of(9, 0, 9), 9);
    ck_assert_uint_eq(cached("x", text_of(9, 0, 9), 9), 8);
    ck_assert_int_eq(set("x", NULL), CATTN_OK);
    ck_assert_uint_eq(cached("x", text_of(9, 0, 9), 9), 0);
    ck_assert_uint_eq(small.cache->tree.settings.n, 5);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    small_free(&small);
}
END_TEST

START_TEST(what_a_namespace_reads_does_not_change_below_it)
{
    start(32, 0);
    feed("op", text_of(9, 0, 9), 9);
    feed("other", text_of(9, 0, 5), 5);
    cattn_seq a = open_in("a", NULL, 0, NULL);
    ck_assert_int_eq(set("a", "op"), CATTN_OK); /* as it is */
    ck_assert_int_eq(set("a", "other"), CATTN_EBUSY);
    ck_assert_int_eq(set("a", NULL), CATTN_EBUSY);
    append(a, text_of(8, 1, 13), 13);
    close_it(a);
    ck_assert_int_eq(set("a", "other"), CATTN_EBUSY); /* a chunk of it is cached */
    invalidate("a");
    ck_assert_int_eq(set("a", "other"), CATTN_OK);
    ck_assert_uint_eq(cached("a", text_of(8, 1, 13), 13), 4);
    ck_assert_int_eq(set("a", "op"), CATTN_OK);
    ck_assert_uint_eq(cached("a", text_of(8, 1, 13), 13), 8);
    invalidate("op");
    ck_assert_uint_eq(cached("a", text_of(8, 1, 13), 13), 0);
    feed("op", text_of(9, 0, 9), 9);
    ck_assert_uint_eq(cached("a", text_of(8, 1, 13), 13), 8); /* the setting stays */
    a = open_in("a", text_of(8, 1, 13), 13, NULL);
    invalidate("a");
    ck_assert_int_eq(set("a", NULL), CATTN_OK); /* the old one reads on */
    append(a, text_of(8, 1, 13) + 8, 5);
    ck_assert_uint_eq(count_public(a), 2);
    ck_assert_int_eq(set("op", "other"), CATTN_EINVAL); /* b reads it */
    ck_assert_int_eq(set("b", NULL), CATTN_OK);
    ck_assert_int_eq(set("op", "other"), CATTN_EBUSY);
    invalidate("op");
    ck_assert_int_eq(set("op", "other"), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    append(a, text_of(0, 3, 5), 5);
    close_it(a);
    small_check(&small, 0, 1);
    small_free(&small);
}
END_TEST

/* Each allocation of a call is made to fail. */
START_TEST(without_memory_nothing_changes)
{
    size_t n_failed = 0;
    for (int what = 0; what < 3; what++) {
        start(32, 0);
        int status = CATTN_ENOMEM;
        uint64_t revision = small.cache->tree.revision;
        for (size_t fail_at = 1; status == CATTN_ENOMEM; fail_at++) {
            cattn_seq seq;
            failing_memory_set(fail_at);
            if (what == 0)
                status = set("x", "y");
            else if (what == 1)
                status = set("a", "y");
            else
                status = cattn_seq_open(small.cache, "a", 1, text_of(8, 1, 9), 9, &seq, NULL);
            bool hit = failing_memory_hit();
            failing_memory_set(0);
            ck_assert_int_eq(status, hit ? CATTN_ENOMEM : CATTN_OK);
            n_failed += hit;
            ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
            if (!hit)
                continue;
            ck_assert_uint_eq(small.cache->tree.revision, revision);
            ck_assert_uint_eq(cattn_roots_find(&small.cache->tree.roots, "op", 2), CATTN_NONE);
            ck_assert_uint_eq(cattn_roots_find(&small.cache->tree.settings, "x", 1), CATTN_NONE);
            ck_assert_uint_eq(cattn_roots_find(&small.cache->tree.settings, "y", 1), CATTN_NONE);
        }
        small_free(&small);
    }
    ck_assert_uint_ge(n_failed, 6);
}
END_TEST

/* ---- with quotas */

static int set_all(const char *name, const char *public, uint64_t reserve, uint64_t limit)
{
    struct cattn_namespace_config config = {
        .size = sizeof config, .reserve_slots = reserve, .limit_slots = limit, .public_ns = public};
    config.public_ns_len = public ? strlen(public) : 0;
    return cattn_namespace_set(small.cache, name, strlen(name), &config);
}

START_TEST(no_quota_holds_chunks_of_another_namespace)
{
    start(32, 0);
    ck_assert_int_eq(set_all("a", "op", 2, 0), CATTN_EINVAL);
    ck_assert_int_eq(set_all("op", NULL, 0, 8), CATTN_EINVAL);
    ck_assert_int_eq(set_all("op", NULL, 4, 0), CATTN_OK);
    ck_assert_int_eq(set_all("x", NULL, 0, 8), CATTN_OK);
    ck_assert_int_eq(set_all("y", "x", 0, 0), CATTN_EINVAL);
    ck_assert_int_eq(set_all("op", "y", 4, 0), CATTN_EINVAL);
    ck_assert_int_eq(set_all("op", NULL, 33, 0), CATTN_EINVAL);
    ck_assert_int_eq(set_all("a", "op", 0, 3), CATTN_OK);
    ck_assert_uint_eq(usage("a").limit_slots, 3);
    ck_assert_uint_eq(usage("op").reserve_slots, 4);
    small_free(&small);
}
END_TEST

START_TEST(a_limit_counts_what_is_ones_own)
{
    start(32, 0);
    feed("op", text_of(21, 0, 21), 21);
    ck_assert_int_eq(set_all("a", "op", 0, 3), CATTN_OK);
    cattn_seq seq = prefill("a", text_of(20, 1, 30), 30); /* 5 public chunks, 3 slots of its own */
    ck_assert_uint_eq(count_public(seq), 5);
    ck_assert_uint_eq(usage("a").n_slots, 3);
    ck_assert_int_eq(small_append(&small, seq, text_of(0, 2, 8), 8), CATTN_ETOOBIG);
    close_it(seq);
    feed("a", text_of(20, 2, 30), 30); /* its own chunks make room, and no public one */
    ck_assert_uint_eq(usage("a").n_slots, 2);
    ck_assert_uint_eq(usage("op").n_slots, 5);
    ck_assert_uint_eq(usage("op").evictions, 0);
    cattn_seq first = prefill("a", text_of(20, 1, 30), 30), second = open_in("a", text_of(20, 2, 30), 30, NULL);
    const int32_t *rest = text_of(20, 2, 30) + look(second)->n_tokens;
    uint32_t n = 30 - (uint32_t)look(second)->n_tokens;
    ck_assert_int_eq(small_append(&small, second, rest, n), CATTN_EFULL); /* not too big: 5 of 8 are public */
    close_it(first);
    ck_assert_int_eq(small_append(&small, second, rest, n), CATTN_OK);
    close_it(second);
    small_free(&small);
}
END_TEST

START_TEST(a_public_reserve_outlives_what_hangs_below_it)
{
    start(8, 0);
    feed("op", text_of(9, 0, 9), 9);
    ck_assert_int_eq(set_all("op", NULL, 2, 0), CATTN_OK);
    feed("a", text_of(8, 1, 17), 17);
    cattn_seq c = prefill("c", text_of(0, 3, 24), 24); /* all that others have */
    ck_assert_uint_eq(usage("op").n_slots, 2);
    ck_assert_uint_eq(cached("a", text_of(8, 1, 17), 17), 8);
    ck_assert_int_eq(small_append(&small, c, text_of(0, 4, 4), 4), CATTN_EFULL);
    close_it(c);
    small_free(&small);
}
END_TEST

START_TEST(who_retains_a_private_prefix_leaves_the_public_one_alone)
{
    start(16, 0);
    struct cattn_retention high = {.size = sizeof high, .priority = 5, .ttl = 10};
    feed("op", text_of(9, 0, 9), 9);
    feed("a", text_of(8, 1, 13), 13);
    ck_assert_int_eq(cattn_prefix_retain(small.cache, "op", 2, text_of(9, 0, 9), 8, NULL, &high), CATTN_OK);
    ck_assert_int_eq(cattn_prefix_retain(small.cache, "a", 1, text_of(8, 1, 13), 8, NULL, NULL), CATTN_ENOTFOUND);
    ck_assert_int_eq(cattn_prefix_retain(small.cache, "a", 1, text_of(8, 1, 13), 12, NULL, NULL), CATTN_OK);
    feed("c", text_of(0, 2, 9), 9);
    evict(3);
    ck_assert_uint_eq(cached("a", text_of(8, 1, 13), 13), 8); /* the operator's priority holds */
    feed("a", text_of(8, 1, 13), 13);
    high.ttl = 100;
    ck_assert_int_eq(cattn_prefix_retain(small.cache, "a", 1, text_of(8, 1, 13), 12, NULL, &high), CATTN_OK);
    ck_assert_int_eq(cattn_cache_advance(small.cache, 10), CATTN_OK);
    ck_assert_uint_eq(cached("a", text_of(8, 1, 13), 13), 12);
    ck_assert_int_eq(cattn_cache_advance(small.cache, 100), CATTN_OK); /* the public ones were over, and go with it */
    small_check(&small, 0, 0);
    small_free(&small);
}
END_TEST

START_TEST(a_public_chunk_whose_time_is_over_goes_when_nothing_hangs_below_it)
{
    struct cattn_retention brief = {.size = sizeof brief, .ttl = 5};
    for (int how = 0; how < 3; how++) {
        start(16, 0);
        feed("op", text_of(9, 0, 9), 9);
        feed("a", text_of(8, 1, 13), 13);
        feed("b", text_of(4, 1, 9), 9);
        ck_assert_int_eq(cattn_prefix_retain(small.cache, "op", 2, text_of(9, 0, 9), 8, NULL, &brief), CATTN_OK);
        ck_assert_int_eq(pin("a", text_of(8, 1, 13), 13), CATTN_OK);
        ck_assert_int_eq(cattn_cache_advance(small.cache, 5), CATTN_OK);
        small_check(&small, 3, 1);
        if (how == 1)
            ck_assert_int_eq(unpin("a", text_of(8, 1, 13), 13), CATTN_OK);
        if (how < 2)
            invalidate("a");
        invalidate("b");
        small_check(&small, how == 2 ? 3 : 0, 0);
        small_free(&small);
    }
}
END_TEST

/* Names with quotas go on with a record each, whose memory is had before anything changes. */
START_TEST(a_public_one_with_quotas_is_forgotten_as_a_whole_or_not_at_all)
{
    start(32, 0);
    ck_assert_int_eq(set_all("op", NULL, 2, 0), CATTN_OK);
    ck_assert_int_eq(set_all("a", "op", 0, 9), CATTN_OK);
    ck_assert_int_eq(set_all("b", "op", 0, 8), CATTN_OK);
    feed("op", text_of(9, 0, 9), 9);
    feed("a", text_of(8, 1, 13), 13);
    cattn_seq b = prefill("b", text_of(8, 1, 13), 13);
    int status = CATTN_ENOMEM;
    size_t n_failed = 0;
    for (size_t fail_at = 1; status == CATTN_ENOMEM; fail_at++) {
        failing_memory_set(fail_at);
        status = cattn_namespace_invalidate(small.cache, "op", 2);
        ck_assert_int_eq(status == CATTN_ENOMEM, failing_memory_hit());
        n_failed += failing_memory_hit();
        failing_memory_set(0);
        ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
        ck_assert_uint_eq(cached("a", text_of(8, 1, 13), 13), status ? 12 : 0);
        ck_assert_uint_eq(cached("b", text_of(8, 1, 13), 13), status ? 12 : 0);
    }
    ck_assert_uint_ge(n_failed, 3);
    ck_assert_uint_eq(usage("a").limit_slots, 9);
    ck_assert_uint_eq(usage("a").misses, 0);
    feed("op", text_of(9, 0, 9), 9);
    ck_assert_uint_eq(cached("b", text_of(8, 1, 13), 13), 8);
    close_it(b);
    ck_assert_int_eq(set_all("b", NULL, 0, 8), CATTN_OK); /* nobody uses it */
    ck_assert_uint_eq(cached("b", text_of(8, 1, 13), 13), 0);
    ck_assert_int_eq(set_all("a", "op", 0, 0), CATTN_OK);
    small_free(&small);
}
END_TEST

START_TEST(a_setting_is_made_as_a_whole_or_not_at_all)
{
    start(32, 0);
    ck_assert_int_eq(set_all("x", NULL, 0, 5), CATTN_OK);
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "x" : "new";
        int status = CATTN_ENOMEM;
        for (size_t fail_at = 1; status == CATTN_ENOMEM; fail_at++) {
            failing_memory_set(fail_at);
            status = set_all(name, "op", 0, 7);
            ck_assert_int_eq(status == CATTN_ENOMEM, failing_memory_hit());
            failing_memory_set(0);
            ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
            if (!status)
                break;
            ck_assert(i || cattn_roots_find(&small.cache->tree.roots, "new", 3) == CATTN_NONE);
            ck_assert_uint_eq(cattn_roots_find(&small.cache->tree.settings, name, strlen(name)), CATTN_NONE);
            ck_assert_uint_eq(usage("x").limit_slots, 5);
        }
        ck_assert_uint_eq(usage(name).limit_slots, 7);
    }
    small_free(&small);
}
END_TEST

START_TEST(names_that_are_set_come_and_go)
{
    start(8, 0);
    char name[32];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 1000; i++) {
            snprintf(name, sizeof name, "tenant%d", i);
            ck_assert_int_eq(set(name, i % 2 ? "op" : "other"), CATTN_OK);
        }
        ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
        invalidate("op");
        for (int i = 0; i < 1000; i++) {
            snprintf(name, sizeof name, "tenant%d", i);
            ck_assert_int_eq(set(name, NULL), CATTN_OK);
        }
    }
    ck_assert_uint_eq(small.cache->tree.settings.n, 1004); /* a, b and what they read; records are used again */
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    small_free(&small);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("public");
    tcase_add_test(tests, tenants_share_what_is_public_and_nothing_else);
    tcase_add_test(tests, what_is_private_stays_so);
    tcase_add_test(tests, the_longest_path_is_found_wherever_it_leaves_the_public_one);
    tcase_add_test(tests, a_step_matches_both_again);
    tcase_add_test(tests, one_step_can_have_all_of_them);
    tcase_add_test(tests, own_chunks_follow_public_ones_of_the_same_step);
    tcase_add_test(tests, a_part_of_a_chunk_comes_from_either_side);
    tcase_add_test(tests, truncate_takes_no_public_chunk_back);
    tcase_add_test(tests, a_public_chunk_with_private_ones_below_is_kept_by_its_own_too);
    tcase_add_test(tests, an_abort_gives_back_the_border);
    tcase_add_test(tests, eviction_goes_leaf_first_across_the_border);
    tcase_add_test(tests, without_retention_the_border_goes_with_its_last_user);
    tcase_add_test(tests, a_private_one_is_forgotten_alone);
    tcase_add_test(tests, a_public_one_is_forgotten_with_its_readers);
    tcase_add_test(tests, a_step_outlives_its_public_namespace);
    tcase_add_test(tests, a_private_pin_holds_the_public_chunks_before_it);
    tcase_add_test(tests, a_pin_is_undone_although_the_public_tree_has_grown);
    tcase_add_test(tests, reasons_tell_nothing_of_other_tenants);
    tcase_add_test(tests, usage_counts_what_is_ones_own);
    tcase_add_test(tests, the_border_is_drawn);
    tcase_add_test(tests, one_level_only);
    tcase_add_test(tests, what_a_namespace_reads_does_not_change_below_it);
    tcase_add_test(tests, without_memory_nothing_changes);
    tcase_add_test(tests, no_quota_holds_chunks_of_another_namespace);
    tcase_add_test(tests, a_limit_counts_what_is_ones_own);
    tcase_add_test(tests, a_public_reserve_outlives_what_hangs_below_it);
    tcase_add_test(tests, who_retains_a_private_prefix_leaves_the_public_one_alone);
    tcase_add_test(tests, a_public_chunk_whose_time_is_over_goes_when_nothing_hangs_below_it);
    tcase_add_test(tests, a_public_one_with_quotas_is_forgotten_as_a_whole_or_not_at_all);
    tcase_add_test(tests, a_setting_is_made_as_a_whole_or_not_at_all);
    tcase_add_test(tests, names_that_are_set_come_and_go);
    return suite_run(tests);
}

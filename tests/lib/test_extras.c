/* Extra identities: tokens that are the same number and yet different.  Case by case, and random calls against a naive
 * model in which a token is a pair of number and bytes. */
#include "failing_memory.h"
#include "small.h"
#include "support/random.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

enum { C = 4, LONGEST = 64, N_TAGS = 6, MAX_ENTRIES = 256 };

/* A tag stands for bytes; 0 for none. */
static const char long_id[] = "0123456789abcdef0123456789abcdef0123456789abcdef", *const ids[N_TAGS] = {
                                                                                      NULL, "a",     "b",
                                                                                      "ab", long_id, long_id + 1};
static const size_t lengths[N_TAGS] = {0, 1, 1, 2, 40, 40};

struct text {
    size_t n;
    int32_t tokens[LONGEST];
    unsigned char tags[LONGEST];
};

/* What the library is given of a part of a text. */
struct given {
    const int32_t *tokens;
    size_t n;
    struct cattn_ext ext;
    struct cattn_extra extras[LONGEST];
};

static struct small small;
static struct rng rng;

/* Ranges are cut at any place, if cut is true. */
static void give(struct given *x, const struct text *text, size_t begin, size_t end, bool cut)
{
    *x = (struct given){.tokens = text->tokens + begin, .n = end - begin, .ext = {.size = sizeof x->ext}};
    for (size_t i = begin; i < end; i++) {
        unsigned tag = text->tags[i];
        struct cattn_extra *last = x->ext.n_extras ? &x->extras[x->ext.n_extras - 1] : NULL;
        if (!tag)
            continue;
        if (i > begin && tag == text->tags[i - 1] && !(cut && rng_chance(&rng, 30)))
            last->n++;
        else
            x->extras[x->ext.n_extras++] = (struct cattn_extra){i - begin, 1, ids[tag], lengths[tag]};
    }
    x->ext.extras = x->extras;
}

/* From a line such as "1 2 7a 7a 3": a token, and the letter (a, b, ...) of its tag. */
static struct text text_of(const char *line)
{
    struct text text = {0};
    while (*line) {
        char *end;
        text.tokens[text.n] = (int32_t)strtol(line, &end, 10);
        if (*end >= 'a')
            text.tags[text.n] = (unsigned char)(*end++ - 'a' + 1);
        text.n++;
        line = end + (*end == ' ');
    }
    return text;
}

static int open_text(const struct text *text, cattn_seq *seq, size_t *n_cached)
{
    struct given x;
    give(&x, text, 0, text->n, false);
    return cattn_seq_open_ext(small.cache, "ns", 2, x.tokens, x.n, &x.ext, seq, n_cached);
}

static int append(cattn_seq seq, const struct text *text, size_t begin, size_t end)
{
    struct given x;
    give(&x, text, begin, end, true);
    struct cattn_item item = {.seq = seq, .tokens = x.tokens, .n_tokens = (uint32_t)x.n, .ext = &x.ext};
    int status = cattn_step_begin(small.step, &item, 1);
    if (!status)
        small_finish(&small);
    return status;
}

/* Opens a sequence and feeds it at most `piece` tokens a step. */
static cattn_seq prefill(const char *line, size_t piece, size_t *n_cached)
{
    struct text text = text_of(line);
    cattn_seq seq;
    ck_assert_int_eq(open_text(&text, &seq, n_cached), CATTN_OK);
    for (size_t at = *n_cached; at < text.n; at += piece)
        ck_assert_int_eq(append(seq, &text, at, at + piece < text.n ? at + piece : text.n), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    return seq;
}

static size_t cached(const char *line)
{
    struct text text = text_of(line);
    cattn_seq seq;
    size_t n;
    ck_assert_int_eq(open_text(&text, &seq, &n), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    return n;
}

static const struct cattn_extras *table(void)
{
    return &small.cache->tree.extras;
}

/* ---- case by case */

START_TEST(equal_tokens_with_other_bytes_are_others)
{
    for (int collide = 0; collide < 2; collide++) {
        size_t n;
        small = small_make(32, C, 1, 0);
        small.cache->tree.constant_hash = small.cache->tree.extras.constant_hash = collide;
        prefill("1 2 3 4 5 7a 7a 7a 7a 7a 6 8 9", LONGEST, &n);
        ck_assert_uint_eq(n, 0);
        ck_assert_uint_eq(cached("1 2 3 4 5 7a 7a 7a 7a 7a 6 8 9"), 12);
        ck_assert_uint_eq(cached("1 2 3 4 5 7b 7b 7b 7b 7b 6 8 9"), 5);
        ck_assert_uint_eq(cached("1 2 3 4 5 7c 7c 7c 7c 7c 6 8 9"), 5);
        ck_assert_uint_eq(cached("1 2 3 4 5 7 7 7 7 7 6 8 9"), 5);
        ck_assert_uint_eq(cached("1 2 3 4 5 7a 7a 7b 7b 7b 6 8 9"), 7);
        ck_assert_uint_eq(cached("1 2 3 4 5 7a 7a 7a 7a 7 6 8 9"), 9);
        ck_assert_uint_eq(cached("1 2 3 4 5 7a 7a 7a 7a 7a 6a 8 9"), 10);
        ck_assert_uint_eq(cached("1 2 3 4 5 8a 7a 7a 7a 7a 6 8 9"), 5);
        ck_assert_uint_eq(cached("1a 2 3 4 5 7a 7a 7a 7a 7a 6 8 9"), 0);
        prefill("1 2 3 4 5 7b 7b 7b 7b 7b 6 8 9", 3, &n);
        ck_assert_uint_eq(n, 5);
        small_check(&small, 7, 0); /* the first chunk is shared */
        prefill("1 2 3 4 5 7a 7a 7a 7a 7a 6 8 9", 1, &n);
        ck_assert_uint_eq(n, 12);
        small_check(&small, 8, 0); /* all whole ones are */
        ck_assert_uint_eq(cached("1 2 3 4 5 7b 7b 7b 7b 7b 6 8 9"), 12);
        small_free(&small);
    }
}
END_TEST

START_TEST(long_bytes_are_compared_to_the_end)
{
    size_t n;
    small = small_make(8, C, 1, 0);
    prefill("7d 7d 7d 7d 1", LONGEST, &n);
    ck_assert_uint_eq(cached("7e 7d 7d 7d 1"), 0); /* as long, and not equal */
    char other[40];
    memcpy(other, long_id, 40);
    other[39] ^= 1;
    struct cattn_extra extra = {0, 4, other, 40};
    struct cattn_ext ext = {sizeof ext, &extra, 1};
    cattn_seq seq;
    int32_t tokens[] = {7, 7, 7, 7, 1};
    ck_assert_int_eq(cattn_seq_open_ext(small.cache, "ns", 2, tokens, 5, &ext, &seq, &n), CATTN_OK);
    ck_assert_uint_eq(n, 0);
    extra.id_len = 39;
    ck_assert_int_eq(cattn_seq_open_ext(small.cache, "ns", 2, tokens, 5, &ext, &seq, &n), CATTN_OK);
    ck_assert_uint_eq(n, 0);
    other[39] ^= 1;
    extra.id_len = 40;
    ck_assert_int_eq(cattn_seq_open_ext(small.cache, "ns", 2, tokens, 5, &ext, &seq, &n), CATTN_OK);
    ck_assert_uint_eq(n, 4);
    small_free(&small);
}
END_TEST

/* Two that arrive together: the second matches what the first is about to store, or does not. */
START_TEST(items_of_a_step_share_equal_images_alone)
{
    static const char *const lines[] = {"7a 7a 7a 7a 1 2 3 4 5", "7b 7b 7b 7b 1 2 3 4 5", "7a 7a 7a 7a 1 2 3 4 6"};
    struct cattn_item items[3];
    struct given given[3];
    struct text texts[3];
    small = small_make(16, C, 1, 0);
    for (int i = 0; i < 3; i++) {
        texts[i] = text_of(lines[i]);
        give(&given[i], &texts[i], 0, texts[i].n, i == 2);
        items[i] = (struct cattn_item){.seq = small_open(&small, NULL, 0, NULL),
                                       .tokens = given[i].tokens,
                                       .n_tokens = (uint32_t)given[i].n,
                                       .ext = &given[i].ext};
    }
    ck_assert_int_eq(cattn_step_begin(small.step, items, 3), CATTN_OK);
    ck_assert_uint_eq(items[1].n_rows, 9);
    ck_assert_uint_eq(items[2].n_rows, 1);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    small_finish(&small);
    small_check(&small, 7, 0);
    small_free(&small);
}
END_TEST

START_TEST(tokens_come_back_as_they_were_given)
{
    int32_t tokens[16], expected[] = {1, 7, 7, 8, 7, 7, 2};
    size_t n;
    small = small_make(8, C, 1, 0);
    cattn_seq seq = prefill("1 7a 7a 8a 7b 7 2", 2, &n);
    ck_assert_int_eq(cattn_seq_tokens(small.cache, seq, tokens, 16, &n), CATTN_OK);
    ck_assert_uint_eq(n, 7);
    ck_assert_mem_eq(tokens, expected, sizeof expected);
    ck_assert_int_eq(cattn_seq_tokens(small.cache, seq, tokens, 3, &n), CATTN_OK);
    ck_assert_mem_eq(tokens, expected, 3 * sizeof *tokens);
    small_free(&small);
}
END_TEST

START_TEST(bytes_are_kept_as_long_as_needed)
{
    size_t n;
    small = small_make(8, C, 1, 0);
    cattn_seq seq = prefill("7a 7a 7a 7a 7b 7b", LONGEST, &n), fork;
    ck_assert_uint_eq(table()->ids.n_used, 2);
    ck_assert_int_eq(cattn_seq_fork(small.cache, seq, &fork), CATTN_OK);
    ck_assert_int_eq(cattn_seq_truncate(small.cache, seq, 4), CATTN_OK);
    ck_assert_uint_eq(table()->ids.n_used, 2);
    ck_assert_int_eq(cattn_seq_close(small.cache, fork), CATTN_OK);
    ck_assert_uint_eq(table()->ids.n_used, 1); /* the tail was not complete */
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    small_check(&small, 0, 1);
    ck_assert_uint_eq(table()->ids.n_used, 1);
    ck_assert_int_eq(cattn_cache_evict(small.cache, 1, NULL), CATTN_OK);
    ck_assert(!cattn_extras_any(table()) && !table()->ids.n_used);
    small_check(&small, 0, 0);
    small_free(&small);
}
END_TEST

/* A truncated chunk is written on with other tokens, in place; an abort brings back what was there. */
START_TEST(what_is_written_over_is_let_go)
{
    size_t n;
    struct text text = text_of("7b 7b 1 2 3");
    struct given x;
    small = small_make(8, C, 1, 0);
    cattn_seq seq = prefill("7a 7a 7a 7a", LONGEST, &n);
    ck_assert_int_eq(cattn_seq_truncate(small.cache, seq, 1), CATTN_OK);
    ck_assert_uint_eq(table()->tokens.records[0].refs, 2); /* of the sequence and of the slot */
    give(&x, &text, 0, text.n, false);
    struct cattn_item item = {.seq = seq, .tokens = x.tokens, .n_tokens = 5, .ext = &x.ext};
    ck_assert_int_eq(cattn_step_begin(small.step, &item, 1), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    ck_assert_uint_eq(table()->ids.n_used, 2);
    ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    ck_assert_uint_eq(table()->ids.n_used, 1);
    ck_assert_int_eq(append(seq, &text, 0, 5), CATTN_OK);
    ck_assert_uint_eq(table()->ids.n_used, 2);
    ck_assert_uint_eq(cached("7a 7b 7b 1 2 3"), 4);
    ck_assert_uint_eq(cached("7a 7a 7a 7a 1"), 1);
    small_free(&small);
}
END_TEST

START_TEST(closed_in_a_step_is_let_go_at_its_end)
{
    for (int end = 0; end < 2; end++) {
        struct text text = text_of("7a 7a 7a 7b");
        struct given x;
        size_t n;
        small = small_make(8, C, 1, CATTN_NO_RETAIN);
        cattn_seq seq = prefill("7c", 1, &n);
        give(&x, &text, 0, text.n, false);
        struct cattn_item item = {.seq = seq, .tokens = x.tokens, .n_tokens = 4, .ext = &x.ext};
        ck_assert_int_eq(cattn_step_begin(small.step, &item, 1), CATTN_OK);
        ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
        ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
        ck_assert_uint_eq(table()->ids.n_used, 3);
        if (end)
            small_finish(&small);
        else
            ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
        ck_assert(!table()->tokens.n_used && !table()->ids.n_used);
        small_free(&small);
    }
}
END_TEST

/* The numbers of what was evicted go to others, who were not. */
START_TEST(what_was_evicted_is_told_from_what_never_was)
{
    struct cattn_why why = {.size = sizeof why};
    struct text a = text_of("7a 7a 7a 7a 1"), b = text_of("7b 7b 7b 7b 1");
    cattn_seq seq;
    size_t n;
    small = small_make(8, C, 1, 0);
    prefill("1 2 3 4 5", LONGEST, &n);
    ck_assert_int_eq(cattn_seq_close(small.cache, prefill("7a 7a 7a 7a 1", LONGEST, &n)), CATTN_OK);
    ck_assert_int_eq(cattn_cache_evict(small.cache, 1, NULL), CATTN_OK);
    ck_assert_uint_eq(table()->ids.n_used, 0);
    ck_assert_int_eq(open_text(&b, &seq, &n), CATTN_OK);
    ck_assert_int_eq(cattn_seq_why(small.cache, seq, &why), CATTN_OK);
    ck_assert_uint_eq(why.reason, CATTN_WHY_DIFFERS);
    ck_assert_int_eq(open_text(&a, &seq, &n), CATTN_OK);
    ck_assert_int_eq(cattn_seq_why(small.cache, seq, &why), CATTN_OK);
    ck_assert_uint_eq(why.reason, CATTN_WHY_EVICTED);
    small_free(&small);
}
END_TEST

static int pin_text(const char *line, bool unpin)
{
    struct text text = text_of(line);
    struct given x;
    give(&x, &text, 0, text.n, false);
    return unpin ? cattn_prefix_unpin(small.cache, "ns", 2, x.tokens, x.n, &x.ext)
                 : cattn_prefix_pin(small.cache, "ns", 2, x.tokens, x.n, &x.ext);
}

START_TEST(pins_are_of_one_image)
{
    size_t n;
    small = small_make(8, C, 1, 0);
    ck_assert_int_eq(cattn_seq_close(small.cache, prefill("7a 7a 7a 7a 1", LONGEST, &n)), CATTN_OK);
    ck_assert_int_eq(pin_text("7b 7b 7b 7b", false), CATTN_ENOTFOUND);
    ck_assert_int_eq(pin_text("7 7 7 7", false), CATTN_ENOTFOUND);
    ck_assert_int_eq(pin_text("7a 7a 7a 7a 9b", false), CATTN_OK);
    ck_assert_int_eq(pin_text("7b 7b 7b 7b", true), CATTN_ENOTFOUND);
    ck_assert_int_eq(cattn_cache_evict(small.cache, UINT64_MAX, NULL), CATTN_OK);
    ck_assert_uint_eq(cached("7a 7a 7a 7a 1"), 4);
    ck_assert_int_eq(pin_text("7a 7a 7a 7a", true), CATTN_OK);
    ck_assert_int_eq(cattn_cache_evict(small.cache, UINT64_MAX, NULL), CATTN_OK);
    ck_assert(!cattn_extras_any(table()));
    small_free(&small);
}
END_TEST

/* More than the table had room for, all at once, and gone again. */
START_TEST(thousands_of_images)
{
    enum { N = 3000 };
    cattn_seq seqs[N];
    size_t n;
    small = small_make(N + 1, C, 1, 0);
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < N; i++) {
            struct cattn_extra extra = {0, 4, &i, sizeof i};
            struct cattn_ext ext = {sizeof ext, &extra, 1};
            int32_t tokens[] = {7, 7, 7, 7, 1};
            ck_assert_int_eq(cattn_seq_open_ext(small.cache, "ns", 2, tokens, 5, &ext, &seqs[i], &n), CATTN_OK);
            ck_assert_uint_eq(n, round == 1 ? 4 : 0);
            if (round == 1)
                continue;
            struct cattn_item item = {.seq = seqs[i], .tokens = tokens, .n_tokens = 4, .ext = &ext};
            ck_assert_int_eq(cattn_step_begin(small.step, &item, 1), CATTN_OK);
            small_finish(&small);
        }
        ck_assert_uint_eq(table()->ids.n_used, N);
        ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
        for (uint32_t i = 0; i < N; i++)
            ck_assert_int_eq(cattn_seq_close(small.cache, seqs[i]), CATTN_OK);
        if (round == 1)
            ck_assert_int_eq(cattn_cache_evict(small.cache, UINT64_MAX, NULL), CATTN_OK);
        ck_assert_uint_eq(table()->ids.n_used, round == 1 ? 0 : N);
    }
    ck_assert_uint_le(table()->ids.n, N + 1); /* numbers are used again */
    small_free(&small);
}
END_TEST

/* ---- what is refused */

START_TEST(wrong_ranges_and_tokens_are_refused)
{
    static const struct cattn_extra good = {1, 2, "a", 1};
    const struct cattn_extra bad[][2] = {
        {good, {2, 2, "b", 1}},                        /* overlap */
        {good, {0, 1, "b", 1}},                        /* descending */
        {good, {4, 2, "b", 1}},                        /* beyond the end */
        {good, {5, 1, "b", 1}},                        /* behind it */
        {good, {6, 1, "b", 1}},                        /* far behind */
        {good, {4, 0, "b", 1}},                        /* empty */
        {good, {4, UINT64_MAX, "b", 1}},               /* an end that wraps round */
        {good, {UINT64_MAX, 2, "b", 1}},               /* likewise */
        {good, {4, 1, NULL, 1}},                       /* no bytes */
        {good, {4, 1, "b", 0}},                        /* none */
        {{UINT64_MAX - 1, 2, "b", 1}, {0, 1, "a", 1}}, /* the first one wraps */
    };
    int32_t tokens[] = {1, 7, 7, 2, 3};
    cattn_seq seq;
    small = small_make(8, C, 1, 0);
    cattn_seq fed = small_prefill(&small, tokens, 5);
    struct cattn_sched *sched;
    ck_assert_int_eq(cattn_sched_create(small.cache, NULL, &sched), CATTN_OK);
    struct cattn_item item = {.seq = fed, .tokens = tokens, .n_tokens = 5};
    struct cattn_request_config request = {.size = sizeof request, .tokens = tokens, .n_tokens = 5, .max_new = 1};
    cattn_request id;
    for (size_t i = 0; i < sizeof bad / sizeof *bad + 8; i++) {
        size_t n_bad = sizeof bad / sizeof *bad;
        struct cattn_ext ext = {sizeof ext, bad[i < n_bad ? i : 0], 2};
        if (i == n_bad)
            ext = (struct cattn_ext){sizeof ext, NULL, 1};
        if (i == n_bad + 1)
            ext = (struct cattn_ext){0, NULL, 0};
        if (i == n_bad + 2)
            ext = (struct cattn_ext){sizeof ext - 1, &good, 1};
        bool negative = i >= n_bad + 3;
        if (negative)
            tokens[i - n_bad - 3] = i % 2 ? -1 : INT32_MIN;
        item.ext = request.ext = negative ? NULL : &ext;
        ck_assert_int_eq(cattn_seq_open_ext(small.cache, "ns", 2, tokens, 5, item.ext, &seq, NULL), CATTN_EINVAL);
        ck_assert_int_eq(cattn_step_begin(small.step, &item, 1), CATTN_EINVAL);
        ck_assert_int_eq(cattn_prefix_pin(small.cache, "ns", 2, tokens, 5, item.ext), CATTN_EINVAL);
        ck_assert_int_eq(cattn_prefix_unpin(small.cache, "ns", 2, tokens, 5, item.ext), CATTN_EINVAL);
        ck_assert_int_eq(cattn_sched_submit(sched, &request, &id), CATTN_EINVAL);
        if (negative) {
            ck_assert_int_eq(cattn_seq_open(small.cache, "ns", 2, tokens, 5, &seq, NULL), CATTN_EINVAL);
            tokens[i - n_bad - 3] = 7;
        }
        ck_assert(!cattn_extras_any(table()));
        small_check(&small, 2, 0);
    }
    struct cattn_ext none = {sizeof none, NULL, 0};
    item.ext = &none;
    ck_assert_int_eq(cattn_step_begin(small.step, &item, 1), CATTN_OK);
    ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
    cattn_sched_destroy(sched);
    small_free(&small);
}
END_TEST

/* A negative token anywhere in a prompt of any length is found. */
START_TEST(every_token_is_looked_at)
{
    int32_t tokens[40] = {0};
    for (size_t n = 0; n <= 40; n++) {
        tokens[n ? n - 1 : 0] = INT32_MAX;
        ck_assert(!cattn_tokens_negative(tokens, n));
        for (size_t i = 0; i < n; i++) {
            tokens[i] ^= INT32_MIN;
            ck_assert(cattn_tokens_negative(tokens, n));
            tokens[i] ^= INT32_MIN;
        }
    }
}
END_TEST

/* Of an item that can never fit the tokens are not there to be read; another item's that are wrong come first. */
START_TEST(tokens_that_can_never_fit_are_not_read)
{
    int32_t *token = malloc(sizeof *token); /* on the heap, where a sanitizer sees who reads on */
    int32_t negative = -1;
    *token = -1;
    small = small_make(2, C, 1, 0);
    struct cattn_item items[] = {small_item(small_open(&small, NULL, 0, NULL), token, UINT32_MAX),
                                 small_item(small_open(&small, NULL, 0, NULL), &negative, 1)};
    ck_assert_int_eq(cattn_step_begin(small.step, items, 1), CATTN_ETOOBIG);
    ck_assert_int_eq(cattn_step_begin(small.step, items, 2), CATTN_EINVAL);
    negative = 1;
    ck_assert_int_eq(cattn_step_begin(small.step, items, 2), CATTN_ETOOBIG);
    free(token);
    small_free(&small);
}
END_TEST

/* ---- memory */

static struct cattn_stats stats_of(void)
{
    struct cattn_stats stats = {.size = sizeof stats};
    ck_assert_int_eq(cattn_cache_stats(small.cache, &stats), CATTN_OK);
    return stats;
}

/* Each allocation of a call fails once, with an empty table and with a full one. */
START_TEST(without_memory_nothing_changes)
{
    struct text text = text_of("7a 7b 7c 8c 7d 7d 9e 9e 1");
    struct given x;
    give(&x, &text, 0, text.n, false);
    for (int call = 0; call < 6; call++) {
        struct cattn_sched *sched;
        cattn_request request;
        cattn_seq seq = 0;
        int status = CATTN_ENOMEM;
        size_t n, n_failed = 0;
        small = small_make(8, C, 1, 0);
        ck_assert_int_eq(cattn_sched_create(small.cache, NULL, &sched), CATTN_OK);
        if (call > 3)
            prefill("7a 7b 7c 8c 7d 7d 9e 9e 1", LONGEST, &n);
        cattn_seq fed = small_prefill(&small, small_tokens(20, 2), 2);
        struct cattn_stats before = stats_of();
        uint32_t n_used = table()->ids.n_used;
        struct cattn_item item = {.seq = fed, .tokens = x.tokens, .n_tokens = (uint32_t)x.n, .ext = &x.ext};
        struct cattn_request_config config = {
            .size = sizeof config, .tokens = x.tokens, .n_tokens = x.n, .max_new = 1, .ext = &x.ext};
        for (size_t i = 1; status == CATTN_ENOMEM; i++) {
            failing_memory_set(i);
            if (call == 0)
                status = cattn_seq_open_ext(small.cache, "ns", 2, x.tokens, x.n, &x.ext, &seq, &n);
            else if (call == 1)
                status = cattn_step_begin(small.step, &item, 1);
            else if (call == 2 || call == 4)
                status = cattn_prefix_pin(small.cache, "ns", 2, x.tokens, x.n, &x.ext);
            else if (call == 5)
                status = cattn_prefix_unpin(small.cache, "ns", 2, x.tokens, x.n, &x.ext);
            else
                status = cattn_sched_submit(sched, &config, &request);
            bool hit = failing_memory_hit();
            failing_memory_set(0);
            ck_assert_int_eq(hit, status == CATTN_ENOMEM);
            ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
            if (!hit)
                break;
            struct cattn_stats after = stats_of();
            ck_assert_mem_eq(&before, &after, sizeof after);
            ck_assert_uint_eq(table()->ids.n_used, n_used);
            n_failed++;
        }
        ck_assert_int_eq(status, call == 2 || call == 5 ? CATTN_ENOTFOUND : CATTN_OK);
        ck_assert_uint_gt(n_failed, call > 3 ? 0 : 10);
        if (call == 1)
            ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
        cattn_sched_destroy(sched);
        small_free(&small);
    }
}
END_TEST

/* A step that is refused for want of slots has looked its tokens up, and forgets them. */
START_TEST(a_step_that_is_refused_leaves_no_bytes)
{
    struct text text = text_of("7a 7a 7a 7a 7a 7a 7a 7a 7b");
    struct given x;
    small = small_make(3, C, 1, 0);
    cattn_seq other = small_prefill(&small, small_tokens(1, 6), 6), seq = small_open(&small, NULL, 0, NULL);
    give(&x, &text, 0, text.n, false);
    struct cattn_item item = {.seq = seq, .tokens = x.tokens, .n_tokens = (uint32_t)x.n, .ext = &x.ext};
    ck_assert_int_eq(cattn_step_begin(small.step, &item, 1), CATTN_EFULL);
    ck_assert(!cattn_extras_any(table()));
    small_check(&small, 2, 0);
    ck_assert_int_eq(cattn_seq_close(small.cache, other), CATTN_OK);
    ck_assert_int_eq(cattn_step_begin(small.step, &item, 1), CATTN_OK);
    small_finish(&small);
    small_free(&small);
}
END_TEST

START_TEST(selfcheck_counts_references)
{
    size_t n;
    small = small_make(8, C, 1, 0);
    cattn_seq seq = prefill("7a 7a 7a 7a 7b", LONGEST, &n);
    struct cattn_extras *extras = &small.cache->tree.extras;
    struct cattn_sequence *sequence = cattn_sequence_find(small.cache, seq);
#define BREAK(what, by)                                                                                                \
  do {                                                                                                                 \
    what += by;                                                                                                        \
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_ESTATE);                                                \
    what -= by;                                                                                                        \
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);                                                    \
  } while (0)
    BREAK(extras->tokens.records[0].refs, 1);
    BREAK(extras->tokens.records[1].held, 1);
    BREAK(extras->ids.records[0].refs, 1);
    BREAK(extras->tokens.n_used, 1);
    BREAK(sequence->n_extras, 1);
    BREAK(sequence->n_pending, 1);
    BREAK(sequence->tokens[4], -5);
    BREAK(cattn_tree_tokens(&small.cache->tree, sequence->chunks[0])[1], -6);
    BREAK(extras->ids.records[0].hash, 1);
    small.cache->tree.slots[sequence->chunks[0]].extras = false;
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_ESTATE);
    small.cache->tree.slots[sequence->chunks[0]].extras = true;
    small_free(&small);
}
END_TEST

/* ---- the scheduler */

static void run_batch(struct cattn_sched *sched, const struct cattn_batch *batch)
{
    int32_t tokens[8];
    for (size_t i = 0; i < batch->n_items; i++)
        tokens[i] = 30;
    small_finish(&small);
    ck_assert_int_eq(cattn_sched_commit(sched, tokens, NULL), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
}

static cattn_request submit(struct cattn_sched *sched, const char *line, uint64_t max_new)
{
    struct text text = text_of(line);
    struct given x;
    cattn_request request;
    give(&x, &text, 0, text.n, false);
    char *bytes[LONGEST];
    for (size_t i = 0; i < x.ext.n_extras; i++) {
        bytes[i] = malloc(x.extras[i].id_len);
        memcpy(bytes[i], x.extras[i].id, x.extras[i].id_len);
        x.extras[i].id = bytes[i];
    }
    struct cattn_request_config config = {.size = sizeof config,
                                          .ns = "ns",
                                          .ns_len = 2,
                                          .tokens = x.tokens,
                                          .n_tokens = x.n,
                                          .max_new = max_new,
                                          .ext = &x.ext};
    ck_assert_int_eq(cattn_sched_submit(sched, &config, &request), CATTN_OK);
    for (size_t i = 0; i < x.ext.n_extras; i++) {
        memset(bytes[i], 'x', x.extras[i].id_len); /* what is given is copied */
        free(bytes[i]);
    }
    return request;
}

/* Equal images wait for each other, different ones do not; items come with their part of the ranges. */
START_TEST(requests_have_images)
{
    struct cattn_sched_config config = {.size = sizeof config, .max_batch = 4, .max_rows = 6};
    struct cattn_sched *sched;
    struct cattn_batch batch;
    struct cattn_request_info info = {.size = sizeof info};
    small = small_make(32, C, 1, 0);
    ck_assert_int_eq(cattn_sched_create(small.cache, &config, &sched), CATTN_OK);
    cattn_request a = submit(sched, "1 2 3 7a 7a 7a 7a 7a 7a 4", 3), b = submit(sched, "1 2 3 7b 7b 7b 7b 7b 7b 4", 3),
                  same = submit(sched, "1 2 3 7a 7a 7a 7a 7a 7a 4", 3);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    ck_assert_int_eq(cattn_sched_next(sched, small.step, &batch), CATTN_OK);
    ck_assert_uint_eq(batch.n_items, 1);
    ck_assert_uint_eq(batch.items[0].n_tokens, 6);
    ck_assert_uint_eq(batch.items[0].ext->n_extras, 1);
    ck_assert_uint_eq(batch.items[0].ext->extras[0].first, 3);
    ck_assert_uint_eq(batch.items[0].ext->extras[0].n, 3);
    ck_assert_int_eq(batch.items[0].tokens[3], 7);
    cattn_request later = submit(sched, "9e", 1); /* what the batch points at stays */
    ck_assert_uint_eq(batch.items[0].ext->extras[0].n, 3);
    run_batch(sched, &batch);
    ck_assert_int_eq(cattn_sched_next(sched, small.step, &batch), CATTN_OK);
    ck_assert_uint_eq(batch.n_items, 2); /* the one with the other image was admitted */
    ck_assert_uint_eq(batch.turns[0].request, a);
    ck_assert_uint_eq(batch.turns[1].request, b);
    ck_assert_uint_eq(batch.items[0].ext->extras[0].first, 0);
    ck_assert_uint_eq(batch.items[0].ext->extras[0].n, 3);
    run_batch(sched, &batch);
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(cattn_sched_next(sched, small.step, &batch), CATTN_OK);
        if (!batch.n_items)
            break;
        for (size_t k = 0; k < batch.n_items; k++) {
            if (batch.turns[k].request != same || batch.items[k].n_tokens != 2)
                continue;
            ck_assert_int_eq(cattn_sched_request_info(sched, same, &info), CATTN_OK);
            ck_assert_uint_eq(batch.items[k].ext->n_extras, 1);
            ck_assert_uint_eq(batch.items[k].ext->extras[0].n, 1);
        }
        run_batch(sched, &batch);
    }
    ck_assert_uint_eq(batch.n_items, 0);
    ck_assert_uint_eq(info.n_cached, 8); /* it waited for them */
    ck_assert_int_eq(cattn_sched_request_info(sched, later, &info), CATTN_EINVAL);
    ck_assert_uint_eq(cached("1 2 3 7a 7a 7a 7a 7a 7a 4 30 30 1"), 12);
    ck_assert_uint_eq(cached("1 2 3 7b 7b 7b 7b 7b 7b 4 30 30 1"), 12);
    ck_assert_uint_eq(cached("1 2 3 7 7 7 7 7 7 4 30 30 1"), 3);
    a = submit(sched, "7d 7d", 5); /* waits when the scheduler goes */
    ck_assert_int_eq(cattn_sched_cancel(sched, submit(sched, "7e 7e", 5)), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    cattn_sched_destroy(sched);
    ck_assert_int_eq(cattn_cache_evict(small.cache, UINT64_MAX, NULL), CATTN_OK);
    ck_assert(!cattn_extras_any(table()) && !table()->ids.n_used);
    small_free(&small);
}
END_TEST

/* The policy looks for what is cached of the image that a request has. */
START_TEST(whose_image_is_cached_goes_first)
{
    struct cattn_sched_config config = {.size = sizeof config, .policy = CATTN_PREFIX, .max_batch = 1};
    struct cattn_sched *sched;
    struct cattn_batch batch;
    size_t n;
    small = small_make(32, C, 1, 0);
    ck_assert_int_eq(cattn_seq_close(small.cache, prefill("7a 7a 7a 7a 7a 7a 7a 7a 1", LONGEST, &n)), CATTN_OK);
    ck_assert_int_eq(cattn_sched_create(small.cache, &config, &sched), CATTN_OK);
    submit(sched, "7b 7b 7b 7b 7b 7b 7b 7b 1", 1);
    submit(sched, "7 7 7 7 7 7 7 7 1", 1);
    cattn_request first = submit(sched, "7a 7a 7a 7a 7a 7a 7a 7a 1", 1);
    ck_assert_int_eq(cattn_sched_next(sched, small.step, &batch), CATTN_OK);
    ck_assert_uint_eq(batch.n_items, 1);
    ck_assert_uint_eq(batch.turns[0].request, first);
    ck_assert_uint_eq(batch.n_rows, 1);
    run_batch(sched, &batch);
    cattn_sched_destroy(sched);
    small_free(&small);
}
END_TEST

/* Of two that were expected to generate little one is put back; it computes its image again. */
START_TEST(who_is_put_back_keeps_its_image)
{
    struct cattn_sched_config config = {.size = sizeof config, .output_percent = 1};
    struct cattn_sched *sched;
    struct cattn_batch batch = {.n_items = 1};
    struct cattn_sched_counts counts = {.size = sizeof counts};
    small = small_make(10, C, 1, 0);
    ck_assert_int_eq(cattn_sched_create(small.cache, &config, &sched), CATTN_OK);
    submit(sched, "7a 7a 7a 7a 7a 7a 1", 24);
    submit(sched, "7b 7b 7b 7b 7b 7b 1", 24);
    for (int i = 0; i < 100 && batch.n_items; i++) {
        ck_assert_int_eq(cattn_sched_next(sched, small.step, &batch), CATTN_OK);
        if (batch.n_items)
            run_batch(sched, &batch);
    }
    ck_assert_int_eq(cattn_sched_stats(sched, &counts), CATTN_OK);
    ck_assert_uint_eq(counts.n_finished, 2);
    ck_assert_uint_gt(counts.n_preempted, 0);
    ck_assert_uint_eq(cached("7b 7b 7b 7b 7b 7b 1 30 30"), 8);
    ck_assert_uint_eq(cached("7 7 7 7 7 7 1 30 30"), 0);
    cattn_sched_destroy(sched);
    small_free(&small);
}
END_TEST

/* ---- what events tell: the chunks that are cached */

struct entry {
    uint64_t hash, parent;
    int32_t tokens[C];
    unsigned char tags[C];
};

static struct entry entries[MAX_ENTRIES]; /* newer ones last */
static size_t n_entries;

static unsigned tag_of(const void *id, size_t length)
{
    for (unsigned tag = 1; tag < N_TAGS; tag++)
        if (lengths[tag] == length && !memcmp(ids[tag], id, length))
            return tag;
    ck_abort_msg("unknown bytes");
    return 0;
}

static uint64_t fnv(uint64_t hash, uint64_t number, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        hash = (hash ^ (number >> 8 * i & 255)) * UINT64_C(1099511628211);
    return hash;
}

/* As the header has it. */
static uint64_t hash_token(uint64_t hash, int32_t token, unsigned tag)
{
    if (!tag)
        return fnv(hash, (uint32_t)token, 4);
    hash = fnv(fnv(hash, (uint32_t)token + (UINT64_C(1) << 31), 4), lengths[tag], 8);
    for (size_t i = 0; i < lengths[tag]; i++)
        hash = fnv(hash, (unsigned char)ids[tag][i], 1);
    return hash;
}

static uint64_t hash_entry(const struct entry *x)
{
    uint64_t hash = x->parent;
    if (!hash)
        hash = fnv(fnv(fnv(UINT64_C(14695981039346656037), 2, 8), 'n', 1), 's', 1);
    for (int i = 0; i < C; i++)
        hash = hash_token(hash, x->tokens[i], x->tags[i]);
    return hash ? hash : 1;
}

static struct entry entry_of(const struct cattn_event *event)
{
    struct entry x = {.hash = event->hash, .parent = event->parent};
    uint64_t end = 0;
    ck_assert_uint_eq(event->n_tokens, C);
    memcpy(x.tokens, event->tokens, sizeof x.tokens);
    for (size_t i = 0; i < event->n_extras; i++) {
        const struct cattn_extra *extra = &event->extras[i];
        unsigned tag = tag_of(extra->id, extra->id_len);
        ck_assert(extra->first >= end && extra->n && extra->n <= C - extra->first);
        ck_assert(!end || extra->first > end || tag != x.tags[end - 1]); /* ranges are the longest */
        end = extra->first + extra->n;
        memset(x.tags + extra->first, (int)tag, extra->n);
    }
    ck_assert_uint_eq(x.hash, hash_entry(&x));
    return x;
}

static void listen(void *context, const struct cattn_event *event)
{
    size_t i = 0;
    (void)context;
    if (event->kind == CATTN_EVENT_CLEARED) {
        ck_assert(!event->extras && !event->n_extras);
        n_entries = 0;
        return;
    }
    struct entry x = entry_of(event);
    while (i < n_entries && entries[i].hash != x.hash)
        i++;
    ck_assert_int_eq(i < n_entries, event->kind == CATTN_EVENT_REMOVED);
    if (event->kind == CATTN_EVENT_PUBLISHED) {
        ck_assert_uint_lt(n_entries, MAX_ENTRIES);
        entries[n_entries++] = x;
    } else {
        ck_assert_uint_eq(entries[i].parent, x.parent);
        ck_assert_mem_eq(entries[i].tokens, x.tokens, sizeof x.tokens);
        ck_assert_mem_eq(entries[i].tags, x.tags, sizeof x.tags);
        memmove(&entries[i], &entries[i + 1], (--n_entries - i) * sizeof *entries);
    }
}

/* Tokens of a text from `at` on that an entry begins with. */
static size_t common(const struct entry *entry, const struct text *text, size_t at, size_t n)
{
    size_t i = 0;
    while (i < C && at + i < n && entry->tokens[i] == text->tokens[at + i] && entry->tags[i] == text->tags[at + i])
        i++;
    return i;
}

/* What an open finds of n tokens; at least, if there are more candidates than are looked at. */
static size_t findable(const struct text *text, size_t n, bool *exact)
{
    size_t at = 0, best, n_candidates;
    uint64_t parent = 0;
    for (;;) {
        const struct entry *found = NULL;
        best = n_candidates = 0;
        for (size_t i = 0; i < n_entries; i++) {
            size_t length = entries[i].parent == parent ? common(&entries[i], text, at, n) : 0;
            n_candidates += length > 0;
            best = length > best ? length : best;
            found = length == C ? &entries[i] : found;
        }
        if (!found)
            break;
        parent = found->hash;
        at += C;
    }
    *exact = n_candidates <= 8;
    return at + best;
}

START_TEST(hashes_of_prefixes_are_as_documented)
{
    size_t n;
    small = small_make(8, C, 1, 0);
    ck_assert_int_eq(cattn_events_open(&small.cache->tree.events, 8, C, listen, NULL), CATTN_OK);
    n_entries = 0;
    prefill("1 7a 7a 8a 7a 7b 7b 2 3 4 5 6", LONGEST, &n);
    ck_assert_uint_eq(n_entries, 3);
    ck_assert_uint_eq(entries[1].tags[1], 2);
    ck_assert_uint_eq(entries[2].parent, entries[1].hash);
    /* worked out once, outside of this library */
    ck_assert_uint_eq(entries[0].hash, UINT64_C(0x3b9ba2dd2ff2a15d));
    small_free(&small);
}
END_TEST

/* ---- random calls */

enum { MAX_SEQUENCES = 8, N_SLOTS = 20, N_BASES = 4 };

struct live {
    cattn_seq seq; /* 0: none */
    struct text text;
    size_t n_after; /* tokens once the open step ends */
    bool in_step, closed;
    uint64_t space; /* other after the namespace was invalidated */
};

struct world {
    struct live live[MAX_SEQUENCES];
    struct text bases[N_BASES];
    bool step_open;
    uint64_t space;
    struct cattn_sched *sched;
};

static struct world world;

/* Images of several lengths in text; all bases begin alike, and have other images. */
static void draw_base(struct text *text)
{
    text->n = LONGEST;
    for (size_t i = 0; i < LONGEST;) {
        size_t n = rng_between(&rng, 1, 7);
        unsigned tag = rng_chance(&rng, 60) ? (unsigned)rng_below(&rng, N_TAGS) : 0;
        for (; n && i < LONGEST; n--, i++) {
            text->tokens[i] = tag ? 7 : (int32_t)(i % 2);
            text->tags[i] = (unsigned char)tag;
        }
    }
}

/* A base, changed at one place perhaps. */
static struct text draw_text(void)
{
    struct text text = world.bases[rng_below(&rng, N_BASES)];
    size_t i = rng_below(&rng, LONGEST);
    text.n = rng_below(&rng, LONGEST + 1);
    if (rng_chance(&rng, 30))
        text.tags[i] = (unsigned char)rng_below(&rng, N_TAGS);
    if (rng_chance(&rng, 10))
        text.tokens[i] ^= 1;
    return text;
}

static struct live *pick(bool open)
{
    struct live *x = &world.live[rng_below(&rng, MAX_SEQUENCES)];
    return open == (x->seq != 0) && !x->closed ? x : NULL;
}

/* With the next allocations failing, perhaps. */
static struct cattn_stats before;
static uint32_t used_before;
static bool armed;

static void arm(void)
{
    before = stats_of();
    used_before = table()->tokens.n_used;
    armed = rng_chance(&rng, 20);
    failing_memory_set(armed ? rng_between(&rng, 1, 12) : 0);
}

static int disarm(int status)
{
    bool hit = failing_memory_hit();
    failing_memory_set(0);
    ck_assert_int_eq(hit, status == CATTN_ENOMEM);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    if (status) {
        struct cattn_stats after = stats_of();
        ck_assert_mem_eq(&before, &after, sizeof after);
        ck_assert_uint_eq(table()->tokens.n_used, used_before);
    }
    return status;
}

#define TRY(call) (arm(), disarm(call))

static void check_tokens(const struct live *x)
{
    int32_t tokens[LONGEST];
    size_t n;
    ck_assert_int_eq(cattn_seq_tokens(small.cache, x->seq, tokens, LONGEST, &n), CATTN_OK);
    CHECK(n == x->text.n && !memcmp(tokens, x->text.tokens, n * sizeof *tokens), "the tokens of a sequence");
}

static void do_open(void)
{
    struct live *x = pick(false);
    struct text text = draw_text();
    struct given given;
    size_t n_cached;
    bool exact;
    cattn_seq seq;
    give(&given, &text, 0, text.n, rng_chance(&rng, 50));
    if (!x || TRY(cattn_seq_open_ext(small.cache, "ns", 2, given.tokens, given.n, &given.ext, &seq, &n_cached)))
        return;
    size_t expected = findable(&text, text.n ? text.n - 1 : 0, &exact);
    CHECK(n_cached == expected || (!exact && n_cached < expected), "found %zu of %zu", n_cached, expected);
    *x = (struct live){.seq = seq, .text = text, .space = world.space};
    x->text.n = n_cached;
}

static void do_fork(void)
{
    struct live *x = pick(true), *fork = pick(false);
    cattn_seq seq;
    if (!x || !fork || x->in_step || TRY(cattn_seq_fork(small.cache, x->seq, &seq)))
        return;
    *fork = *x;
    fork->seq = seq;
}

static void do_truncate(void)
{
    struct live *x = pick(true);
    if (!x || x->in_step)
        return;
    x->text.n = rng_below(&rng, x->text.n + 1);
    ck_assert_int_eq(cattn_seq_truncate(small.cache, x->seq, x->text.n), CATTN_OK);
}

static void do_close(void)
{
    struct live *x = pick(true);
    if (!x)
        return;
    ck_assert_int_eq(cattn_seq_close(small.cache, x->seq), CATTN_OK);
    if (x->in_step)
        x->closed = true;
    else
        x->seq = 0;
}

/* The cell of a token comes from all pairs up to it. */
static void make_cells(const struct live *x, uint64_t *cells)
{
    uint64_t cell = rng_mix(x->space);
    for (size_t i = 0; i < x->n_after; i++)
        cells[i] = cell = rng_mix(cell ^ ((uint64_t)x->text.tokens[i] << 8 | x->text.tags[i]));
}

static void run_step(const struct cattn_item *items, struct live *const *live, size_t n)
{
    static uint64_t rows[MAX_SEQUENCES * LONGEST], cells[MAX_SEQUENCES][LONGEST], out;
    const uint64_t *ideal[MAX_SEQUENCES];
    struct cattn_io io = {.size = sizeof io, .q = rows, .k = rows, .v = rows, .out = &out};
    for (size_t i = 0; i < n; i++) {
        make_cells(live[i], cells[i]);
        ideal[i] = cells[i];
        memcpy(rows + items[i].first_row, cells[i] + items[i].position, items[i].n_rows * sizeof *rows);
    }
    small.cache->store->ideal = ideal;
    ck_assert_int_eq(cattn_step_attend(small.step, 0, &io), CATTN_OK);
    small.cache->store->ideal = NULL;
    CHECK(!small.cache->store->fault, "%s", small.cache->store->fault);
}

static void do_begin(void)
{
    struct cattn_item items[4];
    struct live *live[4];
    static struct given given[4];
    size_t n = 0;
    if (world.step_open)
        return;
    for (int i = 0; i < 4; i++) {
        struct live *x = pick(true);
        struct text more = draw_text();
        if (!x || x->in_step || x->text.n == LONGEST || rng_chance(&rng, 30))
            continue;
        x->n_after = rng_between(&rng, x->text.n + 1, LONGEST);
        for (size_t k = x->text.n; k < x->n_after; k++) {
            x->text.tokens[k] = more.tokens[k];
            x->text.tags[k] = more.tags[k];
        }
        give(&given[n], &x->text, x->text.n, x->n_after, rng_chance(&rng, 50));
        items[n] = (struct cattn_item){.seq = x->seq,
                                       .tokens = given[n].tokens,
                                       .n_tokens = (uint32_t)given[n].n,
                                       .min_rows = (uint32_t)rng_below(&rng, 3),
                                       .ext = &given[n].ext};
        live[n++] = x;
        x->in_step = true;
    }
    int status = TRY(cattn_step_begin(small.step, items, n));
    ck_assert(status == CATTN_OK || status == CATTN_ENOMEM || status == CATTN_EFULL || status == CATTN_ETOOBIG);
    if (status) {
        for (size_t i = 0; i < n; i++)
            live[i]->in_step = false;
        return;
    }
    memset(given, 0x55, sizeof given); /* nothing of it is read any more */
    run_step(items, live, n);
    world.step_open = true;
}

static void do_finish(void)
{
    bool end = rng_chance(&rng, 80);
    if (!world.step_open)
        return;
    ck_assert_int_eq(end ? cattn_step_end(small.step) : cattn_step_abort(small.step), CATTN_OK);
    world.step_open = false;
    for (int i = 0; i < MAX_SEQUENCES; i++) {
        struct live *x = &world.live[i];
        if (x->in_step && end)
            x->text.n = x->n_after;
        x->in_step = false;
        if (x->closed)
            *x = (struct live){0};
    }
}

static bool is_cached(const struct text *text, size_t n)
{
    bool exact;
    return n && findable(text, n, &exact) == n;
}

static void do_pin(void)
{
    struct text text = draw_text();
    struct given x;
    give(&x, &text, 0, text.n, true);
    int status;
    if (rng_chance(&rng, 30)) {
        status = TRY(cattn_prefix_pin(small.cache, "ns", 2, x.tokens, x.n, &x.ext));
        if (status != CATTN_ENOMEM)
            ck_assert_int_eq(status, is_cached(&text, text.n / C * C) ? CATTN_OK : CATTN_ENOTFOUND);
    } else {
        status = TRY(cattn_prefix_unpin(small.cache, "ns", 2, x.tokens, x.n, &x.ext));
        ck_assert(status == CATTN_OK || status == CATTN_ENOMEM || status == CATTN_ENOTFOUND);
    }
}

static void do_evict(void)
{
    ck_assert_int_eq(cattn_cache_evict(small.cache, rng_below(&rng, 4), NULL), CATTN_OK);
    if (!rng_chance(&rng, 10))
        return;
    ck_assert_int_eq(cattn_namespace_invalidate(small.cache, "ns", 2), CATTN_OK);
    ck_assert_uint_eq(n_entries, 0);
    world.space++;
}

/* Requests only wait: their images are in the table. */
static void do_submit(void)
{
    struct text text = draw_text();
    struct given x;
    cattn_request request;
    give(&x, &text, 0, text.n, true);
    struct cattn_request_config config = {
        .size = sizeof config, .tokens = x.tokens, .n_tokens = x.n, .max_new = 2, .ext = &x.ext};
    if (!x.n)
        return;
    int status = TRY(cattn_sched_submit(world.sched, &config, &request));
    if (!status && rng_chance(&rng, 80))
        ck_assert_int_eq(cattn_sched_cancel(world.sched, request), CATTN_OK);
}

static void start_world(uint64_t number)
{
    uint32_t flags = number % 3 == 1 ? CATTN_NO_RETAIN : number % 3 == 2 ? CATTN_ZERO_FREED : 0;
    rng_init(&rng, number);
    world = (struct world){0};
    small = small_make(N_SLOTS, C, 1, flags | (number % 2 ? CATTN_CONCURRENT : 0));
    small.cache->tree.constant_hash = small.cache->tree.extras.constant_hash = number % 5 == 4;
    ck_assert_int_eq(cattn_events_open(&small.cache->tree.events, N_SLOTS, C, listen, NULL), CATTN_OK);
    ck_assert_int_eq(cattn_sched_create(small.cache, NULL, &world.sched), CATTN_OK);
    n_entries = 0;
    draw_base(&world.bases[0]);
    for (int i = 1; i < N_BASES; i++) {
        size_t same = rng_below(&rng, 24);
        draw_base(&world.bases[i]);
        memcpy(world.bases[i].tokens, world.bases[0].tokens, same * sizeof(int32_t));
        memcpy(world.bases[i].tags, world.bases[0].tags, same);
    }
}

/* When all is closed, unpinned and evicted no bytes are left. */
static void end_world(void)
{
    if (world.step_open)
        ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
    for (int i = 0; i < MAX_SEQUENCES; i++)
        if (world.live[i].seq && !world.live[i].closed)
            ck_assert_int_eq(cattn_seq_close(small.cache, world.live[i].seq), CATTN_OK);
    cattn_sched_destroy(world.sched);
    ck_assert_int_eq(cattn_namespace_invalidate(small.cache, "ns", 2), CATTN_OK);
    small_check(&small, 0, 0);
    ck_assert(!table()->tokens.n_used && !table()->ids.n_used);
    small_free(&small);
}

START_TEST(random_calls_agree_with_pairs)
{
    static void (*const all[])(void) = {do_open,  do_open,  do_open,   do_fork,   do_truncate, do_close, do_close,
                                        do_begin, do_begin, do_finish, do_finish, do_pin,      do_evict, do_submit};
    for (uint64_t number = 0; number < (test_full() ? 2000 : 60); number++) {
        start_world(number);
        for (int i = 0; i < 400; i++) {
            all[rng_below(&rng, sizeof all / sizeof *all)]();
            ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
            struct live *x = pick(true);
            if (x)
                check_tokens(x);
        }
        end_world();
    }
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("extras");
    tcase_add_test(tests, equal_tokens_with_other_bytes_are_others);
    tcase_add_test(tests, long_bytes_are_compared_to_the_end);
    tcase_add_test(tests, items_of_a_step_share_equal_images_alone);
    tcase_add_test(tests, tokens_come_back_as_they_were_given);
    tcase_add_test(tests, bytes_are_kept_as_long_as_needed);
    tcase_add_test(tests, what_is_written_over_is_let_go);
    tcase_add_test(tests, closed_in_a_step_is_let_go_at_its_end);
    tcase_add_test(tests, what_was_evicted_is_told_from_what_never_was);
    tcase_add_test(tests, pins_are_of_one_image);
    tcase_add_test(tests, thousands_of_images);
    tcase_add_test(tests, wrong_ranges_and_tokens_are_refused);
    tcase_add_test(tests, every_token_is_looked_at);
    tcase_add_test(tests, tokens_that_can_never_fit_are_not_read);
    tcase_add_test(tests, without_memory_nothing_changes);
    tcase_add_test(tests, a_step_that_is_refused_leaves_no_bytes);
    tcase_add_test(tests, selfcheck_counts_references);
    tcase_add_test(tests, requests_have_images);
    tcase_add_test(tests, whose_image_is_cached_goes_first);
    tcase_add_test(tests, who_is_put_back_keeps_its_image);
    tcase_add_test(tests, hashes_of_prefixes_are_as_documented);
    tcase_add_test(tests, random_calls_agree_with_pairs);
    return suite_run(tests);
}

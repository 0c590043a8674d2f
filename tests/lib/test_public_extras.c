/* Extra identities of tokens on both sides of the border between public and private chunks. */
#include "failing_memory.h"
#include "small.h"
#include "support/suite.h"

#include <string.h>

enum { C = 4, LONGEST = 40, MAX_TOLD = 16 };

static struct small small;

/* Tokens 1, 2, ...; those of [first, first + n) are placeholders of an image. */
struct prompt {
    int32_t tokens[LONGEST];
    struct cattn_extra extra;
    struct cattn_ext ext;
};

static struct prompt *show(const char *image, size_t first, size_t n)
{
    static struct prompt prompts[8];
    static unsigned next;
    struct prompt *x = &prompts[next++ % 8];
    for (size_t i = 0; i < LONGEST; i++)
        x->tokens[i] = i >= first && i < first + n ? 7 : (int32_t)i + 1;
    x->extra = (struct cattn_extra){first, n, image, strlen(image)};
    x->ext = (struct cattn_ext){sizeof x->ext, &x->extra, 1};
    return x;
}

/* The tokens [from, to) of a prompt. */
static struct prompt *cut(const struct prompt *x, size_t from, size_t to)
{
    struct prompt *part = show(x->extra.id, 0, 0);
    size_t first = x->extra.first, end = first + x->extra.n < to ? first + x->extra.n : to;
    first = first > from ? first : from;
    memcpy(part->tokens, x->tokens + from, (to - from) * sizeof *part->tokens);
    part->extra = x->extra;
    part->extra.first = first - from;
    part->extra.n = end > first ? end - first : 0;
    part->ext.n_extras = end > first;
    return part;
}

static int set(const char *name, const char *public, uint64_t limit)
{
    struct cattn_namespace_config config = {
        .size = sizeof config, .limit_slots = limit, .public_ns = public, .public_ns_len = strlen(public)};
    return cattn_namespace_set(small.cache, name, strlen(name), &config);
}

static void start(void)
{
    small = small_make(32, C, 1, 0);
    ck_assert_int_eq(set("a", "op", 0), CATTN_OK);
    ck_assert_int_eq(set("b", "op", 0), CATTN_OK);
}

static cattn_seq open_in(const char *name, const struct prompt *whole, size_t n, size_t *n_cached)
{
    const struct prompt *x = cut(whole, 0, n);
    cattn_seq seq;
    ck_assert_int_eq(cattn_seq_open_ext(small.cache, name, strlen(name), x->tokens, n, &x->ext, &seq, n_cached),
                     CATTN_OK);
    return seq;
}

static void close_it(cattn_seq seq)
{
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
}

static size_t cached(const char *name, const struct prompt *x, size_t n)
{
    size_t n_cached;
    close_it(open_in(name, x, n, &n_cached));
    return n_cached;
}

static void feed(const char *name, const struct prompt *x, size_t n)
{
    size_t held;
    cattn_seq seq = open_in(name, x, n, &held);
    const struct prompt *rest = cut(x, held, n);
    struct cattn_item item = small_item(seq, rest->tokens, (uint32_t)(n - held));
    item.ext = &rest->ext;
    ck_assert_int_eq(cattn_step_begin(small.step, &item, 1), CATTN_OK);
    small_finish(&small);
    close_it(seq);
}

START_TEST(an_image_is_the_same_on_both_sides)
{
    start();
    feed("op", show("cat", 2, 5), 13);
    ck_assert_uint_eq(cached("a", show("cat", 2, 5), 13), 12);
    ck_assert_uint_eq(cached("a", show("dog", 2, 5), 13), 2);
    ck_assert_uint_eq(cached("a", show("cat", 2, 4), 13), 6);
    feed("a", show("cat", 10, 9), 21); /* the first 10 tokens have no image there: all of them its own */
    ck_assert_uint_eq(cached("a", show("cat", 10, 9), 21), 20);
    ck_assert_uint_eq(cached("a", show("dog", 10, 9), 21), 10);
    ck_assert_uint_eq(cached("b", show("cat", 10, 9), 21), 2);
    small_free(&small);
}
END_TEST

/* An image that begins in a public chunk and ends in private ones. */
START_TEST(an_image_may_lie_across_the_border)
{
    start();
    feed("op", show("cat", 6, 20), 8);
    feed("a", show("cat", 6, 20), 30);
    ck_assert_uint_eq(cached("a", show("cat", 6, 20), 30), 28);
    ck_assert_uint_eq(cached("b", show("cat", 6, 20), 30), 8);
    ck_assert_uint_eq(cached("a", show("dog", 6, 20), 30), 6);
    const struct prompt *x = show("cat", 6, 20), *y = show("dog", 6, 20);
    ck_assert_int_eq(cattn_prefix_pin(small.cache, "a", 1, y->tokens, 26, &y->ext), CATTN_ENOTFOUND);
    ck_assert_int_eq(cattn_prefix_pin(small.cache, "a", 1, cut(x, 0, 8)->tokens, 8, &cut(x, 0, 8)->ext),
                     CATTN_ENOTFOUND);
    ck_assert_int_eq(cattn_prefix_pin(small.cache, "a", 1, x->tokens, 26, &x->ext), CATTN_OK);
    ck_assert_int_eq(cattn_cache_evict(small.cache, UINT64_MAX, NULL), CATTN_OK);
    small_check(&small, 6, 0);
    ck_assert_int_eq(cattn_namespace_invalidate(small.cache, "op", 2), CATTN_OK);
    small_check(&small, 0, 0);
    ck_assert(!cattn_extras_any(&small.cache->tree.extras));
    small_free(&small);
}
END_TEST

/* ---- events */

static struct told {
    uint64_t hash, parent;
} told[MAX_TOLD];
static size_t n_told;

static void listen(void *context, const struct cattn_event *event)
{
    (void)context;
    ck_assert_uint_lt(n_told, MAX_TOLD);
    told[n_told++] = (struct told){event->hash, event->parent};
}

static uint64_t fnv(uint64_t hash, uint64_t number, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        hash = (hash ^ (number >> 8 * i & 255)) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t fnv_bytes(uint64_t hash, const char *bytes)
{
    hash = fnv(hash, strlen(bytes), 8);
    while (*bytes)
        hash = fnv(hash, (unsigned char)*bytes++, 1);
    return hash;
}

static uint64_t fnv_tokens(uint64_t hash, const struct prompt *x, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        bool shown = i >= x->extra.first && i < x->extra.first + x->extra.n;
        hash = fnv(hash, (uint32_t)x->tokens[i] | (shown ? 0x80000000u : 0), 4);
        if (shown)
            hash = fnv_bytes(hash, x->extra.id);
    }
    return hash;
}

START_TEST(hashes_have_the_name_between_images)
{
    start();
    n_told = 0;
    ck_assert_int_eq(cattn_events_open(&small.cache->tree.events, 32, C, listen, NULL), CATTN_OK);
    const struct prompt *x = show("cat", 2, 5);
    feed("op", x, 4);
    feed("a", x, 9);
    ck_assert_uint_eq(n_told, 2);
    uint64_t public = fnv_tokens(fnv_bytes(UINT64_C(0xcbf29ce484222325), "op"), x, 0, 4);
    ck_assert_uint_eq(told[0].hash, public);
    ck_assert_uint_eq(told[0].parent, 0);
    ck_assert_uint_eq(told[1].hash, fnv_tokens(fnv_bytes(public, "a"), x, 4, 8));
    ck_assert_uint_eq(told[1].parent, public);
    small_free(&small);
}
END_TEST

/* ---- requests */

static int submit(struct cattn_sched *sched, const struct prompt *x, size_t n, cattn_request *request)
{
    struct cattn_request_config config = {.size = sizeof config,
                                          .ns = "a",
                                          .ns_len = 1,
                                          .tokens = x->tokens,
                                          .n_tokens = n,
                                          .ext = &x->ext,
                                          .max_new = 1};
    return cattn_sched_submit(sched, &config, request);
}

/* Whether a prompt fits a limit depends on how much of it is public, and that on the image. */
START_TEST(a_limit_leaves_out_the_public_image)
{
    struct cattn_sched_config config = {.size = sizeof config, .max_batch = 4, .max_rows = 64};
    struct cattn_sched *sched;
    cattn_request request;
    start();
    feed("op", show("cat", 2, 20), 24);
    ck_assert_int_eq(set("a", "op", 3), CATTN_OK);
    ck_assert_int_eq(cattn_sched_create(small.cache, &config, &sched), CATTN_OK);
    ck_assert_int_eq(submit(sched, show("dog", 2, 20), 30, &request), CATTN_ETOOBIG);
    int status = CATTN_ENOMEM;
    size_t fail_at = 0;
    while (status == CATTN_ENOMEM) {
        failing_memory_set(++fail_at);
        status = submit(sched, show("cat", 2, 20), 30, &request);
        ck_assert_int_eq(status == CATTN_ENOMEM, failing_memory_hit());
        failing_memory_set(0);
        ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    }
    ck_assert_int_eq(status, CATTN_OK);
    ck_assert_uint_gt(fail_at, 2);
    ck_assert_int_eq(cattn_sched_cancel(sched, request), CATTN_OK);
    ck_assert_int_eq(submit(sched, show("cat", 2, 20), 33, &request), CATTN_ETOOBIG);
    cattn_sched_destroy(sched);
    small_free(&small);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("public, with extra identities");
    tcase_add_test(tests, an_image_is_the_same_on_both_sides);
    tcase_add_test(tests, an_image_may_lie_across_the_border);
    tcase_add_test(tests, hashes_have_the_name_between_images);
    tcase_add_test(tests, a_limit_leaves_out_the_public_image);
    return suite_run(tests);
}

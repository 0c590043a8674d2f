/* Saved prefixes that begin with public chunks and go on with private ones. */
#define _DEFAULT_SOURCE 1
#include "cache.h"
#include "cells.h"
#include "failing_memory.h"
#include "support/random.h"
#include "support/suite.h"
#include "view.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LONGEST = 40, MAX_PINS = 24 };

static const char *const names[] = {"op", "a", "b"}; /* the last two read the first */
static char folder[64], path[128];
static int32_t text[LONGEST];

static void make_folder(void)
{
    strcpy(folder, "cattn-save-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/prefixes", folder);
    for (int32_t i = 0; i < LONGEST; i++)
        text[i] = i + 1;
}

static void remove_folder(void)
{
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}

static int set(struct cattn_cache *cache, const char *name, const char *public)
{
    struct cattn_namespace_config config = {.size = sizeof config, .public_ns = public};
    config.public_ns_len = public ? strlen(public) : 0;
    return cattn_namespace_set(cache, name, strlen(name), &config);
}

static struct cattn_cache *make(uint32_t n_slots, uint32_t chunk_tokens, bool readers)
{
    struct cattn_cache *cache;
    struct cattn_shape shape = cells_shape(n_slots, chunk_tokens, 1);
    ck_assert_int_eq(cattn_cache_make(&shape, &cells_backend, NULL, 0, &cache), CATTN_OK);
    for (int i = 1; readers && i < 3; i++)
        ck_assert_int_eq(set(cache, names[i], names[0]), CATTN_OK);
    return cache;
}

static void destroy(struct cattn_cache *cache)
{
    ck_assert_ptr_null(cache->store->fault);
    ck_assert_int_eq(cattn_cache_selfcheck(cache), CATTN_OK);
    cattn_cache_destroy(cache);
}

/* What the library is given of tokens: from IMAGE on they are a token with one of several extra identities. */
enum { IMAGE = 100 };

struct given {
    int32_t tokens[LONGEST];
    struct cattn_extra extras[LONGEST];
    struct cattn_ext ext;
};

static const struct given *give(const int32_t *tokens, size_t n)
{
    static struct given all[4];
    static unsigned next;
    struct given *x = &all[next++ % 4];
    x->ext = (struct cattn_ext){.size = sizeof x->ext, .extras = x->extras};
    for (size_t i = 0; i < n; i++) {
        x->tokens[i] = tokens[i] < IMAGE ? tokens[i] : 0;
        if (tokens[i] >= IMAGE)
            x->extras[x->ext.n_extras++] = (struct cattn_extra){i, 1, "image", (size_t)(tokens[i] - IMAGE) + 1};
    }
    return x;
}

/* What a token has is a function of all up to it. */
static uint64_t cell_after(uint64_t cell, int32_t token)
{
    return rng_mix(cell * 31 + (uint32_t)token + 1);
}

/* Caches a prompt, of which the first `held` tokens are looked for. */
static void feed(struct cattn_cache *cache, int space, const int32_t *tokens, size_t held, size_t n)
{
    uint64_t cells[LONGEST], q, out, cell = 0;
    size_t cached;
    cattn_seq seq;
    struct cattn_step *step;
    for (size_t i = 0; i < n; i++)
        cells[i] = cell = cell_after(cell, tokens[i]);
    ck_assert_int_eq(cattn_step_create(cache, &step), CATTN_OK);
    const struct given *x = give(tokens, held);
    ck_assert_int_eq(
        cattn_seq_open_ext(cache, names[space], strlen(names[space]), x->tokens, held, &x->ext, &seq, &cached),
        CATTN_OK);
    x = give(tokens + cached, n - cached);
    struct cattn_item item = {.seq = seq, .tokens = x->tokens, .n_tokens = (uint32_t)(n - cached), .ext = &x->ext};
    ck_assert_int_eq(cattn_step_begin(step, &item, 1), CATTN_OK);
    struct cattn_io io = {.size = sizeof io, .q = &q, .out = &out, .k = cells + item.position};
    io.v = io.k;
    ck_assert_int_eq(cattn_step_attend(step, 0, &io), CATTN_OK);
    ck_assert_int_eq(cattn_step_end(step), CATTN_OK);
    ck_assert_int_eq(cattn_seq_close(cache, seq), CATTN_OK);
    cattn_step_destroy(step);
}

static int pin(struct cattn_cache *cache, int space, const int32_t *tokens, size_t n)
{
    const struct given *x = give(tokens, n);
    return cattn_prefix_pin(cache, names[space], strlen(names[space]), x->tokens, n, &x->ext);
}

static int unpin(struct cattn_cache *cache, int space, const int32_t *tokens, size_t n)
{
    const struct given *x = give(tokens, n);
    return cattn_prefix_unpin(cache, names[space], strlen(names[space]), x->tokens, n, &x->ext);
}

static int save(const struct cattn_cache *cache)
{
    return cattn_prefix_save(cache, path, "model", 5);
}

static int load(struct cattn_cache *cache, uint64_t *n_tokens)
{
    int status = cattn_prefix_load(cache, path, "model", 5, n_tokens);
    ck_assert_int_eq(cattn_cache_selfcheck(cache), CATTN_OK);
    return status;
}

/* Tokens that are found in whole chunks, whose cells must be right; *n_public: those in public chunks. */
static size_t find(struct cattn_cache *cache, int space, const int32_t *tokens, size_t n, size_t *n_public)
{
    uint32_t slots[LONGEST], c = cache->tree.chunk_tokens;
    struct cattn_view view = cattn_view_named(&cache->tree, names[space], strlen(names[space]));
    const struct given *x = give(tokens, n);
    int32_t *ids;
    ck_assert_int_eq(cattn_prompt_enter(&cache->tree.extras, x->tokens, n, &x->ext, &ids), CATTN_OK);
    size_t n_found = cattn_view_match(&cache->tree, view, ids ? ids : x->tokens, n, slots);
    cattn_prompt_leave(&cache->tree.extras, ids, n);
    uint64_t cell = 0;
    *n_public = 0;
    for (size_t i = 0; i < n_found * c; i++) {
        cell = cell_after(cell, tokens[i]);
        ck_assert_uint_eq(cells_of(cache->store, 0, slots[i / c])[i % c], cell);
        *n_public += cache->tree.slots[slots[i / c]].root == view.public;
    }
    return n_found * c;
}

/* 12 public tokens in chunks of 4, behind which a has 8 pinned. */
static struct cattn_cache *example(void)
{
    struct cattn_cache *cache = make(40, 4, true);
    feed(cache, 0, text, 12, 12);
    feed(cache, 1, text, 22, 22);
    ck_assert_int_eq(pin(cache, 1, text, 22), CATTN_OK);
    return cache;
}

/* ---- tests */

START_TEST(both_parts_come_back)
{
    static const size_t publics[] = {12, 12, 8};
    make_folder();
    struct cattn_cache *from = example();
    ck_assert_int_eq(save(from), CATTN_OK);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t c = 2u << i;
        size_t n_public, whole = 20 / c * c;
        uint64_t n_tokens;
        struct cattn_cache *to = make(20 / c, c, true);
        ck_assert_int_eq(load(to, &n_tokens), CATTN_OK);
        ck_assert_uint_eq(n_tokens, whole);
        ck_assert_uint_eq(find(to, 1, text, 22, &n_public), whole);
        ck_assert_uint_eq(n_public, publics[i]);
        ck_assert_uint_eq(find(to, 2, text, 22, &n_public), publics[i]); /* what is private stayed so */
        ck_assert_uint_eq(find(to, 0, text, 22, &n_public), publics[i]);
        ck_assert_uint_eq(to->tree.n_pinned, whole / c);
        ck_assert_int_eq(load(to, &n_tokens), CATTN_OK); /* all is there: pins are added */
        for (int k = 0; k < 2; k++)
            ck_assert_int_eq(unpin(to, 1, text, whole), CATTN_OK);
        ck_assert_uint_eq(to->tree.n_pins, 0);
        destroy(to);
    }
    destroy(from);
    remove_folder();
}
END_TEST

START_TEST(settings_come_before_files)
{
    make_folder();
    struct cattn_cache *from = example(), *to = make(40, 4, false);
    ck_assert_int_eq(save(from), CATTN_OK);
    uint64_t n_tokens = 77;
    ck_assert_int_eq(load(to, &n_tokens), CATTN_ESTATE);
    ck_assert_int_eq(set(to, "a", "else"), CATTN_OK);
    ck_assert_int_eq(load(to, &n_tokens), CATTN_ESTATE);
    ck_assert_uint_eq(n_tokens, 77);
    ck_assert_uint_eq(to->tree.n_touched, 0);
    ck_assert_int_eq(set(to, "a", "op"), CATTN_OK);
    int status = CATTN_ENOMEM; /* with each allocation failing first */
    for (size_t fail_at = 1; status == CATTN_ENOMEM; fail_at++) {
        failing_memory_set(fail_at);
        status = cattn_prefix_load(to, path, "model", 5, &n_tokens);
        ck_assert_int_eq(status == CATTN_ENOMEM, failing_memory_hit());
        failing_memory_set(0);
        ck_assert_int_eq(cattn_cache_selfcheck(to), CATTN_OK);
        if (status)
            ck_assert_uint_eq(cattn_roots_find(&to->tree.roots, "op", 2), CATTN_NONE);
    }
    ck_assert_int_eq(status, CATTN_OK);
    ck_assert_uint_eq(n_tokens, 20);
    destroy(from);
    destroy(to);
    remove_folder();
}
END_TEST

/* Where all that is left of it is public. */
START_TEST(a_private_pin_becomes_no_public_one)
{
    make_folder();
    struct cattn_cache *from = make(40, 4, true), *to = make(40, 8, true);
    feed(from, 0, text, 16, 16);
    feed(from, 1, text, 20, 20);
    ck_assert_int_eq(pin(from, 1, text, 20), CATTN_OK);
    ck_assert_int_eq(save(from), CATTN_OK);
    uint64_t n_tokens = 77;
    size_t n_public;
    ck_assert_int_eq(load(to, &n_tokens), CATTN_OK);
    ck_assert_uint_eq(n_tokens, 0);
    ck_assert_uint_eq(to->tree.n_pins, 0);
    ck_assert_uint_eq(find(to, 1, text, 20, &n_public), 16); /* cached all the same */
    ck_assert_uint_eq(to->tree.n_evictable, 2);
    destroy(from);
    destroy(to);
    remove_folder();
}
END_TEST

/* Equal tokens twice under one name, once behind a public chunk that came later. */
START_TEST(two_ways_to_the_same_tokens_are_joined)
{
    make_folder();
    struct cattn_cache *from = make(40, 4, true), *to = make(40, 8, true), *same = make(40, 4, true);
    size_t n_public;
    uint64_t n_tokens;
    feed(from, 1, text, 8, 8);
    ck_assert_int_eq(pin(from, 1, text, 8), CATTN_OK);
    feed(from, 0, text, 4, 4);
    feed(from, 1, text, 5, 8);
    ck_assert_int_eq(pin(from, 1, text, 8), CATTN_OK);
    ck_assert_uint_eq(from->tree.n_pinned, 4);
    for (uint32_t slot = 2; slot < 4; slot++) /* K and V of the second way are not quite those of the first */
        cells_of(from->store, 0, slot)[3]++;
    ck_assert_int_eq(save(from), CATTN_OK);
    for (uint32_t slot = 2; slot < 4; slot++)
        cells_of(from->store, 0, slot)[3]--;
    ck_assert_int_eq(load(to, &n_tokens), CATTN_OK);
    ck_assert_uint_eq(n_tokens, 8);
    ck_assert_uint_eq(find(to, 1, text, 8, &n_public), 8);
    ck_assert_int_eq(load(same, &n_tokens), CATTN_OK);
    ck_assert_uint_eq(n_tokens, 16); /* here they stay apart */
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(unpin(to, 1, text, 8), CATTN_OK);
        ck_assert_int_eq(unpin(same, 1, text, 8), CATTN_OK);
    }
    ck_assert_uint_eq(to->tree.n_pins, 0);
    ck_assert_uint_eq(same->tree.n_pins, 0);
    destroy(from);
    destroy(to);
    destroy(same);
    remove_folder();
}
END_TEST

struct prefix {
    int space;
    int32_t tokens[LONGEST];
    size_t n;
};

static size_t draw_pins(struct rng *rng, struct cattn_cache *cache, struct prefix *pins)
{
    size_t n_pins = 0;
    for (size_t i = 0; i < MAX_PINS; i++) {
        struct prefix *x = &pins[n_pins];
        x->space = (int)rng_below(rng, 3);
        for (size_t k = 0; k < LONGEST; k++)
            x->tokens[k] = rng_chance(rng, 10) ? (int32_t)rng_below(rng, 3) : 0;
        size_t image = rng_below(rng, 2 * LONGEST), end = image + rng_below(rng, 12);
        for (size_t k = image; k < end && k < LONGEST; k++)
            x->tokens[k] = IMAGE + (int32_t)rng_below(rng, 50) / 48;
        size_t n = rng_between(rng, 2, LONGEST - 1);
        feed(cache, x->space, x->tokens, rng_between(rng, 1, n), n);
        x->n = rng_below(rng, n + 1);
        n_pins += pin(cache, x->space, x->tokens, x->n) == CATTN_OK;
    }
    return n_pins;
}

static void round_trip(uint64_t number, uint32_t c_before, uint32_t c)
{
    struct rng rng;
    struct prefix pins[MAX_PINS];
    uint64_t n_tokens;
    size_t n_public;
    rng_init(&rng, number);
    struct cattn_cache *from = make(1000, c_before, true), *to = make(1000, c, true);
    size_t n = draw_pins(&rng, from, pins);
    ck_assert_int_eq(save(from), CATTN_OK);
    ck_assert_int_eq(load(to, &n_tokens), CATTN_OK);
    ck_assert_uint_eq(n_tokens, (uint64_t)to->tree.n_pinned * c);
    for (size_t i = 0; i < n; i++) {
        size_t whole = pins[i].n / c_before * c_before / c * c;
        ck_assert_uint_ge(find(to, pins[i].space, pins[i].tokens, pins[i].n, &n_public), whole);
        int status = unpin(to, pins[i].space, pins[i].tokens, whole);
        ck_assert(status == CATTN_OK || c > c_before);
    }
    ck_assert_uint_eq(to->tree.n_pins, 0);
    ck_assert_int_eq(cattn_cache_evict(to, UINT64_MAX, NULL), CATTN_OK);
    ck_assert(!cattn_extras_any(&to->tree.extras));
    destroy(from);
    destroy(to);
}

START_TEST(random_trees_come_back)
{
    make_folder();
    for (uint64_t number = 0; number < (test_full() ? 2000 : 100); number++)
        round_trip(number, 1u << number % 4, 1u << number / 4 % 4);
    remove_folder();
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("saved public prefixes");
    tcase_add_test(tests, both_parts_come_back);
    tcase_add_test(tests, settings_come_before_files);
    tcase_add_test(tests, a_private_pin_becomes_no_public_one);
    tcase_add_test(tests, two_ways_to_the_same_tokens_are_joined);
    tcase_add_test(tests, random_trees_come_back);
    return suite_run(tests);
}

/* Saving and loading pinned prefixes, with small chunks on the backend without floats: trees that come back in chunks
 * of any size, files that are damaged or forged, and what remains when memory, the disk or the process fails. */
#define _DEFAULT_SOURCE 1
#include "cells.h"
#include "failing_file.h"
#include "failing_memory.h"
#include "file.h"
#include "save.h"
#include "support/random.h"
#include "support/suite.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_LAYERS = 2, LONGEST = 40, MAX_PINS = 32 };

static const char *const names[] = {"", "a", "bc"};
static char folder[64], path[128];

/* ---- files */

static void make_folder(void)
{
    strcpy(folder, "cattn-save-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/prefixes", folder);
}

/* Removes all but one; how many there were. */
static size_t clean_folder(const char *but)
{
    char name[512];
    size_t n = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.' || (but && !strcmp(entry->d_name, but)))
            continue;
        snprintf(name, sizeof name, "%s/%s", folder, entry->d_name);
        unlink(name);
        n++;
    }
    closedir(dir);
    return n;
}

static void remove_folder(void)
{
    clean_folder(NULL);
    ck_assert_int_eq(rmdir(folder), 0);
}

static unsigned char *read_file(size_t *n)
{
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    *n = (size_t)ftell(file);
    unsigned char *bytes = malloc(*n + 1);
    rewind(file);
    ck_assert_uint_eq(fread(bytes, 1, *n, file), *n);
    fclose(file);
    return bytes;
}

static void write_file(const unsigned char *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, n, file), n);
    fclose(file);
}

static bool file_is(const unsigned char *bytes, size_t n)
{
    size_t length;
    unsigned char *found = read_file(&length);
    bool same = length == n && !memcmp(found, bytes, n);
    free(found);
    return same;
}

/* ---- caches */

static struct cattn_cache *make(uint32_t n_slots, uint32_t chunk_tokens, uint32_t flags)
{
    struct cattn_cache *cache;
    struct cattn_shape shape = cells_shape(n_slots, chunk_tokens, N_LAYERS);
    ck_assert_int_eq(cattn_cache_make(&shape, &cells_backend, NULL, flags, &cache), CATTN_OK);
    return cache;
}

static void destroy(struct cattn_cache *cache)
{
    ck_assert_ptr_null(cache->store->fault);
    ck_assert_int_eq(cattn_cache_selfcheck(cache), CATTN_OK);
    cattn_cache_destroy(cache);
}

/* In prompts here a number is 1000 times a tag, which stands for the bytes of an extra identity (0: none), plus a
 * token. */
enum { TAG = 1000, N_TAGS = 4 };

struct given {
    int32_t tokens[LONGEST + 1];
    struct cattn_extra extras[LONGEST + 1];
    struct cattn_ext ext;
};

static void give(struct given *x, const int32_t *tokens, size_t n)
{
    static const char ids[300] = "pq";
    static const size_t lengths[N_TAGS] = {0, 1, 2, sizeof ids};
    x->ext = (struct cattn_ext){.size = sizeof x->ext, .extras = x->extras};
    for (size_t i = 0; i < n; i++) {
        x->tokens[i] = tokens[i] % TAG;
        if (tokens[i] >= TAG)
            x->extras[x->ext.n_extras++] = (struct cattn_extra){i, 1, ids, lengths[tokens[i] / TAG]};
    }
}

/* The cells of the tokens of a prompt in one layer. */
static void make_cells(uint64_t *cells, uint32_t layer, int space, const int32_t *tokens, size_t n)
{
    uint64_t hash = rng_mix(1000 * layer + (uint64_t)space + 1);
    for (size_t i = 0; i < n; i++)
        cells[i] = hash = rng_mix(hash ^ (uint32_t)tokens[i]);
}

/* Caches a prompt to which nothing refers then. */
static int feed(struct cattn_cache *cache, int space, const int32_t *tokens, size_t n)
{
    uint64_t cells[LONGEST + 1], out;
    size_t cached;
    cattn_seq seq;
    struct cattn_step *step;
    ck_assert_int_eq(cattn_step_create(cache, &step), CATTN_OK);
    struct given x;
    give(&x, tokens, n);
    ck_assert_int_eq(cattn_seq_open_ext(cache, names[space], strlen(names[space]), x.tokens, n, &x.ext, &seq, &cached),
                     CATTN_OK);
    give(&x, tokens + cached, n - cached);
    struct cattn_item item = {.seq = seq, .tokens = x.tokens, .n_tokens = (uint32_t)(n - cached), .ext = &x.ext};
    int status = cattn_step_begin(step, &item, 1);
    for (uint32_t layer = 0; !status && layer < N_LAYERS; layer++) {
        make_cells(cells, layer, space, tokens, n);
        const uint64_t *rows = cells + item.position;
        struct cattn_io io = {.size = sizeof io, .q = rows, .k = rows, .v = rows, .out = &out};
        ck_assert_int_eq(cattn_step_attend(step, layer, &io), CATTN_OK);
    }
    if (!status)
        ck_assert_int_eq(cattn_step_end(step), CATTN_OK);
    ck_assert_int_eq(cattn_seq_close(cache, seq), CATTN_OK);
    cattn_step_destroy(step);
    return status;
}

static int pin(struct cattn_cache *cache, int space, const int32_t *tokens, size_t n)
{
    struct given x;
    give(&x, tokens, n);
    return cattn_prefix_pin(cache, names[space], strlen(names[space]), x.tokens, n, &x.ext);
}

static int unpin(struct cattn_cache *cache, int space, const int32_t *tokens, size_t n)
{
    struct given x;
    give(&x, tokens, n);
    return cattn_prefix_unpin(cache, names[space], strlen(names[space]), x.tokens, n, &x.ext);
}

/* How many of n tokens are cached in whole chunks, whose cells must be right. */
static size_t check_cached(struct cattn_cache *cache, int space, const int32_t *tokens, size_t n)
{
    struct given x;
    int32_t *numbers;
    give(&x, tokens, n);
    ck_assert_int_eq(cattn_prompt_enter(&cache->tree.extras, x.tokens, n, &x.ext, &numbers), CATTN_OK);
    uint32_t slots[LONGEST + 1], c = cache->tree.chunk_tokens;
    uint64_t cells[LONGEST + 1];
    uint32_t root = cattn_roots_find(&cache->tree.roots, names[space], strlen(names[space]));
    const int32_t *wanted = numbers ? numbers : x.tokens;
    size_t n_found = root == CATTN_NONE ? 0 : cattn_tree_match(&cache->tree, root, wanted, n / c, slots);
    cattn_prompt_leave(&cache->tree.extras, numbers, n);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        make_cells(cells, layer, space, tokens, n);
        for (size_t i = 0; i < n_found; i++)
            ck_assert_mem_eq(cells_of(cache->store, layer, slots[i]), cells + i * c, c * sizeof(*cells));
    }
    return n_found * c;
}

static uint64_t mix(uint64_t hash, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* A number for all that a call that fails must leave as it is, list order included. */
static uint64_t fingerprint(const struct cattn_cache *cache)
{
    const struct cattn_tree *tree = &cache->tree;
    uint64_t hash = mix(1, tree->slots, tree->n_slots * sizeof(*tree->slots));
    uint64_t counts[] = {tree->n_touched, tree->free,        tree->n_free,       tree->oldest,
                         tree->newest,    tree->n_evictable, tree->evictions,    tree->peak_used,
                         tree->n_pins,    tree->n_pinned,    tree->stored_tokens};
    hash = mix(hash, counts, sizeof counts);
    hash = mix(hash, tree->tokens, (size_t)tree->n_slots * tree->chunk_tokens * sizeof(*tree->tokens));
    hash = mix(hash, tree->index.entries, ((size_t)tree->index.mask + 1) * sizeof(*tree->index.entries));
    hash = mix(hash, tree->firsts.entries, ((size_t)tree->firsts.mask + 1) * sizeof(*tree->firsts.entries));
    for (uint32_t i = 0; i < tree->roots.n; i++) {
        const struct cattn_root *x = cattn_roots_at(&tree->roots, i);
        uint64_t numbers[] = {i, x->id, x->refs, x->n_slots, x->n_chunks, x->n_evictable, x->n_pinned};
        if (x->refs)
            hash = mix(hash, numbers, sizeof numbers);
    }
    for (uint32_t i = 0; i < tree->extras.tokens.n; i++)
        hash += tree->extras.tokens.records[i].refs * (tree->extras.tokens.records[i].hash | 1);
    hash += tree->extras.ids.n_used;
    return mix(hash, cache->store->cells, N_LAYERS * (size_t)tree->n_slots * tree->chunk_tokens * sizeof(uint64_t));
}

static int save(const struct cattn_cache *cache)
{
    return cattn_prefix_save(cache, path, "model", 5);
}

static int load(struct cattn_cache *cache, uint64_t *n_tokens)
{
    return cattn_prefix_load(cache, path, "model", 5, n_tokens);
}

/* ---- random trees */

struct prefix {
    int space;
    int32_t tokens[LONGEST];
    size_t n;
    int n_pins;
};

/* Prompts that often begin alike, and pins on parts of them. */
static size_t draw_pins(struct rng *rng, struct cattn_cache *cache, struct prefix *pins)
{
    size_t n_pins = 0;
    for (size_t i = 0; i < MAX_PINS; i++) {
        struct prefix *x = &pins[n_pins];
        x->space = (int)rng_below(rng, 3);
        for (size_t k = 0; k < LONGEST; k++)
            x->tokens[k] = rng_chance(rng, 10) ? (int32_t)rng_below(rng, 3) : 0;
        for (uint64_t k = rng_below(rng, LONGEST), tag = rng_below(rng, N_TAGS); k < LONGEST && rng_chance(rng, 80);
             k++)
            x->tokens[k] += (int32_t)(TAG * tag);
        ck_assert_int_eq(feed(cache, x->space, x->tokens, rng_between(rng, 1, LONGEST)), CATTN_OK);
        x->n = rng_below(rng, LONGEST + 1);
        x->n_pins = 0;
        for (uint64_t k = rng_between(rng, 1, 3); k > 0 && !pin(cache, x->space, x->tokens, x->n); k--)
            x->n_pins++;
        n_pins += x->n_pins > 0;
    }
    return n_pins;
}

/* The different chunks of c tokens among the first whole ones of the prefixes, which had chunks of c_before. */
static uint64_t count_chunks(const struct prefix *pins, size_t n, size_t c_before, size_t c)
{
    uint64_t count = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t end = c; end <= pins[i].n / c_before * c_before; end += c) {
            size_t k = 0;
            while (k < i && (pins[k].space != pins[i].space || pins[k].n / c_before * c_before < end ||
                             memcmp(pins[k].tokens, pins[i].tokens, end * sizeof(int32_t))))
                k++;
            count += k == i;
        }
    }
    return count;
}

/* Everything that was pinned is there, with its cells and as many pins, and nothing else. */
static void expect_pins(struct cattn_cache *cache, const struct prefix *pins, size_t n, uint32_t c_before)
{
    uint32_t c = cache->tree.chunk_tokens;
    ck_assert_int_eq(cattn_cache_selfcheck(cache), CATTN_OK);
    ck_assert_uint_eq(cache->tree.n_pinned, count_chunks(pins, n, c_before, c));
    for (size_t i = 0; i < n; i++) {
        size_t whole = pins[i].n / c_before * c_before / c * c;
        ck_assert_uint_ge(check_cached(cache, pins[i].space, pins[i].tokens, pins[i].n), whole);
        for (int k = 0; whole && k < pins[i].n_pins; k++)
            ck_assert_int_eq(unpin(cache, pins[i].space, pins[i].tokens, whole), CATTN_OK);
    }
    ck_assert_uint_eq(cache->tree.n_pins, 0);
}

/* Into an empty cache, or into one that has part of it and no room but by eviction. */
static void round_trip(uint64_t number, uint32_t c_before, uint32_t c)
{
    struct rng rng;
    struct prefix pins[MAX_PINS];
    uint64_t n_tokens;
    rng_init(&rng, number);
    struct cattn_cache *from = make(1000, c_before, 0);
    size_t n = draw_pins(&rng, from, pins);
    ck_assert_int_eq(save(from), CATTN_OK);
    uint64_t n_chunks = count_chunks(pins, n, c_before, c);
    struct cattn_cache *to = make((uint32_t)n_chunks + LONGEST + 1, c, rng_chance(&rng, 50) ? CATTN_ZERO_FREED : 0);
    for (uint64_t k = number % 3 * 8; k > 0; k--) {
        const struct prefix *x = &pins[rng_below(&rng, n)];
        int32_t tokens[LONGEST];
        for (size_t i = 0; i < LONGEST; i++)
            tokens[i] = i < k ? x->tokens[i] : (int32_t)rng_below(&rng, 100);
        ck_assert_int_eq(feed(to, x->space, tokens, LONGEST), CATTN_OK);
    }
    failing_file_slow(number % 2);
    ck_assert_int_eq(load(to, &n_tokens), CATTN_OK);
    failing_file_slow(false);
    ck_assert_uint_eq(n_tokens, n_chunks * c);
    ck_assert_uint_eq(to->tree.n_pinned, n_chunks);
    ck_assert_int_eq(load(to, NULL), CATTN_OK); /* a second time: pins are added, and nothing else */
    for (size_t i = 0; i < n; i++)
        pins[i].n_pins *= 2;
    expect_pins(to, pins, n, c_before);
    ck_assert_int_eq(load(to, NULL), CATTN_OK); /* and all of it is cached still */
    for (size_t i = 0; i < n; i++)
        pins[i].n_pins /= 2;
    expect_pins(to, pins, n, c_before);
    expect_pins(from, pins, n, c_before);
    destroy(from);
    destroy(to);
}

START_TEST(random_trees_come_back_in_chunks_of_any_size)
{
    make_folder();
    for (uint64_t number = 0; number < (test_full() ? 3000 : 120); number++)
        round_trip(number, 1u << number % 4, 1u << number / 4 % 4);
    remove_folder();
}
END_TEST

/* ---- case by case */

static int32_t text[LONGEST];

/* A cache with chunks of 4, in which 10 and 6 of the same tokens are pinned in one namespace, and 8 in another. */
static struct cattn_cache *example(void)
{
    struct cattn_cache *cache = make(20, 4, 0);
    for (int32_t i = 0; i < LONGEST; i++)
        text[i] = i + (i == 5 || i == 6 ? TAG : i == 9 ? 3 * TAG : 0);
    ck_assert_int_eq(feed(cache, 1, text, 20), CATTN_OK);
    ck_assert_int_eq(feed(cache, 0, text, 8), CATTN_OK);
    ck_assert_int_eq(pin(cache, 1, text, 10), CATTN_OK);
    ck_assert_int_eq(pin(cache, 1, text, 6), CATTN_OK);
    ck_assert_int_eq(pin(cache, 0, text, 8), CATTN_OK);
    return cache;
}

START_TEST(wrong_arguments_are_refused)
{
    struct cattn_cache *cache = example();
    make_folder();
    ck_assert_int_eq(cattn_prefix_save(NULL, path, NULL, 0), CATTN_EINVAL);
    ck_assert_int_eq(cattn_prefix_save(cache, NULL, NULL, 0), CATTN_EINVAL);
    ck_assert_int_eq(cattn_prefix_save(cache, path, NULL, 1), CATTN_EINVAL);
    ck_assert_int_eq(cattn_prefix_save(cache, folder, NULL, 0), CATTN_EINVAL);
    ck_assert_int_eq(cattn_prefix_save(cache, "/dev/full", NULL, 0), CATTN_EINVAL);
    ck_assert_int_eq(cattn_prefix_load(NULL, path, NULL, 0, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_prefix_load(cache, NULL, NULL, 0, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_prefix_load(cache, path, NULL, 1, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_prefix_load(cache, folder, NULL, 0, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_prefix_load(cache, "/dev/zero", NULL, 0, NULL), CATTN_EINVAL);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(load(cache, NULL), CATTN_EINVAL);
    ck_assert_int_eq(save(cache), CATTN_EINVAL);
    ck_assert_int_eq(unlink(path), 0);
    errno = 0;
    ck_assert_int_eq(load(cache, NULL), CATTN_EIO);
    ck_assert_int_eq(errno, ENOENT);
    ck_assert_int_eq(cattn_prefix_save(cache, "/nowhere/at all", NULL, 0), CATTN_EIO);
    ck_assert_int_eq(errno, ENOENT);
    ck_assert_uint_eq(clean_folder(NULL), 0);
    remove_folder();
    destroy(cache);
}
END_TEST

/* In the working folder, where a path has no folder in it. */
START_TEST(a_path_may_be_a_name_alone)
{
    struct cattn_cache *cache = example();
    make_folder();
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(cattn_prefix_save(cache, "prefixes", "model", 5), CATTN_OK);
    ck_assert_int_eq(chdir(".."), 0);
    ck_assert_int_eq(load(cache, NULL), CATTN_OK);
    struct stat status;
    ck_assert_int_eq(stat(path, &status), 0);
    ck_assert_int_eq(status.st_mode & 0777, 0600);
    remove_folder();
    destroy(cache);
}
END_TEST

START_TEST(nothing_pinned_is_a_file_too)
{
    struct cattn_cache *cache = make(5, 4, 0);
    uint64_t n_tokens = 77;
    make_folder();
    ck_assert_int_eq(feed(cache, 1, text, 4), CATTN_OK);
    ck_assert_int_eq(cattn_prefix_save(cache, path, NULL, 0), CATTN_OK);
    ck_assert_int_eq(cattn_prefix_load(cache, path, NULL, 0, &n_tokens), CATTN_OK);
    ck_assert_uint_eq(n_tokens, 0);
    ck_assert_uint_eq(clean_folder("prefixes"), 0);
    remove_folder();
    destroy(cache);
}
END_TEST

/* What is cached stays as it is, whatever the file says of it. */
START_TEST(cached_chunks_are_used_as_they_are)
{
    struct cattn_cache *from = example(), *to = make(20, 4, 0);
    uint32_t slot;
    make_folder();
    ck_assert_int_eq(save(from), CATTN_OK);
    ck_assert_int_eq(feed(to, 1, text, 4), CATTN_OK);
    uint32_t root = cattn_roots_find(&to->tree.roots, "a", 1);
    ck_assert_uint_eq(cattn_tree_match(&to->tree, root, text, 1, &slot), 1);
    cells_of(to->store, 0, slot)[2] = 12345;
    ck_assert_int_eq(load(to, NULL), CATTN_OK);
    ck_assert_uint_eq(cells_of(to->store, 0, slot)[2], 12345);
    ck_assert_uint_eq(cattn_tree_used(&to->tree), 4);
    ck_assert_uint_eq(to->tree.n_evictable, 0);
    ck_assert_uint_eq(to->tree.n_pins, 3);
    remove_folder();
    destroy(from);
    destroy(to);
}
END_TEST

static void expect_refusal(struct cattn_cache *cache, int status)
{
    uint64_t before = fingerprint(cache), n_tokens = 77;
    int got = load(cache, &n_tokens);
    CHECK(got == status, "%s, not %s", cattn_strerror(got), cattn_strerror(status));
    ck_assert_uint_eq(fingerprint(cache), before);
    ck_assert_uint_eq(n_tokens, 77);
    ck_assert_int_eq(cattn_cache_selfcheck(cache), CATTN_OK);
}

START_TEST(there_must_be_room)
{
    struct cattn_cache *from = example(), *to;
    make_folder();
    ck_assert_int_eq(save(from), CATTN_OK);
    to = make(3, 4, 0); /* four are needed */
    expect_refusal(to, CATTN_ETOOBIG);
    destroy(to);
    to = make(5, 4, 0);
    ck_assert_int_eq(feed(to, 2, text, 8), CATTN_OK);
    ck_assert_int_eq(pin(to, 2, text, 8), CATTN_OK);
    expect_refusal(to, CATTN_EFULL);
    ck_assert_int_eq(unpin(to, 2, text, 8), CATTN_OK);
    ck_assert_int_eq(load(to, NULL), CATTN_OK); /* one is evicted */
    ck_assert_uint_eq(to->tree.evictions, 1);
    ck_assert_uint_eq(check_cached(to, 2, text, 8), 4);
    ck_assert_uint_eq(check_cached(to, 1, text, 10), 8);
    destroy(to);
    to = make(5, 4, 0); /* what the file has is not evicted for the rest of it */
    ck_assert_int_eq(feed(to, 1, text, 16), CATTN_OK);
    ck_assert_int_eq(load(to, NULL), CATTN_OK);
    ck_assert_uint_eq(to->tree.evictions, 1);
    ck_assert_uint_eq(check_cached(to, 1, text, 16), 12);
    destroy(to);
    remove_folder();
    destroy(from);
}
END_TEST

static void limit_to(struct cattn_cache *cache, int space, uint64_t n)
{
    struct cattn_namespace_config config = {.size = sizeof config, .limit_slots = n};
    ck_assert_int_eq(cattn_namespace_set(cache, names[space], strlen(names[space]), &config), CATTN_OK);
}

START_TEST(a_limit_counts_where_slots_are_taken)
{
    struct cattn_cache *cache = example();
    uint64_t n_tokens;
    make_folder();
    ck_assert_int_eq(save(cache), CATTN_OK);
    limit_to(cache, 1, 1); /* it has five, and needs no other */
    ck_assert_int_eq(load(cache, &n_tokens), CATTN_OK);
    ck_assert_uint_eq(n_tokens, 16);
    ck_assert_int_eq(cattn_cache_selfcheck(cache), CATTN_OK);
    destroy(cache);
    cache = make(20, 4, 0);
    limit_to(cache, 1, 1);
    expect_refusal(cache, CATTN_ETOOBIG);
    ck_assert_int_eq(feed(cache, 1, text, 4), CATTN_OK); /* one of two */
    expect_refusal(cache, CATTN_ETOOBIG);
    limit_to(cache, 1, 2);
    ck_assert_int_eq(load(cache, NULL), CATTN_OK);
    destroy(cache);
    remove_folder();
}
END_TEST

START_TEST(a_step_keeps_prefixes_out_but_lets_them_be_saved)
{
    struct cattn_cache *cache = example();
    struct cattn_step *step;
    make_folder();
    ck_assert_int_eq(cattn_step_create(cache, &step), CATTN_OK);
    ck_assert_int_eq(cattn_step_begin(step, NULL, 0), CATTN_OK);
    ck_assert_int_eq(save(cache), CATTN_OK);
    expect_refusal(cache, CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_abort(step), CATTN_OK);
    ck_assert_int_eq(load(cache, NULL), CATTN_OK);
    remove_folder();
    destroy(cache);
}
END_TEST

START_TEST(invalidated_prefixes_are_not_saved)
{
    struct cattn_cache *cache = example();
    uint64_t n_tokens;
    make_folder();
    ck_assert_int_eq(cattn_namespace_invalidate(cache, "a", 1), CATTN_OK);
    ck_assert_int_eq(save(cache), CATTN_OK);
    ck_assert_int_eq(load(cache, &n_tokens), CATTN_OK);
    ck_assert_uint_eq(n_tokens, 8);
    ck_assert_int_eq(cattn_namespace_invalidate(cache, "", 0), CATTN_OK); /* both pins at once */
    ck_assert_uint_eq(cache->tree.n_pins, 0);
    remove_folder();
    destroy(cache);
}
END_TEST

static uint32_t n_published, n_removed;

static void count_event(void *context, const struct cattn_event *event)
{
    (void)context;
    n_published += event->kind == CATTN_EVENT_PUBLISHED;
    n_removed += event->kind == CATTN_EVENT_REMOVED;
}

START_TEST(loaded_chunks_are_told_of)
{
    struct cattn_cache *from = example(), *to = make(5, 4, 0);
    make_folder();
    ck_assert_int_eq(save(from), CATTN_OK);
    ck_assert_int_eq(cattn_events_open(&to->tree.events, 5, 4, count_event, NULL), CATTN_OK);
    ck_assert_int_eq(feed(to, 1, text, 16), CATTN_OK);
    ck_assert_int_eq(load(to, NULL), CATTN_OK);
    ck_assert_uint_eq(n_published, 6);
    ck_assert_uint_eq(n_removed, 1);
    remove_folder();
    destroy(from);
    destroy(to);
}
END_TEST

/* ---- damage */

START_TEST(every_byte_counts)
{
    struct cattn_cache *cache = example();
    size_t n;
    make_folder();
    ck_assert_int_eq(save(cache), CATTN_OK);
    unsigned char *bytes = read_file(&n);
    for (size_t i = 0; i < n; i++) {
        bytes[i] ^= (unsigned char)(1 << i % 8);
        write_file(bytes, n);
        expect_refusal(cache, CATTN_EFORMAT);
        bytes[i] ^= (unsigned char)(1 << i % 8);
    }
    for (size_t i = 0; i < n; i++) {
        write_file(bytes, i);
        expect_refusal(cache, CATTN_EFORMAT);
    }
    bytes[n] = 0;
    write_file(bytes, n + 1);
    expect_refusal(cache, CATTN_EFORMAT);
    write_file(bytes, n);
    ck_assert_int_eq(load(cache, NULL), CATTN_OK);
    free(bytes);
    remove_folder();
    destroy(cache);
}
END_TEST

START_TEST(garbage_is_refused)
{
    struct cattn_cache *cache = example();
    struct rng rng;
    unsigned char bytes[3000];
    rng_init(&rng, 5);
    make_folder();
    for (int i = 0; i < 300; i++) {
        size_t n = rng_below(&rng, sizeof bytes);
        for (size_t k = 0; k < n; k++)
            bytes[k] = (unsigned char)rng_next(&rng);
        write_file(bytes, n);
        expect_refusal(cache, CATTN_EFORMAT);
    }
    remove_folder();
    destroy(cache);
}
END_TEST

START_TEST(what_was_saved_for_something_else_is_refused)
{
    struct cattn_cache *cache = example(), *other;
    make_folder();
    ck_assert_int_eq(cattn_prefix_save(cache, path, "modem", 5), CATTN_OK);
    expect_refusal(cache, CATTN_EFORMAT);
    ck_assert_int_eq(cattn_prefix_save(cache, path, "model ", 6), CATTN_OK);
    expect_refusal(cache, CATTN_EFORMAT);
    ck_assert_int_eq(cattn_prefix_save(cache, path, NULL, 0), CATTN_OK);
    expect_refusal(cache, CATTN_EFORMAT);
    ck_assert_int_eq(save(cache), CATTN_OK);
    for (int i = 0; i < 6; i++) {
        struct cattn_shape shape = cells_shape(20, i == 5 ? 6 : 4, i == 0 ? 3 : N_LAYERS);
        shape.n_kv_heads += i == 1;
        shape.head_dim += i == 2;
        shape.v_head_dim += i == 3;
        shape.kv_dtype += i == 4;
        ck_assert_int_eq(cattn_cache_make(&shape, &cells_backend, NULL, 0, &other), CATTN_OK);
        ck_assert_int_eq(load(other, NULL), CATTN_EFORMAT);
        destroy(other);
    }
    struct cattn_shape shape = cells_shape(20, 4, N_LAYERS);
    shape.n_heads = 7;
    shape.io_dtype = CATTN_BF16;
    ck_assert_int_eq(cattn_cache_make(&shape, &cells_backend, NULL, 0, &other), CATTN_OK);
    ck_assert_int_eq(load(other, NULL), CATTN_OK);
    destroy(other);
    remove_folder();
    destroy(cache);
}
END_TEST

/* ---- forgery: good checksums around anything */

struct forgery {
    struct cattn_save_header header;
    struct cattn_save_chunk chunks[3];
    struct cattn_save_extra extras[2]; /* of the second chunk */
    int32_t tokens[3][4];
    uint64_t lengths[4];
    char names[4];      /* two, and two extras */
    uint32_t n_names;   /* written */
    uint32_t n_written; /* chunks, in the tree and behind it */
    size_t n_more;      /* bytes of the tree that have no meaning */
};

/* A chain of two chunks, the second with extras, and a third in another namespace. */
static struct forgery honest(const struct cattn_cache *cache)
{
    struct forgery x = {.header = cattn_save_header_of(cache),
                        .chunks = {{CATTN_NONE, 0, 0, 0}, {0, 0, 2, 2}, {CATTN_NONE, 1, 1, 0}},
                        .extras = {{0, 1}, {2, 0}},
                        .tokens = {{1, 2, 3, 4}, {5, 6, 7, 8}, {1, 2, 3, 4}},
                        .lengths = {1, 1, 1, 1},
                        .names = {'a', 'b', 'p', 'r'},
                        .n_names = 4,
                        .n_written = 3};
    x.header.n_chunks = 3;
    x.header.n_spaces = x.header.n_extras = 2;
    x.header.model_bytes = 5;
    x.header.tree_bytes = 3 * 32 + 2 * 8 + 4 * 9;
    return x;
}

static void forge(const struct forgery *x)
{
    struct cattn_output output;
    uint64_t zeros[4 * N_LAYERS] = {0};
    ck_assert_int_eq(cattn_output_create(&output, path), CATTN_OK);
    int failed = cattn_output_write(&output, &x->header, sizeof x->header) | cattn_output_end_section(&output) |
                 cattn_output_write(&output, "model", 5) | cattn_output_end_section(&output);
    for (uint32_t i = 0; i < x->n_written; i++)
        failed |= cattn_output_write(&output, &x->chunks[i], 16) |
                  cattn_output_write(&output, x->extras, i == 1 ? sizeof x->extras : 0) |
                  cattn_output_write(&output, x->tokens[i], 16);
    for (uint32_t i = 0; i < x->n_names; i++)
        failed |= cattn_output_write(&output, &x->lengths[i], 8) |
                  cattn_output_write(&output, &x->names[i], x->lengths[i] > 0);
    failed |= cattn_output_write(&output, zeros, x->n_more) | cattn_output_end_section(&output);
    for (uint32_t i = 0; i < x->n_written; i++)
        failed |= cattn_output_write(&output, zeros, sizeof zeros) | cattn_output_end_section(&output);
    ck_assert_int_eq(failed, 0);
    ck_assert_int_eq(cattn_output_commit(&output), CATTN_OK);
}

static struct cattn_cache *victim;

static void expect_found_out(struct forgery x)
{
    forge(&x);
    expect_refusal(victim, CATTN_EFORMAT);
}

#define FORGED(change)                                                                                                 \
  do {                                                                                                                 \
    struct forgery x = honest(victim);                                                                                 \
    change;                                                                                                            \
    expect_found_out(x);                                                                                               \
  } while (0)

START_TEST(forgeries_are_found_out)
{
    victim = example();
    make_folder();
    static const uint64_t bad[] = {UINT64_MAX, UINT64_MAX - 8, UINT64_C(1) << 63, UINT64_C(1) << 32, 1 << 20, 149, 147,
                                   0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FORGED(x.header.tree_bytes = bad[i]);
        FORGED(x.header.model_bytes = bad[i]);
        FORGED(x.lengths[0] = bad[i]);
        FORGED(x.lengths[1] = bad[i]);
        FORGED(x.lengths[2] = bad[i]);
        FORGED(x.lengths[3] = bad[i]);
        FORGED(x.header.n_chunks = (uint32_t)bad[i]);
        FORGED(x.header.n_spaces = (uint32_t)bad[i]);
        FORGED(x.header.n_extras = (uint32_t)bad[i]);
        FORGED(x.extras[0].id = (uint32_t)bad[i] | 2);
        FORGED(x.extras[1].id = (uint32_t)bad[i] | 2);
        FORGED(x.extras[1].offset = (uint32_t)bad[i] | 4);
        FORGED(x.chunks[1].n_extras = (uint32_t)bad[i] | 1);
        FORGED(x.chunks[1].parent = (uint32_t)bad[i] | 1);
        FORGED(x.chunks[2].space = (uint32_t)bad[i] | 2);
        FORGED(x.header.token_bytes = (uint32_t)bad[i]);
        FORGED(x.header.chunk_tokens = (uint32_t)bad[i]);
    }
    FORGED(x.header.version = 2);
    FORGED(x.header.zero = 1);
    FORGED(x.header.n_extras = 1);
    FORGED(x.header.magic[0] = 'c');
    FORGED(x.header.n_chunks = 2);
    FORGED(x.n_written = 2);
    FORGED(x.n_more = 8);
    FORGED((x.n_more = 8, x.header.tree_bytes += 8));
    FORGED(x.chunks[1].pins = 0);                      /* a leaf that nobody wants */
    FORGED(x.names[1] = 'a');                          /* twice the same name */
    FORGED((x.chunks[2].space = 0, x.tokens[2][0]++)); /* a name without a chunk */
    FORGED(x.names[3] = 'p');                          /* twice the same bytes */
    FORGED(x.extras[0].id = 0);                        /* bytes without a token */
    FORGED(x.extras[1].id = 1);
    FORGED((x.chunks[2].space = 0));                   /* twice the same chunk */
    FORGED((x.lengths[3] = 0, x.header.tree_bytes--)); /* no bytes */
    FORGED(x.extras[1].offset = 0);                    /* a token twice */
    FORGED((x.extras[0].offset = 2, x.extras[1].offset = 0));
    for (int i = 0; i < 3; i++) {
        FORGED(x.tokens[i][i] = -1);
        FORGED(x.tokens[i][3 - i] = INT32_MIN);
    }
    /* two namespaces that go on below each other */
    FORGED((x.chunks[1].space = 1, x.chunks[2].parent = 1, x.chunks[2].space = 0, x.chunks[2].pins = 1));
    struct forgery crossing = honest(victim);
    crossing.chunks[1].space = 1; /* not its parent's, which that space does not read */
    forge(&crossing);
    expect_refusal(victim, CATTN_ESTATE);
    destroy(victim);

    struct cattn_cache *cache = make(20, 4, 0);
    struct forgery x = honest(cache);
    forge(&x);
    ck_assert_int_eq(load(cache, NULL), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(cache), CATTN_OK);
    int32_t honest_tokens[] = {1, 2, 3, 4, 5, 6, TAG + 7, 8};
    ck_assert_uint_eq(cache->tree.extras.tokens.n_used, 2);
    ck_assert_int_eq(pin(cache, 1, honest_tokens, 8), CATTN_ENOTFOUND); /* the first one has bytes, too */
    x.extras[0].id = 0;                                                 /* now it has the same ones */
    x.header.n_extras = 1;
    x.n_names = 3;
    x.header.tree_bytes -= 9;
    forge(&x);
    ck_assert_int_eq(load(cache, NULL), CATTN_OK);
    honest_tokens[4] += TAG;
    ck_assert_int_eq(pin(cache, 1, honest_tokens, 8), CATTN_OK);
    ck_assert_uint_eq(cache->tree.n_pinned, 4);
    ck_assert_int_eq(cattn_namespace_invalidate(cache, "a", 1), CATTN_OK);
    ck_assert_int_eq(cattn_namespace_invalidate(cache, "b", 1), CATTN_OK);
    ck_assert_uint_eq(cache->tree.extras.ids.n_used, 0);
    x.chunks[0].pins = UINT32_MAX - 3;
    forge(&x);
    ck_assert_int_eq(load(cache, NULL), CATTN_OK);
    ck_assert_uint_eq(cache->tree.n_pins, UINT32_MAX);
    expect_refusal(cache, CATTN_ENOMEM);
    ck_assert_int_eq(cattn_namespace_invalidate(cache, "a", 1), CATTN_OK);
    ck_assert_uint_eq(cache->tree.n_pins, 1);
    destroy(cache);
    remove_folder();
}
END_TEST

/* ---- faults */

START_TEST(a_save_that_fails_leaves_the_old_file)
{
    struct cattn_cache *cache = example();
    size_t n_old, n_new;
    make_folder();
    ck_assert_int_eq(save(cache), CATTN_OK);
    unsigned char *new = read_file(&n_new);
    ck_assert_int_eq(cattn_prefix_save(cache, path, "another model", 13), CATTN_OK);
    unsigned char *old = read_file(&n_old);
    uint64_t before = fingerprint(cache);
    int status = CATTN_EIO, n_syncs = 0;
    for (size_t i = 1; status != CATTN_OK; i++) {
        write_file(old, n_old);
        failing_file_set(i);
        status = save(cache);
        bool hit = failing_file_hit();
        failing_file_set(0);
        bool renamed = hit && !strcmp(failing_file_call(), "fsync") && ++n_syncs == 2;    /* the folder */
        bool closed = hit && !strcmp(failing_file_call(), "close") && status == CATTN_OK; /* one that does not matter */
        CHECK(status == (hit && !closed ? CATTN_EIO : CATTN_OK), "%s", failing_file_call());
        ck_assert(file_is(renamed || status == CATTN_OK ? new : old, renamed || status == CATTN_OK ? n_new : n_old));
        ck_assert_uint_eq(clean_folder("prefixes"), 0);
        if (closed)
            status = CATTN_EIO;
        ck_assert_uint_lt(i, 1000);
    }
    status = CATTN_ENOMEM;
    for (size_t i = 1; status != CATTN_OK; i++) {
        write_file(old, n_old);
        failing_memory_set(i);
        status = save(cache);
        bool hit = failing_memory_hit();
        failing_memory_set(0);
        ck_assert_int_eq(status, hit ? CATTN_ENOMEM : CATTN_OK);
        ck_assert(file_is(hit ? old : new, hit ? n_old : n_new));
        ck_assert_uint_eq(clean_folder("prefixes"), 0);
    }
    ck_assert_uint_eq(fingerprint(cache), before);
    free(old);
    free(new);
    remove_folder();
    destroy(cache);
}
END_TEST

/* What a load that failed in its second pass must have left: the order of the unreferenced may be another one. */
static void expect_no_trace(const struct cattn_cache *cache, const struct cattn_stats *before)
{
    struct cattn_stats after = {.size = sizeof after};
    ck_assert_int_eq(cattn_cache_stats(cache, &after), CATTN_OK);
    after.peak_used_slots = before->peak_used_slots;
    ck_assert_mem_eq(&after, before, sizeof after);
    ck_assert_int_eq(cattn_cache_selfcheck(cache), CATTN_OK);
}

/* The file takes several reads: its data are read twice. */
static struct cattn_cache *large_example(void)
{
    struct cattn_cache *cache = make(4000, 4, 0);
    for (int i = 0; i < 500; i++) {
        int32_t tokens[LONGEST] = {i, i + 1 + i % 2 * TAG}; /* every other one with an extra identity */
        ck_assert_int_eq(feed(cache, 2, tokens, 12), CATTN_OK);
        ck_assert_int_eq(pin(cache, 2, tokens, 12), CATTN_OK);
    }
    return cache;
}

START_TEST(a_load_that_fails_leaves_no_trace)
{
    struct cattn_cache *from = large_example(), *cache = example();
    struct cattn_stats before = {.size = sizeof before};
    make_folder();
    ck_assert_int_eq(save(from), CATTN_OK);
    destroy(cache);
    cache = make(2000, 8, CATTN_ZERO_FREED);
    ck_assert_int_eq(feed(cache, 1, text, 30), CATTN_OK);
    ck_assert_int_eq(feed(cache, 2, (int32_t[LONGEST]){0, 1}, 12), CATTN_OK);
    ck_assert_int_eq(cattn_cache_stats(cache, &before), CATTN_OK);
    bool hit = true;
    for (size_t i = 1; hit; i++) {
        failing_file_set(i);
        int status = load(cache, NULL);
        hit = failing_file_hit() && strcmp(failing_file_call(), "close") != 0;
        failing_file_set(0);
        ck_assert_int_eq(status, hit ? CATTN_EIO : CATTN_OK);
        if (hit)
            expect_no_trace(cache, &before);
    }
    ck_assert_int_eq(cattn_namespace_invalidate(cache, "bc", 2), CATTN_OK);
    ck_assert_int_eq(cattn_cache_stats(cache, &before), CATTN_OK);
    int n_spoilt = 0;
    for (hit = true; hit; n_spoilt++) {
        failing_file_spoil((size_t)n_spoilt + 1);
        int status = load(cache, NULL);
        hit = failing_file_spoilt();
        failing_file_spoil(0);
        ck_assert_int_eq(status, hit ? CATTN_EFORMAT : CATTN_OK);
        if (hit)
            expect_no_trace(cache, &before);
    }
    ck_assert_int_gt(n_spoilt, 5);
    ck_assert_int_eq(cattn_namespace_invalidate(cache, "bc", 2), CATTN_OK);
    hit = true;
    for (size_t i = 1; hit; i++) {
        uint64_t print = fingerprint(cache);
        failing_memory_set(i);
        int status = load(cache, NULL);
        hit = failing_memory_hit();
        failing_memory_set(0);
        ck_assert_int_eq(status, hit ? CATTN_ENOMEM : CATTN_OK);
        if (hit)
            ck_assert_uint_eq(fingerprint(cache), print);
    }
    remove_folder();
    destroy(from);
    destroy(cache);
}
END_TEST

/* In a process of its own, which may write files of 1000 bytes at most. */
START_TEST(a_full_disk_leaves_the_old_file)
{
    struct cattn_cache *small = make(20, 4, 0), *large = large_example();
    size_t n;
    make_folder();
    ck_assert_int_eq(save(small), CATTN_OK);
    unsigned char *bytes = read_file(&n);
    pid_t child = fork();
    if (!child) {
        signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &(struct rlimit){1000, 1000}))
            _exit(2);
        _exit(save(large) == CATTN_EIO && errno == EFBIG ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert(file_is(bytes, n));
    ck_assert_uint_eq(clean_folder("prefixes"), 0);
    free(bytes);
    remove_folder();
    destroy(small);
    destroy(large);
}
END_TEST

/* Saves two things in turn until it is killed. */
static void save_for_ever(const struct cattn_cache *small, const struct cattn_cache *large)
{
    while (!save(large) && !save(small))
        continue;
    _exit(1);
}

START_TEST(a_killed_save_leaves_one_of_both)
{
    struct cattn_cache *small = example(), *large = large_example();
    struct rng rng;
    int n_large = 0, n_rounds = test_full() ? 2000 : 60;
    rng_init(&rng, 9);
    make_folder();
    ck_assert_int_eq(save(small), CATTN_OK);
    for (int i = 0; i < n_rounds; i++) {
        pid_t child = fork();
        if (!child)
            save_for_ever(small, large);
        usleep((useconds_t)rng_below(&rng, 20000));
        kill(child, SIGKILL);
        int status;
        uint64_t n_tokens = 0;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFSIGNALED(status));
        struct cattn_cache *cache = make(4000, 4, 0);
        ck_assert_int_eq(load(cache, &n_tokens), CATTN_OK);
        ck_assert(n_tokens == large->tree.n_pinned * 4 || n_tokens == small->tree.n_pinned * 4);
        n_large += n_tokens == large->tree.n_pinned * 4;
        destroy(cache);
    }
    remove_folder();
    destroy(small);
    destroy(large);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("save");
    tcase_add_test(tests, random_trees_come_back_in_chunks_of_any_size);
    tcase_add_test(tests, wrong_arguments_are_refused);
    tcase_add_test(tests, a_path_may_be_a_name_alone);
    tcase_add_test(tests, nothing_pinned_is_a_file_too);
    tcase_add_test(tests, cached_chunks_are_used_as_they_are);
    tcase_add_test(tests, there_must_be_room);
    tcase_add_test(tests, a_limit_counts_where_slots_are_taken);
    tcase_add_test(tests, a_step_keeps_prefixes_out_but_lets_them_be_saved);
    tcase_add_test(tests, invalidated_prefixes_are_not_saved);
    tcase_add_test(tests, loaded_chunks_are_told_of);
    tcase_add_test(tests, every_byte_counts);
    tcase_add_test(tests, garbage_is_refused);
    tcase_add_test(tests, what_was_saved_for_something_else_is_refused);
    tcase_add_test(tests, forgeries_are_found_out);
    tcase_add_test(tests, a_save_that_fails_leaves_the_old_file);
    tcase_add_test(tests, a_load_that_fails_leaves_no_trace);
    tcase_add_test(tests, a_full_disk_leaves_the_old_file);
    tcase_add_test(tests, a_killed_save_leaves_one_of_both);
    return suite_run(tests);
}

#define _DEFAULT_SOURCE 1 /* pthread_attr_setstacksize, mkstemp */
/* Trees that are very deep or very wide, on a stack of 256 KB: no walk may recurse. */
#include "small.h"
#include "support/engine.h"
#include "support/suite.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define C       32
#define DEPTH   200000
#define PROMPTS 5000

static void run_on_small_stack(void *(*body)(void *), void *argument)
{
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    ck_assert_int_eq(pthread_attr_setstacksize(&attributes, 256 * 1024), 0);
    ck_assert_int_eq(pthread_create(&thread, &attributes, body, argument), 0);
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
    run_on_small_stack(deep_body, NULL);
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
    run_on_small_stack(wide_body, NULL);
}
END_TEST

/* ---- larger than any server's ----------------------------------------------------------------------- */

static int ignore(void *n_bytes, const char *text, size_t n)
{
    (void)text;
    *(size_t *)n_bytes += n;
    return 0;
}

static void draw(const struct small *small, size_t n_slots)
{
    size_t n_bytes = 0;
    ck_assert_int_eq(cattn_cache_dump_dot(small->cache, ignore, &n_bytes), CATTN_OK);
    ck_assert_uint_ge(n_bytes, n_slots * 10);
}

/* What is pinned is forgotten, and found again in a file, where the build can do this. */
static void save_and_load(struct small *small, void (*forget)(struct small *small), uint64_t n_tokens)
{
    char path[] = "cattn-deep-XXXXXX";
    uint64_t n_loaded = 0;
    int file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    close(file);
    int status = cattn_prefix_save(small->cache, path, NULL, 0);
    if (status == CATTN_OK) {
        forget(small);
        ck_assert_int_eq(cattn_prefix_load(small->cache, path, NULL, 0, &n_loaded), CATTN_OK);
        ck_assert_uint_eq(n_loaded, n_tokens);
    } else {
        ck_assert_int_eq(status, CATTN_ENOTSUP);
    }
    unlink(path);
}

static void forget_namespace(struct small *small)
{
    ck_assert_int_eq(cattn_namespace_invalidate(small->cache, "ns", 2), CATTN_OK);
}

/* One path of a million chunks. */
static void *deepest_body(void *unused)
{
    enum { N = 1000000, PIECE = 200000 };
    struct small small = small_make(N + 2, 1, 1, 0);
    int32_t *tokens = calloc(N + 1, sizeof(*tokens));
    cattn_seq seq = small_open(&small, NULL, 0, NULL), fork;
    size_t n_cached;
    for (size_t i = 0; i <= N; i++)
        tokens[i] = (int32_t)(i % 7);
    for (size_t i = 0; i < N; i += PIECE)
        ck_assert_int_eq(small_append(&small, seq, tokens + i, PIECE), CATTN_OK);
    ck_assert_int_eq(cattn_seq_fork(small.cache, seq, &fork), CATTN_OK);
    ck_assert_int_eq(cattn_seq_truncate(small.cache, fork, N / 2), CATTN_OK);
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    small_check(&small, N / 2, N / 2);
    draw(&small, N);
    ck_assert_int_eq(cattn_prefix_pin(small.cache, "ns", 2, tokens, N, NULL), CATTN_OK);
    ck_assert_int_eq(cattn_seq_close(small.cache, fork), CATTN_OK);
    save_and_load(&small, forget_namespace, N);
    small_check(&small, N, 0);
    ck_assert_int_eq(cattn_prefix_unpin(small.cache, "ns", 2, tokens, N, NULL), CATTN_OK);
    seq = small_open(&small, tokens, N + 1, &n_cached);
    ck_assert_uint_eq(n_cached, N);
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    cattn_cache_evict(small.cache, N / 4, NULL);
    seq = small_open(&small, tokens, N + 1, &n_cached);
    ck_assert_uint_eq(n_cached, N - N / 4); /* the leaves went first */
    forget_namespace(&small);
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    small_check(&small, 0, 0);
    free(tokens);
    small_free(&small);
    return unused;
}

START_TEST(a_path_of_a_million_chunks)
{
    run_on_small_stack(deepest_body, NULL);
}
END_TEST

/* Below the chunk {1, 2, 3, 4}: the n-th sibling, of those with equal first tokens or with another one each. */
static const int32_t *sibling(int32_t i, bool alike)
{
    static int32_t tokens[9] = {1, 2, 3, 4};
    memcpy(tokens + 4, (int32_t[]){alike ? 5 : 100 + i, i, i, i, 6}, 5 * sizeof(*tokens));
    return tokens;
}

enum { WIDTH = 100000 };

static void *widest_body(void *argument)
{
    bool alike = *(const bool *)argument;
    struct small small = small_make(WIDTH + 4, 4, 1, 0);
    size_t n_cached;
    for (int32_t i = 0; i < WIDTH; i++) {
        cattn_seq seq = small_open(&small, sibling(i, alike), 9, &n_cached);
        ck_assert_uint_eq(n_cached, !i ? 0 : alike ? 5 : 4);
        ck_assert_int_eq(small_append(&small, seq, sibling(i, alike) + n_cached, (uint32_t)(9 - n_cached)), CATTN_OK);
        ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    }
    small_check(&small, 0, WIDTH + 1);
    for (int32_t i = 0; i < WIDTH; i++)
        ck_assert_int_eq(cattn_prefix_pin(small.cache, "ns", 2, sibling(i, alike), 8, NULL), CATTN_OK);
    save_and_load(&small, forget_namespace, 4 * (WIDTH + 1));
    small_check(&small, WIDTH + 1, 0);
    for (int32_t i = 0; i < WIDTH; i += 2)
        ck_assert_int_eq(cattn_prefix_unpin(small.cache, "ns", 2, sibling(i, alike), 8, NULL), CATTN_OK);
    for (int32_t i = 0; i < WIDTH; i++) {
        cattn_seq seq = small_open(&small, sibling(i, alike), 9, &n_cached);
        ck_assert_uint_eq(n_cached, 8);
        ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    }
    small_check(&small, WIDTH / 2 + 1, WIDTH / 2);
    draw(&small, WIDTH);
    cattn_cache_evict(small.cache, UINT64_MAX, NULL);
    small_check(&small, WIDTH / 2 + 1, 0);
    forget_namespace(&small);
    small_check(&small, 0, 0);
    small_free(&small);
    return NULL;
}

START_TEST(siblings_that_begin_alike)
{
    run_on_small_stack(widest_body, &(bool){true});
}
END_TEST

START_TEST(siblings_that_begin_differently)
{
    run_on_small_stack(widest_body, &(bool){false});
}
END_TEST

/* ---- many of everything */

enum { SPACES = 100000, SEQUENCES = 10000, BATCH = 100 };

static const int32_t prompt[] = {1, 2, 3, 4, 5};

static void serve_spaces(struct small *small, uint32_t first, cattn_seq *seqs)
{
    struct cattn_item items[BATCH];
    for (uint32_t i = 0; i < BATCH; i++) {
        uint32_t space = first + i;
        ck_assert_int_eq(cattn_seq_open(small->cache, &space, sizeof(space), prompt, 5, &seqs[i], NULL), CATTN_OK);
        items[i] = small_item(seqs[i], prompt, 4);
    }
    ck_assert_int_eq(cattn_step_begin(small->step, items, BATCH), CATTN_OK);
    small_finish(small);
}

static void pin_spaces(struct small *small, uint32_t n,
                       int (*pin)(cattn_cache *, const void *, size_t, const int32_t *, size_t,
                                  const struct cattn_ext *))
{
    for (uint32_t space = 0; space < n; space++)
        ck_assert_int_eq(pin(small->cache, &space, sizeof(space), prompt, 4, NULL), CATTN_OK);
}

static void forget_spaces(struct small *small)
{
    pin_spaces(small, SPACES, cattn_prefix_unpin);
    cattn_cache_evict(small->cache, UINT64_MAX, NULL);
}

static void *many_body(void *unused)
{
    static cattn_seq seqs[SEQUENCES + BATCH];
    static struct cattn_item items[SEQUENCES];
    struct small small = small_make(SPACES + SEQUENCES, 4, 1, 0);
    for (uint32_t space = 0; space < SPACES; space += BATCH) {
        cattn_seq *batch = &seqs[space < SEQUENCES ? space : SEQUENCES];
        serve_spaces(&small, space, batch);
        for (uint32_t i = 0; space >= SEQUENCES && i < BATCH; i++)
            ck_assert_int_eq(cattn_seq_close(small.cache, batch[i]), CATTN_OK);
    }
    for (size_t i = 0; i < SEQUENCES; i++)
        items[i] = small_item(seqs[i], prompt + 4, 1);
    ck_assert_int_eq(cattn_step_begin(small.step, items, SEQUENCES), CATTN_OK);
    small_finish(&small);
    small_check(&small, 2 * SEQUENCES, SPACES - SEQUENCES);
    pin_spaces(&small, SPACES, cattn_prefix_pin);
    save_and_load(&small, forget_spaces, 4 * SPACES);
    small_check(&small, SPACES + SEQUENCES, 0);
    draw(&small, SPACES + SEQUENCES);
    pin_spaces(&small, SPACES, cattn_prefix_unpin);
    for (uint32_t space = 0; space < 100; space++)
        cattn_namespace_invalidate(small.cache, &space, sizeof(space));
    small_check(&small, 2 * SEQUENCES, SPACES - SEQUENCES);
    for (size_t i = 0; i < SEQUENCES; i++)
        ck_assert_int_eq(cattn_seq_close(small.cache, seqs[i]), CATTN_OK);
    small_check(&small, 0, SPACES - 100);
    cattn_cache_evict(small.cache, UINT64_MAX, NULL);
    small_check(&small, 0, 0);
    small_free(&small);
    return unused;
}

START_TEST(many_namespaces_and_sequences)
{
    run_on_small_stack(many_body, NULL);
}
END_TEST

/* ---- arithmetic */

static void *kernels_body(void *unused)
{
    struct kernel_choice choice;
    int32_t tokens[70];
    for (unsigned i = 0; kernel_choice(i, &choice); i++) {
        struct cattn_config config = engine_config(256);
        struct engine e;
        struct toy toy;
        config.kernel = choice.kernel;
        config.kv_dtype = choice.kv_dtype;
        config.head_dim = 4096;
        engine_init(&e, &config, 1);
        e.unchecked = 1;
        random_tokens(&e.rng, tokens, 70, 1000);
        engine_prefill(&e, &toy, 0, tokens, 69, 0);
        engine_feed(&e, &toy, tokens + 69, 1);
        engine_close(&e, &toy);
        engine_free(&e);
    }
    return unused;
}

START_TEST(the_largest_heads)
{
    run_on_small_stack(kernels_body, NULL);
}
END_TEST

static void *long_body(void *unused)
{
    struct cattn_config config = engine_config(DEPTH + 2 * C);
    struct engine e;
    struct toy toy;
    config.head_dim = 4;
    engine_init(&e, &config, 1);
    e.unchecked = 1;
    e.form = FORM_WRITE;
    int32_t *tokens = calloc(DEPTH, sizeof(*tokens));
    random_tokens(&e.rng, tokens, DEPTH, 1000);
    engine_prefill(&e, &toy, 0, tokens, DEPTH - 1, 8192);
    e.form = FORM_ATTEND;
    engine_feed(&e, &toy, tokens + DEPTH - 1, 1);
    engine_check(&e, &toy, 1);
    engine_close(&e, &toy);
    free(tokens);
    engine_free(&e);
    return unused;
}

START_TEST(a_long_sequence)
{
    run_on_small_stack(long_body, NULL);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("deep");
    tcase_add_test(tests, a23_deep_trees);
    tcase_add_test(tests, wide_trees);
    tcase_add_test(tests, a_path_of_a_million_chunks);
    tcase_add_test(tests, siblings_that_begin_alike);
    tcase_add_test(tests, siblings_that_begin_differently);
    tcase_add_test(tests, many_namespaces_and_sequences);
    tcase_add_test(tests, the_largest_heads);
    tcase_add_test(tests, a_long_sequence);
    return suite_run(tests);
}

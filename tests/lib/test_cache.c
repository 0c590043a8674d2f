#define _DEFAULT_SOURCE 1 /* setenv */
#include "small.h"
#include "support/suite.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static struct small small;

/* ---- create, on the backend that is there */

static struct cattn_config good_config(void)
{
    return (struct cattn_config){.size = sizeof(struct cattn_config),
                                 .backend = "cpu",
                                 .kernel = "generic",
                                 .n_layers = 2,
                                 .n_heads = 4,
                                 .n_kv_heads = 2,
                                 .head_dim = 8,
                                 .max_tokens = 1000,
                                 .n_threads = 1};
}

static int create(const struct cattn_config *config)
{
    cattn_cache *cache = NULL;
    int status = cattn_cache_create(config, &cache);
    ck_assert(!cache == (status != CATTN_OK));
    cattn_cache_destroy(cache);
    return status;
}

static int with(size_t offset, uint32_t value)
{
    struct cattn_config config = good_config();
    memcpy((char *)&config + offset, &value, sizeof(value));
    return create(&config);
}

#define WITH(field, value) with(offsetof(struct cattn_config, field), value)

START_TEST(values_out_of_range_are_refused)
{
    struct cattn_config config = good_config();
    ck_assert_int_eq(create(&config), CATTN_OK);
    ck_assert_int_eq(cattn_cache_create(&config, NULL), CATTN_EINVAL);
    ck_assert_int_eq(create(NULL), CATTN_EINVAL);
    ck_assert_int_eq(WITH(n_layers, 0), CATTN_EINVAL);
    ck_assert_int_eq(WITH(n_layers, 65536), CATTN_EINVAL);
    ck_assert_int_eq(WITH(n_layers, 65535), CATTN_OK);
    ck_assert_int_eq(WITH(n_heads, 0), CATTN_EINVAL);
    ck_assert_int_eq(WITH(n_heads, 3), CATTN_EINVAL);
    ck_assert_int_eq(WITH(n_heads, 65536), CATTN_EINVAL);
    ck_assert_int_eq(WITH(n_heads, 65534), CATTN_OK);
    ck_assert_int_eq(WITH(n_kv_heads, 0), CATTN_EINVAL);
    ck_assert_int_eq(WITH(n_kv_heads, 8), CATTN_EINVAL);
    ck_assert_int_eq(WITH(head_dim, 0), CATTN_EINVAL);
    ck_assert_int_eq(WITH(head_dim, 4097), CATTN_EINVAL);
    ck_assert_int_eq(WITH(head_dim, 4096), CATTN_OK);
    ck_assert_int_eq(WITH(v_head_dim, 4097), CATTN_EINVAL);
    ck_assert_int_eq(WITH(v_head_dim, 1), CATTN_OK);
    ck_assert_int_eq(WITH(io_dtype, CATTN_BF16 + 1), CATTN_EINVAL);
    ck_assert_int_eq(WITH(kv_dtype, CATTN_I8), CATTN_OK);
    ck_assert_int_eq(WITH(kv_dtype, CATTN_I8 + 1), CATTN_EINVAL);
    ck_assert_int_eq(WITH(flags, CATTN_NO_RETAIN), CATTN_OK);
    ck_assert_int_eq(WITH(flags, CATTN_ZERO_FREED | CATTN_NO_RETAIN), CATTN_OK);
    ck_assert_int_eq(WITH(flags, CATTN_CONCURRENT | CATTN_NO_RETAIN), CATTN_OK);
    ck_assert_int_eq(WITH(flags, CATTN_EVICT_BY_COST), CATTN_OK);
    ck_assert_int_eq(WITH(flags, UINT32_C(1) << 31), CATTN_EINVAL);
    ck_assert_int_eq(WITH(n_threads, 1025), CATTN_EINVAL);
    for (uint32_t c = 0; c < 300; c++)
        ck_assert_int_eq(WITH(chunk_tokens, c),
                         !c || c == 32 || c == 64 || c == 128 || c == 256 ? CATTN_OK : CATTN_EINVAL);
    config.size--;
    ck_assert_int_eq(create(&config), CATTN_EINVAL);
}
END_TEST

START_TEST(a_longer_config_must_be_zero_where_it_is_unknown)
{
    struct {
        struct cattn_config config;
        char more[16];
    } longer = {.config = good_config()};
    longer.config.size = sizeof(longer);
    ck_assert_int_eq(create(&longer.config), CATTN_OK);
    longer.more[15] = 1;
    ck_assert_int_eq(create(&longer.config), CATTN_EINVAL);
}
END_TEST

static uint64_t slot_bytes;

static uint64_t slots_of(uint64_t max_tokens, uint64_t max_bytes, int status)
{
    struct cattn_config config = good_config();
    struct cattn_info info = {.size = sizeof(info)};
    cattn_cache *cache;
    config.max_tokens = max_tokens;
    config.max_bytes = max_bytes;
    ck_assert_int_eq(cattn_cache_create(&config, &cache), status);
    if (status)
        return 0;
    ck_assert_int_eq(cattn_cache_info(cache, &info), CATTN_OK);
    /* tokens, layers, KV heads, K and V; a backend may pad */
    ck_assert_uint_ge(info.slot_bytes, 64 * 2 * 2 * (8 + 8) * sizeof(float));
    slot_bytes = info.slot_bytes;
    cattn_cache_destroy(cache);
    return info.n_slots;
}

START_TEST(the_smaller_bound_of_the_pool_wins)
{
    ck_assert_uint_eq(slots_of(1, 0, CATTN_OK), 1);
    ck_assert_uint_eq(slots_of(64, 0, CATTN_OK), 1);
    ck_assert_uint_eq(slots_of(65, 0, CATTN_OK), 2);
    ck_assert_uint_eq(slots_of(0, 3 * slot_bytes, CATTN_OK), 3);
    ck_assert_uint_eq(slots_of(0, 4 * slot_bytes - 1, CATTN_OK), 3);
    ck_assert_uint_eq(slots_of(128, 3 * slot_bytes, CATTN_OK), 2);
    ck_assert_uint_eq(slots_of(UINT64_MAX, 3 * slot_bytes, CATTN_OK), 3);
    ck_assert_uint_eq(slots_of(640, slot_bytes, CATTN_OK), 1);
    slots_of(0, 0, CATTN_EINVAL);
    slots_of(64, slot_bytes - 1, CATTN_EINVAL);
    slots_of(UINT64_MAX, 0, CATTN_EINVAL);
    slots_of(0, UINT64_MAX, CATTN_EINVAL);
    slots_of((uint64_t)INT32_MAX * 64 + 1, 0, CATTN_EINVAL);
}
END_TEST

START_TEST(backend_and_kernel_are_chosen_by_name)
{
    struct cattn_config config = good_config();
    config.backend = "abacus";
    ck_assert_int_eq(create(&config), CATTN_ENOTSUP);
    config = good_config();
    config.kernel = "abacus";
    ck_assert_int_eq(create(&config), CATTN_ENOTSUP);
    config.kernel = "";
    ck_assert_int_eq(create(&config), CATTN_ENOTSUP);
    config.backend = config.kernel = NULL;
    ck_assert_int_eq(setenv("CATTN_KERNEL", "abacus", 1), 0);
    ck_assert_int_eq(create(&config), CATTN_ENOTSUP);
    config.kernel = "generic";
    ck_assert_int_eq(create(&config), CATTN_OK);
    ck_assert_int_eq(setenv("CATTN_BACKEND", "abacus", 1), 0);
    ck_assert_int_eq(create(&config), CATTN_ENOTSUP);
    config.backend = "cpu";
    ck_assert_int_eq(create(&config), CATTN_OK);
    config.backend = config.kernel = NULL;
    setenv("CATTN_BACKEND", "", 1);
    setenv("CATTN_KERNEL", "", 1);
    ck_assert_int_eq(create(&config), CATTN_OK);
}
END_TEST

START_TEST(the_build_says_what_it_has)
{
    ck_assert_str_eq(cattn_backend_name(0), "cpu");
    unsigned n = 0;
    while (cattn_kernel_name(n))
        n++;
    ck_assert_uint_ge(n, 1);
    n -= !strcmp(cattn_kernel_name(n - 1), "amxf32"); /* behind all that need not be named */
    ck_assert_str_eq(cattn_kernel_name(n - 1), "generic");
    ck_assert_ptr_null(cattn_kernel_name(UINT32_MAX));
    ck_assert_ptr_null(cattn_backend_name(UINT32_MAX));
    ck_assert_int_eq(cattn_backend_usable("cpu"), 1);
    ck_assert_int_eq(cattn_backend_usable("abacus"), 0);
    ck_assert_int_eq(cattn_backend_usable(NULL), 0);
    ck_assert_str_eq(cattn_version(), CATTN_VERSION_STRING);
    for (int status = -20; status < 5; status++)
        ck_assert_int_eq(!strcmp(cattn_strerror(status), "unknown status"), status > 0 || status < CATTN_EDEVICE);
}
END_TEST

START_TEST(info_has_the_defaults_filled_in)
{
    struct cattn_config config = good_config();
    struct {
        struct cattn_info info;
        char more[16];
    } longer;
    cattn_cache *cache;
    ck_assert_int_eq(cattn_cache_create(&config, &cache), CATTN_OK);
    memset(&longer, 0xff, sizeof(longer));
    longer.info.size = sizeof(longer);
    ck_assert_int_eq(cattn_cache_info(cache, &longer.info), CATTN_OK);
    ck_assert_str_eq(longer.info.backend, "cpu");
    ck_assert_str_eq(longer.info.kernel, "generic");
    ck_assert_uint_eq(longer.info.exact, 1);
    ck_assert_uint_eq(longer.info.v_head_dim, 8);
    ck_assert_uint_eq(longer.info.chunk_tokens, 64);
    ck_assert_uint_eq(longer.info.n_threads, 1);
    ck_assert_uint_eq(longer.more[15], 0);
    longer.info.size = sizeof(struct cattn_info) - 1;
    ck_assert_int_eq(cattn_cache_info(cache, &longer.info), CATTN_EINVAL);
    ck_assert_int_eq(cattn_cache_info(cache, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_cache_info(NULL, &longer.info), CATTN_EINVAL);
    ck_assert_int_eq(cattn_cache_stats(NULL, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_cache_selfcheck(NULL), CATTN_EINVAL);
    cattn_cache_destroy(cache);
    cattn_cache_destroy(NULL);
}
END_TEST

/* ---- stats */

START_TEST(stats_count_tokens_slots_and_bytes)
{
    struct cattn_stats stats = {.size = sizeof(stats)};
    small = small_make(16, 4, 2, 0);
    cattn_seq a = small_prefill(&small, small_tokens(1, 10), 10), b = small_open(&small, small_tokens(1, 10), 10, NULL);
    struct cattn_item items[] = {small_item(a, (int32_t[]){11}, 1), small_item(b, (int32_t[]){9, 10}, 2)};
    ck_assert_int_eq(cattn_step_begin(small.step, items, 2), CATTN_OK);
    small_finish(&small);
    ck_assert_int_eq(cattn_cache_stats(small.cache, &stats), CATTN_OK);
    ck_assert_uint_eq(stats.n_sequences, 2);
    ck_assert_uint_eq(stats.n_slots, 16);
    ck_assert_uint_eq(stats.used_slots, 4);
    ck_assert_uint_eq(stats.peak_used_slots, 4);
    ck_assert_uint_eq(stats.cached_tokens, 8 + 3 + 2);
    ck_assert_uint_eq(stats.sequence_tokens, 11 + 10);
    ck_assert_uint_eq(stats.used_bytes, 4 * 4 * 2 * sizeof(uint64_t));
    ck_assert_uint_eq(stats.hits, 8);
    ck_assert_uint_eq(stats.misses, 10 + 1 + 2);
    ck_assert_uint_eq(stats.read_bytes, (10 + 8 + 3 + 2) * 2 * sizeof(uint64_t));
    ck_assert_uint_eq(stats.read_bytes_unshared, (10 + 11 + 10) * 2 * sizeof(uint64_t));
    ck_assert_int_eq(cattn_seq_close(small.cache, a), CATTN_OK);
    ck_assert_int_eq(cattn_seq_close(small.cache, b), CATTN_OK);
    small_check(&small, 0, 2);
    cattn_tree_evict(&small.cache->tree, 2);
    ck_assert_int_eq(cattn_cache_stats(small.cache, &stats), CATTN_OK);
    ck_assert_uint_eq(stats.evictions, 2);
    ck_assert_uint_eq(stats.cached_tokens + stats.sequence_tokens + stats.n_sequences, 0);
    ck_assert_uint_eq(stats.peak_used_slots, 4);
    small_free(&small);
}
END_TEST

/* ---- selfcheck */

static struct cattn_tree *tree;
static struct cattn_sequence *sequence; /* two chunks and an own tail; a second one borrows that tail */
static struct cattn_slot *chunk, *tail, *unused;

static void set_up_selfcheck(void)
{
    small = small_make(16, 4, 1, 0);
    cattn_seq seq = small_prefill(&small, small_tokens(1, 11), 11), forked;
    ck_assert_int_eq(cattn_seq_fork(small.cache, seq, &forked), CATTN_OK);
    ck_assert_int_eq(cattn_seq_close(small.cache, small_prefill(&small, small_tokens(50, 14), 14)), CATTN_OK);
    ck_assert_int_eq(cattn_tree_pin(&small.cache->tree, "ns", 2, small_tokens(1, 4), 4), CATTN_OK);
    tree = &small.cache->tree;
    sequence = cattn_sequence_find(small.cache, seq);
    chunk = &tree->slots[sequence->chunks[1]];
    tail = &tree->slots[sequence->tail];
    unused = &tree->slots[tree->free];
    ck_assert_uint_eq(tree->n_evictable, 3);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
}

/* Of each of these any change is noticed. */
/* clang-format off */
#define FIELDS                                                                                                         \
    X(chunk->refs) X(chunk->writer) X(chunk->root) X(chunk->parent) X(chunk->children) X(chunk->fill) X(chunk->dirty)  \
    X(chunk->pins) X(chunk->older) X(chunk->newer) X(chunk->hash) X(chunk->first_tag) X(chunk->published)             \
    X(tail->refs) X(tail->writer) X(tail->root) X(tail->parent) X(tail->fill) X(tail->published)                       \
    X(unused->root) X(unused->next)                                                                                    \
    X(tree->free) X(tree->n_free) X(tree->oldest) X(tree->newest) X(tree->n_evictable) X(tree->stored_tokens)          \
    X(tree->n_pins) X(tree->n_touched) X(tree->slots[tree->oldest].next) X(tree->slots[tree->newest].prev)             \
    X(tree->index.entries[(uint32_t)chunk->hash & tree->index.mask].slot)                                              \
    X(tree->index.entries[(uint32_t)chunk->hash & tree->index.mask].tag)                                               \
    X(tree->firsts.entries[chunk->first_tag & tree->firsts.mask].tag) X(cattn_roots_at(&tree->roots, 0)->refs)             \
    X(cattn_roots_at(&tree->roots, 0)->current)                                                                        \
    X(*cattn_tree_tokens(tree, sequence->chunks[1])) X(*cattn_tree_tokens(tree, sequence->tail))                       \
    X(sequence->chunks[0]) X(sequence->tail) X(sequence->t) X(sequence->owns) X(sequence->root) X(sequence->handle)    \
    X(sequence->n_tokens) X(sequence->tokens[10]) X(sequence->tokens[0]) X(sequence->closed) X(sequence->in_step)
/* clang-format on */

static void expect_fault(void *field, size_t size, const char *name)
{
    unsigned char *bytes = field;
    uint64_t values[] = {0, 1, 2, 5, 15, 16, UINT32_MAX, UINT64_MAX}, before = 0;
    memcpy(&before, field, size);
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        uint64_t value = size == 1 ? !before : values[i];
        memcpy(bytes, &value, size);
        bool same = !memcmp(bytes, &before, size);
        /* more dirt than there is does no harm, and nothing tells it from what an abort leaves */
        bool harmless = field == &chunk->dirty && value > 4;
        if (!same && !harmless)
            ck_assert_msg(cattn_cache_selfcheck(small.cache) == CATTN_ESTATE, "%s = %llu goes unnoticed", name,
                          (unsigned long long)value);
        memcpy(bytes, &before, size);
    }
    ck_assert_msg(cattn_cache_selfcheck(small.cache) == CATTN_OK, "%s", name);
}

START_TEST(selfcheck_notices_what_is_wrong)
{
    set_up_selfcheck();
#define X(field) expect_fault(&(field), sizeof(field), #field);
    FIELDS
#undef X
    small_free(&small);
}
END_TEST

START_TEST(selfcheck_notices_lists_that_run_in_circles)
{
    set_up_selfcheck();
    uint32_t second = tree->slots[tree->oldest].next, after = tree->slots[second].next;
    tree->slots[second].next = tree->oldest;
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_ESTATE);
    tree->slots[second].next = after;
    unused->next = tree->free;
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_ESTATE);
    unused->next = CATTN_NONE;
    chunk->parent = sequence->chunks[1];
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_ESTATE);
    chunk->parent = sequence->chunks[0];
    small_free(&small);
}
END_TEST

/* As many slots as there can be, in a store that is never touched. */
START_TEST(a_cache_of_many_slots_costs_nothing)
{
    struct cattn_config config = good_config();
    cattn_cache *cache;
    config.n_layers = config.n_heads = config.n_kv_heads = config.head_dim = 1;
    config.chunk_tokens = 32;
    config.max_tokens = (uint64_t)32 << 24;
    ck_assert_int_eq(cattn_cache_create(&config, &cache), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(cache), CATTN_OK);
    cattn_cache_destroy(cache);
}
END_TEST

int main(void)
{
    unsetenv("CATTN_KERNEL");
    unsetenv("CATTN_BACKEND");
    TCase *tests = suite_case("cache");
    tcase_add_test(tests, values_out_of_range_are_refused);
    tcase_add_test(tests, a_longer_config_must_be_zero_where_it_is_unknown);
    tcase_add_test(tests, the_smaller_bound_of_the_pool_wins);
    tcase_add_test(tests, backend_and_kernel_are_chosen_by_name);
    tcase_add_test(tests, the_build_says_what_it_has);
    tcase_add_test(tests, info_has_the_defaults_filled_in);
    tcase_add_test(tests, stats_count_tokens_slots_and_bytes);
    tcase_add_test(tests, selfcheck_notices_what_is_wrong);
    tcase_add_test(tests, selfcheck_notices_lists_that_run_in_circles);
    tcase_add_test(tests, a_cache_of_many_slots_costs_nothing);
    return suite_run(tests);
}

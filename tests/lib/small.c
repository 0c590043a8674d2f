#include "small.h"

#define MOST (1 << 18) /* tokens or rows */

struct small small_make(uint32_t n_slots, uint32_t chunk_tokens, uint32_t n_layers, uint32_t flags)
{
    struct small small;
    struct cattn_shape shape = cells_shape(n_slots, chunk_tokens, n_layers);
    ck_assert_int_eq(cattn_cache_make(&shape, &cells_backend, NULL, flags, &small.cache), CATTN_OK);
    ck_assert_int_eq(cattn_step_create(small.cache, &small.step), CATTN_OK);
    return small;
}

void small_free(struct small *small)
{
    ck_assert_ptr_null(small->cache->store->fault);
    ck_assert_int_eq(cattn_cache_selfcheck(small->cache), CATTN_OK);
    cattn_cache_destroy(small->cache);
}

const int32_t *small_tokens(int32_t first, size_t n)
{
    static int32_t tokens[MOST];
    ck_assert_uint_le(n, MOST);
    for (size_t i = 0; i < n; i++)
        tokens[i] = first + (int32_t)i;
    return tokens;
}

cattn_seq small_open(struct small *small, const int32_t *tokens, size_t n, size_t *n_cached)
{
    cattn_seq seq;
    ck_assert_int_eq(cattn_seq_open(small->cache, "ns", 2, tokens, n, &seq, n_cached), CATTN_OK);
    return seq;
}

struct cattn_item small_item(cattn_seq seq, const int32_t *tokens, uint32_t n)
{
    return (struct cattn_item){.seq = seq, .tokens = tokens, .n_tokens = n};
}

struct cattn_io small_io(const struct small *small, bool kv)
{
    static uint64_t rows[MOST], q, out;
    ck_assert_uint_le(small->cache->work.n_rows, MOST);
    for (uint32_t i = 0; i < small->cache->work.n_rows; i++)
        rows[i] = i + 1;
    return (struct cattn_io){
        .size = sizeof(struct cattn_io), .q = &q, .out = &out, .k = kv ? rows : NULL, .v = kv ? rows : NULL};
}

void small_finish(struct small *small)
{
    struct cattn_io io = small_io(small, true);
    uint64_t shared, unshared;
    cattn_work_count_tokens(&small->cache->work, 0, 0, &shared, &unshared);
    ck_assert_uint_eq(small->step->read_tokens, shared);
    ck_assert_uint_eq(small->step->read_tokens_unshared, unshared);
    for (uint32_t layer = 0; layer < small->cache->shape.n_layers; layer++)
        ck_assert_int_eq(cattn_step_attend(small->step, layer, &io), CATTN_OK);
    ck_assert_int_eq(cattn_step_end(small->step), CATTN_OK);
}

int small_append(struct small *small, cattn_seq seq, const int32_t *tokens, uint32_t n)
{
    struct cattn_item item = small_item(seq, tokens, n);
    int status = cattn_step_begin(small->step, &item, 1);
    if (status == CATTN_OK)
        small_finish(small);
    return status;
}

cattn_seq small_prefill(struct small *small, const int32_t *tokens, size_t n)
{
    size_t n_cached;
    cattn_seq seq = small_open(small, tokens, n, &n_cached);
    ck_assert_int_eq(small_append(small, seq, tokens + n_cached, (uint32_t)(n - n_cached)), CATTN_OK);
    return seq;
}

void small_check(const struct small *small, uint32_t used, uint32_t evictable)
{
    struct cattn_stats stats = {.size = sizeof(stats)};
    ck_assert_int_eq(cattn_cache_stats(small->cache, &stats), CATTN_OK);
    ck_assert_uint_eq(stats.used_slots, used);
    ck_assert_uint_eq(stats.evictable_slots, evictable);
    ck_assert_uint_eq(stats.free_slots, stats.n_slots - used - evictable);
    ck_assert_int_eq(cattn_cache_selfcheck(small->cache), CATTN_OK);
}

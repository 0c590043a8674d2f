/* Pins, namespaces and eviction, as callers ask for them. */
#include "cache.h"

static bool is_name(const cattn_cache *cache, const void *ns, size_t ns_len)
{
    return cache && (ns || !ns_len);
}

typedef int change_pin(struct cattn_tree *tree, const void *name, size_t length, const int32_t *tokens, size_t n);

/* The prompt is compared alone, so it keeps its numbers no longer than that. */
static int change(struct cattn_cache *cache, change_pin *call, const void *ns, size_t ns_len, const int32_t *tokens,
                  size_t n, const struct cattn_ext *ext)
{
    int32_t *translated;
    if (!is_name(cache, ns, ns_len) || !cattn_prompt_is_good(tokens, n, ext))
        return CATTN_EINVAL;
    if (cattn_prompt_enter(&cache->tree.extras, tokens, n, ext, &translated))
        return CATTN_ENOMEM;
    int status = call(&cache->tree, ns, ns_len, translated ? translated : tokens, n);
    cattn_prompt_leave(&cache->tree.extras, translated, n);
    return status;
}

int cattn_prefix_pin(cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens, size_t n,
                     const struct cattn_ext *ext)
{
    return CATTN_LOCKED(cache, change(cache, cattn_tree_pin, ns, ns_len, tokens, n, ext));
}

int cattn_prefix_unpin(cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens, size_t n,
                       const struct cattn_ext *ext)
{
    return CATTN_LOCKED(cache, change(cache, cattn_tree_unpin, ns, ns_len, tokens, n, ext));
}

static int invalidate(struct cattn_cache *cache, const void *ns, size_t ns_len)
{
    if (!is_name(cache, ns, ns_len))
        return CATTN_EINVAL;
    return cattn_tree_invalidate(&cache->tree, ns, ns_len);
}

int cattn_namespace_invalidate(cattn_cache *cache, const void *ns, size_t ns_len)
{
    return CATTN_LOCKED(cache, invalidate(cache, ns, ns_len));
}

/* A sequence that was closed in the open step refers to its root until the step ends. */
static uint64_t count_closed(const cattn_cache *cache, uint32_t root)
{
    const struct cattn_step *step = cache->open_step;
    uint64_t n = 0;
    for (size_t i = 0; step && i < step->n_plans; i++)
        n += step->plans[i].sequence->closed && step->plans[i].sequence->root == root;
    return n;
}

static int get_usage(const struct cattn_cache *cache, const void *ns, size_t ns_len, struct cattn_usage *stats)
{
    if (!is_name(cache, ns, ns_len) || !stats || !cattn_struct_writable(stats, sizeof(*stats)))
        return CATTN_EINVAL;
    const struct cattn_roots *roots = &cache->tree.roots;
    uint32_t root = cattn_roots_find(roots, ns, ns_len);
    if (root == CATTN_NONE)
        return CATTN_ENOTFOUND;
    const struct cattn_root *record = cattn_roots_at(roots, root);
    stats->n_sequences =
        record->refs - record->n_slots - record->n_readers - record->has_settings - count_closed(cache, root);
    stats->n_slots = record->n_slots;
    stats->evictable_slots = record->n_evictable;
    stats->pinned_slots = record->n_pinned;
    stats->hits = record->hits;
    stats->misses = record->misses;
    stats->evictions = record->evictions;
    stats->reserve_slots = record->reserve;
    stats->limit_slots = record->limit;
    return CATTN_OK;
}

int cattn_namespace_stats(const cattn_cache *cache, const void *ns, size_t ns_len, struct cattn_usage *stats)
{
    return CATTN_LOCKED(cache, get_usage(cache, ns, ns_len, stats));
}

static int evict(struct cattn_cache *cache, uint64_t n_slots, uint64_t *n_evicted)
{
    if (!cache)
        return CATTN_EINVAL;
    struct cattn_tree *tree = &cache->tree;
    uint32_t before = tree->n_evictable;
    cattn_tree_evict(tree, n_slots < before ? (uint32_t)n_slots : before);
    if (n_evicted)
        *n_evicted = before - tree->n_evictable;
    return CATTN_OK;
}

int cattn_cache_evict(cattn_cache *cache, uint64_t n_slots, uint64_t *n_evicted)
{
    return CATTN_LOCKED(cache, evict(cache, n_slots, n_evicted));
}

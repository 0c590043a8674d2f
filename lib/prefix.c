/* Pins, namespaces and eviction, as callers ask for them. */
#include "cache.h"

#include "readers.h"

static bool is_prefix(const cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens, size_t n)
{
    return cache && (ns || !ns_len) && (tokens || !n);
}

static int pin(struct cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens, size_t n)
{
    if (!is_prefix(cache, ns, ns_len, tokens, n))
        return CATTN_EINVAL;
    return cattn_tree_pin(&cache->tree, ns, ns_len, tokens, n);
}

int cattn_prefix_pin(cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens, size_t n)
{
    return CATTN_LOCKED(cache, pin(cache, ns, ns_len, tokens, n));
}

static int unpin(struct cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens, size_t n)
{
    if (!is_prefix(cache, ns, ns_len, tokens, n))
        return CATTN_EINVAL;
    return cattn_tree_unpin(&cache->tree, ns, ns_len, tokens, n);
}

int cattn_prefix_unpin(cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens, size_t n)
{
    return CATTN_LOCKED(cache, unpin(cache, ns, ns_len, tokens, n));
}

static int invalidate(struct cattn_cache *cache, const void *ns, size_t ns_len)
{
    if (!is_prefix(cache, ns, ns_len, NULL, 0))
        return CATTN_EINVAL;
    cattn_tree_invalidate(&cache->tree, ns, ns_len);
    return CATTN_OK;
}

int cattn_namespace_invalidate(cattn_cache *cache, const void *ns, size_t ns_len)
{
    return CATTN_LOCKED(cache, invalidate(cache, ns, ns_len));
}

static int set(struct cattn_cache *cache, const void *ns, size_t ns_len, const struct cattn_namespace_config *config)
{
    if (!is_prefix(cache, ns, ns_len, NULL, 0) || !config || !cattn_struct_readable(config, sizeof(*config)) ||
        (!config->public_ns && config->public_ns_len))
        return CATTN_EINVAL;
    return cattn_readers_set(&cache->tree, ns, ns_len, config->public_ns, config->public_ns_len);
}

int cattn_namespace_set(cattn_cache *cache, const void *ns, size_t ns_len, const struct cattn_namespace_config *config)
{
    return CATTN_LOCKED(cache, set(cache, ns, ns_len, config));
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
    if (!is_prefix(cache, ns, ns_len, NULL, 0) || !stats || !cattn_struct_writable(stats, sizeof(*stats)))
        return CATTN_EINVAL;
    const struct cattn_roots *roots = &cache->tree.roots;
    uint32_t root = cattn_roots_find(roots, ns, ns_len);
    if (root == CATTN_NONE)
        return CATTN_ENOTFOUND;
    const struct cattn_root *record = cattn_roots_at(roots, root);
    stats->n_sequences = record->refs - record->n_slots - record->n_readers - count_closed(cache, root);
    stats->n_slots = record->n_slots;
    stats->evictable_slots = record->n_evictable;
    stats->pinned_slots = record->n_pinned;
    stats->hits = record->hits;
    stats->misses = record->misses;
    stats->evictions = record->evictions;
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

/* Pins, namespaces and eviction, as callers ask for them. */
#include "cache.h"

static bool is_prefix(const cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens, size_t n)
{
    return cache && (ns || !ns_len) && (tokens || !n);
}

int cattn_prefix_pin(cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens, size_t n)
{
    if (!is_prefix(cache, ns, ns_len, tokens, n))
        return CATTN_EINVAL;
    return cattn_tree_pin(&cache->tree, ns, ns_len, tokens, n);
}

int cattn_prefix_unpin(cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens, size_t n)
{
    if (!is_prefix(cache, ns, ns_len, tokens, n))
        return CATTN_EINVAL;
    return cattn_tree_unpin(&cache->tree, ns, ns_len, tokens, n);
}

int cattn_namespace_invalidate(cattn_cache *cache, const void *ns, size_t ns_len)
{
    if (!is_prefix(cache, ns, ns_len, NULL, 0))
        return CATTN_EINVAL;
    cattn_tree_invalidate(&cache->tree, ns, ns_len);
    return CATTN_OK;
}

int cattn_cache_evict(cattn_cache *cache, uint64_t n_slots, uint64_t *n_evicted)
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

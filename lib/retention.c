/* Priorities, times to live and quotas, as callers ask for them. */
#include "cache.h"
#include "quota.h"
#include "readers.h"

/* A time that is too far away never comes. */
static uint64_t end_of(uint64_t now, uint64_t ttl)
{
    return ttl && ttl < CATTN_NEVER - now ? now + ttl : CATTN_NEVER;
}

static int retain_leaf(struct cattn_tree *tree, uint32_t leaf, const struct cattn_retention *retention)
{
    if (leaf == CATTN_NONE)
        return CATTN_ENOTFOUND;
    if (cattn_order_open(tree))
        return CATTN_ENOMEM;
    if (retention)
        cattn_order_retain(tree, leaf, retention->priority, end_of(tree->order.now, retention->ttl));
    else
        cattn_order_forget(tree, leaf);
    return CATTN_OK;
}

static int retain(struct cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens, size_t n,
                  const struct cattn_ext *ext, const struct cattn_retention *retention)
{
    int32_t *translated;
    if (!cache || (!ns && ns_len) || !cattn_prompt_is_good(tokens, n, ext) ||
        (retention && !cattn_struct_readable(retention, sizeof(*retention))))
        return CATTN_EINVAL;
    struct cattn_tree *tree = &cache->tree;
    if (cattn_prompt_enter(&tree->extras, tokens, n, ext, &translated))
        return CATTN_ENOMEM;
    int status = retain_leaf(tree, cattn_tree_leaf(tree, ns, ns_len, translated ? translated : tokens, n), retention);
    cattn_prompt_leave(&tree->extras, translated, n);
    return status;
}

int cattn_prefix_retain(cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens, size_t n,
                        const struct cattn_ext *ext, const struct cattn_retention *retention)
{
    return CATTN_LOCKED(cache, retain(cache, ns, ns_len, tokens, n, ext, retention));
}

static int advance(struct cattn_cache *cache, uint64_t now)
{
    if (!cache || now < cache->tree.order.now)
        return CATTN_EINVAL;
    cattn_order_advance(&cache->tree, now);
    return CATTN_OK;
}

int cattn_cache_advance(cattn_cache *cache, uint64_t now)
{
    return CATTN_LOCKED(cache, advance(cache, now));
}

static const struct cattn_root *record_of(const struct cattn_roots *roots, const void *name, size_t length)
{
    uint32_t root = cattn_roots_find(roots, name, length);
    return root == CATTN_NONE ? NULL : cattn_roots_at(roots, root);
}

/* What is kept for one namespace would hold chunks of another one: a reserve of a private one the public chunks above
 * it, and where a public one is at its limit what others have below is in the way. */
static bool holds_others(const struct cattn_tree *tree, const void *ns, size_t ns_len,
                         const struct cattn_namespace_config *config)
{
    const struct cattn_root *setting = record_of(&tree->settings, ns, ns_len), *above = NULL;
    if (config->public_ns)
        above = record_of(&tree->roots, config->public_ns, config->public_ns_len);
    return (config->public_ns && config->reserve_slots) || (config->limit_slots && setting && setting->n_readers) ||
           (above && above->limit);
}

/* Both or none: first what may fail, and what can be taken back.  Quotas of 0 take no memory, nor do old ones of a name
 * that still has some. */
static int make_settings(struct cattn_tree *tree, const void *ns, size_t ns_len,
                         const struct cattn_namespace_config *config)
{
    const struct cattn_root *record = record_of(&tree->roots, ns, ns_len);
    uint64_t reserve = record ? record->reserve : 0, limit = record ? record->limit : 0;
    bool has_quotas = config->reserve_slots || config->limit_slots;
    int status = CATTN_OK;
    if (has_quotas)
        status = cattn_quota_set(tree, ns, ns_len, config->reserve_slots, config->limit_slots);
    if (status)
        return status;
    status = cattn_readers_set(tree, ns, ns_len, config->public_ns, config->public_ns_len);
    if (status && has_quotas)
        (void)cattn_quota_set(tree, ns, ns_len, reserve, limit);
    else if (!status && !has_quotas)
        (void)cattn_quota_set(tree, ns, ns_len, 0, 0);
    return status;
}

static int set_namespace(struct cattn_cache *cache, const void *ns, size_t ns_len,
                         const struct cattn_namespace_config *config)
{
    if (!cache || (!ns && ns_len) || !config || !cattn_struct_readable(config, sizeof(*config)) ||
        (config->limit_slots && config->reserve_slots > config->limit_slots) ||
        (!config->public_ns && config->public_ns_len) || holds_others(&cache->tree, ns, ns_len, config))
        return CATTN_EINVAL;
    struct cattn_tree *tree = &cache->tree;
    int status = cattn_readers_check(tree, ns, ns_len, config->public_ns, config->public_ns_len);
    if (status == CATTN_EINVAL || !cattn_quota_is_possible(tree, ns, ns_len, config->reserve_slots))
        return CATTN_EINVAL;
    return status ? status : make_settings(tree, ns, ns_len, config);
}

int cattn_namespace_set(cattn_cache *cache, const void *ns, size_t ns_len, const struct cattn_namespace_config *config)
{
    return CATTN_LOCKED(cache, set_namespace(cache, ns, ns_len, config));
}

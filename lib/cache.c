#include "cache.h"

#include "memory.h"
#include "seed.h"

#include <stdlib.h>
#include <string.h>

#define MAX_HEADS            65535
#define MAX_LAYERS           65535
#define MAX_THREADS          1024
#define MAX_SLOTS            INT32_MAX
#define DEFAULT_CHUNK_TOKENS 64
#define MAX_STRUCT_SIZE      4096 /* a size beyond it was never set */

/* ---- structs of the caller */

static size_t size_of(const void *object)
{
    size_t size;
    memcpy(&size, object, sizeof(size));
    return size;
}

bool cattn_struct_readable(const void *object, size_t known)
{
    size_t size = size_of(object);
    if (size < known || size > MAX_STRUCT_SIZE)
        return false;
    for (size_t i = known; i < size; i++) {
        if (((const unsigned char *)object)[i])
            return false;
    }
    return true;
}

bool cattn_struct_read(void *to, size_t known, size_t first, const void *object)
{
    size_t size = size_of(object);
    if (size != first && !cattn_struct_readable(object, known))
        return false;
    memset(to, 0, known);
    memcpy(to, object, size < known ? size : known);
    return true;
}

bool cattn_struct_writable(void *object, size_t known)
{
    size_t size = size_of(object);
    if (size < known || size > MAX_STRUCT_SIZE)
        return false;
    memset((unsigned char *)object + known, 0, size - known);
    return true;
}

/* ---- make and destroy */

static void clear_slot(void *cache, uint32_t slot)
{
    const struct cattn_cache *x = cache;
    x->backend->clear(x->store, slot);
}

/* What a token costs wherever it stands, in units of what it costs for each token before it: with d elements in the
 * heads of a layer, 24 d^2 operations for products with weights, and 4 d for each token that attention looks at. */
static uint64_t fixed_cost(const struct cattn_shape *shape)
{
    return 6 * (uint64_t)shape->n_heads * shape->head_dim;
}

int cattn_cache_make(const struct cattn_shape *shape, const struct cattn_backend *backend, const char *kernel,
                     uint32_t flags, struct cattn_cache **cache)
{
    struct cattn_cache *made = cattn_calloc(1, sizeof(*made));
    if (!made)
        return CATTN_ENOMEM;
    made->shape = *shape;
    made->backend = backend;
    made->block_bytes = backend->block_bytes(shape);
    cattn_sequences_init(&made->sequences, cattn_seed(&made->sequences));
    int status = cattn_tree_init(&made->tree, shape->n_slots, shape->chunk_tokens, !(flags & CATTN_NO_RETAIN),
                                 cattn_seed(made));
    if (!status)
        status = cattn_work_init(&made->work, shape->n_slots, shape->chunk_tokens);
    made->tree.order.by_cost = flags & CATTN_EVICT_BY_COST;
    made->tree.order.fixed_cost = fixed_cost(shape);
    if (!status && flags & CATTN_EVICT_BY_COST)
        status = cattn_order_open(&made->tree);
    if (!status && flags & CATTN_CONCURRENT)
        status = cattn_mutex_create(&made->mutex);
    if (!status)
        status = backend->open(shape, kernel, &made->store);
    if (status) {
        made->store = NULL;
        cattn_cache_destroy(made);
        return status;
    }
    made->tree.clear = flags & CATTN_ZERO_FREED ? clear_slot : NULL;
    made->tree.clear_context = made;
    *cache = made;
    return CATTN_OK;
}

void cattn_cache_destroy(cattn_cache *cache)
{
    if (!cache)
        return;
    while (cache->steps)
        cattn_step_destroy(cache->steps);
    cattn_sequences_release(&cache->sequences);
    cattn_work_release(&cache->work);
    cattn_tree_release(&cache->tree);
    if (cache->store)
        cache->backend->close(cache->store);
    cattn_mutex_destroy(cache->mutex);
    cattn_free(cache);
}

int cattn_sync(cattn_cache *cache)
{
    return cache ? cattn_store_sync(cache->backend, cache->store) : CATTN_EINVAL;
}

/* ---- the configuration */

static bool in_range(uint32_t value, uint32_t most)
{
    return value >= 1 && value <= most;
}

/* All of the shape but the slots and threads. */
static int check_shape(const struct cattn_config *config, struct cattn_shape *shape)
{
    uint32_t c = config->chunk_tokens ? config->chunk_tokens : DEFAULT_CHUNK_TOKENS;
    uint32_t v_head_dim = config->v_head_dim ? config->v_head_dim : config->head_dim;
    if (!in_range(config->n_layers, MAX_LAYERS) || !in_range(config->n_heads, MAX_HEADS) ||
        !in_range(config->n_kv_heads, MAX_HEADS) || config->n_heads % config->n_kv_heads ||
        !in_range(config->head_dim, CATTN_MAX_HEAD_DIM) || !in_range(v_head_dim, CATTN_MAX_HEAD_DIM))
        return CATTN_EINVAL;
    if ((c != 32 && c != 64 && c != 128 && c != 256) || config->io_dtype > CATTN_BF16 || config->kv_dtype > CATTN_I8 ||
        config->flags & ~(uint32_t)(CATTN_NO_RETAIN | CATTN_ZERO_FREED | CATTN_EVICT_BY_COST | CATTN_CONCURRENT) ||
        config->n_threads > MAX_THREADS)
        return CATTN_EINVAL;
    *shape = (struct cattn_shape){.n_layers = config->n_layers,
                                  .n_heads = config->n_heads,
                                  .n_kv_heads = config->n_kv_heads,
                                  .head_dim = config->head_dim,
                                  .v_head_dim = v_head_dim,
                                  .chunk_tokens = c,
                                  .io_dtype = config->io_dtype,
                                  .kv_dtype = config->kv_dtype,
                                  .device = config->device,
                                  .stream = config->stream};
    return CATTN_OK;
}

static uint64_t slot_bytes(const struct cattn_shape *shape, uint64_t block_bytes)
{
    return block_bytes * shape->n_kv_heads * shape->n_layers; /* at most 2^24 * 2^16 * 2^16 */
}

static int count_slots(const struct cattn_config *config, struct cattn_shape *shape, uint64_t bytes)
{
    uint64_t c = shape->chunk_tokens, n_slots = UINT64_MAX;
    if (config->max_tokens)
        n_slots = config->max_tokens / c + (config->max_tokens % c > 0);
    if (config->max_bytes && n_slots > config->max_bytes / bytes)
        n_slots = config->max_bytes / bytes;
    if (!n_slots || n_slots > MAX_SLOTS)
        return CATTN_EINVAL;
    if (n_slots > (SIZE_MAX / 2) / bytes)
        return CATTN_ENOMEM;
    shape->n_slots = (uint32_t)n_slots;
    return CATTN_OK;
}

/* What the config says, else the environment, else NULL. */
static const char *chosen(const char *name, const char *variable)
{
    if (name)
        return name;
    name = getenv(variable);
    return name && *name ? name : NULL; /* an empty variable says nothing */
}

/* What computes on a device has to be named: its q, k, v and out are no host memory. */
static const struct cattn_backend *choose_backend(const char *name)
{
    const struct cattn_backend *backend;
    if (name) {
        backend = cattn_backend_find(name);
        return backend && backend->usable() ? backend : NULL;
    }
    for (unsigned i = 0; (backend = cattn_backend_at(i)) && (backend->device || !backend->usable());)
        i++;
    return backend;
}

/* The structs of the first version ended before the device. */
static const size_t first_config = offsetof(struct cattn_config, device);
static const size_t first_info = offsetof(struct cattn_info, device);

/* Where the config says no size. */
static int size_pool(struct cattn_config *config, const struct cattn_backend *backend, const struct cattn_shape *shape)
{
    if (config->max_tokens || config->max_bytes)
        return CATTN_OK;
    if (!backend->device)
        return CATTN_EINVAL;
    config->max_bytes = backend->device->free_bytes(shape);
    return config->max_bytes ? CATTN_OK : CATTN_ENOTSUP;
}

int cattn_cache_create(const struct cattn_config *given, cattn_cache **cache)
{
    struct cattn_config copy, *config = &copy;
    struct cattn_shape shape;
    if (!given || !cache || !cattn_struct_read(config, sizeof(*config), first_config, given) ||
        check_shape(config, &shape))
        return CATTN_EINVAL;
    const struct cattn_backend *backend = choose_backend(chosen(config->backend, "CATTN_BACKEND"));
    if (!backend && !config->max_tokens && !config->max_bytes)
        return CATTN_EINVAL;
    uint64_t block_bytes = backend ? backend->block_bytes(&shape) : 0;
    if (!block_bytes || (!backend->device && (config->device || config->stream)))
        return CATTN_ENOTSUP;
    int status = size_pool(config, backend, &shape);
    if (!status)
        status = count_slots(config, &shape, slot_bytes(&shape, block_bytes));
    if (status)
        return status;
    shape.n_threads = config->n_threads ? config->n_threads : backend->default_threads();
    if (shape.n_threads > MAX_THREADS)
        shape.n_threads = MAX_THREADS;
    cattn_cache *made;
    status = cattn_cache_make(&shape, backend, chosen(config->kernel, "CATTN_KERNEL"), config->flags, &made);
    if (status)
        return status;
    if (cattn_events_open(&made->tree.events, shape.n_slots, shape.chunk_tokens, config->on_event,
                          config->event_context)) {
        cattn_cache_destroy(made);
        return CATTN_ENOMEM;
    }
    *cache = made;
    return CATTN_OK;
}

/* ---- what can be observed */

int cattn_cache_info(const cattn_cache *cache, struct cattn_info *info)
{
    if (!cache || !info || (info->size != first_info && !cattn_struct_writable(info, sizeof(*info))))
        return CATTN_EINVAL;
    const struct cattn_shape *shape = &cache->shape;
    int exact = 0;
    info->backend = cache->backend->name;
    info->kernel = cache->backend->kernel(cache->store, &exact);
    info->exact = exact != 0;
    info->n_threads = shape->n_threads;
    info->chunk_tokens = shape->chunk_tokens;
    info->n_layers = shape->n_layers;
    info->n_heads = shape->n_heads;
    info->n_kv_heads = shape->n_kv_heads;
    info->head_dim = shape->head_dim;
    info->v_head_dim = shape->v_head_dim;
    info->io_dtype = shape->io_dtype;
    info->kv_dtype = shape->kv_dtype;
    info->n_slots = shape->n_slots;
    info->slot_bytes = slot_bytes(shape, cache->block_bytes);
    if (info->size != first_info)
        info->device = shape->device;
    return CATTN_OK;
}

static void count_sequences(const struct cattn_sequences *sequences, struct cattn_stats *stats)
{
    stats->n_sequences = stats->sequence_tokens = 0;
    for (uint32_t i = 0; i < sequences->n; i++) {
        const struct cattn_sequence *sequence = sequences->handles[i].sequence;
        if (sequence && !sequence->closed) {
            stats->n_sequences++;
            stats->sequence_tokens += sequence->n_tokens;
        }
    }
}

static int get_stats(const struct cattn_cache *cache, struct cattn_stats *stats)
{
    if (!cache || !stats || !cattn_struct_writable(stats, sizeof(*stats)))
        return CATTN_EINVAL;
    const struct cattn_tree *tree = &cache->tree;
    count_sequences(&cache->sequences, stats);
    stats->n_slots = tree->n_slots;
    stats->used_slots = cattn_tree_used(tree);
    stats->free_slots = tree->n_free;
    stats->evictable_slots = tree->n_evictable;
    stats->peak_used_slots = tree->peak_used;
    stats->cached_tokens = tree->stored_tokens;
    stats->used_bytes = stats->used_slots * slot_bytes(&cache->shape, cache->block_bytes);
    stats->hits = cache->hits;
    stats->misses = cache->misses;
    stats->evictions = tree->evictions;
    stats->n_pins = tree->n_pins;
    stats->pinned_slots = tree->n_pinned;
    memset(stats->opens, 0, sizeof(stats->opens));
    memset(stats->unfound_tokens, 0, sizeof(stats->unfound_tokens));
    memcpy(stats->opens, cache->opens, sizeof(cache->opens));
    memcpy(stats->unfound_tokens, cache->unfound, sizeof(cache->unfound));
    stats->read_bytes = cache->read_bytes;
    stats->read_bytes_unshared = cache->read_bytes_unshared;
    return CATTN_OK;
}

int cattn_cache_stats(const cattn_cache *cache, struct cattn_stats *stats)
{
    return CATTN_LOCKED(cache, get_stats(cache, stats));
}

#include "bare.h"

#include <stdlib.h>

struct cattn_store {
    int unused;
};

static int usable(void)
{
    return 1;
}

static const char *kernel_name(unsigned i)
{
    return i ? NULL : "bare";
}

static uint32_t default_threads(void)
{
    return 1;
}

static uint64_t block_bytes(const struct cattn_shape *shape)
{
    return shape->chunk_tokens;
}

static int open_store(const struct cattn_shape *shape, const char *kernel, struct cattn_store **store)
{
    (void)shape, (void)kernel;
    *store = malloc(sizeof **store);
    return *store ? CATTN_OK : CATTN_ENOMEM;
}

static void close_store(struct cattn_store *store)
{
    free(store);
}

static const char *kernel(const struct cattn_store *store, int *exact)
{
    (void)store;
    *exact = 1;
    return "bare";
}

static int reserve(struct cattn_store *store, const struct cattn_work_bounds *bounds)
{
    (void)store, (void)bounds;
    return CATTN_OK;
}

static void copy(struct cattn_store *store, uint32_t from, uint32_t to, uint32_t n_tokens)
{
    (void)store, (void)from, (void)to, (void)n_tokens;
}

static void clear(struct cattn_store *store, uint32_t slot)
{
    (void)store, (void)slot;
}

static uint64_t token_bytes(const struct cattn_shape *shape)
{
    (void)shape;
    return 0;
}

static void get(struct cattn_store *store, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin, uint32_t n,
                unsigned char *tokens)
{
    (void)store, (void)slot, (void)layer, (void)head, (void)begin, (void)n, (void)tokens;
}

static void put(struct cattn_store *store, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin, uint32_t n,
                const unsigned char *tokens)
{
    (void)store, (void)slot, (void)layer, (void)head, (void)begin, (void)n, (void)tokens;
}

static void plan(struct cattn_store *store, const struct cattn_work *work)
{
    (void)store, (void)work;
}

static int take_share(struct cattn_store *store, const struct cattn_work *work, const struct cattn_call *call,
                      uint32_t ith, uint32_t nth)
{
    (void)store, (void)work, (void)call, (void)ith, (void)nth;
    return CATTN_OK;
}

const struct cattn_backend bench_bare = {.name = "bare",
                                         .usable = usable,
                                         .kernel_name = kernel_name,
                                         .default_threads = default_threads,
                                         .block_bytes = block_bytes,
                                         .open = open_store,
                                         .close = close_store,
                                         .kernel = kernel,
                                         .reserve = reserve,
                                         .copy = copy,
                                         .clear = clear,
                                         .token_bytes = token_bytes,
                                         .get = get,
                                         .put = put,
                                         .plan = plan,
                                         .write = take_share,
                                         .attend = take_share};

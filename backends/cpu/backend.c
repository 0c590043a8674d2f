/* The CPU backend: joins pool, schedule and kernel. */
#include "backend.h"

#include <string.h>

#include "cpu.h"
#include "kernels.h"
#include "memory.h"
#include "plain.h"
#include "schedule.h"
#include "store.h"

struct cattn_store {
    struct cattn_pool pool;
    struct cattn_schedule schedule;
};

static int usable(void)
{
    return cattn_kernel_at(0) != NULL;
}

static const char *kernel_name(unsigned i)
{
    const struct cattn_kernel *kernel;
    const char *name = "";
    for (unsigned k = 0; (kernel = cattn_kernel_at(k)) != NULL; k++) {
        if (strcmp(name, kernel->name) == 0)
            continue;
        name = kernel->name;
        if (i-- == 0)
            return name;
    }
    return NULL;
}

static uint64_t block_bytes(const struct cattn_shape *shape)
{
    if (shape->kv_dtype > CATTN_I8)
        return 0;
    return cattn_layout_of(shape).block_bytes;
}

static int open_store(const struct cattn_shape *shape, const char *kernel_wanted, struct cattn_store **store)
{
    const struct cattn_kernel *kernel = cattn_kernel_find(kernel_wanted, shape);
    struct cattn_store *s;
    int status;
    if (!kernel)
        return CATTN_ENOTSUP;
    if (!(s = cattn_calloc(1, sizeof *s)))
        return CATTN_ENOMEM;
    status = cattn_pool_open(&s->pool, shape);
    if (status == CATTN_OK) {
        status = cattn_schedule_open(&s->schedule, kernel, &s->pool, shape);
        if (status != CATTN_OK)
            cattn_pool_close(&s->pool);
    }
    if (status != CATTN_OK) {
        cattn_free(s);
        return status;
    }
    *store = s;
    return CATTN_OK;
}

static void close_store(struct cattn_store *store)
{
    cattn_schedule_close(&store->schedule);
    cattn_pool_close(&store->pool);
    cattn_free(store);
}

static const char *kernel(const struct cattn_store *store, int *exact)
{
    *exact = store->schedule.kernel->exact;
    return store->schedule.kernel->name;
}

static int reserve(struct cattn_store *store, const struct cattn_work_bounds *bounds)
{
    return cattn_schedule_reserve(&store->schedule, bounds);
}

static void copy(struct cattn_store *store, uint32_t from, uint32_t to, uint32_t n_tokens)
{
    cattn_pool_copy(&store->pool, from, to, n_tokens);
}

static void clear_slot(struct cattn_store *store, uint32_t slot)
{
    cattn_pool_clear(&store->pool, slot);
}

static uint64_t token_bytes(const struct cattn_shape *shape)
{
    const struct cattn_layout layout = cattn_layout_of(shape);
    return cattn_plain_bytes(&layout);
}

static void get(struct cattn_store *store, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin, uint32_t n,
                unsigned char *tokens)
{
    cattn_pool_get(&store->pool, slot, layer, head, begin, n, tokens);
}

static void put(struct cattn_store *store, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin, uint32_t n,
                const unsigned char *tokens)
{
    cattn_pool_put(&store->pool, slot, layer, head, begin, n, tokens);
}

static void plan(struct cattn_store *store, const struct cattn_work *work)
{
    cattn_schedule_plan(&store->schedule, work);
}

static int write_layer(struct cattn_store *store, const struct cattn_work *work, const struct cattn_call *call,
                       uint32_t ith, uint32_t nth)
{
    cattn_schedule_write(&store->schedule, work, call, ith, nth);
    return CATTN_OK;
}

static int attend(struct cattn_store *store, const struct cattn_work *work, const struct cattn_call *call, uint32_t ith,
                  uint32_t nth)
{
    cattn_schedule_attend(&store->schedule, work, call, ith, nth);
    return CATTN_OK;
}

const struct cattn_pool *cattn_store_pool(const struct cattn_store *store)
{
    return &store->pool;
}

void cattn_store_fill_nan(struct cattn_store *store)
{
    memset(store->pool.bytes, 0xff, store->pool.n_bytes);
}

const struct cattn_backend cattn_backend_cpu = {.name = "cpu",
                                                .usable = usable,
                                                .kernel_name = kernel_name,
                                                .default_threads = cattn_cpu_count,
                                                .block_bytes = block_bytes,
                                                .open = open_store,
                                                .close = close_store,
                                                .kernel = kernel,
                                                .reserve = reserve,
                                                .copy = copy,
                                                .clear = clear_slot,
                                                .token_bytes = token_bytes,
                                                .get = get,
                                                .put = put,
                                                .plan = plan,
                                                .write = write_layer,
                                                .attend = attend};

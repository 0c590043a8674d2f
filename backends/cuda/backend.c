/* The CUDA backend: joins pool, plan and kernels. */
#include "backend.h"

#include <math.h>
#include <string.h>

#include "arrays.h"
#include "kernels.h"
#include "memory.h"
#include "queue.h"
#include "schedule.h"
#include "store.h"

#define MAX_POSITIONS    (UINT64_C(1) << 31)
#define LEAST_CAPABILITY 8  /* asynchronous copies to shared memory, bf16 */
#define POOL_PERCENT     80 /* of the memory that is free */

struct cattn_store {
    struct cattn_cuda_queue queue;
    struct cattn_cuda_pool pool;
    struct cattn_cuda_arrays arrays;
    struct cattn_cuda_schedule schedule;
    struct cattn_shape shape;
    bool is_fast; /* by tensor cores */
};

static const char *const kernel_names[] = {"mma", "general"};

/* ---- what this machine has */

static bool is_capable(int device)
{
    int major;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           major >= LEAST_CAPABILITY;
}

static int count_devices(void)
{
    int n;
    if (cudaGetDeviceCount(&n) == cudaSuccess)
        return n;
    (void)cudaGetLastError(); /* no driver, or no device */
    return 0;
}

static int usable(void)
{
    const int n = count_devices();
    for (int i = 0; i < n; i++) {
        if (is_capable(i))
            return 1;
    }
    return 0;
}

static const char *kernel_name(unsigned i)
{
    return i < sizeof(kernel_names) / sizeof(kernel_names[0]) && usable() ? kernel_names[i] : NULL;
}

static uint32_t default_threads(void)
{
    return 1; /* the caller's puts everything on the stream */
}

static uint64_t token_bytes(const struct cattn_shape *shape)
{
    return cattn_cuda_element_bytes(shape->kv_dtype) * ((uint64_t)shape->head_dim + shape->v_head_dim);
}

static uint64_t block_bytes(const struct cattn_shape *shape)
{
    if (shape->head_dim > CATTN_CUDA_MAX_HEAD_DIM || shape->v_head_dim > CATTN_CUDA_MAX_HEAD_DIM)
        return 0;
    return shape->chunk_tokens * token_bytes(shape);
}

static uint64_t free_bytes(const struct cattn_shape *shape)
{
    struct cattn_cuda_queue queue = {.device = (int)shape->device};
    size_t n_free = 0, total;
    if (shape->device >= (uint32_t)count_devices())
        return 0;
    const int previous = cattn_cuda_enter(&queue);
    if (previous >= 0 && !cattn_cuda_is_ok(&queue, cudaMemGetInfo(&n_free, &total)))
        n_free = 0;
    cattn_cuda_leave(&queue, previous);
    return n_free / 100 * POOL_PERCENT;
}

/* ---- open and close */

static bool choose_kernel(const struct cattn_shape *shape, const char *name, bool *is_fast)
{
    *is_fast = cattn_cuda_is_fast(shape->io_dtype, shape->kv_dtype, shape->head_dim, shape->v_head_dim);
    if (!name)
        return true;
    if (!strcmp(name, kernel_names[0]))
        return *is_fast;
    *is_fast = false;
    return !strcmp(name, kernel_names[1]);
}

/* Blocks of the attention kernel that the whole device runs at once. */
static int count_blocks(const struct cattn_shape *shape, uint32_t *n_blocks)
{
    int n_processors, n;
    int status =
        cattn_cuda_status(cudaDeviceGetAttribute(&n_processors, cudaDevAttrMultiProcessorCount, (int)shape->device));
    if (!status)
        status = cattn_cuda_status(cattn_cuda_prepare());
    if (!status)
        status = cattn_cuda_status(cattn_cuda_occupancy(shape->kv_dtype, shape->head_dim, &n));
    if (!status)
        *n_blocks = n > 0 && n_processors > 0 ? (uint32_t)n * (uint32_t)n_processors : 1;
    return status;
}

static int open_parts(struct cattn_store *store)
{
    const struct cattn_shape *shape = &store->shape;
    uint32_t n_blocks = 1;
    int status = count_blocks(shape, &n_blocks);
    if (!status)
        status = cattn_cuda_pool_open(&store->pool, &store->queue, shape);
    if (!status)
        status = cattn_cuda_arrays_open(&store->arrays, &store->queue, shape->n_heads, 16 + 2 * shape->n_layers);
    if (!status)
        status = cattn_cuda_schedule_open(&store->schedule, &store->queue, shape, n_blocks);
    return status;
}

/* What was opened, however far that went. */
static void close_store(struct cattn_store *store)
{
    struct cattn_cuda_queue *queue = &store->queue;
    const int previous = cattn_cuda_enter_last(queue);
    store->pool.queue = store->arrays.queue = store->schedule.queue = queue;
    cattn_cuda_is_ok(queue, cudaStreamSynchronize(queue->stream));
    cattn_cuda_schedule_close(&store->schedule);
    cattn_cuda_arrays_close(&store->arrays);
    cattn_cuda_pool_close(&store->pool);
    cattn_cuda_leave(queue, previous);
    cattn_free(store);
}

static int open_store(const struct cattn_shape *shape, const char *kernel_wanted, struct cattn_store **store)
{
    bool is_fast;
    if (!block_bytes(shape) || !choose_kernel(shape, kernel_wanted, &is_fast) ||
        (uint64_t)shape->n_slots * shape->chunk_tokens > MAX_POSITIONS || shape->device >= (uint32_t)count_devices() ||
        !is_capable((int)shape->device))
        return CATTN_ENOTSUP;
    struct cattn_store *made = cattn_calloc(1, sizeof(*made));
    if (!made)
        return CATTN_ENOMEM;
    made->queue = (struct cattn_cuda_queue){.device = (int)shape->device, .stream = shape->stream};
    made->shape = *shape;
    made->is_fast = is_fast;
    const int previous = cattn_cuda_enter(&made->queue);
    int status = previous < 0 ? CATTN_EDEVICE : open_parts(made);
    cattn_cuda_leave(&made->queue, previous);
    if (status)
        close_store(made);
    else
        *store = made;
    return status;
}

static const char *kernel(const struct cattn_store *store, int *exact)
{
    *exact = 0;
    return kernel_names[store->is_fast ? 0 : 1];
}

/* ---- what the device says */

static int status_of(const struct cattn_store *store)
{
    return atomic_load(&store->queue.failed) ? CATTN_EDEVICE : CATTN_OK;
}

static int sync_store(struct cattn_store *store)
{
    const int previous = cattn_cuda_enter(&store->queue);
    if (previous >= 0)
        cattn_cuda_is_ok(&store->queue, cudaStreamSynchronize(store->queue.stream));
    cattn_cuda_leave(&store->queue, previous);
    return status_of(store);
}

static uint64_t plan_number(const struct cattn_store *store)
{
    return store->schedule.number;
}

/* ---- steps */

static int reserve(struct cattn_store *store, const struct cattn_work_bounds *bounds)
{
    const int previous = cattn_cuda_enter(&store->queue);
    if (previous < 0)
        return CATTN_EDEVICE;
    int status = cattn_cuda_schedule_reserve(&store->schedule, bounds);
    if (status == CATTN_EDEVICE)
        atomic_store(&store->queue.failed, true); /* as all that is no lack of memory */
    cattn_cuda_leave(&store->queue, previous);
    return status ? status : status_of(store);
}

static void copy(struct cattn_store *store, uint32_t from, uint32_t to, uint32_t n_tokens)
{
    const int previous = cattn_cuda_enter(&store->queue);
    if (previous >= 0)
        cattn_cuda_pool_copy(&store->pool, from, to, n_tokens);
    cattn_cuda_leave(&store->queue, previous);
}

static void clear_slot(struct cattn_store *store, uint32_t slot)
{
    const int previous = cattn_cuda_enter(&store->queue);
    if (previous >= 0)
        cattn_cuda_pool_clear(&store->pool, slot);
    cattn_cuda_leave(&store->queue, previous);
}

static void get(struct cattn_store *store, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin, uint32_t n,
                unsigned char *tokens)
{
    const int previous = cattn_cuda_enter(&store->queue);
    if (previous >= 0)
        cattn_cuda_pool_get(&store->pool, slot, layer, head, begin, n, tokens);
    cattn_cuda_leave(&store->queue, previous);
}

static void put(struct cattn_store *store, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin, uint32_t n,
                const unsigned char *tokens)
{
    const int previous = cattn_cuda_enter(&store->queue);
    if (previous >= 0)
        cattn_cuda_pool_put(&store->pool, slot, layer, head, begin, n, tokens);
    cattn_cuda_leave(&store->queue, previous);
}

static void plan(struct cattn_store *store, const struct cattn_work *work)
{
    const int previous = cattn_cuda_enter(&store->queue);
    if (previous >= 0)
        cattn_cuda_schedule_plan(&store->schedule, work);
    cattn_cuda_leave(&store->queue, previous);
}

/* ---- layers */

static struct cattn_cuda_call make_call(const struct cattn_store *store, const struct cattn_call *call)
{
    const struct cattn_shape *shape = &store->shape;
    const struct cattn_variant *variant = &call->variant;
    return (struct cattn_cuda_call){.plan = store->schedule.plan,
                                    .pool = cattn_cuda_pool_layer(&store->pool, call->layer),
                                    .n_slots = shape->n_slots,
                                    .block_elements =
                                        (uint64_t)shape->chunk_tokens * (shape->head_dim + shape->v_head_dim),
                                    .chunk_tokens = shape->chunk_tokens,
                                    .n_heads = shape->n_heads,
                                    .n_kv_heads = shape->n_kv_heads,
                                    .head_dim = shape->head_dim,
                                    .v_head_dim = shape->v_head_dim,
                                    .io_dtype = shape->io_dtype,
                                    .kv_dtype = shape->kv_dtype,
                                    .scale = variant->scale > 0 ? variant->scale : (float)(1 / sqrt(shape->head_dim)),
                                    .softcap = variant->softcap,
                                    .window = variant->window,
                                    .n_sink_tokens = variant->n_sink_tokens,
                                    .q = call->q,
                                    .k = call->k,
                                    .v = call->v,
                                    .out = call->out,
                                    .lse = call->lse,
                                    .q_row = call->q_row,
                                    .q_head = call->q_head,
                                    .k_row = call->k_row,
                                    .k_head = call->k_head,
                                    .v_row = call->v_row,
                                    .v_head = call->v_head,
                                    .out_row = call->out_row,
                                    .out_head = call->out_head,
                                    .ml = store->schedule.buffers.ml,
                                    .o = store->schedule.buffers.o};
}

static int run_layer(struct cattn_store *store, const struct cattn_call *call, bool attends)
{
    struct cattn_cuda_queue *queue = &store->queue;
    struct cattn_cuda_call made = make_call(store, call);
    int status = cattn_cuda_arrays_find(&store->arrays, call->variant.alibi_slopes, &made.alibi_slopes);
    if (!status)
        status = cattn_cuda_arrays_find(&store->arrays, call->variant.sinks, &made.sinks);
    if (status)
        return status;
    if (call->k && !cattn_cuda_is_ok(queue, cattn_cuda_store(&made, queue->stream)))
        return CATTN_EDEVICE;
    if (attends && !cattn_cuda_is_ok(queue, cattn_cuda_attend(&made, store->is_fast, queue->stream)))
        return CATTN_EDEVICE;
    return CATTN_OK;
}

/* The device divides the work by itself: the first share is all of it. */
static int run_share(struct cattn_store *store, const struct cattn_call *call, bool attends, uint32_t ith)
{
    if (ith)
        return status_of(store);
    const int previous = cattn_cuda_enter(&store->queue);
    if (previous < 0)
        return CATTN_EDEVICE;
    const int status = run_layer(store, call, attends);
    cattn_cuda_leave(&store->queue, previous);
    return status ? status : status_of(store);
}

static int write_layer(struct cattn_store *store, const struct cattn_work *work, const struct cattn_call *call,
                       uint32_t ith, uint32_t nth)
{
    (void)work, (void)nth;
    return run_share(store, call, false, ith);
}

static int attend(struct cattn_store *store, const struct cattn_work *work, const struct cattn_call *call, uint32_t ith,
                  uint32_t nth)
{
    (void)work, (void)nth;
    return run_share(store, call, true, ith);
}

static const struct cattn_device_backend device = {
    .free_bytes = free_bytes, .status = status_of, .sync = sync_store, .plan_number = plan_number};

const struct cattn_backend cattn_backend_cuda = {.name = "cuda",
                                                 .device = &device,
                                                 .usable = usable,
                                                 .kernel_name = kernel_name,
                                                 .default_threads = default_threads,
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

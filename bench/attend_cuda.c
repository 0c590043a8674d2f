/* paged          each sequence over copies of its own
 * paged_shared   each sequence by itself over slots that are shared
 * chunk          what is shared is read once for all sequences
 * copy           the device's memory: as many bytes as chunk must read, half of them read and half written
 * matmul         its tensor cores (f32: its other units), by cuBLAS
 *
 * The first three differ in nothing but the work list.  A run is a number of calls, layer after layer, behind work that
 * takes longer than it takes to put them on the stream and that leaves nothing of a layer in the caches: its time is
 * the mean between two events, and does not depend on how fast this program is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "attend_cuda.h"
#include "attend_tree.h"
#include "harness.h"
#include "number.h"

static uint64_t last_level_cache(void)
{
    int bytes = 0;
    if (cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, 0) != cudaSuccess)
        return 0;
    return (uint64_t)bytes;
}

static uint64_t memory_available(void)
{
    size_t available = 0, all;
    return cudaMemGetInfo(&available, &all) == cudaSuccess ? available : 0;
}

/* ---- time ------------------------------------------------------------------------------------------------------- */

cudaError_t bench_timer_open(struct bench_timer *timer)
{
    cudaError_t error;

    timer->n_spoiled = (size_t)(2 * last_level_cache() + (1 << 20));
    error = cudaMalloc(&timer->spoiled, timer->n_spoiled);
    if (error == cudaSuccess)
        error = cudaEventCreate(&timer->start);
    if (error == cudaSuccess)
        error = cudaEventCreate(&timer->end);
    return error;
}

void bench_timer_close(struct bench_timer *timer)
{
    if (timer->start != NULL)
        (void)cudaEventDestroy(timer->start);
    if (timer->end != NULL)
        (void)cudaEventDestroy(timer->end);
    (void)cudaFree(timer->spoiled);
}

cudaError_t bench_timer_start(struct bench_timer *timer)
{
    const cudaError_t error = cudaMemsetAsync(timer->spoiled, 0, timer->n_spoiled, NULL);
    return error == cudaSuccess ? cudaEventRecord(timer->start, NULL) : error;
}

/* Seconds of a call; negative: something failed. */
double bench_timer_stop(struct bench_timer *timer)
{
    float milliseconds = 0.0f;

    if (cudaEventRecord(timer->end, NULL) != cudaSuccess || cudaEventSynchronize(timer->end) != cudaSuccess ||
        cudaEventElapsedTime(&milliseconds, timer->start, timer->end) != cudaSuccess)
        return -1.0;
    return (double)milliseconds * 1e-3 / BENCH_CALLS;
}

/* The layer of call i, when the last one is to be `layer`. */
static uint32_t layer_of(uint32_t layer, uint32_t i, uint32_t n_layers)
{
    return (layer + i + 1 + BENCH_CALLS * (n_layers - 1)) % n_layers;
}

/* ---- attention -------------------------------------------------------------------------------------------------- */

struct view {
    struct bench_tree *tree;
    const struct cattn_variant *attention;
    int share; /* of the work list */
    uint32_t n_layers;
    void *q, *out; /* on the device */
    void *host;    /* as much as one of them */
    size_t io_bytes;
    struct bench_timer timer;
};

static uint64_t unique(const struct bench_shape *shape)
{
    return bench_unique_bytes(shape, shape->dtype);
}

static uint64_t copied(const struct bench_shape *shape)
{
    return bench_copied_bytes(shape, shape->dtype);
}

static int fetch_output(const struct bench_setup *setup, const struct view *view)
{
    const size_t n = bench_q_floats(&setup->shape);

    if (cudaMemcpy(view->host, view->out, view->io_bytes, cudaMemcpyDeviceToHost) != cudaSuccess)
        return -1;
    for (size_t i = 0; i < n; i++)
        setup->out[i] = cattn_load(view->host, setup->shape.dtype, i);
    return 0;
}

static int attend(const struct bench_setup *setup, const struct view *view, uint32_t layer)
{
    struct bench_tree *tree = view->tree;
    struct cattn_call call = bench_tree_call(&setup->shape, layer);

    call.pass = ++tree->n_passes;
    call.variant = *view->attention;
    call.q = view->q;
    call.out = view->out;
    return tree->backend->attend(tree->store, &tree->work, &call, 0, 0);
}

static double run(struct bench_setup *setup, struct bench_instance *instance, uint32_t layer)
{
    struct view *view = instance->state;
    double seconds;

    if (bench_timer_start(&view->timer) != cudaSuccess)
        return -1.0;
    for (uint32_t i = 0; i < BENCH_CALLS; i++)
        if (attend(setup, view, layer_of(layer, i, view->n_layers)) != CATTN_OK)
            return -1.0;
    seconds = bench_timer_stop(&view->timer);
    return seconds >= 0.0 && fetch_output(setup, view) != 0 ? -1.0 : seconds;
}

static void turn(struct bench_setup *setup, struct bench_instance *instance)
{
    const struct view *view = instance->state;
    bench_tree_plan(view->tree, setup->shape.batch, view->share);
}

static void close_view(struct bench_setup *setup, struct bench_instance *instance)
{
    struct view *view = instance->state;

    bench_timer_close(&view->timer);
    (void)cudaFree(view->q);
    (void)cudaFree(view->out);
    free(view->host);
    bench_tree_drop(setup, view->tree);
    free(view);
}

static cudaError_t open_buffers(const struct bench_setup *setup, struct view *view)
{
    const size_t n = bench_q_floats(&setup->shape);
    cudaError_t error = cudaMalloc(&view->q, view->io_bytes);

    if (error == cudaSuccess)
        error = cudaMalloc(&view->out, view->io_bytes);
    for (size_t i = 0; error == cudaSuccess && i < n; i++)
        cattn_put(view->host, setup->shape.dtype, i, setup->q[i]);
    if (error == cudaSuccess)
        error = cudaMemcpy(view->q, view->host, view->io_bytes, cudaMemcpyHostToDevice);
    return error == cudaSuccess ? bench_timer_open(&view->timer) : error;
}

/* Weights and the output may be rounded to 16 bits. */
static const double tolerances[] = {[CATTN_F32] = 1e-5, [CATTN_F16] = 1e-2, [CATTN_BF16] = 1e-2};

static const char *open_view(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance,
                             struct bench_tree *tree, int share)
{
    const struct bench_shape *s = &setup->shape;
    struct view *view = calloc(1, sizeof *view);
    cudaError_t error;
    int exact;

    tree->users++;
    if (view == NULL) {
        bench_tree_drop(setup, tree);
        return cattn_strerror(CATTN_ENOMEM);
    }
    *view = (struct view){.tree = tree,
                          .attention = &instance->attention,
                          .share = share,
                          .n_layers = n_layers,
                          .io_bytes = bench_q_floats(s) * bench_dtype_bytes(s->dtype)};
    instance->state = view;
    instance->dtype = s->dtype;
    instance->tolerance = tolerances[s->dtype];
    snprintf(instance->kernel, sizeof instance->kernel, "%s", tree->backend->kernel(tree->store, &exact));
    view->host = malloc(view->io_bytes);
    error = view->host != NULL ? open_buffers(setup, view) : cudaErrorMemoryAllocation;
    if (error == cudaSuccess)
        return NULL;
    close_view(setup, instance);
    return cudaGetErrorString(error);
}

static const char *open_shared(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance, int share)
{
    const char *reason = NULL;

    if (setup->shared_tree == NULL)
        setup->shared_tree = bench_tree_open(&setup->shape, n_layers, 0, &reason);
    return setup->shared_tree == NULL ? reason : open_view(setup, n_layers, instance, setup->shared_tree, share);
}

static const char *open_chunk(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance)
{
    return open_shared(setup, n_layers, instance, 1);
}

static const char *open_paged_shared(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance)
{
    return open_shared(setup, n_layers, instance, 0);
}

static const char *open_paged(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance)
{
    const char *reason = NULL;
    struct bench_tree *tree = bench_tree_open(&setup->shape, n_layers, 1, &reason);
    return tree == NULL ? reason : open_view(setup, n_layers, instance, tree, 0);
}

static const struct bench_variant chunk = {"chunk", BENCH_ANY, unique, open_chunk, close_view, turn, run};
static const struct bench_variant paged = {"paged", BENCH_ANY, copied, open_paged, close_view, turn, run};
static const struct bench_variant paged_shared = {"paged_shared", BENCH_ANY, unique, open_paged_shared,
                                                  close_view,     turn,      run};

/* ---- what the device can do ------------------------------------------------------------------------------------- */

struct copier {
    char *memory; /* [layer][from, to] */
    size_t half;  /* of a layer, bytes */
    uint32_t n_layers;
    struct bench_timer timer;
};

static double run_copy(struct bench_setup *setup, struct bench_instance *instance, uint32_t layer)
{
    struct copier *copier = instance->state;

    (void)setup;
    if (bench_timer_start(&copier->timer) != cudaSuccess)
        return -1.0;
    for (uint32_t i = 0; i < BENCH_CALLS; i++) {
        char *from = copier->memory + 2 * copier->half * layer_of(layer, i, copier->n_layers);
        if (cudaMemcpyAsync(from + copier->half, from, copier->half, cudaMemcpyDeviceToDevice, NULL) != cudaSuccess)
            return -1.0;
    }
    return bench_timer_stop(&copier->timer);
}

static void close_copy(struct bench_setup *setup, struct bench_instance *instance)
{
    struct copier *copier = instance->state;

    (void)setup;
    bench_timer_close(&copier->timer);
    (void)cudaFree(copier->memory);
    free(copier);
}

static const char *open_copy(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance)
{
    const struct bench_shape seen = bench_seen(&setup->shape, &instance->attention);
    struct copier *copier = calloc(1, sizeof *copier);
    void *memory = NULL;
    cudaError_t error;

    if (copier == NULL)
        return cattn_strerror(CATTN_ENOMEM);
    instance->state = copier;
    instance->dtype = setup->shape.dtype;
    snprintf(instance->kernel, sizeof instance->kernel, "cudaMemcpy");
    copier->half = (size_t)unique(&seen) / 2;
    copier->n_layers = n_layers;
    error = cudaMalloc(&memory, 2 * copier->half * n_layers);
    copier->memory = memory;
    if (error == cudaSuccess)
        error = bench_timer_open(&copier->timer);
    if (error == cudaSuccess)
        return NULL;
    close_copy(setup, instance);
    return cudaGetErrorString(error);
}

static const struct bench_variant copy = {"copy", BENCH_NOTHING, unique, open_copy, close_copy, NULL, run_copy};

const struct bench_place bench_cuda = {
    .backend = "cuda",
    .variants = {[BENCH_PAGED] = &paged,
                 [BENCH_PAGED_SHARED] = &paged_shared,
                 [BENCH_CHUNK] = &chunk,
                 [BENCH_READ] = &copy,
                 [BENCH_FMA] = &bench_matmul},
    .last_level_cache = last_level_cache,
    .memory_available = memory_available,
};

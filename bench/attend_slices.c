/* fma and amx: arithmetic alone, in registers, for a fraction of a millisecond at a time.  What the multiplying units
 * give beside the other variants, in the same run; rows are compared with the one that their kernel multiplies in. */
#include <stdio.h>
#include <stdlib.h>

#include "attend.h"
#include "harness.h"
#include "simd.h"
#include "tiles.h"

static const double slice_seconds = 200e-6;

struct slice {
    double (*multiply_add)(size_t rounds); /* returns the operations done */
    size_t rounds;                         /* of a run, on every thread */
};

static uint64_t bytes(const struct bench_shape *shape)
{
    (void)shape;
    return 0;
}

static void multiply_share(void *context, uint32_t ith, uint32_t nth)
{
    const struct slice *slice = context;
    (void)ith, (void)nth;
    (void)slice->multiply_add(slice->rounds);
}

static double run(struct bench_setup *setup, struct bench_instance *instance, uint32_t layer)
{
    double start = bench_now();
    (void)layer;
    bench_parallel(setup->shape.threads, multiply_share, instance->state);
    return bench_now() - start;
}

/* Rounds that take about slice_seconds on one thread.  In the time of the thread: what others do does not count. */
static size_t choose_rounds(double (*multiply_add)(size_t rounds))
{
    for (size_t rounds = 64;; rounds *= 2) {
        double start = bench_thread_now(), seconds;
        (void)multiply_add(rounds);
        seconds = bench_thread_now() - start;
        if (seconds >= slice_seconds)
            return (size_t)((double)rounds * slice_seconds / seconds) + 1;
    }
}

static const char *open_slice(struct bench_setup *setup, struct bench_instance *instance,
                              double (*multiply_add)(size_t rounds))
{
    struct slice *slice = malloc(sizeof *slice);

    if (slice == NULL)
        return "no memory";
    slice->multiply_add = multiply_add;
    slice->rounds = choose_rounds(multiply_add);
    instance->state = slice;
    instance->operations = multiply_add(slice->rounds) * setup->shape.threads;
    return NULL;
}

static void close_slice(struct bench_setup *setup, struct bench_instance *instance)
{
    (void)setup;
    free(instance->state);
}

static const char *open_fma(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance)
{
    (void)n_layers;
    instance->dtype = CATTN_F32;
    snprintf(instance->kernel, sizeof instance->kernel, "%s", bench_simd()->name);
    return open_slice(setup, instance, bench_simd()->multiply_add);
}

static const char *open_amx(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance)
{
    const char *reason = bench_tiles_unusable();
    (void)n_layers;
    if (reason != NULL)
        return reason;
    instance->dtype = CATTN_BF16;
    snprintf(instance->kernel, sizeof instance->kernel, "amx");
    return open_slice(setup, instance, bench_tiles_multiply_add);
}

const struct bench_variant bench_fma = {"fma", BENCH_NOTHING, bytes, open_fma, close_slice, NULL, run};
const struct bench_variant bench_amx = {"amx", BENCH_NOTHING, bytes, open_amx, close_slice, NULL, run};

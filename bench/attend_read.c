/* read: the bytes that chunk must read once, read by the best of several readers.  What it found is checked, so that it
 * cannot have left any out. */
#include <stdio.h>
#include <stdlib.h>

#include "attend.h"
#include "harness.h"
#include "simd.h"

static const struct way {
    unsigned pages;
    int ahead;
    const char *name;
} ways[] = {
    {1, 0, "linear"},          {1, 1, "linear, prefetched"},
    {4, 0, "4 pages in step"}, {4, 1, "4 pages in step, prefetched"},
    {8, 0, "8 pages in step"}, {8, 1, "8 pages in step, prefetched"},
};
enum { N_WAYS = sizeof ways / sizeof ways[0] };

/* What a thread found in its part, in a cache line of its own. */
struct found {
    uint64_t words;
    char rest[64 - sizeof(uint64_t)];
};

struct reader {
    char *memory; /* [layer], each of whole lines */
    size_t layer_bytes, memory_bytes;
    char *layer; /* of this run */
    const struct way *way;
    struct found *found; /* [thread] */
    uint64_t *expected;  /* [layer] */
    uint32_t n_threads, n_layers;
};

static uint64_t bytes(const struct bench_shape *shape)
{
    return bench_unique_bytes(shape, shape->dtype);
}

/* Parts end at pages, but for the last. */
static void part(const struct reader *reader, uint32_t ith, uint32_t nth, size_t *begin, size_t *end)
{
    bench_share(reader->layer_bytes / 4096, ith, nth, begin, end);
    *begin *= 4096;
    *end = ith + 1 == nth ? reader->layer_bytes : *end * 4096;
}

/* A thread fills what it will read, so that the memory is near to it. */
static void fill_share(void *context, uint32_t ith, uint32_t nth)
{
    const struct reader *reader = context;
    uint64_t *words = (uint64_t *)(void *)reader->layer, all = 0, x;
    size_t begin, end;

    part(reader, ith, nth, &begin, &end);
    x = (uint64_t)(reader->layer - reader->memory) + begin;
    for (size_t i = begin / sizeof *words; i < end / sizeof *words; i++) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        words[i] = x;
        all ^= x;
    }
    reader->found[ith].words = all;
}

static void read_share(void *context, uint32_t ith, uint32_t nth)
{
    const struct reader *reader = context;
    size_t begin, end;

    part(reader, ith, nth, &begin, &end);
    reader->found[ith].words =
        bench_simd()->read(reader->layer + begin, end - begin, reader->way->pages, reader->way->ahead);
}

/* Runs the task on a layer; what the threads found together. */
static uint64_t on_layer(struct reader *reader, uint32_t layer, bench_task *task)
{
    uint64_t all = 0;

    reader->layer = reader->memory + layer * reader->layer_bytes;
    bench_parallel(reader->n_threads, task, reader);
    for (uint32_t i = 0; i < reader->n_threads; i++)
        all ^= reader->found[i].words;
    return all;
}

static double read_layer(struct reader *reader, uint32_t layer)
{
    double start = bench_now();
    int right = on_layer(reader, layer, read_share) == reader->expected[layer];
    return right ? bench_now() - start : -1.0;
}

/* The way with the least time of a few rounds. */
static void choose_way(struct reader *reader)
{
    const struct way *best = ways;
    double least = 0.0;
    uint32_t layer = 0;

    for (int round = 0; round < 4; round++)
        for (const struct way *way = ways; way < ways + N_WAYS; way++) {
            double seconds;
            reader->way = way;
            seconds = read_layer(reader, layer++ % reader->n_layers);
            if (least == 0.0 || seconds < least) {
                least = seconds;
                best = way;
            }
        }
    reader->way = best;
}

static void close_reader(struct bench_setup *setup, struct bench_instance *instance)
{
    struct reader *reader = instance->state;
    (void)setup;
    bench_free(reader->memory, reader->memory_bytes);
    free(reader->found);
    free(reader->expected);
    free(reader);
}

static const char *open_reader(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance)
{
    struct reader *reader = calloc(1, sizeof *reader);
    struct bench_shape seen;

    if (reader == NULL)
        return "no memory";
    instance->state = reader;
    reader->n_threads = setup->shape.threads;
    reader->n_layers = n_layers;
    seen = bench_seen(&setup->shape, &instance->attention);
    reader->layer_bytes = (bytes(&seen) + 63) / 64 * 64;
    reader->memory_bytes = n_layers * reader->layer_bytes;
    reader->memory = bench_alloc(reader->memory_bytes);
    reader->found = calloc(reader->n_threads, sizeof *reader->found);
    reader->expected = calloc(n_layers, sizeof *reader->expected);
    if (reader->memory == NULL || reader->found == NULL || reader->expected == NULL) {
        close_reader(setup, instance);
        return "no memory";
    }
    for (uint32_t i = 0; i < n_layers; i++)
        reader->expected[i] = on_layer(reader, i, fill_share);
    choose_way(reader);
    instance->dtype = setup->shape.dtype;
    snprintf(instance->kernel, sizeof instance->kernel, "%s", bench_simd()->name);
    snprintf(instance->detail, sizeof instance->detail, "%s", reader->way->name);
    return NULL;
}

static double run(struct bench_setup *setup, struct bench_instance *instance, uint32_t layer)
{
    (void)setup;
    return read_layer(instance->state, layer);
}

const struct bench_variant bench_read = {"read", BENCH_NOTHING, bytes, open_reader, close_reader, NULL, run};

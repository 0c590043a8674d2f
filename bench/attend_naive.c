/* naive: every sequence has all its K and V to itself, contiguous, in f32; scores, softmax and sums are three passes,
 * the first and the last through BLAS.  Threads get pairs of a sequence and a KV head. */
#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "attend_blas.h"
#include "harness.h"

static uint64_t bytes(const struct bench_shape *shape)
{
    return bench_copied_bytes(shape, CATTN_F32);
}

#ifdef HAVE_OPENBLAS
#  include <cblas.h>

#  include "simd.h"

struct naive {
    const struct bench_setup *setup;
    float *kv; /* [layer][sequence][kv_head][K, V][token][head_dim] */
    size_t kv_bytes;
    float *scores; /* [thread][heads of a KV head][token] */
    uint32_t n, group;
    uint32_t layer; /* of this run */
};

static float *place(const struct naive *naive, uint32_t layer, uint32_t sequence, uint32_t kv_head,
                    enum bench_what what)
{
    const struct bench_shape *s = &naive->setup->shape;
    size_t index = (((size_t)layer * s->batch + sequence) * s->kv_heads + kv_head) * 2 + (what == BENCH_V);
    return naive->kv + index * naive->n * s->head_dim;
}

static void fill_one(const struct naive *naive, uint32_t layer, uint32_t chunk, uint32_t head, enum bench_what what)
{
    const struct bench_shape *s = &naive->setup->shape;
    uint32_t shared = bench_shared_chunks(s), tokens = bench_chunk_tokens(s, chunk), owner = 0, index = chunk;
    size_t offset, size = (size_t)tokens * s->head_dim;
    float *first;

    if (chunk >= shared) {
        owner = (chunk - shared) / bench_private_chunks(s);
        index = shared + (chunk - shared) % bench_private_chunks(s);
    }
    offset = (size_t)index * s->chunk * s->head_dim;
    first = place(naive, layer, owner, head, what) + offset;
    for (uint32_t t = 0; t < tokens; t++)
        bench_data_row(s, layer, what, chunk, t, head, first + (size_t)t * s->head_dim);
    for (uint32_t i = 1; chunk < shared && i < s->batch; i++)
        memcpy(place(naive, layer, i, head, what) + offset, first, size * sizeof *first);
}

static void fill_chunk(void *state, uint32_t layer, uint32_t chunk)
{
    const struct naive *naive = state;
    for (uint32_t head = 0; head < naive->setup->shape.kv_heads; head++) {
        fill_one(naive, layer, chunk, head, BENCH_K);
        fill_one(naive, layer, chunk, head, BENCH_V);
    }
}

static void attend(const struct naive *naive, uint32_t sequence, uint32_t kv_head, float *scores)
{
    const struct bench_shape *s = &naive->setup->shape;
    const struct bench_simd *simd = bench_simd();
    const int n = (int)naive->n, d = (int)s->head_dim, group = (int)naive->group;
    const float *k = place(naive, naive->layer, sequence, kv_head, BENCH_K);
    const float *v = place(naive, naive->layer, sequence, kv_head, BENCH_V);
    size_t row = ((size_t)sequence * s->heads + (size_t)kv_head * naive->group) * s->head_dim;
    const float *q = naive->setup->q + row;
    float *out = naive->setup->out + row, scale = 1.0f / sqrtf((float)d);

    if (group == 1)
        cblas_sgemv(CblasRowMajor, CblasNoTrans, n, d, 1.0f, k, d, q, 1, 0.0f, scores, 1);
    else
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, group, n, d, 1.0f, q, d, k, d, 0.0f, scores, n);
    for (int i = 0; i < group; i++) {
        float *weights = scores + (size_t)i * naive->n;
        float sum = simd->row_exp(weights, naive->n, simd->row_max(weights, naive->n), scale);
        cblas_sscal(n, 1.0f / sum, weights, 1);
    }
    if (group == 1)
        cblas_sgemv(CblasRowMajor, CblasTrans, n, d, 1.0f, v, d, scores, 1, 0.0f, out, 1);
    else
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, group, d, n, 1.0f, scores, n, v, d, 0.0f, out, d);
}

static void attend_share(void *context, uint32_t ith, uint32_t nth)
{
    const struct naive *naive = context;
    const struct bench_shape *s = &naive->setup->shape;
    float *scores = naive->scores + (size_t)ith * naive->group * naive->n;
    size_t begin, end;

    bench_share((size_t)s->batch * s->kv_heads, ith, nth, &begin, &end);
    for (size_t i = begin; i < end; i++)
        attend(naive, (uint32_t)(i / s->kv_heads), (uint32_t)(i % s->kv_heads), scores);
}

static void close_naive(struct bench_setup *setup, struct bench_instance *instance)
{
    struct naive *naive = instance->state;
    (void)setup;
    bench_free(naive->kv, naive->kv_bytes);
    free(naive->scores);
    free(naive);
}

static const char *open_naive(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance)
{
    const struct bench_shape *s = &setup->shape;
    struct naive *naive;

    if (bench_blas_unusable() != NULL)
        return bench_blas_unusable();
    naive = calloc(1, sizeof *naive);
    if (naive == NULL)
        return "no memory";
    naive->setup = setup;
    naive->n = s->shared + s->private;
    naive->group = s->heads / s->kv_heads;
    naive->kv_bytes = n_layers * bytes(s);
    naive->kv = bench_alloc(naive->kv_bytes);
    naive->scores = malloc((size_t)s->threads * naive->group * naive->n * sizeof *naive->scores);
    instance->state = naive;
    if (naive->kv == NULL || naive->scores == NULL) {
        close_naive(setup, instance);
        return "no memory";
    }
    bench_fill(s, n_layers, fill_chunk, naive);
    instance->dtype = CATTN_F32;
    instance->tolerance = 1e-5;
    snprintf(instance->kernel, sizeof instance->kernel, "%s", bench_blas_name());
    return NULL;
}

static double run(struct bench_setup *setup, struct bench_instance *instance, uint32_t layer)
{
    struct naive *naive = instance->state;
    double start = bench_now();

    naive->layer = layer;
    bench_parallel(setup->shape.threads, attend_share, naive);
    return bench_now() - start;
}

const struct bench_variant bench_naive = {"naive", BENCH_PLAIN, bytes, open_naive, close_naive, NULL, run};
#else
static const char *open_naive(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance)
{
    (void)setup, (void)n_layers, (void)instance;
    return bench_blas_unusable();
}

const struct bench_variant bench_naive = {"naive", BENCH_PLAIN, bytes, open_naive, NULL, NULL, NULL};
#endif

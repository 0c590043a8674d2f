/* paper: the algorithm of the ChunkAttention paper's CPU kernel as its authors published it.  Every chunk, shared or
 * not, goes chunk-first: scores of all its sequences by one sgemm, weights, their sums of V by a second one, and the
 * partial result is merged into the sequences' totals.  With at least as many heads as threads a thread walks all
 * chunks of its heads; else tasks are pairs of a chunk and a head, and the merge is under a spin lock a head. */
#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "attend.h"
#include "attend_blas.h"
#include "harness.h"

static uint64_t bytes(const struct bench_shape *shape)
{
    return bench_unique_bytes(shape, CATTN_F32);
}

#ifdef HAVE_OPENBLAS
#  include <cblas.h>

#  include "simd.h"

/* Each lock in a cache line of its own. */
struct lock {
    atomic_flag taken;
    char rest[64 - sizeof(atomic_flag)];
};

/* A thread's partial result of one chunk and head. */
struct partial {
    float *scores; /* [sequence][token] */
    float *out;    /* [sequence][head_dim] */
    float *max, *sum;
};

struct paper {
    const struct bench_setup *setup;
    float *kv; /* [layer][chunk][K, V][kv_head][token][head_dim], each chunk full-sized */
    size_t kv_bytes;
    float *scratch; /* the threads' partials */
    size_t scratch_floats;
    float *max, *sum; /* [head][sequence] */
    struct lock *locks;
    uint32_t layer; /* of this run */
};

static float *place(const struct paper *paper, uint32_t layer, uint32_t chunk, enum bench_what what, uint32_t kv_head)
{
    const struct bench_shape *s = &paper->setup->shape;
    size_t index = (((size_t)layer * bench_chunks(s) + chunk) * 2 + (what == BENCH_V)) * s->kv_heads + kv_head;
    return paper->kv + index * s->chunk * s->head_dim;
}

static void fill_chunk(void *state, uint32_t layer, uint32_t chunk)
{
    const struct paper *paper = state;
    const struct bench_shape *s = &paper->setup->shape;
    uint32_t tokens = bench_chunk_tokens(s, chunk);

    for (uint32_t head = 0; head < s->kv_heads; head++)
        for (uint32_t t = 0; t < tokens; t++) {
            size_t offset = (size_t)t * s->head_dim;
            bench_data_row(s, layer, BENCH_K, chunk, t, head, place(paper, layer, chunk, BENCH_K, head) + offset);
            bench_data_row(s, layer, BENCH_V, chunk, t, head, place(paper, layer, chunk, BENCH_V, head) + offset);
        }
}

static struct partial partial_of(const struct paper *paper, uint32_t ith)
{
    const struct bench_shape *s = &paper->setup->shape;
    struct partial partial;

    partial.scores = paper->scratch + ith * paper->scratch_floats;
    partial.out = partial.scores + (size_t)s->batch * s->chunk;
    partial.max = partial.out + (size_t)s->batch * s->head_dim;
    partial.sum = partial.max + s->batch;
    return partial;
}

/* Sequences first .. first+n-1 over t tokens of one chunk and one head. */
static void attend(const struct paper *paper, uint32_t chunk, uint32_t head, uint32_t first, uint32_t n, uint32_t t,
                   const struct partial *partial)
{
    const struct bench_shape *s = &paper->setup->shape;
    const struct bench_simd *simd = bench_simd();
    uint32_t kv_head = head / (s->heads / s->kv_heads);
    const float *q = paper->setup->q + ((size_t)first * s->heads + head) * s->head_dim;
    const float *k = place(paper, paper->layer, chunk, BENCH_K, kv_head);
    const float *v = place(paper, paper->layer, chunk, BENCH_V, kv_head);
    const int d = (int)s->head_dim, rows = (int)n, tokens = (int)t;
    float scale = 1.0f / sqrtf((float)d);

    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, tokens, d, 1.0f, q, (int)s->heads * d, k, d, 0.0f,
                partial->scores, tokens);
    for (uint32_t i = 0; i < n; i++) {
        float *row = partial->scores + (size_t)i * t;
        partial->max[i] = simd->row_max(row, t);
        partial->sum[i] = simd->row_exp(row, t, partial->max[i], scale);
        partial->max[i] *= scale;
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, d, tokens, 1.0f, partial->scores, tokens, v, d, 0.0f,
                partial->out, d);
}

static void merge(const struct paper *paper, uint32_t head, uint32_t first, uint32_t n, const struct partial *partial)
{
    const struct bench_shape *s = &paper->setup->shape;

    for (uint32_t i = 0; i < n; i++) {
        size_t total = (size_t)head * s->batch + first + i;
        float *out = paper->setup->out + ((size_t)(first + i) * s->heads + head) * s->head_dim;
        const float *add = partial->out + (size_t)i * s->head_dim;
        float most = fmaxf(paper->max[total], partial->max[i]);
        float old_scale = expf(paper->max[total] - most), new_scale = expf(partial->max[i] - most);

        paper->max[total] = most;
        paper->sum[total] = paper->sum[total] * old_scale + partial->sum[i] * new_scale;
        for (uint32_t j = 0; j < s->head_dim; j++)
            out[j] = out[j] * old_scale + add[j] * new_scale;
    }
}

static void take(struct lock *lock)
{
    while (atomic_flag_test_and_set_explicit(&lock->taken, memory_order_acquire)) {
#  if defined(__x86_64__)
        __builtin_ia32_pause();
#  endif
    }
}

static void do_task(const struct paper *paper, uint32_t chunk, uint32_t head, const struct partial *partial,
                    struct lock *lock)
{
    const struct bench_shape *s = &paper->setup->shape;
    uint32_t shared = bench_shared_chunks(s), first = 0, n = s->batch;

    if (chunk >= shared) {
        first = (chunk - shared) / bench_private_chunks(s);
        n = 1;
    }
    attend(paper, chunk, head, first, n, bench_chunk_tokens(s, chunk), partial);
    if (lock != NULL)
        take(lock);
    merge(paper, head, first, n, partial);
    if (lock != NULL)
        atomic_flag_clear_explicit(&lock->taken, memory_order_release);
}

static void start_head(const struct paper *paper, uint32_t head)
{
    const struct bench_shape *s = &paper->setup->shape;

    for (uint32_t i = 0; i < s->batch; i++) {
        float *out = paper->setup->out + ((size_t)i * s->heads + head) * s->head_dim;
        paper->max[(size_t)head * s->batch + i] = -INFINITY;
        paper->sum[(size_t)head * s->batch + i] = 0.0f;
        for (uint32_t j = 0; j < s->head_dim; j++)
            out[j] = 0.0f;
    }
}

static void finish_head(const struct paper *paper, uint32_t head)
{
    const struct bench_shape *s = &paper->setup->shape;

    for (uint32_t i = 0; i < s->batch; i++) {
        float *out = paper->setup->out + ((size_t)i * s->heads + head) * s->head_dim;
        float factor = 1.0f / paper->sum[(size_t)head * s->batch + i];
        for (uint32_t j = 0; j < s->head_dim; j++)
            out[j] *= factor;
    }
}

static void whole_heads(void *context, uint32_t ith, uint32_t nth)
{
    const struct paper *paper = context;
    struct partial partial = partial_of(paper, ith);
    size_t begin, end;

    bench_share(paper->setup->shape.heads, ith, nth, &begin, &end);
    for (uint32_t head = (uint32_t)begin; head < end; head++) {
        start_head(paper, head);
        for (uint32_t chunk = 0; chunk < bench_chunks(&paper->setup->shape); chunk++)
            do_task(paper, chunk, head, &partial, NULL);
        finish_head(paper, head);
    }
}

static void tasks_under_locks(void *context, uint32_t ith, uint32_t nth)
{
    const struct paper *paper = context;
    uint32_t heads = paper->setup->shape.heads;
    struct partial partial = partial_of(paper, ith);
    size_t begin, end;

    bench_share((size_t)bench_chunks(&paper->setup->shape) * heads, ith, nth, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        uint32_t head = (uint32_t)(i % heads);
        do_task(paper, (uint32_t)(i / heads), head, &partial, &paper->locks[head]);
    }
}

static double run(struct bench_setup *setup, struct bench_instance *instance, uint32_t layer)
{
    struct paper *paper = instance->state;
    double start = bench_now();

    paper->layer = layer;
    if (setup->shape.heads >= setup->shape.threads) {
        bench_parallel(setup->shape.threads, whole_heads, paper);
    } else {
        for (uint32_t head = 0; head < setup->shape.heads; head++)
            start_head(paper, head);
        bench_parallel(setup->shape.threads, tasks_under_locks, paper);
        for (uint32_t head = 0; head < setup->shape.heads; head++)
            finish_head(paper, head);
    }
    return bench_now() - start;
}

static void close_paper(struct bench_setup *setup, struct bench_instance *instance)
{
    struct paper *paper = instance->state;
    (void)setup;
    bench_free(paper->kv, paper->kv_bytes);
    free(paper->scratch);
    free(paper->max);
    free(paper->sum);
    free(paper->locks);
    free(paper);
}

static const char *open_paper(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance)
{
    const struct bench_shape *s = &setup->shape;
    struct paper *paper;

    if (bench_blas_unusable() != NULL)
        return bench_blas_unusable();
    paper = calloc(1, sizeof *paper);
    if (paper == NULL)
        return "no memory";
    instance->state = paper;
    paper->setup = setup;
    paper->kv_bytes = sizeof(float) * 2 * n_layers * bench_chunks(s) * s->kv_heads * s->chunk * s->head_dim;
    paper->scratch_floats = (size_t)s->batch * (s->chunk + s->head_dim + 2) + 16;
    paper->kv = bench_alloc(paper->kv_bytes);
    paper->scratch = malloc(s->threads * paper->scratch_floats * sizeof *paper->scratch);
    paper->max = malloc((size_t)s->heads * s->batch * sizeof *paper->max);
    paper->sum = malloc((size_t)s->heads * s->batch * sizeof *paper->sum);
    paper->locks = malloc(s->heads * sizeof *paper->locks);
    if (paper->kv == NULL || paper->scratch == NULL || paper->max == NULL || paper->sum == NULL ||
        paper->locks == NULL) {
        close_paper(setup, instance);
        return "no memory";
    }
    for (uint32_t i = 0; i < s->heads; i++)
        atomic_flag_clear(&paper->locks[i].taken);
    bench_fill(s, n_layers, fill_chunk, paper);
    instance->dtype = CATTN_F32;
    instance->tolerance = 1e-5;
    snprintf(instance->kernel, sizeof instance->kernel, "%s", bench_blas_name());
    snprintf(instance->detail, sizeof instance->detail, "%s",
             s->heads >= s->threads ? "a thread a head" : "merged under locks");
    return NULL;
}

const struct bench_variant bench_paper = {"paper", BENCH_PLAIN, bytes, open_paper, close_paper, NULL, run};
#else
static const char *open_paper(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance)
{
    (void)setup, (void)n_layers, (void)instance;
    return bench_blas_unusable();
}

const struct bench_variant bench_paper = {"paper", BENCH_PLAIN, bytes, open_paper, NULL, NULL, NULL};
#endif

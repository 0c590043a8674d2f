#include <stdlib.h>

#include "attend_batch.h"
#include "harness.h"

enum { FILL_TOKENS = 512 };

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* The tokens of sequence number i: the document's, then its own. */
static void make_tokens(int32_t *tokens, const struct bench_group *group, uint32_t i)
{
    for (uint32_t t = 0; t < group->shared; t++)
        tokens[t] = (int32_t)t;
    for (uint32_t t = 0; t < group->private; t++)
        tokens[group->shared + t] = (int32_t)(((i + 1) << 16) + t);
}

struct cattn_io bench_batch_io(const struct bench_batch *batch, int with_kv)
{
    struct cattn_io io = {
        .size = sizeof io,
        .q = batch->q,
        .k = with_kv ? batch->k : NULL,
        .v = with_kv ? batch->v : NULL,
        .out = batch->out,
    };
    return io;
}

/* K and V of a step's rows, in all layers; what is attended then does not matter to anyone. */
static int store_step(struct bench_batch *batch, struct cattn_item *item)
{
    const struct cattn_io io = bench_batch_io(batch, 1);
    int status = cattn_step_begin(batch->step, item, 1);

    for (uint32_t layer = 0; status == CATTN_OK && layer < batch->n_layers; layer++)
        status = cattn_step_write(batch->step, layer, &io);
    return status == CATTN_OK ? cattn_step_end(batch->step) : status;
}

static int add_sequence(struct bench_batch *batch, const struct bench_group *group, uint32_t i)
{
    const uint32_t n = group->shared + group->private;
    struct cattn_item item = {0};
    size_t done;
    int status;

    make_tokens(batch->tokens, group, i);
    status = cattn_seq_open(batch->cache, NULL, 0, batch->tokens, n, &item.seq, &done);
    while (status == CATTN_OK && done < n) {
        item.tokens = batch->tokens + done;
        item.n_tokens = n - done < FILL_TOKENS ? (uint32_t)(n - done) : FILL_TOKENS;
        status = store_step(batch, &item);
        done += item.n_tokens;
    }
    batch->items[i].seq = item.seq;
    return status;
}

static int open_cache(struct bench_batch *batch, const struct bench_shape *s, uint64_t n_tokens)
{
    struct cattn_config config = {
        .size = sizeof config,
        .backend = "cpu",
        .kernel = s->kernel,
        .n_layers = batch->n_layers,
        .n_heads = s->heads,
        .n_kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .chunk_tokens = s->chunk,
        .kv_dtype = s->dtype,
        .max_tokens = n_tokens,
        .n_threads = s->threads,
    };
    int status = cattn_cache_create(&config, &batch->cache);
    return status == CATTN_OK ? cattn_step_create(batch->cache, &batch->step) : status;
}

/* Numbers of both signs, not small. */
static float *make_floats(size_t n)
{
    float *floats = malloc(n * sizeof *floats);
    uint32_t x = 1;

    for (size_t i = 0; floats != NULL && i < n; i++) {
        x = x * UINT32_C(1664525) + UINT32_C(1013904223);
        floats[i] = (float)(int32_t)x * 0x1p-30f;
    }
    return floats;
}

static int make_buffers(struct bench_batch *batch, const struct bench_shape *s, uint32_t most_tokens)
{
    const size_t rows = larger(batch->n_sequences, FILL_TOKENS), kv = rows * s->kv_heads * s->head_dim;

    batch->items = calloc(batch->n_sequences, sizeof *batch->items);
    batch->tokens = calloc(larger(most_tokens, batch->n_sequences), sizeof *batch->tokens);
    batch->q = make_floats(rows * s->heads * s->head_dim);
    batch->out = make_floats(rows * s->heads * s->head_dim);
    batch->k = make_floats(kv);
    batch->v = make_floats(kv);
    return batch->items != NULL && batch->tokens != NULL && batch->q != NULL && batch->out != NULL &&
                   batch->k != NULL && batch->v != NULL
               ? CATTN_OK
               : CATTN_ENOMEM;
}

int bench_batch_open(struct bench_batch *batch, const struct bench_shape *s, const struct bench_group *groups,
                     uint32_t n_groups, uint64_t memory)
{
    uint32_t shared = 0, private = 0, longest = 0, i = 0;
    struct bench_shape all = *s;
    int status;

    *batch = (struct bench_batch){0};
    for (const struct bench_group *group = groups; group < groups + n_groups; group++) {
        batch->n_sequences += group->n;
        shared = larger(shared, group->shared);
        longest = larger(longest, group->shared + group->private);
        private += group->n * group->private;
    }
    all.batch = 1;
    all.shared = shared;
    all.private = private;
    batch->layer_bytes = bench_unique_bytes(&all, s->dtype);
    batch->n_layers = (uint32_t)((memory + batch->layer_bytes - 1) / batch->layer_bytes);
    status = make_buffers(batch, s, longest);
    if (status == CATTN_OK)
        status = open_cache(batch, s, (uint64_t)shared + private + (3 * batch->n_sequences + 1) * s->chunk);
    for (const struct bench_group *group = groups; group < groups + n_groups; group++)
        for (uint32_t j = 0; status == CATTN_OK && j < group->n; j++)
            status = add_sequence(batch, group, i++);
    if (status != CATTN_OK)
        bench_batch_close(batch);
    return status;
}

void bench_batch_close(struct bench_batch *batch)
{
    cattn_cache_destroy(batch->cache);
    free(batch->items);
    free(batch->tokens);
    free(batch->q);
    free(batch->k);
    free(batch->v);
    free(batch->out);
    *batch = (struct bench_batch){0};
}

int bench_batch_begin(struct bench_batch *batch)
{
    for (uint32_t i = 0; i < batch->n_sequences; i++) {
        batch->tokens[i] = (int32_t)i;
        batch->items[i].tokens = &batch->tokens[i];
        batch->items[i].n_tokens = 1;
    }
    return cattn_step_begin(batch->step, batch->items, batch->n_sequences);
}

#include <stdlib.h>

#include "attend_tree.h"
#include "harness.h"

void bench_tree_release(struct bench_tree *tree)
{
    if (tree->store != NULL)
        tree->backend->close(tree->store);
    cattn_work_release(&tree->work);
    free(tree->paths);
    free(tree->slots);
    free(tree);
}

static struct cattn_shape store_shape(const struct bench_shape *s, uint32_t n_layers, int is_copied)
{
    uint32_t each = bench_shared_chunks(s) + bench_private_chunks(s);
    struct cattn_shape shape = {
        .n_layers = n_layers,
        .n_heads = s->heads,
        .n_kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .v_head_dim = s->head_dim,
        .chunk_tokens = s->chunk,
        .io_dtype = CATTN_F32,
        .kv_dtype = s->dtype,
        .n_slots = is_copied ? s->batch * each : bench_chunks(s),
        .n_threads = s->threads,
    };
    return shape;
}

static int tree_paths(struct bench_tree *tree, const struct bench_shape *s)
{
    uint32_t n = tree->n_path_chunks;

    tree->paths = calloc(s->batch, sizeof *tree->paths);
    tree->slots = calloc((size_t)s->batch * n, sizeof *tree->slots);
    if (tree->paths == NULL || tree->slots == NULL)
        return CATTN_ENOMEM;
    for (uint32_t i = 0; i < s->batch; i++) {
        uint32_t *slots = tree->slots + (size_t)i * n;
        for (uint32_t j = 0; j < n; j++)
            slots[j] = tree->copied ? i * n + j : bench_sequence_chunk(s, i, j);
        tree->paths[i] = (struct cattn_work_path){slots, n, s->rows, (uint64_t)s->shared + s->private - s->rows};
    }
    return CATTN_OK;
}

static int tree_reserve(struct bench_tree *tree, const struct bench_shape *s)
{
    struct cattn_work_bounds bounds = {
        .n_rows = s->batch * s->rows > s->chunk ? s->batch * s->rows : s->chunk,
        .max_tokens = (uint64_t)s->shared + s->private,
    };
    int status = cattn_work_reserve(&tree->work, s->batch, (size_t)s->batch * tree->n_path_chunks, s->batch);
    return status == CATTN_OK ? tree->backend->reserve(tree->store, &bounds) : status;
}

struct cattn_call bench_tree_call(const struct bench_shape *s, uint32_t layer)
{
    struct cattn_call call = {
        .layer = layer,
        .q_row = (size_t)s->heads * s->head_dim,
        .q_head = s->head_dim,
        .k_row = (size_t)s->kv_heads * s->head_dim,
        .k_head = s->head_dim,
        .v_row = (size_t)s->kv_heads * s->head_dim,
        .v_head = s->head_dim,
        .out_row = (size_t)s->heads * s->head_dim,
        .out_head = s->head_dim,
    };
    return call;
}

/* The work list that stores one chunk in each slot that holds it. */
static void list_writes(struct bench_tree *tree, const struct bench_shape *s, uint32_t chunk)
{
    uint32_t tokens = bench_chunk_tokens(s, chunk), shared = bench_shared_chunks(s);
    uint32_t first = 0, n = tree->copied ? s->batch : 1, index = chunk;
    struct cattn_work_path path = {.n_chunks = 1, .n_rows = tokens, .position = 0};

    if (chunk >= shared) {
        first = (chunk - shared) / bench_private_chunks(s);
        n = 1;
        index = shared + (chunk - shared) % bench_private_chunks(s);
    }
    path.slots = tree->paths[first].slots + index;
    cattn_work_build(&tree->work, &path, 1, 0);
    for (uint32_t i = first; i < first + n; i++) {
        struct cattn_work_write write = {.slot = tree->paths[i].slots[index], .begin = 0, .end = tokens, .row = 0};
        cattn_work_add_write(&tree->work, &write);
    }
    tree->backend->plan(tree->store, &tree->work);
}

/* One chunk of several layers on its way into the store. */
struct filling {
    struct bench_tree *tree;
    const struct bench_shape *shape;
    uint32_t chunk, first_layer, n_layers;
    float *k, *v; /* [layer][token][kv_head][head_dim] */
    size_t layer_floats;
};

static void make_rows(void *context, uint32_t ith, uint32_t nth)
{
    const struct filling *f = context;
    const struct bench_shape *s = f->shape;
    size_t rows = (size_t)bench_chunk_tokens(s, f->chunk) * s->kv_heads, begin, end;

    bench_share(rows * f->n_layers, ith, nth, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        uint32_t layer = (uint32_t)(i / rows), token = (uint32_t)(i % rows / s->kv_heads);
        uint32_t head = (uint32_t)(i % s->kv_heads);
        size_t to = layer * f->layer_floats + i % rows * s->head_dim;
        bench_data_row(s, f->first_layer + layer, BENCH_K, f->chunk, token, head, f->k + to);
        bench_data_row(s, f->first_layer + layer, BENCH_V, f->chunk, token, head, f->v + to);
    }
}

static void store_rows(void *context, uint32_t ith, uint32_t nth)
{
    const struct filling *f = context;

    for (uint32_t i = 0; i < f->n_layers; i++) {
        struct cattn_call call = bench_tree_call(f->shape, f->first_layer + i);
        call.k = f->k + i * f->layer_floats;
        call.v = f->v + i * f->layer_floats;
        (void)f->tree->backend->write(f->tree->store, &f->tree->work, &call, ith, nth); /* what fails is found wrong */
    }
}

static int tree_fill(struct bench_tree *tree, const struct bench_shape *s, uint32_t n_layers)
{
    const uint32_t most = n_layers < 16 ? n_layers : 16;
    const size_t floats = (size_t)s->chunk * s->kv_heads * s->head_dim;
    struct filling f = {
        .tree = tree,
        .shape = s,
        .layer_floats = floats,
        .k = malloc(most * floats * sizeof(float)),
        .v = malloc(most * floats * sizeof(float)),
    };
    int status = f.k != NULL && f.v != NULL ? CATTN_OK : CATTN_ENOMEM;

    for (; status == CATTN_OK && f.chunk < bench_chunks(s); f.chunk++) {
        list_writes(tree, s, f.chunk);
        for (f.first_layer = 0; f.first_layer < n_layers; f.first_layer += f.n_layers) {
            f.n_layers = n_layers - f.first_layer < most ? n_layers - f.first_layer : most;
            bench_parallel(s->threads, make_rows, &f);
            bench_parallel(s->threads, store_rows, &f);
        }
    }
    free(f.k);
    free(f.v);
    return status;
}

struct bench_tree *bench_tree_open(const struct bench_shape *s, uint32_t n_layers, int is_copied, const char **reason)
{
    struct bench_tree *tree = calloc(1, sizeof *tree);
    struct cattn_shape shape = store_shape(s, n_layers, is_copied);
    int status;

    if (tree == NULL) {
        *reason = cattn_strerror(CATTN_ENOMEM);
        return NULL;
    }
    tree->backend = cattn_backend_find("cpu");
    tree->copied = is_copied;
    tree->n_path_chunks = bench_shared_chunks(s) + bench_private_chunks(s);
    status = cattn_work_init(&tree->work, shape.n_slots, s->chunk);
    if (status == CATTN_OK)
        status = tree_paths(tree, s);
    if (status == CATTN_OK && tree->backend->block_bytes(&shape) == 0)
        status = CATTN_ENOTSUP;
    if (status == CATTN_OK)
        status = tree->backend->open(&shape, s->kernel, &tree->store);
    if (status == CATTN_OK)
        status = tree_reserve(tree, s);
    if (status == CATTN_OK)
        status = tree_fill(tree, s, n_layers);
    if (status != CATTN_OK) {
        *reason = cattn_strerror(status);
        bench_tree_release(tree);
        return NULL;
    }
    return tree;
}

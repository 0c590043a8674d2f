#include <stdlib.h>
#include <string.h>

#include "attend_tree.h"
#include "harness.h"
#include "number.h"

void bench_tree_drop(struct bench_setup *setup, struct bench_tree *tree)
{
    if (--tree->users > 0)
        return;
    if (setup->shared_tree == tree)
        setup->shared_tree = NULL;
    bench_tree_release(tree);
}

void bench_tree_plan(struct bench_tree *tree, uint32_t n, int share)
{
    cattn_work_build(&tree->work, tree->paths, n, share);
    tree->backend->plan(tree->store, &tree->work);
}

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
        .io_dtype = strcmp(s->backend, "cpu") == 0 ? CATTN_F32 : s->dtype,
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
        .n_items = s->batch,
        .n_chunks = (uint64_t)s->batch * tree->n_path_chunks,
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

/* The sequences that hold a chunk in slots of their own, and where on their paths it is. */
struct place_of_chunk {
    uint32_t first, end, index;
};

static struct place_of_chunk find_chunk(const struct bench_tree *tree, const struct bench_shape *s, uint32_t chunk)
{
    const uint32_t shared = bench_shared_chunks(s), each = bench_private_chunks(s);
    struct place_of_chunk place = {0, tree->copied ? s->batch : 1, chunk};

    if (chunk >= shared) {
        place.first = (chunk - shared) / each;
        place.end = place.first + 1;
        place.index = shared + (chunk - shared) % each;
    }
    return place;
}

/* The work list that stores one chunk in each slot that holds it. */
static void list_writes(struct bench_tree *tree, const struct bench_shape *s, uint32_t chunk)
{
    const struct place_of_chunk place = find_chunk(tree, s, chunk);
    const uint32_t tokens = bench_chunk_tokens(s, chunk);
    struct cattn_work_path path = {.n_chunks = 1, .n_rows = tokens, .position = 0};

    path.slots = tree->paths[place.first].slots + place.index;
    cattn_work_build(&tree->work, &path, 1, 0);
    for (uint32_t i = place.first; i < place.end; i++) {
        struct cattn_work_write write = {.slot = tree->paths[i].slots[place.index], .begin = 0, .end = tokens};
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

/* A chunk of one layer as a file of prefixes has it, heads after each other, in whole granules: the rest is zeros. */
struct tokens {
    const struct bench_shape *shape;
    uint32_t layer, chunk, n; /* tokens */
    size_t token_bytes;
    unsigned char *bytes;
};

static void make_tokens(void *context, uint32_t ith, uint32_t nth)
{
    const struct tokens *t = context;
    const struct bench_shape *s = t->shape;
    const uint32_t n = bench_chunk_tokens(s, t->chunk);
    float *row = malloc(s->head_dim * sizeof *row);
    size_t begin, end;

    bench_share(s->kv_heads, ith, nth, &begin, &end);
    for (size_t i = begin * t->n; row != NULL && i < end * t->n; i++) {
        unsigned char *token = t->bytes + i * t->token_bytes;
        const uint32_t head = (uint32_t)(i / t->n), at = (uint32_t)(i % t->n);
        memset(token, 0, t->token_bytes);
        for (int what = BENCH_K; at < n && what <= BENCH_V; what++) {
            bench_data_row(s, t->layer, (enum bench_what)what, t->chunk, at, head, row);
            cattn_store_row(token, s->dtype, (size_t)what * s->head_dim, row, s->head_dim);
        }
    }
    free(row);
}

static void put_tokens(struct bench_tree *tree, const struct tokens *t, uint32_t slot)
{
    for (uint32_t head = 0; head < t->shape->kv_heads; head++)
        tree->backend->put(tree->store, slot, t->layer, head, 0, t->n, t->bytes + head * t->n * t->token_bytes);
}

/* Where K and V are not taken from host memory, they are put where they belong. */
static int tree_put(struct bench_tree *tree, const struct bench_shape *s, uint32_t n_layers)
{
    struct tokens t = {.shape = s, .token_bytes = (size_t)2 * s->head_dim * bench_dtype_bytes(s->dtype)};

    t.bytes = malloc(s->kv_heads * s->chunk * t.token_bytes);
    if (t.bytes == NULL)
        return CATTN_ENOMEM;
    for (; t.chunk < bench_chunks(s); t.chunk++) {
        const struct place_of_chunk place = find_chunk(tree, s, t.chunk);
        t.n = (bench_chunk_tokens(s, t.chunk) + 31) / 32 * 32;
        for (t.layer = 0; t.layer < n_layers; t.layer++) {
            bench_parallel(s->threads, make_tokens, &t);
            for (uint32_t i = place.first; i < place.end; i++)
                put_tokens(tree, &t, tree->paths[i].slots[place.index]);
        }
    }
    free(t.bytes);
    return CATTN_OK;
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
    tree->backend = cattn_backend_find(s->backend);
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
        status = tree->backend->device != NULL ? tree_put(tree, s, n_layers) : tree_fill(tree, s, n_layers);
    if (status != CATTN_OK) {
        *reason = cattn_strerror(status);
        bench_tree_release(tree);
        return NULL;
    }
    return tree;
}

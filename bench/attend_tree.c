/* chunk, paged and paged_shared: the library's own kernel over three layouts and orders.
 *
 * chunk         what the sequences share is stored once, and its chunks are folded into the states of all of them (the
 *               two-phase partition)
 * paged         every sequence has copies of its own (PagedAttention)
 * paged_shared  stored once, but each sequence goes through it by itself (PagedAttention with aliased blocks)
 *
 * They differ in nothing but the work list, and go through the backend as a step of the library does.  The paged ones
 * run in the better of two orders: all sequences of a head before the next head, or all heads of a sequence before the
 * next sequence. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "backend.h"
#include "harness.h"
#include "work.h"

/* A store, filled. */
struct bench_tree {
    const struct cattn_backend *backend;
    struct cattn_store *store;
    struct cattn_work work;
    struct cattn_work_path *paths; /* [sequence] */
    uint32_t *slots;               /* of the paths */
    uint32_t n_path_chunks;        /* of each */
    int copied;                    /* slots of its own for every sequence */
    uint32_t users;
    uint32_t n_passes; /* attends so far: each has its number */
};

/* What a variant does with it. */
struct view {
    struct bench_tree *tree;
    const struct cattn_variant *attention;
    int share;          /* of the work list */
    int sequence_outer; /* order */
};

static uint64_t unique(const struct bench_shape *shape)
{
    return bench_unique_bytes(shape, shape->dtype);
}

static uint64_t copied(const struct bench_shape *shape)
{
    return bench_copied_bytes(shape, shape->dtype);
}

/* ---- the store -------------------------------------------------------------------------------------------------- */

static void tree_release(struct bench_tree *tree)
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
        tree->paths[i] = (struct cattn_work_path){slots, n, 1, (uint64_t)s->shared + s->private - 1};
    }
    return CATTN_OK;
}

static int tree_reserve(struct bench_tree *tree, const struct bench_shape *s)
{
    struct cattn_work_bounds bounds = {
        .n_rows = s->batch > s->chunk ? s->batch : s->chunk,
        .max_tokens = (uint64_t)s->shared + s->private,
    };
    int status = cattn_work_reserve(&tree->work, s->batch, (size_t)s->batch * tree->n_path_chunks, s->batch);
    return status == CATTN_OK ? tree->backend->reserve(tree->store, &bounds) : status;
}

static struct cattn_call call_for(const struct bench_shape *s, uint32_t layer)
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
        struct cattn_call call = call_for(f->shape, f->first_layer + i);
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

static struct bench_tree *tree_open(const struct bench_shape *s, uint32_t n_layers, int is_copied, const char **reason)
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
        tree_release(tree);
        return NULL;
    }
    return tree;
}

/* ---- attention -------------------------------------------------------------------------------------------------- */

/* The backend plans for the list that is attended next. */
static void plan(const struct view *view, uint32_t first, uint32_t n)
{
    struct bench_tree *tree = view->tree;
    cattn_work_build(&tree->work, tree->paths + first, n, view->share);
    tree->backend->plan(tree->store, &tree->work);
}

static double attend(const struct bench_setup *setup, const struct view *view, uint32_t layer, uint32_t first_row)
{
    struct bench_tree *tree = view->tree;
    struct cattn_call call = call_for(&setup->shape, layer);
    double start;

    call.pass = ++tree->n_passes;
    call.variant = *view->attention;
    call.q = setup->q + first_row * call.q_row;
    call.out = setup->out + first_row * call.out_row;
    start = bench_now();
    if (tree->backend->attend(tree->store, &tree->work, &call, 0, 0) != CATTN_OK)
        return -1.0;
    return bench_now() - start;
}

/* Planning is not counted: an engine would have kept the plans. */
static double attend_in_turn(const struct bench_setup *setup, const struct view *view, uint32_t layer)
{
    double seconds = 0.0;

    for (uint32_t i = 0; i < setup->shape.batch; i++) {
        double one;
        plan(view, i, 1);
        one = attend(setup, view, layer, i);
        if (one < 0.0)
            return one;
        seconds += one;
    }
    return seconds;
}

static double run_view(const struct bench_setup *setup, const struct view *view, uint32_t layer)
{
    return view->sequence_outer ? attend_in_turn(setup, view, layer) : attend(setup, view, layer, 0);
}

static double run(struct bench_setup *setup, struct bench_instance *instance, uint32_t layer)
{
    return run_view(setup, instance->state, layer);
}

static void turn(struct bench_setup *setup, struct bench_instance *instance)
{
    const struct view *view = instance->state;
    if (!view->sequence_outer)
        plan(view, 0, setup->shape.batch);
}

/* The order with the least time of three rounds. */
static void choose_order(struct bench_setup *setup, struct bench_instance *instance, uint32_t n_layers)
{
    struct view *view = instance->state;
    double least[2] = {INFINITY, INFINITY};
    uint32_t layer = 0;

    for (int round = 0; round < 3; round++)
        for (view->sequence_outer = 0; view->sequence_outer < 2; view->sequence_outer++) {
            turn(setup, instance);
            least[view->sequence_outer] = fmin(least[view->sequence_outer], run_view(setup, view, layer++ % n_layers));
        }
    view->sequence_outer = least[1] < least[0];
    snprintf(instance->detail, sizeof instance->detail, "%s outermost (%.0f us, else %.0f us)",
             view->sequence_outer ? "sequence" : "head", least[view->sequence_outer] * 1e6,
             least[!view->sequence_outer] * 1e6);
}

/* Releases a tree that no variant uses. */
static void tree_drop(struct bench_setup *setup, struct bench_tree *tree)
{
    if (tree->users > 0)
        return;
    if (setup->shared_tree == tree)
        setup->shared_tree = NULL;
    tree_release(tree);
}

/* Of 16-bit numbers weights may be rounded, of i8 queries too. */
static const double tolerances[] = {[CATTN_F32] = 1e-5, [CATTN_F16] = 1e-2, [CATTN_BF16] = 1e-2, [CATTN_I8] = 3e-2};

static const char *open_view(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance,
                             struct bench_tree *tree, int share)
{
    struct view *view = calloc(1, sizeof *view);
    int exact;

    if (view == NULL) {
        tree_drop(setup, tree);
        return cattn_strerror(CATTN_ENOMEM);
    }
    view->tree = tree;
    view->attention = &instance->attention;
    view->share = share;
    tree->users++;
    instance->state = view;
    instance->dtype = setup->shape.dtype;
    instance->tolerance = tolerances[setup->shape.dtype];
    snprintf(instance->kernel, sizeof instance->kernel, "%s", tree->backend->kernel(tree->store, &exact));
    if (!share)
        choose_order(setup, instance, n_layers);
    return NULL;
}

static void close_view(struct bench_setup *setup, struct bench_instance *instance)
{
    struct view *view = instance->state;

    view->tree->users--;
    tree_drop(setup, view->tree);
    free(view);
}

static const char *open_shared(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance, int share)
{
    const char *reason = NULL;

    if (setup->shared_tree == NULL)
        setup->shared_tree = tree_open(&setup->shape, n_layers, 0, &reason);
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
    struct bench_tree *tree = tree_open(&setup->shape, n_layers, 1, &reason);
    return tree == NULL ? reason : open_view(setup, n_layers, instance, tree, 0);
}

const struct bench_variant bench_chunk = {"chunk", BENCH_ANY, unique, open_chunk, close_view, turn, run};
const struct bench_variant bench_paged = {"paged", BENCH_ANY, copied, open_paged, close_view, turn, run};
const struct bench_variant bench_paged_shared = {"paged_shared", BENCH_ANY, unique, open_paged_shared,
                                                 close_view,     turn,      run};

/* chunk, paged and paged_shared: the library's own kernel over three layouts and orders.
 *
 * chunk         what the sequences share is stored once, and its chunks are folded into the states of all of them (the
 *               two-phase partition)
 * uncut         the same, but states are not cut at span ends: what the promise of equal bits costs
 * paged         every sequence has copies of its own (PagedAttention)
 * paged_shared  stored once, but each sequence goes through it by itself (PagedAttention with aliased blocks)
 *
 * They differ in nothing but the work list, and go through the backend as a step of the library does.  The paged ones
 * run in the best of three orders: all sequences of a head before the next head; the same, but through a part of the
 * head that the second-level cache holds before the next part; all heads of a sequence before the next sequence. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "attend.h"
#include "attend_tree.h"
#include "harness.h"

/* In which the paged ones go through it. */
enum order { HEADS, SEQUENCES, TILES, N_ORDERS };

/* What a variant does with it. */
struct view {
    struct bench_tree *tree;
    const struct cattn_backend *backend; /* that attends */
    const struct cattn_variant *attention;
    int share; /* of the work list */
    enum order order;
    uint32_t tile_chunks;         /* of one sequence after another */
    struct cattn_work tiled;      /* the list of the order TILES */
    struct cattn_work_run *tiles; /* its runs */
};

static uint64_t unique(const struct bench_shape *shape)
{
    return bench_unique_bytes(shape, shape->dtype);
}

static uint64_t copied(const struct bench_shape *shape)
{
    return bench_copied_bytes(shape, shape->dtype);
}

/* Chunks of a head that the second-level cache holds, with room for the rest. */
static uint32_t choose_tile(const struct bench_shape *s)
{
    struct bench_shape chunk = *s;
    uint64_t n;

    chunk.batch = chunk.kv_heads = 1;
    chunk.shared = s->chunk;
    chunk.private = 0;
    n = bench_second_level_cache() / 4 / bench_unique_bytes(&chunk, s->dtype);
    return n > 0 ? (uint32_t)n : 1;
}

/* Runs of a few chunks: those at the same place of all sequences before the next. */
static void cut_into_tiles(struct view *view)
{
    const struct cattn_work *work = &view->tree->work;
    struct cattn_work_run *tile = view->tiles;

    for (uint32_t first = 0; first < view->tree->n_path_chunks; first += view->tile_chunks)
        for (const struct cattn_work_run *run = work->runs; run < work->runs + work->n_runs; run++) {
            const uint32_t rest = run->n_chunks - first;
            *tile = *run;
            tile->first_chunk += first;
            tile->slots += first;
            tile->n_chunks = rest < view->tile_chunks ? rest : view->tile_chunks;
            tile++;
        }
    view->tiled = *work;
    view->tiled.runs = view->tiles;
    view->tiled.n_runs = (size_t)(tile - view->tiles);
}

static const struct cattn_work *work_of(const struct view *view)
{
    return view->order == TILES ? &view->tiled : &view->tree->work;
}

/* The backend plans for the list that is attended next. */
static void plan(struct view *view, uint32_t first, uint32_t n)
{
    struct bench_tree *tree = view->tree;
    cattn_work_build(&tree->work, tree->paths + first, n, view->share);
    if (view->order == TILES)
        cut_into_tiles(view);
    tree->backend->plan(tree->store, work_of(view));
}

static double attend(const struct bench_setup *setup, const struct view *view, uint32_t layer, uint32_t first_row)
{
    struct bench_tree *tree = view->tree;
    struct cattn_call call = bench_tree_call(&setup->shape, layer);
    double start;

    call.pass = ++tree->n_passes;
    call.variant = *view->attention;
    call.q = setup->q + first_row * call.q_row;
    call.out = setup->out + first_row * call.out_row;
    start = bench_now();
    if (view->backend->attend(tree->store, work_of(view), &call, 0, 0) != CATTN_OK)
        return -1.0;
    return bench_now() - start;
}

/* Planning is not counted: an engine would have kept the plans. */
static double attend_in_turn(const struct bench_setup *setup, struct view *view, uint32_t layer)
{
    double seconds = 0.0;

    for (uint32_t i = 0; i < setup->shape.batch; i++) {
        double one;
        plan(view, i, 1);
        one = attend(setup, view, layer, i * setup->shape.rows);
        if (one < 0.0)
            return one;
        seconds += one;
    }
    return seconds;
}

static double run_view(const struct bench_setup *setup, struct view *view, uint32_t layer)
{
    return view->order == SEQUENCES ? attend_in_turn(setup, view, layer) : attend(setup, view, layer, 0);
}

static double run(struct bench_setup *setup, struct bench_instance *instance, uint32_t layer)
{
    return run_view(setup, instance->state, layer);
}

static void turn(struct bench_setup *setup, struct bench_instance *instance)
{
    struct view *view = instance->state;
    if (view->order != SEQUENCES)
        plan(view, 0, setup->shape.batch);
}

/* The order with the least time of three rounds.  Where nothing is shared tiles are not seen twice. */
static void choose_order(struct bench_setup *setup, struct bench_instance *instance, uint32_t n_layers)
{
    static const char *const names[N_ORDERS] = {"head", "sequence", "tile of a head"};
    struct view *view = instance->state;
    const int n = view->tree->copied ? TILES : N_ORDERS;
    double least[N_ORDERS] = {INFINITY, INFINITY, INFINITY};
    enum order best = HEADS;
    uint32_t layer = 0;

    for (int round = 0; round < 3; round++)
        for (int order = 0; order < n; order++) {
            view->order = (enum order)order;
            turn(setup, instance);
            least[order] = fmin(least[order], run_view(setup, view, layer++ % n_layers));
            best = least[order] < least[best] ? (enum order)order : best;
        }
    view->order = best;
    snprintf(instance->detail, sizeof instance->detail, "%s outermost (%.0f us; head %.0f, sequence %.0f)", names[best],
             least[best] * 1e6, least[HEADS] * 1e6, least[SEQUENCES] * 1e6);
}

/* Of 16-bit numbers weights may be rounded, of i8 queries too. */
static const double tolerances[] = {[CATTN_F32] = 1e-5, [CATTN_F16] = 1e-2, [CATTN_BF16] = 1e-2, [CATTN_I8] = 5e-3};

static const char *open_view(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance,
                             struct bench_tree *tree, int share)
{
    struct view *view = calloc(1, sizeof *view);
    struct cattn_work_run *tiles = calloc((size_t)setup->shape.batch * tree->n_path_chunks, sizeof *tiles);
    int exact;

    tree->users++;
    if (view == NULL || tiles == NULL) {
        free(view);
        free(tiles);
        bench_tree_drop(setup, tree);
        return cattn_strerror(CATTN_ENOMEM);
    }
    view->tree = tree;
    view->backend = tree->backend;
    view->tiles = tiles;
    view->tile_chunks = choose_tile(&setup->shape);
    view->attention = &instance->attention;
    view->share = share;
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

    bench_tree_drop(setup, view->tree);
    free(view->tiles);
    free(view);
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

static const char *open_uncut(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance)
{
    const char *reason = open_shared(setup, n_layers, instance, 1);
    if (reason == NULL)
        ((struct view *)instance->state)->backend = &bench_backend_uncut;
    return reason;
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

const struct bench_variant bench_chunk = {"chunk", BENCH_ANY, unique, open_chunk, close_view, turn, run};
const struct bench_variant bench_uncut = {"uncut", BENCH_ANY, unique, open_uncut, close_view, turn, run};
const struct bench_variant bench_paged = {"paged", BENCH_ANY, copied, open_paged, close_view, turn, run};
const struct bench_variant bench_paged_shared = {"paged_shared", BENCH_ANY, unique, open_paged_shared,
                                                 close_view,     turn,      run};

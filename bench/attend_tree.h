/* The library's store of K and V, filled for a shape: with what the sequences share once, or with a copy for each. */
#ifndef BENCH_ATTEND_TREE_H
#define BENCH_ATTEND_TREE_H

#include "attend.h"
#include "backend.h"
#include "work.h"

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

/* uncut.c */
extern const struct cattn_backend bench_backend_uncut;

/* NULL: *reason says why.  The tree has no users then, nor after it was opened. */
struct bench_tree *bench_tree_open(const struct bench_shape *shape, uint32_t n_layers, int is_copied,
                                   const char **reason);
void bench_tree_release(struct bench_tree *tree);

/* Plans for a step of the first n sequences, shared or each by itself.  It is attended next. */
void bench_tree_plan(struct bench_tree *tree, uint32_t n, int share);

/* A user has gone: released if it was the last. */
void bench_tree_drop(struct bench_setup *setup, struct bench_tree *tree);

/* The call of the backend for a layer, without buffers. */
struct cattn_call bench_tree_call(const struct bench_shape *shape, uint32_t layer);

#endif

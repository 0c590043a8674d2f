/* A backend without floats.  K of a token is one number, its cell, which the caller hands over as io->k (uint64_t, one
 * per row).  Cells are never cleared when a slot is taken, and a write clears as little as the store's rule allows, so
 * that whoever reads a stale, foreign or half-written cell is found out. */
#ifndef TESTS_CELLS_H
#define TESTS_CELLS_H

#include "backend.h"

struct cattn_store {
    struct cattn_shape shape;
    uint32_t granule;
    uint64_t *cells;        /* [layer][slot][chunk_tokens] */
    const uint64_t **ideal; /* what each item of the step must read in the layer that is attended; NULL: not checked */
    const char *fault;      /* the first rule that was broken */
    unsigned n_reserved, n_plans, n_writes, n_attends;
    uint64_t structure; /* of the last plan */
};

extern const struct cattn_backend cells_backend;

struct cattn_shape cells_shape(uint32_t n_slots, uint32_t chunk_tokens, uint32_t n_layers);

uint64_t *cells_of(const struct cattn_store *store, uint32_t layer, uint32_t slot);

#endif

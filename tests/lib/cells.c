#include "cells.h"

#include "memory.h"

#include <string.h>

struct cattn_shape cells_shape(uint32_t n_slots, uint32_t chunk_tokens, uint32_t n_layers)
{
    return (struct cattn_shape){.n_layers = n_layers,
                                .n_heads = 1,
                                .n_kv_heads = 1,
                                .head_dim = 1,
                                .v_head_dim = 1,
                                .chunk_tokens = chunk_tokens,
                                .n_slots = n_slots,
                                .n_threads = 1};
}

uint64_t *cells_of(const struct cattn_store *store, uint32_t layer, uint32_t slot)
{
    return store->cells + ((size_t)layer * store->shape.n_slots + slot) * store->shape.chunk_tokens;
}

static void blame(struct cattn_store *store, int wrong, const char *what)
{
    if (wrong && !store->fault)
        store->fault = what;
}

static int usable(void)
{
    return 1;
}

static const char *kernel_name(unsigned i)
{
    return i ? NULL : "cells";
}

static uint32_t default_threads(void)
{
    return 1;
}

static uint64_t block_bytes(const struct cattn_shape *shape)
{
    return shape->chunk_tokens * sizeof(uint64_t);
}

static int open_store(const struct cattn_shape *shape, const char *kernel, struct cattn_store **store)
{
    if (kernel && strcmp(kernel, "cells"))
        return CATTN_ENOTSUP;
    struct cattn_store *made = cattn_calloc(1, sizeof(*made));
    uint64_t *cells = cattn_calloc((size_t)shape->n_layers * shape->n_slots, shape->chunk_tokens * sizeof(*cells));
    if (!made || !cells) {
        cattn_free(made);
        cattn_free(cells);
        return CATTN_ENOMEM;
    }
    *made = (struct cattn_store){.shape = *shape, .granule = shape->chunk_tokens, .cells = cells};
    *store = made;
    return CATTN_OK;
}

static void close_store(struct cattn_store *store)
{
    cattn_free(store->cells);
    cattn_free(store);
}

static const char *kernel(const struct cattn_store *store, int *exact)
{
    (void)store;
    *exact = 1;
    return "cells";
}

/* Allocates for a moment, so that a test can make it fail. */
static int reserve(struct cattn_store *store, const struct cattn_work_bounds *bounds)
{
    void *memory = cattn_malloc(bounds->n_rows, 1);
    if (!memory)
        return CATTN_ENOMEM;
    cattn_free(memory);
    store->n_reserved++;
    return CATTN_OK;
}

static uint32_t granule_end(const struct cattn_store *store, uint32_t n)
{
    return (n + store->granule - 1) / store->granule * store->granule;
}

static void clear(uint64_t *cells, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++)
        cells[i] = 0;
}

static void copy(struct cattn_store *store, uint32_t from, uint32_t to, uint32_t n_tokens)
{
    for (uint32_t layer = 0; layer < store->shape.n_layers; layer++) {
        uint64_t *cells = cells_of(store, layer, to);
        memcpy(cells, cells_of(store, layer, from), n_tokens * sizeof(*cells));
        clear(cells, n_tokens, granule_end(store, n_tokens));
    }
}

static void clear_slot(struct cattn_store *store, uint32_t slot)
{
    for (uint32_t layer = 0; layer < store->shape.n_layers; layer++)
        clear(cells_of(store, layer, slot), 0, store->shape.chunk_tokens);
}

static uint64_t token_bytes(const struct cattn_shape *shape)
{
    (void)shape;
    return sizeof(uint64_t);
}

static void get(struct cattn_store *store, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin, uint32_t n,
                unsigned char *tokens)
{
    (void)head;
    memcpy(tokens, cells_of(store, layer, slot) + begin, n * sizeof(uint64_t));
}

static void put(struct cattn_store *store, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin, uint32_t n,
                const unsigned char *tokens)
{
    (void)head;
    memcpy(cells_of(store, layer, slot) + begin, tokens, n * sizeof(uint64_t));
}

/* Every item meets its chunks in ascending order and all of them; runs of several items come first. */
static void check_runs(struct cattn_store *store, const struct cattn_work *work)
{
    int private_ones = 0;
    uint64_t shared = 0, unshared = 0, total = 0;
    for (size_t i = 0; i < work->n_runs; i++) {
        blame(store, work->runs[i].n_items > 1 && private_ones, "a shared run after a private one");
        private_ones |= work->runs[i].n_items == 1;
    }
    for (uint32_t item = 0; item < work->n_items; item++) {
        const struct cattn_work_item *x = &work->items[item];
        uint32_t chunk = 0;
        for (size_t i = 0; i < work->n_runs; i++) {
            const struct cattn_work_run *run = &work->runs[i];
            for (uint32_t k = 0; k < run->n_items; k++) {
                if (work->run_items[run->items + k] == item) {
                    blame(store, run->first_chunk != chunk, "the runs of an item leave a gap");
                    chunk += run->n_chunks;
                }
            }
        }
        uint64_t c = work->chunk_tokens, length = x->position + x->n_rows;
        blame(store, chunk != (length + c - 1) / c, "the runs of an item do not cover it");
        total += length;
    }
    cattn_work_count_tokens(work, 0, 0, &shared, &unshared);
    blame(store, unshared != total || shared > unshared, "tokens read");
}

static void plan(struct cattn_store *store, const struct cattn_work *work)
{
    store->n_plans++;
    store->structure = work->structure;
    check_runs(store, work);
}

/* A write that opens a granule clears the rest of it; any other clears from its last token to the end of what was ever
 * written there. */
static int write_cells(struct cattn_store *store, const struct cattn_work *work, const struct cattn_call *call,
                       uint32_t ith, uint32_t nth)
{
    (void)nth;
    if (ith)
        return CATTN_OK;
    store->n_writes++;
    for (size_t i = 0; i < work->n_writes; i++) {
        const struct cattn_work_write *write = &work->writes[i];
        uint64_t *cells = cells_of(store, call->layer, write->slot);
        uint32_t end = granule_end(store, write->end);
        int opens = write->begin + store->granule <= end;
        memcpy(cells + write->begin, (const uint64_t *)call->k + write->row,
               (write->end - write->begin) * sizeof(*cells));
        clear(cells, write->end, opens || write->dirty > end ? end : write->dirty);
    }
    return CATTN_OK;
}

static void check_item(struct cattn_store *store, const struct cattn_work *work, uint32_t layer, uint32_t item,
                       const uint64_t *ideal)
{
    uint64_t c = work->chunk_tokens, length = work->items[item].position + work->items[item].n_rows;
    for (size_t i = 0; i < work->n_runs; i++) {
        const struct cattn_work_run *run = &work->runs[i];
        uint32_t k = 0;
        while (k < run->n_items && work->run_items[run->items + k] != item)
            k++;
        if (k == run->n_items)
            continue;
        for (uint32_t chunk = 0; chunk < run->n_chunks; chunk++) {
            const uint64_t *cells = cells_of(store, layer, work->slots[run->slots + chunk]);
            uint64_t first = (run->first_chunk + chunk) * c;
            uint32_t n = (uint32_t)(length - first < c ? length - first : c);
            blame(store, memcmp(cells, ideal + first, n * sizeof(*cells)) != 0, "a row reads wrong cells");
            for (uint32_t t = n; t < granule_end(store, n); t++)
                blame(store, cells[t] != 0, "a stale cell in the last granule");
        }
    }
}

static int attend(struct cattn_store *store, const struct cattn_work *work, const struct cattn_call *call, uint32_t ith,
                  uint32_t nth)
{
    if (call->k)
        write_cells(store, work, call, ith, nth);
    if (ith)
        return CATTN_OK;
    store->n_attends++;
    for (uint32_t item = 0; store->ideal && item < work->n_items; item++)
        check_item(store, work, call->layer, item, store->ideal[item]);
    return CATTN_OK;
}

const struct cattn_backend cells_backend = {.name = "cells",
                                            .usable = usable,
                                            .kernel_name = kernel_name,
                                            .default_threads = default_threads,
                                            .block_bytes = block_bytes,
                                            .open = open_store,
                                            .close = close_store,
                                            .kernel = kernel,
                                            .reserve = reserve,
                                            .copy = copy,
                                            .clear = clear_slot,
                                            .token_bytes = token_bytes,
                                            .get = get,
                                            .put = put,
                                            .plan = plan,
                                            .write = write_cells,
                                            .attend = attend};

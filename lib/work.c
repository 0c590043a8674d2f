#include "work.h"

#include "chunkattention.h"
#include "memory.h"

/* A slot stands for the whole path above it.  So the number of items that see it tells where their common path ends:
 * along a path the sets of items only shrink, and equal numbers mean equal sets. */
struct cattn_work_scratch {
    uint32_t *n_items; /* of each slot; 0 between calls */
    uint32_t *run;     /* of each slot that begins a shared run: its number + 1; 0 between calls */
    size_t items, runs, slots, run_items, writes; /* capacities */
    size_t n_slots, n_run_items;                  /* used */
};

int cattn_work_init(struct cattn_work *work, uint32_t n_slots, uint32_t chunk_tokens)
{
    *work = (struct cattn_work){.chunk_tokens = chunk_tokens};
    work->scratch = cattn_calloc(1, sizeof(*work->scratch));
    if (work->scratch) {
        work->scratch->n_items = cattn_calloc(n_slots, sizeof(uint32_t));
        work->scratch->run = cattn_calloc(n_slots, sizeof(uint32_t));
        if (work->scratch->n_items && work->scratch->run)
            return CATTN_OK;
    }
    cattn_work_release(work);
    return CATTN_ENOMEM;
}

void cattn_work_release(struct cattn_work *work)
{
    if (work->scratch) {
        cattn_free(work->scratch->n_items);
        cattn_free(work->scratch->run);
    }
    cattn_free(work->scratch);
    cattn_free(work->items);
    cattn_free(work->runs);
    cattn_free(work->slots);
    cattn_free(work->run_items);
    cattn_free(work->writes);
    *work = (struct cattn_work){0};
}

int cattn_work_reserve(struct cattn_work *work, size_t n_items, size_t n_chunks, size_t n_writes)
{
    struct cattn_work_scratch *scratch = work->scratch;
    /* each run ends where an item ends or where items part, and has a chunk */
    size_t n_runs = 2 * n_items < n_chunks ? 2 * n_items : n_chunks;
    void *items = cattn_grow(work->items, &scratch->items, n_items, sizeof(*work->items));
    work->items = items ? items : work->items;
    void *runs = cattn_grow(work->runs, &scratch->runs, n_runs, sizeof(*work->runs));
    work->runs = runs ? runs : work->runs;
    void *slots = cattn_grow(work->slots, &scratch->slots, n_chunks, sizeof(*work->slots));
    work->slots = slots ? slots : work->slots;
    void *run_items = cattn_grow(work->run_items, &scratch->run_items, n_chunks, sizeof(*work->run_items));
    work->run_items = run_items ? run_items : work->run_items;
    void *writes = cattn_grow(work->writes, &scratch->writes, n_writes, sizeof(*work->writes));
    work->writes = writes ? writes : work->writes;
    return items && runs && slots && run_items && writes ? CATTN_OK : CATTN_ENOMEM;
}

static void number_rows(struct cattn_work *work, const struct cattn_work_path *paths, size_t n_items)
{
    work->n_items = (uint32_t)n_items;
    work->n_rows = 0;
    for (size_t i = 0; i < n_items; i++) {
        work->items[i] = (struct cattn_work_item){work->n_rows, paths[i].n_rows, paths[i].position};
        work->n_rows += paths[i].n_rows;
    }
}

/* Chunks from `first` on that as many items see. */
static uint32_t run_length(const struct cattn_work *work, const struct cattn_work_path *path, uint32_t first)
{
    const uint32_t *n_items = work->scratch->n_items;
    uint32_t end = first + 1;
    while (end < path->n_chunks && n_items[path->slots[end]] == n_items[path->slots[first]])
        end++;
    return end - first;
}

/* Adds a run and room for its items, which come later. */
static struct cattn_work_run *add_run(struct cattn_work *work, const struct cattn_work_path *path, uint32_t first,
                                      uint32_t n_chunks, uint32_t n_items)
{
    struct cattn_work_scratch *scratch = work->scratch;
    struct cattn_work_run *run = &work->runs[work->n_runs++];
    *run = (struct cattn_work_run){
        .first_chunk = first, .n_chunks = n_chunks, .slots = scratch->n_slots, .items = scratch->n_run_items};
    for (uint32_t i = 0; i < n_chunks; i++)
        work->slots[scratch->n_slots++] = path->slots[first + i];
    scratch->n_run_items += n_items;
    return run;
}

static void add_item(struct cattn_work *work, struct cattn_work_run *run, size_t item)
{
    work->run_items[run->items + run->n_items++] = (uint32_t)item;
}

static void count_items(struct cattn_work *work, const struct cattn_work_path *paths, size_t n_items)
{
    for (size_t i = 0; i < n_items; i++) {
        for (uint32_t chunk = 0; chunk < paths[i].n_chunks; chunk++)
            work->scratch->n_items[paths[i].slots[chunk]]++;
    }
}

static void forget_items(struct cattn_work *work, const struct cattn_work_path *paths, size_t n_items)
{
    for (size_t i = 0; i < n_items; i++) {
        for (uint32_t chunk = 0; chunk < paths[i].n_chunks; chunk++)
            work->scratch->n_items[paths[i].slots[chunk]] = work->scratch->run[paths[i].slots[chunk]] = 0;
    }
}

/* The runs of several items on one item's path; the first item to come by makes them. */
static void add_shared_runs(struct cattn_work *work, const struct cattn_work_path *path, size_t item)
{
    const struct cattn_work_scratch *scratch = work->scratch;
    uint32_t first = 0;
    while (first < path->n_chunks && scratch->n_items[path->slots[first]] > 1) {
        uint32_t *known = &scratch->run[path->slots[first]];
        if (!*known) {
            add_run(work, path, first, run_length(work, path, first), scratch->n_items[path->slots[first]]);
            *known = (uint32_t)work->n_runs;
        }
        struct cattn_work_run *run = &work->runs[*known - 1];
        add_item(work, run, item);
        first += run->n_chunks;
    }
}

/* What lies behind the shared runs of an item. */
static void add_private_run(struct cattn_work *work, const struct cattn_work_path *path, size_t item)
{
    const struct cattn_work_scratch *scratch = work->scratch;
    uint32_t first = 0;
    while (first < path->n_chunks && scratch->n_items[path->slots[first]] > 1)
        first += work->runs[scratch->run[path->slots[first]] - 1].n_chunks;
    if (first < path->n_chunks)
        add_item(work, add_run(work, path, first, path->n_chunks - first, 1), item);
}

void cattn_work_build(struct cattn_work *work, const struct cattn_work_path *paths, size_t n_items, int share)
{
    work->structure++;
    work->revision++;
    work->n_runs = work->n_writes = 0;
    work->scratch->n_slots = work->scratch->n_run_items = 0;
    number_rows(work, paths, n_items);
    if (share) {
        count_items(work, paths, n_items);
        for (size_t i = 0; i < n_items; i++)
            add_shared_runs(work, &paths[i], i);
    }
    for (size_t i = 0; i < n_items; i++)
        add_private_run(work, &paths[i], i);
    if (share)
        forget_items(work, paths, n_items);
}

void cattn_work_advance(struct cattn_work *work, const struct cattn_work_path *paths)
{
    work->revision++;
    for (uint32_t i = 0; i < work->n_items; i++)
        work->items[i].position = paths[i].position;
}

void cattn_work_clear_writes(struct cattn_work *work)
{
    work->n_writes = 0;
}

void cattn_work_add_write(struct cattn_work *work, const struct cattn_work_write *write)
{
    work->writes[work->n_writes++] = *write;
}

/* Tokens of a run that rows with the given first and last positions see. */
static uint64_t tokens_seen(const struct cattn_work *work, const struct cattn_work_run *run, uint64_t first_row,
                            uint64_t last_row, uint32_t window, uint32_t n_sink_tokens)
{
    const uint64_t c = work->chunk_tokens, begin = run->first_chunk * c, stop = begin + run->n_chunks * c;
    const uint64_t end = last_row + 1 < stop ? last_row + 1 : stop;
    uint64_t seen = window && first_row >= window ? (first_row + 1 - window) / c * c : 0;
    uint64_t sinks = (n_sink_tokens + c - 1) / c * c;
    seen = seen < begin ? begin : seen < end ? seen : end;
    sinks = sinks < begin ? begin : sinks < seen ? sinks : seen;
    return end - seen + (sinks - begin);
}

void cattn_work_count_tokens(const struct cattn_work *work, uint32_t window, uint32_t n_sink_tokens, uint64_t *shared,
                             uint64_t *unshared)
{
    *shared = *unshared = 0;
    for (size_t i = 0; i < work->n_runs; i++) {
        const struct cattn_work_run *run = &work->runs[i];
        uint64_t first = UINT64_MAX, last = 0;
        for (uint32_t j = 0; j < run->n_items; j++) {
            const struct cattn_work_item *item = &work->items[work->run_items[run->items + j]];
            const uint64_t item_last = item->position + item->n_rows - 1;
            first = item->position < first ? item->position : first;
            last = item_last > last ? item_last : last;
            *unshared += tokens_seen(work, run, item->position, item_last, window, n_sink_tokens);
        }
        *shared += tokens_seen(work, run, first, last, window, n_sink_tokens);
    }
}

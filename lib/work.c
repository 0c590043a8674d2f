#include "work.h"

#include "chunkattention.h"
#include "memory.h"

/* A slot stands for the whole path above it, so an item that meets a slot of an earlier item shares all above it too.
 * Items are walked from their ends up to there: each slot of the batch is visited once, however many items see it.
 * What an item was first to visit is its branch, which begins where it leaves the branch of another. */
struct branch {
    uint32_t first;   /* chunk */
    uint32_t above;   /* the item whose branch it leaves; its own number if first is 0 */
    uint32_t shared;  /* chunks up to here are seen by other items too */
    uint32_t n_items; /* that see its first chunk */
};

/* What the walks note of a slot; all 0 between calls. */
struct note {
    uint32_t owner;   /* the item on whose branch it is, + 1 */
    uint32_t leaving; /* items that see it and not the next one of the branch */
    uint32_t run;     /* number of the shared run that it begins, + 1 */
};

struct cattn_work_scratch {
    struct branch *branches;                                    /* of each item */
    struct note *notes;                                         /* of each slot */
    size_t items, branch_items, runs, slots, run_items, writes; /* capacities */
    size_t n_slots, n_run_items;                                /* used */
};

int cattn_work_init(struct cattn_work *work, uint32_t n_slots, uint32_t chunk_tokens)
{
    *work = (struct cattn_work){.chunk_tokens = chunk_tokens};
    work->scratch = cattn_calloc(1, sizeof(*work->scratch));
    if (work->scratch) {
        work->scratch->notes = cattn_calloc(n_slots, sizeof(*work->scratch->notes));
        if (work->scratch->notes)
            return CATTN_OK;
    }
    cattn_work_release(work);
    return CATTN_ENOMEM;
}

void cattn_work_release(struct cattn_work *work)
{
    if (work->scratch) {
        cattn_free(work->scratch->branches);
        cattn_free(work->scratch->notes);
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
    void *branches = cattn_grow(scratch->branches, &scratch->branch_items, n_items, sizeof(*scratch->branches));
    scratch->branches = branches ? branches : scratch->branches;
    void *runs = cattn_grow(work->runs, &scratch->runs, n_runs, sizeof(*work->runs));
    work->runs = runs ? runs : work->runs;
    void *slots = cattn_grow(work->slots, &scratch->slots, n_chunks, sizeof(*work->slots));
    work->slots = slots ? slots : work->slots;
    void *run_items = cattn_grow(work->run_items, &scratch->run_items, n_chunks, sizeof(*work->run_items));
    work->run_items = run_items ? run_items : work->run_items;
    void *writes = cattn_grow(work->writes, &scratch->writes, n_writes, sizeof(*work->writes));
    work->writes = writes ? writes : work->writes;
    return items && branches && runs && slots && run_items && writes ? CATTN_OK : CATTN_ENOMEM;
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

/* Items from their ends up to a slot of an earlier one. */
static void find_branches(struct cattn_work *work, const struct cattn_work_path *paths, size_t n_items)
{
    struct cattn_work_scratch *scratch = work->scratch;
    for (size_t i = 0; i < n_items; i++) {
        uint32_t first = paths[i].n_chunks;
        for (; first && !scratch->notes[paths[i].slots[first - 1]].owner; first--)
            scratch->notes[paths[i].slots[first - 1]].owner = (uint32_t)i + 1;
        uint32_t above = first ? scratch->notes[paths[i].slots[first - 1]].owner - 1 : (uint32_t)i;
        scratch->branches[i] = (struct branch){first, above, first, 1};
    }
}

/* Later items first: what leaves a branch is later than it. */
static void join_branches(struct cattn_work *work, const struct cattn_work_path *paths, size_t n_items)
{
    struct cattn_work_scratch *scratch = work->scratch;
    for (size_t i = n_items; i-- > 0;) {
        const struct branch *branch = &scratch->branches[i];
        if (!branch->first)
            continue;
        struct branch *above = &scratch->branches[branch->above];
        above->n_items += branch->n_items;
        if (above->shared < branch->first)
            above->shared = branch->first;
        scratch->notes[paths[i].slots[branch->first - 1]].leaving += branch->n_items;
    }
}

static void forget_branches(struct cattn_work *work, const struct cattn_work_path *paths, size_t n_items)
{
    struct cattn_work_scratch *scratch = work->scratch;
    for (size_t i = 0; i < n_items; i++) {
        for (uint32_t chunk = scratch->branches[i].first; chunk < paths[i].n_chunks; chunk++)
            scratch->notes[paths[i].slots[chunk]] = (struct note){0};
    }
}

/* The shared part of an item's branch, cut where items leave it. */
static void add_shared_runs(struct cattn_work *work, const struct cattn_work_path *path, const struct branch *branch)
{
    struct cattn_work_scratch *scratch = work->scratch;
    uint32_t n_items = branch->n_items;
    for (uint32_t first = branch->first, end; first < branch->shared; first = end) {
        end = first + 1;
        while (!scratch->notes[path->slots[end - 1]].leaving)
            end++;
        add_run(work, path, first, end - first, n_items);
        scratch->notes[path->slots[first]].run = (uint32_t)work->n_runs;
        n_items -= scratch->notes[path->slots[end - 1]].leaving;
    }
}

/* The runs that an item shares are on its path up to the end of the shared part of its branch. */
static void join_shared_runs(struct cattn_work *work, const struct cattn_work_path *path, size_t item)
{
    const struct cattn_work_scratch *scratch = work->scratch;
    for (uint32_t first = 0; first < scratch->branches[item].shared;) {
        struct cattn_work_run *run = &work->runs[scratch->notes[path->slots[first]].run - 1];
        add_item(work, run, item);
        first += run->n_chunks;
    }
}

static void build_shared(struct cattn_work *work, const struct cattn_work_path *paths, size_t n_items)
{
    find_branches(work, paths, n_items);
    join_branches(work, paths, n_items);
    for (size_t i = 0; i < n_items; i++) {
        add_shared_runs(work, &paths[i], &work->scratch->branches[i]);
        join_shared_runs(work, &paths[i], i);
    }
    forget_branches(work, paths, n_items);
}

void cattn_work_build(struct cattn_work *work, const struct cattn_work_path *paths, size_t n_items, int share)
{
    work->structure++;
    work->revision++;
    work->n_runs = work->n_writes = 0;
    work->scratch->n_slots = work->scratch->n_run_items = 0;
    number_rows(work, paths, n_items);
    if (share)
        build_shared(work, paths, n_items);
    for (size_t i = 0; i < n_items; i++) {
        uint32_t first = share ? work->scratch->branches[i].shared : 0;
        if (first < paths[i].n_chunks)
            add_item(work, add_run(work, &paths[i], first, paths[i].n_chunks - first, 1), i);
    }
}

uint64_t cattn_work_advance(struct cattn_work *work, const struct cattn_work_path *paths)
{
    uint64_t n_tokens = 0;
    work->revision++;
    for (uint32_t i = 0; i < work->n_items; i++) {
        n_tokens += paths[i].position - work->items[i].position;
        work->items[i].position = paths[i].position;
    }
    return n_tokens;
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

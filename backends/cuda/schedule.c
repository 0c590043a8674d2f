#include "schedule.h"

#include "memory.h"

#include <stdlib.h>
#include <string.h>

/* A tile has at most as many packed rows.  An item that fills one alone gains nothing from sharing: every tile reads
 * its tokens once, whoever else does. */
#define TILE_ROWS 64

/* A split is not made shorter than this: the states that it leaves cost about a twentieth of what it reads. */
#define LEAST_SPLIT 128

/* Bytes that take about as long to copy as one more copy takes to be started. */
#define LEAST_GAP 65536

static const size_t element_bytes[CATTN_CUDA_ARRAYS] = {[CATTN_CUDA_RUNS] = sizeof(struct cattn_cuda_run),
                                                        [CATTN_CUDA_PIECES] = sizeof(struct cattn_cuda_piece),
                                                        [CATTN_CUDA_PARTS] = sizeof(struct cattn_cuda_part),
                                                        [CATTN_CUDA_ITEMS] = sizeof(struct cattn_cuda_item),
                                                        [CATTN_CUDA_SLOTS] = sizeof(uint32_t),
                                                        [CATTN_CUDA_RUN_ROWS] = sizeof(uint32_t),
                                                        [CATTN_CUDA_ROW_ITEMS] = sizeof(uint32_t),
                                                        [CATTN_CUDA_POSITIONS] = sizeof(uint32_t),
                                                        [CATTN_CUDA_WRITES] = sizeof(struct cattn_cuda_write)};

static uint64_t divide_up(uint64_t n, uint64_t by)
{
    return (n + by - 1) / by;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* ---- buffers ------------------------------------------------------------------------------------------------------
 */

/* What is on the stream may read them still: it is waited for. */
static void free_buffers(struct cattn_cuda_queue *queue, struct cattn_cuda_buffers *buffers)
{
    if (buffers->device)
        cattn_cuda_is_ok(queue, cudaStreamSynchronize(queue->stream));
    void *device[] = {buffers->device, buffers->ml, buffers->o};
    for (int i = 0; i < 3; i++)
        cattn_cuda_is_ok(queue, cudaFree(device[i]));
    for (int i = 0; i < 2; i++) {
        if (buffers->staging[i])
            cattn_cuda_is_ok(queue, cudaFreeHost(buffers->staging[i]));
    }
    cattn_free(buffers->host);
    cattn_free(buffers->notes);
    cattn_free(buffers->ranks);
    *buffers = (struct cattn_cuda_buffers){0};
}

static void lay_out(struct cattn_cuda_buffers *buffers)
{
    size_t offset = 0;
    for (int i = 0; i < CATTN_CUDA_ARRAYS; i++) {
        buffers->offsets[i] = offset;
        offset += (buffers->room.n[i] * element_bytes[i] + 15) / 16 * 16;
    }
    buffers->offsets[CATTN_CUDA_ARRAYS] = offset;
}

static int make_buffers(const struct cattn_cuda_schedule *schedule, const struct cattn_cuda_size *room,
                        struct cattn_cuda_buffers *made)
{
    *made = (struct cattn_cuda_buffers){.room = *room};
    lay_out(made);
    const size_t bytes = made->offsets[CATTN_CUDA_ARRAYS];
    made->host = cattn_malloc(bytes, 1);
    made->notes = cattn_malloc(room->n[CATTN_CUDA_ITEMS], sizeof(*made->notes));
    made->ranks = cattn_malloc(room->n[CATTN_CUDA_RUNS], sizeof(*made->ranks));
    int status = made->host && made->notes && made->ranks ? CATTN_OK : CATTN_ENOMEM;
    for (int i = 0; !status && i < 2; i++)
        status = cattn_cuda_status(cudaHostAlloc((void **)&made->staging[i], bytes, cudaHostAllocDefault));
    if (!status)
        status = cattn_cuda_status(cudaMalloc((void **)&made->device, bytes));
    if (!status)
        status = cattn_cuda_status(cudaMalloc((void **)&made->ml, room->n_states * 2 * sizeof(float)));
    if (!status)
        status =
            cattn_cuda_status(cudaMalloc((void **)&made->o, room->n_states * schedule->v_head_dim * sizeof(float)));
    return status;
}

static unsigned char *array_of(const struct cattn_cuda_buffers *buffers, unsigned char *bytes,
                               enum cattn_cuda_array array)
{
    return bytes + buffers->offsets[array];
}

static void *host_array(const struct cattn_cuda_schedule *schedule, enum cattn_cuda_array array)
{
    return array_of(&schedule->buffers, schedule->buffers.host, array);
}

const void *cattn_cuda_schedule_array(const struct cattn_cuda_schedule *schedule, enum cattn_cuda_array array)
{
    return host_array(schedule, array);
}

static void point_plan(struct cattn_cuda_schedule *schedule)
{
    const struct cattn_cuda_buffers *buffers = &schedule->buffers;
    void *arrays[CATTN_CUDA_ARRAYS];
    for (int i = 0; i < CATTN_CUDA_ARRAYS; i++)
        arrays[i] = array_of(buffers, buffers->device, (enum cattn_cuda_array)i);
    schedule->plan = (struct cattn_cuda_plan){.runs = arrays[CATTN_CUDA_RUNS],
                                              .pieces = arrays[CATTN_CUDA_PIECES],
                                              .parts = arrays[CATTN_CUDA_PARTS],
                                              .items = arrays[CATTN_CUDA_ITEMS],
                                              .slots = arrays[CATTN_CUDA_SLOTS],
                                              .run_rows = arrays[CATTN_CUDA_RUN_ROWS],
                                              .row_items = arrays[CATTN_CUDA_ROW_ITEMS],
                                              .row_positions = arrays[CATTN_CUDA_POSITIONS],
                                              .writes = arrays[CATTN_CUDA_WRITES]};
}

/* ---- open and close */

int cattn_cuda_schedule_open(struct cattn_cuda_schedule *schedule, struct cattn_cuda_queue *queue,
                             const struct cattn_shape *shape, uint32_t n_blocks)
{
    *schedule = (struct cattn_cuda_schedule){.queue = queue,
                                             .n_kv_heads = shape->n_kv_heads,
                                             .group = shape->n_heads / shape->n_kv_heads,
                                             .chunk_tokens = shape->chunk_tokens,
                                             .v_head_dim = shape->v_head_dim,
                                             .n_blocks = n_blocks,
                                             .number = 1};
    int status = CATTN_OK;
    for (int i = 0; !status && i < 2; i++)
        status = cattn_cuda_status(cudaEventCreateWithFlags(&schedule->read[i], cudaEventDisableTiming));
    return status;
}

void cattn_cuda_schedule_close(struct cattn_cuda_schedule *schedule)
{
    free_buffers(schedule->queue, &schedule->buffers);
    for (int i = 0; i < 2; i++) {
        if (schedule->read[i])
            cattn_cuda_is_ok(schedule->queue, cudaEventDestroy(schedule->read[i]));
    }
}

/* ---- room */

/* Pieces are filled up to one of eight numbers between powers of two. */
static uint64_t fill_up(uint64_t n_pieces)
{
    uint64_t step = 4;
    while (n_pieces >= 16 * step)
        step *= 2;
    return divide_up(n_pieces, step) * step;
}

/* If each item is alone, and none is split. */
static uint64_t least_pieces(const struct cattn_cuda_schedule *schedule, const struct cattn_work_bounds *bounds)
{
    return fill_up(bounds->n_items + bounds->n_rows * schedule->group / TILE_ROWS);
}

/* Room for a plan in which nothing is shared or split: what there must be. */
static struct cattn_cuda_size least_room(const struct cattn_cuda_schedule *schedule,
                                         const struct cattn_work_bounds *bounds)
{
    return (struct cattn_cuda_size){.n = {[CATTN_CUDA_RUNS] = bounds->n_items,
                                          [CATTN_CUDA_PIECES] = least_pieces(schedule, bounds),
                                          [CATTN_CUDA_PARTS] = bounds->n_items,
                                          [CATTN_CUDA_ITEMS] = bounds->n_items,
                                          [CATTN_CUDA_SLOTS] = bounds->n_chunks,
                                          [CATTN_CUDA_RUN_ROWS] = bounds->n_rows,
                                          [CATTN_CUDA_ROW_ITEMS] = bounds->n_rows,
                                          [CATTN_CUDA_POSITIONS] = bounds->n_rows,
                                          [CATTN_CUDA_WRITES] = bounds->n_rows}};
}

/* Room for most plans: paths of four runs that grow for a while, and splits for two rounds of all blocks. */
static struct cattn_cuda_size usual_room(const struct cattn_cuda_schedule *schedule,
                                         const struct cattn_work_bounds *bounds)
{
    struct cattn_cuda_size room = least_room(schedule, bounds);
    const uint64_t n_splits = 2 * divide_up(schedule->n_blocks, schedule->n_kv_heads);
    const uint64_t few_rows = smaller(bounds->n_rows * schedule->group, bounds->n_items * TILE_ROWS);
    room.n[CATTN_CUDA_RUNS] *= 3;
    room.n[CATTN_CUDA_PIECES] = 4 * room.n[CATTN_CUDA_PIECES] + fill_up(n_splits);
    room.n[CATTN_CUDA_PARTS] *= 4;
    room.n[CATTN_CUDA_SLOTS] += room.n[CATTN_CUDA_SLOTS] / 2 + 8 * bounds->n_items;
    room.n[CATTN_CUDA_RUN_ROWS] *= 4;
    room.n_states = (4 * few_rows + n_splits * TILE_ROWS) * schedule->n_kv_heads;
    return room;
}

static bool fits(const struct cattn_cuda_size *need, const struct cattn_cuda_size *room)
{
    for (int i = 0; i < CATTN_CUDA_ARRAYS; i++) {
        if (need->n[i] > room->n[i])
            return false;
    }
    return need->n_states <= room->n_states;
}

/* Makes *size as large as both, and where it must grow larger than that, since the next step may be longer. */
static void grow(struct cattn_cuda_size *size, const struct cattn_cuda_size *need, bool ahead)
{
    for (int i = 0; i < CATTN_CUDA_ARRAYS; i++) {
        if (need->n[i] > size->n[i])
            size->n[i] = ahead ? larger(need->n[i], 2 * size->n[i]) : need->n[i];
    }
    if (need->n_states > size->n_states)
        size->n_states = need->n_states + (ahead ? need->n_states / 4 : 0);
}

/* Whether the indices and the grids of launches stay below 2^31. */
static bool can_launch(const struct cattn_cuda_schedule *schedule, const struct cattn_cuda_size *size)
{
    for (int i = 0; i < CATTN_CUDA_ARRAYS; i++) {
        if (size->n[i] > INT32_MAX)
            return false;
    }
    return size->n[CATTN_CUDA_PIECES] * schedule->n_kv_heads <= INT32_MAX &&
           size->n[CATTN_CUDA_POSITIONS] * schedule->n_kv_heads * schedule->group <= INT32_MAX;
}

static int replace_buffers(struct cattn_cuda_schedule *schedule, const struct cattn_cuda_size *room)
{
    struct cattn_cuda_buffers made;
    int status = make_buffers(schedule, room, &made);
    if (status) {
        free_buffers(schedule->queue, &made);
        return status;
    }
    free_buffers(schedule->queue, &schedule->buffers);
    schedule->buffers = made;
    schedule->structure = 0;
    schedule->number++;
    point_plan(schedule);
    return CATTN_OK;
}

int cattn_cuda_schedule_reserve(struct cattn_cuda_schedule *schedule, const struct cattn_work_bounds *bounds)
{
    struct cattn_cuda_buffers *buffers = &schedule->buffers;
    const struct cattn_cuda_size least = least_room(schedule, bounds), usual = usual_room(schedule, bounds);
    if (!can_launch(schedule, &least))
        return CATTN_ENOMEM;
    if (fits(&least, &buffers->room) && fits(&schedule->wish, &buffers->room))
        return CATTN_OK;
    struct cattn_cuda_size room = buffers->room;
    grow(&room, &usual, true);
    grow(&room, &schedule->wish, true);
    int status = replace_buffers(schedule, &room);
    schedule->is_modest = status == CATTN_ENOMEM;
    if (!schedule->is_modest)
        return status;
    schedule->wish = (struct cattn_cuda_size){.n_states = 0};
    if (fits(&least, &buffers->room))
        return CATTN_OK;
    room = buffers->room;
    grow(&room, &least, false);
    return replace_buffers(schedule, &room);
}

/* ---- runs: those of the work list without the items that are alone, then those of the items that are */

static bool is_alone(const struct cattn_cuda_schedule *schedule, const struct cattn_work_item *item, bool all)
{
    return all || (uint64_t)item->n_rows * schedule->group >= TILE_ROWS;
}

static const uint32_t *items_of(const struct cattn_work *work, const struct cattn_work_run *run)
{
    return work->run_items + run->items;
}

/* Counts what runs and items need before anything is written. */
static struct cattn_cuda_size count_runs(struct cattn_cuda_schedule *schedule, const struct cattn_work *work, bool all)
{
    struct cattn_cuda_note *notes = schedule->buffers.notes;
    struct cattn_cuda_size need = {.n = {[CATTN_CUDA_ITEMS] = work->n_items,
                                         [CATTN_CUDA_ROW_ITEMS] = work->n_rows,
                                         [CATTN_CUDA_POSITIONS] = work->n_rows}};
    for (uint32_t i = 0; i < work->n_items; i++) {
        notes[i] = (struct cattn_cuda_note){.alone = is_alone(schedule, &work->items[i], all)};
        notes[i].n_parts = notes[i].alone;
        if (!notes[i].alone)
            continue;
        need.n[CATTN_CUDA_RUNS]++;
        need.n[CATTN_CUDA_RUN_ROWS] += work->items[i].n_rows;
    }
    for (size_t i = 0; i < work->n_runs; i++) {
        const struct cattn_work_run *run = &work->runs[i];
        uint32_t n_rows = 0;
        for (uint32_t j = 0; j < run->n_items; j++) {
            struct cattn_cuda_note *note = &notes[items_of(work, run)[j]];
            if (note->alone) {
                note->n_chunks += run->n_chunks;
                need.n[CATTN_CUDA_SLOTS] += run->n_chunks;
            } else {
                note->n_parts++;
                n_rows += work->items[items_of(work, run)[j]].n_rows;
            }
        }
        if (n_rows) {
            need.n[CATTN_CUDA_RUNS]++;
            need.n[CATTN_CUDA_RUN_ROWS] += n_rows;
            need.n[CATTN_CUDA_SLOTS] += run->n_chunks;
        }
    }
    for (uint32_t i = 0; i < work->n_items; i++)
        need.n[CATTN_CUDA_PARTS] += notes[i].n_parts;
    return need;
}

/* What a builder fills: the arrays of the plan on the host. */
struct build {
    struct cattn_cuda_schedule *schedule;
    const struct cattn_work *work;
    struct cattn_cuda_run *runs;
    struct cattn_cuda_part *parts;
    struct cattn_cuda_item *items;
    uint32_t *slots, *run_rows;
    uint32_t n_runs, n_slots, n_run_rows;
};

static void add_rows(struct build *build, const struct cattn_work_item *item)
{
    for (uint32_t i = 0; i < item->n_rows; i++)
        build->run_rows[build->n_run_rows++] = item->first_row + i;
}

static void add_slots(struct build *build, const struct cattn_work_run *run, uint32_t to)
{
    memcpy(build->slots + to, build->work->slots + run->slots, run->n_chunks * sizeof(*build->slots));
}

static struct cattn_cuda_run *add_run(struct build *build, uint32_t first_chunk, uint32_t n_chunks)
{
    const uint32_t c = build->schedule->chunk_tokens;
    struct cattn_cuda_run *run = &build->runs[build->n_runs++];
    *run = (struct cattn_cuda_run){
        .first_token = first_chunk * c, .n_tokens = n_chunks * c, .slots = build->n_slots, .rows = build->n_run_rows};
    build->n_slots += n_chunks;
    return run;
}

static void add_part(struct build *build, uint32_t item, uint32_t first)
{
    struct cattn_cuda_item *x = &build->items[item];
    build->parts[x->parts + x->n_parts++] = (struct cattn_cuda_part){build->n_runs - 1, first};
}

static void add_shared_run(struct build *build, const struct cattn_work_run *from)
{
    const struct cattn_cuda_note *notes = build->schedule->buffers.notes;
    struct cattn_cuda_run *run = NULL;
    for (uint32_t j = 0; j < from->n_items; j++) {
        const uint32_t item = items_of(build->work, from)[j];
        if (notes[item].alone)
            continue;
        if (!run) {
            run = add_run(build, from->first_chunk, from->n_chunks);
            add_slots(build, from, run->slots);
        }
        add_part(build, item, build->n_run_rows - run->rows);
        add_rows(build, &build->work->items[item]);
    }
    if (run)
        run->n_rows = build->n_run_rows - run->rows;
}

static void add_run_alone(struct build *build, uint32_t item)
{
    struct cattn_cuda_note *note = &build->schedule->buffers.notes[item];
    struct cattn_cuda_run *run = add_run(build, 0, note->n_chunks);
    note->slots = run->slots;
    add_part(build, item, 0);
    add_rows(build, &build->work->items[item]);
    run->n_rows = build->work->items[item].n_rows;
}

/* Runs of the work list come in ascending order on the path of each item, and so do its chunks. */
static void fill_runs_alone(struct build *build, const struct cattn_work_run *from)
{
    struct cattn_cuda_note *notes = build->schedule->buffers.notes;
    for (uint32_t j = 0; j < from->n_items; j++) {
        struct cattn_cuda_note *note = &notes[items_of(build->work, from)[j]];
        if (!note->alone)
            continue;
        add_slots(build, from, note->slots);
        note->slots += from->n_chunks;
    }
}

static void add_items(struct build *build)
{
    const struct cattn_cuda_note *notes = build->schedule->buffers.notes;
    uint32_t *row_items = host_array(build->schedule, CATTN_CUDA_ROW_ITEMS), n_parts = 0;
    for (uint32_t i = 0; i < build->work->n_items; i++) {
        const struct cattn_work_item *item = &build->work->items[i];
        build->items[i] = (struct cattn_cuda_item){.first_row = item->first_row, .parts = n_parts};
        n_parts += notes[i].n_parts;
        for (uint32_t row = 0; row < item->n_rows; row++)
            row_items[item->first_row + row] = i;
    }
}

static uint32_t build_runs(struct cattn_cuda_schedule *schedule, const struct cattn_work *work)
{
    struct build build = {.schedule = schedule,
                          .work = work,
                          .runs = host_array(schedule, CATTN_CUDA_RUNS),
                          .parts = host_array(schedule, CATTN_CUDA_PARTS),
                          .items = host_array(schedule, CATTN_CUDA_ITEMS),
                          .slots = host_array(schedule, CATTN_CUDA_SLOTS),
                          .run_rows = host_array(schedule, CATTN_CUDA_RUN_ROWS)};
    add_items(&build);
    for (size_t i = 0; i < work->n_runs; i++)
        add_shared_run(&build, &work->runs[i]);
    for (uint32_t i = 0; i < work->n_items; i++) {
        if (schedule->buffers.notes[i].alone)
            add_run_alone(&build, i);
    }
    for (size_t i = 0; i < work->n_runs; i++)
        fill_runs_alone(&build, &work->runs[i]);
    return build.n_runs;
}

/* ---- splits and tiles */

static uint32_t tile_rows(uint64_t packed)
{
    return packed <= 16 ? 16 : packed <= 32 ? 32 : TILE_ROWS;
}

static uint64_t packed_rows(const struct cattn_cuda_schedule *schedule, const struct cattn_cuda_run *run)
{
    return (uint64_t)run->n_rows * schedule->group;
}

static uint64_t count_tiles(const struct cattn_cuda_schedule *schedule, const struct cattn_cuda_run *run)
{
    return divide_up(packed_rows(schedule, run), run->tile_rows);
}

/* As long as leaves two pieces for each block that the device runs at once, or one and a half: lengths are picked from
 * 2^k and 3 * 2^k, so that plans that grow keep the number of their pieces for a while. */
static uint64_t choose_split(const struct cattn_cuda_schedule *schedule, uint32_t n_runs)
{
    const struct cattn_cuda_run *runs = host_array(schedule, CATTN_CUDA_RUNS);
    uint64_t n_tokens = 0, split = LEAST_SPLIT;
    for (uint32_t i = 0; i < n_runs; i++)
        n_tokens += count_tiles(schedule, &runs[i]) * runs[i].n_tokens;
    const uint64_t ideal = divide_up(n_tokens * schedule->n_kv_heads, 2 * (uint64_t)schedule->n_blocks);
    while (split < ideal)
        split = split & (split - 1) ? split / 3 * 4 : split / 2 * 3;
    return split;
}

/* A run is cut into equal splits of whole tiles. */
static void split_run(struct cattn_cuda_run *run, uint64_t split)
{
    run->n_splits = (uint32_t)divide_up(run->n_tokens, split);
    run->split_tokens =
        (uint32_t)(divide_up(divide_up(run->n_tokens, run->n_splits), CATTN_CUDA_TILE) * CATTN_CUDA_TILE);
}

/* A run whose rows have no other, in one split, needs no state: its pieces write the output. */
static void find_direct(struct cattn_cuda_schedule *schedule, uint32_t n_runs)
{
    struct cattn_cuda_run *runs = host_array(schedule, CATTN_CUDA_RUNS);
    struct cattn_cuda_item *items = host_array(schedule, CATTN_CUDA_ITEMS);
    const struct cattn_cuda_part *parts = host_array(schedule, CATTN_CUDA_PARTS);
    const uint64_t n_items = schedule->used.n[CATTN_CUDA_ITEMS];
    for (uint32_t i = 0; i < n_runs; i++)
        runs[i].direct = runs[i].n_splits == 1;
    for (uint64_t i = 0; i < n_items; i++) {
        for (uint32_t j = 0; items[i].n_parts > 1 && j < items[i].n_parts; j++)
            runs[parts[items[i].parts + j].run].direct = 0;
    }
    for (uint64_t i = 0; i < n_items; i++)
        items[i].direct = items[i].n_parts == 0 || runs[parts[items[i].parts].run].direct;
}

/* Splits the runs and says where their states are.  Adds pieces and states to what is used. */
static void split_runs(struct cattn_cuda_schedule *schedule, uint32_t n_runs, uint64_t split)
{
    struct cattn_cuda_run *runs = host_array(schedule, CATTN_CUDA_RUNS);
    schedule->used.n[CATTN_CUDA_PIECES] = schedule->used.n_states = 0;
    for (uint32_t i = 0; i < n_runs; i++) {
        split_run(&runs[i], split);
        schedule->used.n[CATTN_CUDA_PIECES] += count_tiles(schedule, &runs[i]) * runs[i].n_splits;
    }
    find_direct(schedule, n_runs);
    for (uint32_t i = 0; i < n_runs; i++) {
        runs[i].states = schedule->used.n_states;
        if (!runs[i].direct)
            schedule->used.n_states += runs[i].n_splits * schedule->n_kv_heads * packed_rows(schedule, &runs[i]);
    }
}

/* Longest first. */
static int compare_ranks(const void *a, const void *b)
{
    const struct cattn_cuda_rank *x = a, *y = b;
    if (x->tokens != y->tokens)
        return x->tokens > y->tokens ? -1 : 1;
    return x->run < y->run ? -1 : x->run > y->run;
}

/* Tiles of one split stand together, since they read the same tokens; the last ones, which see most, come first. */
static void list_pieces(struct cattn_cuda_schedule *schedule, uint32_t n_runs)
{
    const struct cattn_cuda_run *runs = host_array(schedule, CATTN_CUDA_RUNS);
    struct cattn_cuda_piece *piece = host_array(schedule, CATTN_CUDA_PIECES), *end = piece;
    struct cattn_cuda_rank *ranks = schedule->buffers.ranks;
    for (uint32_t i = 0; i < n_runs; i++)
        ranks[i] = (struct cattn_cuda_rank){i, runs[i].split_tokens < runs[i].n_tokens ? runs[i].split_tokens
                                                                                       : runs[i].n_tokens};
    qsort(ranks, n_runs, sizeof(*ranks), compare_ranks);
    for (uint32_t i = 0; i < n_runs; i++) {
        const uint32_t n_tiles = (uint32_t)count_tiles(schedule, &runs[ranks[i].run]);
        for (uint32_t split = 0; split < runs[ranks[i].run].n_splits; split++)
            for (uint32_t tile = n_tiles; tile-- > 0;)
                *end++ = (struct cattn_cuda_piece){ranks[i].run, split, tile, runs[ranks[i].run].tile_rows};
    }
    schedule->used.n[CATTN_CUDA_PIECES] = fill_up((uint64_t)(end - piece));
    while (end < piece + schedule->used.n[CATTN_CUDA_PIECES])
        *end++ = (struct cattn_cuda_piece){0, 0, 0, 0};
}

/* The whole structure; all: each item alone, unsplit.  False: there is no room for it. */
static bool build_structure(struct cattn_cuda_schedule *schedule, const struct cattn_work *work, bool all)
{
    const struct cattn_cuda_size *room = &schedule->buffers.room;
    schedule->used = count_runs(schedule, work, all);
    if (!fits(&schedule->used, room))
        return false;
    const uint32_t n_runs = build_runs(schedule, work);
    struct cattn_cuda_run *runs = host_array(schedule, CATTN_CUDA_RUNS);
    for (uint32_t i = 0; i < n_runs; i++)
        runs[i].tile_rows = tile_rows(packed_rows(schedule, &runs[i]));
    split_runs(schedule, n_runs, all ? UINT32_MAX : choose_split(schedule, n_runs));
    struct cattn_cuda_size filled = schedule->used;
    filled.n[CATTN_CUDA_PIECES] = fill_up(filled.n[CATTN_CUDA_PIECES]);
    if (!fits(&filled, room) || !can_launch(schedule, &filled)) {
        schedule->used = filled;
        return false;
    }
    list_pieces(schedule, n_runs);
    return true;
}

/* ---- lengths */

static void set_lengths(struct cattn_cuda_schedule *schedule, const struct cattn_work *work)
{
    uint32_t *positions = host_array(schedule, CATTN_CUDA_POSITIONS);
    struct cattn_cuda_write *write = host_array(schedule, CATTN_CUDA_WRITES);
    for (uint32_t i = 0; i < work->n_items; i++)
        for (uint32_t row = 0; row < work->items[i].n_rows; row++)
            positions[work->items[i].first_row + row] = (uint32_t)work->items[i].position + row;
    schedule->used.n[CATTN_CUDA_WRITES] = 0;
    for (size_t i = 0; i < work->n_writes; i++) {
        const struct cattn_work_write *from = &work->writes[i];
        for (uint32_t token = from->begin; token < from->end; token++)
            *write++ = (struct cattn_cuda_write){from->slot, token, from->row + (token - from->begin)};
        schedule->used.n[CATTN_CUDA_WRITES] += from->end - from->begin;
    }
}

/* Whether the lengths on the device are those of the work list once `delta` is added to each. */
static bool advances_by(const struct cattn_cuda_schedule *schedule, const struct cattn_work *work, uint32_t delta)
{
    const uint32_t *positions = host_array(schedule, CATTN_CUDA_POSITIONS);
    const struct cattn_cuda_write *write = host_array(schedule, CATTN_CUDA_WRITES);
    const struct cattn_cuda_write *end = write + schedule->used.n[CATTN_CUDA_WRITES];
    for (uint32_t i = 0; i < work->n_items; i++) {
        if (positions[work->items[i].first_row] + delta != work->items[i].position)
            return false;
    }
    for (size_t i = 0; i < work->n_writes; i++) {
        const struct cattn_work_write *to = &work->writes[i];
        for (uint32_t token = to->begin; token < to->end; token++, write++) {
            if (write == end || write->slot != to->slot || write->token + delta != token ||
                write->row != to->row + (token - to->begin))
                return false;
        }
    }
    return write == end;
}

/* ---- to the device */

/* Puts a copy on the stream; no bytes: nothing. */
static bool copy_bytes(struct cattn_cuda_schedule *schedule, size_t begin, size_t end)
{
    const struct cattn_cuda_buffers *buffers = &schedule->buffers;
    struct cattn_cuda_queue *queue = schedule->queue;
    return begin == end ||
           cattn_cuda_is_ok(queue, cudaMemcpyAsync(buffers->device + begin, buffers->staging[schedule->turn] + begin,
                                                   end - begin, cudaMemcpyHostToDevice, queue->stream));
}

/* Copies the arrays from `first` on as far as they are used, and what lies between them where that is little. */
static bool copy_arrays(struct cattn_cuda_schedule *schedule, int first)
{
    const struct cattn_cuda_buffers *buffers = &schedule->buffers;
    size_t begin = buffers->offsets[first], end = begin;
    for (int i = first; i < CATTN_CUDA_ARRAYS; i++) {
        const size_t offset = buffers->offsets[i], bytes = schedule->used.n[i] * element_bytes[i];
        memcpy(buffers->staging[schedule->turn] + offset, buffers->host + offset, bytes);
        if (offset - end > LEAST_GAP) {
            if (!copy_bytes(schedule, begin, end))
                return false;
            begin = offset;
        }
        end = offset + bytes;
    }
    return copy_bytes(schedule, begin, end);
}

static void upload(struct cattn_cuda_schedule *schedule, int first)
{
    struct cattn_cuda_queue *queue = schedule->queue;
    const cudaEvent_t read = schedule->read[schedule->turn];
    if (cattn_cuda_is_ok(queue, cudaEventSynchronize(read)) && copy_arrays(schedule, first))
        cattn_cuda_is_ok(queue, cudaEventRecord(read, queue->stream));
    schedule->turn = !schedule->turn;
}

static void plan_lengths(struct cattn_cuda_schedule *schedule, const struct cattn_work *work)
{
    const uint32_t *positions = host_array(schedule, CATTN_CUDA_POSITIONS);
    const uint32_t delta = work->n_items ? (uint32_t)work->items[0].position - positions[work->items[0].first_row] : 0;
    const bool advances = advances_by(schedule, work, delta);
    set_lengths(schedule, work);
    if (!advances)
        upload(schedule, CATTN_CUDA_POSITIONS);
    else if (delta)
        cattn_cuda_is_ok(schedule->queue, cattn_cuda_advance(&schedule->plan, delta, schedule->queue->stream));
}

static void plan_structure(struct cattn_cuda_schedule *schedule, const struct cattn_work *work)
{
    if (!build_structure(schedule, work, false)) {
        if (!schedule->is_modest)
            grow(&schedule->wish, &schedule->used, false);
        build_structure(schedule, work, true); /* for which reserve() has made room */
    }
    set_lengths(schedule, work);
    upload(schedule, 0);
    schedule->structure = work->structure;
}

/* Nothing will be launched; nor may the launches of another step be, which would store its tokens once more, into
 * slots that may be another sequence's by now. */
static void plan_nothing(struct cattn_cuda_schedule *schedule)
{
    schedule->used = (struct cattn_cuda_size){.n_states = 0};
    schedule->structure = 0;
}

/* What launches have of the plan but addresses. */
static void count_plan(struct cattn_cuda_schedule *schedule, const struct cattn_work *work)
{
    struct cattn_cuda_plan plan = schedule->plan;
    plan.n_pieces = (uint32_t)schedule->used.n[CATTN_CUDA_PIECES];
    plan.n_rows = work->n_rows;
    plan.n_writes = (uint32_t)schedule->used.n[CATTN_CUDA_WRITES];
    plan.n_folds = schedule->used.n_states > 0;
    if (plan.n_pieces != schedule->plan.n_pieces || plan.n_rows != schedule->plan.n_rows ||
        plan.n_writes != schedule->plan.n_writes || plan.n_folds != schedule->plan.n_folds)
        schedule->number++;
    schedule->plan = plan;
}

void cattn_cuda_schedule_plan(struct cattn_cuda_schedule *schedule, const struct cattn_work *work)
{
    if (!work->n_rows)
        plan_nothing(schedule);
    else if (work->structure == schedule->structure)
        plan_lengths(schedule, work);
    else
        plan_structure(schedule, work);
    count_plan(schedule, work);
}

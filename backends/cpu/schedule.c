#if HAVE_CONFIG_H
#  include "config.h"
#endif
#include "schedule.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>
#if defined(_OPENMP)
#  include <omp.h>
#endif

#include "arithmetic.h"
#include "memory.h"

enum {
    MOST_BLOCK_ROWS = 256,  /* rows that meet K and V together; enough to be bound by arithmetic */
    SCRATCH_BYTES = 1 << 20 /* aim for the states of a block of rows: they should stay in L2 */
};

typedef _Atomic uint32_t arrival; /* tasks done */
typedef _Atomic uint32_t claim;   /* number of the last pass in which someone took the task */

enum { NO_SPAN = UINT32_MAX };

struct cattn_scratch {
    uint32_t *rows;     /* [block_rows] of the run at hand */
    uint32_t *span;     /* [block_rows] that the state is of; NO_SPAN: none yet */
    uint64_t *position; /* [block_rows] */
    bool *has_total;    /* [block_rows] spans lie behind it already */
    float *slope;       /* [block_rows] */
    unsigned char *q;   /* [block_rows][q_bytes] */
    float *states;      /* [block_rows][state]: of the span at hand */
    float *totals;      /* [block_rows][state]: of the spans before it, if there are any */
    void *kernel;       /* the kernel's own */
};

/* In log2 units, where the largest floats would be infinite, and infinity times a distance of 0 no number. */
static float in_log2(double x)
{
    return (float)fmax(-FLT_MAX, fmin(x * 1.44269504088896340736, FLT_MAX));
}

/* ---- memory ---------------------------------------------------------------------------------------- */

/* The next n bytes of a buffer, in whole cache lines; NULL while the buffer is not there yet. */
static void *carve(unsigned char *buffer, size_t *used, size_t n)
{
    void *piece = buffer ? buffer + *used : NULL;
    *used += (n + 63) / 64 * 64;
    return piece;
}

/* Lays the pieces out and returns how many bytes they take with the struct itself in front. */
static size_t lay_out(const struct cattn_schedule *schedule, struct cattn_scratch *scratch, unsigned char *buffer)
{
    const struct cattn_layout *layout = &schedule->pool->layout;
    const struct cattn_kernel *kernel = schedule->kernel;
    const size_t n = schedule->block_rows, state_bytes = cattn_state_floats(layout->v_pad) * sizeof(float);
    size_t used = 0;
    carve(buffer, &used, sizeof *scratch);
    scratch->rows = carve(buffer, &used, n * sizeof *scratch->rows);
    scratch->span = carve(buffer, &used, n * sizeof *scratch->span);
    scratch->position = carve(buffer, &used, n * sizeof *scratch->position);
    scratch->has_total = carve(buffer, &used, n * sizeof *scratch->has_total);
    scratch->slope = carve(buffer, &used, n * sizeof *scratch->slope);
    scratch->q = carve(buffer, &used, n * schedule->q_bytes);
    scratch->states = carve(buffer, &used, n * state_bytes);
    scratch->totals = carve(buffer, &used, n * state_bytes);
    scratch->kernel = carve(buffer, &used, kernel->scratch_bytes ? kernel->scratch_bytes(layout) : 0);
    return used;
}

static struct cattn_scratch *scratch_open(const struct cattn_schedule *schedule)
{
    struct cattn_scratch sizes;
    unsigned char *buffer = cattn_malloc_aligned(lay_out(schedule, &sizes, NULL), 1);
    if (buffer)
        lay_out(schedule, (struct cattn_scratch *)buffer, buffer);
    return (struct cattn_scratch *)buffer;
}

int cattn_schedule_open(struct cattn_schedule *schedule, const struct cattn_kernel *kernel, struct cattn_pool *pool,
                        const struct cattn_shape *shape)
{
    const struct cattn_layout *layout = &pool->layout;
    const size_t q_bytes = kernel->query_bytes(layout);
    const size_t row_bytes = q_bytes + 2 * cattn_state_floats(layout->v_pad) * sizeof(float);
    memset(schedule, 0, sizeof *schedule);
    schedule->q_bytes = q_bytes;
    schedule->kernel = kernel;
    schedule->states = cattn_states_find();
    schedule->pool = pool;
    schedule->n_heads = shape->n_kv_heads;
    schedule->group = shape->n_heads / shape->n_kv_heads;
    schedule->n_threads = shape->n_threads;
    schedule->block_rows = MOST_BLOCK_ROWS;
    while (schedule->block_rows > 16 && schedule->block_rows * row_bytes > SCRATCH_BYTES)
        schedule->block_rows /= 2;
    schedule->scratch = cattn_calloc(shape->n_threads, sizeof *schedule->scratch);
    if (!schedule->scratch)
        return CATTN_ENOMEM;
    for (uint32_t i = 0; i < shape->n_threads; i++)
        if (!(schedule->scratch[i] = scratch_open(schedule))) {
            cattn_schedule_close(schedule);
            return CATTN_ENOMEM;
        }
    return CATTN_OK;
}

void cattn_schedule_close(struct cattn_schedule *schedule)
{
    for (uint32_t i = 0; schedule->scratch && i < schedule->n_threads; i++)
        cattn_free(schedule->scratch[i]);
    cattn_free(schedule->scratch);
    cattn_free(schedule->tasks);
    cattn_free(schedule->arrived);
    cattn_free(schedule->claims);
    cattn_pool_free(schedule->parts, schedule->parts_room, 1);
}

/* ---- cutting --------------------------------------------------------------------------------------- */

/* How the attention of one head is cut: n_pieces blocks of rows, each into n_groups groups of spans.  A group has every
 * n_groups-th span: what a window hides, or a short sequence lacks, is then taken from all of them. */
struct cut {
    uint32_t rows, n_pieces;
    uint32_t n_spans, n_groups;
    int by_cost; /* pieces cost about the same; else they have as many rows */
};

static uint32_t divide_up(uint64_t a, uint64_t b)
{
    return (uint32_t)((a + b - 1) / b);
}

static uint32_t smaller(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

/* What is divided besides heads and blocks of rows.  Heads divide best: nothing is read twice and nothing is merged.
 * Where spans are divided states are merged, and where rows are a shared chunk is read again. */
enum { BY_SPANS = 1, BY_ROWS = 2, N_WAYS = 4 };

static struct cut cut_rows(const struct cattn_schedule *schedule, uint64_t n_rows, uint64_t max_tokens, int way)
{
    const uint32_t threads = schedule->n_threads;
    struct cut cut = {0};
    cut.rows = (uint32_t)(n_rows * schedule->group);
    if (!cut.rows)
        return cut;
    cut.n_pieces = divide_up(cut.rows, schedule->block_rows);
    cut.n_spans = divide_up(max_tokens, CATTN_SPAN);
    cut.n_groups = 1;
    if (way & BY_SPANS)
        cut.n_groups =
            smaller(cut.n_spans, divide_up(4 * (uint64_t)threads, (uint64_t)schedule->n_heads * cut.n_pieces));
    if (way & BY_ROWS)
        cut.n_pieces = smaller(cut.rows, (uint64_t)cut.n_pieces * threads);
    cut.by_cost = (way & BY_ROWS) != 0;
    return cut;
}

static int reserve_arrived(struct cattn_schedule *schedule, size_t n)
{
    if (schedule->arrived_room >= n)
        return CATTN_OK;
    arrival *arrived = cattn_calloc(n, sizeof *arrived);
    if (!arrived)
        return CATTN_ENOMEM;
    cattn_free(schedule->arrived);
    schedule->arrived = arrived;
    schedule->arrived_room = n;
    return CATTN_OK;
}

static int reserve_tasks(struct cattn_schedule *schedule, size_t n)
{
    if (schedule->tasks_room >= n)
        return CATTN_OK;
    struct cattn_task *tasks = cattn_realloc(schedule->tasks, n, sizeof *tasks);
    if (!tasks)
        return CATTN_ENOMEM;
    schedule->tasks = tasks;
    claim *claims = cattn_calloc(n, schedule->n_heads * sizeof *claims);
    if (!claims)
        return CATTN_ENOMEM;
    cattn_free(schedule->claims);
    schedule->claims = claims;
    schedule->tasks_room = (uint32_t)n;
    return CATTN_OK;
}

/* Mapped, in small pages: short sequences never touch the spans they do not have. */
static int reserve_parts(struct cattn_schedule *schedule, size_t n_bytes)
{
    if (schedule->parts_room >= n_bytes)
        return CATTN_OK;
    float *parts = cattn_pool_alloc(n_bytes, 1, false);
    if (!parts)
        return CATTN_ENOMEM;
    cattn_pool_free(schedule->parts, schedule->parts_room, 1);
    schedule->parts = parts;
    schedule->parts_room = n_bytes;
    return CATTN_OK;
}

static size_t state_floats(const struct cattn_schedule *schedule)
{
    return cattn_state_floats(schedule->pool->layout.v_pad);
}

/* Enough for any list within the bounds.  Fewer rows may be cut into more tasks, so what cut_rows() makes of the bounds
 * themselves does not say: p blocks of rows become at most p * threads, each in at most 4 * threads / (heads * p)
 * groups, and spans are divided only where heads * p < 4 * threads. */
int cattn_schedule_reserve(struct cattn_schedule *schedule, const struct cattn_work_bounds *bounds)
{
    if (bounds->n_rows > UINT32_MAX / schedule->group)
        return CATTN_ENOMEM;
    const uint32_t threads = schedule->n_threads, heads = schedule->n_heads;
    const uint64_t rows = bounds->n_rows * schedule->group;
    const size_t pieces = divide_up(rows, schedule->block_rows), spans = divide_up(bounds->max_tokens, CATTN_SPAN);
    const size_t few_rows = smaller(rows, (uint64_t)schedule->block_rows * ((4 * threads - 1) / heads));
    const size_t states = threads > 1 && spans > 1 ? heads * few_rows * spans : 0;
    int status = reserve_tasks(schedule, threads * (divide_up(4 * (uint64_t)threads, heads) + pieces));
    if (status == CATTN_OK)
        status = reserve_arrived(schedule, heads * pieces * threads);
    if (status == CATTN_OK)
        status = reserve_parts(schedule, states * state_floats(schedule) * sizeof(float));
    return status;
}

/* ---- planning -------------------------------------------------------------------------------------- */

static uint32_t span_chunks(const struct cattn_work *work)
{
    return CATTN_SPAN / work->chunk_tokens;
}

/* The rows [*first, *end) of an item that a task has, numbered within the task. */
static void overlap(const struct cattn_schedule *schedule, const struct cattn_task *task,
                    const struct cattn_work_item *item, uint32_t *first, uint32_t *end)
{
    const uint32_t begin = item->first_row * schedule->group, stop = begin + item->n_rows * schedule->group;
    *first = begin < task->first ? 0 : begin - task->first;
    *end = stop < task->first ? 0 : smaller(stop - task->first, task->n);
}

/* The chunk, or, if its span is another task's, the first of the next span that is this one's. */
static uint64_t own_chunk(const struct cattn_task *task, uint32_t per_span, uint64_t chunk)
{
    const uint64_t span = chunk / per_span, past = (span + task->span_step - task->first_span) % task->span_step;
    return past ? (span - past + task->span_step) * per_span : chunk;
}

/* A block of rows of which n see a run: each of its spans costs the task that has it. */
static void add_cost(struct cattn_schedule *schedule, const struct cattn_work *work, const struct cut *cut,
                     const struct cattn_work_run *run, uint32_t piece, uint64_t n)
{
    const uint32_t read = 8; /* what a chunk costs without rows, in rows: it must come from memory */
    const uint32_t per_span = span_chunks(work), end = run->first_chunk + run->n_chunks;
    struct cattn_task *tasks = &schedule->tasks[piece * cut->n_groups];
    for (uint32_t chunk = run->first_chunk, next; n && chunk < end; chunk = next) {
        const uint32_t span = chunk / per_span;
        next = smaller(end, ((uint64_t)span + 1) * per_span);
        tasks[span % cut->n_groups].cost += (n + read) * (next - chunk);
    }
}

/* The block of rows that has the row. */
static uint32_t piece_of(const struct cattn_schedule *schedule, const struct cut *cut, uint32_t row)
{
    uint32_t low = 0, high = cut->n_pieces - 1;
    while (low < high) {
        const uint32_t middle = (low + high + 1) / 2;
        if (schedule->tasks[middle * cut->n_groups].first <= row)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Item by item and not task by task, of which there may be thousands: each step is planned.  Rows are in the order of
 * items, so a run comes to one block of rows after the other. */
static void add_costs(struct cattn_schedule *schedule, const struct cattn_work *work, const struct cut *cut)
{
    for (size_t r = 0; r < work->n_runs; r++) {
        const struct cattn_work_run *run = &work->runs[r];
        uint32_t piece = 0, n = 0;
        for (uint32_t i = 0; i < run->n_items; i++) {
            const struct cattn_work_item *item = &work->items[work->run_items[run->items + i]];
            const uint32_t stop = (item->first_row + item->n_rows) * schedule->group;
            for (uint32_t row = item->first_row * schedule->group, next; row < stop; row = next) {
                const uint32_t at = piece_of(schedule, cut, row);
                const struct cattn_task *task = &schedule->tasks[at * cut->n_groups];
                next = smaller(stop, task->first + task->n);
                if (at != piece) {
                    add_cost(schedule, work, cut, run, piece, n);
                    piece = at;
                    n = 0;
                }
                n += next - row;
            }
        }
        add_cost(schedule, work, cut, run, piece, n);
    }
}

static uint64_t longest(const struct cattn_work *work)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < work->n_items; i++) {
        const uint64_t length = work->items[i].position + work->items[i].n_rows;
        tokens = length > tokens ? length : tokens;
    }
    return tokens;
}

/* About what a row of the item costs. */
static uint64_t row_cost(const struct cattn_work *work, const struct cattn_work_item *item)
{
    return (item->position + item->n_rows) / work->chunk_tokens + 1;
}

static uint64_t cost_of_rows(const struct cattn_schedule *schedule, const struct cattn_work *work)
{
    uint64_t cost = 0;
    for (uint32_t i = 0; i < work->n_items; i++)
        cost += (uint64_t)work->items[i].n_rows * schedule->group * row_cost(work, &work->items[i]);
    return cost;
}

/* Where a walk over the rows in order is: so many rows, which cost so much, lie behind it. */
struct walk {
    const struct cattn_work_item *item;
    uint32_t rows;
    uint64_t cost;
};

/* Takes rows up to a cost, but `least` of them, and no more than `most`. */
static void walk_on(const struct cattn_schedule *schedule, const struct cattn_work *work, struct walk *walk,
                    uint64_t cost, uint32_t least, uint32_t most)
{
    for (uint32_t n = 0; n < most; n++) {
        while (walk->rows == (walk->item->first_row + walk->item->n_rows) * schedule->group)
            walk->item++;
        const uint64_t own = row_cost(work, walk->item);
        if (n >= least && walk->cost + own / 2 >= cost)
            break;
        walk->cost += own;
        walk->rows++;
    }
}

static void list_tasks(struct cattn_schedule *schedule, const struct cattn_work *work, const struct cut *cut)
{
    const uint64_t rows_cost = cut->by_cost ? cost_of_rows(schedule, work) : 0;
    struct walk walk = {work->items, 0, 0};
    schedule->n_pieces = cut->n_pieces;
    schedule->n_spans = cut->n_groups > 1 ? cut->n_spans : 0;
    schedule->n_tasks = cut->n_pieces * cut->n_groups;
    schedule->total_cost = 0;
    for (uint32_t piece = 0; piece < cut->n_pieces; piece++) {
        const uint32_t first = walk.rows, left = cut->rows - first, others = cut->n_pieces - piece - 1;
        const uint64_t room = (uint64_t)others * schedule->block_rows; /* for what this piece leaves */
        if (cut->by_cost)
            walk_on(schedule, work, &walk, (uint64_t)((double)rows_cost * (piece + 1) / cut->n_pieces),
                    left > room ? (uint32_t)(left - room) : 1, smaller(schedule->block_rows, left - others));
        else
            walk.rows += divide_up(left, others + 1);
        for (uint32_t group = 0; group < cut->n_groups; group++)
            schedule->tasks[piece * cut->n_groups + group] =
                (struct cattn_task){.first = first,
                                    .n = walk.rows - first,
                                    .piece = piece,
                                    .first_span = group,
                                    .span_step = cut->n_groups,
                                    .cost = 1 + (walk.rows - first) / 2}; /* queries and states of the rows */
    }
    add_costs(schedule, work, cut);
    for (uint32_t i = 0; i < schedule->n_tasks; i++)
        schedule->total_cost += schedule->tasks[i].cost;
}

/* When the last thread is done at the latest, if each takes a task when it has none; times the number of threads. */
static uint64_t latest_end(const struct cattn_schedule *schedule)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < schedule->n_tasks; i++)
        most = schedule->tasks[i].cost > most ? schedule->tasks[i].cost : most;
    return schedule->n_heads * schedule->total_cost + (schedule->n_threads - 1) * most;
}

/* Heads are alike, blocks of rows are not: these must be many. */
static int keeps_busy(const struct cattn_schedule *schedule, const struct cut *cut)
{
    return schedule->n_heads % schedule->n_threads == 0 ||
           (uint64_t)schedule->n_heads * cut->n_pieces >= 4 * (uint64_t)schedule->n_threads;
}

/* Heads and blocks of rows if they keep all threads busy, else whatever is done first. */
void cattn_schedule_plan(struct cattn_schedule *schedule, const struct cattn_work *work)
{
    const uint64_t n_rows = work->n_rows, max_tokens = longest(work);
    struct cut best = cut_rows(schedule, n_rows, max_tokens, 0);
    list_tasks(schedule, work, &best);
    if (!keeps_busy(schedule, &best)) {
        uint64_t least = latest_end(schedule);
        for (int way = 1; way < N_WAYS; way++) {
            const struct cut cut = cut_rows(schedule, n_rows, max_tokens, way);
            list_tasks(schedule, work, &cut);
            const uint64_t end = latest_end(schedule);
            best = end < least ? cut : best;
            least = end < least ? end : least;
        }
        list_tasks(schedule, work, &best);
    }
    memset(schedule->claims, 0, (size_t)schedule->n_heads * schedule->n_tasks * sizeof(claim)); /* passes start at 1 */
}

/* ---- a task ---------------------------------------------------------------------------------------- */

/* A task at work. */
struct job {
    struct cattn_schedule *schedule;
    const struct cattn_work *work;
    const struct cattn_call *call;
    const struct cattn_task *task;
    struct cattn_scratch *scratch;
    struct cattn_rows rows;
    uint32_t head;
};

static float *state_of(const struct job *job, uint32_t row)
{
    return job->scratch->states + row * job->rows.state_stride;
}

static float *total_of(const struct job *job, uint32_t row)
{
    return job->scratch->totals + row * job->rows.state_stride;
}

static float *part_of(const struct job *job, uint32_t row, uint32_t span)
{
    const struct cattn_schedule *schedule = job->schedule;
    const size_t rows = (size_t)job->work->n_rows * schedule->group;
    const size_t index = (job->head * rows + job->task->first + row) * schedule->n_spans + span;
    return schedule->parts + index * job->rows.state_stride;
}

/* Whether the row sees a token of the span. */
static int sees_span(const struct job *job, uint32_t row, uint32_t span)
{
    const struct cattn_scoring *scoring = &job->rows.scoring;
    const uint64_t position = job->scratch->position[row], first = (uint64_t)span * CATTN_SPAN;
    if (position < first)
        return 0;
    return first < scoring->n_sink_tokens || position - first < scoring->window + (CATTN_SPAN - 1) ||
           scoring->window == UINT64_MAX;
}

static uint32_t last_span(const struct job *job, uint32_t row)
{
    return (uint32_t)(job->scratch->position[row] / CATTN_SPAN);
}

static void load_rows(struct job *job)
{
    const struct cattn_schedule *schedule = job->schedule;
    const struct cattn_call *call = job->call;
    const struct cattn_work *work = job->work;
    const struct cattn_layout *layout = job->rows.layout;
    uint32_t first, end;
    for (uint32_t i = 0; i < work->n_items; i++) {
        const struct cattn_work_item *item = &work->items[i];
        overlap(schedule, job->task, item, &first, &end);
        for (uint32_t row = first; row < end; row++) {
            const uint32_t query = (job->task->first + row) / schedule->group;
            const uint32_t head = job->head * schedule->group + (job->task->first + row) % schedule->group;
            const size_t from = query * call->q_row + head * call->q_head;
            schedule->kernel->load_query(layout, call->q, schedule->pool->io_dtype, from,
                                         job->scratch->q + row * schedule->q_bytes);
            job->scratch->position[row] = item->position + (query - item->first_row);
            if (call->variant.alibi_slopes)
                job->scratch->slope[row] = in_log2(call->variant.alibi_slopes[head]);
            job->scratch->span[row] = NO_SPAN;
            job->scratch->has_total[row] = false;
        }
    }
}

/* Lists the task's rows of a run, and the least and the last position among them. */
static uint32_t list_rows(const struct job *job, const struct cattn_work_run *run, uint64_t *least, uint64_t *last)
{
    uint32_t n = 0, first, end;
    *least = UINT64_MAX;
    *last = 0;
    for (uint32_t i = 0; i < run->n_items; i++) {
        overlap(job->schedule, job->task, &job->work->items[job->work->run_items[run->items + i]], &first, &end);
        for (uint32_t row = first; row < end; row++) {
            const uint64_t position = job->scratch->position[row];
            job->scratch->rows[n++] = row;
            *least = position < *least ? position : *least;
            *last = position > *last ? position : *last;
        }
    }
    return n;
}

/* The state of a span goes where the spans before it are: to the row's total, or, when other tasks have other spans
 * of the row, to its place among the parts.  An empty one is left. */
static void close_span(const struct job *job, uint32_t row, uint32_t span)
{
    const uint32_t v_pad = job->rows.layout->v_pad;
    const bool divided = job->schedule->n_spans != 0;
    float *state = state_of(job, row), *to = divided ? part_of(job, row, span) : total_of(job, row);
    if (!divided && job->scratch->has_total[row]) {
        job->schedule->states->take(to, state, v_pad);
        return;
    }
    memcpy(to, state, job->rows.state_stride * sizeof *state);
    cattn_state_clear(state, v_pad);
    job->scratch->has_total[row] = !divided;
}

/* All that the row has seen; empty if that is nothing. */
static float *whole_state(const struct job *job, uint32_t row)
{
    const uint32_t v_pad = job->rows.layout->v_pad;
    float *state = state_of(job, row), *total = total_of(job, row);
    if (job->scratch->span[row] == NO_SPAN)
        cattn_state_clear(state, v_pad);
    if (!job->scratch->has_total[row])
        return state;
    job->schedule->states->merge(total, state, v_pad);
    return total;
}

/* At each span the states start anew, always: whether or not another task goes on there, the same numbers are added in
 * the same order.  (CATTN_NO_SPAN_CUT leaves this out, to show that the tests would see it.) */
static void open_span(const struct job *job, uint32_t n_rows, uint32_t span)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        const uint32_t row = job->scratch->rows[i], before = job->scratch->span[row];
#if CATTN_NO_SPAN_CUT
        if (before != NO_SPAN) {
            if (sees_span(job, row, span))
                job->scratch->span[row] = span;
            continue;
        }
#endif
        if (before == span)
            continue;
        if (before != NO_SPAN)
            close_span(job, row, before);
        else
            cattn_state_clear(state_of(job, row), job->rows.layout->v_pad);
        job->scratch->span[row] = span;
    }
}

/* What is likely to be read from `chunk` of run r on, to be fetched meanwhile: the rest of the run, the next runs, then
 * the first of what comes after this task, which is this head again or the next one. */
static void list_ahead(const struct job *job, size_t r, uint32_t chunk, const unsigned char *ahead[CATTN_AHEAD])
{
    const struct cattn_schedule *schedule = job->schedule;
    const struct cattn_work *work = job->work;
    const size_t block_bytes = job->rows.layout->block_bytes;
    const unsigned char *blocks = job->rows.blocks;
    const int same_head = job->task->piece + 1 < schedule->n_pieces;
    uint32_t n = 0, i = chunk - work->runs[r].first_chunk;
    for (size_t left = work->n_runs + 1; n < CATTN_AHEAD && left > 0; left--, i = 0) {
        for (; n < CATTN_AHEAD && i < work->runs[r].n_chunks; i++)
            ahead[n++] = blocks + work->slots[work->runs[r].slots + i] * block_bytes;
        if (++r < work->n_runs)
            continue;
        if (!same_head && job->head + 1 == schedule->n_heads)
            break;
        blocks = job->rows.blocks + (same_head ? 0 : job->rows.layout->n_slots * block_bytes);
        r = 0;
    }
    while (n < CATTN_AHEAD)
        ahead[n++] = NULL;
}

/* The chunks that rows in a window do not see: [first, end) of all chunks there are. */
struct gap {
    uint64_t first, end;
};

static struct gap find_gap(const struct job *job, uint64_t least)
{
    const struct cattn_scoring *scoring = &job->rows.scoring;
    const uint32_t c = job->work->chunk_tokens;
    return (struct gap){.first = (scoring->n_sink_tokens + c - 1) / c,
                        .end = least < scoring->window ? 0 : (least + 1 - scoring->window) / c};
}

static uint64_t past_gap(const struct gap *gap, uint64_t chunk)
{
    return chunk >= gap->first && chunk < gap->end ? gap->end : chunk;
}

/* The first chunk from `chunk` on that is the task's and that some row sees; at most `end`. */
static uint32_t next_chunk(const struct job *job, const struct gap *gap, uint64_t chunk, uint32_t end)
{
    const uint32_t per_span = span_chunks(job->work);
    chunk = past_gap(gap, own_chunk(job->task, per_span, chunk));
    return smaller(own_chunk(job->task, per_span, chunk), end);
}

static void fold_run(const struct job *job, size_t r)
{
    const struct cattn_work *work = job->work;
    const struct cattn_work_run *run = &work->runs[r];
    const uint32_t per_span = span_chunks(work);
    uint64_t least, last;
    const uint32_t n_rows = list_rows(job, run, &least, &last);
    if (n_rows == 0)
        return;
    const uint32_t end = smaller((uint64_t)run->first_chunk + run->n_chunks, last / work->chunk_tokens + 1);
    const struct gap gap = find_gap(job, least);
    const unsigned char *ahead[CATTN_AHEAD];
    for (uint32_t chunk = next_chunk(job, &gap, run->first_chunk, end); chunk < end;) {
        const uint32_t span = chunk / per_span;
        uint32_t stop = smaller(end, ((uint64_t)span + 1) * per_span);
        if (chunk < gap.first && gap.first < gap.end)
            stop = smaller(stop, gap.first);
        const uint32_t then = next_chunk(job, &gap, stop, end);
        open_span(job, n_rows, span);
        list_ahead(job, r, then, ahead);
        job->schedule->kernel->fold(&job->rows, work->slots + run->slots + (chunk - run->first_chunk), stop - chunk,
                                    (uint64_t)chunk * work->chunk_tokens, job->scratch->rows, n_rows, ahead);
        chunk = then;
    }
}

static void finish_row(const struct job *job, uint32_t row, float *state)
{
    const struct cattn_schedule *schedule = job->schedule;
    const struct cattn_call *call = job->call;
    const uint32_t query = (job->task->first + row) / schedule->group;
    const uint32_t head = job->head * schedule->group + (job->task->first + row) % schedule->group;
    const size_t to = (query * call->out_row + head * call->out_head) * cattn_dtype_size(schedule->pool->io_dtype);
    float *lse = call->lse ? call->lse + (size_t)query * schedule->n_heads * schedule->group + head : NULL;
    if (call->variant.sinks)
        cattn_state_add_sink(state, job->rows.layout->v_pad, in_log2(call->variant.sinks[head]));
    schedule->states->finish(state, job->rows.layout->v_dim, (char *)call->out + to, schedule->pool->io_dtype, lse);
}

/* Merges what all tasks of the piece left, in ascending order. */
static void finish_parts(const struct job *job)
{
    const uint32_t v_pad = job->rows.layout->v_pad;
    for (uint32_t row = 0; row < job->task->n; row++) {
        float *total = total_of(job, row);
        cattn_state_clear(total, v_pad);
        for (uint32_t span = 0; span <= last_span(job, row); span++)
            if (sees_span(job, row, span))
                job->schedule->states->merge(total, part_of(job, row, span), v_pad);
        finish_row(job, row, total);
    }
}

/* A share returns only when each task that it may take is done or in the hands of another one: the counts of a pass are
 * always back at zero when the next begins, even if shares of it never come. */
static int is_last_of_piece(const struct job *job)
{
    const struct cattn_schedule *schedule = job->schedule;
    arrival *arrived = (arrival *)schedule->arrived + (size_t)job->head * schedule->n_pieces + job->task->piece;
    if (atomic_fetch_add_explicit(arrived, 1, memory_order_acq_rel) + 1 < schedule->n_tasks / schedule->n_pieces)
        return 0;
    atomic_store_explicit(arrived, 0, memory_order_relaxed);
    return 1;
}

static void finish_rows(const struct job *job)
{
    const struct cattn_task *task = job->task;
    for (uint32_t row = 0; row < task->n; row++) {
        const uint32_t span = job->scratch->span[row];
#if CATTN_NO_SPAN_CUT
        for (uint32_t s = task->first_span; s < job->schedule->n_spans; s += task->span_step)
            cattn_state_clear(part_of(job, row, s), job->rows.layout->v_pad);
#endif
        if (!job->schedule->n_spans)
            finish_row(job, row, whole_state(job, row));
        else if (span != NO_SPAN)
            close_span(job, row, span);
    }
    if (job->schedule->n_spans && is_last_of_piece(job))
        finish_parts(job);
}

static void run_task(struct job *job)
{
    load_rows(job);
    for (size_t r = 0; r < job->work->n_runs; r++)
        fold_run(job, r);
    finish_rows(job);
}

/* ---- shares ---------------------------------------------------------------------------------------- */

static uint32_t share_begin(uint64_t n, uint32_t ith, uint32_t nth)
{
    return (uint32_t)(n * ith / nth);
}

static void write_share(struct cattn_schedule *schedule, const struct cattn_work *work, const struct cattn_call *call,
                        uint32_t ith, uint32_t nth)
{
    const uint64_t saved = cattn_enter_arithmetic();
    const uint32_t end = share_begin(schedule->n_heads, ith + 1, nth);
    for (uint32_t head = share_begin(schedule->n_heads, ith, nth); head < end; head++)
        cattn_pool_write(schedule->pool, work, call, head);
    cattn_leave_arithmetic(saved);
}

/* Whether the task belongs to the share, by the middle of its cost; or, where a share is whole heads, by its head. */
static int is_mine(const struct cattn_schedule *schedule, uint32_t head, uint64_t middle, int by_heads, uint32_t ith,
                   uint32_t nth)
{
    if (by_heads)
        return head >= share_begin(schedule->n_heads, ith, nth) && head < share_begin(schedule->n_heads, ith + 1, nth);
    const double part = (double)middle / ((double)schedule->total_cost * schedule->n_heads);
    return smaller((uint64_t)(part * nth), nth - 1) == ith;
}

/* True for the one share that is the first to ask. */
static int take_task(const struct job *job, uint32_t i)
{
    claim *claims = job->schedule->claims;
    const uint32_t pass = job->call->pass;
    return atomic_exchange_explicit(&claims[(size_t)job->head * job->schedule->n_tasks + i], pass,
                                    memory_order_relaxed) != pass;
}

static void try_task(struct job *job, uint32_t i)
{
    if (!take_task(job, i))
        return;
    job->task = &job->schedule->tasks[i];
    job->rows.blocks = cattn_pool_blocks(job->schedule->pool, job->call->layer, job->head);
    run_task(job);
}

/* Its own tasks first, in order: neighbours share pages.  Then, since costs are only a guess and threads are held up,
 * what others have not begun, from the end. */
static void run_tasks(struct job *job, int by_heads, uint32_t ith, uint32_t nth)
{
    const struct cattn_schedule *schedule = job->schedule;
    uint64_t cost = 0;
    for (job->head = 0; job->head < schedule->n_heads; job->head++)
        for (uint32_t i = 0; i < schedule->n_tasks; i++) {
            if (is_mine(schedule, job->head, cost + schedule->tasks[i].cost / 2, by_heads, ith, nth))
                try_task(job, i);
            cost += schedule->tasks[i].cost;
        }
    if (by_heads || nth == 1)
        return;
    for (uint32_t head = schedule->n_heads; head-- > 0;)
        for (uint32_t i = schedule->n_tasks; i-- > 0;) {
            job->head = head;
            try_task(job, i);
        }
}

static struct cattn_scoring scoring_of(const struct cattn_layout *layout, const struct cattn_variant *variant)
{
    const double scale = variant->scale > 0 ? variant->scale : 1 / sqrt(layout->k_dim);
    const double cap = variant->softcap < scale * 0x1p128 ? variant->softcap : 0; /* one that no score reaches */
    const struct cattn_scoring scoring = {.scale = cap > 0 ? (float)fmin(scale / cap, FLT_MAX) : in_log2(scale),
                                          .cap = in_log2(cap),
                                          .window = variant->window ? variant->window : UINT64_MAX,
                                          .n_sink_tokens = variant->window ? variant->n_sink_tokens : 0};
    return scoring;
}

static void attend_share(struct cattn_schedule *schedule, const struct cattn_work *work, const struct cattn_call *call,
                         int by_heads, uint32_t ith, uint32_t nth)
{
    const struct cattn_kernel *kernel = schedule->kernel;
    struct cattn_scratch *scratch = schedule->scratch[ith];
    struct job job = {schedule, work, call, NULL, scratch, {0}, 0};
    const uint64_t saved = cattn_enter_arithmetic();
    job.rows = (struct cattn_rows){.layout = &schedule->pool->layout,
                                   .scoring = scoring_of(&schedule->pool->layout, &call->variant),
                                   .position = scratch->position,
                                   .slope = call->variant.alibi_slopes ? scratch->slope : NULL,
                                   .q = scratch->q,
                                   .q_bytes = schedule->q_bytes,
                                   .states = scratch->states,
                                   .state_stride = state_floats(schedule),
                                   .scratch = scratch->kernel};
    if (kernel->enter)
        kernel->enter(scratch->kernel);
    run_tasks(&job, by_heads, ith, nth);
    if (kernel->leave)
        kernel->leave(scratch->kernel);
    cattn_leave_arithmetic(saved);
}

/* Threads for a parallel region.  A forked child has lost the pool of threads that the parent's regions made, whichever
 * cache they were for, and would wait for it for ever: of the process, not of a cache, and so the one thing here that
 * is static. */
static uint32_t region_threads(const struct cattn_schedule *schedule)
{
#if defined(_OPENMP)
    static atomic_int first_process;
    const int process = (int)getpid();
    int first = 0;
    if (schedule->n_threads == 1)
        return 1;
    return atomic_compare_exchange_strong(&first_process, &first, process) || first == process ? schedule->n_threads
                                                                                               : 1;
#else
    (void)schedule;
    return 1;
#endif
}

void cattn_schedule_write(struct cattn_schedule *schedule, const struct cattn_work *work, const struct cattn_call *call,
                          uint32_t ith, uint32_t nth)
{
    const uint32_t n = nth ? smaller(nth, schedule->n_threads) : region_threads(schedule);
    if (nth || n == 1) {
        if (ith < n)
            write_share(schedule, work, call, ith, n);
        return;
    }
#if defined(_OPENMP)
#  pragma omp parallel num_threads(n)
    write_share(schedule, work, call, (uint32_t)omp_get_thread_num(), (uint32_t)omp_get_num_threads());
#endif
}

void cattn_schedule_attend(struct cattn_schedule *schedule, const struct cattn_work *work,
                           const struct cattn_call *call, uint32_t ith, uint32_t nth)
{
    const uint32_t n = nth ? smaller(nth, schedule->n_threads) : region_threads(schedule);
    if (nth || n == 1) {
        if (ith < n && call->k)
            write_share(schedule, work, call, ith, n);
        if (ith < n)
            attend_share(schedule, work, call, call->k != NULL, ith, n);
        return;
    }
#if defined(_OPENMP)
#  pragma omp parallel num_threads(n)
    {
        const uint32_t me = (uint32_t)omp_get_thread_num(), all = (uint32_t)omp_get_num_threads();
        if (call->k)
            write_share(schedule, work, call, me, all);
#  pragma omp barrier
        attend_share(schedule, work, call, 0, me, all);
    }
#endif
}

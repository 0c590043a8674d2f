/* The plan of the CUDA backend as it arrives on the device: every row sees every chunk of its path exactly once, and
 * lengths that were advanced there are those that would have been uploaded. */
#include "schedule.h"

#include "runtime.h"
#include "support/random.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

#define MOST_ITEMS  300
#define MOST_CHUNKS 40
#define N_SLOTS     8192
#define CHUNK       32

struct bench {
    struct cattn_cuda_queue queue;
    struct cattn_cuda_schedule schedule;
    struct cattn_work work;
    struct cattn_work_path paths[MOST_ITEMS];
    uint32_t slots[MOST_ITEMS][MOST_CHUNKS];
    uint32_t n_items, next_slot;
    struct rng rng;
};

static void bench_open(struct bench *b, uint32_t n_kv_heads, uint32_t group, uint32_t n_blocks, uint64_t seed)
{
    const struct cattn_shape shape = {
        .n_heads = n_kv_heads * group, .n_kv_heads = n_kv_heads, .chunk_tokens = CHUNK, .v_head_dim = 8};
    memset(b, 0, sizeof(*b));
    rng_init(&b->rng, seed);
    ck_assert_int_eq(cudaStreamCreate(&b->queue.stream), cudaSuccess);
    ck_assert_int_eq(cattn_cuda_schedule_open(&b->schedule, &b->queue, &shape, n_blocks), CATTN_OK);
    ck_assert_int_eq(cattn_work_init(&b->work, N_SLOTS, CHUNK), CATTN_OK);
}

static void bench_close(struct bench *b)
{
    ck_assert(!atomic_load(&b->queue.failed));
    cattn_cuda_schedule_close(&b->schedule);
    cattn_work_release(&b->work);
    cudaStreamDestroy(b->queue.stream);
}

/* A batch whose paths leave those of earlier items somewhere; 0 rows: a few, or sometimes many. */
static void draw_batch(struct bench *b, uint32_t n_items, uint32_t most_rows)
{
    b->n_items = n_items;
    b->next_slot = 0;
    for (uint32_t i = 0; i < n_items; i++) {
        struct cattn_work_path *path = &b->paths[i];
        const uint32_t from = i ? rng_below(&b->rng, i) : 0;
        const uint32_t shared = i ? rng_below(&b->rng, b->paths[from].n_chunks + 1) : 0;
        const uint32_t most = MOST_CHUNKS - shared < 12 ? MOST_CHUNKS - shared : 12;
        const uint32_t own = shared && rng_below(&b->rng, 4) == 0 ? 0 : 1 + (most ? rng_below(&b->rng, most) : 0);
        path->n_chunks = shared + own > MOST_CHUNKS ? MOST_CHUNKS : shared + own;
        for (uint32_t k = 0; k < path->n_chunks; k++)
            b->slots[i][k] = k < shared ? b->slots[from][k] : b->next_slot++;
        path->slots = b->slots[i];
        const uint32_t end = path->n_chunks * CHUNK - rng_below(&b->rng, CHUNK - 4);
        path->n_rows = 1 + rng_below(&b->rng, most_rows);
        path->n_rows = path->n_rows > end ? end : path->n_rows;
        path->position = end - path->n_rows;
    }
}

static void add_writes(struct bench *b)
{
    cattn_work_clear_writes(&b->work);
    for (uint32_t i = 0; i < b->n_items; i++) {
        const struct cattn_work_path *path = &b->paths[i];
        const uint32_t end = (uint32_t)path->position + path->n_rows, last = (end - 1) / CHUNK;
        const uint32_t begin = last * CHUNK > path->position ? last * CHUNK : (uint32_t)path->position;
        const struct cattn_work_write write = {.slot = path->slots[last],
                                               .begin = begin - last * CHUNK,
                                               .end = end - last * CHUNK,
                                               .row = b->work.items[i].first_row + begin - (uint32_t)path->position};
        cattn_work_add_write(&b->work, &write);
    }
}

static struct cattn_work_bounds bounds_of(const struct bench *b)
{
    struct cattn_work_bounds bounds = {.n_items = b->n_items};
    for (uint32_t i = 0; i < b->n_items; i++) {
        bounds.n_rows += b->paths[i].n_rows;
        bounds.n_chunks += b->paths[i].n_chunks;
    }
    return bounds;
}

static void plan(struct bench *b)
{
    const struct cattn_work_bounds bounds = bounds_of(b);
    ck_assert_int_eq(cattn_work_reserve(&b->work, b->n_items, bounds.n_chunks, b->n_items), CATTN_OK);
    ck_assert_int_eq(cattn_cuda_schedule_reserve(&b->schedule, &bounds), CATTN_OK);
    cattn_work_build(&b->work, b->paths, b->n_items, 1);
    add_writes(b);
    cattn_cuda_schedule_plan(&b->schedule, &b->work);
}

static void advance(struct bench *b, const uint32_t *deltas)
{
    const struct cattn_work_bounds bounds = bounds_of(b);
    for (uint32_t i = 0; i < b->n_items; i++)
        b->paths[i].position += deltas[i];
    ck_assert_int_eq(cattn_cuda_schedule_reserve(&b->schedule, &bounds), CATTN_OK);
    cattn_work_advance(&b->work, b->paths);
    add_writes(b);
    cattn_cuda_schedule_plan(&b->schedule, &b->work);
}

/* ---- what is on the device */

struct device_plan {
    struct cattn_cuda_run *runs;
    struct cattn_cuda_piece *pieces;
    struct cattn_cuda_part *parts;
    struct cattn_cuda_item *items;
    uint32_t *slots, *run_rows, *row_items, *positions;
    struct cattn_cuda_write *writes;
    uint64_t n[CATTN_CUDA_ARRAYS];
};

static void *fetch(struct bench *b, const void *device, size_t n, size_t size)
{
    void *host = malloc(n * size + 1);
    ck_assert_int_eq(cudaStreamSynchronize(b->queue.stream), cudaSuccess);
    ck_assert_int_eq(cudaMemcpy(host, device, n * size, cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
}

static struct device_plan fetch_plan(struct bench *b)
{
    const struct cattn_cuda_plan *p = &b->schedule.plan;
    const uint64_t *n = b->schedule.used.n;
    struct device_plan d = {.runs = fetch(b, p->runs, n[CATTN_CUDA_RUNS], sizeof *p->runs),
                            .pieces = fetch(b, p->pieces, n[CATTN_CUDA_PIECES], sizeof *p->pieces),
                            .parts = fetch(b, p->parts, n[CATTN_CUDA_PARTS], sizeof *p->parts),
                            .items = fetch(b, p->items, n[CATTN_CUDA_ITEMS], sizeof *p->items),
                            .slots = fetch(b, p->slots, n[CATTN_CUDA_SLOTS], sizeof *p->slots),
                            .run_rows = fetch(b, p->run_rows, n[CATTN_CUDA_RUN_ROWS], sizeof *p->run_rows),
                            .row_items = fetch(b, p->row_items, n[CATTN_CUDA_ROW_ITEMS], sizeof *p->row_items),
                            .positions = fetch(b, p->row_positions, n[CATTN_CUDA_POSITIONS], sizeof *p->row_positions),
                            .writes = fetch(b, p->writes, n[CATTN_CUDA_WRITES], sizeof *p->writes)};
    memcpy(d.n, n, sizeof d.n);
    return d;
}

static void free_plan(struct device_plan *d)
{
    void *arrays[] = {d->runs,     d->pieces,    d->parts,     d->items, d->slots,
                      d->run_rows, d->row_items, d->positions, d->writes};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

/* ---- what must hold of it */

static void check_items(const struct bench *b, const struct device_plan *d)
{
    uint32_t row = 0;
    ck_assert_uint_eq(d->n[CATTN_CUDA_ITEMS], b->n_items);
    for (uint32_t i = 0; i < b->n_items; i++) {
        const struct cattn_cuda_item *item = &d->items[i];
        const struct cattn_work_path *path = &b->paths[i];
        uint32_t chunk = 0;
        ck_assert_uint_eq(item->first_row, row);
        ck_assert_uint_le(item->parts + item->n_parts, d->n[CATTN_CUDA_PARTS]);
        for (uint32_t p = 0; p < item->n_parts; p++) {
            const struct cattn_cuda_part *part = &d->parts[item->parts + p];
            ck_assert_uint_lt(part->run, d->n[CATTN_CUDA_RUNS]);
            const struct cattn_cuda_run *run = &d->runs[part->run];
            ck_assert_uint_eq(run->first_token, chunk * CHUNK);
            ck_assert_uint_eq(run->n_tokens % CHUNK, 0);
            for (uint32_t k = 0; k < run->n_tokens / CHUNK; k++, chunk++) {
                ck_assert_uint_lt(chunk, path->n_chunks);
                ck_assert_uint_eq(d->slots[run->slots + k], path->slots[chunk]);
            }
            ck_assert_uint_le(part->first + path->n_rows, run->n_rows);
            for (uint32_t j = 0; j < path->n_rows; j++)
                ck_assert_uint_eq(d->run_rows[run->rows + part->first + j], row + j);
            ck_assert(!run->direct || item->n_parts == 1);
        }
        ck_assert_uint_eq(chunk, path->n_chunks);
        ck_assert_uint_eq(item->direct, d->runs[d->parts[item->parts].run].direct);
        for (uint32_t j = 0; j < path->n_rows; j++, row++) {
            ck_assert_uint_eq(d->row_items[row], i);
            ck_assert_uint_eq(d->positions[row], path->position + j);
        }
    }
    ck_assert_uint_eq(row, b->schedule.plan.n_rows);
}

/* Rows that runs have and no item knows of would be computed and lost, or worse. */
static void check_run_rows(const struct device_plan *d)
{
    uint64_t in_runs = 0, in_parts = 0;
    for (uint64_t i = 0; i < d->n[CATTN_CUDA_RUNS]; i++)
        in_runs += d->runs[i].n_rows;
    for (uint64_t i = 0; i < d->n[CATTN_CUDA_ITEMS]; i++) {
        const uint64_t end = i + 1 < d->n[CATTN_CUDA_ITEMS] ? d->items[i + 1].first_row : d->n[CATTN_CUDA_ROW_ITEMS];
        in_parts += d->items[i].n_parts * (end - d->items[i].first_row);
    }
    ck_assert_uint_eq(in_runs, in_parts);
}

static void check_pieces(const struct bench *b, const struct device_plan *d)
{
    const uint32_t group = b->schedule.group, n_kv_heads = b->schedule.n_kv_heads;
    unsigned char *seen = calloc(d->n[CATTN_CUDA_PIECES] + 1, 1);
    uint64_t *first = calloc(d->n[CATTN_CUDA_RUNS] + 1, sizeof *first), n = 0, n_states = 0, longest = UINT64_MAX;
    for (uint64_t i = 0; i < d->n[CATTN_CUDA_RUNS]; i++) {
        const struct cattn_cuda_run *run = &d->runs[i];
        const uint64_t packed = (uint64_t)run->n_rows * group;
        first[i] = n;
        ck_assert(run->tile_rows == 16 || run->tile_rows == 32 || run->tile_rows == 64);
        ck_assert_uint_eq(run->split_tokens % CATTN_CUDA_TILE, 0);
        ck_assert_uint_ge((uint64_t)run->n_splits * run->split_tokens, run->n_tokens);
        n += (packed + run->tile_rows - 1) / run->tile_rows * run->n_splits;
        ck_assert(!run->direct || run->n_splits == 1);
        if (!run->direct) {
            ck_assert_uint_ge(run->states, n_states); /* no two runs have a state in common */
            n_states = run->states + run->n_splits * n_kv_heads * packed;
        }
    }
    ck_assert_uint_le(n_states, b->schedule.buffers.room.n_states);
    ck_assert_uint_eq(b->schedule.plan.n_folds != 0, n_states != 0);
    uint64_t idle = 0;
    for (uint64_t i = 0; i < d->n[CATTN_CUDA_PIECES]; i++) {
        const struct cattn_cuda_piece *piece = &d->pieces[i];
        idle += piece->tile_rows == 0;
        if (piece->tile_rows == 0)
            continue;
        ck_assert_uint_eq(idle, 0); /* they are the last */
        const struct cattn_cuda_run *run = &d->runs[piece->run];
        const uint64_t n_tiles = ((uint64_t)run->n_rows * group + run->tile_rows - 1) / run->tile_rows;
        const uint64_t tokens = run->split_tokens < run->n_tokens ? run->split_tokens : run->n_tokens;
        ck_assert(piece->split < run->n_splits && piece->tile < n_tiles && piece->tile_rows == run->tile_rows);
        ck_assert_uint_le(tokens, longest);
        longest = tokens;
        unsigned char *mark = &seen[first[piece->run] + piece->split * n_tiles + piece->tile];
        ck_assert_uint_eq(*mark, 0);
        *mark = 1;
    }
    ck_assert_uint_eq(d->n[CATTN_CUDA_PIECES] - idle, n);
    free(first);
    free(seen);
}

static void check_writes(const struct bench *b, const struct device_plan *d)
{
    uint64_t n = 0;
    for (size_t i = 0; i < b->work.n_writes; i++) {
        const struct cattn_work_write *write = &b->work.writes[i];
        for (uint32_t t = write->begin; t < write->end; t++, n++) {
            ck_assert_uint_lt(n, d->n[CATTN_CUDA_WRITES]);
            ck_assert_uint_eq(d->writes[n].slot, write->slot);
            ck_assert_uint_eq(d->writes[n].token, t);
            ck_assert_uint_eq(d->writes[n].row, write->row + t - write->begin);
        }
    }
    ck_assert_uint_eq(n, b->schedule.plan.n_writes);
}

static void check(struct bench *b)
{
    struct device_plan d = fetch_plan(b);
    check_items(b, &d);
    check_run_rows(&d);
    check_pieces(b, &d);
    check_writes(b, &d);
    free_plan(&d);
}

/* ---- tests */

static const uint32_t heads[][2] = {{1, 1}, {8, 4}, {2, 7}, {32, 1}, {1, 64}, {4, 8}};

START_TEST(every_row_sees_its_path_once)
{
    static struct bench b;
    const uint32_t *head = heads[_i % 6];
    bench_open(&b, head[0], head[1], _i % 2 ? 264 : 16, (uint64_t)_i + 1);
    for (int round = 0; round < 12; round++) {
        const uint32_t n_items = 1 + rng_below(&b.rng, round % 3 ? 20 : MOST_ITEMS);
        draw_batch(&b, n_items, round % 4 == 3 ? 200 : 1 + rng_below(&b.rng, 4));
        plan(&b);
        check(&b);
    }
    bench_close(&b);
}
END_TEST

/* Item after item leaves the longest path, so that this has as many runs. */
static void draw_comb(struct bench *b)
{
    b->n_items = MOST_CHUNKS;
    for (uint32_t i = 0; i < b->n_items; i++) {
        for (uint32_t k = 0; k <= i; k++)
            b->slots[i][k] = k;
        b->slots[i][i] = 1000 + i;
        b->paths[i] = (struct cattn_work_path){b->slots[i], i + 1, 1, i * CHUNK + 3};
    }
}

START_TEST(a_plan_for_which_there_is_no_room_is_made_without_sharing)
{
    static struct bench b;
    uint32_t zeros[MOST_ITEMS] = {0};
    bench_open(&b, 2, 4, 4, 5);
    draw_comb(&b);
    plan(&b);
    check(&b);
    struct device_plan d = fetch_plan(&b);
    ck_assert_uint_eq(d.n[CATTN_CUDA_RUNS], b.n_items); /* each its own */
    ck_assert_uint_eq(b.schedule.plan.n_folds, 0);
    free_plan(&d);
    /* later steps make room, for the runs and then for their pieces */
    advance(&b, zeros);
    advance(&b, zeros);
    check(&b);
    d = fetch_plan(&b);
    ck_assert_uint_gt(d.n[CATTN_CUDA_PARTS], 8 * b.n_items);
    free_plan(&d);
    bench_close(&b);
}
END_TEST

START_TEST(a_plan_is_modest_where_memory_is_short)
{
    static struct bench b;
    uint32_t zeros[MOST_ITEMS] = {0};
    bench_open(&b, 2, 4, 4, 6);
    draw_comb(&b);
    plan(&b);
    fake_cuda_memory(fake_cuda_used(0) + 100);
    advance(&b, zeros); /* the wish is not met, and the step goes on */
    check(&b);
    plan(&b);
    const uint64_t calls = fake_cuda_calls("cudaMalloc");
    plan(&b);
    ck_assert_uint_eq(fake_cuda_calls("cudaMalloc"), calls); /* nor is it had again */
    draw_batch(&b, MOST_ITEMS, 3);                           /* what is needed is refused, and changes nothing */
    const struct cattn_work_bounds bounds = bounds_of(&b);
    const struct cattn_cuda_plan before = b.schedule.plan;
    ck_assert_int_eq(cattn_cuda_schedule_reserve(&b.schedule, &bounds), CATTN_ENOMEM);
    ck_assert_mem_eq(&before, &b.schedule.plan, sizeof before);
    fake_cuda_memory((size_t)1 << 30);
    plan(&b);
    check(&b);
    ck_assert(!b.schedule.is_modest); /* memory was short for a while only */
    bench_close(&b);
}
END_TEST

START_TEST(lengths_advance_on_the_device)
{
    static struct bench b;
    uint32_t deltas[MOST_ITEMS];
    bench_open(&b, 4, 2, 64, 7);
    draw_batch(&b, 40, 2);
    for (uint32_t i = 0; i < b.n_items; i++)
        b.paths[i].position = (b.paths[i].n_chunks - 1) * CHUNK + 4 * (b.paths[i].n_chunks > 0);
    plan(&b);
    for (int step = 0; step < 20; step++) {
        const uint64_t launches = fake_cuda_launches(), copies = fake_cuda_calls("cudaMemcpyAsync");
        for (uint32_t i = 0; i < b.n_items; i++)
            deltas[i] = step % 5 == 4 ? i % 2 : 1;
        advance(&b, deltas);
        check(&b);
        if (step % 5 == 4)
            ck_assert_uint_eq(fake_cuda_calls("cudaMemcpyAsync"), copies + 1); /* positions and writes */
        else
            ck_assert_uint_eq(fake_cuda_calls("cudaMemcpyAsync"), copies);
        ck_assert_uint_eq(fake_cuda_launches(), launches + (step % 5 != 4));
    }
    bench_close(&b);
}
END_TEST

START_TEST(staging_memory_is_not_written_before_it_was_read)
{
    /* the device does nothing until it is waited for: what was planned first must still arrive in its turn */
    enum { PLANS = 6, SLOTS = 20 };
    static struct bench b;
    uint32_t expected[PLANS][SLOTS], *seen;
    bench_open(&b, 2, 2, 16, 8);
    draw_batch(&b, 60, 2);
    plan(&b);
    ck_assert_int_eq(cudaMallocHost((void **)&seen, sizeof expected), cudaSuccess);
    for (int i = 0; i < PLANS; i++) {
        draw_batch(&b, 20 + 4 * (uint32_t)i, 2);
        for (uint32_t k = 0; k < b.n_items; k++)
            for (uint32_t chunk = 0; chunk < b.paths[k].n_chunks; chunk++)
                b.slots[k][chunk] += 500 * (uint32_t)i;
        plan(&b);
        memcpy(expected[i], cattn_cuda_schedule_array(&b.schedule, CATTN_CUDA_SLOTS), sizeof expected[i]);
        ck_assert_int_eq(cudaMemcpyAsync(seen + SLOTS * i, b.schedule.plan.slots, sizeof expected[i],
                                         cudaMemcpyDeviceToHost, b.queue.stream),
                         cudaSuccess);
    }
    check(&b);
    ck_assert_mem_eq(seen, expected, sizeof expected);
    cudaFreeHost(seen);
    bench_close(&b);
}
END_TEST

START_TEST(numbers_stay_while_launches_do)
{
    static struct bench b;
    uint32_t ones[MOST_ITEMS], n_numbers = 0;
    bench_open(&b, 8, 4, 264, 9);
    draw_batch(&b, 32, 1);
    for (uint32_t i = 0; i < b.n_items; i++) {
        b.paths[i].n_chunks = 12 + i % 16;
        for (uint32_t k = 0; k < MOST_CHUNKS; k++)
            b.slots[i][k] = k < 8 ? k : 8 + i * MOST_CHUNKS + k;
        b.paths[i].position = (b.paths[i].n_chunks - 1) * CHUNK + 7 * i % CHUNK;
        ones[i] = 1;
    }
    plan(&b);
    uint64_t number = b.schedule.number;
    const void *slots = b.schedule.plan.slots;
    for (int step = 0; step < 200; step++) {
        bool grows = false;
        struct cattn_cuda_plan before = b.schedule.plan;
        for (uint32_t i = 0; i < b.n_items; i++)
            grows |= (b.paths[i].position + 1) / CHUNK >= b.paths[i].n_chunks;
        if (!grows) {
            advance(&b, ones);
        } else {
            for (uint32_t i = 0; i < b.n_items; i++) {
                b.paths[i].position++;
                b.paths[i].n_chunks = (uint32_t)(b.paths[i].position / CHUNK) + 1;
            }
            plan(&b);
        }
        const int equal = !memcmp(&before, &b.schedule.plan, sizeof before);
        ck_assert(equal || b.schedule.number != number);
        n_numbers += b.schedule.number != number;
        number = b.schedule.number;
    }
    ck_assert_ptr_eq(slots, b.schedule.plan.slots); /* the buffers are where they were */
    ck_assert_uint_lt(n_numbers, 10);
    bench_close(&b);
}
END_TEST

/* A graph of another step stores tokens: an empty one must not be taken for it, nor the other way round. */
START_TEST(empty_steps_have_their_number)
{
    static struct bench b;
    bench_open(&b, 1, 2, 20, 4);
    draw_batch(&b, 3, 1);
    plan(&b);
    const uint64_t number = b.schedule.number;
    b.n_items = 0;
    plan(&b);
    const uint64_t empty = b.schedule.number;
    ck_assert_uint_ne(empty, number);
    draw_batch(&b, 3, 1);
    plan(&b);
    ck_assert_uint_ne(b.schedule.number, empty);
    bench_close(&b);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("cuda schedule");
    tcase_add_loop_test(tests, every_row_sees_its_path_once, 0, 12);
    tcase_add_test(tests, a_plan_for_which_there_is_no_room_is_made_without_sharing);
    tcase_add_test(tests, a_plan_is_modest_where_memory_is_short);
    tcase_add_test(tests, lengths_advance_on_the_device);
    tcase_add_test(tests, staging_memory_is_not_written_before_it_was_read);
    tcase_add_test(tests, numbers_stay_while_launches_do);
    tcase_add_test(tests, empty_steps_have_their_number);
    return suite_run(tests);
}

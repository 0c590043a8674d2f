/* The schedule on work lists made by hand: its tasks cover each row and span once, each is run once whoever takes it,
 * the shares of a layer give the same bits in any number, in any order, and what no row sees is not read. */
#include "kernels.h"
#include "memory.h"
#include "schedule.h"
#include "support/bounds.h"
#include "support/dtype.h"
#include "support/guard.h"
#include "support/oracle.h"
#include "support/random.h"
#include "support/suite.h"
#include "support/variant.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { N_SLOTS = 400, MAX_ITEMS = 12, CHUNK = 64, HEAD_DIM = 6, V_DIM = 5, GROUP = 2 };

struct bench {
    struct cattn_shape shape;
    struct cattn_pool pool;
    struct cattn_work work;
    struct rng rng;
    uint32_t slots[MAX_ITEMS][N_SLOTS];
    struct cattn_work_path paths[MAX_ITEMS];
    size_t n_items;
    uint64_t longest;
    uint32_t pass;
    float *q;
    struct cattn_variant *variant;
};

/* A pool full of K and V. */
static void bench_open(struct bench *b, uint32_t n_kv_heads, uint64_t salt)
{
    memset(b, 0, sizeof *b);
    rng_init(&b->rng, salt);
    b->shape = (struct cattn_shape){.n_layers = 1,
                                    .n_heads = n_kv_heads * GROUP,
                                    .n_kv_heads = n_kv_heads,
                                    .head_dim = HEAD_DIM,
                                    .v_head_dim = V_DIM,
                                    .chunk_tokens = CHUNK,
                                    .io_dtype = CATTN_F32,
                                    .kv_dtype = CATTN_F32,
                                    .n_slots = N_SLOTS,
                                    .n_threads = 1};
    b->variant = variant_new(b->shape.n_heads);
    ck_assert_int_eq(cattn_pool_open(&b->pool, &b->shape), CATTN_OK);
    ck_assert_int_eq(cattn_work_init(&b->work, N_SLOTS, CHUNK), CATTN_OK);
    const struct cattn_layout *l = &b->pool.layout;
    for (uint32_t head = 0; head < n_kv_heads; head++)
        for (uint32_t slot = 0; slot < N_SLOTS; slot++) {
            unsigned char *block = cattn_pool_blocks(&b->pool, 0, head) + slot * l->block_bytes;
            for (size_t t = 0; t < CHUNK; t++) {
                for (size_t d = 0; d < HEAD_DIM; d++)
                    dtype_store(CATTN_F32, block, cattn_k_index(l, t, d),
                                (double)(rng_next(&b->rng) >> 40) * 0x1p-23 - 1);
                for (size_t d = 0; d < V_DIM; d++)
                    dtype_store(CATTN_F32, block + l->v_offset, cattn_v_index(l, t, d),
                                (double)(rng_next(&b->rng) >> 40) * 0x1p-23 - 1);
            }
        }
}

static void bench_close(struct bench *b)
{
    cattn_work_release(&b->work);
    cattn_pool_close(&b->pool);
    variant_free(b->variant);
    free(b->q);
}

/* An item whose first chunks are those of an earlier item. */
static void add_item(struct bench *b, uint32_t *next_slot, uint32_t max_chunks)
{
    uint32_t *slots = b->slots[b->n_items], n = (uint32_t)rng_between(&b->rng, 1, max_chunks), shared = 0;
    if (b->n_items && rng_chance(&b->rng, 70)) {
        const struct cattn_work_path *other = &b->paths[rng_below(&b->rng, b->n_items)];
        /* Its last chunk may be a tail, which is nobody else's. */
        shared = (uint32_t)rng_below(&b->rng, (other->n_chunks < n ? other->n_chunks : n));
        memcpy(slots, other->slots, shared * sizeof *slots);
    }
    for (uint32_t i = shared; i < n; i++)
        slots[i] = (*next_slot)++;
    uint64_t length = (uint64_t)(n - 1) * CHUNK + rng_between(&b->rng, 1, CHUNK);
    uint32_t rows = (uint32_t)rng_between(&b->rng, 1, rng_chance(&b->rng, 50) ? 1 : 40);
    rows = rows < length ? rows : (uint32_t)length;
    b->paths[b->n_items++] = (struct cattn_work_path){slots, n, rows, length - rows};
    b->longest = length > b->longest ? length : b->longest;
}

/* The work of the items that there are, and queries for it. */
static void build_items(struct bench *b)
{
    size_t n_chunks = 0, n_rows = 0;
    for (size_t i = 0; i < b->n_items; i++) {
        n_chunks += b->paths[i].n_chunks;
        n_rows += b->paths[i].n_rows;
    }
    ck_assert_int_eq(cattn_work_reserve(&b->work, b->n_items, n_chunks, 0), CATTN_OK);
    cattn_work_build(&b->work, b->paths, b->n_items, 1);
    free(b->q);
    b->q = malloc(n_rows * b->shape.n_heads * HEAD_DIM * sizeof *b->q);
    for (size_t i = 0; i < n_rows * b->shape.n_heads * HEAD_DIM; i++)
        b->q[i] = (float)((double)(rng_next(&b->rng) >> 40) * 0x1p-21 - 4);
}

static void build_work(struct bench *b, size_t n_items, uint32_t max_chunks)
{
    uint32_t next_slot = 0;
    b->n_items = 0;
    b->longest = 0;
    while (b->n_items < n_items && next_slot + max_chunks <= N_SLOTS)
        add_item(b, &next_slot, max_chunks);
    build_items(b);
}

static void draw_variant(struct bench *b, unsigned parts)
{
    variant_draw(b->variant, parts, rng_next(&b->rng), b->shape.n_heads, CHUNK, b->longest);
}

/* ---- one schedule ----------------------------------------------------------------------------------- */

static void schedule_open(struct cattn_schedule *s, struct bench *b, const struct cattn_kernel *kernel,
                          uint32_t threads)
{
    struct cattn_shape shape = b->shape;
    shape.n_threads = threads;
    ck_assert_int_eq(cattn_schedule_open(s, kernel, &b->pool, &shape), CATTN_OK);
}

static void schedule_plan(struct cattn_schedule *s, struct bench *b)
{
    struct cattn_work_bounds bounds = {.n_rows = b->work.n_rows, .max_tokens = b->longest};
    ck_assert_int_eq(cattn_schedule_reserve(s, &bounds), CATTN_OK);
    cattn_schedule_plan(s, &b->work);
}

/* Each row of a head meets each of its spans in one task, and in one only. */
static void check_cover(const struct cattn_schedule *s, const struct bench *b)
{
    uint32_t n_rows = b->work.n_rows * GROUP, n_spans = (uint32_t)((b->longest + CATTN_SPAN - 1) / CATTN_SPAN);
    unsigned char *times = calloc((size_t)n_rows * n_spans, 1);
    for (uint32_t i = 0; i < s->n_tasks; i++) {
        const struct cattn_task *task = &s->tasks[i];
        ck_assert(task->n > 0 && task->first + task->n <= n_rows);
        for (uint32_t row = task->first; row < task->first + task->n; row++)
            for (uint32_t span = task->first_span; span < n_spans; span += task->span_step)
                times[row * n_spans + span]++;
    }
    for (size_t i = 0; i < (size_t)n_rows * n_spans; i++)
        CHECK(times[i] == 1, "row %zu, span %zu: in %d tasks", i / n_spans, i % n_spans, times[i]);
    free(times);
}

/* How many rows of a task see a run. */
static uint64_t count_rows(const struct cattn_task *task, const struct cattn_work *work,
                           const struct cattn_work_run *run)
{
    uint64_t n = 0;
    for (uint32_t row = task->first; row < task->first + task->n; row++)
        for (uint32_t i = 0; i < run->n_items; i++) {
            const struct cattn_work_item *item = &work->items[work->run_items[run->items + i]];
            n += row / GROUP >= item->first_row && row / GROUP - item->first_row < item->n_rows;
        }
    return n;
}

/* A task costs what its own rows and spans cost, and the tasks of a head come to the total. */
static void check_costs(const struct cattn_schedule *s, const struct cattn_work *work)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < s->n_tasks; i++) {
        const struct cattn_task *task = &s->tasks[i];
        uint64_t cost = 1 + task->n / 2;
        for (size_t r = 0; r < work->n_runs; r++) {
            const struct cattn_work_run *run = &work->runs[r];
            const uint64_t n = count_rows(task, work, run);
            for (uint32_t chunk = run->first_chunk; n && chunk < run->first_chunk + run->n_chunks; chunk++)
                cost += chunk * CHUNK / CATTN_SPAN % task->span_step == task->first_span ? n + 8 : 0;
        }
        CHECK(task->cost == cost, "task %u of %u costs %llu, not %llu", i, s->n_tasks, (unsigned long long)task->cost,
              (unsigned long long)cost);
        total += cost;
    }
    ck_assert_uint_eq(s->total_cost, total);
}

/* out, then lse. */
static size_t output_floats(const struct bench *b)
{
    return (size_t)b->work.n_rows * b->shape.n_heads * (V_DIM + 1);
}

static float *attend(struct cattn_schedule *s, struct bench *b, uint32_t nth)
{
    size_t n = (size_t)b->work.n_rows * b->shape.n_heads;
    float *out = guard_alloc(output_floats(b) * sizeof *out, GUARD_NONE);
    struct cattn_call call = {.pass = ++b->pass,
                              .variant = *b->variant,
                              .q = b->q,
                              .out = out,
                              .lse = out + n * V_DIM,
                              .q_row = (size_t)b->shape.n_heads * HEAD_DIM,
                              .q_head = HEAD_DIM,
                              .out_row = (size_t)b->shape.n_heads * V_DIM,
                              .out_head = V_DIM};
    uint32_t order[64];
    for (uint32_t i = 0; i < nth; i++)
        order[i] = i;
    rng_shuffle(&b->rng, order, nth);
    for (uint32_t i = 0; i < nth; i++)
        cattn_schedule_attend(s, &b->work, &call, order[i], nth);
    if (nth == 0)
        cattn_schedule_attend(s, &b->work, &call, 0, 0);
    return out;
}

static void check_row(const struct bench *b, const char *kernel, const struct cattn_work_path *path, uint32_t row,
                      uint32_t j, const float *out)
{
    const struct cattn_layout *l = &b->pool.layout;
    size_t n = path->position + j + 1;
    const struct row_size size = {4 * sqrt(HEAD_DIM), sqrt(HEAD_DIM), 1, n};
    double *k = malloc(n * HEAD_DIM * sizeof *k), *v = malloc(n * V_DIM * sizeof *v), q[HEAD_DIM], expected[V_DIM];
    for (uint32_t h = 0; h < b->shape.n_heads; h++) {
        for (size_t t = 0; t < n; t++) {
            const unsigned char *block =
                cattn_pool_blocks(&b->pool, 0, h / GROUP) + path->slots[t / CHUNK] * l->block_bytes;
            for (size_t d = 0; d < HEAD_DIM; d++)
                k[t * HEAD_DIM + d] = dtype_load(CATTN_F32, block, cattn_k_index(l, t % CHUNK, d));
            for (size_t d = 0; d < V_DIM; d++)
                v[t * V_DIM + d] = dtype_load(CATTN_F32, block + l->v_offset, cattn_v_index(l, t % CHUNK, d));
        }
        for (size_t d = 0; d < HEAD_DIM; d++)
            q[d] = b->q[(row * b->shape.n_heads + h) * HEAD_DIM + d];
        double lse = oracle_row(q, k, v, n, HEAD_DIM, V_DIM, b->variant, h, expected);
        struct bound bound = bound_of_row(kernel, CATTN_F32, CATTN_F32, HEAD_DIM, b->variant, h, &size);
        size_t at = (size_t)row * b->shape.n_heads + h;
        for (size_t d = 0; d < V_DIM; d++)
            CHECK(fabs(out[at * V_DIM + d] - expected[d]) < bound.out + 1e-6, "row %u, head %u: %g, not %g; %s", row, h,
                  out[at * V_DIM + d], expected[d], variant_text(b->variant));
        double got = out[(size_t)b->work.n_rows * b->shape.n_heads * V_DIM + at];
        CHECK(fabs(got - lse) < bound.score + 1e-6 * fabs(lse), "row %u, head %u: lse %g, not %g; %s", row, h, got, lse,
              variant_text(b->variant));
    }
    free(k);
    free(v);
}

static void check_outputs(struct bench *b, const char *kernel, const float *out)
{
    uint32_t first = 0;
    for (size_t i = 0; i < b->n_items; i++) {
        uint32_t j = (uint32_t)rng_below(&b->rng, b->paths[i].n_rows);
        check_row(b, kernel, &b->paths[i], first + j, j, out);
        first += b->paths[i].n_rows;
    }
}

static void check_shares(struct bench *b, const struct cattn_kernel *kernel, const float *expected)
{
    static const uint32_t threads[] = {1, 2, 3, 7, 16}, shares[] = {0, 1, 2, 3, 5, 16, 33};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        struct cattn_schedule s;
        schedule_open(&s, b, kernel, threads[t]);
        schedule_plan(&s, b);
        check_cover(&s, b);
        check_costs(&s, &b->work);
        for (size_t i = threads[t] > 3; i < sizeof shares / sizeof *shares; i++) {
            float *out = attend(&s, b, shares[i]);
            CHECK(!memcmp(out, expected, output_floats(b) * sizeof *out), "%s: %u threads, %u shares; %s", kernel->name,
                  threads[t], shares[i], variant_text(b->variant));
            guard_free(out, 0, GUARD_NONE);
        }
        cattn_schedule_close(&s);
    }
}

static void check_bench(struct bench *b)
{
    for (unsigned k = 0; cattn_kernel_at(k); k++) {
        const struct cattn_kernel *kernel = cattn_kernel_at(k);
        struct cattn_schedule s;
        if (!kernel->takes(&b->shape))
            continue;
        schedule_open(&s, b, kernel, 1);
        schedule_plan(&s, b);
        float *expected = attend(&s, b, 0);
        cattn_schedule_close(&s);
        check_outputs(b, kernel->name, expected);
        if (kernel->exact)
            check_shares(b, kernel, expected);
        guard_free(expected, 0, GUARD_NONE);
    }
}

START_TEST(short_items)
{
    struct bench b;
    for (uint64_t i = 0; i < (test_full() ? 200u : 12u); i++) {
        bench_open(&b, (uint32_t)i % 4 + 1, i);
        build_work(&b, i % MAX_ITEMS + 1, 6);
        draw_variant(&b, variant_parts(&b.rng));
        check_bench(&b);
        bench_close(&b);
    }
}
END_TEST

START_TEST(long_items)
{
    struct bench b;
    for (uint64_t i = 0; i < (test_full() ? 100u : 8u); i++) {
        bench_open(&b, (uint32_t)i % 2 + 1, 1000 + i);
        build_work(&b, i % 4 + 1, 4 * CATTN_SPAN / CHUNK + 9);
        check_bench(&b);
        draw_variant(&b, i % 2 ? VARIANT_WINDOW : variant_parts(&b.rng));
        check_bench(&b);
        bench_close(&b);
    }
}
END_TEST

/* One schedule, one work list after another: what a plan needs was reserved for it, whatever came before. */
START_TEST(one_after_another)
{
    struct bench b;
    struct cattn_schedule s, alone;
    bench_open(&b, 1, 7);
    const struct cattn_kernel *kernel = cattn_kernel_find(NULL, &b.shape);
    schedule_open(&s, &b, kernel, 3);
    for (size_t i = 0; i < 30; i++) {
        build_work(&b, rng_between(&b.rng, 1, MAX_ITEMS), rng_chance(&b.rng, 50) ? 80 : 5);
        draw_variant(&b, variant_parts(&b.rng));
        schedule_plan(&s, &b);
        schedule_open(&alone, &b, kernel, 1);
        schedule_plan(&alone, &b);
        float *out = attend(&s, &b, (uint32_t)rng_below(&b.rng, 5)), *expected = attend(&alone, &b, 0);
        ck_assert_mem_eq(out, expected, output_floats(&b) * sizeof *out);
        guard_free(out, 0, GUARD_NONE);
        guard_free(expected, 0, GUARD_NONE);
        cattn_schedule_close(&alone);
    }
    cattn_schedule_close(&s);
    bench_close(&b);
}
END_TEST

/* The spans that a window leaves of one long sequence are as many tasks' as there are, or as there are threads. */
START_TEST(a_window_keeps_threads_busy)
{
    enum { N_SPANS = 12, N_THREADS = 4 };
    struct bench b;
    struct cattn_schedule s;
    bench_open(&b, 1, 11);
    for (uint32_t i = 0; i < N_SPANS * CATTN_SPAN / CHUNK; i++)
        b.slots[0][i] = i;
    b.longest = N_SPANS * CATTN_SPAN;
    b.paths[b.n_items++] = (struct cattn_work_path){b.slots[0], N_SPANS * CATTN_SPAN / CHUNK, 1, b.longest - 1};
    build_items(&b);
    schedule_open(&s, &b, cattn_kernel_find("generic", &b.shape), N_THREADS);
    schedule_plan(&s, &b);
    check_cover(&s, &b);
    ck_assert_uint_ge(s.n_tasks, N_THREADS);
    for (uint32_t i = 0; i < s.n_tasks; i++) {
        uint32_t n = 0;
        for (uint32_t span = s.tasks[i].first_span; span < N_SPANS; span += s.tasks[i].span_step)
            n += span >= N_SPANS - N_THREADS;
        ck_assert_uint_le(n, 1);
    }
    cattn_schedule_close(&s);
    bench_close(&b);
}
END_TEST

/* With one KV head, rows are divided by what they cost, not by their number. */
START_TEST(long_rows_are_divided)
{
    enum { N_LONG = 3, N_ALL = 12, LONG_CHUNKS = CATTN_SPAN / CHUNK };
    struct bench b;
    struct cattn_schedule s;
    uint64_t most = 0;
    uint32_t slot = 0;
    bench_open(&b, 1, 12);
    for (; b.n_items < N_ALL; b.n_items++) {
        const uint32_t n = b.n_items < N_LONG ? LONG_CHUNKS : 1;
        for (uint32_t i = 0; i < n; i++)
            b.slots[b.n_items][i] = slot++;
        b.paths[b.n_items] = (struct cattn_work_path){b.slots[b.n_items], n, 1, (uint64_t)n * CHUNK - 1};
    }
    b.longest = CATTN_SPAN;
    build_items(&b);
    schedule_open(&s, &b, cattn_kernel_find("generic", &b.shape), 2);
    schedule_plan(&s, &b);
    check_cover(&s, &b);
    for (uint32_t i = 0; i < s.n_tasks; i++)
        most = s.tasks[i].cost > most ? s.tasks[i].cost : most;
    ck_assert_uint_le(10 * most, 7 * s.total_cost);
    cattn_schedule_close(&s);
    bench_close(&b);
}
END_TEST

/* ---- who runs what ---------------------------------------------------------------------------------- */

/* A kernel that only counts: how often a row of a head met a chunk.  Its form of a query is the row's number. */
enum { MOST_ROWS = 1024, MOST_CHUNKS = 5 * CATTN_SPAN / CHUNK };

static _Atomic unsigned char met[MOST_ROWS][MOST_CHUNKS];

static size_t number_bytes(const struct cattn_layout *layout)
{
    (void)layout;
    return 64;
}

static void load_number(const struct cattn_layout *layout, const void *q, uint32_t dtype, size_t first, void *query)
{
    const size_t number = first / HEAD_DIM;
    (void)layout, (void)q, (void)dtype;
    memcpy(query, &number, sizeof number);
}

static void count(const struct cattn_rows *all, const uint32_t *slots, uint32_t n_chunks, uint64_t first,
                  const uint32_t *rows, uint32_t n_rows, const unsigned char *const *next)
{
    (void)slots, (void)next;
    for (uint32_t r = 0; r < n_rows; r++) {
        size_t number;
        memcpy(&number, all->q + rows[r] * all->q_bytes, sizeof number);
        for (uint32_t i = 0; i < n_chunks; i++)
            atomic_fetch_add(&met[number][first / CHUNK + i], 1);
    }
}

static int takes_all(const struct cattn_shape *shape)
{
    (void)shape;
    return 1;
}

static const struct cattn_kernel counter = {
    .name = "counter", .takes = takes_all, .query_bytes = number_bytes, .load_query = load_number, .fold = count};

struct share {
    pthread_t thread;
    struct cattn_schedule *schedule;
    const struct cattn_work *work;
    const struct cattn_call *call;
    uint32_t ith, nth;
};

static void *run_share(void *argument)
{
    const struct share *s = argument;
    cattn_schedule_attend(s->schedule, s->work, s->call, s->ith, s->nth);
    return NULL;
}

/* Each share on a thread of its own. */
static void attend_on_threads(struct cattn_schedule *s, struct bench *b, const struct cattn_call *call, uint32_t nth)
{
    struct share shares[16];
    for (uint32_t i = 0; i < nth; i++) {
        shares[i] = (struct share){.schedule = s, .work = &b->work, .call = call, .ith = i, .nth = nth};
        ck_assert_int_eq(pthread_create(&shares[i].thread, NULL, run_share, &shares[i]), 0);
    }
    for (uint32_t i = 0; i < nth; i++)
        pthread_join(shares[i].thread, NULL);
}

static int sees_chunk(const struct bench *b, uint64_t position, uint64_t chunk)
{
    for (uint64_t t = chunk * CHUNK; t < (chunk + 1) * CHUNK; t++)
        if (oracle_sees(b->variant, position, t))
            return 1;
    return 0;
}

/* Every row met the chunks that it sees, once, and the others not more often; chunks of an item that none of its rows
 * sees, nor a row that shares them, were not touched. */
static void check_met(struct bench *b)
{
    static unsigned char seen[N_SLOTS];
    memset(seen, 0, sizeof seen);
    for (size_t i = 0; i < b->n_items; i++)
        for (uint32_t j = 0; j < b->paths[i].n_rows; j++)
            for (uint32_t chunk = 0; chunk < b->paths[i].n_chunks; chunk++)
                seen[b->paths[i].slots[chunk]] |= (unsigned char)sees_chunk(b, b->paths[i].position + j, chunk);
    for (size_t i = 0, row = 0; i < b->n_items; i++)
        for (uint32_t j = 0; j < b->paths[i].n_rows; j++, row++)
            for (uint32_t chunk = 0; chunk < b->paths[i].n_chunks; chunk++)
                for (uint32_t h = 0; h < b->shape.n_heads; h++) {
                    const unsigned times = met[row * b->shape.n_heads + h][chunk];
                    const int sees = sees_chunk(b, b->paths[i].position + j, chunk);
                    CHECK(sees ? times == 1 : times <= seen[b->paths[i].slots[chunk]],
                          "row %zu, head %u, chunk %u, %s: met %u times; %s", row, h, chunk, sees ? "seen" : "unseen",
                          times, variant_text(b->variant));
                }
}

static struct cattn_call counting_call(struct bench *b, float *out)
{
    return (struct cattn_call){.pass = ++b->pass,
                               .variant = *b->variant,
                               .q = b->q,
                               .out = out,
                               .q_row = (size_t)b->shape.n_heads * HEAD_DIM,
                               .q_head = HEAD_DIM,
                               .out_row = (size_t)b->shape.n_heads * V_DIM,
                               .out_head = V_DIM};
}

/* Shares in any order, all or only some of them called, one after another or at once: what is called first takes over
 * what others have not begun. */
static void count_passes(struct bench *b, struct cattn_schedule *s)
{
    float *out = malloc(output_floats(b) * sizeof *out);
    for (uint32_t pass = 0; pass < 6; pass++) {
        const uint32_t nth = (uint32_t)rng_between(&b->rng, 1, 9), called = (uint32_t)rng_between(&b->rng, 1, nth);
        struct cattn_call call = counting_call(b, out);
        uint32_t order[9];
        for (uint32_t i = 0; i < nth; i++)
            order[i] = i;
        memset(met, 0, sizeof met);
        memset(out, 0xff, output_floats(b) * sizeof *out);
        rng_shuffle(&b->rng, order, nth);
        if (pass % 2)
            attend_on_threads(s, b, &call, nth);
        else
            for (uint32_t i = 0; i < nth && (i < called || order[i - 1] >= s->n_threads); i++)
                cattn_schedule_attend(s, &b->work, &call, order[i], nth);
        check_met(b);
        for (size_t i = 0; i < (size_t)b->work.n_rows * b->shape.n_heads * V_DIM; i++)
            CHECK(out[i] == 0, "nothing was put out at %zu", i);
    }
    free(out);
}

START_TEST(tasks_run_once)
{
    size_t n_parts = 0;
    for (uint64_t i = 0; i < (test_full() ? 200u : 24u); i++) {
        struct bench b;
        struct cattn_schedule s;
        bench_open(&b, (uint32_t)i % 2 + 1, 2000 + i);
        build_work(&b, i % 4 + 1, i % 3 ? MOST_CHUNKS : 6);
        ck_assert_uint_le(b.work.n_rows * b.shape.n_heads, MOST_ROWS);
        draw_variant(&b, i % 4 ? VARIANT_WINDOW : 0);
        schedule_open(&s, &b, &counter, (uint32_t)i % 5 + 1);
        schedule_plan(&s, &b);
        n_parts += s.n_spans > 0;
        count_passes(&b, &s);
        cattn_schedule_close(&s);
        bench_close(&b);
    }
    CHECK(n_parts > 3, "spans were divided %zu times", n_parts);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("schedule");
    tcase_add_test(tcase, short_items);
    tcase_add_test(tcase, long_items);
    tcase_add_test(tcase, one_after_another);
    tcase_add_test(tcase, a_window_keeps_threads_busy);
    tcase_add_test(tcase, long_rows_are_divided);
    tcase_add_test(tcase, tasks_run_once);
    return suite_run(tcase);
}

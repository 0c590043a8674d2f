/* How fast each kernel is with its data in the caches, as a share of what the processor multiplies at in the same run.
 */
#include "arithmetic.h"
#include "checkkernels.h"
#include "harness.h"
#include "kernels.h"
#include "simd.h"
#include "store.h"
#include "support/dtype.h"
#include "support/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOKENS = CATTN_SPAN, CHUNK_TOKENS = 64, DIM = 128, MOST_ROWS = 32, N_CHUNKS = N_TOKENS / CHUNK_TOKENS };

/* All rows see all tokens. */
struct unit {
    const struct cattn_kernel *kernel;
    struct cattn_pool pool;
    struct cattn_rows rows;
    uint64_t position[MOST_ROWS];
    uint32_t slots[N_CHUNKS], listed[MOST_ROWS];
    const unsigned char *next[CATTN_AHEAD]; /* the first ones again */
};

/* The largest number of the type that has lost its leading bit, or 1: what inputs are multiplied by. */
static double factor_of(uint32_t dtype, int denormal)
{
    return !denormal ? 1 : dtype == CATTN_F16 ? 0x1p-15 : 0x1p-127;
}

static float *some_floats(size_t n, double factor)
{
    struct rng rng;
    float *x = malloc(n * sizeof *x);
    rng_init(&rng, n);
    for (size_t i = 0; x && i < n; i++)
        x[i] = (float)(((double)rng_below(&rng, 2001) / 1000 - 1) * factor);
    return x;
}

static void fill_pool(struct cattn_pool *pool, double factor)
{
    float *k = some_floats((size_t)N_TOKENS * DIM, factor), *v = some_floats((size_t)N_TOKENS * DIM, factor);
    struct cattn_work_write write = {.end = CHUNK_TOKENS};
    const struct cattn_work work = {.chunk_tokens = CHUNK_TOKENS, .n_writes = 1, .writes = &write};
    const struct cattn_call call = {.k = k, .v = v, .k_row = DIM, .v_row = DIM};
    for (; write.slot < N_CHUNKS; write.slot++, write.row += CHUNK_TOKENS)
        cattn_pool_write(pool, &work, &call, 0);
    free(k);
    free(v);
}

static void unit_open(struct unit *u, const struct cattn_kernel *kernel, const struct cattn_shape *shape, int denormal)
{
    const double factor = factor_of(shape->kv_dtype, denormal);
    *u = (struct unit){.kernel = kernel};
    if (cattn_pool_open(&u->pool, shape) != CATTN_OK)
        exit(EXIT_FAILURE);
    fill_pool(&u->pool, factor);
    const struct cattn_layout *layout = &u->pool.layout;
    const size_t q_bytes = kernel->query_bytes(layout), stride = cattn_state_floats(layout->v_pad);
    unsigned char *q = bench_alloc(MOST_ROWS * q_bytes);
    float *states = bench_alloc(MOST_ROWS * stride * sizeof *states), *queries = some_floats(MOST_ROWS * DIM, 3);
    void *scratch = kernel->scratch_bytes ? bench_alloc(kernel->scratch_bytes(layout)) : NULL;
    for (uint32_t r = 0; r < MOST_ROWS; r++) {
        kernel->load_query(layout, queries, CATTN_F32, (size_t)r * DIM, q + r * q_bytes);
        u->position[r] = N_TOKENS;
        u->listed[r] = r;
    }
    free(queries);
    for (uint32_t i = 0; i < N_CHUNKS; i++)
        u->slots[i] = i;
    for (uint32_t i = 0; i < CATTN_AHEAD; i++)
        u->next[i] = u->pool.bytes + i * layout->block_bytes;
    u->rows = (struct cattn_rows){.layout = layout,
                                  .blocks = u->pool.bytes,
                                  .scoring = {.scale = 0.1275f, .window = UINT64_MAX},
                                  .position = u->position,
                                  .q = q,
                                  .q_bytes = q_bytes,
                                  .states = states,
                                  .state_stride = stride,
                                  .scratch = scratch};
}

static void unit_close(struct unit *u)
{
    bench_free((void *)u->rows.q, MOST_ROWS * u->rows.q_bytes);
    bench_free(u->rows.states, MOST_ROWS * u->rows.state_stride * sizeof(float));
    if (u->rows.scratch)
        bench_free(u->rows.scratch, u->kernel->scratch_bytes(&u->pool.layout));
    cattn_pool_close(&u->pool);
}

static void fold_once(const struct unit *u, uint32_t n_rows)
{
    for (uint32_t r = 0; r < n_rows; r++)
        cattn_state_clear(u->rows.states + r * u->rows.state_stride, u->pool.layout.v_pad);
    u->kernel->fold(&u->rows, u->slots, N_CHUNKS, 0, u->listed, n_rows, u->next);
}

/* Seconds that a figure is taken over. */
#define ENOUGH 0.01

/* Seconds of one fold, over a while. */
static double time_unit(const struct unit *u, uint32_t n_rows)
{
    const double start = bench_now();
    double seconds;
    unsigned n = 0;
    const uint64_t saved = cattn_enter_arithmetic();
    if (u->kernel->enter)
        u->kernel->enter(u->rows.scratch);
    do {
        fold_once(u, n_rows);
        n++;
    } while ((seconds = bench_now() - start) < ENOUGH);
    if (u->kernel->leave)
        u->kernel->leave(u->rows.scratch);
    cattn_leave_arithmetic(saved);
    return seconds / n;
}

/* Multiplications and additions a second: the best of as long a while as a kernel gets, since a processor may take some
 * of it to come to full speed with wide vectors. */
static double multiply_add_rate(void)
{
    const double start = bench_now();
    double best = 0, begin, end = start;
    do {
        begin = end;
        const double operations = bench_simd()->multiply_add(100000);
        end = bench_now();
        best = fmax(best, operations / (end - begin));
    } while (end - start < ENOUGH);
    return best;
}

/* The best of some goes, in turn: what disturbs one of them should not count. */
static void bench_rows(const struct unit *normal, const struct unit *denormal, uint32_t n_rows)
{
    enum { N_GOES = 10 };
    const double operations = 2.0 * 2 * DIM * N_TOKENS * n_rows;
    double seconds = INFINITY, seconds_denormal = INFINITY, peak = 0;
    for (int go = 0; go < N_GOES; go++) {
        seconds = fmin(seconds, time_unit(normal, n_rows));
        seconds_denormal = fmin(seconds_denormal, time_unit(denormal, n_rows));
        peak = fmax(peak, multiply_add_rate());
    }
    printf("%-10s %-5s %4u %12.1f %10.2f %8.1f%% %10.2f\n", normal->kernel->name, dtype_name(normal->pool.layout.dtype),
           n_rows, seconds * 1e9 / (N_TOKENS / 64) / n_rows, operations / seconds / 1e9,
           100 * operations / seconds / peak, seconds_denormal / seconds);
    fflush(stdout);
}

static void bench_one(const struct cattn_kernel *kernel, const struct cattn_shape *shape)
{
    static const uint32_t row_counts[] = {1, 4, MOST_ROWS};
    struct unit normal, denormal;
    unit_open(&normal, kernel, shape, 0);
    unit_open(&denormal, kernel, shape, 1);
    for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts; i++)
        bench_rows(&normal, &denormal, row_counts[i]);
    unit_close(&denormal);
    unit_close(&normal);
}

int bench_kernels(const char *name)
{
    const struct cattn_kernel *kernel;
    printf(
        "%u tokens, head_dim %u, chunk %u, one thread; peak: multiply-add of %s, %.1f GFLOP/s now; denormal: time with "
        "denormal K and V, over that without\n",
        N_TOKENS, DIM, CHUNK_TOKENS, bench_simd()->name, multiply_add_rate() / 1e9);
    printf("%-10s %-5s %4s %12s %10s %9s %10s\n", "kernel", "kv", "rows", "ns/row/64", "GFLOP/s", "of peak",
           "denormal");
    for (unsigned k = 0; (kernel = cattn_kernel_at(k)); k++)
        for (uint32_t dtype = CATTN_F32; dtype <= CATTN_I8; dtype++) {
            const struct cattn_shape shape = {.n_layers = 1,
                                              .n_heads = 1,
                                              .n_kv_heads = 1,
                                              .head_dim = DIM,
                                              .v_head_dim = DIM,
                                              .chunk_tokens = CHUNK_TOKENS,
                                              .io_dtype = CATTN_F32,
                                              .kv_dtype = dtype,
                                              .n_slots = N_CHUNKS,
                                              .n_threads = 1};
            if ((!name || !strcmp(name, kernel->name)) && kernel->takes(&shape))
                bench_one(kernel, &shape);
        }
    return EXIT_SUCCESS;
}

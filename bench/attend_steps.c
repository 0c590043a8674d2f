#include <math.h>
#include <stdlib.h>

#include "attend_batch.h"
#include "attend_steps.h"
#include "harness.h"

static int complain(int status)
{
    bench_progress_end();
    if (status != CATTN_OK)
        fprintf(stderr, "attend: %s\n", cattn_strerror(status));
    return status == CATTN_OK ? 0 : -1;
}

/* ---- balance ---------------------------------------------------------------------------------------------------- */

enum { MOST_GROUPS = 5, MOST_THREADS = 1024 };

/* Deep: the document's prefixes are shared by ever more sequences.  Flat: nothing is shared. */
static const struct skewed {
    const char *name;
    struct bench_group groups[MOST_GROUPS];
} batches[] = {
    {"even", {{32, 1024, 64}}},
    {"one long", {{1, 0, 8192}, {31, 0, 64}}},
    {"long and short", {{2, 0, 3072}, {4, 0, 1024}, {10, 0, 300}, {16, 0, 40}}},
    {"deep", {{4, 4096, 64}, {4, 2048, 200}, {8, 1024, 64}, {16, 512, 64}}},
    {"deep and flat", {{2, 4096, 1024}, {6, 2048, 64}, {8, 512, 300}, {1, 0, 3000}, {15, 0, 64}}},
};
enum { N_BATCHES = sizeof batches / sizeof batches[0] };

/* How the shares of a layer are called. */
enum way {
    ALONE,         /* one share is all of it, on one thread */
    HEADS_IN_TURN, /* with K and V, one share after another on one thread: what each has to do */
    HEADS,         /* with K and V, at once: each share keeps to its KV heads */
    FREE,          /* K and V were stored before, at once: work is split freely */
    N_WAYS
};

struct shares {
    struct bench_batch *batch;
    struct cattn_io io;
    uint32_t layer, n;
    double start;
    double ends[MOST_THREADS]; /* seconds after the start; in turn: seconds that each took */
    int status[MOST_THREADS];
};

static void run_share(void *context, uint32_t ith, uint32_t nth)
{
    struct shares *shares = context;
    shares->status[ith] = cattn_step_attend_part(shares->batch->step, shares->layer, &shares->io, ith, nth);
    shares->ends[ith] = bench_now() - shares->start;
}

static int run_shares(struct shares *shares, enum way way)
{
    int status = CATTN_OK;

    shares->io = bench_batch_io(shares->batch, way == HEADS || way == HEADS_IN_TURN);
    shares->start = bench_now();
    if (way == HEADS || way == FREE)
        bench_parallel(shares->n, run_share, shares);
    for (uint32_t i = 0; i < shares->n && (way == ALONE || way == HEADS_IN_TURN); i++) {
        const double before = bench_thread_now();
        run_share(shares, i, shares->n);
        if (way == HEADS_IN_TURN)
            shares->ends[i] = bench_thread_now() - before;
    }
    for (uint32_t i = 0; i < shares->n; i++)
        status = status == CATTN_OK ? shares->status[i] : status;
    return status;
}

/* The last end, and how many times the mean it is. */
static void summarize(const struct shares *shares, double *last, double *behind)
{
    double sum = 0.0;

    *last = 0.0;
    for (uint32_t i = 0; i < shares->n; i++) {
        *last = fmax(*last, shares->ends[i]);
        sum += shares->ends[i];
    }
    *behind = *last * shares->n / sum;
}

struct balance {
    struct bench_samples us[N_WAYS], behind[N_WAYS];
};

static int measure_ways(struct bench_batch *batch, const struct bench_options *options, struct balance *balance)
{
    const double end = bench_now() + options->passes * options->turn_seconds * N_WAYS;
    struct shares shares = {.batch = batch};
    uint32_t rounds = 0;
    int status = CATTN_OK;

    do
        for (int way = 0; status == CATTN_OK && way < N_WAYS; way++) {
            double last, behind;
            shares.n = way == ALONE ? 1 : options->shapes[0].threads;
            shares.layer = rounds % batch->n_layers;
            status = run_shares(&shares, (enum way)way);
            summarize(&shares, &last, &behind);
            if (rounds > 0 && status == CATTN_OK &&
                (bench_samples_add(&balance->us[way], last * 1e6) != 0 ||
                 bench_samples_add(&balance->behind[way], behind) != 0))
                status = CATTN_ENOMEM;
        }
    while (status == CATTN_OK && (++rounds < 4 || bench_now() < end));
    return status;
}

static int store_new(struct bench_batch *batch)
{
    const struct cattn_io io = bench_batch_io(batch, 1);
    int status = bench_batch_begin(batch);

    for (uint32_t layer = 0; status == CATTN_OK && layer < batch->n_layers; layer++)
        status = cattn_step_write(batch->step, layer, &io);
    return status;
}

static int balance_batch(const struct bench_options *options, const struct bench_shape *shape,
                         const struct skewed *skewed, FILE *text)
{
    struct balance balance = {0};
    struct bench_batch batch;
    uint32_t n_groups = 0;
    double alone, at_once;
    int status;

    bench_progress("%s: filling", skewed->name);
    while (n_groups < MOST_GROUPS && skewed->groups[n_groups].n > 0)
        n_groups++;
    status = bench_batch_open(&batch, shape, skewed->groups, n_groups, options->memory);
    if (status == CATTN_OK)
        status = store_new(&batch);
    if (status == CATTN_OK)
        status = measure_ways(&batch, options, &balance);
    if (complain(status) == 0) {
        alone = bench_samples_median(&balance.us[ALONE]);
        at_once = bench_samples_median(&balance.us[FREE]);
        fprintf(text, "%-15s %5u %8u %11.0f %11.0f %7.2f x %14.2f %14.2f %14.2f\n", skewed->name, shape->heads,
                shape->kv_heads, alone, at_once, alone / at_once, bench_samples_median(&balance.behind[HEADS_IN_TURN]),
                bench_samples_median(&balance.behind[HEADS]), bench_samples_median(&balance.behind[FREE]));
        fflush(text);
    }
    for (int way = 0; way < N_WAYS; way++) {
        bench_samples_release(&balance.us[way]);
        bench_samples_release(&balance.behind[way]);
    }
    bench_batch_close(&batch);
    return status == CATTN_OK ? 0 : -1;
}

int bench_balance(const struct bench_options *options, FILE *text)
{
    static const uint32_t usual[][2] = {{32, 32}, {32, 8}, {3, 3}, {8, 1}};
    const int n_heads = options->heads_given ? 1 : sizeof usual / sizeof usual[0];
    struct bench_shape shape = options->shapes[0];

    fprintf(text, "%u threads, heads of %u, chunk %u, %s\n", shape.threads, shape.head_dim, shape.chunk,
            bench_dtype_name(shape.dtype));
    fprintf(text, "%-15s %5s %8s %11s %11s %9s %44s\n", "", "", "", "us on", "us on", "",
            "slowest of the threads / mean");
    fprintf(text, "%-15s %5s %8s %11s %11s %9s %14s %14s %14s\n", "batch", "heads", "KV heads", "1 thread", "all",
            "faster", "heads in turn", "heads at once", "free at once");
    for (int i = 0; i < n_heads; i++)
        for (const struct skewed *skewed = batches; skewed < batches + N_BATCHES; skewed++) {
            if (!options->heads_given) {
                shape.heads = usual[i][0];
                shape.kv_heads = usual[i][1];
            }
            if (balance_batch(options, &shape, skewed, text) != 0)
                return -1;
        }
    return 0;
}

/* ---- pack ------------------------------------------------------------------------------------------------------- */

struct pack {
    struct bench_samples write, attend, both; /* us */
};

/* Stored and attended in two calls, then in one. */
static int time_layer(struct bench_batch *batch, uint32_t layer, struct pack *pack)
{
    const struct cattn_io with_kv = bench_batch_io(batch, 1), without = bench_batch_io(batch, 0);
    double start = bench_now(), written, attended, both;
    int status = cattn_step_write(batch->step, layer, &with_kv);

    written = bench_now();
    if (status == CATTN_OK)
        status = cattn_step_attend(batch->step, layer, &without);
    attended = bench_now();
    if (status == CATTN_OK)
        status = cattn_step_attend(batch->step, layer, &with_kv);
    both = bench_now();
    if (status == CATTN_OK && (bench_samples_add(&pack->write, (written - start) * 1e6) != 0 ||
                               bench_samples_add(&pack->attend, (attended - written) * 1e6) != 0 ||
                               bench_samples_add(&pack->both, (both - attended) * 1e6) != 0))
        status = CATTN_ENOMEM;
    return status;
}

/* As many steps as a granule has tokens: the first of one has more to clear. */
static int measure_pack(struct bench_batch *batch, struct pack *pack)
{
    enum { STEPS = 32 };
    int status = CATTN_OK;

    for (int i = 0; status == CATTN_OK && i < STEPS; i++) {
        bench_progress("step %d of %d", i + 1, STEPS);
        status = bench_batch_begin(batch);
        for (uint32_t layer = 0; status == CATTN_OK && layer < batch->n_layers; layer++)
            status = time_layer(batch, layer, pack);
        if (status == CATTN_OK)
            status = cattn_step_end(batch->step);
    }
    return status;
}

int bench_pack(const struct bench_options *options, FILE *text)
{
    const struct bench_shape *s = &options->shapes[0];
    const struct bench_group group = {s->batch, s->shared, s->private};
    struct bench_batch batch;
    struct pack pack = {0};
    double write, attend;
    int status;

    bench_progress("filling");
    status = bench_batch_open(&batch, s, &group, 1, options->memory);
    if (status == CATTN_OK)
        status = measure_pack(&batch, &pack);
    if (complain(status) == 0) {
        write = bench_samples_median(&pack.write);
        attend = bench_samples_median(&pack.attend);
        fprintf(text, "batch %u, heads %u / %u of %u, chunk %u, shared %u, private %u, %s, %u thread%s\n", s->batch,
                s->heads, s->kv_heads, s->head_dim, s->chunk, s->shared, s->private, bench_dtype_name(s->dtype),
                s->threads, s->threads == 1 ? "" : "s");
        fprintf(text, "write %.0f us, attend %.0f us, both in one call %.0f us: storing is %.1f%% of a decode step\n",
                write, attend, bench_samples_median(&pack.both), 100.0 * write / (write + attend));
    }
    bench_samples_release(&pack.write);
    bench_samples_release(&pack.attend);
    bench_samples_release(&pack.both);
    bench_batch_close(&batch);
    return status == CATTN_OK ? 0 : -1;
}

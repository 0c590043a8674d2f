/* How fast is attention over a batch that shares a prefix, and how far from what the machine can do?  Every variant
 * runs in this process in turn, several passes, so that all figures are ratios within one run; each is checked against
 * attention in double. */
#ifndef _GNU_SOURCE
#  define _GNU_SOURCE
#endif
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "attend_blas.h"
#include "attend_options.h"
#include "attend_report.h"
#include "cpu.h"
#include "harness.h"
#include "simd.h"

/* A variant on its way through the passes of one shape. */
struct lane {
    const struct bench_variant *variant;
    struct bench_instance instance;
    int wanted, is_open;
    uint32_t n_layers, next_layer;
    uint32_t runs; /* of a turn */
    struct bench_samples all;
    double us[BENCH_MAX_PASSES], us_min[BENCH_MAX_PASSES]; /* of each pass */
    double relative_error;
};

struct bench {
    struct bench_options options;
    FILE *text, *csv;
    FILE *passes[BENCH_MAX_PASSES]; /* the CSV of each; NULL: none */
    struct bench_setup setup;
    struct lane lanes[BENCH_N_VARIANTS];
    double compute;                                   /* operations a second, the most that was seen */
    double quick[BENCH_MAX_SHAPES][BENCH_N_VARIANTS]; /* us; 0: not measured */
    int failed;
};

enum { READ_LANE = BENCH_N_VARIANTS - 1 };

static void fail(struct bench *bench, const struct lane *lane, const char *what)
{
    bench_progress_end();
    fprintf(stderr, "attend: %s: %s\n", lane->variant->name, what);
    bench->failed = 1;
}

/* ---- one shape -------------------------------------------------------------------------------------------------- */

static uint32_t choose_layers(const struct bench *bench, const struct lane *lane)
{
    uint64_t one = lane->variant->bytes(&bench->setup.shape), n = (bench->options.memory + one - 1) / one;
    uint64_t most = bench_memory_available() / 10 * 8 / one;

    if (bench->options.warm)
        n = 1;
    n = n < most ? n : most;
    return n < 65535 ? (uint32_t)n : 65535;
}

static void open_lane(struct bench *bench, struct lane *lane)
{
    const char *reason = "too little memory for one layer";

    bench_progress("shared %u: filling %s", bench->setup.shape.shared, lane->variant->name);
    lane->n_layers = choose_layers(bench, lane);
    if (lane->n_layers > 0)
        reason = lane->variant->open(&bench->setup, lane->n_layers, &lane->instance);
    lane->is_open = reason == NULL;
    bench_progress_end();
    if (!lane->is_open)
        fprintf(bench->text, "%s: SKIP: %s\n", lane->variant->name, reason);
}

static void close_lane(struct bench *bench, struct lane *lane)
{
    if (lane->is_open)
        lane->variant->close(&bench->setup, &lane->instance);
    bench_samples_release(&lane->all);
    memset(lane, 0, sizeof *lane);
}

static void start_turn(struct bench *bench, struct lane *lane)
{
    if (lane->variant->turn != NULL)
        lane->variant->turn(&bench->setup, &lane->instance);
}

/* Microseconds of a step over the next layer; negative: it failed. */
static double run_once(struct bench *bench, struct lane *lane)
{
    double seconds = lane->variant->run(&bench->setup, &lane->instance, lane->next_layer);

    lane->next_layer = (lane->next_layer + 1) % lane->n_layers;
    if (seconds < 0.0) {
        fail(bench, lane, "failed");
        lane->variant->close(&bench->setup, &lane->instance);
        lane->is_open = 0;
    }
    return seconds * 1e6;
}

static void spoil_output(struct bench *bench)
{
    const struct bench_shape *s = &bench->setup.shape;
    for (size_t i = 0; i < (size_t)s->batch * s->heads * s->head_dim; i++)
        bench->setup.out[i] = NAN;
}

/* Runs a layer and looks at what came out. */
static double run_and_check(struct bench *bench, struct lane *lane)
{
    uint32_t layer = lane->next_layer;
    char what[96];
    double us, error;

    spoil_output(bench);
    us = run_once(bench, lane);
    if (us < 0.0 || !lane->variant->computes)
        return us;
    error = bench_relative_error(&bench->setup, layer);
    lane->relative_error = error > lane->relative_error || isnan(error) ? error : lane->relative_error;
    if (!(error <= lane->instance.tolerance)) {
        snprintf(what, sizeof what, "wrong: relative error %.2e, at most %.0e is right", error,
                 lane->instance.tolerance);
        fail(bench, lane, what);
    }
    return us;
}

static void warm_up(struct bench *bench, struct lane *lane)
{
    double us, runs;

    start_turn(bench, lane);
    (void)run_and_check(bench, lane);
    us = lane->is_open ? run_once(bench, lane) : -1.0;
    runs = us > 0.0 ? bench->options.turn_seconds * 1e6 / us : 0.0;
    lane->runs = runs < 3.0 ? 3 : runs > 200.0 ? 200 : (uint32_t)runs;
}

static void take_turn(struct bench *bench, struct lane *lane, uint32_t pass)
{
    struct bench_samples samples = {0};

    bench_progress("shared %u: pass %u of %u, %s", bench->setup.shape.shared, pass + 1, bench->options.passes,
                   lane->variant->name);
    start_turn(bench, lane);
    (void)run_once(bench, lane); /* what the others left in the caches goes */
    for (uint32_t i = 0; i < lane->runs && lane->is_open; i++) {
        double us = run_once(bench, lane);
        if (us >= 0.0 && (bench_samples_add(&samples, us) != 0 || bench_samples_add(&lane->all, us) != 0)) {
            fail(bench, lane, "no memory");
            break;
        }
    }
    lane->us[pass] = bench_samples_median(&samples);
    lane->us_min[pass] = bench_samples_minimum(&samples);
    bench_samples_release(&samples);
}

struct rates {
    double of_thread[1024]; /* operations a second */
};

/* The best of a few slices, so that a neighbour's turn on the CPU does not count. */
static void multiply_add(void *context, uint32_t ith, uint32_t nth)
{
    struct rates *rates = context;
    (void)nth;
    for (int slice = 0; slice < 8; slice++) {
        double start = bench_now(), operations = bench_simd()->multiply_add(50000);
        rates->of_thread[ith] = fmax(rates->of_thread[ith], operations / (bench_now() - start));
    }
}

static void measure_compute(struct bench *bench)
{
    uint32_t threads = bench->setup.shape.threads, cpus = cattn_cpu_count();
    struct rates rates = {{0}};
    double all = 0.0;

    bench_parallel(threads, multiply_add, &rates);
    for (uint32_t i = 0; i < threads; i++)
        all += rates.of_thread[i];
    if (threads > cpus) /* they took turns */
        all *= (double)cpus / threads;
    bench->compute = fmax(bench->compute, all);
}

static struct bench_row make_row(const struct bench *bench, struct lane *lane, int pass)
{
    const struct lane *read = &bench->lanes[READ_LANE];
    double us_read = pass < 0 ? bench_samples_median(&read->all) : read->us[pass];
    struct bench_row row = {
        .variant = lane->variant,
        .shape = &bench->setup.shape,
        .instance = &lane->instance,
        .us = pass < 0 ? bench_samples_median(&lane->all) : lane->us[pass],
        .us_min = pass < 0 ? bench_samples_minimum(&lane->all) : lane->us_min[pass],
        .relative_error = lane->relative_error,
    };
    row.read_seconds = us_read * 1e-6;
    row.ceilings.read = (double)bench_read.bytes(&bench->setup.shape) / (bench_samples_minimum(&read->all) * 1e-6);
    row.ceilings.compute = bench->compute;
    return row;
}

static void report(struct bench *bench, uint32_t shape)
{
    int heading = 1;

    for (int i = 0; i < BENCH_N_VARIANTS; i++) {
        struct lane *lane = &bench->lanes[i];
        struct bench_row row;
        if (!lane->is_open || !lane->wanted)
            continue;
        row = make_row(bench, lane, -1);
        bench->quick[shape][i] = row.us;
        if (!bench->options.quick) {
            if (heading)
                bench_table_header(bench->text, row.shape, &row.ceilings);
            bench_table_row(bench->text, &row);
            heading = 0;
        }
        if (bench->csv != NULL)
            bench_csv_row(bench->csv, &row);
        for (uint32_t pass = 0; pass < bench->options.passes; pass++)
            if (bench->passes[pass] != NULL) {
                row = make_row(bench, lane, (int)pass);
                bench_csv_row(bench->passes[pass], &row);
            }
    }
    fflush(bench->text);
}

static void measure(struct bench *bench)
{
    for (int i = 0; i < BENCH_N_VARIANTS; i++)
        if (bench->lanes[i].is_open) {
            bench_progress("shared %u: checking %s", bench->setup.shape.shared, bench->lanes[i].variant->name);
            warm_up(bench, &bench->lanes[i]);
        }
    for (uint32_t pass = 0; pass < bench->options.passes; pass++) {
        for (int i = 0; i < BENCH_N_VARIANTS; i++)
            if (bench->lanes[i].is_open)
                take_turn(bench, &bench->lanes[i], pass);
        measure_compute(bench);
    }
    for (int i = 0; i < BENCH_N_VARIANTS; i++)
        if (bench->lanes[i].is_open) {
            bench->lanes[i].next_layer = bench->lanes[i].n_layers - 1;
            start_turn(bench, &bench->lanes[i]);
            (void)run_and_check(bench, &bench->lanes[i]);
        }
    bench_progress_end();
}

/* Reading is always measured: it is what the rest is compared with. */
static void open_lanes(struct bench *bench)
{
    for (int i = 0; i < BENCH_N_VARIANTS; i++) {
        struct lane *lane = &bench->lanes[i];
        lane->variant = bench_variants[i];
        lane->wanted = bench->options.wanted[i];
        if (lane->wanted || i == READ_LANE)
            open_lane(bench, lane);
    }
}

static int run_shape(struct bench *bench, uint32_t shape)
{
    const struct bench_shape *s = &bench->options.shapes[shape];
    size_t values = (size_t)s->batch * s->heads * s->head_dim;
    struct bench_setup *setup = &bench->setup;

    *setup =
        (struct bench_setup){.shape = *s, .q = malloc(values * sizeof(float)), .out = malloc(values * sizeof(float))};
    if (setup->q == NULL || setup->out == NULL) {
        free(setup->q);
        free(setup->out);
        fputs("attend: no memory\n", stderr);
        return -1;
    }
    bench_data_q(s, setup->q);
    open_lanes(bench);
    if (bench->lanes[READ_LANE].is_open) {
        measure(bench);
        report(bench, shape);
    }
    for (int i = 0; i < BENCH_N_VARIANTS; i++)
        close_lane(bench, &bench->lanes[i]);
    free(setup->q);
    free(setup->out);
    return 0;
}

/* ---- all of them ------------------------------------------------------------------------------------------------ */

static FILE *open_csv(const char *path)
{
    FILE *file = fopen(path, "w");
    if (file == NULL)
        fprintf(stderr, "attend: %s: %s\n", path, strerror(errno));
    else
        bench_csv_header(file);
    return file;
}

/* name.csv gives name.pass1.csv, name.pass2.csv ... */
static FILE *open_pass(const char *path, uint32_t pass)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    size_t stem = dot != NULL && (slash == NULL || dot > slash) ? (size_t)(dot - path) : strlen(path);
    size_t size = strlen(path) + 16;
    char *name = malloc(size);
    FILE *file = NULL;

    if (name != NULL) {
        snprintf(name, size, "%.*s.pass%u%s", (int)stem, path, pass + 1, path + stem);
        file = open_csv(name);
    }
    free(name);
    return file;
}

static int open_outputs(struct bench *bench)
{
    const char *path = bench->options.csv;

    bench->text = stdout;
    if (path == NULL)
        return 0;
    if (strcmp(path, "-") == 0) {
        bench->text = stderr;
        bench->csv = stdout;
        bench_csv_header(stdout);
        return 0;
    }
    bench->csv = open_csv(path);
    if (bench->csv == NULL)
        return -1;
    for (uint32_t i = 0; i < bench->options.passes; i++)
        if ((bench->passes[i] = open_pass(path, i)) == NULL)
            return -1;
    return 0;
}

static int close_file(FILE *file)
{
    if (file == NULL)
        return 0;
    if (fflush(file) != 0 || ferror(file)) {
        fputs("attend: cannot write the results\n", stderr);
        return -1;
    }
    return file == stdout || file == stderr ? 0 : fclose(file);
}

static int close_outputs(struct bench *bench)
{
    int status = close_file(bench->text) | close_file(bench->csv);
    for (uint32_t i = 0; i < bench->options.passes; i++)
        status |= close_file(bench->passes[i]);
    return status;
}

static int lane_number(const struct bench_variant *variant)
{
    int i = 0;
    while (bench_variants[i] != variant)
        i++;
    return i;
}

/* Milliseconds of a step, and how many times those of chunk the paged ones are. */
static void print_quick(const struct bench *bench)
{
    const int chunk = lane_number(&bench_chunk), paged = lane_number(&bench_paged),
              paged_shared = lane_number(&bench_paged_shared);
    const struct bench_shape *s = &bench->options.shapes[0];

    fprintf(bench->text,
            "attention, one layer, one step: batch %u, %u heads of %u, %u own tokens each, %s, %u thread%s\n", s->batch,
            s->heads, s->head_dim, s->private, bench_dtype_name(s->dtype), s->threads, s->threads == 1 ? "" : "s");
    fprintf(bench->text, "%14s", "shared tokens");
    for (int i = 0; i < BENCH_N_VARIANTS; i++)
        if (bench->options.wanted[i])
            fprintf(bench->text, " %12s", bench_variants[i]->name);
    fputs("   chunk is faster than paged_shared, paged\n", bench->text);
    for (uint32_t j = 0; j < bench->options.n_shapes; j++) {
        const double *us = bench->quick[j];
        fprintf(bench->text, "%14u", bench->options.shapes[j].shared);
        for (int i = 0; i < BENCH_N_VARIANTS; i++)
            if (bench->options.wanted[i] && us[i] > 0.0)
                fprintf(bench->text, " %9.2f ms", us[i] * 1e-3);
            else if (bench->options.wanted[i])
                fprintf(bench->text, " %12s", "-");
        if (us[chunk] > 0.0 && us[paged_shared] > 0.0)
            fprintf(bench->text, "   %.1f x", us[paged_shared] / us[chunk]);
        if (us[chunk] > 0.0 && us[paged] > 0.0)
            fprintf(bench->text, ", %.1f x", us[paged] / us[chunk]);
        fputs("\n", bench->text);
    }
}

int main(int argc, char **argv)
{
    static struct bench bench;
    int status = 0;

    if (bench_options_parse(&bench.options, argc, argv, &status) != 0)
        return status;
    bench_blas_prepare(argv);
    if (open_outputs(&bench) != 0)
        return 1;
    for (uint32_t i = 0; i < bench.options.n_shapes && status == 0; i++)
        status = run_shape(&bench, i);
    if (bench.options.quick)
        print_quick(&bench);
    return status != 0 || close_outputs(&bench) != 0 || bench.failed;
}

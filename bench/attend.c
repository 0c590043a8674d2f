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
#include "attend_lane.h"
#include "attend_options.h"
#include "attend_report.h"
#include "attend_steps.h"
#include "harness.h"

struct bench {
    struct bench_options options;
    FILE *text, *csv;
    FILE *passes[BENCH_MAX_PASSES]; /* the CSV of each; NULL: none */
    struct bench_setup setup;
    struct bench_lane lanes[BENCH_N_VARIANTS + BENCH_N_SCORINGS];
    int n_lanes;
    struct bench_lane *first[BENCH_N_VARIANTS];       /* lane of each variant */
    double quick[BENCH_MAX_SHAPES][BENCH_N_VARIANTS]; /* us; 0: not measured */
    int failed;
};

/* ---- one shape -------------------------------------------------------------------------------------------------- */

/* The slice of arithmetic in the units that a kernel multiplies in.  It may not be open. */
static struct bench_lane *slice_of(struct bench *bench, const struct bench_instance *instance)
{
    struct bench_lane *amx = bench->first[BENCH_AMX];
    return amx->is_open && strstr(instance->kernel, "amx") != NULL ? amx : bench->first[BENCH_FMA];
}

/* What a run of the lane does in a second: usually, and at best.  Without a bound where it cannot run. */
static double usual_rate(struct bench_lane *lane, double amount, int pass)
{
    return lane->is_open ? amount * 1e6 / bench_lane_us(lane, pass) : INFINITY;
}

static double best_rate(const struct bench_lane *lane, double amount)
{
    return lane->is_open ? amount * 1e6 / bench_lane_us_min(lane, -1) : INFINITY;
}

static struct bench_row make_row(struct bench *bench, struct bench_lane *lane, int pass)
{
    struct bench_lane *read = bench->first[BENCH_READ], *slice = slice_of(bench, &lane->instance);
    const struct bench_shape seen = bench_seen(&bench->setup.shape, &read->instance.attention);
    const double bytes = (double)read->variant->bytes(&seen), operations = slice->instance.operations;
    struct bench_row row = {
        .variant = lane->variant,
        .shape = &bench->setup.shape,
        .instance = &lane->instance,
        .us = bench_lane_us(lane, pass),
        .us_min = bench_lane_us_min(lane, pass),
        .relative_error = lane->relative_error,
        .usual = {usual_rate(read, bytes, pass), usual_rate(slice, operations, pass)},
        .best = {best_rate(read, bytes), best_rate(slice, operations)},
    };
    return row;
}

static void report_lane(struct bench *bench, struct bench_lane *lane)
{
    struct bench_row row = make_row(bench, lane, -1);

    if (!bench->options.quick)
        bench_table_row(bench->text, &row);
    if (bench->csv != NULL)
        bench_csv_row(bench->csv, &row);
    for (uint32_t pass = 0; pass < bench->options.passes; pass++)
        if (bench->passes[pass] != NULL) {
            row = make_row(bench, lane, (int)pass);
            bench_csv_row(bench->passes[pass], &row);
        }
}

static void report(struct bench *bench)
{
    struct bench_lane *plain = bench->first[BENCH_CHUNK];

    if (!bench->options.quick)
        bench_table_header(bench->text, &bench->setup.shape);
    for (struct bench_lane *lane = bench->lanes; lane < bench->lanes + bench->n_lanes; lane++) {
        if (!lane->is_open || !lane->is_wanted)
            continue;
        if (bench->options.variant_grid && lane->variant == plain->variant)
            snprintf(lane->instance.detail, sizeof lane->instance.detail, "%.2f of the plain time",
                     bench_lane_us(lane, -1) / bench_lane_us(plain, -1));
        report_lane(bench, lane);
    }
    fflush(bench->text);
}

static void note_times(struct bench *bench, double *us)
{
    for (int i = 0; i < BENCH_N_VARIANTS; i++)
        us[i] = bench->first[i]->is_open && bench->first[i]->is_wanted ? bench_lane_us(bench->first[i], -1) : 0.0;
}

static void measure(struct bench *bench)
{
    struct bench_lane *lanes = bench->lanes, *end = lanes + bench->n_lanes;

    for (struct bench_lane *lane = lanes; lane < end; lane++)
        if (lane->is_open)
            bench_lane_warm_up(lane);
    for (uint32_t pass = 0; pass < bench->options.passes; pass++)
        for (struct bench_lane *lane = lanes; lane < end; lane++)
            if (lane->is_open)
                bench_lane_take_turn(lane, pass);
    for (struct bench_lane *lane = lanes; lane < end; lane++)
        if (lane->is_open)
            bench_lane_check(lane);
    bench_progress_end();
}

/* Reading and arithmetic alone are always measured: they are what the rest is compared with. */
static struct bench_lane *add_lane(struct bench *bench, int variant, const struct bench_scoring *scoring)
{
    struct bench_lane *lane = &bench->lanes[bench->n_lanes++];
    const struct cattn_variant attention = {
        .size = sizeof attention,
        .softcap = scoring->softcap,
        .window = scoring->window,
        .n_sink_tokens = scoring->n_sink_tokens,
        .alibi_slopes = scoring->alibi ? bench->setup.slopes : NULL,
        .sinks = scoring->sinks ? bench->setup.sinks : NULL,
    };

    *lane = (struct bench_lane){.variant = bench->options.place->variants[variant],
                                .options = &bench->options,
                                .setup = &bench->setup,
                                .instance.attention = attention,
                                .is_wanted = bench->options.wanted[variant]};
    if (lane->variant != NULL && (lane->is_wanted || variant >= BENCH_READ))
        bench_lane_open(lane, bench->text);
    return lane;
}

static void open_lanes(struct bench *bench)
{
    const struct bench_options *options = &bench->options;
    const struct bench_shape *s = &bench->setup.shape;
    struct bench_scoring scorings[BENCH_N_SCORINGS] = {options->scoring};

    if (options->variant_grid)
        bench_options_scorings(options, s->shared + s->private, scorings);
    bench->n_lanes = 0;
    for (int i = 0; i < BENCH_N_VARIANTS; i++) {
        bench->first[i] = add_lane(bench, i, &scorings[0]);
        for (int j = 1; i == BENCH_CHUNK && options->variant_grid && j < BENCH_N_SCORINGS; j++)
            (void)add_lane(bench, i, &scorings[j]);
    }
}

static void close_lanes(struct bench *bench)
{
    for (int i = 0; i < bench->n_lanes; i++) {
        bench->failed |= bench->lanes[i].failed;
        bench_lane_close(&bench->lanes[i]);
    }
}

static int setup_open(struct bench_setup *setup, const struct bench_shape *shape)
{
    size_t values = bench_q_floats(shape), heads = shape->heads;
    float *floats = malloc(2 * (values + heads) * sizeof *floats);

    *setup = (struct bench_setup){.shape = *shape, .q = floats};
    if (floats == NULL) {
        fputs("attend: no memory\n", stderr);
        return -1;
    }
    setup->out = floats + values;
    setup->slopes = floats + 2 * values;
    setup->sinks = setup->slopes + heads;
    bench_data_q(shape, setup->q);
    bench_data_heads(shape, setup->slopes, setup->sinks);
    return 0;
}

static int run_shape(struct bench *bench, uint32_t shape)
{
    if (setup_open(&bench->setup, &bench->options.shapes[shape]) != 0)
        return -1;
    open_lanes(bench);
    if (bench->first[BENCH_READ]->is_open) {
        measure(bench);
        note_times(bench, bench->quick[shape]);
        report(bench);
    }
    close_lanes(bench);
    free(bench->setup.q);
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

static void print_times(const struct bench *bench, const double *us)
{
    for (int i = 0; i < BENCH_N_VARIANTS; i++)
        if (bench->options.wanted[i] && us[i] > 0.0)
            fprintf(bench->text, " %9.2f ms", us[i] * 1e-3);
        else if (bench->options.wanted[i])
            fprintf(bench->text, " %12s", "-");
    if (us[BENCH_CHUNK] > 0.0 && us[BENCH_PAGED_SHARED] > 0.0)
        fprintf(bench->text, "   %.1f x", us[BENCH_PAGED_SHARED] / us[BENCH_CHUNK]);
    if (us[BENCH_CHUNK] > 0.0 && us[BENCH_PAGED] > 0.0)
        fprintf(bench->text, ", %.1f x", us[BENCH_PAGED] / us[BENCH_CHUNK]);
    fputs("\n", bench->text);
}

/* Milliseconds of a step, and how many times those of chunk the paged ones are. */
static void print_quick(const struct bench *bench)
{
    const struct bench_shape *s = bench->options.shapes;

    fprintf(bench->text, "attention, one layer, one step: %u heads of %u, %s, %u thread%s\n", s->heads, s->head_dim,
            bench_dtype_name(s->dtype), s->threads, s->threads == 1 ? "" : "s");
    fprintf(bench->text, "%9s %13s %10s", "sequences", "shared tokens", "own tokens");
    for (int i = 0; i < BENCH_N_VARIANTS; i++)
        if (bench->options.wanted[i])
            fprintf(bench->text, " %12s", bench->options.place->variants[i]->name);
    fputs("   chunk is faster than paged_shared, paged\n", bench->text);
    for (uint32_t i = 0; i < bench->options.n_shapes; i++) {
        fprintf(bench->text, "%9u %13u %10u", s[i].batch, s[i].shared, s[i].private);
        print_times(bench, bench->quick[i]);
    }
}

static int run_shapes(struct bench *bench)
{
    int status = 0;

    for (uint32_t i = 0; i < bench->options.n_shapes && status == 0; i++)
        status = run_shape(bench, i);
    if (bench->options.quick)
        print_quick(bench);
    return status;
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
    if (bench.options.balance)
        status = bench_balance(&bench.options, bench.text);
    else if (bench.options.pack)
        status = bench_pack(&bench.options, bench.text);
    else
        status = run_shapes(&bench);
    return status != 0 || close_outputs(&bench) != 0 || bench.failed;
}

#include <math.h>
#include <string.h>

#include "attend_lane.h"

static void fail(struct bench_lane *lane, const char *what)
{
    bench_progress_end();
    fprintf(stderr, "attend: %s: %s\n", lane->variant->name, what);
    lane->failed = 1;
}

static uint32_t choose_layers(const struct bench_lane *lane)
{
    uint64_t one = lane->variant->bytes(&lane->setup->shape), n, most;

    if (one == 0)
        return 1;
    n = lane->options->warm ? 1 : (lane->options->memory + one - 1) / one;
    most = lane->options->place->memory_available() / 10 * 8 / one;
    n = n < most ? n : most;
    return n < 65535 ? (uint32_t)n : 65535;
}

void bench_lane_open(struct bench_lane *lane, FILE *text)
{
    const char *reason = "too little memory for one layer";
    const struct bench_shape *s = &lane->setup->shape;
    int is_plain = bench_is_plain(&lane->instance.attention) && s->dtype != CATTN_I8 && s->rows == 1;

    bench_progress("shared %u: filling %s", lane->setup->shape.shared, lane->variant->name);
    lane->n_layers = choose_layers(lane);
    if (lane->variant->computes == BENCH_PLAIN && !is_plain)
        reason = "not supported: it is for plain attention of one row over floats";
    else if (lane->n_layers > 0)
        reason = lane->variant->open(lane->setup, lane->n_layers, &lane->instance);
    lane->is_open = reason == NULL;
    bench_progress_end();
    if (!lane->is_open && lane->is_wanted)
        fprintf(text, "%s: SKIP: %s\n", lane->variant->name, reason);
}

static void close_instance(struct bench_lane *lane)
{
    if (lane->is_open)
        lane->variant->close(lane->setup, &lane->instance);
    lane->is_open = 0;
}

void bench_lane_close(struct bench_lane *lane)
{
    close_instance(lane);
    bench_samples_release(&lane->all);
    memset(lane, 0, sizeof *lane);
}

static void start_turn(struct bench_lane *lane)
{
    if (lane->variant->turn != NULL)
        lane->variant->turn(lane->setup, &lane->instance);
}

/* Microseconds of a step over the next layer; negative: it failed. */
static double run_once(struct bench_lane *lane)
{
    double seconds = lane->variant->run(lane->setup, &lane->instance, lane->next_layer);

    lane->next_layer = (lane->next_layer + 1) % lane->n_layers;
    if (seconds < 0.0) {
        fail(lane, "failed");
        close_instance(lane);
    }
    return seconds * 1e6;
}

static void spoil_output(const struct bench_setup *setup)
{
    for (size_t i = 0; i < bench_q_floats(&setup->shape); i++)
        setup->out[i] = NAN;
}

/* Runs a layer and looks at what came out. */
static void run_and_check(struct bench_lane *lane)
{
    uint32_t layer = lane->next_layer;
    char what[96];
    double error;

    spoil_output(lane->setup);
    if (run_once(lane) < 0.0 || lane->variant->computes == BENCH_NOTHING)
        return;
    error = bench_relative_error(lane->setup, &lane->instance.attention, layer);
    lane->relative_error = error > lane->relative_error || isnan(error) ? error : lane->relative_error;
    if (!(error <= lane->instance.tolerance)) {
        snprintf(what, sizeof what, "wrong: relative error %.2e, at most %.0e is right", error,
                 lane->instance.tolerance);
        fail(lane, what);
    }
}

void bench_lane_warm_up(struct bench_lane *lane)
{
    double us, runs;

    bench_progress("shared %u: checking %s", lane->setup->shape.shared, lane->variant->name);
    start_turn(lane);
    run_and_check(lane);
    us = lane->is_open ? run_once(lane) : -1.0;
    runs = us > 0.0 ? lane->options->turn_seconds * 1e6 / us : 0.0;
    lane->runs = runs < 3.0 ? 3 : runs > 200.0 ? 200 : (uint32_t)runs;
}

void bench_lane_take_turn(struct bench_lane *lane, uint32_t pass)
{
    struct bench_samples samples = {0};

    bench_progress("shared %u: pass %u of %u, %s", lane->setup->shape.shared, pass + 1, lane->options->passes,
                   lane->variant->name);
    start_turn(lane);
    (void)run_once(lane); /* what the others left in the caches goes */
    for (uint32_t i = 0; i < lane->runs && lane->is_open; i++) {
        double us = run_once(lane);
        if (us >= 0.0 && (bench_samples_add(&samples, us) != 0 || bench_samples_add(&lane->all, us) != 0)) {
            fail(lane, "no memory");
            break;
        }
    }
    lane->us[pass] = bench_samples_median(&samples);
    lane->us_min[pass] = bench_samples_minimum(&samples);
    bench_samples_release(&samples);
}

void bench_lane_check(struct bench_lane *lane)
{
    lane->next_layer = lane->n_layers - 1;
    start_turn(lane);
    run_and_check(lane);
}

double bench_lane_us(struct bench_lane *lane, int pass)
{
    return pass < 0 ? bench_samples_median(&lane->all) : lane->us[pass];
}

double bench_lane_us_min(const struct bench_lane *lane, int pass)
{
    return pass < 0 ? bench_samples_minimum(&lane->all) : lane->us_min[pass];
}

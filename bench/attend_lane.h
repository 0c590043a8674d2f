/* A variant on its way through the passes of one shape. */
#ifndef BENCH_ATTEND_LANE_H
#define BENCH_ATTEND_LANE_H

#include <stdint.h>
#include <stdio.h>

#include "attend.h"
#include "attend_options.h"
#include "harness.h"

struct bench_lane {
    const struct bench_variant *variant;
    const struct bench_options *options;
    struct bench_setup *setup;
    struct bench_instance instance;
    int is_wanted; /* its rows are reported; others are measured because rows are compared with them */
    int is_open, failed;
    uint32_t n_layers, next_layer;
    uint32_t runs; /* of a turn */
    struct bench_samples all;
    double us[BENCH_MAX_PASSES], us_min[BENCH_MAX_PASSES]; /* of each pass */
    double relative_error;
};

/* Takes memory and fills it; variant, options, setup, is_wanted and what the instance is to compute are set.  Why it
 * cannot run here goes to text. */
void bench_lane_open(struct bench_lane *lane, FILE *text);
void bench_lane_close(struct bench_lane *lane);

/* Once before the first turn: looks at the results, and finds how many runs make a turn. */
void bench_lane_warm_up(struct bench_lane *lane);

/* The runs of one pass. */
void bench_lane_take_turn(struct bench_lane *lane, uint32_t pass);

/* Once after the last turn: looks at the results again. */
void bench_lane_check(struct bench_lane *lane);

/* Median and minimum of a pass in microseconds; of all passes: pass < 0. */
double bench_lane_us(struct bench_lane *lane, int pass);
double bench_lane_us_min(const struct bench_lane *lane, int pass);

#endif

#ifndef BENCH_ATTEND_OPTIONS_H
#define BENCH_ATTEND_OPTIONS_H

#include <stdint.h>

#include "attend.h"

enum { BENCH_MAX_SHAPES = 16, BENCH_MAX_PASSES = 100 };

/* In the order in which they are run and reported.  Those from BENCH_READ on are what the others are compared with. */
enum {
    BENCH_NAIVE,
    BENCH_PAPER,
    BENCH_ONEDNN,
    BENCH_PAGED,
    BENCH_PAGED_SHARED,
    BENCH_CHUNK,
    BENCH_READ,
    BENCH_FMA,
    BENCH_AMX,
    BENCH_N_VARIANTS
};
extern const struct bench_variant *const bench_variants[BENCH_N_VARIANTS];

struct bench_options {
    struct bench_shape shapes[BENCH_MAX_SHAPES];
    uint32_t n_shapes;
    int wanted[BENCH_N_VARIANTS];
    const char *csv; /* NULL: none; "-": standard output */
    uint32_t passes;
    uint64_t memory;     /* bytes that each variant rotates over */
    double turn_seconds; /* of one variant in one pass */
    int warm, quick;
};

/* 0: go on.  Else *status is what the program exits with; all that is to be said has been printed. */
int bench_options_parse(struct bench_options *options, int argc, char **argv, int *status);

#endif

#ifndef BENCH_ATTEND_OPTIONS_H
#define BENCH_ATTEND_OPTIONS_H

#include <stdint.h>

#include "attend.h"

enum { BENCH_MAX_SHAPES = 16, BENCH_MAX_PASSES = 100, BENCH_N_SCORINGS = 6 };

/* In the order in which they are run and reported.  Those from BENCH_READ on are what the others are compared with: a
 * device has other ways to read and to multiply in their places. */
enum {
    BENCH_NAIVE,
    BENCH_PAPER,
    BENCH_ONEDNN,
    BENCH_PAGED,
    BENCH_PAGED_SHARED,
    BENCH_CHUNK,
    BENCH_UNCUT,
    BENCH_READ,
    BENCH_FMA,
    BENCH_AMX,
    BENCH_N_VARIANTS
};

/* Where it runs. */
struct bench_place {
    const char *backend;
    const struct bench_variant *variants[BENCH_N_VARIANTS]; /* NULL: not there */
    uint64_t (*last_level_cache)(void);                     /* bytes */
    uint64_t (*memory_available)(void);
};

/* What is added to plain attention; slopes and sinks are made up. */
struct bench_scoring {
    float softcap;
    uint32_t window, n_sink_tokens;
    int alibi, sinks;
};

struct bench_options {
    struct bench_shape shapes[BENCH_MAX_SHAPES];
    uint32_t n_shapes;
    const struct bench_place *place;
    int wanted[BENCH_N_VARIANTS];
    struct bench_scoring scoring;
    int variant_grid;
    const char *csv; /* NULL: none; "-": standard output */
    uint32_t passes;
    uint64_t memory;     /* bytes that each variant rotates over */
    double turn_seconds; /* of one variant in one pass */
    int warm, quick, balance, pack;
    int heads_given;
};

/* The scorings of the variant grid, plain first, for n tokens: with the numbers given, or usual ones. */
void bench_options_scorings(const struct bench_options *options, uint32_t n,
                            struct bench_scoring scorings[BENCH_N_SCORINGS]);

/* 0: go on.  Else *status is what the program exits with; all that is to be said has been printed. */
int bench_options_parse(struct bench_options *options, int argc, char **argv, int *status);

#endif

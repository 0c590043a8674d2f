#ifndef BENCH_ATTEND_REPORT_H
#define BENCH_ATTEND_REPORT_H

#include <stdint.h>
#include <stdio.h>

#include "attend.h"

/* The most that was seen in one run of the program. */
struct bench_ceilings {
    double read;    /* bytes a second */
    double compute; /* f32 operations a second */
};

/* One line: a variant over a shape. */
struct bench_row {
    const struct bench_variant *variant;
    const struct bench_shape *shape;
    const struct bench_instance *instance;
    double us, us_min, relative_error;
    double read_seconds; /* of the variant `read`, at the same time */
    struct bench_ceilings ceilings;
};

void bench_csv_header(FILE *file);
void bench_csv_row(FILE *file, const struct bench_row *row);

/* For people. */
void bench_table_header(FILE *file, const struct bench_shape *shape, const struct bench_ceilings *ceilings);
void bench_table_row(FILE *file, const struct bench_row *row);

#endif

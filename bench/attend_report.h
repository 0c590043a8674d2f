#ifndef BENCH_ATTEND_REPORT_H
#define BENCH_ATTEND_REPORT_H

#include <stdint.h>
#include <stdio.h>

#include "attend.h"

/* What bounds a row: reading, and multiplying in the units that its kernel uses. */
struct bench_rates {
    double read;    /* bytes a second */
    double compute; /* operations a second */
};

/* One line: a variant over a shape. */
struct bench_row {
    const struct bench_variant *variant;
    const struct bench_shape *shape;
    const struct bench_instance *instance;
    double us, us_min, relative_error;
    struct bench_rates usual; /* at the same time */
    struct bench_rates best;  /* the most that was seen */
};

void bench_csv_header(FILE *file);
void bench_csv_row(FILE *file, const struct bench_row *row);

/* For people. */
void bench_table_header(FILE *file, const struct bench_shape *shape);
void bench_table_row(FILE *file, const struct bench_row *row);

#endif

/* Figures of a run, for people. */
#ifndef LLAMA_REPORT_H
#define LLAMA_REPORT_H

#include "engine.h"

#include <stdio.h>

const char *dtype_name(uint32_t dtype);

/* "the cpu backend, kernel avx2, ..." without end of line. */
void report_setup(FILE *file, const struct engine_report *report, const struct linear *linear);

/* The statistics of --stats. */
void report_stats(FILE *file, const struct engine_report *report, const struct linear *linear);

double report_hit_rate(const struct engine_report *report);
double report_prefill_rate(const struct engine_report *report); /* tokens/s */
double report_decode_rate(const struct engine_report *report);

#endif

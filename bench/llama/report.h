/* Figures of a run, for people. */
#ifndef LLAMA_REPORT_H
#define LLAMA_REPORT_H

#include "engine.h"
#include "requests.h"

#include <stdio.h>

const char *dtype_name(uint32_t dtype);

/* "the cpu backend, kernel avx2, ..." without end of line. */
void report_setup(FILE *file, const struct engine_report *report, const struct linear *linear);

/* The statistics of --stats. */
void report_stats(FILE *file, const struct engine_report *report, const struct requests *requests,
                  const struct linear *linear);

/* What the requests saw.  Normalised latency: of a request, from arrival to end, by generated tokens. */
struct report_latency {
    double per_token_mean, per_token_p50, per_token_p99;       /* seconds */
    double first_token_mean, first_token_p50, first_token_p99; /* seconds */
};

/* Of the requests that generated something.  Zeros: none, or no memory. */
struct report_latency report_latency(const struct requests *requests);

/* A JSON object on one line. */
void report_json(FILE *file, const struct engine_report *report, const struct requests *requests);

double report_hit_rate(const struct engine_report *report);
double report_prefill_rate(const struct engine_report *report); /* tokens/s */
double report_decode_rate(const struct engine_report *report);

#endif

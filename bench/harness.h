/* What every benchmark needs: a clock, memory, threads, statistics and a line of progress. */
#ifndef BENCH_HARNESS_H
#define BENCH_HARNESS_H

#include <stddef.h>
#include <stdint.h>

/* Seconds of a clock that only goes forward. */
double bench_now(void);

/* Seconds that the calling thread has run: what others do on its CPU is not counted. */
double bench_thread_now(void);

/* Zeroed memory of its own pages, huge ones where the system gives them.  NULL: there is none. */
void *bench_alloc(size_t bytes);
void bench_free(void *memory, size_t bytes);

/* Bytes that can still be had without swapping, within the limits of a container. */
uint64_t bench_memory_available(void);

/* Bytes of the largest cache; a guess where the system does not say. */
uint64_t bench_last_level_cache(void);

/* Bytes of a core's second-level cache; a guess likewise. */
uint64_t bench_second_level_cache(void);

/* Calls task once for each ith of n_threads, at the same time.  Without OpenMP, one after another.  A library that the
 * task calls finds itself alone: it is to use one thread. */
typedef void bench_task(void *context, uint32_t ith, uint32_t n_threads);
void bench_parallel(uint32_t n_threads, bench_task *task, void *context);

/* The part [begin, end) of n things that ith of nth gets. */
void bench_share(size_t n, uint32_t ith, uint32_t nth, size_t *begin, size_t *end);

/* Samples that grow. */
struct bench_samples {
    double *values;
    size_t n, capacity;
};

/* 0, or -1 when there is no memory. */
int bench_samples_add(struct bench_samples *samples, double value);
void bench_samples_release(struct bench_samples *samples);
double bench_samples_minimum(const struct bench_samples *samples);
double bench_samples_median(const struct bench_samples *samples);

/* A line on standard error that is overwritten by the next one; nothing when that is no terminal. */
void bench_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void bench_progress_end(void);

#endif

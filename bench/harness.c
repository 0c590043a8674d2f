#ifndef _GNU_SOURCE
#  define _GNU_SOURCE /* madvise, MAP_ANONYMOUS */
#endif
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#  include <omp.h>
#endif

#include "harness.h"

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double bench_now(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

double bench_thread_now(void)
{
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

void *bench_alloc(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
#ifdef MADV_HUGEPAGE
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return memory;
}

void bench_free(void *memory, size_t bytes)
{
    if (memory != NULL)
        munmap(memory, bytes);
}

/* The number that follows key in a file of the system; fallback when it is not there. */
static uint64_t read_number(const char *path, const char *key, uint64_t fallback)
{
    char line[256];
    unsigned long long value;
    uint64_t found = fallback;
    size_t length = strlen(key);
    FILE *file = fopen(path, "r");

    if (file == NULL)
        return fallback;
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, length) == 0 && sscanf(line + length, "%llu", &value) == 1) {
            found = value;
            break;
        }
    fclose(file);
    return found;
}

uint64_t bench_memory_available(void)
{
    uint64_t free_bytes = read_number("/proc/meminfo", "MemAvailable:", UINT64_MAX / 1024) * 1024;
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max", "", UINT64_MAX);
    uint64_t used = read_number("/sys/fs/cgroup/memory.current", "", 0);
    uint64_t inside = limit > used ? limit - used : 0;
    return inside < free_bytes ? inside : free_bytes;
}

uint64_t bench_last_level_cache(void)
{
    long bytes = 0;
#ifdef _SC_LEVEL4_CACHE_SIZE
    const int levels[] = {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0] && bytes <= 0; i++)
        bytes = sysconf(levels[i]);
#endif
    return bytes > 0 ? (uint64_t)bytes : UINT64_C(64) << 20;
}

uint64_t bench_second_level_cache(void)
{
    long bytes = 0;
#ifdef _SC_LEVEL2_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return bytes > 0 ? (uint64_t)bytes : UINT64_C(512) << 10;
}

void bench_parallel(uint32_t n_threads, bench_task *task, void *context)
{
#ifdef _OPENMP
#  pragma omp parallel num_threads((int)n_threads)
    {
        omp_set_num_threads(1); /* of regions that libraries open within */
        /* Whatever team the system gives, every share is run. */
        for (uint32_t i = (uint32_t)omp_get_thread_num(); i < n_threads; i += (uint32_t)omp_get_num_threads())
            task(context, i, n_threads);
    }
#else
    for (uint32_t i = 0; i < n_threads; i++)
        task(context, i, n_threads);
#endif
}

void bench_share(size_t n, uint32_t ith, uint32_t nth, size_t *begin, size_t *end)
{
    *begin = n * ith / nth;
    *end = n * (ith + 1) / nth;
}

int bench_samples_add(struct bench_samples *samples, double value)
{
    if (samples->n == samples->capacity) {
        size_t capacity = samples->capacity == 0 ? 64 : 2 * samples->capacity;
        double *values = realloc(samples->values, capacity * sizeof *values);
        if (values == NULL)
            return -1;
        samples->values = values;
        samples->capacity = capacity;
    }
    samples->values[samples->n++] = value;
    return 0;
}

void bench_samples_release(struct bench_samples *samples)
{
    free(samples->values);
    *samples = (struct bench_samples){0};
}

double bench_samples_minimum(const struct bench_samples *samples)
{
    double least = samples->n > 0 ? samples->values[0] : NAN;
    for (size_t i = 1; i < samples->n; i++)
        if (samples->values[i] < least)
            least = samples->values[i];
    return least;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_samples_median(const struct bench_samples *samples)
{
    size_t n = samples->n;
    if (n == 0)
        return NAN;
    qsort(samples->values, n, sizeof *samples->values, compare);
    return 0.5 * (samples->values[(n - 1) / 2] + samples->values[n / 2]);
}

static int progress_shown;

void bench_progress(const char *format, ...)
{
    va_list arguments;

    if (!isatty(STDERR_FILENO))
        return;
    va_start(arguments, format);
    fputs("\r\033[K", stderr);
    vfprintf(stderr, format, arguments);
    fflush(stderr);
    va_end(arguments);
    progress_shown = 1;
}

void bench_progress_end(void)
{
    if (progress_shown)
        fputs("\r\033[K", stderr);
    progress_shown = 0;
}

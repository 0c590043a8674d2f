/* Vector loops of the benchmarks, in the widest form that this CPU runs: what the baselines need beside BLAS, and the
 * two ceilings, reading and multiplying. */
#ifndef BENCH_SIMD_H
#define BENCH_SIMD_H

#include <stddef.h>
#include <stdint.h>

struct bench_simd {
    const char *name;

    /* The greatest of n >= 1 values. */
    float (*row_max)(const float *row, size_t n);

    /* row[i] = exp(scale * (row[i] - max)) for max the greatest; returns the sum. */
    float (*row_exp)(float *row, size_t n, float max, float scale);

    /* The exclusive or of n_bytes / 64 lines from `from` (64-byte aligned) on, as one word.  The pages of 4 KB are read
     * 1, 4 or 8 at a time, line by line; ahead: the lines of the next ones are prefetched. */
    uint64_t (*read)(const void *from, size_t n_bytes, unsigned pages, int ahead);

    /* Multiplies and adds in registers for n rounds; returns the operations done. */
    double (*multiply_add)(size_t n);
};

const struct bench_simd *bench_simd(void);

#endif

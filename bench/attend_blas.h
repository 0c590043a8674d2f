/* OpenBLAS as the baselines use it: one thread a call, and the right kernels for this CPU or not at all. */
#ifndef BENCH_ATTEND_BLAS_H
#define BENCH_ATTEND_BLAS_H

/* Restarts the program with OPENBLAS_CORETYPE set when OpenBLAS took an older CPU's kernels and nobody chose them.  To
 * be called first; returns when there is nothing to change. */
void bench_blas_prepare(char **argv);

/* NULL, or why it makes no fair baseline here. */
const char *bench_blas_unusable(void);

/* Name of its kernels, for the kernel column. */
const char *bench_blas_name(void);

#endif

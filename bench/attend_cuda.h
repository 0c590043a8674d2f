/* The same benchmark on a GPU: chunk, paged and paged_shared over the backend "cuda", compared with a copy in its
 * memory and a large matrix product. */
#ifndef BENCH_ATTEND_CUDA_H
#define BENCH_ATTEND_CUDA_H

#include <cuda_runtime_api.h>

#include "attend_options.h"

extern const struct bench_place bench_cuda;

/* attend_product.c, or attend_noproduct.c where there is no cuBLAS */
extern const struct bench_variant bench_matmul;

/* A run is so many calls, put on the default stream between start and stop. */
enum { BENCH_CALLS = 16 };

struct bench_timer {
    cudaEvent_t start, end;
    void *spoiled; /* larger than the caches */
    size_t n_spoiled;
};

/* Closed also when opening failed. */
cudaError_t bench_timer_open(struct bench_timer *timer);
void bench_timer_close(struct bench_timer *timer);

/* Puts work on the stream that leaves nothing in the caches, and gives time to put the calls behind it. */
cudaError_t bench_timer_start(struct bench_timer *timer);

/* Waits.  Seconds of a call; negative: something failed. */
double bench_timer_stop(struct bench_timer *timer);

#endif

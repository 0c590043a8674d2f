/* The same benchmark on a GPU: chunk, paged and paged_shared over the backend "cuda", compared with a copy in its
 * memory and a large matrix product. */
#ifndef BENCH_ATTEND_CUDA_H
#define BENCH_ATTEND_CUDA_H

#include "attend_options.h"

extern const struct bench_place bench_cuda;

#endif

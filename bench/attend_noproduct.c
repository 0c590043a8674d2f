#include "attend.h"
#include "attend_cuda.h"

static uint64_t no_bytes(const struct bench_shape *shape)
{
    (void)shape;
    return 0;
}

static const char *refuse_product(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance)
{
    (void)setup, (void)n_layers, (void)instance;
    return "this build has no cuBLAS";
}

const struct bench_variant bench_matmul = {"matmul", BENCH_NOTHING, no_bytes, refuse_product, NULL, NULL, NULL};

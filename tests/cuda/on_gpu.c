/* Linked into a test program, this makes it one of the backend "cuda" on the first GPU.  In place of support/guard.c:
 * buffers are managed memory, which the device can use and the tests can look into once they have waited; where they
 * end nothing guards them. */
#define _DEFAULT_SOURCE /* setenv */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/engine.h"
#include "support/guard.h"

#ifdef ON_TENSOR_CORES
/* What the kernel of the tensor cores takes, in place of the small shapes of the tests. */
static void adjust(struct cattn_config *config)
{
    config->head_dim = 64;
    config->v_head_dim = 0;
    config->io_dtype = config->kv_dtype = config->kv_dtype == CATTN_BF16 ? CATTN_BF16 : CATTN_F16;
    config->kernel = "mma";
}
#endif

/* CUDA does not survive a fork: tests run in this process. */
__attribute__((constructor)) static void use_gpu(void)
{
    if (!cattn_backend_usable("cuda")) {
        puts("SKIP: no GPU that the backend can use");
        exit(77);
    }
    setenv("CATTN_BACKEND", "cuda", 1);
    setenv("CK_FORK", "no", 1);
#ifdef ON_TENSOR_CORES
    engine_adjust = adjust;
#endif
}

void *guard_alloc(size_t bytes, enum guard_side side)
{
    void *data = NULL;

    (void)side;
    ck_assert_int_eq(cudaMallocManaged(&data, bytes ? bytes : 1, cudaMemAttachGlobal), cudaSuccess);
    return memset(data, 0xff, bytes);
}

void guard_free(void *data, size_t bytes, enum guard_side side)
{
    (void)bytes, (void)side;
    (void)cudaFree(data);
}

void guard_lock(void *data, size_t bytes, enum guard_side side, int locked)
{
    (void)data, (void)bytes, (void)side, (void)locked;
}

/* Linked into a test program, this makes it one of the backend "cuda" on pretended devices.  Calls of layers must not
 * wait or allocate there. */
#define _DEFAULT_SOURCE 1
#include "runtime.h"
#include "support/engine.h"

#include <stdlib.h>

static void watch(int in_layer)
{
    fake_cuda_forbid_waiting(in_layer);
    CHECK(!fake_cuda_violations(), "%s in a call of a layer", fake_cuda_last_violation());
}

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

__attribute__((constructor)) static void use_cuda(void)
{
    setenv("CATTN_BACKEND", "cuda", 1);
    engine_watch = watch;
#ifdef ON_TENSOR_CORES
    engine_adjust = adjust;
#endif
}

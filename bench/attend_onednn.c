#include "attend.h"
#include "chunkattention.h"
static uint64_t bytes(const struct bench_shape *shape) { return bench_unique_bytes(shape, CATTN_F32); }
static const char *open_o(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance) {
    (void)setup, (void)n_layers, (void)instance;
    return "later";
}
const struct bench_variant bench_onednn = {"onednn", 1, bytes, open_o, NULL, NULL, NULL};

#if HAVE_CONFIG_H
#  include "config.h"
#endif
#include "kernels.h"

#include <string.h>

#include "cpu.h"

#define KERNEL(name) extern const struct cattn_kernel cattn_kernel_##name;
#include "kernels.def"
#undef KERNEL

static const struct cattn_kernel *const kernels[] = {
#define KERNEL(name) &cattn_kernel_##name,
#include "kernels.def"
#undef KERNEL
};

const struct cattn_kernel *cattn_kernel_at(unsigned i)
{
    const uint32_t features = cattn_cpu_features();
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++)
        if (((CATTN_CPU_BASELINE | kernels[k]->features) & ~features) == 0 && i-- == 0)
            return kernels[k];
    return NULL;
}

size_t cattn_query_bytes_f32(const struct cattn_layout *layout)
{
    return cattn_round_up(layout->k_dim, 16) * sizeof(float);
}

void cattn_load_query_f32(const struct cattn_layout *layout, const void *q, uint32_t dtype, size_t first, void *query)
{
    float *to = query;
    cattn_load_row(to, q, dtype, first, layout->k_dim);
    memset(to + layout->k_dim, 0, cattn_query_bytes_f32(layout) - layout->k_dim * sizeof *to);
}

const struct cattn_kernel *cattn_kernel_find(const char *name, const struct cattn_shape *shape)
{
    const struct cattn_kernel *kernel;
    for (unsigned i = 0; (kernel = cattn_kernel_at(i)) != NULL; i++)
        if ((!name || strcmp(name, kernel->name) == 0) && kernel->takes(shape))
            return kernel;
    return NULL;
}

#include "variant.h"

#include "cache.h"

#include <math.h>

/* The struct of the first version ended behind the scale, and what may pad it there. */
static const size_t first_size = 2 * sizeof(size_t);

static bool all_finite(const float *x, uint32_t n, bool or_none)
{
    for (uint32_t i = 0; x && i < n; i++) {
        if (!isfinite(x[i]) && !(or_none && x[i] == -INFINITY))
            return false;
    }
    return true;
}

bool cattn_variant_read(struct cattn_variant *to, const struct cattn_variant *from, uint32_t n_heads)
{
    *to = (struct cattn_variant){0};
    if (from && !cattn_struct_read(to, sizeof(*to), first_size, from))
        return false;
    if (to->size == first_size)
        to->softcap = 0;
    to->size = sizeof(*to);
    return isfinite(to->scale) && to->scale >= 0 && isfinite(to->softcap) && to->softcap >= 0 &&
           all_finite(to->alibi_slopes, n_heads, false) && all_finite(to->sinks, n_heads, true);
}

/* From scores to weights, sixteen at a time: what the vector kernels have in common.  Included after a simd_*.h. */
#ifndef CATTN_SCORES_TMPL_H
#define CATTN_SCORES_TMPL_H

#include "kernels.h"

/* 2^f - 1 for 0 <= f < 1, with a relative error of 1e-7 down to f = 0. */
SIMD_INLINE vec power_minus_1(vec f)
{
    vec y = vec_set(0x1.c54174p-13f);
    y = vec_fma(y, f, vec_set(0x1.46d64ep-10f));
    y = vec_fma(y, f, vec_set(0x1.3d0b92p-7f));
    y = vec_fma(y, f, vec_set(0x1.c68912p-5f));
    y = vec_fma(y, f, vec_set(0x1.ebfd58p-3f));
    return vec_fma(y, f, vec_set(0x1.62e42cp-1f));
}

/* 2^x for x <= 128: exact for whole x, relative error 1e-7. */
SIMD_INLINE vec exp2_of(vec x)
{
    const vec f = vec_fraction(x);
    return vec_scale(vec_fma(power_minus_1(f), f, vec_set(1)), x);
}

/* With e = exp(2|x|) - 1: e / (e + 2).  Nothing cancels, however small x is. */
SIMD_INLINE vec tanh_of(vec x)
{
    const vec y = vec_min(vec_set(60), vec_mul(vec_magnitude(x), vec_set(0x1.715476p+1f)));
    const vec f = vec_fraction(y), whole = vec_scale(vec_set(1), y);
    const vec e = vec_fma(vec_mul(power_minus_1(f), f), whole, vec_sub(whole, vec_set(1)));
    return vec_with_sign(vec_div(e, vec_add(e, vec_set(2))), x);
}

/* What makes the scores of a row and block more than q.k * scale. */
struct bias {
    float cap;      /* 0: no soft cap */
    float slope;    /* ALiBi, of a distance in tokens */
    float distance; /* from the row to the block's first token, <= 0 unless the row does not see it */
};

SIMD_INLINE struct bias bias_of(const struct cattn_rows *all, uint32_t row, uint64_t first)
{
    const int64_t distance = (int64_t)(first - all->position[row]);
    const struct bias b = {all->scoring.cap, all->slope ? all->slope[row] : 0, (float)distance};
    return b;
}

/* Sixteen scores, the first of them for token `token` of the block; those not visible become -inf. */
SIMD_INLINE vec score_of(vec x, const struct bias *b, uint32_t token, uint64_t visible)
{
    const uint32_t seen = visible >> token & 0xffff;
    if (b->cap > 0)
        x = vec_mul(tanh_of(x), vec_set(b->cap));
    if (b->slope != 0) /* a position and a distance are exact in a float up to 2^24 */
        x = vec_fma(vec_set(b->slope), vec_add(vec_set(b->distance + (float)token), vec_lanes()), x);
    return seen == 0xffff ? x : vec_keep(x, seen);
}

#endif

#include "state.h"

#include <math.h>
#include <string.h>

#include "number.h"

void cattn_state_clear(float *state, uint32_t v_pad)
{
    memset(state, 0, cattn_state_floats(v_pad) * sizeof *state);
    state[0] = -INFINITY;
}

/* One fixed tree, so that the sum does not depend on the compiler. */
static float sum_lanes(const float *l)
{
    float sum[CATTN_STATE_LANES];
    memcpy(sum, l, sizeof sum);
    for (int width = CATTN_STATE_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            sum[i] += sum[i + width];
    return sum[0];
}

/* Not so when scores were NaN, which leave m alone and l a NaN. */
static int is_empty(const float *state)
{
    return state[0] == -INFINITY && sum_lanes(state + CATTN_STATE_L) == 0;
}

static void rescale(float *state, float m, uint32_t v_pad)
{
    const float factor = exp2f(state[0] - m); /* a power of two: m is whole */
    for (uint32_t i = CATTN_STATE_L; i < CATTN_STATE_O + v_pad; i++)
        state[i] *= factor;
    state[0] = m;
}

void cattn_state_merge(float *into, const float *later, uint32_t v_pad)
{
    if (is_empty(later))
        return;
    if (is_empty(into)) {
        memcpy(into, later, cattn_state_floats(v_pad) * sizeof *into);
        return;
    }
    if (into[0] < later[0])
        rescale(into, later[0], v_pad);
    const float factor = exp2f(later[0] - into[0]);
    for (uint32_t i = CATTN_STATE_L; i < CATTN_STATE_O + v_pad; i++)
        into[i] += later[i] * factor;
}

void cattn_state_add_sink(float *state, uint32_t v_pad, float logit)
{
    if (logit == -INFINITY)
        return;
    if (state[0] == -INFINITY)
        state[0] = ceilf(logit); /* l and o are zero, or NaN */
    else if (state[0] < logit)
        rescale(state, ceilf(logit), v_pad);
    state[CATTN_STATE_L] += exp2f(logit - state[0]);
}

void cattn_state_finish(const float *state, uint32_t v_dim, void *out, uint32_t dtype, float *lse)
{
    const float l = sum_lanes(state + CATTN_STATE_L);
    const int empty = is_empty(state);
    const float inverse = empty ? 0.0f : 1.0f / l;
    for (uint32_t d = 0; d < v_dim; d++)
        cattn_put(out, dtype, d, state[CATTN_STATE_O + d] * inverse + 0.0f);
    if (lse)
        *lse = empty ? -INFINITY : (float)(((double)state[0] + log2(l)) * 0.69314718055994530942);
}

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

/* Loops over states go sixteen floats at a time, which any compiler makes vectors of. */
enum { STRIDE = 16 };

static void scale_floats(float *x, float factor)
{
    for (int i = 0; i < STRIDE; i++)
        x[i] *= factor;
}

static void add_scaled(float *restrict x, const float *restrict y, float factor)
{
    for (int i = 0; i < STRIDE; i++)
        x[i] += y[i] * factor;
}

/* 2^x for whole x <= 0, or zero where that is not a normal number. */
static float power_of_2(float x)
{
    const uint32_t bits = x < -126 ? 0 : (uint32_t)(127 + (int)x) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

static void rescale(float *state, float m, uint32_t v_pad)
{
    const float factor = power_of_2(state[0] - m); /* m is whole */
    for (uint32_t i = CATTN_STATE_L; i < CATTN_STATE_O + v_pad; i += STRIDE)
        scale_floats(state + i, factor);
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
    const float factor = power_of_2(later[0] - into[0]);
    for (uint32_t i = CATTN_STATE_L; i < CATTN_STATE_O + v_pad; i += STRIDE)
        add_scaled(into + i, later + i, factor);
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

/* Elements [d, d + n) of o / l, n <= STRIDE. */
static inline void put_outputs(const float *o, float inverse, uint32_t d, uint32_t n, void *out, uint32_t dtype)
{
    float x[STRIDE];
    for (int i = 0; i < STRIDE; i++)
        x[i] = o[d + i] * inverse + 0.0f;
    cattn_store_row(out, dtype, d, x, n);
}

void cattn_state_finish(const float *state, uint32_t v_dim, void *out, uint32_t dtype, float *lse)
{
    const float l = sum_lanes(state + CATTN_STATE_L), *o = state + CATTN_STATE_O;
    const int empty = is_empty(state);
    const float inverse = empty ? 0.0f : 1.0f / l;
    uint32_t d = 0;
    for (; d + STRIDE <= v_dim; d += STRIDE)
        put_outputs(o, inverse, d, STRIDE, out, dtype);
    if (d < v_dim)
        put_outputs(o, inverse, d, v_dim - d, out, dtype);
    if (lse)
        *lse = empty ? -INFINITY : (float)(((double)state[0] + log2(l)) * 0.69314718055994530942);
}

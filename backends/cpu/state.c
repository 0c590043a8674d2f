#if HAVE_CONFIG_H
#  include "config.h"
#endif
#include "state.h"

#include <math.h>
#include <string.h>

#include "cpu.h"
#include "number.h"

/* Loops over states go sixteen floats at a time, which any compiler makes vectors of. */
enum { STRIDE = 16 };

static float sum_lanes(const float *l)
{
    float sum[CATTN_STATE_LANES];
    memcpy(sum, l, sizeof sum);
    for (int width = CATTN_STATE_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            sum[i] += sum[i + width];
    return sum[0];
}

static void add_scaled(float *restrict x, float factor, const float *restrict y, float y_factor)
{
    for (int i = 0; i < STRIDE; i++)
        x[i] = x[i] * factor + y[i] * y_factor;
}

static inline void put_outputs(const float *o, float inverse, uint32_t d, uint32_t n, void *out, uint32_t dtype)
{
    float x[STRIDE];
    for (int i = 0; i < STRIDE; i++)
        x[i] = o[d + i] * inverse + 0.0f;
    cattn_store_row(out, dtype, d, x, n);
}

#define STATES_NAME cattn_states_plain
#include "state_tmpl.h"

const struct cattn_states *cattn_states_find(void)
{
#if HAVE_CATTN_AVX512
    if (cattn_cpu_features() & CATTN_CPU_AVX512)
        return &cattn_states_avx512;
#endif
    return &cattn_states_plain;
}

void cattn_state_clear(float *state, uint32_t v_pad)
{
    memset(state, 0, cattn_state_floats(v_pad) * sizeof *state);
    state[0] = -INFINITY;
}

static void scale_floats(float *x, float factor)
{
    for (int i = 0; i < STRIDE; i++)
        x[i] *= factor;
}

static void rescale(float *state, float m, uint32_t v_pad)
{
    const float factor = power_of_2(state[0] - m); /* m is whole */
    for (uint32_t i = CATTN_STATE_L; i < CATTN_STATE_O + v_pad; i += STRIDE)
        scale_floats(state + i, factor);
    state[0] = m;
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

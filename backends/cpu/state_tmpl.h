/* Merging and finishing, compiled once for each set of instructions: STATES_NAME is the name of the table.  What is
 * included before this works on STRIDE floats at a time with the instructions that there are, and to the same bits:
 *
 * - sum_lanes(l), the lanes of the upper half added to those of the lower one until a single one is left: a fixed tree,
 *   so that the sum does not depend on the compiler
 * - add_scaled(x, factor, y, y_factor): x * factor + y * y_factor to x, each product rounded
 * - put_outputs(o, inverse, d, n, out, dtype): elements [d, d + n) of o * inverse + 0, n <= STRIDE, to those of out; o
 *   goes on to a multiple of STRIDE, out does not */
#include <math.h>
#include <string.h>

#include "number.h"
#include "state.h"

/* Not so when scores were NaN, which leave m alone and l a NaN. */
static int is_empty(const float *state)
{
    return state[0] == -INFINITY && sum_lanes(state + CATTN_STATE_L) == 0;
}

/* 2^x for whole x <= 0, or zero where that is not a normal number.  The difference of two infinities counts as none. */
static float power_of_2(float x)
{
    const int exponent = x < -126 ? -127 : x < 0 ? (int)x : 0;
    return cattn_float((uint32_t)(127 + exponent) << 23);
}

/* The state with the larger m is multiplied by 1, which changes nothing.  `emptied`, NULL or the later one, becomes
 * zero on the way: it is in the cache then. */
static inline void merge_states(float *into, const float *later, float *emptied, uint32_t v_pad)
{
    const float m = into[0] < later[0] ? later[0] : into[0];
    const float factor = power_of_2(into[0] - m), later_factor = power_of_2(later[0] - m);
    for (uint32_t i = CATTN_STATE_L; i < CATTN_STATE_O + v_pad; i += STRIDE) {
        add_scaled(into + i, factor, later + i, later_factor);
        if (emptied)
            memset(emptied + i, 0, STRIDE * sizeof *emptied);
    }
    into[0] = m;
}

static void merge(float *into, const float *later, uint32_t v_pad)
{
    if (is_empty(later))
        return;
    if (is_empty(into))
        memcpy(into, later, cattn_state_floats(v_pad) * sizeof *into);
    else
        merge_states(into, later, NULL, v_pad);
}

static void take(float *into, float *later, uint32_t v_pad)
{
    if (is_empty(later) || is_empty(into)) {
        merge(into, later, v_pad);
        cattn_state_clear(later, v_pad);
        return;
    }
    merge_states(into, later, later, v_pad);
    later[0] = -INFINITY;
}

static void finish(const float *state, uint32_t v_dim, void *out, uint32_t dtype, float *lse)
{
    const float l = sum_lanes(state + CATTN_STATE_L), *o = state + CATTN_STATE_O;
    const int empty = state[0] == -INFINITY && l == 0;
    const float inverse = empty ? 0.0f : 1.0f / l;
    uint32_t d = 0;
    for (; d + STRIDE <= v_dim; d += STRIDE)
        put_outputs(o, inverse, d, STRIDE, out, dtype);
    if (d < v_dim)
        put_outputs(o, inverse, d, v_dim - d, out, dtype);
    if (lse)
        *lse = empty ? -INFINITY : (float)(((double)state[0] + log2(l)) * 0.69314718055994530942);
}

const struct cattn_states STATES_NAME = {merge, take, finish};

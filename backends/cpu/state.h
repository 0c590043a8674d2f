/* The state of a row: what attention over some tokens comes to, ready to take in more of them.
 *
 * A state is state_floats(v_pad) floats, 64-byte aligned: m, padding, l in 16 lanes, o.  With p = 2^(score - m):
 * l is the sum of p, o the sum of p * V.  m is an integer in log2 units, so that every rescaling is exact; the
 * empty state has m = -inf, l = 0, o = 0 and is the neutral element of merge. */
#ifndef CATTN_STATE_H
#define CATTN_STATE_H

#include <stddef.h>
#include <stdint.h>

enum { CATTN_STATE_L = 16, CATTN_STATE_O = 32, CATTN_STATE_LANES = 16 };

static inline size_t cattn_state_floats(uint32_t v_pad)
{
    return CATTN_STATE_O + v_pad;
}

void cattn_state_clear(float *state, uint32_t v_pad);

/* A token without a value whose score is `logit`, in log2 units: it takes its share of the weight. */
void cattn_state_add_sink(float *state, uint32_t v_pad, float logit);

/* What is done to every row, for some set of instructions; all come to the same bits. */
struct cattn_states {
    /* Folds the state of later tokens into that of earlier ones. */
    void (*merge)(float *into, const float *later, uint32_t v_pad);

    /* The same, and leaves the later one empty. */
    void (*take)(float *into, float *later, uint32_t v_pad);

    /* o / l to out, rounded to dtype, and the natural logarithm of the sum of exponentials to *lse unless it is NULL.
     * Zero and -inf for an empty state. */
    void (*finish)(const float *state, uint32_t v_dim, void *out, uint32_t dtype, float *lse);
};

extern const struct cattn_states cattn_states_plain, cattn_states_avx512;

/* The fastest that this machine can run. */
const struct cattn_states *cattn_states_find(void);

#endif

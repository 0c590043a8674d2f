/* The reference kernel: any data type, any shape, any machine.  It does per row what the Bit rule says, one token
 * after another, and shares no arithmetic with the fast kernels. */
#include <math.h>

#include "kernels.h"

static int takes(const struct cattn_shape *shape)
{
    (void)shape;
    return 1;
}

/* In log2 units; see struct cattn_variant. */
static float score(const struct cattn_rows *all, uint32_t row, const unsigned char *block, uint32_t t, int64_t distance)
{
    const struct cattn_layout *layout = all->layout;
    const float *q = (const float *)(all->q + row * all->q_bytes);
    double sum = 0;
    for (uint32_t d = 0; d < layout->k_dim; d++)
        sum += (double)q[d] * cattn_stored_k(layout, block, t, d);
    double x = (float)sum * all->scoring.scale;
    if (all->scoring.cap > 0)
        x = all->scoring.cap * tanh(x);
    if (all->slope)
        x -= (double)all->slope[row] * (double)distance;
    return (float)x;
}

static void add_value(const struct cattn_layout *layout, float *state, const unsigned char *block, uint32_t t, float p)
{
    state[CATTN_STATE_L] += p;
    for (uint32_t d = 0; d < layout->v_dim; d++)
        state[CATTN_STATE_O + d] += p * cattn_stored_v(layout, block, t, d);
}

/* The maximum is decided once per row and block, and only ever a whole number: see state.h. */
static void raise_maximum(const struct cattn_layout *layout, float *state, float maximum)
{
    if (!(maximum > state[0] + 8) || maximum == -INFINITY)
        return;
    const float m = ceilf(maximum), factor = exp2f(state[0] - m);
    for (uint32_t i = CATTN_STATE_L; i < CATTN_STATE_O + layout->v_dim; i++)
        state[i] *= factor;
    state[0] = m;
}

/* The tokens of a block that the row sees; the block starts at token `begin` of the chunk. */
static void fold_block(const struct cattn_rows *all, const unsigned char *chunk, uint32_t begin, uint64_t first,
                       uint64_t visible, uint32_t row)
{
    const struct cattn_layout *layout = all->layout;
    float *state = all->states + row * all->state_stride;
    float s[CATTN_BLOCK], maximum = -INFINITY;
    for (uint32_t i = 0; i < CATTN_BLOCK; i++)
        if (visible >> i & 1) {
            s[i] = score(all, row, chunk, begin + i, (int64_t)(all->position[row] - first - i));
            maximum = fmaxf(maximum, s[i]);
        }
    raise_maximum(layout, state, maximum);
    const float m = state[0] > -INFINITY ? state[0] : 0; /* no score yet, or none that is a number */
    for (uint32_t i = 0; i < CATTN_BLOCK; i++)
        if (visible >> i & 1)
            add_value(layout, state, chunk, begin + i, exp2f(s[i] - m));
}

static void fold(const struct cattn_rows *all, const uint32_t *slots, uint32_t n_chunks, uint64_t first,
                 const uint32_t *rows, uint32_t n_rows, const unsigned char *const *next)
{
    (void)next;
    const uint32_t c = all->layout->chunk_tokens, block = cattn_block_tokens(all->layout);
    for (uint32_t i = 0; i < n_chunks; i++, first += c) {
        const unsigned char *chunk = all->blocks + slots[i] * all->layout->block_bytes;
        for (uint32_t r = 0; r < n_rows; r++)
            for (uint32_t begin = 0; begin < c; begin += block) {
                const uint64_t visible = cattn_visible(all, rows[r], first + begin, block);
                if (visible)
                    fold_block(all, chunk, begin, first + begin, visible, rows[r]);
            }
    }
}

const struct cattn_kernel cattn_kernel_generic = {
    .name = "generic",
    .exact = 1,
    .takes = takes,
    .query_bytes = cattn_query_bytes_f32,
    .load_query = cattn_load_query_f32,
    .fold = fold,
};

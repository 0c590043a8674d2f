/* Attention over two sets of tokens from attention over each: for engines that compute a part of it elsewhere. */
#include <math.h>

#include "arithmetic.h"
#include "cache.h"
#include "number.h"

/* A partial with its strides filled in. */
struct side {
    unsigned char *out;
    float *lse;
    size_t row, head; /* in elements */
};

static int read_side(const struct cattn_partial *partial, uint32_t n_heads, uint32_t v_head_dim, struct side *side)
{
    if (!partial || !cattn_struct_readable(partial, sizeof *partial))
        return 0;
    side->out = partial->out;
    side->lse = partial->lse;
    side->head = partial->out_head ? partial->out_head : v_head_dim;
    side->row = partial->out_row ? partial->out_row : (size_t)n_heads * v_head_dim;
    return 1;
}

/* The weights are those of the two sums of exponentials, so that no more than one rounding each comes on top of what
 * the sides have.  A NaN on either side makes all of it one. */
static void mix(unsigned char *into, float *into_lse, const unsigned char *other, float other_lse, uint32_t n,
                uint32_t dtype)
{
    const double top = *into_lse < other_lse ? other_lse : *into_lse;
    const double a = exp(*into_lse - top), b = exp(other_lse - top), sum = a + b;
    const float keep = (float)(a / sum), take = (float)(b / sum);
    for (uint32_t d = 0; d < n; d++)
        cattn_put(into, dtype, d, keep * cattn_load(into, dtype, d) + take * cattn_load(other, dtype, d));
    *into_lse = (float)(top + log(sum));
}

static void merge_head(unsigned char *into, float *into_lse, const unsigned char *other, float other_lse, uint32_t n,
                       uint32_t dtype)
{
    if (other_lse == -INFINITY)
        return;
    if (*into_lse > -INFINITY || isnan(*into_lse)) {
        mix(into, into_lse, other, other_lse, n, dtype);
        return;
    }
    memcpy(into, other, n * cattn_dtype_size(dtype));
    *into_lse = other_lse;
}

int cattn_merge_states(struct cattn_partial *into, const struct cattn_partial *other, size_t n_rows, uint32_t n_heads,
                       uint32_t v_head_dim, uint32_t dtype)
{
    struct side a, b;
    if (!n_heads || !v_head_dim || dtype > CATTN_BF16 || !read_side(into, n_heads, v_head_dim, &a) ||
        !read_side(other, n_heads, v_head_dim, &b))
        return CATTN_EINVAL;
    if (n_rows && (!a.out || !a.lse || !b.out || !b.lse || a.out == b.out || a.lse == b.lse))
        return CATTN_EINVAL;
    const size_t size = cattn_dtype_size(dtype);
    const uint64_t saved = cattn_enter_arithmetic();
    for (size_t row = 0; row < n_rows; row++)
        for (size_t head = 0; head < n_heads; head++) {
            const size_t i = row * n_heads + head;
            merge_head(a.out + (row * a.row + head * a.head) * size, &a.lse[i],
                       b.out + (row * b.row + head * b.head) * size, b.lse[i], v_head_dim, dtype);
        }
    cattn_leave_arithmetic(saved);
    return CATTN_OK;
}

#include "bounds.h"

#include <math.h>
#include <string.h>

enum { ANY = 100 };

/* score: of q.k, relative to |q| |k|.  query: the same, where the query is rounded once more because it comes in a
 * wider type than bf16.  weight: of the weights of the tokens, relative to the largest; sum: of their sum, relative to
 * itself.  value: of a value, relative to the largest.  The first that fits counts. */
static const struct accuracy {
    const char *kernel; /* NULL: any */
    uint32_t kv_dtype;  /* or ANY */
    double score, query, weight, sum, value;
} accuracies[] = {
    /* Queries and weights are rounded to bf16, the powers of two are good to 1e-4. */
    {"amx", CATTN_BF16, 0x1p-20, 0x1p-8, 0x1p-8, 0x1p-8 + 1e-4, 0},
    /* Numbers of 8 + 8 bits, and what is smallest of a product is left out. */
    {"amxf32", CATTN_F32, 0x1p-14, 0, 0x1p-14, 0x1p-16, 0x1p-16},
    /* Weights are rounded to the type of the values, and added up as they are then. */
    {"mma", CATTN_BF16, 0x1p-21, 0, 0x1p-8, 0x1p-8, 0},
    {"mma", CATTN_F16, 0x1p-21, 0, 0x1p-11, 0x1p-11, 0},
    {NULL, CATTN_I8, 0x1p-8, 0, 0x1p-8, 0, 0}, /* 13 bits of each, and a quantum where rounding is on the edge */
    {NULL, ANY, 0x1p-22, 0, 0, 0, 0},          /* sums in f32 */
};

static const struct accuracy *find(const char *kernel, uint32_t kv_dtype)
{
    const struct accuracy *a = accuracies;
    while ((a->kernel && strcmp(a->kernel, kernel)) || (a->kv_dtype != ANY && a->kv_dtype != kv_dtype))
        a++;
    return a;
}

static double of_products(const struct accuracy *a, uint32_t io_dtype)
{
    return a->score + (io_dtype == CATTN_BF16 ? 0 : a->query);
}

/* A weight has the error of its score relative to itself, and their sum one that grows with the number of tokens.  What
 * a score is before the largest is taken off, is known to its last place: a bias of ALiBi can be large. */
struct bound bound_of_row(const char *kernel, uint32_t io_dtype, uint32_t kv_dtype, uint32_t head_dim,
                          const struct cattn_variant *variant, uint32_t head, const struct row_size *size)
{
    const struct accuracy *a = find(kernel, kv_dtype);
    const double scale = variant && variant->scale > 0 ? variant->scale : 1 / sqrt(head_dim);
    double largest = scale * size->q * size->k;
    struct bound b = {.score = 4e-6 + 0x1p-27 * (double)size->position + of_products(a, io_dtype) * largest + a->sum};
    if (variant && variant->softcap > 0) {
        largest = fmin(largest, variant->softcap);
        b.score += 0x1p-22 * largest;
    }
    if (variant && variant->alibi_slopes)
        b.score += 0x1p-22 * (largest + fabs(variant->alibi_slopes[head]) * (double)size->position);
    if (variant && variant->sinks && variant->sinks[head] > -1e5 && variant->sinks[head] < 1e5)
        b.score += 0x1p-22 * fabs(variant->sinks[head]);
    b.value = a->value * size->v;
    b.out = fmin(2 * b.score + a->weight, 2) * size->v + 1e-7;
    return b;
}

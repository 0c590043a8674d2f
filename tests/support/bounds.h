/* What a kernel may be off: the one place to change when a kernel or a data type comes. */
#ifndef TEST_BOUNDS_H
#define TEST_BOUNDS_H

#include "chunkattention.h"

/* Norms of what a row meets: of its query, the longest of its keys, the largest |v|; and its position. */
struct row_size {
    double q, k, v;
    uint64_t position;
};

struct bound {
    double score; /* of a score and of the lse, absolute; on top of it the lse is rounded to f32 */
    double out;   /* of a value of the output before it is rounded, absolute */
    double value; /* the same, where a single token counts */
};

/* Against the oracle on what the cache has stored.  variant NULL: the plain one. */
struct bound bound_of_row(const char *kernel, uint32_t io_dtype, uint32_t kv_dtype, uint32_t head_dim,
                          const struct cattn_variant *variant, uint32_t head, const struct row_size *size);

#endif

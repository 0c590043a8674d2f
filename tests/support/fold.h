/* One fold of a kernel, without tree, schedule and API: a pool with some chunks in it, rows that see them, the answer
 * in double.  What is drawn for a case depends on its number and the seed alone. */
#ifndef TEST_FOLD_H
#define TEST_FOLD_H

#include "guard.h"
#include "kernels.h"
#include "random.h"
#include "store.h"

enum fold_variant {
    FOLD_PLAIN,
    FOLD_SCALE,
    FOLD_SOFTCAP,
    FOLD_WINDOW,
    FOLD_SINK_TOKENS,
    FOLD_ALIBI,
    FOLD_ALL,
    N_VARIANTS
};

struct fold_case {
    uint64_t number;
    uint32_t io_dtype, kv_dtype, head_dim, v_head_dim, chunk_tokens, n_rows;
    enum fold_variant variant;
    uint64_t first_chunk;
    uint32_t n_chunks, n_tokens; /* n_tokens are in the pool, the last chunk may have room left */
    uint32_t chunks_per_fold;
    enum guard_side guard;
    double gain; /* about what scores spread over */
};

/* How many cases there are; case `number` of them; one line about it. */
uint64_t fold_n_cases(void);
struct fold_case fold_case_at(uint64_t number);
const char *fold_variant_name(enum fold_variant variant);
void fold_describe(const struct fold_case *c, char *text, size_t size);

struct cattn_shape fold_shape(const struct fold_case *c);

/* Multiplications for one row and token, times all of those. */
uint64_t fold_cost(const struct fold_case *c);

/* What a case is run on, and what must come out. */
struct fold_data {
    struct fold_case c;
    struct cattn_shape shape;
    struct cattn_pool pool;
    struct cattn_scoring scoring;
    double scale; /* of q.k, before any soft cap */
    double cap;   /* 0: none */
    uint32_t *slots;
    uint64_t *position; /* [row] */
    float *slope;       /* [row], natural */
    void *q;            /* [row][head_dim], io_dtype */
    double *k, *v;      /* [token][...], as the pool holds them */
    struct fold_answer *answers;
    double *out; /* [row][v_head_dim] */
};

struct fold_answer {
    double lse;
    double score_error; /* what rounding to f32 may do to a score */
    double query_error; /* what rounding a query to 12 bits and a sign may do to one */
    double split_error; /* what leaves 16 bits of each query and key, and not all of their products, may do to one */
    double *spread;     /* [v_head_dim]: the weighted sum of |v| */
    double largest;     /* of weight times |v|, the sum of one for each block */
};

void fold_open(struct fold_data *f, const struct fold_case *c);
void fold_close(struct fold_data *f);

/* How the rows go through a kernel.  Row `order[i]` of the case is the i-th; rows of others lie between. */
struct fold_plan {
    const uint32_t *order;
    uint32_t n;
    struct rng *rng; /* NULL: all at once, chunks_per_fold chunks at a time; else in groups and steps as they come */
};

/* Folds all chunks into cleared states: states[order[i]] of n rows of fold_state_floats() floats.  NULL, or what was
 * wrong. */
size_t fold_state_floats(const struct fold_data *f);
const char *fold_run(const struct fold_data *f, const struct cattn_kernel *kernel, const struct fold_plan *plan,
                     float *states);

#endif

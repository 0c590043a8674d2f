/* Attention as the textbook has it, in double precision: no chunks, no tree, no sharing. */
#ifndef TEST_ORACLE_H
#define TEST_ORACLE_H

#include "chunkattention.h"

#include <stddef.h>

/* One query, of head `head` and at position n - 1, over the n >= 1 tokens up to its own.  k is [n][d], v is [n][dv];
 * out gets dv values.  variant NULL: the plain one.  Returns the natural log of the sum of the exponentials of the
 * scores, the sink's included. */
double oracle_row(const double *q, const double *k, const double *v, size_t n, size_t d, size_t dv,
                  const struct cattn_variant *variant, size_t head, double *out);

/* The score of one token, `distance` tokens before the row. */
double oracle_score(const double *q, const double *k, size_t d, const struct cattn_variant *variant, size_t head,
                    size_t distance);

/* Whether a row at position p sees the token at position t. */
int oracle_sees(const struct cattn_variant *variant, size_t p, size_t t);

#endif

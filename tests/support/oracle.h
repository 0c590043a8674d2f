/* Attention as the textbook has it, in double precision: no chunks, no tree, no sharing. */
#ifndef TEST_ORACLE_H
#define TEST_ORACLE_H

#include <stddef.h>

/* One query over n >= 1 tokens.  k is [n][d], v is [n][dv]; out gets dv values.  Returns the natural log of the sum
 * of the exponentials of the scaled scores. */
double oracle_row(const double *q, const double *k, const double *v, size_t n, size_t d, size_t dv, double scale,
                  double *out);

#endif

/* Random calls of every kind on a small cache, in and out of steps, failing ones among them. */
#ifndef TESTS_CHURN_H
#define TESTS_CHURN_H

#include "small.h"
#include "support/random.h"

#define CHURN_NAMES 3

extern const char *const churn_names[CHURN_NAMES]; /* of the namespaces; strings */

/* check is called after each.  Sequences stay open. */
void churn(struct small *small, struct rng *rng, size_t n_calls, void (*check)(void));

#endif

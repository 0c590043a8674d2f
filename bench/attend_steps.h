/* What shares of a step and the storing of new K and V cost, through the public interface. */
#ifndef BENCH_ATTEND_STEPS_H
#define BENCH_ATTEND_STEPS_H

#include <stdio.h>

#include "attend_options.h"

/* How far the slowest of the threads is behind their mean, over batches of unequal sequences.  0, or -1 when it failed
 * and has said why. */
int bench_balance(const struct bench_options *options, FILE *text);

/* What storing the new tokens takes of a decode step.  0 or -1 likewise. */
int bench_pack(const struct bench_options *options, FILE *text);

#endif

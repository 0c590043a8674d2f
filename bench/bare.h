/* A backend without bytes: what is left of a call is the work on tokens. */
#ifndef BENCH_BARE_H
#define BENCH_BARE_H

#include "backend.h"

extern const struct cattn_backend bench_bare;

#endif

/* One layer of a step: the calls that store and attend it, whole or in shares. */
#ifndef CATTN_PASS_H
#define CATTN_PASS_H

#include "chunkattention.h"

#include <stdatomic.h>
#include <stdbool.h>

#define CATTN_MAX_SHARES 1024

/* Shares come from any thread in any order, so all of this is atomic.  Between a layer's passes there is a barrier of
 * the caller's. */
struct cattn_pass {
    _Atomic uint64_t key; /* number, kind and shares of the pass that goes on; 0: none does */
    _Atomic uint32_t n_returned;
    _Atomic uint32_t written;
    bool attended; /* in the step that was last attended by calls: its window */
    uint32_t window, n_sink_tokens;
    _Atomic uint64_t returned[CATTN_MAX_SHARES / 64];
};

/* For a new step; no share is under way. */
void cattn_pass_reset(struct cattn_pass *pass);

#endif

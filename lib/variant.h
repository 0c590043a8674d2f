/* The caller's choice of attention, checked. */
#ifndef CATTN_VARIANT_H
#define CATTN_VARIANT_H

#include "chunkattention.h"

#include <stdbool.h>

/* Fills *to from the caller's struct (NULL: the plain variant), whichever version of it.  False: not readable, or a
 * value is out of range. */
bool cattn_variant_read(struct cattn_variant *to, const struct cattn_variant *from, uint32_t n_heads);

#endif

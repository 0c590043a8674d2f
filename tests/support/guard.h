/* Buffers pressed against memory that cannot be touched: one element too far is a fault, not luck. */
#ifndef TEST_GUARD_H
#define TEST_GUARD_H

#include <stddef.h>

enum guard_side { GUARD_NONE, GUARD_END, GUARD_START };

/* `bytes` bytes (0 is allowed) filled with 0xff, which is NaN in every data type.  GUARD_END: the byte after the last
 * faults; GUARD_START: the byte before the first does.  The other side faults too, up to a page further. */
void *guard_alloc(size_t bytes, enum guard_side side);
void guard_free(void *data, size_t bytes, enum guard_side side);

/* The buffer can be read but no longer be written to; and again. */
void guard_lock(void *data, size_t bytes, enum guard_side side, int locked);

#endif

/* Heaps of slots that need no memory of their own: leftist trees whose links lie in a flat array.  One array serves any
 * number of heaps, as long as no slot is in two of them at once.  The first of a heap is its top; CATTN_NONE: it is
 * empty.  The order must not change for slots that are in a heap. */
#ifndef CATTN_HEAP_H
#define CATTN_HEAP_H

#include <stdbool.h>
#include <stdint.h>

struct cattn_heap_link {
    uint32_t left, right, up; /* slots, or CATTN_NONE */
    uint32_t rank;            /* slots on the way down to the right; that to the left is no shorter */
};

struct cattn_heap {
    struct cattn_heap_link *links;
    bool (*before)(const void *context, uint32_t a, uint32_t b); /* a total order */
    const void *context;
};

/* O(log n), always. */
void cattn_heap_add(const struct cattn_heap *heap, uint32_t *top, uint32_t slot);
void cattn_heap_remove(const struct cattn_heap *heap, uint32_t *top, uint32_t slot);

#endif

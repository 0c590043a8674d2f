/* What callers hold of a sequence or a request: a place in a table, and which one of those that have it one after the
 * other (its generation).  No handle is given twice.  The generations of each place begin anywhere, so that a number
 * that the table has not given, be it made up or the handle of another table, passes for a handle with odds of 1 in
 * 2^40. */
#ifndef CATTN_HANDLE_H
#define CATTN_HANDLE_H

#include "hash.h"

#define CATTN_PLACES ((uint32_t)1 << 24) /* of a table; the rest of a handle is the generation, never 0 */

static inline uint32_t cattn_handle_place(uint64_t handle)
{
    return (uint32_t)(handle % CATTN_PLACES);
}

static inline uint64_t cattn_handle_first(uint64_t seed, uint32_t place)
{
    uint64_t generation = cattn_hash_mix(seed, place) / CATTN_PLACES;
    return (generation ? generation : 1) * CATTN_PLACES + place;
}

/* The next one of the same place.  0: all were given. */
static inline uint64_t cattn_handle_next(uint64_t seed, uint64_t handle)
{
    uint64_t next = handle + CATTN_PLACES;
    if (next < CATTN_PLACES)
        next += CATTN_PLACES;
    return next == cattn_handle_first(seed, cattn_handle_place(handle)) ? 0 : next;
}

#endif

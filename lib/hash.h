/* A short seeded hash.  It only says where to look: whoever finds something compares it in full. */
#ifndef CATTN_HASH_H
#define CATTN_HASH_H

#include <stdint.h>

static inline uint64_t cattn_hash_mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

#endif

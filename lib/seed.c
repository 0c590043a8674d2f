#define _DEFAULT_SOURCE 1
#include "seed.h"

#include "hash.h"

#include <time.h>
#ifdef __linux__
#  include <sys/random.h>
#endif

/* Tokens are compared after every hit, so a guess that an attacker could make costs time, never a wrong answer. */
uint64_t cattn_seed(const void *address)
{
    uint64_t seed = 0;
#ifdef __linux__
    if (getrandom(&seed, sizeof(seed), GRND_NONBLOCK) == (ssize_t)sizeof(seed))
        return seed;
#endif
    seed = cattn_hash_mix(seed, (uint64_t)(uintptr_t)address);
    seed = cattn_hash_mix(seed, (uint64_t)time(NULL));
    return cattn_hash_mix(seed, (uint64_t)clock());
}

#include "cache.h"

int cattn_cache_selfcheck(const cattn_cache *cache)
{
    return cache ? CATTN_OK : CATTN_EINVAL;
}

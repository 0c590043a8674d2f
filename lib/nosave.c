/* In place of save.c and load.c where there is no zlib, no POSIX files, or another order of bytes. */
#include "chunkattention.h"

int cattn_prefix_save(const cattn_cache *cache, const char *path, const void *model, size_t model_len)
{
    (void)cache, (void)path, (void)model, (void)model_len;
    return CATTN_ENOTSUP;
}

int cattn_prefix_load(cattn_cache *cache, const char *path, const void *model, size_t model_len, uint64_t *n_tokens)
{
    (void)cache, (void)path, (void)model, (void)model_len, (void)n_tokens;
    return CATTN_ENOTSUP;
}

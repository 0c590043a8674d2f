#include "ghosts.h"

#include "chunkattention.h"
#include "memory.h"

int cattn_ghosts_init(struct cattn_ghosts *ghosts, uint32_t n)
{
    uint64_t entries = 1;
    while (entries < n)
        entries *= 2;
    ghosts->mask = entries - 1;
    ghosts->hashes = cattn_calloc(entries, sizeof(*ghosts->hashes));
    return ghosts->hashes ? CATTN_OK : CATTN_ENOMEM;
}

void cattn_ghosts_release(struct cattn_ghosts *ghosts)
{
    cattn_free(ghosts->hashes);
    *ghosts = (struct cattn_ghosts){0};
}

void cattn_ghosts_add(struct cattn_ghosts *ghosts, uint64_t hash)
{
    ghosts->hashes[hash & ghosts->mask] = hash;
}

bool cattn_ghosts_have(const struct cattn_ghosts *ghosts, uint64_t hash)
{
    return hash && ghosts->hashes[hash & ghosts->mask] == hash;
}

void cattn_ghosts_remove(struct cattn_ghosts *ghosts, uint64_t hash)
{
    if (cattn_ghosts_have(ghosts, hash))
        ghosts->hashes[hash & ghosts->mask] = 0;
}

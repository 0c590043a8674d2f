/* What was evicted of late: a hash of each chunk, and of each name that lost its last chunk.  A new one may take the
 * place of an older one, so that the table says "yes" for most of the last n, and hardly ever wrongly. */
#ifndef CATTN_GHOSTS_H
#define CATTN_GHOSTS_H

#include <stdbool.h>
#include <stdint.h>

struct cattn_ghosts {
    uint64_t *hashes; /* 0: none */
    uint64_t mask;
};

/* Room for n at least.  CATTN_ENOMEM. */
int cattn_ghosts_init(struct cattn_ghosts *ghosts, uint32_t n);
void cattn_ghosts_release(struct cattn_ghosts *ghosts);

void cattn_ghosts_add(struct cattn_ghosts *ghosts, uint64_t hash);
void cattn_ghosts_remove(struct cattn_ghosts *ghosts, uint64_t hash);
bool cattn_ghosts_have(const struct cattn_ghosts *ghosts, uint64_t hash);

#endif

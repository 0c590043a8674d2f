/* All that can be seen of a cache, to find out whether a call changed anything. */
#ifndef TEST_SNAPSHOT_H
#define TEST_SNAPSHOT_H

#include "engine.h"

struct snapshot {
    char *bytes;
    size_t n;
};

/* Of these toys (those with seq 0 are left out) and of the namespaces 0 .. n_spaces - 1. */
struct snapshot snapshot_take(const struct engine *engine, const struct toy *toys, size_t n_toys, uint64_t n_spaces);

/* Whether they are equal; frees both. */
int snapshot_same(struct snapshot a, struct snapshot b);

#endif

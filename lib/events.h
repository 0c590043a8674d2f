/* Tells one listener what becomes findable in the tree and what ceases to be.  Chunks under a root that has lost its
 * name cannot be found by a new sequence: nothing is said of them after their namespace was cleared. */
#ifndef CATTN_EVENTS_H
#define CATTN_EVENTS_H

#include "chunkattention.h"

struct cattn_tree;

struct cattn_events {
    void (*call)(void *context, const struct cattn_event *event); /* NULL: nobody listens */
    void *context;
    uint64_t *hashes; /* of the prefix that ends in each slot, for those that were told of */
    int32_t *tokens;  /* of one chunk that has extras, as the caller knows them */
    struct cattn_extra *extras;
};

/* call may be NULL.  CATTN_ENOMEM. */
int cattn_events_open(struct cattn_events *events, uint32_t n_slots, uint32_t chunk_tokens,
                      void (*call)(void *context, const struct cattn_event *event), void *context);
void cattn_events_close(struct cattn_events *events);

/* Of a slot that is published now; of one that is published still; of a root that has just lost its name. */
void cattn_events_published(const struct cattn_tree *tree, uint32_t slot);
void cattn_events_removed(const struct cattn_tree *tree, uint32_t slot);
void cattn_events_cleared(const struct cattn_tree *tree, uint32_t root);

#endif

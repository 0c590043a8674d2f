/* What namespaces are sure to keep and what they may have: reserves and limits, in slots; and how slots are found for
 * a demand of several namespaces.
 *
 * A namespace with fewer slots than its reserve loses none for others.  What it evicts for itself comes back to it, so
 * its own demand may take as many of its own chunks as it asks for. */
#ifndef CATTN_QUOTA_H
#define CATTN_QUOTA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cattn_tree;

/* Settings of a name; both 0 take them away.  reserve is at most limit, unless that is 0.
 * CATTN_EINVAL: the reserves would be more than the pool.  CATTN_ENOMEM. */
bool cattn_quota_is_possible(const struct cattn_tree *tree, const void *name, size_t length, uint64_t reserve);
int cattn_quota_set(struct cattn_tree *tree, const void *name, size_t length, uint64_t reserve, uint64_t limit);

/* Below this root n_new slots will be taken, and n_held chunks, unreferenced now, be referred to.  May be said several
 * times; each demand starts from nothing.  root CATTN_NONE: a name that is not known yet, which has no settings. */
void cattn_demand_add(struct cattn_tree *tree, uint32_t root, uint64_t n_new, uint32_t n_held);

/* Whether there are slots for all of it, limits left aside. */
bool cattn_demand_has_room(const struct cattn_tree *tree);

/* Whether the limit of a root is in the way. */
bool cattn_demand_is_above(const struct cattn_tree *tree, uint32_t root);

/* The first such root of the demand, or CATTN_NONE. */
uint32_t cattn_demand_above(const struct cattn_tree *tree);

/* The chunks to be held are: evicts what is needed, and expects the slots to be taken.  It must have room
 * and be above no limit. */
void cattn_demand_meet(struct cattn_tree *tree);

/* Forgets the demand, met or not. */
void cattn_demand_clear(struct cattn_tree *tree);

#endif

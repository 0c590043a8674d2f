/* Which namespace reads which.  The tree's settings say so of names, for as long as it is wanted: they are records like
 * those of roots, one for each name that reads another, which refers to itself, and one for each name that is read.  A
 * root record reads what its name did when it came into use, that is when something else than quotas began to refer to
 * it: until that has ended the setting does not change, and who invalidates a namespace invalidates its readers. */
#ifndef CATTN_READERS_H
#define CATTN_READERS_H

#include "tree.h"

/* The name reads another one from now on, or none (public NULL).  CATTN_EINVAL: a name that is read would read, or the
 * other way round, or a name itself.  CATTN_EBUSY: it has a record that is not idle, and would read something else than
 * before.  CATTN_ENOMEM.  _check: without doing it, and without the last. */
int cattn_readers_check(const struct cattn_tree *tree, const void *name, size_t length, const void *public,
                        size_t public_length);
int cattn_readers_set(struct cattn_tree *tree, const void *name, size_t length, const void *public,
                      size_t public_length);

/* The setting of the name that a name reads, or NULL. */
const struct cattn_root *cattn_readers_public(const struct cattn_tree *tree, const void *name, size_t length);

/* The record of a name that is going to be referred to; one that is made for it, or that nothing but quotas refers to,
 * reads what the name reads from now on.  CATTN_ENOMEM: nothing changed. */
int cattn_readers_enter(struct cattn_tree *tree, const void *name, size_t length, uint32_t *root);

#endif

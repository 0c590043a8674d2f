/* The lock of a cache that several threads use (CATTN_CONCURRENT).  Other caches have none, and pay for a look at a
 * pointer.
 *
 * Public functions that read or change what others may change are two: a static one that does the job, and the public
 * one, which is a line:
 *
 *     int cattn_seq_close(cattn_cache *cache, cattn_seq seq)
 *     {
 *         return CATTN_LOCKED(cache, close_sequence(cache, seq));
 *     }
 *
 * Inside the lock none of them is called.  What writes and attends read lies still while a step is open, or is atomic:
 * they take no lock. */
#ifndef CATTN_LOCK_H
#define CATTN_LOCK_H

#include "chunkattention.h"

/* The result of a call that is made with the lock of the cache held.  No cache: made all the same. */
#define CATTN_LOCKED(cache, call) cattn_unlock(cache, (cattn_lock(cache), (call)))

struct cattn_mutex;

/* CATTN_ENOTSUP: there are none on this system.  CATTN_ENOMEM. */
int cattn_mutex_create(struct cattn_mutex **mutex);
void cattn_mutex_destroy(struct cattn_mutex *mutex); /* NULL is allowed */

void cattn_lock(const struct cattn_cache *cache);
int cattn_unlock(const struct cattn_cache *cache, int result); /* returns the result */

#endif

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif
#include "lock.h"

#include "cache.h"
#include "memory.h"

#ifdef HAVE_PTHREAD_MUTEX

#  include <pthread.h>

struct cattn_mutex {
    pthread_mutex_t mutex;
};

int cattn_mutex_create(struct cattn_mutex **mutex)
{
    struct cattn_mutex *made = cattn_malloc(1, sizeof(*made));
    if (!made || pthread_mutex_init(&made->mutex, NULL)) {
        cattn_free(made);
        return CATTN_ENOMEM;
    }
    *mutex = made;
    return CATTN_OK;
}

void cattn_mutex_destroy(struct cattn_mutex *mutex)
{
    if (mutex)
        pthread_mutex_destroy(&mutex->mutex);
    cattn_free(mutex);
}

void cattn_lock(const struct cattn_cache *cache)
{
    if (cache && cache->mutex)
        pthread_mutex_lock(&cache->mutex->mutex);
}

int cattn_unlock(const struct cattn_cache *cache, int result)
{
    if (cache && cache->mutex)
        pthread_mutex_unlock(&cache->mutex->mutex);
    return result;
}

#else

int cattn_mutex_create(struct cattn_mutex **mutex)
{
    (void)mutex;
    return CATTN_ENOTSUP;
}

void cattn_mutex_destroy(struct cattn_mutex *mutex)
{
    (void)mutex;
}

void cattn_lock(const struct cattn_cache *cache)
{
    (void)cache;
}

int cattn_unlock(const struct cattn_cache *cache, int result)
{
    (void)cache;
    return result;
}

#endif

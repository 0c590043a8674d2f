/* All memory of the library comes from here, so that a test can put its own version of memory.c in front of this one
 * and make any allocation fail.  Sizes are n * size bytes; a product that does not fit is a failure.  NULL: failed. */
#ifndef CATTN_MEMORY_H
#define CATTN_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#define CATTN_ALIGNMENT 64

/* Freed with cattn_free, except for the pool.  n * size may be 0: the result is not NULL. */
void *cattn_malloc(size_t n, size_t size);
void *cattn_calloc(size_t n, size_t size);
void *cattn_realloc(void *memory, size_t n, size_t size);
void *cattn_malloc_aligned(size_t n, size_t size); /* to CATTN_ALIGNMENT bytes */
void cattn_free(void *memory);

/* Room for n elements in an array of *capacity, which grows by half at least.  Returns the array, which may have moved;
 * NULL: failed, and the old array is as it was. */
void *cattn_grow(void *array, size_t *capacity, size_t n, size_t size);

/* A big zeroed area, aligned to a page, that takes memory as it is first touched: in huge pages where there are any, or
 * (huge false: most of it will never be touched) in small ones. */
void *cattn_pool_alloc(size_t n, size_t size, bool huge);
void cattn_pool_free(void *pool, size_t n, size_t size);

#endif

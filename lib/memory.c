#define _DEFAULT_SOURCE 1
#include "memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__unix__) || defined(__APPLE__)
#  include <sys/mman.h>
#endif

#if !defined(MAP_ANONYMOUS) && defined(MAP_ANON)
#  define MAP_ANONYMOUS MAP_ANON
#endif
#ifndef MAP_NORESERVE
#  define MAP_NORESERVE 0
#endif

/* Both outcomes in one number: a size that does not fit is one that no allocator grants. */
static size_t bytes(size_t n, size_t size)
{
    if (size && n > (SIZE_MAX / 2) / size)
        return SIZE_MAX;
    size_t total = n * size;
    return total ? total : 1;
}

void *cattn_malloc(size_t n, size_t size)
{
    size_t total = bytes(n, size);
    return total == SIZE_MAX ? NULL : malloc(total);
}

void *cattn_calloc(size_t n, size_t size)
{
    size_t total = bytes(n, size);
    return total == SIZE_MAX ? NULL : calloc(total, 1);
}

void *cattn_realloc(void *memory, size_t n, size_t size)
{
    size_t total = bytes(n, size);
    return total == SIZE_MAX ? NULL : realloc(memory, total);
}

void *cattn_malloc_aligned(size_t n, size_t size)
{
    size_t total = bytes(n, size);
    void *memory;
    if (total == SIZE_MAX || posix_memalign(&memory, CATTN_ALIGNMENT, total))
        return NULL;
    return memory;
}

void cattn_free(void *memory)
{
    free(memory);
}

void *cattn_grow(void *array, size_t *capacity, size_t n, size_t size)
{
    if (array && n <= *capacity)
        return array;
    size_t more = *capacity + *capacity / 2;
    size_t grown = n > more ? n : more;
    void *moved = cattn_realloc(array, grown, size);
    if (moved)
        *capacity = grown;
    return moved;
}

#ifdef MAP_ANONYMOUS

void *cattn_pool_alloc(size_t n, size_t size, bool huge)
{
    size_t total = bytes(n, size);
    if (total == SIZE_MAX)
        return NULL;
    void *pool = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool == MAP_FAILED)
        return NULL;
#  ifdef MADV_HUGEPAGE
    madvise(pool, total, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE); /* a wish: without it all works, more slowly */
#  else
    (void)huge;
#  endif
    return pool;
}

void cattn_pool_free(void *pool, size_t n, size_t size)
{
    if (pool)
        munmap(pool, bytes(n, size));
}

#else

void *cattn_pool_alloc(size_t n, size_t size, bool huge)
{
    (void)huge;
    void *pool = cattn_malloc_aligned(n, size);
    if (pool)
        memset(pool, 0, bytes(n, size));
    return pool;
}

void cattn_pool_free(void *pool, size_t n, size_t size)
{
    (void)n;
    (void)size;
    cattn_free(pool);
}

#endif

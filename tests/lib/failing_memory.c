#define _DEFAULT_SOURCE 1
#include "failing_memory.h"

#include <stdlib.h>
#include <sys/mman.h>

static size_t fail_at, count, live;

static bool fails(void)
{
    return ++count == fail_at;
}

static void *got(void *memory)
{
    live += memory != NULL;
    return memory;
}

static void *moved(void *old, void *memory)
{
    live += !old && memory;
    return memory;
}

static void *mapped(void *pool)
{
    live += pool != MAP_FAILED;
    return pool;
}

static void *given_back(void *memory)
{
    live -= memory != NULL;
    return memory;
}

void failing_memory_set(size_t n)
{
    fail_at = n;
    count = 0;
}

bool failing_memory_hit(void)
{
    return fail_at && count >= fail_at;
}

size_t failing_memory_count(void)
{
    return count;
}

size_t failing_memory_live(void)
{
    return live;
}

#define malloc(n)                       (fails() ? NULL : got((malloc)(n)))
#define calloc(n, size)                 (fails() ? NULL : got((calloc)(n, size)))
#define realloc(p, n)                   (fails() ? NULL : moved(p, (realloc)(p, n)))
#define posix_memalign(p, alignment, n) (fails() || (posix_memalign)(p, alignment, n) || !got(*(p)))
#define mmap(p, n, protection, flags, file, offset)                                                                    \
  (fails() ? MAP_FAILED : mapped((mmap)(p, n, protection, flags, file, offset)))
#define free(p)      (free)(given_back(p))
#define munmap(p, n) (munmap)(given_back(p), n)

#include "../../lib/memory.c"

#define _DEFAULT_SOURCE 1
#include "failing_memory.h"

#include <stdlib.h>
#include <sys/mman.h>

static size_t fail_at, count;

static bool fails(void)
{
    return ++count == fail_at;
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

#define malloc(n)                       (fails() ? NULL : (malloc)(n))
#define calloc(n, size)                 (fails() ? NULL : (calloc)(n, size))
#define realloc(p, n)                   (fails() ? NULL : (realloc)(p, n))
#define posix_memalign(p, alignment, n) (fails() ? 1 : (posix_memalign)(p, alignment, n))
#define mmap(p, n, protection, flags, file, offset)                                                                    \
  (fails() ? MAP_FAILED : (mmap)(p, n, protection, flags, file, offset))

#include "../../lib/memory.c"

#define _DEFAULT_SOURCE
#include "guard.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t whole_pages(size_t bytes)
{
    size_t page = page_size();
    return (bytes + page - 1) / page * page;
}

/* The first usable page of the mapping of a guarded buffer. */
static char *first_page(void *data, size_t bytes, enum guard_side side)
{
    return (char *)data - (side == GUARD_END ? whole_pages(bytes) - bytes : 0);
}

void *guard_alloc(size_t bytes, enum guard_side side)
{
    if (side == GUARD_NONE) {
        void *data = malloc(bytes ? bytes : 1);
        ck_assert_ptr_nonnull(data);
        return memset(data, 0xff, bytes);
    }
    size_t page = page_size(), inner = whole_pages(bytes);
    char *base = mmap(NULL, inner + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(base, MAP_FAILED);
    if (inner)
        ck_assert_int_eq(mprotect(base + page, inner, PROT_READ | PROT_WRITE), 0);
    char *data = base + page + (side == GUARD_END ? inner - bytes : 0);
    return memset(data, 0xff, bytes);
}

void guard_free(void *data, size_t bytes, enum guard_side side)
{
    if (side == GUARD_NONE)
        free(data);
    else if (data)
        munmap(first_page(data, bytes, side) - page_size(), whole_pages(bytes) + 2 * page_size());
}

void guard_lock(void *data, size_t bytes, enum guard_side side, int locked)
{
    if (side == GUARD_NONE || bytes == 0)
        return;
    int access = locked ? PROT_READ : PROT_READ | PROT_WRITE;
    ck_assert_int_eq(mprotect(first_page(data, bytes, side), whole_pages(bytes), access), 0);
}

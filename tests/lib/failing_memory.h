/* memory.c with a switch.  Linked before the library it takes the place of the library's own. */
#ifndef TESTS_FAILING_MEMORY_H
#define TESTS_FAILING_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* The n-th allocation from now on fails, once; 0: none does. */
void failing_memory_set(size_t n);

/* Whether it has. */
bool failing_memory_hit(void);

/* Allocations since the last set. */
size_t failing_memory_count(void);

/* Allocations that were not given back yet. */
size_t failing_memory_live(void);

#endif

/* file.c with switches.  Linked before the library it takes the place of the library's own. */
#ifndef TESTS_FAILING_FILE_H
#define TESTS_FAILING_FILE_H

#include <stdbool.h>
#include <stddef.h>

/* The n-th call of the system from now on fails, once, with EIO; 0: none does. */
void failing_file_set(size_t n);

/* Whether it has, and what it was ("write"). */
bool failing_file_hit(void);
const char *failing_file_call(void);

/* One bit is another one in what the n-th read from now on gives; 0: in none. */
void failing_file_spoil(size_t n);
bool failing_file_spoilt(void);

/* Reads and writes are interrupted every second time, and give or take a few bytes otherwise. */
void failing_file_slow(bool slow);

#endif

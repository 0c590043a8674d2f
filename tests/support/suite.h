/* The frame of a test program: one suite, one case, a timeout that only a hang reaches. */
#ifndef TEST_SUITE_H
#define TEST_SUITE_H

#include <check.h>

/* Runs the tests of a case made with suite_case and returns the exit status of the program. */
TCase *suite_case(const char *name);
int suite_run(TCase *tcase);

/* A kernel that this machine can run, and a stored data type that it takes.  CATTN_TEST_KERNEL, in the environment,
 * names those that are wanted, separated by commas. */
struct kernel_choice {
    const char *kernel;
    unsigned kv_dtype;
    int exact; /* it keeps the Bit rule */
};

/* The i-th of all pairs, data types of a kernel together; 0 past the last. */
int kernel_choice(unsigned i, struct kernel_choice *choice);

/* The i-th kernel that this machine can run and that keeps the Bit rule for these data types; NULL past the last. */
const char *exact_kernel(unsigned i, unsigned io_dtype, unsigned kv_dtype);

#endif

#ifndef TEST_CHECKKERNELS_H
#define TEST_CHECKKERNELS_H

/* Times each kernel, or the one named, on a unit that stays in the caches, and prints what came out.  Returns the exit
 * status of the program. */
int bench_kernels(const char *name);

#endif

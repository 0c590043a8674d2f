/* Multiplying in AMX tiles: the ceiling of kernels that do. */
#ifndef BENCH_TILES_H
#define BENCH_TILES_H

#include <stddef.h>

/* NULL, or why this process cannot use tiles of bf16. */
const char *bench_tiles_unusable(void);

/* Multiplies and adds in registers for n rounds; returns the operations done.  Only where tiles are usable. */
double bench_tiles_multiply_add(size_t n);

#endif

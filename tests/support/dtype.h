/* Data types by value, written apart from the library's own conversions: rounding is done on doubles, by quantum. */
#ifndef TEST_DTYPE_H
#define TEST_DTYPE_H

#include <stddef.h>
#include <stdint.h>

size_t dtype_size(uint32_t dtype);
const char *dtype_name(uint32_t dtype);

/* Half a unit in the last place, relative (i8: to the largest of the vector). */
double dtype_epsilon(uint32_t dtype);

/* To the nearest value of the type, ties to even. */
double dtype_round(uint32_t dtype, double x);

/* The vector as a cache stores it: each element rounded, or, for i8, in steps of the largest divided by 127. */
void dtype_round_vector(uint32_t dtype, double *x, size_t n);

double dtype_load(uint32_t dtype, const void *p, size_t i);
void dtype_store(uint32_t dtype, void *p, size_t i, double x);

#endif

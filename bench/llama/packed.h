/* Weights in the layout that oneDNN likes best, in f32 or bf16, and products with them. */
#ifndef LLAMA_PACKED_H
#define LLAMA_PACKED_H

#include <stdbool.h>
#include <stddef.h>

struct packed;

/* NULL: this build has no oneDNN, or it does not work.  bf16: weights, and x in the products, are rounded to bf16. */
struct packed *packed_create(bool bf16);
void packed_destroy(struct packed *packed);

/* Makes a packed copy of weights[n_out][n_in], which their address stands for from now on.  0, or -1. */
int packed_add(struct packed *packed, const float *weights, size_t n_in, size_t n_out);

/* y[rows][n_out] = x[rows][n_in] * weights[n_out][n_in].  -1: weights that were not added, or no memory; y may have
 * been written to. */
int packed_apply(struct packed *packed, size_t rows, const float *x, const float *weights, float *y);

/* Whether this CPU multiplies bf16 faster than f32. */
bool packed_likes_bf16(void);

#endif

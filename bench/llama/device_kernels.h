/* The small kernels of the forward pass on a GPU.  All pointers are device memory; dtype is that of what goes into
 * linear layers and attention.  Each function puts one kernel on a stream and returns a cudaError_t, that of the
 * launch. */
#ifndef LLAMA_DEVICE_KERNELS_H
#define LLAMA_DEVICE_KERNELS_H

#include <stdint.h>

/* x[row] = embedding[tokens[row]] */
struct device_embed {
    float *x;
    const void *embedding;
    const int32_t *tokens;
    uint32_t n_rows, dim, dtype;
};

/* out[i] = weights * x[row] / the root of the mean square of x[row], where row is rows[i], or i if rows is NULL. */
struct device_norm {
    void *out;
    const float *x, *weights;
    const uint32_t *rows;
    uint32_t n_rows, dim, dtype;
    float epsilon;
};

/* Turns the pairs (2i, 2i + 1), i < n_pairs, of each head of a row, by the row's angles. */
struct device_rotate {
    void *heads;                  /* [row][width], of which n_heads times head_dim are turned */
    const float *cosines, *sines; /* [row][n_pairs] */
    uint32_t n_rows, width, n_heads, head_dim, n_pairs, dtype;
};

/* out[row][i] = silu(gate[i]) * up[i], of a row that is both after each other. */
struct device_activate {
    void *out;
    const void *gate_up; /* [row][2][hidden] */
    uint32_t n_rows, hidden, dtype;
};

#ifdef __cplusplus
extern "C" {
#endif

int device_embed(const struct device_embed *job, void *stream);
int device_norm(const struct device_norm *job, void *stream);
int device_rotate(const struct device_rotate *job, void *stream);
int device_activate(const struct device_activate *job, void *stream);

#ifdef __cplusplus
}
#endif

#endif

/* The model's matrix products, by a BLAS where one is built in and found right, or by plain loops. */
#ifndef LLAMA_LINEAR_H
#define LLAMA_LINEAR_H

#include <stdbool.h>
#include <stddef.h>

typedef void linear_product(size_t rows, size_t n_in, size_t n_out, const float *x, const float *weights, float *y);

struct packed;

struct linear {
    const char *name;        /* "oneDNN", "OpenBLAS" or "plain loops" */
    linear_product *product; /* NULL: plain loops */
    unsigned n_threads;      /* of the plain loops */
    struct packed *packed;   /* weights that were packed are multiplied with by this one; NULL: none were */
    const char *refused;     /* a library that is built in but gave wrong products; NULL: none */
};

/* Chooses for this run.  exact: plain loops, where each element of y is computed in one fixed order, whatever the
 * number of rows and threads.  n_threads 0: as many as OpenMP gives. */
void linear_init(struct linear *linear, bool exact, unsigned n_threads);

/* A library's product under its name. */
struct linear_library {
    const char *name;
    linear_product *product;
};

/* The choice itself: the first of the libraries, up to one without a name, that is right. */
void linear_choose(struct linear *linear, const struct linear_library *libraries);

/* y[rows][n_out] = x[rows][n_in] * weights[n_out][n_in], transposed as a GGUF file holds it. */
void linear_apply(const struct linear *linear, size_t rows, size_t n_in, size_t n_out, const float *x,
                  const float *weights, float *y);

/* Whether a product agrees with a plain sum in double on some awkward sizes. */
bool linear_is_right(linear_product *product);

#endif

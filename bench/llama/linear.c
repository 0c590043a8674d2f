#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "linear.h"

#include "packed.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#ifdef HAVE_OPENBLAS
#  include <cblas.h>
#endif
#ifdef HAVE_ONEDNN
#  include <dnnl.h>
#endif
#ifdef _OPENMP
#  include <omp.h>
#endif

/* ---- plain loops --------------------------------------------------------------------------------------------------
 */

/* Each element is LANES partial sums, term i in sum i % LANES, added up by one fixed tree: independent sums that a
 * compiler can put into vectors without changing a bit. */
#define LANES          8
#define LEAST_PARALLEL (1u << 18) /* products below this many multiplications are not worth a parallel region */

static float dot(size_t n, const float *restrict a, const float *restrict b)
{
    float lane[LANES] = {0};
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        for (size_t j = 0; j < LANES; j++)
            lane[j] += a[i + j] * b[i + j];
    }
    for (; i < n; i++)
        lane[i % LANES] += a[i] * b[i];
    for (size_t half = LANES / 2; half > 0; half /= 2) {
        for (size_t j = 0; j < half; j++)
            lane[j] += lane[j + half];
    }
    return lane[0];
}

static void plain_product(size_t rows, size_t n_in, size_t n_out, const float *x, const float *weights, float *y,
                          unsigned n_threads)
{
#ifdef _OPENMP
#  pragma omp parallel for schedule(static) num_threads(n_threads) if (rows * n_in * n_out >= LEAST_PARALLEL)
#else
    (void)n_threads;
#endif
    for (int64_t out = 0; out < (int64_t)n_out; out++) {
        for (size_t row = 0; row < rows; row++)
            y[row * n_out + (size_t)out] = dot(n_in, x + row * n_in, weights + (size_t)out * n_in);
    }
}

/* ---- libraries ----------------------------------------------------------------------------------------------------
 */

#ifdef HAVE_ONEDNN
static void onednn_product(size_t rows, size_t n_in, size_t n_out, const float *x, const float *weights, float *y)
{
    const dnnl_status_t status = dnnl_sgemm('N', 'T', (dnnl_dim_t)rows, (dnnl_dim_t)n_out, (dnnl_dim_t)n_in, 1.0f, x,
                                            (dnnl_dim_t)n_in, weights, (dnnl_dim_t)n_in, 0.0f, y, (dnnl_dim_t)n_out);

    if (status != dnnl_success)
        plain_product(rows, n_in, n_out, x, weights, y, 1);
}
#endif

#ifdef HAVE_OPENBLAS
static void openblas_product(size_t rows, size_t n_in, size_t n_out, const float *x, const float *weights, float *y)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)n_out, (int)n_in, 1.0f, x, (int)n_in, weights,
                (int)n_in, 0.0f, y, (int)n_out);
}
#endif

/* In order of preference: oneDNN runs on the OpenMP threads that attention uses too. */
static const struct linear_library built_in[] = {
#ifdef HAVE_ONEDNN
    {"oneDNN", onednn_product},
#endif
#ifdef HAVE_OPENBLAS
    {"OpenBLAS", openblas_product},
#endif
    {NULL, NULL},
};

static float pattern(size_t i)
{
    return (float)((i * 2654435761u >> 7) % 2001) / 1000.0f - 1.0f;
}

static bool is_right_at(linear_product *product, size_t rows, size_t n_in, size_t n_out)
{
    float *x = malloc(rows * n_in * sizeof *x), *w = malloc(n_out * n_in * sizeof *w),
          *y = malloc(rows * n_out * sizeof *y);
    bool right = x && w && y;

    for (size_t i = 0; right && i < rows * n_in; i++)
        x[i] = pattern(i);
    for (size_t i = 0; right && i < n_out * n_in; i++)
        w[i] = pattern(i + 77);
    for (size_t i = 0; right && i < rows * n_out; i++)
        y[i] = NAN;
    if (right)
        product(rows, n_in, n_out, x, w, y);
    for (size_t i = 0; right && i < rows * n_out; i++) {
        double sum = 0, size = 0;

        for (size_t j = 0; j < n_in; j++) {
            const double term = (double)x[i / n_out * n_in + j] * w[i % n_out * n_in + j];

            sum += term;
            size += fabs(term);
        }
        right = fabs(y[i] - sum) <= 1e-5 * size;
    }
    free(x);
    free(w);
    free(y);
    return right;
}

bool linear_is_right(linear_product *product)
{
    static const size_t sizes[][3] = {{1, 64, 64}, {1, 67, 5}, {3, 172, 64}, {8, 129, 33}, {33, 64, 172}, {70, 40, 96}};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (!is_right_at(product, sizes[i][0], sizes[i][1], sizes[i][2]))
            return false;
    }
    return true;
}

/* ---- the choice ---------------------------------------------------------------------------------------------------
 */

static void set_threads(unsigned n_threads)
{
    if (!n_threads)
        return;
#ifdef _OPENMP
    omp_set_num_threads((int)n_threads);
#endif
#ifdef HAVE_OPENBLAS
    openblas_set_num_threads((int)n_threads);
#endif
}

static unsigned default_threads(void)
{
#ifdef _OPENMP
    return (unsigned)omp_get_max_threads();
#else
    return 1;
#endif
}

void linear_choose(struct linear *linear, const struct linear_library *libraries)
{
    for (; !linear->product && libraries->name; libraries++) {
        if (linear_is_right(libraries->product)) {
            linear->name = libraries->name;
            linear->product = libraries->product;
        } else if (!linear->refused) {
            linear->refused = libraries->name;
        }
    }
}

void linear_init(struct linear *linear, bool exact, unsigned n_threads)
{
    *linear = (struct linear){.name = "plain loops", .n_threads = n_threads ? n_threads : default_threads()};
    set_threads(n_threads);
    if (!exact)
        linear_choose(linear, built_in);
}

void linear_apply(const struct linear *linear, size_t rows, size_t n_in, size_t n_out, const float *x,
                  const float *weights, float *y)
{
    if (!rows || (linear->packed && packed_apply(linear->packed, rows, x, weights, y) == 0))
        return;
    if (linear->product)
        linear->product(rows, n_in, n_out, x, weights, y);
    else
        plain_product(rows, n_in, n_out, x, weights, y, linear->n_threads);
}

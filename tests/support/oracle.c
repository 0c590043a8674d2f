#include "oracle.h"

#include <math.h>
#include <stdlib.h>

double oracle_row(const double *q, const double *k, const double *v, size_t n, size_t d, size_t dv, double scale,
                  double *out)
{
    double *p = malloc(n * sizeof *p);
    double max = -INFINITY, sum = 0;
    for (size_t t = 0; t < n; t++) {
        double dot = 0;
        for (size_t i = 0; i < d; i++)
            dot += q[i] * k[t * d + i];
        p[t] = dot * scale;
        max = fmax(max, p[t]);
    }
    for (size_t t = 0; t < n; t++)
        sum += p[t] = exp(p[t] - max);
    for (size_t i = 0; i < dv; i++)
        out[i] = 0;
    for (size_t t = 0; t < n; t++) {
        double weight = p[t] / sum;
        for (size_t i = 0; i < dv; i++)
            out[i] += weight * v[t * dv + i];
    }
    free(p);
    return max + log(sum);
}

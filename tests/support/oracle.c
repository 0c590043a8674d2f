#include "oracle.h"

#include <math.h>
#include <stdlib.h>

int oracle_sees(const struct cattn_variant *variant, size_t p, size_t t)
{
    return t <= p && (!variant || !variant->window || p - t < variant->window || t < variant->n_sink_tokens);
}

double oracle_score(const double *q, const double *k, size_t d, const struct cattn_variant *variant, size_t head,
                    size_t distance)
{
    double dot = 0, x;
    for (size_t i = 0; i < d; i++)
        dot += q[i] * k[i];
    x = dot * (variant && variant->scale > 0 ? variant->scale : 1 / sqrt((double)d));
    if (variant && variant->softcap > 0)
        x = variant->softcap * tanh(x / variant->softcap);
    if (variant && variant->alibi_slopes)
        x -= (double)variant->alibi_slopes[head] * (double)distance;
    return x;
}

double oracle_row(const double *q, const double *k, const double *v, size_t n, size_t d, size_t dv,
                  const struct cattn_variant *variant, size_t head, double *out)
{
    double *p = malloc(n * sizeof *p);
    const double sink = variant && variant->sinks ? variant->sinks[head] : -INFINITY;
    double max = sink, sum = 0;
    for (size_t t = 0; t < n; t++) {
        p[t] = oracle_sees(variant, n - 1, t) ? oracle_score(q, k + t * d, d, variant, head, n - 1 - t) : -INFINITY;
        max = fmax(max, p[t]);
    }
    for (size_t t = 0; t < n; t++)
        sum += p[t] = exp(p[t] - max);
    sum += exp(sink - max);
    for (size_t i = 0; i < dv; i++)
        out[i] = 0;
    for (size_t t = 0; t < n; t++) {
        double weight = p[t] / sum;
        for (size_t i = 0; i < dv && weight > 0; i++)
            out[i] += weight * v[t * dv + i];
    }
    free(p);
    return max + log(sum);
}

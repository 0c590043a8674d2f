#include "dtype.h"
#include "chunkattention.h"

#include <math.h>
#include <string.h>

struct format {
    const char *name;
    size_t size;
    int mantissa; /* stored bits */
    int min_exponent;
    double max;
};

static const struct format formats[] = {
    [CATTN_F32] = {"f32", 4, 23, -126, 0x1.fffffep127},
    [CATTN_F16] = {"f16", 2, 10, -14, 65504.0},
    [CATTN_BF16] = {"bf16", 2, 7, -126, 0x1.fep127},
    [CATTN_I8] = {"i8", 1, 6, 0, 127}, /* as a name and a size; its values are for dtype_round_vector */
};

size_t dtype_size(uint32_t dtype)
{
    return formats[dtype].size;
}

const char *dtype_name(uint32_t dtype)
{
    return formats[dtype].name;
}

double dtype_epsilon(uint32_t dtype)
{
    return dtype == CATTN_I8 ? 1 / 253.0 : ldexp(1.0, -formats[dtype].mantissa - 1);
}

static double power_of_two(int exponent)
{
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Adding a number so large that its last place is the quantum rounds to the quantum. */
double dtype_round(uint32_t dtype, double x)
{
    const struct format *f = &formats[dtype];
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
    if (exponent == 1024 || x == 0)
        return x;
    if (exponent < f->min_exponent)
        exponent = f->min_exponent;
    volatile double large = 1.5 * power_of_two(exponent + 52 - f->mantissa);
    double rounded = copysign(x + large - large, x);
    return fabs(rounded) > f->max ? copysign(INFINITY, x) : rounded;
}

void dtype_round_vector(uint32_t dtype, double *x, size_t n)
{
    float largest = 0x1p-112f;
    for (size_t i = 0; i < n; i++) {
        if (dtype != CATTN_I8)
            x[i] = dtype_round(dtype, x[i]);
        else if (isfinite(x[i]) && isfinite(largest))
            largest = fmaxf(largest, (float)fabs(x[i]));
        else
            largest = NAN;
    }
    const float scale = largest / 127, inverse = 127 / largest;
    for (size_t i = 0; dtype == CATTN_I8 && i < n; i++)
        x[i] = rint((float)x[i] * inverse) * (double)scale;
}

static uint16_t f16_bits(double x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    x = fabs(x);
    if (isnan(x))
        return sign | 0x7e00;
    if (isinf(x))
        return sign | 0x7c00;
    if (x < 0x1p-14)
        return sign | (uint16_t)(x * 0x1p24);
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023;
    return sign | (uint16_t)(((exponent + 15) << 10) + (int)(bits >> 42 & 1023));
}

static double f16_value(uint16_t bits)
{
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double x = exponent == 31 ? (mantissa ? NAN : INFINITY)
               : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                              : ldexp(mantissa, -24);
    return bits & 0x8000 ? -x : x;
}

double dtype_load(uint32_t dtype, const void *p, size_t i)
{
    const char *at = (const char *)p + i * formats[dtype].size;
    if (dtype == CATTN_F32) {
        float x;
        memcpy(&x, at, sizeof x);
        return x;
    }
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    if (dtype == CATTN_F16)
        return f16_value(bits);
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

static uint32_t f32_bits(double x)
{
    float narrow = (float)x;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    return bits;
}

void dtype_store(uint32_t dtype, void *p, size_t i, double x)
{
    double rounded = dtype_round(dtype, x);
    uint32_t wide = dtype == CATTN_F16 ? 0 : f32_bits(rounded);
    uint16_t narrow = dtype == CATTN_F16 ? f16_bits(rounded) : (uint16_t)(wide >> 16);
    char *at = (char *)p + i * formats[dtype].size;
    if (dtype == CATTN_F32)
        memcpy(at, &wide, sizeof wide);
    else
        memcpy(at, &narrow, sizeof narrow);
}

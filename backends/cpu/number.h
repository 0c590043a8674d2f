/* The 16-bit number formats, by integer arithmetic: the same on every machine. */
#ifndef CATTN_NUMBER_H
#define CATTN_NUMBER_H

#include <stdint.h>
#include <string.h>

#include "chunkattention.h"

static inline uint32_t cattn_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float cattn_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float cattn_from_bf16(uint16_t x)
{
    return cattn_float((uint32_t)x << 16);
}

/* Round to nearest even; a NaN stays one. */
static inline uint16_t cattn_to_bf16(float x)
{
    uint32_t bits = cattn_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float cattn_from_f16(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000) << 16, rest = x & 0x7fff;
    if (rest >= 0x7c00) /* infinities and NaNs */
        return cattn_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest >= 0x400)
        return cattn_float(sign | ((rest << 13) + ((127 - 15) << 23)));
    const float magnitude = (float)rest * 0x1p-24f; /* denormals: exact */
    return sign ? -magnitude : magnitude;
}

/* Round to nearest even; too large a number becomes infinite. */
static inline uint16_t cattn_to_f16(float x)
{
    const uint32_t bits = cattn_bits(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* denormal: let the adder round at 2^-24 */
        const float shifted = cattn_float(magnitude) + 0.5f;
        return (uint16_t)(sign | (cattn_bits(shifted) - 0x3f000000));
    }
    return (uint16_t)(sign | ((magnitude - ((127 - 15) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

static inline size_t cattn_dtype_size(uint32_t dtype)
{
    return dtype == CATTN_F32 ? 4 : 2;
}

/* Element i of an array. */
static inline float cattn_load(const void *array, uint32_t dtype, size_t i)
{
    switch (dtype) {
    case CATTN_F32: return ((const float *)array)[i];
    case CATTN_F16: return cattn_from_f16(((const uint16_t *)array)[i]);
    default: return cattn_from_bf16(((const uint16_t *)array)[i]);
    }
}

static inline void cattn_put(void *array, uint32_t dtype, size_t i, float x)
{
    switch (dtype) {
    case CATTN_F32: ((float *)array)[i] = x; break;
    case CATTN_F16: ((uint16_t *)array)[i] = cattn_to_f16(x); break;
    default: ((uint16_t *)array)[i] = cattn_to_bf16(x); break;
    }
}

/* Elements [first, first + n) of an array, with the choice of type outside the loop. */
static inline void cattn_load_row(float *to, const void *array, uint32_t dtype, size_t first, size_t n)
{
    if (dtype == CATTN_F32)
        memcpy(to, (const float *)array + first, n * sizeof *to);
    else if (dtype == CATTN_F16)
        for (size_t i = 0; i < n; i++)
            to[i] = cattn_load(array, CATTN_F16, first + i);
    else
        for (size_t i = 0; i < n; i++)
            to[i] = cattn_load(array, CATTN_BF16, first + i);
}

/* The other way: n floats to elements [first, first + n). */
static inline void cattn_store_row(void *array, uint32_t dtype, size_t first, const float *from, size_t n)
{
    if (dtype == CATTN_F32)
        memcpy((float *)array + first, from, n * sizeof *from);
    else if (dtype == CATTN_F16)
        for (size_t i = 0; i < n; i++)
            cattn_put(array, CATTN_F16, first + i, from[i]);
    else
        for (size_t i = 0; i < n; i++)
            cattn_put(array, CATTN_BF16, first + i, from[i]);
}

#endif

/* The number formats that processors do not count in: the same on every machine. */
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

/* a if the condition (0 or 1) holds, or else b, without a branch, so that a compiler can make vectors of conversions.
 */
static inline int32_t cattn_choose(int condition, int32_t a, int32_t b)
{
    return b ^ ((a ^ b) & -condition);
}

/* Round to nearest even; a NaN stays one. */
static inline uint16_t cattn_to_bf16(float x)
{
    const uint32_t bits = cattn_bits(x), nan = bits >> 16 | 0x40;
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((int32_t)(bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

static inline float cattn_from_f16(uint16_t x)
{
    const int32_t sign = (int32_t)((uint32_t)(x & 0x8000) << 16), rest = x & 0x7fff;
    const int32_t normal = (rest << 13) + ((127 - 15) << 23);
    const int32_t denormal = (int32_t)cattn_bits((float)rest * 0x1p-24f); /* exact */
    const int32_t special = 0x7f800000 | (rest & 0x3ff) << 13;            /* infinities and NaNs */
    const int32_t finite = cattn_choose(rest < 0x400, denormal, normal);
    return cattn_float((uint32_t)(sign | cattn_choose(rest < 0x7c00, finite, special)));
}

/* Round to nearest even; too large a number becomes infinite. */
static inline uint16_t cattn_to_f16(float x)
{
    const int32_t bits = (int32_t)cattn_bits(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    const int32_t normal = (magnitude - ((127 - 15) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    /* Let the adder round at 2^-24. */
    const int32_t denormal = (int32_t)(cattn_bits(cattn_float((uint32_t)magnitude) + 0.5f) - 0x3f000000);
    const int32_t special = 0x7c00 | (magnitude > 0x7f800000) << 9;
    const int32_t finite = cattn_choose(magnitude < 0x38800000, denormal, normal);
    return (uint16_t)(sign | cattn_choose(magnitude < 0x477ff000, finite, special));
}

/* What is quantised gets a scale as if its largest element were at least this: no scale, nor its inverse, is too small
 * or too large for a normal number. */
#define CATTN_I8_TINY 0x1p-112f

static inline size_t cattn_dtype_size(uint32_t dtype)
{
    return dtype == CATTN_F32 ? 4 : dtype == CATTN_I8 ? 1 : 2;
}

/* Element i of an array of any type but CATTN_I8, which is nothing without its scale. */
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

/* Sixteen at a time: loops of a fixed length become vectors at any level of optimisation. */
static inline void cattn_load_16(float *restrict to, const uint16_t *restrict from, uint32_t dtype)
{
    if (dtype == CATTN_F16)
        for (int i = 0; i < 16; i++)
            to[i] = cattn_from_f16(from[i]);
    else
        for (int i = 0; i < 16; i++)
            to[i] = cattn_from_bf16(from[i]);
}

/* Elements [first, first + n) of an array. */
static inline void cattn_load_row(float *restrict to, const void *array, uint32_t dtype, size_t first, size_t n)
{
    if (dtype == CATTN_F32) {
        memcpy(to, (const float *)array + first, n * sizeof *to);
        return;
    }
    const uint16_t *from = (const uint16_t *)array + first;
    for (; n >= 16; n -= 16, to += 16, from += 16)
        cattn_load_16(to, from, dtype);
    for (size_t i = 0; i < n; i++)
        to[i] = cattn_load(from, dtype, i);
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

/* Sixteen floats in two AVX2 registers: what attend_tmpl.h is written in.  Every operation gives the bits that
 * simd_avx512.h gives, so that the two kernels agree to the last one. */
#ifndef CATTN_SIMD_H
#define CATTN_SIMD_H

#include <immintrin.h>
#include <stdint.h>

#define SIMD_INLINE static inline __attribute__((always_inline))

/* Register blocks: up to SIMD_ROWS rows by that many vectors of tokens (two sums each) or of values.  Few rows take
 * more vectors: as many sums, and more loads under way at once. */
#define SIMD_ROWS             3
#define SIMD_SCORE_VECTORS(R) ((R) < 2 ? 2 : 1)
#define SIMD_VALUE_VECTORS(R) ((R) < 2 ? 4 : 2)

/* The same with whole numbers (i8), scores and values alike: one sum each. */
#define SIMD_I8_ROWS       6
#define SIMD_I8_VECTORS(R) ((R) < 2 ? 4 : (R) < 4 ? 2 : 1)

/* Whether a group that is alone with a block asks for what comes next.  On Zen 3 the processor does as well by itself
 * from memory, and better from the last-level cache; but with i8 there is more to do for a line that is there, and asking
 * makes it 1.3 times as fast. */
enum { SIMD_FEW_REGISTERS = 1 };
enum { SIMD_FETCH_ALONE = 0, SIMD_I8_FETCH_ALONE = 1 };

/* Makes the compiler load what p points to once more, where it would keep it and run out of registers. */
#define SIMD_FORGET(p) __asm__("" : "+r"(p))

/* A table of operations, a line each. */
/* clang-format off */

typedef struct {
    __m256 low, high;
} vec;

SIMD_INLINE vec vec_of(__m256 low, __m256 high) {
    const vec x = {low, high};
    return x;
}

SIMD_INLINE vec vec_set(float x) { return vec_of(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
SIMD_INLINE vec vec_load(const float *p) { return vec_of(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
SIMD_INLINE void vec_store(float *p, vec x) {
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
}
SIMD_INLINE vec vec_add(vec a, vec b) { return vec_of(_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)); }
SIMD_INLINE vec vec_sub(vec a, vec b) { return vec_of(_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)); }
SIMD_INLINE vec vec_mul(vec a, vec b) { return vec_of(_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)); }
SIMD_INLINE vec vec_div(vec a, vec b) { return vec_of(_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)); }
SIMD_INLINE vec vec_max(vec a, vec b) { return vec_of(_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)); }
SIMD_INLINE vec vec_min(vec a, vec b) { return vec_of(_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)); }
SIMD_INLINE vec vec_fma(vec a, vec b, vec c) {
    return vec_of(_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high));
}

SIMD_INLINE float vec_largest(vec x) {
    const __m256 eight = _mm256_max_ps(x.low, x.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

SIMD_INLINE float vec_first(vec x) { return _mm256_cvtss_f32(x.low); }

SIMD_INLINE vec vec_lanes(void) {
    return vec_of(_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15));
}

SIMD_INLINE vec vec_magnitude(vec x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return vec_of(_mm256_andnot_ps(sign, x.low), _mm256_andnot_ps(sign, x.high));
}

SIMD_INLINE vec vec_with_sign(vec x, vec of) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return vec_of(_mm256_or_ps(x.low, _mm256_and_ps(sign, of.low)), _mm256_or_ps(x.high, _mm256_and_ps(sign, of.high)));
}

SIMD_INLINE __m256 lanes8(uint32_t bits) {
    const __m256i lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), lanes), lanes));
}

SIMD_INLINE __m256 keep8(__m256 x, uint32_t bits) {
    return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), x, lanes8(bits));
}

/* The lanes of x whose bit is set, -inf in the others; zero in the others. */
SIMD_INLINE vec vec_keep(vec x, uint32_t bits) { return vec_of(keep8(x.low, bits), keep8(x.high, bits >> 8)); }
SIMD_INLINE vec vec_only(vec x, uint32_t bits) {
    return vec_of(_mm256_and_ps(x.low, lanes8(bits)), _mm256_and_ps(x.high, lanes8(bits >> 8)));
}

SIMD_INLINE int vec_has_nan(vec x) {
    const __m256 low = _mm256_cmp_ps(x.low, x.low, _CMP_UNORD_Q), high = _mm256_cmp_ps(x.high, x.high, _CMP_UNORD_Q);
    return _mm256_movemask_ps(_mm256_or_ps(low, high));
}

SIMD_INLINE vec vec_load_f16(const uint16_t *p) {
    return vec_of(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                  _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}

SIMD_INLINE __m256 bf16_pairs8(const uint16_t *p, const int half) {
    const __m256i x = _mm256_loadu_si256((const __m256i *)p);
    return _mm256_castsi256_ps(half ? _mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000)) : _mm256_slli_epi32(x, 16));
}

/* The first or second of each of sixteen pairs of bf16. */
SIMD_INLINE vec vec_load_bf16_pairs(const uint16_t *p, const int half) {
    return vec_of(bf16_pairs8(p, half), bf16_pairs8(p + 16, half));
}

/* Below this 2^x rounds to zero whatever it is multiplied with here, and its floor still fits two exponents. */
SIMD_INLINE __m256 clamp8(__m256 x) { return _mm256_max_ps(_mm256_set1_ps(-200), x); }

SIMD_INLINE __m256 fraction8(__m256 x) {
    x = clamp8(x);
    return _mm256_sub_ps(x, _mm256_floor_ps(x));
}

SIMD_INLINE __m256 power8(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* Two exact halves of the exponent: the first product is normal, only the second can round. */
SIMD_INLINE __m256 scale8(__m256 y, __m256 x) {
    const __m256i n = _mm256_cvtps_epi32(_mm256_floor_ps(clamp8(x))), half = _mm256_srai_epi32(n, 1);
    return _mm256_mul_ps(_mm256_mul_ps(y, power8(half)), power8(_mm256_sub_epi32(n, half)));
}

/* x - floor(x), and y * 2^floor(x) with one rounding, for 1 <= y < 2 and x < 128. */
SIMD_INLINE vec vec_fraction(vec x) { return vec_of(fraction8(x.low), fraction8(x.high)); }
SIMD_INLINE vec vec_scale(vec y, vec x) { return vec_of(scale8(y.low, x.low), scale8(y.high, x.high)); }

/* Sums of products of whole numbers: see attend_i8_tmpl.h.  Four elements of a lane become two pairs of 16 bits. */
enum { SIMD_PARTS = 2 };

typedef struct {
    __m256i even, odd;
} fours;

typedef __m256i sums;

SIMD_INLINE sums sums_set(int32_t x) { return _mm256_set1_epi32(x); }
SIMD_INLINE fours fours_of_k(const unsigned char *p) {
    const __m256i x = _mm256_loadu_si256((const __m256i *)p);
    const fours k = {_mm256_and_si256(x, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(x, 8)};
    return k;
}
SIMD_INLINE fours fours_of_v(const unsigned char *p) {
    const __m256i x = _mm256_loadu_si256((const __m256i *)p);
    const fours v = {_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), _mm256_srai_epi16(x, 8)};
    return v;
}
SIMD_INLINE sums sums_add_k(sums s, fours x, const uint32_t *factors) {
    s = _mm256_add_epi32(s, _mm256_madd_epi16(x.even, _mm256_set1_epi32((int)factors[0])));
    return _mm256_add_epi32(s, _mm256_madd_epi16(x.odd, _mm256_set1_epi32((int)factors[1])));
}
SIMD_INLINE sums sums_add_v(sums s, fours x, const uint32_t *factors) { return sums_add_k(s, x, factors); }
SIMD_INLINE vec sums_total(const sums *s) { return vec_of(_mm256_cvtepi32_ps(s[0]), _mm256_cvtepi32_ps(s[1])); }

SIMD_INLINE void factors8(uint32_t *to, __m256 x) {
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i pairs = _mm256_shuffle_epi8(_mm256_cvtps_epi32(x), order);
    _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(_mm256_permute4x64_epi64(pairs, 8)));
}
/* Rounds sixteen numbers to whole ones, of 13 bits, and stores them as the factors of four fours. */
SIMD_INLINE void factors_store(uint32_t *to, vec x) {
    factors8(to, x.low);
    factors8(to + 4, x.high);
}

#endif

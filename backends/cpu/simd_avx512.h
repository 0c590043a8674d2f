/* Sixteen floats in one AVX-512 register: what attend_tmpl.h is written in.  SIMD_VNNI: with the instructions of VNNI,
 * to the same bits. */
#ifndef CATTN_SIMD_H
#define CATTN_SIMD_H

#include <immintrin.h>
#include <stdint.h>

#define SIMD_INLINE static inline __attribute__((always_inline))

/* Register blocks: up to SIMD_ROWS rows by that many vectors of tokens (two sums each) or of values.  Few rows take
 * more vectors: as many sums, and more loads under way at once. */
#define SIMD_ROWS             6
#define SIMD_SCORE_VECTORS(R) ((R) < 4 ? 4 : 2)
#define SIMD_VALUE_VECTORS(R) ((R) < 4 ? 4 : 2)

/* The same with whole numbers (i8), scores and values alike: two sums each at most. */
#define SIMD_I8_ROWS       6
#define SIMD_I8_VECTORS(R) ((R) < 4 ? 4 : 2)

/* Whether a group that is alone with a block asks for what comes next.  On Golden Cove that reads memory 1.3 times as
 * fast. */
enum { SIMD_FEW_REGISTERS = 0 };
enum { SIMD_FETCH_ALONE = 1, SIMD_I8_FETCH_ALONE = 1 };

#define SIMD_FORGET(p) ((void)0) /* see simd_avx2.h: here there are registers enough */

/* A table of operations, a line each. */
/* clang-format off */

typedef __m512 vec;

SIMD_INLINE vec vec_set(float x) { return _mm512_set1_ps(x); }
SIMD_INLINE vec vec_load(const float *p) { return _mm512_loadu_ps(p); }
SIMD_INLINE void vec_store(float *p, vec x) { _mm512_storeu_ps(p, x); }
SIMD_INLINE vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
SIMD_INLINE vec vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
SIMD_INLINE vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
SIMD_INLINE vec vec_div(vec a, vec b) { return _mm512_div_ps(a, b); }
SIMD_INLINE vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); } /* b if either is a NaN; so is min */
SIMD_INLINE vec vec_min(vec a, vec b) { return _mm512_min_ps(a, b); }
SIMD_INLINE vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
SIMD_INLINE float vec_largest(vec x) { return _mm512_reduce_max_ps(x); }
SIMD_INLINE float vec_first(vec x) { return _mm512_cvtss_f32(x); }

SIMD_INLINE vec vec_lanes(void) { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
SIMD_INLINE vec vec_magnitude(vec x) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x); }
SIMD_INLINE vec vec_with_sign(vec x, vec of) { return _mm512_or_ps(x, _mm512_and_ps(_mm512_set1_ps(-0.0f), of)); }

/* The lanes of x whose bit is set, -inf in the others; zero in the others. */
SIMD_INLINE vec vec_keep(vec x, uint32_t bits) {
    return _mm512_mask_blend_ps((__mmask16)bits, _mm512_set1_ps(-__builtin_inff()), x);
}

SIMD_INLINE vec vec_only(vec x, uint32_t bits) { return _mm512_maskz_mov_ps((__mmask16)bits, x); }
SIMD_INLINE int vec_has_nan(vec x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }

SIMD_INLINE vec vec_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* The first or second of each of sixteen pairs of bf16. */
SIMD_INLINE vec vec_load_bf16_pairs(const uint16_t *p, const int half) {
    const __m512i x = _mm512_loadu_si512(p);
    return _mm512_castsi512_ps(half ? _mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000)) : _mm512_slli_epi32(x, 16));
}

/* x - floor(x), and y * 2^floor(x) with one rounding. */
SIMD_INLINE vec vec_fraction(vec x) { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
SIMD_INLINE vec vec_scale(vec y, vec x) { return _mm512_scalef_ps(y, x); }

/* Sums of products of whole numbers: see attend_i8_tmpl.h. */
enum { SIMD_PARTS = 1 };

/* The first eight bytes of each quarter, together. */
SIMD_INLINE void store_quarters(uint32_t *to, __m512i x, __m128i order) {
    const __m512i ordered = _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(order));
    const __m512i first = _mm512_setr_epi64(0, 2, 4, 6, 0, 0, 0, 0);
    _mm256_storeu_si256((__m256i *)to, _mm512_castsi512_si256(_mm512_permutexvar_epi64(first, ordered)));
}

#if SIMD_VNNI
/* The instruction multiplies unsigned bytes by signed ones: factors are cut into two bytes, and sums are kept apart. */
typedef __m512i fours;

typedef struct {
    __m512i high, low;
} sums;

SIMD_INLINE sums sums_set(int32_t x) {
    const sums s = {_mm512_setzero_si512(), _mm512_set1_epi32(x)};
    return s;
}
SIMD_INLINE fours fours_of_k(const unsigned char *p) { return _mm512_loadu_si512(p); }
SIMD_INLINE fours fours_of_v(const unsigned char *p) { return _mm512_loadu_si512(p); }
SIMD_INLINE sums sums_add_k(sums s, fours x, const uint32_t *factors) {
    s.high = _mm512_dpbusd_epi32(s.high, x, _mm512_set1_epi32((int)factors[0]));
    s.low = _mm512_dpbusd_epi32(s.low, x, _mm512_set1_epi32((int)factors[1]));
    return s;
}
SIMD_INLINE sums sums_add_v(sums s, fours x, const uint32_t *factors) {
    s.high = _mm512_dpbusd_epi32(s.high, _mm512_set1_epi32((int)factors[0]), x);
    s.low = _mm512_dpbusd_epi32(s.low, _mm512_set1_epi32((int)factors[1]), x);
    return s;
}
SIMD_INLINE vec sums_total(const sums *s) {
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(s->high, 7), s->low));
}
/* Rounds sixteen numbers to whole ones, of 13 bits, and stores them as the factors of four fours. */
SIMD_INLINE void factors_store(uint32_t *to, vec x) {
    const __m512i whole = _mm512_cvtps_epi32(x);
    const __m512i low = _mm512_slli_epi32(_mm512_and_si512(whole, _mm512_set1_epi32(127)), 8);
    const __m512i high = _mm512_and_si512(_mm512_srai_epi32(whole, 7), _mm512_set1_epi32(255));
    store_quarters(to, _mm512_or_si512(high, low), _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0));
}
#else
/* Four elements of a lane become two pairs of 16 bits. */
typedef struct {
    __m512i even, odd;
} fours;

typedef __m512i sums;

SIMD_INLINE sums sums_set(int32_t x) { return _mm512_set1_epi32(x); }
SIMD_INLINE fours fours_of_k(const unsigned char *p) {
    const __m512i x = _mm512_loadu_si512(p);
    const fours k = {_mm512_and_si512(x, _mm512_set1_epi16(0xff)), _mm512_srli_epi16(x, 8)};
    return k;
}
SIMD_INLINE fours fours_of_v(const unsigned char *p) {
    const __m512i x = _mm512_loadu_si512(p);
    const fours v = {_mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8), _mm512_srai_epi16(x, 8)};
    return v;
}
SIMD_INLINE sums sums_add_k(sums s, fours x, const uint32_t *factors) {
    s = _mm512_add_epi32(s, _mm512_madd_epi16(x.even, _mm512_set1_epi32((int)factors[0])));
    return _mm512_add_epi32(s, _mm512_madd_epi16(x.odd, _mm512_set1_epi32((int)factors[1])));
}
SIMD_INLINE sums sums_add_v(sums s, fours x, const uint32_t *factors) { return sums_add_k(s, x, factors); }
SIMD_INLINE vec sums_total(const sums *s) { return _mm512_cvtepi32_ps(*s); }
/* Rounds sixteen numbers to whole ones, of 13 bits, and stores them as the factors of four fours. */
SIMD_INLINE void factors_store(uint32_t *to, vec x) {
    store_quarters(to, _mm512_cvtps_epi32(x), _mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0));
}
#endif

#endif

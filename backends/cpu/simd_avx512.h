/* Sixteen floats in one AVX-512 register: what attend_tmpl.h is written in. */
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

/* Whether a group that is alone with a block asks for what comes next.  On Golden Cove that reads memory 1.3 times as
 * fast. */
enum { SIMD_FETCH_ALONE = 1 };

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

/* The lanes of x whose bit is set, -inf in the others. */
SIMD_INLINE vec vec_keep(vec x, uint32_t bits) {
    return _mm512_mask_blend_ps((__mmask16)bits, _mm512_set1_ps(-__builtin_inff()), x);
}

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

#endif

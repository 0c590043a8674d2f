/* States with AVX-512. */
#include "state.h"

#include <immintrin.h>

#include "number.h"

enum { STRIDE = 16 };

static float sum_lanes(const float *l)
{
    const __m512 all = _mm512_loadu_ps(l);
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static void add_scaled(float *restrict x, float factor, const float *restrict y, float y_factor)
{
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(factor));
    _mm512_storeu_ps(x, _mm512_add_ps(scaled, _mm512_mul_ps(_mm512_loadu_ps(y), _mm512_set1_ps(y_factor))));
}

/* As in number.h, which keeps nothing of a NaN but its sign; but for NaNs that signal, which no sum is. */
static __m256i to_f16(__m512 x)
{
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512 quiet = _mm512_castsi512_ps(_mm512_set1_epi32((int)0xffc00000));
    return _mm512_cvtps_ph(_mm512_mask_and_ps(x, is_nan, x, quiet), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* As in number.h, but for NaNs that signal, which no sum is. */
static __m256i to_bf16(__m512 x)
{
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, bits), 16));
}

static void put_outputs(const float *o, float inverse, uint32_t d, uint32_t n, void *out, uint32_t dtype)
{
    const __mmask16 wanted = (__mmask16)(0xffffu >> (STRIDE - n));
    const __m512 products = _mm512_mul_ps(_mm512_loadu_ps(o + d), _mm512_set1_ps(inverse));
    const __m512 x = _mm512_add_ps(products, _mm512_setzero_ps());
    if (dtype == CATTN_F32)
        _mm512_mask_storeu_ps((float *)out + d, wanted, x);
    else
        _mm256_mask_storeu_epi16((uint16_t *)out + d, wanted, dtype == CATTN_F16 ? to_f16(x) : to_bf16(x));
}

#define STATES_NAME cattn_states_avx512
#include "state_tmpl.h"

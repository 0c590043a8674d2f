/* Packing with AVX-512. */
#include <immintrin.h>

#include "number.h"

static float largest_magnitude(const float *x, uint32_t n)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i most = _mm512_setzero_si512();
    for (; n; n -= 16, x += 16)
        most = _mm512_max_epi32(most, _mm512_and_si512(_mm512_loadu_si512(x), magnitude));
    return cattn_float((uint32_t)_mm512_reduce_max_epi32(most));
}

/* As in pack.c: adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits. */
static void to_bytes(unsigned char *restrict to, const float *restrict from, uint32_t n, float inverse, uint32_t flip)
{
    const __m512 factor = _mm512_set1_ps(inverse), whole = _mm512_set1_ps(0x1.8p23f);
    const __m128i flips = _mm_set1_epi8((char)flip);
    for (; n; n -= 16, to += 16, from += 16) {
        const __m512 x = _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(from), factor), whole);
        _mm_storeu_si128((__m128i *)to, _mm_xor_si128(_mm512_cvtepi32_epi8(_mm512_castps_si512(x)), flips));
    }
}

static void mix_halves(uint32_t *restrict line, const uint16_t *restrict x, uint32_t shift)
{
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x));
    _mm512_mask_storeu_epi16(line, 0x55555555u << shift / 16, _mm512_slli_epi32(words, shift));
}

static void mix_bytes(uint32_t *restrict line, const unsigned char *restrict x, uint32_t shift)
{
    const __m512i words = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)x));
    _mm512_mask_storeu_epi8(line, UINT64_C(0x1111111111111111) << shift / 8, _mm512_slli_epi32(words, shift));
}

#define PACK_NAME cattn_packing_avx512
#include "pack_tmpl.h"

#if HAVE_CONFIG_H
#  include "config.h"
#endif
#include "pack.h"

#include <string.h>

#include "cpu.h"

/* The bits of numbers without their signs are in the order of the numbers, with NaN on top. */
static float largest_magnitude(const float *x, uint32_t n)
{
    int32_t most[16] = {0}, largest = 0;
    for (; n; n -= 16, x += 16)
        for (int i = 0; i < 16; i++) {
            const int32_t magnitude = (int32_t)(cattn_bits(x[i]) & 0x7fffffff);
            most[i] = cattn_choose(magnitude > most[i], magnitude, most[i]);
        }
    for (int i = 0; i < 16; i++)
        largest = most[i] > largest ? most[i] : largest;
    return cattn_float((uint32_t)largest);
}

/* Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits, a byte of which is taken. */
static void to_bytes(unsigned char *restrict to, const float *restrict from, uint32_t n, float inverse, uint32_t flip)
{
    for (uint32_t first = 0; first < n; first += 16, to += 16, from += 16)
        for (int i = 0; i < 16; i++)
            to[i] = (unsigned char)(cattn_bits(from[i] * inverse + 0x1.8p23f) ^ flip);
}

/* Sixteen elements into every second half word, or every fourth byte, of a line. */
static void mix_halves(uint32_t *restrict line, const uint16_t *restrict x, uint32_t shift)
{
    for (int i = 0; i < 16; i++)
        line[i] = (line[i] & ~(0xffffu << shift)) | (uint32_t)x[i] << shift;
}

static void mix_bytes(uint32_t *restrict line, const unsigned char *restrict x, uint32_t shift)
{
    for (int i = 0; i < 16; i++)
        line[i] = (line[i] & ~(0xffu << shift)) | (uint32_t)x[i] << shift;
}

#define PACK_NAME cattn_packing_plain
#include "pack_tmpl.h"

const struct cattn_packing *cattn_packing_find(void)
{
#if HAVE_CATTN_AVX512
    if (cattn_cpu_features() & CATTN_CPU_AVX512)
        return &cattn_packing_avx512;
#endif
    return &cattn_packing_plain;
}

void cattn_clear_v(const struct cattn_layout *layout, unsigned char *block, uint32_t t)
{
    static const uint16_t zero[16];
    const uint32_t n = (32 - t % 32) % 32;
    const size_t tile = 512 * cattn_dtype_size(layout->dtype), row = tile / 32;
    if (layout->dtype == CATTN_I8) {
        memset(cattn_v_scales(layout, block) + t, 0, n * sizeof(float));
        return;
    }
    unsigned char *line = n ? cattn_v_line(layout, block, t) : NULL;
    const uint32_t odd = layout->dtype == CATTN_BF16 && t % 2;
    for (uint32_t d = 0; n && d < layout->v_pad; d += 16, line += tile) {
        if (odd)
            mix_halves((uint32_t *)line, zero, 16);
        memset(line + 2 * odd * row, 0, (n - odd) * row);
    }
}

void cattn_fetch_packed(const struct cattn_layout *layout, const unsigned char *block, uint32_t t)
{
    const size_t size = cattn_dtype_size(layout->dtype), tile = 512 * size;
    const unsigned char *keys = block + t / 16 * 16 * size * layout->k_pad;
    const unsigned char *values = block + layout->v_offset + t / 32 * 32 * size * layout->v_pad + t % 32 * 16 * size;
    for (size_t i = 0; i < layout->k_pad * size * 16; i += 64)
        __builtin_prefetch(keys + i, 1);
    for (uint32_t d = 0; d < layout->v_pad; d += 16)
        __builtin_prefetch(values + d / 16 * tile, 1);
    if (layout->dtype == CATTN_I8) {
        __builtin_prefetch(cattn_k_scales(layout, block) + t, 1);
        __builtin_prefetch(cattn_v_scales(layout, block) + t, 1);
    }
}

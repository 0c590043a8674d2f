#include "pack.h"

#include <string.h>

/* A vector in its stored type, zero up to the padded length, as the places in a block take it: sixteen bits at a time
 * (f16), or thirty-two. */
struct packed {
    union {
        float numbers[CATTN_MAX_HEAD_DIM];
        uint16_t halves[2 * CATTN_MAX_HEAD_DIM];
        unsigned char bytes[4 * CATTN_MAX_HEAD_DIM];
        uint32_t words[CATTN_MAX_HEAD_DIM];
    };
    float scale; /* of i8 */
};

/* ---- conversion ------------------------------------------------------------------------------------- */

/* Sixteen at a time, since loops of a fixed length become vectors. */

static void to_halves(uint16_t *restrict to, const float *restrict from, uint32_t n, uint32_t dtype)
{
    for (uint32_t first = 0; first < n; first += 16, to += 16, from += 16)
        if (dtype == CATTN_F16)
            for (int i = 0; i < 16; i++)
                to[i] = cattn_to_f16(from[i]);
        else
            for (int i = 0; i < 16; i++)
                to[i] = cattn_to_bf16(from[i]);
}

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

/* A tiny vector is measured by a larger one, so that neither scale nor inverse leaves the range of normal numbers. */
static void quantise(struct packed *to, const float *from, uint32_t n, uint32_t flip)
{
    const float largest = largest_magnitude(from, n);
    const int is_finite = cattn_bits(largest) < 0x7f800000;
    const float unit = !is_finite ? cattn_float(0x7fc00000) : largest < CATTN_I8_TINY ? CATTN_I8_TINY : largest;
    to->scale = unit / 127;
    to_bytes(to->bytes, from, n, 127 / unit, flip);
}

static void take_bytes(struct packed *to, const unsigned char *from, uint32_t n, uint32_t flip)
{
    to->scale = 0;
    for (uint32_t i = 0; i < n; i++)
        to->bytes[i] = (unsigned char)(from[i] ^ flip);
}

/* Floats, zero from n to the next multiple of 16: the caller's own where that will do. */
static const float *widen(float *wide, const void *array, uint32_t dtype, size_t first, uint32_t n)
{
    if (dtype == CATTN_F32 && n % 16 == 0)
        return (const float *)array + first;
    cattn_load_row(wide, array, dtype, first, n);
    memset(wide + n, 0, (cattn_round_up(n, 16) - n) * sizeof *wide);
    return wide;
}

/* `flip` is what the bits of a byte of i8 are changed by. */
static void convert(struct packed *to, uint32_t kv_dtype, const void *array, uint32_t dtype, size_t first, uint32_t n,
                    uint32_t pad, uint32_t flip)
{
    const size_t size = cattn_dtype_size(kv_dtype);
    const uint32_t whole = cattn_round_up(n, 16);
    float wide[CATTN_MAX_HEAD_DIM];
    if (dtype == CATTN_I8)
        take_bytes(to, (const unsigned char *)array + first, n, flip);
    else if (dtype == kv_dtype)
        memcpy(to->bytes, (const char *)array + first * size, n * size);
    else if (kv_dtype == CATTN_F32)
        cattn_load_row(to->numbers, array, dtype, first, n);
    else if (kv_dtype == CATTN_I8)
        quantise(to, widen(wide, array, dtype, first, n), whole, flip);
    else
        to_halves(to->halves, widen(wide, array, dtype, first, n), whole, kv_dtype);
    if (pad > n)
        memset(to->bytes + n * size, (int)flip, (pad - n) * size);
}

/* ---- places ----------------------------------------------------------------------------------------- */

/* Sixteen tokens lie side by side. */
static void scatter_halves(uint16_t *restrict to, const uint16_t *restrict from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        to[16 * (size_t)i] = from[i];
}

static void scatter_words(uint32_t *restrict to, const uint32_t *restrict from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        to[16 * (size_t)i] = from[i];
}

void cattn_pack_k(const struct cattn_layout *layout, unsigned char *block, uint32_t t, const void *array,
                  uint32_t dtype, size_t first)
{
    struct packed key;
    const uint32_t bytes = layout->k_pad * (uint32_t)cattn_dtype_size(layout->dtype);
    unsigned char *group = block + (size_t)(t / 16 * 16) * bytes;
    convert(&key, layout->dtype, array, dtype, first, layout->k_dim, layout->k_pad,
            layout->dtype == CATTN_I8 ? 0x80 : 0);
    if (layout->dtype == CATTN_F16)
        scatter_halves((uint16_t *)group + t % 16, key.halves, layout->k_pad);
    else
        scatter_words((uint32_t *)group + t % 16, key.words, bytes / 4);
    if (layout->dtype == CATTN_I8)
        cattn_k_scales(layout, block)[t] = key.scale;
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

/* Where the values of token t begin: its part of the first tile.  They go on in the same place of the next. */
static unsigned char *v_line(const struct cattn_layout *layout, unsigned char *block, uint32_t t)
{
    const size_t size = cattn_dtype_size(layout->dtype), together = layout->dtype == CATTN_BF16 ? 2
                                                                    : layout->dtype == CATTN_I8 ? 4
                                                                                                : 1;
    return block + layout->v_offset + t / 32 * 32 * size * layout->v_pad + t % 32 / together * together * 16 * size;
}

void cattn_pack_v(const struct cattn_layout *layout, unsigned char *block, uint32_t t, const void *array,
                  uint32_t dtype, size_t first)
{
    struct packed value;
    const size_t tile = 512 * cattn_dtype_size(layout->dtype);
    unsigned char *line = v_line(layout, block, t);
    convert(&value, layout->dtype, array, dtype, first, layout->v_dim, layout->v_pad, 0);
    const uint32_t kv_dtype = layout->dtype, v_pad = layout->v_pad;
    for (uint32_t d = 0; d < v_pad; d += 16, line += tile)
        switch (kv_dtype) {
        case CATTN_F32: memcpy(line, value.numbers + d, 64); break;
        case CATTN_F16: memcpy(line, value.halves + d, 32); break;
        case CATTN_BF16: mix_halves((uint32_t *)line, value.halves + d, t % 2 * 16); break;
        default: mix_bytes((uint32_t *)line, value.bytes + d, t % 4 * 8); break;
        }
    if (layout->dtype == CATTN_I8)
        cattn_v_scales(layout, block)[t] = value.scale;
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
    unsigned char *line = n ? v_line(layout, block, t) : NULL;
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

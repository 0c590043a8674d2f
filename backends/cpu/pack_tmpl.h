/* Packing, compiled once for each set of instructions: PACK_NAME is the name of the table.  What is included before
 * this works on sixteen elements at a time with the instructions that there are, and to the same bits:
 *
 * - largest_magnitude(x, n) of n numbers, n a multiple of 16; a NaN counts for more than any number
 * - to_bytes(to, from, n, inverse, flip): from * inverse rounded to whole numbers, their low bytes with bits flipped
 * - mix_halves(line, x, shift), mix_bytes(line, x, shift): sixteen elements into every second half word of a line, or
 *   every fourth byte, `shift` bits up in each word */
#include <string.h>

#include "pack.h"

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

static void pack_key(const struct cattn_layout *layout, unsigned char *block, uint32_t t, const void *array,
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

static void pack_value(const struct cattn_layout *layout, unsigned char *block, uint32_t t, const void *array,
                       uint32_t dtype, size_t first)
{
    struct packed value;
    const size_t tile = 512 * cattn_dtype_size(layout->dtype);
    unsigned char *line = cattn_v_line(layout, block, t);
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

const struct cattn_packing PACK_NAME = {pack_key, pack_value};

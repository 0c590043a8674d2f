/* New keys and values on their way into a block: from the caller's data type and order to those of the layout. */
#ifndef CATTN_PACK_H
#define CATTN_PACK_H

#include "layout.h"

/* Stores the key, or the value, of token t of a block: the k_dim or v_dim elements of an array that start at `first`.
 * i8: the scale is max|x| / 127 (of 2^-112 at least), the bytes are x / scale rounded to nearest even; a vector that is
 * not finite gets a scale that is NaN.  An array of i8 is stored as it is, and its scale is left to the caller. */
typedef void cattn_pack(const struct cattn_layout *layout, unsigned char *block, uint32_t t, const void *array,
                        uint32_t dtype, size_t first);

/* For some set of instructions; all store the same bits. */
struct cattn_packing {
    cattn_pack *key, *value;
};

extern const struct cattn_packing cattn_packing_plain, cattn_packing_avx512;

/* The fastest that this machine can run. */
const struct cattn_packing *cattn_packing_find(void);

/* Where the values of token t begin: its part of the first tile.  They go on in the same place of the next. */
static inline unsigned char *cattn_v_line(const struct cattn_layout *layout, unsigned char *block, uint32_t t)
{
    const size_t size = cattn_dtype_size(layout->dtype), together = layout->dtype == CATTN_BF16 ? 2
                                                                    : layout->dtype == CATTN_I8 ? 4
                                                                                                : 1;
    return block + layout->v_offset + t / 32 * 32 * size * layout->v_pad + t % 32 / together * together * 16 * size;
}

/* Makes the values from token t to the end of its granule zero (i8: their scales). */
void cattn_clear_v(const struct cattn_layout *layout, unsigned char *block, uint32_t t);

/* Asks for the memory that the packing of token t will write to. */
void cattn_fetch_packed(const struct cattn_layout *layout, const unsigned char *block, uint32_t t);

#endif

/* New keys and values on their way into a block: from the caller's data type and order to those of the layout. */
#ifndef CATTN_PACK_H
#define CATTN_PACK_H

#include "layout.h"

/* Stores the key, or the value, of token t of a block: the k_dim or v_dim elements of an array that start at `first`.
 * i8: the scale is max|x| / 127 (of 2^-112 at least), the bytes are x / scale rounded to nearest even; a vector that is
 * not finite gets a scale that is NaN.  An array of i8 is stored as it is, and its scale is left to the caller. */
void cattn_pack_k(const struct cattn_layout *layout, unsigned char *block, uint32_t t, const void *array,
                  uint32_t dtype, size_t first);
void cattn_pack_v(const struct cattn_layout *layout, unsigned char *block, uint32_t t, const void *array,
                  uint32_t dtype, size_t first);

/* Makes the values from token t to the end of its granule zero (i8: their scales). */
void cattn_clear_v(const struct cattn_layout *layout, unsigned char *block, uint32_t t);

/* Asks for the memory that the packing of token t will write to. */
void cattn_fetch_packed(const struct cattn_layout *layout, const unsigned char *block, uint32_t t);

#endif

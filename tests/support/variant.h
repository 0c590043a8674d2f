/* Variants of attention, drawn at random. */
#ifndef TEST_VARIANT_H
#define TEST_VARIANT_H

#include "chunkattention.h"
#include "random.h"

enum variant_part {
    VARIANT_SCALE = 1,
    VARIANT_SOFTCAP = 2,
    VARIANT_WINDOW = 4, /* with tokens that are always seen, or without */
    VARIANT_ALIBI = 8,
    VARIANT_SINKS = 16,
    VARIANT_ALL = 31
};

/* Heap memory with the arrays that it points to; variant_free. */
struct cattn_variant *variant_new(uint32_t n_heads);
void variant_free(struct cattn_variant *variant);

/* Which parts a case has: often none, often one, sometimes several, sometimes all. */
unsigned variant_parts(struct rng *rng);

/* Draws the values of the parts: windows around the ends of chunks and spans and beyond a sequence of `length` tokens,
 * slopes of both signs and zero, sinks from none to huge.  A function of the seed; slopes
 * and sinks depend on nothing else but n_heads. */
void variant_draw(struct cattn_variant *variant, unsigned parts, uint64_t seed, uint32_t n_heads, uint32_t chunk,
                  size_t length);

/* Static storage, overwritten by the next call. */
const char *variant_text(const struct cattn_variant *variant);

#endif

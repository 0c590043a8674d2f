/* Tokens in the plain form of files, out of the layout and into it: key, value and (i8) the f32 scales of both, without
 * padding, for each token of one layer and KV head. */
#ifndef CATTN_PLAIN_H
#define CATTN_PLAIN_H

#include "store.h"

size_t cattn_plain_bytes(const struct cattn_layout *layout);

void cattn_pool_get(const struct cattn_pool *pool, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin,
                    uint32_t n, unsigned char *tokens);
void cattn_pool_put(struct cattn_pool *pool, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin, uint32_t n,
                    const unsigned char *tokens);

#endif

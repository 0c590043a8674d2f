/* The file of saved prefixes; doc/design.md has the whole of it.  Numbers are little-endian. */
#ifndef CATTN_SAVE_H
#define CATTN_SAVE_H

#include "cache.h"

#define CATTN_SAVE_MAGIC   "CATTNKV"
#define CATTN_SAVE_VERSION 1

/* No member has padding before it. */
struct cattn_save_header {
    char magic[8];
    uint32_t version;
    uint32_t n_layers, n_kv_heads, head_dim, v_head_dim, kv_dtype;
    uint32_t token_bytes; /* of one layer and KV head */
    uint32_t chunk_tokens;
    uint32_t n_chunks, n_spaces, n_extras;
    uint32_t zero;
    uint64_t model_bytes;
    uint64_t tree_bytes;
};

/* A chunk in the tree, before its extras and its tokens.  Parents come before children. */
struct cattn_save_chunk {
    uint32_t parent; /* its number, or CATTN_NONE */
    uint32_t space;  /* the number of its namespace */
    uint32_t pins;   /* that end here */
    uint32_t n_extras;
};

/* A token of a chunk that has an extra identity; by ascending offset. */
struct cattn_save_extra {
    uint32_t offset; /* in the chunk */
    uint32_t id;     /* its number among those behind the namespaces */
};

/* All of the header but what is counted. */
static inline struct cattn_save_header cattn_save_header_of(const struct cattn_cache *cache)
{
    const struct cattn_shape *shape = &cache->shape;
    return (struct cattn_save_header){.magic = CATTN_SAVE_MAGIC,
                                      .version = CATTN_SAVE_VERSION,
                                      .n_layers = shape->n_layers,
                                      .n_kv_heads = shape->n_kv_heads,
                                      .head_dim = shape->head_dim,
                                      .v_head_dim = shape->v_head_dim,
                                      .kv_dtype = shape->kv_dtype,
                                      .token_bytes = (uint32_t)cache->backend->token_bytes(shape),
                                      .chunk_tokens = shape->chunk_tokens};
}

#endif

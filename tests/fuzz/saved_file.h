/* The file of cattn_prefix_save, read without trust and without a line of the library's reader. */
#ifndef TESTS_SAVED_FILE_H
#define TESTS_SAVED_FILE_H

#include "save.h"

/* The name of what made the K and V of all these files. */
#define SAVED_MODEL "m"

enum {
    SAVED_MAX = 1 << 16, /* bytes of a file that is made longer */
    SAVED_REPAIR_SHAPE = 1,
    SAVED_REPAIR_DATA = 2, /* as long as the counts say */
    SAVED_REPAIR_TREE = 4, /* takes what the other sections leave of the file */
    SAVED_REPAIR_SUMS = 8
};

struct saved {
    const unsigned char *data;
    size_t size;
    struct cattn_save_header header;
    size_t tree, blocks; /* where they begin */
    size_t chunk_bytes;  /* of K and V of a chunk, its checksum left out */
    /* where in the tree each chunk begins, and each name, behind which are the extra identities; and the ends */
    uint32_t nodes[SAVED_MAX / 16 + 1], strings[SAVED_MAX / 8 + 1];
};

struct saved_bytes {
    const unsigned char *at;
    size_t length;
};

/* Whether these bytes are a file that a cache of this header (its counts do not matter) must load if it has room. */
bool saved_read(struct saved *file, const unsigned char *data, size_t size, const struct cattn_save_header *cache);

/* Of a file that was read. */
struct cattn_save_chunk saved_chunk(const struct saved *file, uint32_t i);
const unsigned char *saved_tokens(const struct saved *file, uint32_t i);
struct saved_bytes saved_name(const struct saved *file, uint32_t space);

/* The extra identity of token `at` of a chunk; of length 0: it has none. */
struct saved_bytes saved_extra(const struct saved *file, uint32_t i, uint32_t at);

/* Whether a chunk is below one of another namespace, which its own must be known to read. */
bool saved_crosses(const struct saved *file);

/* Whether two chunks are at the same place and begin with the same n tokens and extra identities. */
bool saved_alike(const struct saved *file, uint32_t i, uint32_t k, uint32_t n);

/* K and V of token `at` of a chunk, in one block: a layer and KV head. */
const unsigned char *saved_token(const struct saved *file, uint32_t i, uint32_t block, uint32_t at);

/* Changes one number, chunk, name or extra identity, adds or removes one, which one and how depends on `how`: what
 * damage at random seldom hits.  It has room for SAVED_MAX bytes. */
void saved_edit(unsigned char *data, size_t *size, uint64_t how);

/* Makes a damaged file good again in some ways; it has room for SAVED_MAX bytes. */
void saved_repair(unsigned char *data, size_t *size, const struct cattn_save_header *cache, unsigned what);

#endif

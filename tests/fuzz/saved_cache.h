/* Caches for files of prefixes.  The first bytes of an input say which. */
#ifndef TESTS_SAVED_CACHE_H
#define TESTS_SAVED_CACHE_H

#include "cache.h"

enum { SAVED_CHOICES = 5, SAVED_LONGEST = 700 /* tokens of a prompt */, SAVED_NAMES = 3 };

struct saved_choice {
    uint32_t n_slots, chunk_tokens, n_layers, flags;
    bool cells; /* the backend without floats, whose chunks may be tiny */
    bool constant_hash;
    uint32_t kv_dtype, n_kv_heads; /* of the CPU's ... */
    unsigned kernel;               /* ... and which of those that run here */
    unsigned before;               /* what is cached: 0: nothing; 1: a prompt, 2: pinned, 3: in use */
    unsigned images;               /* which extra identities it has, as in saved_prompt */
    bool rival;                    /* a sequence with another prompt, of one chunk, is open */
    unsigned repair;               /* of the file */
    unsigned failing;              /* the allocation that fails; 0: none */
};

struct saved_choice saved_choice(const unsigned char bytes[SAVED_CHOICES]);

cattn_cache *saved_make(const struct saved_choice *choice);

struct saved_prompt {
    int32_t tokens[SAVED_LONGEST];
    struct cattn_extra extras[8];
    struct cattn_ext ext;
    size_t n;
};

const char *saved_namespace(unsigned i);

/* Prompts that begin alike.  images: 0: no extra identities; 1 and 2: some, which differ at one token; 3: one for all.
 */
void saved_prompt(struct saved_prompt *prompt, size_t n, unsigned number, unsigned images);

/* Caches a prompt; *seq (NULL: it is closed) holds it.  CATTN_OK, CATTN_EFULL or CATTN_ETOOBIG. */
int saved_feed(cattn_cache *cache, unsigned space, const struct saved_prompt *prompt, cattn_seq *seq);

#endif

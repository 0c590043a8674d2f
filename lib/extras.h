/* Extra identities.  A token that has one is kept, wherever the library keeps tokens, as a negative number, which
 * stands for the caller's token together with the bytes: two are equal if and only if both are.  So trees, matches and
 * copies compare numbers and know nothing of this.
 *
 * Each place where such a number is kept counts as a reference: each token of a chunk, a sequence or the open step.
 * Where nothing has an extra, as in most caches, none of this costs anything. */
#ifndef CATTN_EXTRAS_H
#define CATTN_EXTRAS_H

#include "chunkattention.h"
#include "intern.h"

struct cattn_extras {
    struct cattn_intern ids;    /* the bytes; each token with them is a reference */
    struct cattn_intern tokens; /* struct cattn_extra_token; number i is kept as -1 - i */
    uint64_t seed;
    bool constant_hash; /* for tests: everything collides */
};

struct cattn_extra_token {
    int32_t token; /* the caller's */
    uint32_t id;
};

/* Zeros, with a seed, are an empty table. */
void cattn_extras_release(struct cattn_extras *extras);

/* Whether anything has an extra now. */
static inline bool cattn_extras_any(const struct cattn_extras *extras)
{
    return extras->tokens.n_used > 0;
}

/* Whether one of the tokens has.  Those of a caller: whether one is no token. */
bool cattn_tokens_negative(const int32_t *tokens, size_t n);

/* Whether what a caller gives for n tokens is good. */
bool cattn_ext_is_good(const struct cattn_ext *ext, uint64_t n);

/* Copies a caller's tokens, with numbers for those in the ranges; the copy has references.  CATTN_ENOMEM: nothing
 * changed but the copy. */
int cattn_extras_translate(struct cattn_extras *extras, const struct cattn_ext *ext, const int32_t *tokens, size_t n,
                           int32_t *copy);

/* A prompt that is only compared: whether a caller's is good; its copy, or (*copy NULL) none if it has no extras, which
 * saves that; and the end of the copy.  CATTN_ENOMEM. */
bool cattn_prompt_is_good(const int32_t *tokens, size_t n, const struct cattn_ext *ext);
int cattn_prompt_enter(struct cattn_extras *extras, const int32_t *tokens, size_t n, const struct cattn_ext *ext,
                       int32_t **copy);
void cattn_prompt_leave(struct cattn_extras *extras, int32_t *copy, size_t n);

/* The same one by one: the number of the bytes, with a reference; that of a token that is to have them, likewise.
 * CATTN_ENOMEM. */
int cattn_extras_add_id(struct cattn_extras *extras, const void *bytes, size_t length, uint32_t *id);
void cattn_extras_drop_id(struct cattn_extras *extras, uint32_t id);
int cattn_extras_add(struct cattn_extras *extras, int32_t token, uint32_t id, int32_t *number);

/* References of all of the tokens that have an extra: how many there are. */
size_t cattn_extras_acquire(struct cattn_extras *extras, const int32_t *tokens, size_t n);
size_t cattn_extras_drop(struct cattn_extras *extras, const int32_t *tokens, size_t n);

/* The same for one who is outside of the cache. */
void cattn_extras_hold(struct cattn_extras *extras, const int32_t *tokens, size_t n);
void cattn_extras_unhold(struct cattn_extras *extras, const int32_t *tokens, size_t n);

/* The caller's token, of any token. */
int32_t cattn_extras_token(const struct cattn_extras *extras, int32_t token);

/* Of a token that has an extra: the number of its bytes; and what does not depend on numbers, to be hashed instead. */
uint32_t cattn_extras_id(const struct cattn_extras *extras, int32_t token);
uint32_t cattn_extras_hash(const struct cattn_extras *extras, int32_t token);

#endif

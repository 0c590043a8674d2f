/* Sequences: whole chunks (each a reference), then at most one of: an own tail, or a borrow of the first t tokens of
 * somebody's slot.  And the table that turns handles into them. */
#ifndef CATTN_SEQUENCE_H
#define CATTN_SEQUENCE_H

#include "chunkattention.h"
#include "handle.h"
#include "tree.h"

struct cattn_sequence {
    cattn_seq handle;
    uint32_t root;
    uint32_t tail; /* slot, or CATTN_NONE */
    uint32_t t;    /* its tokens that count, 0 < t < chunk_tokens */
    bool owns;     /* it is an own tail, not a borrow */
    bool in_step;
    bool closed;      /* while it was in the open step, at whose end it goes */
    uint32_t *chunks; /* slots; past n_chunks the open step keeps what it adds */
    size_t n_chunks;
    size_t chunks_capacity;
    int32_t *tokens; /* past n_tokens likewise; those that have an extra as numbers, each a reference */
    size_t n_tokens;
    size_t tokens_capacity;
    size_t n_pending;          /* tokens behind them that the open step adds */
    size_t n_extras;           /* of all these, those that have an extra */
    uint64_t uncounted;        /* tokens that open found and no step has counted yet */
    uint64_t hits, misses;     /* that steps have counted */
    size_t n_prompt, n_cached; /* given to open; found by it */
    enum cattn_reason reason;  /* why no more */
    uint64_t n_cuts;           /* truncates that took slots away; one in the own tail takes none */
};

struct cattn_handle {
    struct cattn_sequence *sequence; /* NULL: free */
    cattn_seq handle;                /* of the sequence, or of the next one to come here */
    uint32_t next;                   /* free place */
};

struct cattn_sequences {
    struct cattn_handle *handles;
    size_t capacity;
    uint32_t n;    /* places in use at some time */
    uint32_t free; /* first of the free ones among them, or CATTN_NONE */
    uint64_t seed; /* of the handles */
};

void cattn_sequences_init(struct cattn_sequences *sequences, uint64_t seed);
void cattn_sequences_release(struct cattn_sequences *sequences);

/* NULL: stale, forged, closed, or of another cache. */
struct cattn_sequence *cattn_sequence_find(const struct cattn_cache *cache, cattn_seq handle);

/* Room for so many chunks (and a tail) and tokens.  CATTN_ENOMEM: nothing changed. */
int cattn_sequence_reserve(struct cattn_sequence *sequence, size_t n_chunks, size_t n_tokens);

/* Adds tokens for the open step; there is room.  CATTN_ENOMEM: nothing changed.  And takes them away again. */
int cattn_sequence_add_pending(struct cattn_cache *cache, struct cattn_sequence *sequence, const int32_t *tokens,
                               size_t n, const struct cattn_ext *ext);
void cattn_sequence_drop_pending(struct cattn_cache *cache, struct cattn_sequence *sequence);

/* Drops all its references and frees it. */
void cattn_sequence_remove(struct cattn_cache *cache, struct cattn_sequence *sequence);

#endif

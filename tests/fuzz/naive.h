/* What a cache must hold, worked out from the calls alone: lists of tokens that are walked from one end to the other.
 * Nothing here comes from lib/.
 *
 * A space is a namespace until it is invalidated.  Which chunks of the current spaces are cached is known at any time
 * from the events, each of which must be one that may come.  Of a space that was invalidated there are none: its chunks
 * are cached for as long as a sequence holds them, and may be a little longer.
 *
 * A negative token stands for one that has an extra identity. */
#ifndef TESTS_NAIVE_H
#define TESTS_NAIVE_H

#include "chunkattention.h"

#include <stdbool.h>

enum { NAIVE_TOKENS = 512, NAIVE_SEQUENCES = 40, NAIVE_CHUNKS = 2048, NAIVE_PINS = 64, NAIVE_NAMES = 4 };

struct naive_sequence {
    bool used, in_step, closed; /* closed: while it was in the step */
    cattn_seq handle;
    uint32_t space;
    size_t n, n_after; /* tokens now, and when the step ends */
    int32_t tokens[NAIVE_TOKENS];
    size_t uncounted; /* found by open, not yet by a step */
    uint64_t hits, misses;
    bool counts_known; /* not where it was matched in an old space */
    size_t n_prompt, n_cached;
    unsigned reasons; /* that are possible, one bit each */
};

/* A cached chunk, by all tokens from the first to its end. */
struct naive_chunk {
    uint32_t space;
    size_t n;
    uint64_t hash;
    bool retained, over; /* it has an end; that has come */
    uint64_t end;
    int32_t tokens[NAIVE_TOKENS];
};

struct naive_pin {
    uint32_t space;
    size_t n;
    uint64_t count;
    int32_t tokens[NAIVE_TOKENS];
};

struct naive_space {
    uint32_t id;
    uint64_t hits, misses, evictions;
};

/* Of a name, whatever space it means. */
struct naive_settings {
    uint64_t reserve, limit;
};

struct naive {
    size_t c, n_slots, n_chunks, n_pins;
    bool retain;
    struct naive_space spaces[NAIVE_NAMES];
    struct naive_settings settings[NAIVE_NAMES];
    uint64_t now;
    uint32_t last_space;
    uint64_t hits, misses, evictions;
    struct naive_sequence sequences[NAIVE_SEQUENCES];
    struct naive_chunk chunks[NAIVE_CHUNKS]; /* older ones first */
    struct naive_pin pins[NAIVE_PINS];
};

void naive_init(struct naive *naive, size_t n_slots, size_t chunk_tokens, bool retain);

const char *naive_name(unsigned ns, size_t *length);

/* The number and the bytes of a token; NULL: it has none. */
int32_t naive_token(int32_t token);
const char *naive_id(int32_t token, size_t *length);

/* The hash that events tell of: of a namespace and so many tokens. */
uint64_t naive_hash(unsigned ns, const int32_t *tokens, size_t n);

/* The namespace whose current space it is, or -1. */
int naive_current(const struct naive *naive, uint32_t space);

/* Whether the chunk that ends with tokens[n - 1] is held by a sequence, a pin or (after: true) by the open step. */
bool naive_held(const struct naive *naive, uint32_t space, const int32_t *tokens, size_t n, bool after);

/* Whether it is cached.  In an old space: certainly, or (most: true) possibly. */
bool naive_cached(const struct naive *naive, uint32_t space, const int32_t *tokens, size_t n, bool most);

struct naive_chunk *naive_find(struct naive *naive, uint32_t space, const int32_t *tokens, size_t n);
void naive_add(struct naive *naive, uint32_t space, const int32_t *tokens, size_t n);
void naive_remove(struct naive *naive, struct naive_chunk *chunk);

/* Whether anything is cached right behind the first n tokens. */
bool naive_goes_on(const struct naive *naive, uint32_t space, const int32_t *tokens, size_t n);
bool naive_has_chunks(const struct naive *naive, uint32_t space);

/* What an open must find of n tokens: between the two. */
void naive_match(const struct naive *naive, uint32_t space, const int32_t *tokens, size_t n, size_t *least,
                 size_t *most);

/* The reasons that cattn_seq_why may give, one bit each, after an open that found n_cached of n tokens. */
unsigned naive_reasons(const struct naive *naive, uint32_t space, const int32_t *tokens, size_t n, size_t n_cached);

/* Whether the namespace has a reserve or a limit; whether any has. */
bool naive_has_settings(const struct naive *naive, unsigned ns);
bool naive_has_quotas(const struct naive *naive);

/* The chunks of the first n tokens get an end; later ones count. */
void naive_retain(struct naive *naive, uint32_t space, const int32_t *tokens, size_t n, uint64_t end);
void naive_forget(struct naive *naive, uint32_t space, const int32_t *tokens, size_t n);
void naive_advance(struct naive *naive, uint64_t now);

/* Chunks that are cached although their time is over, nobody holds them and nothing lies below. */
size_t naive_count_overdue(const struct naive *naive);

struct naive_pin *naive_pin(struct naive *naive, uint32_t space, const int32_t *tokens, size_t n);

/* The slots that pins hold. */
size_t naive_pinned(const struct naive *naive, int space);

/* The namespace starts again; *cleared: whether anything was cached. */
void naive_invalidate(struct naive *naive, unsigned ns, bool *cleared);

/* Forgets what is known of spaces that are gone. */
void naive_sweep(struct naive *naive);

#endif

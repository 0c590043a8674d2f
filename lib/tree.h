/* The prefix tree: which tokens lie in which slot.  Nodes are full, published chunks; a slot that is being filled
 * hangs below its parent without being found by anybody.  Slots are numbers into flat arrays: no pointers, no
 * recursion.  Any chunk size from 1 up. */
#ifndef CATTN_TREE_H
#define CATTN_TREE_H

#include "events.h"
#include "evict.h"
#include "extras.h"
#include "ghosts.h"
#include "roots.h"

struct cattn_slot {
    uint64_t hash;         /* of a published chunk: of all tokens from the root to its end */
    uint64_t refs;         /* of sequences, pins and the open step */
    uint32_t root;         /* CATTN_NONE: the slot is free */
    uint32_t parent;       /* CATTN_NONE: a first chunk */
    uint32_t next, prev;   /* in the recency list, or (next) in the list of free slots */
    uint32_t children;     /* published chunks below */
    uint32_t crossings;    /* of them: those of namespaces that read this one's */
    uint32_t fill;         /* tokens stored */
    uint32_t dirty;        /* one past the last token ever written since the slot was taken */
    uint32_t pins;         /* that end here */
    uint32_t pinned;       /* pins that hold it: those that end here or below */
    uint64_t writer;       /* the sequence whose own tail this is; 0: nobody's */
    uint64_t mark;         /* equal to the tree's mark: seen already in the walk that goes on */
    uint32_t newer, older; /* published chunks with the same parent and first token */
    uint32_t first_tag;    /* its tag among the first tokens */
    bool published;
    bool extras; /* some of its tokens may have one */
};

/* A tag is the low half of a hash: it says where the entry wants to stand, and keeps nearly all probes away from the
 * slots of others. */
struct cattn_entry {
    uint32_t slot; /* + 1; 0: empty */
    uint32_t tag;
};

/* Open addressing with linear probing, never more than half full.  It never grows, and a removal closes its gap: no
 * call pays for what others left behind. */
struct cattn_table {
    struct cattn_entry *entries;
    uint32_t mask;
};

struct cattn_tree {
    uint32_t n_slots, chunk_tokens;
    bool retain;
    bool constant_hash; /* for tests: everything collides */
    struct cattn_slot *slots;
    int32_t *tokens;         /* [slot][chunk_tokens] */
    uint32_t n_touched;      /* slots from here on were never taken */
    uint32_t free, n_free;   /* n_free counts those never taken too */
    uint32_t oldest, newest; /* the recency list: unreferenced chunks, the first to be evicted is the oldest */
    uint32_t n_evictable;
    uint32_t peak_used;
    uint64_t stored_tokens; /* sum of the fills */
    uint64_t evictions;
    uint64_t n_pins;   /* at most UINT32_MAX */
    uint32_t n_pinned; /* slots that pins hold */
    uint64_t mark;
    uint64_t revision; /* another one whenever what can be found changes */
    uint64_t seed;
    uint32_t *keys; /* of the hash of a chunk, one for each token */
    void (*clear)(void *context,
                  uint32_t slot); /* called with a slot that was freed, whose tokens are zeroed; or NULL */
    void *clear_context;
    struct cattn_table index;  /* published chunks by their hash */
    struct cattn_table firsts; /* the newest of those with equal (parent, first token); the others follow by `older` */
    struct cattn_roots roots;
    struct cattn_order order;    /* of eviction, where it is not the recency list */
    struct cattn_roots settings; /* names that read others, and those others (readers.h) */
    struct cattn_ghosts ghosts;  /* what was evicted */
    struct cattn_extras extras;  /* what the negative ones among the tokens stand for */
    struct cattn_events events;  /* nobody listens, unless they are opened */
};

/* CATTN_ENOMEM. */
int cattn_tree_init(struct cattn_tree *tree, uint32_t n_slots, uint32_t chunk_tokens, bool retain, uint64_t seed);
void cattn_tree_release(struct cattn_tree *tree);

static inline int32_t *cattn_tree_tokens(const struct cattn_tree *tree, uint32_t slot)
{
    return tree->tokens + (size_t)slot * tree->chunk_tokens;
}

static inline uint32_t cattn_tree_used(const struct cattn_tree *tree)
{
    return tree->n_slots - tree->n_free - tree->n_evictable;
}

/* ---- slots and references */

/* A free slot with one reference; there must be one. */
uint32_t cattn_tree_take(struct cattn_tree *tree, uint32_t parent, uint32_t root, uint64_t writer);

void cattn_tree_acquire(struct cattn_tree *tree, uint32_t slot);

/* The last reference of a chunk puts it at the end of the recency list, or frees it: if it is not published, if its
 * root is an old one, or if nothing is retained. */
void cattn_tree_unref(struct cattn_tree *tree, uint32_t slot);

/* The tokens up to there are in place.  Those that a slot gains or loses refer to their extras. */
void cattn_tree_set_fill(struct cattn_tree *tree, uint32_t slot, uint32_t fill);

/* Evicts up to n unreferenced chunks, the longest unused first, O(1) each; or in the order of evict.h, O(log n) each,
 * those that reserves keep last. */
void cattn_tree_evict(struct cattn_tree *tree, uint32_t n);

/* Evicts an unreferenced leaf, and those above it whose time is over and which become such leaves. */
void cattn_tree_evict_from(struct cattn_tree *tree, uint32_t slot);

/* ---- finding */

/* The hash that those of the chunks of a root start from below a parent: its own hash, which is published; where the
 * parent is of the root that this one reads, its hash and the root; below none, the root. */
uint64_t cattn_tree_above(const struct cattn_tree *tree, uint32_t parent, uint32_t root);

/* The same below a chunk of the root that this one reads, whose hash is known: what goes on there is found by this root
 * alone. */
uint64_t cattn_tree_cross(const struct cattn_tree *tree, uint64_t hash, uint32_t root);

/* The hash of a chunk with these tokens below `above`.  No slot number goes into it, so that a path can be hashed
 * before its chunks are found. */
uint64_t cattn_tree_hash(const struct cattn_tree *tree, uint64_t above, const int32_t *tokens);

/* Starts to fetch the place in the index that a hash leads to. */
void cattn_tree_fetch(const struct cattn_tree *tree, uint64_t hash);

/* The published chunk with these chunk_tokens tokens, or CATTN_NONE. */
uint32_t cattn_tree_find(const struct cattn_tree *tree, uint32_t parent, uint32_t root, const int32_t *tokens,
                         uint64_t hash);

/* Follows published chunks of one root down from a parent (CATTN_NONE: from the root), as far as the tokens of n whole
 * chunks lead.  Returns how many there are; path[0 .. n) is theirs. */
size_t cattn_tree_follow(const struct cattn_tree *tree, uint32_t parent, uint32_t root, const int32_t *tokens, size_t n,
                         uint32_t *path);

/* The same from the root. */
size_t cattn_tree_match(const struct cattn_tree *tree, uint32_t root, const int32_t *tokens, size_t n, uint32_t *path);

/* The newest published chunk that begins with the token, or CATTN_NONE. */
uint32_t cattn_tree_find_first(const struct cattn_tree *tree, uint32_t parent, uint32_t root, int32_t token);

/* Of the 8 newest published chunks that begin with tokens[0], the one that has most of the n tokens; the newest of
 * equals.  *length: how many.  CATTN_NONE: there is none. */
uint32_t cattn_tree_find_partial(const struct cattn_tree *tree, uint32_t parent, uint32_t root, const int32_t *tokens,
                                 uint32_t n, uint32_t *length);

/* Whether a chunk with these chunk_tokens tokens was evicted, as far as that is remembered. */
bool cattn_tree_was_evicted(const struct cattn_tree *tree, uint32_t parent, uint32_t root, const int32_t *tokens);

/* Makes a full slot visible (no equal chunk may be there, and its parent must be visible), and invisible again. */
void cattn_tree_publish(struct cattn_tree *tree, uint32_t slot, uint64_t hash);
void cattn_tree_unpublish(struct cattn_tree *tree, uint32_t slot);

/* ---- pins and namespaces */

/* Counted references on the whole chunks of the tokens.  CATTN_ENOTFOUND: there are none, or not all are cached, or all
 * are those of the namespace that this one reads; unpin: or that is not pinned.  pin: CATTN_ENOMEM if there are too
 * many to count. */
int cattn_tree_pin(struct cattn_tree *tree, const void *name, size_t length, const int32_t *tokens, size_t n);
int cattn_tree_unpin(struct cattn_tree *tree, const void *name, size_t length, const int32_t *tokens, size_t n);

/* n pins more on the chunks from the root to a published one. */
void cattn_tree_add_pins(struct cattn_tree *tree, uint32_t leaf, uint32_t n);

/* The last of the whole chunks of the tokens, which is of the namespace itself; CATTN_NONE: there are none, or not all
 * are cached, or all are public. */
uint32_t cattn_tree_leaf(const struct cattn_tree *tree, const void *name, size_t length, const int32_t *tokens,
                         size_t n);

/* The name and those that read it start empty again and lose their pins; their settings stay.  Sequences go on under
 * the old roots.  CATTN_ENOMEM, only if one of the names has a reserve or a limit: nothing changed. */
int cattn_tree_invalidate(struct cattn_tree *tree, const void *name, size_t length);

#endif

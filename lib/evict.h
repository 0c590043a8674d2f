/* The order of eviction where it is more than "the longest unused first": by priority, by cost, by namespace, by time.
 *
 * Only leaves can go: unreferenced chunks with no chunk below.  Each root has a heap of its own leaves, and the first
 * of each root is in one of two heaps more: `loose` if the root may lose a chunk for others, `kept` if its reserve
 * forbids that.  A cache that never asked for any of this has none of it, and takes the head of the recency list. */
#ifndef CATTN_EVICT_H
#define CATTN_EVICT_H

#include "heap.h"

#include <stddef.h>

struct cattn_root;
struct cattn_tree;

#define CATTN_NEVER UINT64_MAX

struct cattn_rank {
    int32_t priority;
    uint32_t depth; /* chunks above; kept for the order by cost */
    uint64_t value; /* by cost: what its eviction puts the clock to */
    uint64_t stamp; /* when its last reference went */
    uint64_t end;   /* of its time, or CATTN_NEVER */
    bool retained;  /* priority and end were asked for */
    bool over;      /* its time is: it goes when it is an unreferenced leaf */
};

struct cattn_order {
    struct cattn_rank *ranks; /* of each slot; NULL: there is no order but the recency list */
    struct cattn_heap leaves, tops, ends;
    uint32_t loose, kept; /* the first leaves of the roots */
    uint32_t next_end;    /* chunks with an end, the earliest first */
    bool by_cost;
    uint64_t fixed_cost; /* of a token, in units of what it costs for each token before it */
    uint64_t clock; /* value of the last that was evicted: what comes after it is newer than all that it outlived */
    uint64_t stamp;
    uint64_t now; /* the caller's */
    /* quotas */
    uint32_t n_settings; /* names with a reserve or a limit */
    uint64_t reserved;   /* sum of the reserves */
    uint64_t n_loose;    /* unreferenced chunks that may be evicted for anybody: the sum over all roots */
    uint32_t asked;      /* roots of a demand that is being counted (quota.h), or CATTN_NONE */
    uint64_t n_asked;
};

void cattn_order_init(struct cattn_order *order);

/* Makes the order of a tree that may have chunks already; does nothing if it has one.  CATTN_ENOMEM. */
int cattn_order_open(struct cattn_tree *tree);
void cattn_order_release(struct cattn_order *order);

/* What the tree tells, once there is an order: a chunk was published, or is not any more; its last reference went, or
 * its first came; the counts or settings of a root are others. */
void cattn_order_published(struct cattn_tree *tree, uint32_t slot);
void cattn_order_unpublished(struct cattn_tree *tree, uint32_t slot);
void cattn_order_unreferenced(struct cattn_tree *tree, uint32_t slot);
void cattn_order_referenced(struct cattn_tree *tree, uint32_t slot);
void cattn_order_refresh(struct cattn_tree *tree, uint32_t root);

/* Of a chunk that is evicted. */
void cattn_order_evicted(struct cattn_tree *tree, uint32_t slot);

/* The first to go, those that reserves keep last; CATTN_NONE: there is none. */
uint32_t cattn_order_first(const struct cattn_tree *tree);

/* Whether the time of an unreferenced leaf is over. */
bool cattn_order_is_over(const struct cattn_tree *tree, uint32_t slot);

/* Priority and end for the chunks from the root to a published one, each the higher of what it had and this. */
void cattn_order_retain(struct cattn_tree *tree, uint32_t leaf, int32_t priority, uint64_t end);

/* Takes away from these chunks what was asked for. */
void cattn_order_forget(struct cattn_tree *tree, uint32_t leaf);

/* Sets the clock, and frees what is over. */
void cattn_order_advance(struct cattn_tree *tree, uint64_t now);

/* Whether all of it is as a look at every slot and root says; the tree itself was found good.  evictcheck.c */
bool cattn_order_check(const struct cattn_tree *tree);

/* Whether a goes before b; the context is the order. */
bool cattn_order_before(const void *order, uint32_t a, uint32_t b);
bool cattn_order_ends_before(const void *order, uint32_t a, uint32_t b);

/* Unreferenced chunks of a root that may be evicted for others. */
uint32_t cattn_order_spare(const struct cattn_root *root);

#endif

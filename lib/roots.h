/* Root records: a namespace until it is invalidated.  A record lives as long as a sequence, a slot or a record that
 * reads it refers to it, its name as long as the record, and a new record under an old name shares nothing with the old
 * one. */
#ifndef CATTN_ROOTS_H
#define CATTN_ROOTS_H

#include "memory.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CATTN_NONE UINT32_MAX

struct cattn_root {
    _Alignas(CATTN_ALIGNMENT) uint64_t id; /* never used again; what eviction touches is one line of the cache */
    uint64_t refs;
    uint64_t hash;
    uint32_t n_slots, n_chunks, n_evictable, n_pinned; /* slots taken; of them: published, unreferenced, pinned */
    uint64_t hits, misses, evictions;
    unsigned char *name; /* any bytes; NULL: the record is free */
    size_t name_length;
    uint32_t next;   /* in its bucket, or in the list of free records */
    uint32_t bucket; /* the first record of the bucket with the number of this one, or CATTN_NONE */
    bool current;    /* the name still means this record */
    /* who reads whom (readers.h) */
    uint32_t reads;       /* the record of a public namespace, referred to; or CATTN_NONE */
    uint32_t n_readers;   /* records that read this one, which reads none then */
    uint32_t n_crossings; /* published chunks whose parent is a chunk of the record that this one reads */
    /* quotas (quota.h); settings count as a reference */
    bool has_settings;
    uint32_t reserve, limit; /* slots; limit 0: none */
    /* of a demand that is being counted or met */
    bool is_asked;
    uint32_t next_asked;    /* root, or CATTN_NONE */
    uint64_t n_new;         /* slots to be taken */
    uint32_t n_held;        /* unreferenced chunks that will be referred to */
    uint32_t coming, least; /* slots that were made room for and not taken yet; what others must leave meanwhile */
    /* eviction in order (evict.h) */
    uint32_t leaves;  /* the first of its leaves to go, or CATTN_NONE */
    uint32_t shown;   /* the one of them that stands for it among the roots, or CATTN_NONE */
    uint32_t n_loose; /* unreferenced chunks that may be evicted for others */
    bool loose;       /* where it is shown */
    uint32_t spare;   /* a record that was made to take its name over, or CATTN_NONE */
};

#define CATTN_ROOT_BLOCK 256 /* records; a block never moves */

struct cattn_roots {
    struct cattn_root **blocks;
    size_t blocks_capacity;
    uint32_t n;    /* records in use at some time */
    uint32_t mask; /* the least power of two that is n or more, less 1 */
    uint32_t free; /* the first of the free ones among them, or CATTN_NONE */
    uint64_t last_id;
    uint64_t seed;
};

static inline struct cattn_root *cattn_roots_at(const struct cattn_roots *roots, uint32_t root)
{
    return &roots->blocks[root / CATTN_ROOT_BLOCK][root % CATTN_ROOT_BLOCK];
}

void cattn_roots_init(struct cattn_roots *roots, uint64_t seed);
void cattn_roots_release(struct cattn_roots *roots);

/* Of a name, whether it has a record or not. */
uint64_t cattn_roots_hash(const struct cattn_roots *roots, const void *name, size_t length);

/* The record that a name means now, or CATTN_NONE. */
uint32_t cattn_roots_find(const struct cattn_roots *roots, const void *name, size_t length);

/* Makes a record without references for a name that has none.  CATTN_ENOMEM: nothing changed. */
int cattn_roots_add(struct cattn_roots *roots, const void *name, size_t length, uint32_t *root);

void cattn_roots_acquire(struct cattn_roots *roots, uint32_t root);
void cattn_roots_drop(struct cattn_roots *roots, uint32_t root); /* the last reference frees the record; one to which
                                                                    only quotas refer reads no other */

/* The record reads another one from now on, or none (CATTN_NONE). */
void cattn_roots_read(struct cattn_roots *roots, uint32_t root, uint32_t public);

/* Takes the name away from a record. */
void cattn_roots_retire(struct cattn_roots *roots, uint32_t root);

/* The same for one with quotas, which go with the name to the record that was prepared. */
void cattn_roots_renew(struct cattn_roots *roots, uint32_t root);

/* Makes what renew needs, if the record has quotas, and more than these refer to it; takes it back, if it was made.
 * CATTN_ENOMEM: nothing changed. */
int cattn_roots_prepare(struct cattn_roots *roots, uint32_t root);
void cattn_roots_unprepare(struct cattn_roots *roots, uint32_t root);

/* Whether nothing but its quotas refers to a record. */
static inline bool cattn_roots_is_idle(const struct cattn_root *record)
{
    return record->refs == record->has_settings;
}

#endif

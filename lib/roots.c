#include "roots.h"

#include "chunkattention.h"
#include "hash.h"
#include "memory.h"

#include <string.h>

void cattn_roots_init(struct cattn_roots *roots, uint64_t seed)
{
    *roots = (struct cattn_roots){.free = CATTN_NONE, .seed = seed};
}

void cattn_roots_release(struct cattn_roots *roots)
{
    for (uint32_t i = 0; i < roots->n; i++)
        cattn_free(roots->records[i].name);
    cattn_free(roots->records);
    cattn_free(roots->buckets);
}

static uint64_t hash_name(const struct cattn_roots *roots, const unsigned char *name, size_t length)
{
    uint64_t hash = cattn_hash_mix(roots->seed, length);
    for (size_t i = 0; i < length; i++)
        hash = cattn_hash_mix(hash, name[i]);
    return hash;
}

/* Linear hashing: with each record a bucket is added, which takes over its part of one other.  So a table of any size
 * grows without a pause. */
static uint32_t *bucket_of(const struct cattn_roots *roots, uint64_t hash)
{
    uint32_t i = (uint32_t)hash & roots->mask;
    return &roots->buckets[i < roots->n ? i : i & roots->mask >> 1];
}

uint32_t cattn_roots_find(const struct cattn_roots *roots, const void *name, size_t length)
{
    if (!roots->n)
        return CATTN_NONE;
    uint64_t hash = hash_name(roots, name, length);
    uint32_t root = *bucket_of(roots, hash);
    for (; root != CATTN_NONE; root = roots->records[root].next) {
        const struct cattn_root *record = &roots->records[root];
        if (record->hash == hash && record->name_length == length && (!length || !memcmp(record->name, name, length)))
            break;
    }
    return root;
}

static void link_root(struct cattn_roots *roots, uint32_t root)
{
    uint32_t *bucket = bucket_of(roots, roots->records[root].hash);
    roots->records[root].next = *bucket;
    *bucket = root;
}

static void unlink_root(struct cattn_roots *roots, uint32_t root)
{
    uint32_t *link = bucket_of(roots, roots->records[root].hash);
    while (*link != root)
        link = &roots->records[*link].next;
    *link = roots->records[root].next;
}

static void add_bucket(struct cattn_roots *roots)
{
    uint32_t added = roots->n++;
    if (added > roots->mask)
        roots->mask = 2 * roots->mask + 1;
    roots->buckets[added] = CATTN_NONE;
    if (!added)
        return;
    uint32_t *old = &roots->buckets[added & roots->mask >> 1], root = *old;
    *old = CATTN_NONE;
    while (root != CATTN_NONE) {
        uint32_t next = roots->records[root].next;
        link_root(roots, root);
        root = next;
    }
}

/* One record more, which is free. */
static int grow(struct cattn_roots *roots)
{
    if (roots->n == CATTN_NONE)
        return CATTN_ENOMEM;
    size_t n = (size_t)roots->n + 1;
    struct cattn_root *records = cattn_grow(roots->records, &roots->records_capacity, n, sizeof(*records));
    roots->records = records ? records : roots->records;
    uint32_t *buckets = cattn_grow(roots->buckets, &roots->buckets_capacity, n, sizeof(*buckets));
    roots->buckets = buckets ? buckets : roots->buckets;
    if (!records || !buckets)
        return CATTN_ENOMEM;
    roots->free = roots->n;
    records[roots->free] = (struct cattn_root){.next = CATTN_NONE};
    add_bucket(roots);
    return CATTN_OK;
}

int cattn_roots_add(struct cattn_roots *roots, const void *name, size_t length, uint32_t *root)
{
    unsigned char *copy = cattn_malloc(length, 1);
    if (!copy || (roots->free == CATTN_NONE && grow(roots))) {
        cattn_free(copy);
        return CATTN_ENOMEM;
    }
    if (length)
        memcpy(copy, name, length);
    *root = roots->free;
    struct cattn_root *record = &roots->records[*root];
    roots->free = record->next;
    *record = (struct cattn_root){.id = ++roots->last_id,
                                  .hash = hash_name(roots, name, length),
                                  .name = copy,
                                  .name_length = length,
                                  .current = true};
    link_root(roots, *root);
    return CATTN_OK;
}

void cattn_roots_acquire(struct cattn_roots *roots, uint32_t root)
{
    roots->records[root].refs++;
}

void cattn_roots_drop(struct cattn_roots *roots, uint32_t root)
{
    struct cattn_root *record = &roots->records[root];
    if (--record->refs)
        return;
    cattn_roots_retire(roots, root);
    cattn_free(record->name);
    *record = (struct cattn_root){.next = roots->free};
    roots->free = root;
}

void cattn_roots_retire(struct cattn_roots *roots, uint32_t root)
{
    if (roots->records[root].current)
        unlink_root(roots, root);
    roots->records[root].current = false;
}

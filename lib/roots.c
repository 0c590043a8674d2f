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

uint64_t cattn_roots_hash(const struct cattn_roots *roots, const void *name, size_t length)
{
    uint64_t hash = cattn_hash_mix(roots->seed, length);
    for (size_t i = 0; i < length; i++)
        hash = cattn_hash_mix(hash, ((const unsigned char *)name)[i]);
    return hash;
}

static uint32_t *bucket_of(const struct cattn_roots *roots, uint64_t hash)
{
    return &roots->buckets[hash & (roots->n - 1)];
}

uint32_t cattn_roots_find(const struct cattn_roots *roots, const void *name, size_t length)
{
    if (!roots->n)
        return CATTN_NONE;
    uint64_t hash = cattn_roots_hash(roots, name, length);
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

/* Twice as many records and buckets; all that are there are linked anew. */
static int grow(struct cattn_roots *roots)
{
    uint32_t n = roots->n ? 2 * roots->n : 8;
    if (n < roots->n)
        return CATTN_ENOMEM;
    uint32_t *buckets = cattn_malloc(n, sizeof(*buckets));
    struct cattn_root *records = cattn_realloc(roots->records, n, sizeof(*records));
    if (records)
        roots->records = records;
    if (!buckets || !records) {
        cattn_free(buckets);
        return CATTN_ENOMEM;
    }
    memset(buckets, 0xff, n * sizeof(*buckets));
    cattn_free(roots->buckets);
    roots->buckets = buckets;
    uint32_t old = roots->n;
    roots->n = n;
    for (uint32_t i = 0; i < old; i++) {
        if (records[i].current)
            link_root(roots, i);
    }
    for (uint32_t i = n; i-- > old;) {
        records[i] = (struct cattn_root){.next = roots->free};
        roots->free = i;
    }
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
                                  .hash = cattn_roots_hash(roots, name, length),
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

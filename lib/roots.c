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
        cattn_free(cattn_roots_at(roots, i)->name);
    for (uint32_t i = 0; i < roots->n; i += CATTN_ROOT_BLOCK)
        cattn_free(cattn_roots_at(roots, i));
    cattn_free(roots->blocks);
}

uint64_t cattn_roots_hash(const struct cattn_roots *roots, const void *name, size_t length)
{
    uint64_t hash = cattn_hash_mix(roots->seed, length);
    for (size_t i = 0; i < length; i++)
        hash = cattn_hash_mix(hash, ((const unsigned char *)name)[i]);
    return hash;
}

/* Linear hashing: with each record a bucket is added, which takes over its part of one other.  So a table of any size
 * grows without a pause. */
static uint32_t *bucket_of(const struct cattn_roots *roots, uint64_t hash)
{
    uint32_t i = (uint32_t)hash & roots->mask;
    return &cattn_roots_at(roots, i < roots->n ? i : i & roots->mask >> 1)->bucket;
}

uint32_t cattn_roots_find(const struct cattn_roots *roots, const void *name, size_t length)
{
    if (!roots->n)
        return CATTN_NONE;
    uint64_t hash = cattn_roots_hash(roots, name, length);
    uint32_t root = *bucket_of(roots, hash);
    for (; root != CATTN_NONE; root = cattn_roots_at(roots, root)->next) {
        const struct cattn_root *record = cattn_roots_at(roots, root);
        if (record->hash == hash && record->name_length == length && (!length || !memcmp(record->name, name, length)))
            break;
    }
    return root;
}

static void link_root(struct cattn_roots *roots, uint32_t root)
{
    uint32_t *bucket = bucket_of(roots, cattn_roots_at(roots, root)->hash);
    cattn_roots_at(roots, root)->next = *bucket;
    *bucket = root;
}

static void unlink_root(struct cattn_roots *roots, uint32_t root)
{
    uint32_t *link = bucket_of(roots, cattn_roots_at(roots, root)->hash);
    while (*link != root)
        link = &cattn_roots_at(roots, *link)->next;
    *link = cattn_roots_at(roots, root)->next;
}

static void add_bucket(struct cattn_roots *roots)
{
    uint32_t added = roots->n++;
    if (added > roots->mask)
        roots->mask = 2 * roots->mask + 1;
    if (!added)
        return;
    uint32_t *old = &cattn_roots_at(roots, added & roots->mask >> 1)->bucket, root = *old;
    *old = CATTN_NONE;
    while (root != CATTN_NONE) {
        uint32_t next = cattn_roots_at(roots, root)->next;
        link_root(roots, root);
        root = next;
    }
}

static int add_block(struct cattn_roots *roots)
{
    size_t n = roots->n / CATTN_ROOT_BLOCK;
    struct cattn_root **blocks = cattn_grow(roots->blocks, &roots->blocks_capacity, n + 1, sizeof(*blocks));
    if (!blocks)
        return CATTN_ENOMEM;
    roots->blocks = blocks;
    blocks[n] = cattn_malloc_aligned(CATTN_ROOT_BLOCK, sizeof(**blocks));
    return blocks[n] ? CATTN_OK : CATTN_ENOMEM;
}

/* One record more, which is free. */
static int grow(struct cattn_roots *roots)
{
    if (roots->n == CATTN_NONE || (roots->n % CATTN_ROOT_BLOCK == 0 && add_block(roots)))
        return CATTN_ENOMEM;
    roots->free = roots->n;
    *cattn_roots_at(roots, roots->n) = (struct cattn_root){.next = CATTN_NONE, .bucket = CATTN_NONE};
    add_bucket(roots);
    return CATTN_OK;
}

/* A record that no name leads to yet. */
static int add_record(struct cattn_roots *roots, const void *name, size_t length, uint32_t *root)
{
    unsigned char *copy = cattn_malloc(length, 1);
    if (!copy || (roots->free == CATTN_NONE && grow(roots))) {
        cattn_free(copy);
        return CATTN_ENOMEM;
    }
    if (length)
        memcpy(copy, name, length);
    *root = roots->free;
    struct cattn_root *record = cattn_roots_at(roots, *root);
    roots->free = record->next;
    *record = (struct cattn_root){.id = ++roots->last_id,
                                  .hash = cattn_roots_hash(roots, name, length),
                                  .name = copy,
                                  .name_length = length,
                                  .bucket = record->bucket,
                                  .reads = CATTN_NONE,
                                  .next_asked = CATTN_NONE,
                                  .leaves = CATTN_NONE,
                                  .shown = CATTN_NONE,
                                  .spare = CATTN_NONE};
    return CATTN_OK;
}

static void make_current(struct cattn_roots *roots, uint32_t root)
{
    link_root(roots, root);
    cattn_roots_at(roots, root)->current = true;
}

int cattn_roots_add(struct cattn_roots *roots, const void *name, size_t length, uint32_t *root)
{
    if (add_record(roots, name, length, root))
        return CATTN_ENOMEM;
    make_current(roots, *root);
    return CATTN_OK;
}

void cattn_roots_acquire(struct cattn_roots *roots, uint32_t root)
{
    cattn_roots_at(roots, root)->refs++;
}

static void free_root(struct cattn_roots *roots, uint32_t root)
{
    struct cattn_root *record = cattn_roots_at(roots, root);
    cattn_roots_retire(roots, root);
    cattn_free(record->name);
    *record = (struct cattn_root){.next = roots->free, .bucket = record->bucket};
    roots->free = root;
}

void cattn_roots_drop(struct cattn_roots *roots, uint32_t root)
{
    while (root != CATTN_NONE) {
        struct cattn_root *record = cattn_roots_at(roots, root);
        uint32_t reads = record->reads;
        record->refs--;
        if (!cattn_roots_is_idle(record))
            return;
        record->reads = CATTN_NONE;
        if (reads != CATTN_NONE)
            cattn_roots_at(roots, reads)->n_readers--;
        if (!record->refs)
            free_root(roots, root);
        root = reads;
    }
}

void cattn_roots_read(struct cattn_roots *roots, uint32_t root, uint32_t public)
{
    uint32_t before = cattn_roots_at(roots, root)->reads;
    cattn_roots_at(roots, root)->reads = public;
    if (public != CATTN_NONE) {
        cattn_roots_at(roots, public)->n_readers++;
        cattn_roots_acquire(roots, public);
    }
    if (before != CATTN_NONE) {
        cattn_roots_at(roots, before)->n_readers--;
        cattn_roots_drop(roots, before);
    }
}

void cattn_roots_retire(struct cattn_roots *roots, uint32_t root)
{
    if (cattn_roots_at(roots, root)->current)
        unlink_root(roots, root);
    cattn_roots_at(roots, root)->current = false;
}

int cattn_roots_prepare(struct cattn_roots *roots, uint32_t root)
{
    const struct cattn_root *record = cattn_roots_at(roots, root);
    uint32_t made;
    if (!record->has_settings || cattn_roots_is_idle(record) || record->spare != CATTN_NONE)
        return CATTN_OK;
    if (add_record(roots, record->name, record->name_length, &made))
        return CATTN_ENOMEM;
    cattn_roots_at(roots, root)->spare = made;
    return CATTN_OK;
}

void cattn_roots_unprepare(struct cattn_roots *roots, uint32_t root)
{
    struct cattn_root *record = cattn_roots_at(roots, root);
    if (record->spare != CATTN_NONE)
        free_root(roots, record->spare);
    record->spare = CATTN_NONE;
}

void cattn_roots_renew(struct cattn_roots *roots, uint32_t root)
{
    struct cattn_root *old = cattn_roots_at(roots, root);
    uint32_t made = old->spare;
    struct cattn_root *record = cattn_roots_at(roots, made);
    old->spare = CATTN_NONE;
    cattn_roots_retire(roots, root);
    make_current(roots, made);
    record->has_settings = true;
    record->reserve = old->reserve;
    record->limit = old->limit;
    cattn_roots_acquire(roots, made);
    old->has_settings = false;
    old->reserve = old->limit = 0;
    cattn_roots_drop(roots, root);
}

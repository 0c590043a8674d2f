#include "intern.h"

#include "chunkattention.h"
#include "memory.h"

#include <string.h>

void cattn_intern_release(struct cattn_intern *table)
{
    for (uint32_t i = 0; i < table->n; i++)
        cattn_free(table->records[i].bytes);
    cattn_free(table->records);
    cattn_free(table->buckets);
    *table = (struct cattn_intern){0};
}

static uint32_t *bucket_of(const struct cattn_intern *table, uint64_t hash)
{
    return &table->buckets[hash & (table->n_buckets - 1)];
}

static void link_record(struct cattn_intern *table, uint32_t number)
{
    struct cattn_interned *record = &table->records[number];
    uint32_t *bucket = bucket_of(table, record->hash);
    record->next = *bucket;
    *bucket = number + 1;
}

/* The number + 1, or 0. */
static uint32_t find(const struct cattn_intern *table, const void *bytes, size_t length, uint64_t hash)
{
    uint32_t i = table->n_buckets ? *bucket_of(table, hash) : 0;
    for (; i; i = table->records[i - 1].next) {
        const struct cattn_interned *record = &table->records[i - 1];
        if (record->hash == hash && record->length == length && !memcmp(record->bytes, bytes, length))
            break;
    }
    return i;
}

static int grow_buckets(struct cattn_intern *table)
{
    size_t n = table->n_buckets ? 2 * table->n_buckets : 16;
    uint32_t *buckets = cattn_calloc(n, sizeof(*buckets));
    if (!buckets)
        return CATTN_ENOMEM;
    cattn_free(table->buckets);
    table->buckets = buckets;
    table->n_buckets = n;
    for (uint32_t i = 0; i < table->n; i++) {
        if (table->records[i].bytes)
            link_record(table, i);
    }
    return CATTN_OK;
}

/* Makes sure that there is a free record, and a bucket for it. */
static int reserve_record(struct cattn_intern *table)
{
    if (table->n_used == table->n_buckets && grow_buckets(table))
        return CATTN_ENOMEM;
    if (table->free)
        return CATTN_OK;
    if (table->n == INT32_MAX)
        return CATTN_ENOMEM;
    struct cattn_interned *records =
        cattn_grow(table->records, &table->capacity, (size_t)table->n + 1, sizeof(*records));
    if (!records)
        return CATTN_ENOMEM;
    table->records = records;
    records[table->n] = (struct cattn_interned){0};
    table->free = ++table->n;
    return CATTN_OK;
}

int cattn_intern_add(struct cattn_intern *table, const void *bytes, size_t length, uint64_t hash, uint32_t *number,
                     bool *made)
{
    uint32_t found = find(table, bytes, length, hash);
    *made = !found;
    if (found) {
        *number = found - 1;
        table->records[*number].refs++;
        return CATTN_OK;
    }
    unsigned char *copy = cattn_malloc(length, 1);
    if (!copy || reserve_record(table)) {
        cattn_free(copy);
        return CATTN_ENOMEM;
    }
    memcpy(copy, bytes, length);
    *number = table->free - 1;
    table->free = table->records[*number].next;
    table->records[*number] = (struct cattn_interned){.bytes = copy, .length = length, .hash = hash, .refs = 1};
    table->n_used++;
    link_record(table, *number);
    return CATTN_OK;
}

void cattn_intern_drop(struct cattn_intern *table, uint32_t number, uint64_t n)
{
    struct cattn_interned *record = &table->records[number];
    record->refs -= n;
    if (record->refs)
        return;
    uint32_t *link = bucket_of(table, record->hash);
    while (*link != number + 1)
        link = &table->records[*link - 1].next;
    *link = record->next;
    cattn_free(record->bytes);
    *record = (struct cattn_interned){.next = table->free};
    table->free = number + 1;
    table->n_used--;
}

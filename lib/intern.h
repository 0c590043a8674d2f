/* Strings of bytes, each kept once under a number as long as somebody refers to it.  They are compared in full. */
#ifndef CATTN_INTERN_H
#define CATTN_INTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cattn_interned {
    unsigned char *bytes; /* NULL: the record is free */
    size_t length;
    uint64_t hash;
    uint64_t refs;
    uint64_t held; /* of these, those that no chunk, sequence or step has (of requests that are queued) */
    uint32_t next; /* in its bucket, or in the list of free records: + 1; 0: none */
};

struct cattn_intern {
    struct cattn_interned *records; /* by number */
    size_t capacity;
    uint32_t n;    /* numbers given at some time */
    uint32_t free; /* the first of those that are free, + 1; 0: none */
    uint32_t n_used;
    uint32_t *buckets; /* the first record of each, + 1; 0: none */
    size_t n_buckets;  /* a power of two, or 0 */
};

/* A table of zeros is an empty one. */
void cattn_intern_release(struct cattn_intern *table);

/* The number of these bytes, whose hash is given, with one reference more.  *made: nobody referred to them before.
 * CATTN_ENOMEM: nothing changed.  Numbers are below 2^31. */
int cattn_intern_add(struct cattn_intern *table, const void *bytes, size_t length, uint64_t hash, uint32_t *number,
                     bool *made);

/* Takes n references back; the last one frees the number. */
void cattn_intern_drop(struct cattn_intern *table, uint32_t number, uint64_t n);

#endif

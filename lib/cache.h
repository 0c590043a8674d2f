/* A cache: tree, sequences, work list and a backend's store. */
#ifndef CATTN_CACHE_H
#define CATTN_CACHE_H

#include "backend.h"
#include "lock.h"
#include "sequence.h"
#include "step.h"
#include "tree.h"
#include "work.h"

#include <stdatomic.h>

struct cattn_cache {
    struct cattn_shape shape;
    const struct cattn_backend *backend;
    struct cattn_store *store;
    struct cattn_mutex *mutex; /* NULL: one thread at a time uses the cache */
    uint64_t block_bytes;      /* of one chunk, layer and KV head */
    struct cattn_tree tree;
    struct cattn_sequences sequences;
    struct cattn_work work;
    struct cattn_step *steps;             /* all, in a list */
    struct cattn_step *_Atomic open_step; /* the one in progress, or NULL; layers look without the lock */
    struct cattn_step *last_step; /* the one whose work list that is, if its sequences still stand where it left them */
    uint64_t hits, misses;
    uint64_t opens[CATTN_N_WHY], unfound[CATTN_N_WHY]; /* by reason */
    _Atomic uint64_t read_bytes, read_bytes_unshared;  /* added to by whichever share of a layer comes last */
};

/* A cache of any shape whatever, the public limits not looked at (small chunks make small tests).  CATTN_ENOTSUP,
 * CATTN_ENOMEM. */
int cattn_cache_make(const struct cattn_shape *shape, const struct cattn_backend *backend, const char *kernel,
                     uint32_t flags, struct cattn_cache **cache);

/* Whether a caller's struct can be read: it begins with its size, which is that of the first version at least, and
 * what this library does not know of is zero.  _writable: what the library does not know is zeroed. */
bool cattn_struct_readable(const void *object, size_t known);
bool cattn_struct_writable(void *object, size_t known);

/* Copies a caller's struct into one of `known` bytes; one of the first version, `first` bytes long, leaves the rest
 * zero.  False: not readable. */
bool cattn_struct_read(void *to, size_t known, size_t first, const void *object);

#endif

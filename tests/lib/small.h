/* A cache of small chunks on the backend without floats, and its one step. */
#ifndef TESTS_SMALL_H
#define TESTS_SMALL_H

#include "cache.h"
#include "cells.h"

#include <check.h>

struct small {
    struct cattn_cache *cache;
    struct cattn_step *step;
};

struct small small_make(uint32_t n_slots, uint32_t chunk_tokens, uint32_t n_layers, uint32_t flags);
void small_free(struct small *small);

/* Tokens first, first + 1, ...; the next call overwrites them. */
const int32_t *small_tokens(int32_t first, size_t n);

/* Opens a sequence in the namespace "ns". */
cattn_seq small_open(struct small *small, const int32_t *tokens, size_t n, size_t *n_cached);

struct cattn_item small_item(cattn_seq seq, const int32_t *tokens, uint32_t n);

/* A step with one item: begin, then all layers and the end.  Returns the status of the begin. */
int small_append(struct small *small, cattn_seq seq, const int32_t *tokens, uint32_t n);

/* Writes all layers of the open step and ends it. */
void small_finish(struct small *small);

/* Opens a sequence and appends what is not cached. */
cattn_seq small_prefill(struct small *small, const int32_t *tokens, size_t n);

/* Buffers for any call of a step on this backend. */
struct cattn_io small_io(const struct small *small, bool kv);

void small_check(const struct small *small, uint32_t used, uint32_t evictable);

#endif

/* Prompts whose K and V are kept in a file, so that a run that is started again need not compute them. */
#ifndef LLAMA_PREFIXES_H
#define LLAMA_PREFIXES_H

#include "chunkattention.h"

#include "fault.h"
#include "requests.h"

#include <stdint.h>

/* Tokens that a file has at most, in chunks of any size, for a cache of this shape; 0: it cannot be looked at. */
uint64_t prefixes_room(const char *path, const struct cattn_config *config);

/* Caches what a file has, if it was saved under the same name of a model.  *n_tokens: how much that is. */
int prefixes_load(cattn_cache *cache, const char *path, const char *model, uint64_t *n_tokens, struct fault *fault);

/* Pins the whole chunks of all prompts that are still cached, each prompt once, and saves them with what was loaded. */
int prefixes_save(cattn_cache *cache, const char *path, const char *model, const struct requests *requests,
                  struct fault *fault);

#endif

#include "why.h"

#include "cache.h"

/* Tokens of a prompt that open may find: the last one is always computed. */
static size_t findable(size_t n_prompt)
{
    return n_prompt ? n_prompt - 1 : 0;
}

/* The first chunk that was not found is there to be looked at in full. */
static enum cattn_reason reason_below(const struct cattn_tree *tree, const struct cattn_sequence *sequence,
                                      const int32_t *tokens)
{
    uint32_t parent = sequence->n_chunks ? sequence->chunks[sequence->n_chunks - 1] : CATTN_NONE;
    if (cattn_tree_was_evicted(tree, parent, sequence->root, tokens + sequence->n_chunks * tree->chunk_tokens))
        return CATTN_WHY_EVICTED;
    bool goes_on = parent == CATTN_NONE || tree->slots[parent].children > 0;
    return goes_on ? CATTN_WHY_DIFFERS : CATTN_WHY_ENDS;
}

static enum cattn_reason reason_of(const struct cattn_cache *cache, const struct cattn_sequence *sequence,
                                   const void *ns, size_t ns_len, const int32_t *tokens, size_t n)
{
    const struct cattn_tree *tree = &cache->tree;
    if (sequence->n_tokens == findable(n))
        return CATTN_WHY_ALL;
    if (findable(n) - sequence->n_chunks * tree->chunk_tokens < tree->chunk_tokens)
        return CATTN_WHY_BELOW_CHUNK;
    if (sequence->root != CATTN_NONE && cattn_roots_at(&tree->roots, sequence->root)->n_chunks)
        return reason_below(tree, sequence, tokens);
    uint64_t name = cattn_roots_hash(&tree->roots, ns, ns_len);
    return cattn_ghosts_have(&tree->ghosts, name) ? CATTN_WHY_EVICTED : CATTN_WHY_EMPTY;
}

void cattn_why_note(const struct cattn_cache *cache, struct cattn_sequence *sequence, const void *ns, size_t ns_len,
                    const int32_t *tokens, size_t n)
{
    sequence->n_prompt = n;
    sequence->n_cached = sequence->n_tokens;
    sequence->reason = reason_of(cache, sequence, ns, ns_len, tokens, n);
}

void cattn_why_count(struct cattn_cache *cache, const struct cattn_sequence *sequence)
{
    cache->opens[sequence->reason]++;
    cache->unfound[sequence->reason] += findable(sequence->n_prompt) - sequence->n_cached;
}

static int get_why(const struct cattn_cache *cache, cattn_seq seq, struct cattn_why *why)
{
    const struct cattn_sequence *sequence = cattn_sequence_find(cache, seq);
    if (!sequence || !why || !cattn_struct_writable(why, sizeof(*why)))
        return CATTN_EINVAL;
    why->reason = sequence->reason;
    why->n_prompt = sequence->n_prompt;
    why->n_cached = sequence->n_cached;
    why->hits = sequence->hits;
    why->misses = sequence->misses;
    return CATTN_OK;
}

int cattn_seq_why(const cattn_cache *cache, cattn_seq seq, struct cattn_why *why)
{
    return CATTN_LOCKED(cache, get_why(cache, seq, why));
}

const char *cattn_strwhy(uint32_t reason)
{
    static const char *const texts[] = {[CATTN_WHY_ALL] = "all tokens but the last were cached",
                                        [CATTN_WHY_BELOW_CHUNK] =
                                            "all whole chunks were cached; what is left is less than a chunk",
                                        [CATTN_WHY_EMPTY] = "nothing was cached in the namespace",
                                        [CATTN_WHY_DIFFERS] = "what was cached goes on with other tokens",
                                        [CATTN_WHY_ENDS] = "what was cached ends there",
                                        [CATTN_WHY_EVICTED] = "what comes next was evicted"};
    return reason < CATTN_N_WHY ? texts[reason] : "unknown reason";
}

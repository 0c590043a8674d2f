#include "why.h"

#include "cache.h"
#include "readers.h"

/* Tokens of a prompt that open may find: the last one is always computed. */
static size_t findable(size_t n_prompt)
{
    return n_prompt ? n_prompt - 1 : 0;
}

static bool was_evicted(const struct cattn_tree *tree, struct cattn_view view, uint32_t parent, const int32_t *tokens)
{
    return (view.root != CATTN_NONE && cattn_tree_was_evicted(tree, parent, view.root, tokens)) ||
           (cattn_view_is_public(tree, view, parent) && cattn_tree_was_evicted(tree, parent, view.public, tokens));
}

static bool has_chunks(const struct cattn_tree *tree, uint32_t root)
{
    return root != CATTN_NONE && cattn_roots_at(&tree->roots, root)->n_chunks;
}

/* Whether anything is cached behind a chunk, as far as the namespace may know: what others that read a public one have
 * put there does not count.  Its own chunks behind public ones are counted together. */
static bool goes_on(const struct cattn_tree *tree, struct cattn_view view, uint32_t parent)
{
    const struct cattn_slot *x = &tree->slots[parent];
    return x->children > x->crossings ||
           (x->root != view.root && view.root != CATTN_NONE && cattn_roots_at(&tree->roots, view.root)->n_crossings);
}

/* The first chunk that was not found is there to be looked at in full. */
static enum cattn_reason reason_below(const struct cattn_tree *tree, struct cattn_view view,
                                      const struct cattn_sequence *sequence, const int32_t *tokens)
{
    uint32_t parent = sequence->n_chunks ? sequence->chunks[sequence->n_chunks - 1] : CATTN_NONE;
    if (was_evicted(tree, view, parent, tokens + sequence->n_chunks * tree->chunk_tokens))
        return CATTN_WHY_EVICTED;
    return parent == CATTN_NONE || goes_on(tree, view, parent) ? CATTN_WHY_DIFFERS : CATTN_WHY_ENDS;
}

static enum cattn_reason reason_of(const struct cattn_cache *cache, const struct cattn_sequence *sequence,
                                   struct cattn_view view, const void *ns, size_t ns_len, const int32_t *tokens,
                                   size_t n)
{
    const struct cattn_tree *tree = &cache->tree;
    if (sequence->n_tokens == findable(n))
        return CATTN_WHY_ALL;
    if (findable(n) - sequence->n_chunks * tree->chunk_tokens < tree->chunk_tokens)
        return CATTN_WHY_BELOW_CHUNK;
    if (!has_chunks(tree, view.root) && cattn_ghosts_have(&tree->ghosts, cattn_roots_hash(&tree->roots, ns, ns_len)))
        return CATTN_WHY_EVICTED;
    if (has_chunks(tree, view.root) || has_chunks(tree, view.public))
        return reason_below(tree, view, sequence, tokens);
    const struct cattn_root *public = cattn_readers_public(tree, ns, ns_len);
    return public && cattn_ghosts_have(&tree->ghosts, public->hash) ? CATTN_WHY_EVICTED : CATTN_WHY_EMPTY;
}

void cattn_why_note(const struct cattn_cache *cache, struct cattn_sequence *sequence, struct cattn_view view,
                    const void *ns, size_t ns_len, const int32_t *tokens, size_t n)
{
    sequence->n_prompt = n;
    sequence->n_cached = sequence->n_tokens;
    sequence->reason = reason_of(cache, sequence, view, ns, ns_len, tokens, n);
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

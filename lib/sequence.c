#include "sequence.h"

#include "cache.h"
#include "memory.h"
#include "readers.h"
#include "view.h"
#include "why.h"

#include <string.h>

/* ---- the table */

void cattn_sequences_init(struct cattn_sequences *sequences, uint64_t seed)
{
    *sequences = (struct cattn_sequences){.free = CATTN_NONE, .seed = seed};
}

static void free_memory(struct cattn_sequence *sequence)
{
    cattn_free(sequence->chunks);
    cattn_free(sequence->tokens);
    cattn_free(sequence);
}

void cattn_sequences_release(struct cattn_sequences *sequences)
{
    for (uint32_t i = 0; i < sequences->n; i++) {
        if (sequences->handles[i].sequence)
            free_memory(sequences->handles[i].sequence);
    }
    cattn_free(sequences->handles);
}

struct cattn_sequence *cattn_sequence_find(const struct cattn_cache *cache, cattn_seq handle)
{
    uint32_t i = cattn_handle_place(handle);
    if (!cache || i >= cache->sequences.n)
        return NULL;
    struct cattn_sequence *sequence = cache->sequences.handles[i].sequence;
    return sequence && sequence->handle == handle && !sequence->closed ? sequence : NULL;
}

/* Makes sure that there is a free place. */
static int reserve_handle(struct cattn_sequences *sequences)
{
    if (sequences->free != CATTN_NONE)
        return CATTN_OK;
    if (sequences->n == CATTN_PLACES)
        return CATTN_ENOMEM;
    struct cattn_handle *handles =
        cattn_grow(sequences->handles, &sequences->capacity, (size_t)sequences->n + 1, sizeof(*handles));
    if (!handles)
        return CATTN_ENOMEM;
    sequences->handles = handles;
    uint32_t i = sequences->free = sequences->n++;
    handles[i] = (struct cattn_handle){.handle = cattn_handle_first(sequences->seed, i), .next = CATTN_NONE};
    return CATTN_OK;
}

static void give_handle(struct cattn_sequences *sequences, struct cattn_sequence *sequence)
{
    struct cattn_handle *place = &sequences->handles[sequences->free];
    sequences->free = place->next;
    place->sequence = sequence;
    sequence->handle = place->handle;
}

/* A place whose handles are used up is never taken again. */
static void take_handle_back(struct cattn_sequences *sequences, const struct cattn_sequence *sequence)
{
    uint32_t i = cattn_handle_place(sequence->handle);
    struct cattn_handle *place = &sequences->handles[i];
    place->sequence = NULL;
    place->handle = cattn_handle_next(sequences->seed, place->handle);
    if (place->handle) {
        place->next = sequences->free;
        sequences->free = i;
    }
}

/* ---- one sequence */

static struct cattn_sequence *new_sequence(void)
{
    struct cattn_sequence *sequence = cattn_calloc(1, sizeof(*sequence));
    if (sequence) {
        sequence->root = CATTN_NONE;
        sequence->tail = CATTN_NONE;
    }
    return sequence;
}

int cattn_sequence_reserve(struct cattn_sequence *sequence, size_t n_chunks, size_t n_tokens)
{
    uint32_t *chunks = cattn_grow(sequence->chunks, &sequence->chunks_capacity, n_chunks + 1, sizeof(*chunks));
    if (!chunks)
        return CATTN_ENOMEM;
    sequence->chunks = chunks;
    int32_t *tokens = cattn_grow(sequence->tokens, &sequence->tokens_capacity, n_tokens, sizeof(*tokens));
    if (!tokens)
        return CATTN_ENOMEM;
    sequence->tokens = tokens;
    return CATTN_OK;
}

/* Gives a sequence its handle and takes the references on all that it holds.  Cannot fail. */
static void add_sequence(struct cattn_cache *cache, struct cattn_sequence *sequence)
{
    give_handle(&cache->sequences, sequence);
    cattn_roots_acquire(&cache->tree.roots, sequence->root);
    for (size_t i = 0; i < sequence->n_chunks; i++)
        cattn_tree_acquire(&cache->tree, sequence->chunks[i]);
    if (sequence->tail != CATTN_NONE)
        cattn_tree_acquire(&cache->tree, sequence->tail);
    if (cattn_extras_any(&cache->tree.extras))
        sequence->n_extras = cattn_extras_acquire(&cache->tree.extras, sequence->tokens, sequence->n_tokens);
}

/* Of the n tokens from `first` on. */
static void drop_extras(struct cattn_cache *cache, struct cattn_sequence *sequence, size_t first, size_t n)
{
    if (sequence->n_extras)
        sequence->n_extras -= cattn_extras_drop(&cache->tree.extras, sequence->tokens + first, n);
}

int cattn_sequence_add_pending(struct cattn_cache *cache, struct cattn_sequence *sequence, const int32_t *tokens,
                               size_t n, const struct cattn_ext *ext)
{
    if (cattn_extras_translate(&cache->tree.extras, ext, tokens, n, sequence->tokens + sequence->n_tokens))
        return CATTN_ENOMEM;
    sequence->n_pending = n;
    for (size_t i = 0; ext && i < ext->n_extras; i++)
        sequence->n_extras += (size_t)ext->extras[i].n;
    return CATTN_OK;
}

void cattn_sequence_drop_pending(struct cattn_cache *cache, struct cattn_sequence *sequence)
{
    drop_extras(cache, sequence, sequence->n_tokens, sequence->n_pending);
    sequence->n_pending = 0;
}

static void drop_tail(struct cattn_cache *cache, struct cattn_sequence *sequence)
{
    uint32_t slot = sequence->tail;
    if (slot == CATTN_NONE)
        return;
    if (sequence->owns)
        cache->tree.slots[slot].writer = 0;
    sequence->tail = CATTN_NONE;
    sequence->t = 0;
    sequence->owns = false;
    cattn_tree_unref(&cache->tree, slot);
}

/* Leaf first, so that in the recency list a parent lies behind its children. */
static void drop_chunks(struct cattn_cache *cache, struct cattn_sequence *sequence, size_t n_kept)
{
    while (sequence->n_chunks > n_kept)
        cattn_tree_unref(&cache->tree, sequence->chunks[--sequence->n_chunks]);
}

void cattn_sequence_remove(struct cattn_cache *cache, struct cattn_sequence *sequence)
{
    drop_tail(cache, sequence);
    drop_chunks(cache, sequence, 0);
    cattn_roots_drop(&cache->tree.roots, sequence->root);
    drop_extras(cache, sequence, 0, sequence->n_tokens);
    take_handle_back(&cache->sequences, sequence);
    free_memory(sequence);
}

/* ---- open and fork */

/* Whole published chunks, then a borrow of the longest partial one.  References come later. */
static int match(const struct cattn_tree *tree, struct cattn_view view, struct cattn_sequence *sequence,
                 const int32_t *tokens, size_t n)
{
    size_t c = tree->chunk_tokens;
    if (cattn_sequence_reserve(sequence, n / c, 0))
        return CATTN_ENOMEM;
    sequence->n_chunks = cattn_view_match(tree, view, tokens, n, sequence->chunks);
    size_t done = sequence->n_chunks * c;
    uint32_t parent = sequence->n_chunks ? sequence->chunks[sequence->n_chunks - 1] : CATTN_NONE;
    uint32_t rest = n - done < c ? (uint32_t)(n - done) : (uint32_t)c;
    sequence->tail = cattn_view_partial(tree, view, parent, tokens + done, rest, &sequence->t);
    sequence->n_tokens = done + sequence->t;
    sequence->uncounted = sequence->n_tokens;
    return CATTN_OK;
}

static int copy_tokens(struct cattn_sequence *sequence, const int32_t *tokens)
{
    if (cattn_sequence_reserve(sequence, sequence->n_chunks, sequence->n_tokens))
        return CATTN_ENOMEM;
    if (sequence->n_tokens)
        memcpy(sequence->tokens, tokens, sequence->n_tokens * sizeof(*tokens));
    return CATTN_OK;
}

/* With tokens whose extras are numbers, which have references of their own. */
static int open_translated(struct cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens, size_t n,
                           cattn_seq *seq, size_t *n_cached)
{
    struct cattn_view view = cattn_view_named(&cache->tree, ns, ns_len);
    struct cattn_sequence *sequence = new_sequence();
    if (!sequence || reserve_handle(&cache->sequences))
        goto no_memory;
    sequence->root = view.root;
    if (n && (view.root != CATTN_NONE || view.public != CATTN_NONE) &&
        match(&cache->tree, view, sequence, tokens, n - 1))
        goto no_memory;
    if (copy_tokens(sequence, tokens))
        goto no_memory;
    cattn_why_note(cache, sequence, view, ns, ns_len, tokens, n);
    if (sequence->root == CATTN_NONE && cattn_readers_enter(&cache->tree, ns, ns_len, &sequence->root))
        goto no_memory;
    add_sequence(cache, sequence);
    cattn_why_count(cache, sequence);
    *seq = sequence->handle;
    if (n_cached)
        *n_cached = sequence->n_tokens;
    return CATTN_OK;
no_memory:
    if (sequence)
        free_memory(sequence);
    return CATTN_ENOMEM;
}

static int open_sequence(struct cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens, size_t n,
                         const struct cattn_ext *ext, cattn_seq *seq, size_t *n_cached)
{
    int32_t *translated;
    if (!cache || !seq || (!ns && ns_len) || !cattn_prompt_is_good(tokens, n, ext))
        return CATTN_EINVAL;
    if (cattn_store_status(cache->backend, cache->store))
        return CATTN_EDEVICE;
    if (cattn_prompt_enter(&cache->tree.extras, tokens, n, ext, &translated))
        return CATTN_ENOMEM;
    int status = open_translated(cache, ns, ns_len, translated ? translated : tokens, n, seq, n_cached);
    cattn_prompt_leave(&cache->tree.extras, translated, n);
    return status;
}

int cattn_seq_open(cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens, size_t n, cattn_seq *seq,
                   size_t *n_cached)
{
    return CATTN_LOCKED(cache, open_sequence(cache, ns, ns_len, tokens, n, NULL, seq, n_cached));
}

int cattn_seq_open_ext(cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens, size_t n,
                       const struct cattn_ext *ext, cattn_seq *seq, size_t *n_cached)
{
    return CATTN_LOCKED(cache, open_sequence(cache, ns, ns_len, tokens, n, ext, seq, n_cached));
}

static int fork_sequence(struct cattn_cache *cache, cattn_seq seq, cattn_seq *forked)
{
    struct cattn_sequence *old = cattn_sequence_find(cache, seq);
    if (!old || !forked)
        return CATTN_EINVAL;
    if (cattn_store_status(cache->backend, cache->store))
        return CATTN_EDEVICE;
    if (old->in_step)
        return CATTN_EBUSY;
    struct cattn_sequence *fork = new_sequence();
    if (!fork || reserve_handle(&cache->sequences) || cattn_sequence_reserve(fork, old->n_chunks, 0))
        goto no_memory;
    fork->root = old->root;
    fork->tail = old->tail;
    fork->t = old->t;
    fork->n_chunks = old->n_chunks;
    fork->n_tokens = old->n_tokens;
    fork->n_prompt = old->n_prompt;
    fork->n_cached = old->n_cached;
    fork->reason = old->reason;
    memcpy(fork->chunks, old->chunks, old->n_chunks * sizeof(*old->chunks));
    if (copy_tokens(fork, old->tokens))
        goto no_memory;
    add_sequence(cache, fork);
    *forked = fork->handle;
    return CATTN_OK;
no_memory:
    if (fork)
        free_memory(fork);
    return CATTN_ENOMEM;
}

int cattn_seq_fork(cattn_cache *cache, cattn_seq seq, cattn_seq *forked)
{
    return CATTN_LOCKED(cache, fork_sequence(cache, seq, forked));
}

/* ---- truncate and close */

/* An own tail that others borrow becomes a borrow itself: what they borrow stays as it is. */
static void truncate_tail(struct cattn_tree *tree, struct cattn_sequence *sequence, uint32_t t)
{
    struct cattn_slot *x = &tree->slots[sequence->tail];
    if (sequence->owns && x->refs > 1) {
        sequence->owns = false;
        x->writer = 0;
    }
    if (sequence->owns)
        cattn_tree_set_fill(tree, sequence->tail, t);
    sequence->t = t;
}

/* The last chunk becomes an own tail again if nobody else knows it, and its namespace is not one that this one only
 * reads; else a borrow.  The reference is the path's. */
static void truncate_chunk(struct cattn_tree *tree, struct cattn_sequence *sequence, uint32_t t)
{
    uint32_t slot = sequence->chunks[--sequence->n_chunks];
    struct cattn_slot *x = &tree->slots[slot];
    sequence->tail = slot;
    sequence->t = t;
    sequence->owns = x->refs == 1 && !x->children && x->root == sequence->root;
    if (sequence->owns) {
        cattn_tree_unpublish(tree, slot);
        cattn_tree_set_fill(tree, slot, t);
        x->writer = sequence->handle;
    }
}

static int truncate_sequence(struct cattn_cache *cache, cattn_seq seq, size_t n)
{
    struct cattn_sequence *sequence = cattn_sequence_find(cache, seq);
    if (!sequence)
        return CATTN_EINVAL;
    if (sequence->in_step)
        return CATTN_EBUSY;
    if (n > sequence->n_tokens)
        return CATTN_EINVAL;
    if (n == sequence->n_tokens)
        return CATTN_OK;
    size_t c = cache->tree.chunk_tokens;
    uint32_t t = (uint32_t)(n % c);
    if (n > sequence->n_chunks * c) {
        truncate_tail(&cache->tree, sequence, t);
    } else {
        drop_tail(cache, sequence);
        drop_chunks(cache, sequence, n / c + (t > 0));
        if (t)
            truncate_chunk(&cache->tree, sequence, t);
        sequence->n_cuts++;
    }
    drop_extras(cache, sequence, n, sequence->n_tokens - n);
    sequence->n_tokens = n;
    if (sequence->uncounted > n)
        sequence->uncounted = n;
    return CATTN_OK;
}

int cattn_seq_truncate(cattn_cache *cache, cattn_seq seq, size_t n)
{
    return CATTN_LOCKED(cache, truncate_sequence(cache, seq, n));
}

static int close_sequence(struct cattn_cache *cache, cattn_seq seq)
{
    struct cattn_sequence *sequence = cattn_sequence_find(cache, seq);
    if (!sequence)
        return CATTN_EINVAL;
    if (sequence->in_step)
        sequence->closed = true;
    else
        cattn_sequence_remove(cache, sequence);
    return CATTN_OK;
}

int cattn_seq_close(cattn_cache *cache, cattn_seq seq)
{
    return CATTN_LOCKED(cache, close_sequence(cache, seq));
}

/* ---- what it holds */

static int get_length(const struct cattn_cache *cache, cattn_seq seq, size_t *length)
{
    const struct cattn_sequence *sequence = cattn_sequence_find(cache, seq);
    if (!sequence || !length)
        return CATTN_EINVAL;
    *length = sequence->n_tokens;
    return CATTN_OK;
}

int cattn_seq_length(const cattn_cache *cache, cattn_seq seq, size_t *length)
{
    return CATTN_LOCKED(cache, get_length(cache, seq, length));
}

static int get_tokens(const struct cattn_cache *cache, cattn_seq seq, int32_t *tokens, size_t capacity, size_t *length)
{
    const struct cattn_sequence *sequence = cattn_sequence_find(cache, seq);
    if (!sequence || (!tokens && capacity))
        return CATTN_EINVAL;
    size_t n = sequence->n_tokens < capacity ? sequence->n_tokens : capacity;
    if (n)
        memcpy(tokens, sequence->tokens, n * sizeof(*tokens));
    for (size_t i = 0; sequence->n_extras && i < n; i++)
        tokens[i] = cattn_extras_token(&cache->tree.extras, tokens[i]);
    if (length)
        *length = sequence->n_tokens;
    return CATTN_OK;
}

int cattn_seq_tokens(const cattn_cache *cache, cattn_seq seq, int32_t *tokens, size_t capacity, size_t *length)
{
    return CATTN_LOCKED(cache, get_tokens(cache, seq, tokens, capacity, length));
}

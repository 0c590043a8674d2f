#include "tree.h"

#include "chunkattention.h"
#include "hash.h"
#include "memory.h"

#include <string.h>

#define PARTIAL_CANDIDATES 8
#define AHEAD              8 /* chunks that are hashed before the first of them is looked at */

#ifdef __GNUC__
#  define FETCH(address) __builtin_prefetch(address)
#else
#  define FETCH(address) ((void)(address))
#endif

static uint32_t *make_keys(uint64_t seed, uint32_t chunk_tokens)
{
    uint32_t n = chunk_tokens + chunk_tokens % 2; /* tokens go in pairs */
    uint32_t *keys = cattn_malloc(n, sizeof(*keys));
    for (uint32_t i = 0; keys && i < n; i++) {
        seed = cattn_hash_mix(seed, i);
        keys[i] = (uint32_t)(seed >> 16);
    }
    return keys;
}

int cattn_tree_init(struct cattn_tree *tree, uint32_t n_slots, uint32_t chunk_tokens, bool retain, uint64_t seed)
{
    uint64_t entries = 2;
    while (entries < 2 * (uint64_t)n_slots)
        entries *= 2;
    *tree = (struct cattn_tree){.n_slots = n_slots,
                                .chunk_tokens = chunk_tokens,
                                .retain = retain,
                                .free = CATTN_NONE,
                                .n_free = n_slots,
                                .oldest = CATTN_NONE,
                                .newest = CATTN_NONE,
                                .seed = seed,
                                .extras = {.seed = seed}};
    cattn_roots_init(&tree->roots, seed);
    cattn_order_init(&tree->order);
    cattn_roots_init(&tree->settings, seed);
    tree->index.mask = tree->firsts.mask = (uint32_t)(entries - 1);
    /* calloc leaves big arrays untouched until they are used */
    tree->slots = cattn_calloc(n_slots, sizeof(*tree->slots));
    tree->tokens = cattn_calloc(n_slots, chunk_tokens * sizeof(*tree->tokens));
    tree->index.entries = cattn_calloc(entries, sizeof(struct cattn_entry));
    tree->firsts.entries = cattn_calloc(entries, sizeof(struct cattn_entry));
    tree->keys = make_keys(seed, chunk_tokens);
    if (tree->slots && tree->tokens && tree->index.entries && tree->firsts.entries && tree->keys &&
        !cattn_ghosts_init(&tree->ghosts, n_slots))
        return CATTN_OK;
    cattn_tree_release(tree);
    return CATTN_ENOMEM;
}

void cattn_tree_release(struct cattn_tree *tree)
{
    cattn_roots_release(&tree->roots);
    cattn_order_release(&tree->order);
    cattn_roots_release(&tree->settings);
    cattn_ghosts_release(&tree->ghosts);
    cattn_extras_release(&tree->extras);
    cattn_events_close(&tree->events);
    cattn_free(tree->slots);
    cattn_free(tree->tokens);
    cattn_free(tree->index.entries);
    cattn_free(tree->firsts.entries);
    cattn_free(tree->keys);
    *tree = (struct cattn_tree){0};
}

/* ---- hashes and tables */

uint64_t cattn_tree_cross(const struct cattn_tree *tree, uint64_t hash, uint32_t root)
{
    return cattn_hash_mix(hash, cattn_roots_at(&tree->roots, root)->id);
}

uint64_t cattn_tree_above(const struct cattn_tree *tree, uint32_t parent, uint32_t root)
{
    if (parent == CATTN_NONE)
        return cattn_tree_cross(tree, tree->seed, root);
    const struct cattn_slot *above = &tree->slots[parent];
    return above->root == root ? above->hash : cattn_tree_cross(tree, above->hash, root);
}

/* A token's number means nothing once it is not in use any more, but hashes are remembered for longer. */
static uint32_t stable(const struct cattn_tree *tree, int32_t token)
{
    return token < 0 ? cattn_extras_hash(&tree->extras, token) : (uint32_t)token;
}

static uint64_t sum_extras(const struct cattn_tree *tree, const int32_t *tokens)
{
    const uint32_t *keys = tree->keys, n = tree->chunk_tokens;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i += 2) {
        uint32_t second = i + 1 < n ? stable(tree, tokens[i + 1]) + keys[i + 1] : keys[i + 1];
        sum += (uint64_t)(stable(tree, tokens[i]) + keys[i]) * second;
    }
    return sum;
}

/* Sums of products of two tokens with secret keys added: of all keys, at most one in 2^32 gives two chunks the same
 * sum, and no product waits for another. */
uint64_t cattn_tree_hash(const struct cattn_tree *tree, uint64_t above, const int32_t *tokens)
{
    const uint32_t *keys = tree->keys, n = tree->chunk_tokens;
    uint64_t sum = 0;
    if (tree->constant_hash)
        return 0;
    if (cattn_extras_any(&tree->extras) && cattn_tokens_negative(tokens, n))
        return cattn_hash_mix(above, sum_extras(tree, tokens));
    for (uint32_t i = 0; i + 1 < n; i += 2)
        sum += (uint64_t)((uint32_t)tokens[i] + keys[i]) * ((uint32_t)tokens[i + 1] + keys[i + 1]);
    if (n % 2)
        sum += (uint64_t)((uint32_t)tokens[n - 1] + keys[n - 1]) * keys[n];
    return cattn_hash_mix(above, sum);
}

static uint32_t first_tag(const struct cattn_tree *tree, uint64_t above, int32_t token)
{
    return tree->constant_hash ? 0 : (uint32_t)cattn_hash_mix(above, (uint32_t)token);
}

static void insert_entry(struct cattn_table *table, uint32_t slot, uint32_t tag)
{
    uint32_t i = tag & table->mask;
    while (table->entries[i].slot)
        i = (i + 1) & table->mask;
    table->entries[i] = (struct cattn_entry){slot + 1, tag};
}

static struct cattn_entry *entry_of(const struct cattn_table *table, uint32_t slot, uint32_t tag)
{
    uint32_t i = tag & table->mask;
    while (table->entries[i].slot != slot + 1)
        i = (i + 1) & table->mask;
    return &table->entries[i];
}

/* Closes the gap that an entry leaves: later ones move up unless that would put them before their home. */
static void remove_entry(struct cattn_table *table, uint32_t slot, uint32_t tag)
{
    uint32_t gap = (uint32_t)(entry_of(table, slot, tag) - table->entries);
    for (uint32_t i = (gap + 1) & table->mask; table->entries[i].slot; i = (i + 1) & table->mask) {
        uint32_t home = table->entries[i].tag & table->mask;
        if (((i - home) & table->mask) >= ((i - gap) & table->mask)) {
            table->entries[gap] = table->entries[i];
            gap = i;
        }
    }
    table->entries[gap].slot = 0;
}

static bool is_child(const struct cattn_tree *tree, uint32_t slot, uint32_t parent, uint32_t root)
{
    return tree->slots[slot].parent == parent && tree->slots[slot].root == root;
}

uint32_t cattn_tree_find(const struct cattn_tree *tree, uint32_t parent, uint32_t root, const int32_t *tokens,
                         uint64_t hash)
{
    const struct cattn_table *table = &tree->index;
    for (uint32_t i = (uint32_t)hash & table->mask; table->entries[i].slot; i = (i + 1) & table->mask) {
        uint32_t slot = table->entries[i].slot - 1;
        if (table->entries[i].tag == (uint32_t)hash && is_child(tree, slot, parent, root) &&
            !memcmp(cattn_tree_tokens(tree, slot), tokens, tree->chunk_tokens * sizeof(*tokens)))
            return slot;
    }
    return CATTN_NONE;
}

void cattn_tree_fetch(const struct cattn_tree *tree, uint64_t hash)
{
    FETCH(&tree->index.entries[(uint32_t)hash & tree->index.mask]);
}

/* Starts to fetch what find() compares. */
static void fetch_chunk(const struct cattn_tree *tree, uint64_t hash)
{
    const struct cattn_table *table = &tree->index;
    uint32_t i = (uint32_t)hash & table->mask;
    while (table->entries[i].slot && table->entries[i].tag != (uint32_t)hash)
        i = (i + 1) & table->mask;
    if (!table->entries[i].slot)
        return;
    uint32_t slot = table->entries[i].slot - 1;
    const char *tokens = (const char *)cattn_tree_tokens(tree, slot);
    FETCH(&tree->slots[slot]);
    FETCH(&tree->slots[slot].newer);
    for (size_t at = 0; at < tree->chunk_tokens * sizeof(int32_t); at += CATTN_ALIGNMENT)
        FETCH(tokens + at);
}

size_t cattn_tree_follow(const struct cattn_tree *tree, uint32_t parent, uint32_t root, const int32_t *tokens, size_t n,
                         uint32_t *path)
{
    uint64_t hashes[AHEAD], above = cattn_tree_above(tree, parent, root);
    uint32_t c = tree->chunk_tokens;
    size_t n_hashed = 0, n_fetched = 0, n_found = 0;
    for (; n_found < n; n_found++) {
        size_t ahead = n_found ? n_found + AHEAD : 1; /* most prompts that are not found fail at once */
        for (; n_hashed < n && n_hashed < ahead; n_hashed++) {
            above = hashes[n_hashed % AHEAD] = cattn_tree_hash(tree, above, tokens + n_hashed * c);
            cattn_tree_fetch(tree, above);
        }
        for (; n_fetched < n_hashed && n_fetched <= n_found + AHEAD / 2; n_fetched++)
            fetch_chunk(tree, hashes[n_fetched % AHEAD]);
        parent = cattn_tree_find(tree, parent, root, tokens + n_found * c, hashes[n_found % AHEAD]);
        if (parent == CATTN_NONE)
            break;
        path[n_found] = parent;
    }
    return n_found;
}

size_t cattn_tree_match(const struct cattn_tree *tree, uint32_t root, const int32_t *tokens, size_t n, uint32_t *path)
{
    return cattn_tree_follow(tree, CATTN_NONE, root, tokens, n, path);
}

uint32_t cattn_tree_find_first(const struct cattn_tree *tree, uint32_t parent, uint32_t root, int32_t token)
{
    const struct cattn_table *table = &tree->firsts;
    uint32_t tag = first_tag(tree, cattn_tree_above(tree, parent, root), token);
    for (uint32_t i = tag & table->mask; table->entries[i].slot; i = (i + 1) & table->mask) {
        uint32_t slot = table->entries[i].slot - 1;
        if (table->entries[i].tag == tag && is_child(tree, slot, parent, root) &&
            *cattn_tree_tokens(tree, slot) == token)
            return slot;
    }
    return CATTN_NONE;
}

static uint32_t common_prefix(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

uint32_t cattn_tree_find_partial(const struct cattn_tree *tree, uint32_t parent, uint32_t root, const int32_t *tokens,
                                 uint32_t n, uint32_t *length)
{
    uint32_t best = CATTN_NONE;
    *length = 0;
    if (!n)
        return best;
    uint32_t slot = cattn_tree_find_first(tree, parent, root, tokens[0]);
    for (int i = 0; i < PARTIAL_CANDIDATES && slot != CATTN_NONE; i++, slot = tree->slots[slot].older) {
        uint32_t common = common_prefix(cattn_tree_tokens(tree, slot), tokens, n);
        if (common > *length) {
            best = slot;
            *length = common;
        }
    }
    return best;
}

/* ---- publication */

/* One child more or less of its parent, for a chunk that is published now or ceases to be. */
static void count_child(struct cattn_tree *tree, const struct cattn_slot *x, int more)
{
    struct cattn_root *root = cattn_roots_at(&tree->roots, x->root);
    root->n_chunks += (uint32_t)more;
    if (x->parent == CATTN_NONE)
        return;
    struct cattn_slot *parent = &tree->slots[x->parent];
    parent->children += (uint32_t)more;
    if (parent->root != x->root) {
        parent->crossings += (uint32_t)more;
        root->n_crossings += (uint32_t)more;
    }
}

void cattn_tree_publish(struct cattn_tree *tree, uint32_t slot, uint64_t hash)
{
    struct cattn_slot *x = &tree->slots[slot];
    int32_t first = *cattn_tree_tokens(tree, slot);
    uint32_t before = cattn_tree_find_first(tree, x->parent, x->root, first);
    tree->revision++;
    x->published = true;
    x->writer = 0;
    x->hash = hash;
    x->first_tag = first_tag(tree, cattn_tree_above(tree, x->parent, x->root), first);
    x->newer = CATTN_NONE;
    x->older = before;
    insert_entry(&tree->index, slot, (uint32_t)hash);
    if (before != CATTN_NONE) {
        entry_of(&tree->firsts, before, x->first_tag)->slot = slot + 1;
        tree->slots[before].newer = slot;
    } else {
        insert_entry(&tree->firsts, slot, x->first_tag);
    }
    count_child(tree, x, 1);
    if (tree->order.ranks)
        cattn_order_published(tree, slot);
    if (tree->events.call)
        cattn_events_published(tree, slot);
}

void cattn_tree_unpublish(struct cattn_tree *tree, uint32_t slot)
{
    struct cattn_slot *x = &tree->slots[slot];
    if (tree->events.call)
        cattn_events_removed(tree, slot);
    remove_entry(&tree->index, slot, (uint32_t)x->hash);
    if (x->newer != CATTN_NONE)
        tree->slots[x->newer].older = x->older;
    else if (x->older != CATTN_NONE)
        entry_of(&tree->firsts, slot, x->first_tag)->slot = x->older + 1;
    else
        remove_entry(&tree->firsts, slot, x->first_tag);
    if (x->older != CATTN_NONE)
        tree->slots[x->older].newer = x->newer;
    count_child(tree, x, -1);
    x->published = false;
    tree->revision++;
    if (tree->order.ranks)
        cattn_order_unpublished(tree, slot);
}

/* ---- slots, lists, references */

static void push_newest(struct cattn_tree *tree, uint32_t slot)
{
    struct cattn_slot *x = &tree->slots[slot];
    x->prev = tree->newest;
    x->next = CATTN_NONE;
    if (tree->newest != CATTN_NONE)
        tree->slots[tree->newest].next = slot;
    else
        tree->oldest = slot;
    tree->newest = slot;
    tree->n_evictable++;
    cattn_roots_at(&tree->roots, x->root)->n_evictable++;
    if (tree->order.ranks)
        cattn_order_unreferenced(tree, slot);
}

static void unlink_slot(struct cattn_tree *tree, uint32_t slot)
{
    struct cattn_slot *x = &tree->slots[slot];
    if (x->prev != CATTN_NONE)
        tree->slots[x->prev].next = x->next;
    else
        tree->oldest = x->next;
    if (x->next != CATTN_NONE)
        tree->slots[x->next].prev = x->prev;
    else
        tree->newest = x->prev;
    tree->n_evictable--;
    cattn_roots_at(&tree->roots, x->root)->n_evictable--;
    if (tree->order.ranks)
        cattn_order_referenced(tree, slot);
}

static void note_peak(struct cattn_tree *tree)
{
    if (cattn_tree_used(tree) > tree->peak_used)
        tree->peak_used = cattn_tree_used(tree);
}

uint32_t cattn_tree_take(struct cattn_tree *tree, uint32_t parent, uint32_t root, uint64_t writer)
{
    uint32_t slot = tree->free;
    if (slot != CATTN_NONE)
        tree->free = tree->slots[slot].next;
    else
        slot = tree->n_touched++;
    tree->n_free--;
    tree->slots[slot] = (struct cattn_slot){.refs = 1, .writer = writer, .root = root, .parent = parent};
    cattn_roots_acquire(&tree->roots, root);
    struct cattn_root *record = cattn_roots_at(&tree->roots, root);
    record->n_slots++;
    record->coming -= record->coming > 0;
    if (tree->order.ranks)
        cattn_order_refresh(tree, root);
    note_peak(tree);
    return slot;
}

static void free_slot(struct cattn_tree *tree, uint32_t slot)
{
    struct cattn_slot *x = &tree->slots[slot];
    uint32_t root = x->root;
    if (x->published)
        cattn_tree_unpublish(tree, slot);
    cattn_tree_set_fill(tree, slot, 0);
    if (tree->clear) {
        memset(cattn_tree_tokens(tree, slot), 0, tree->chunk_tokens * sizeof(int32_t));
        tree->clear(tree->clear_context, slot);
    }
    *x = (struct cattn_slot){.root = CATTN_NONE, .parent = CATTN_NONE, .next = tree->free};
    tree->free = slot;
    tree->n_free++;
    cattn_roots_at(&tree->roots, root)->n_slots--;
    if (tree->order.ranks)
        cattn_order_refresh(tree, root);
    cattn_roots_drop(&tree->roots, root);
}

void cattn_tree_acquire(struct cattn_tree *tree, uint32_t slot)
{
    if (!tree->slots[slot].refs++) {
        unlink_slot(tree, slot);
        note_peak(tree);
    }
}

void cattn_tree_unref(struct cattn_tree *tree, uint32_t slot)
{
    struct cattn_slot *x = &tree->slots[slot];
    if (--x->refs)
        return;
    if (!x->published || !tree->retain || !cattn_roots_at(&tree->roots, x->root)->current) {
        free_slot(tree, slot);
        return;
    }
    push_newest(tree, slot);
    if (cattn_order_is_over(tree, slot))
        cattn_tree_evict_from(tree, slot);
}

static void count_extras(struct cattn_tree *tree, uint32_t slot, uint32_t fill)
{
    struct cattn_slot *x = &tree->slots[slot];
    const int32_t *tokens = cattn_tree_tokens(tree, slot);
    if (fill > x->fill)
        x->extras |= cattn_extras_acquire(&tree->extras, tokens + x->fill, fill - x->fill) > 0;
    else if (x->extras)
        cattn_extras_drop(&tree->extras, tokens + fill, x->fill - fill);
}

void cattn_tree_set_fill(struct cattn_tree *tree, uint32_t slot, uint32_t fill)
{
    if (cattn_extras_any(&tree->extras))
        count_extras(tree, slot, fill);
    tree->stored_tokens += fill;
    tree->stored_tokens -= tree->slots[slot].fill;
    tree->slots[slot].fill = fill;
}

/* ---- eviction */

/* Starts to fetch what the eviction of a chunk touches. */
static void fetch_evictable(const struct cattn_tree *tree, uint32_t slot)
{
    if (slot == CATTN_NONE)
        return;
    const struct cattn_slot *x = &tree->slots[slot];
    FETCH(&tree->ghosts.hashes[x->hash & tree->ghosts.mask]);
    FETCH(&tree->index.entries[(uint32_t)x->hash & tree->index.mask]);
    FETCH(&tree->firsts.entries[x->first_tag & tree->firsts.mask]);
    FETCH(cattn_roots_at(&tree->roots, x->root));
    if (x->parent != CATTN_NONE)
        FETCH(&tree->slots[x->parent]);
    if (x->next != CATTN_NONE)
        FETCH(&tree->slots[x->next]);
}

bool cattn_tree_was_evicted(const struct cattn_tree *tree, uint32_t parent, uint32_t root, const int32_t *tokens)
{
    return cattn_ghosts_have(&tree->ghosts, cattn_tree_hash(tree, cattn_tree_above(tree, parent, root), tokens));
}

static void evict_slot(struct cattn_tree *tree, uint32_t slot)
{
    const struct cattn_slot *x = &tree->slots[slot];
    struct cattn_root *root = cattn_roots_at(&tree->roots, x->root);
    fetch_evictable(tree, x->next);
    cattn_ghosts_add(&tree->ghosts, x->hash);
    if (root->n_chunks == 1)
        cattn_ghosts_add(&tree->ghosts, root->hash);
    root->evictions++;
    if (tree->order.ranks)
        cattn_order_evicted(tree, slot);
    unlink_slot(tree, slot);
    free_slot(tree, slot);
    tree->evictions++;
}

void cattn_tree_evict_from(struct cattn_tree *tree, uint32_t slot)
{
    do {
        uint32_t parent = tree->slots[slot].parent;
        evict_slot(tree, slot);
        slot = parent;
    } while (slot != CATTN_NONE && cattn_order_is_over(tree, slot));
}

/* Paths are released leaf first, so the oldest has no children. */
void cattn_tree_evict(struct cattn_tree *tree, uint32_t n)
{
    if (!tree->order.ranks) {
        for (; n && tree->oldest != CATTN_NONE; n--)
            evict_slot(tree, tree->oldest);
        return;
    }
    uint32_t most = n < tree->n_evictable ? tree->n_evictable - n : 0;
    while (tree->n_evictable > most)
        cattn_tree_evict_from(tree, cattn_order_first(tree));
}

/* ---- pins and namespaces */

static uint32_t find_child(const struct cattn_tree *tree, uint32_t parent, uint32_t root, const int32_t *tokens)
{
    return cattn_tree_find(tree, parent, root, tokens,
                           cattn_tree_hash(tree, cattn_tree_above(tree, parent, root), tokens));
}

/* The last of the whole chunks of the tokens, all of one root below a parent; CATTN_NONE unless all are cached. */
static uint32_t descend(const struct cattn_tree *tree, uint32_t parent, uint32_t root, const int32_t *tokens, size_t n)
{
    uint32_t slot = CATTN_NONE;
    for (size_t c = tree->chunk_tokens; n >= c; tokens += c, n -= c, parent = slot) {
        slot = find_child(tree, parent, root, tokens);
        if (slot == CATTN_NONE)
            break;
    }
    return slot;
}

/* The same for a path from the root, which may begin with chunks that the root reads but ends with one of its own; with
 * most that it reads.  pinned: pins end there. */
static uint32_t find_leaf(const struct cattn_tree *tree, uint32_t root, const int32_t *tokens, size_t n, bool pinned)
{
    uint32_t leaf = CATTN_NONE, parent = CATTN_NONE, public = cattn_roots_at(&tree->roots, root)->reads;
    for (size_t c = tree->chunk_tokens; n >= c; tokens += c, n -= c) {
        uint32_t slot = descend(tree, parent, root, tokens, n);
        if (slot != CATTN_NONE && (!pinned || tree->slots[slot].pins))
            leaf = slot;
        parent = public == CATTN_NONE ? CATTN_NONE : find_child(tree, parent, public, tokens);
        if (parent == CATTN_NONE)
            break;
    }
    return leaf;
}

static void count_pinned(struct cattn_tree *tree, uint32_t slot, int more)
{
    tree->n_pinned += (uint32_t)more;
    cattn_roots_at(&tree->roots, tree->slots[slot].root)->n_pinned += (uint32_t)more;
}

void cattn_tree_add_pins(struct cattn_tree *tree, uint32_t leaf, uint32_t n)
{
    for (uint32_t slot = leaf; slot != CATTN_NONE; slot = tree->slots[slot].parent) {
        cattn_tree_acquire(tree, slot);
        tree->slots[slot].refs += n - 1;
        count_pinned(tree, slot, !tree->slots[slot].pinned);
        tree->slots[slot].pinned += n;
    }
    tree->slots[leaf].pins += n;
    tree->n_pins += n;
}

uint32_t cattn_tree_leaf(const struct cattn_tree *tree, const void *name, size_t length, const int32_t *tokens,
                         size_t n)
{
    uint32_t root = cattn_roots_find(&tree->roots, name, length);
    return root == CATTN_NONE ? CATTN_NONE : find_leaf(tree, root, tokens, n, false);
}

int cattn_tree_pin(struct cattn_tree *tree, const void *name, size_t length, const int32_t *tokens, size_t n)
{
    uint32_t leaf = cattn_tree_leaf(tree, name, length, tokens, n);
    if (leaf == CATTN_NONE)
        return CATTN_ENOTFOUND;
    if (tree->n_pins == UINT32_MAX)
        return CATTN_ENOMEM;
    cattn_tree_add_pins(tree, leaf, 1);
    return CATTN_OK;
}

static void remove_pins(struct cattn_tree *tree, uint32_t leaf, uint32_t n)
{
    tree->slots[leaf].pins -= n;
    tree->n_pins -= n;
    for (uint32_t slot = leaf; slot != CATTN_NONE;) {
        uint32_t parent = tree->slots[slot].parent;
        tree->slots[slot].pinned -= n;
        count_pinned(tree, slot, -!tree->slots[slot].pinned);
        tree->slots[slot].refs -= n - 1;
        cattn_tree_unref(tree, slot);
        slot = parent;
    }
}

int cattn_tree_unpin(struct cattn_tree *tree, const void *name, size_t length, const int32_t *tokens, size_t n)
{
    uint32_t root = cattn_roots_find(&tree->roots, name, length);
    uint32_t leaf = root == CATTN_NONE ? CATTN_NONE : find_leaf(tree, root, tokens, n, true);
    if (leaf == CATTN_NONE)
        return CATTN_ENOTFOUND;
    remove_pins(tree, leaf, 1);
    return CATTN_OK;
}

static bool has_name(const struct cattn_tree *tree, uint32_t slot)
{
    return cattn_roots_at(&tree->roots, tree->slots[slot].root)->current;
}

/* Frees an unreferenced chunk whose root has lost its name.  A public one above it, whose time is over, goes with it;
 * those that go lie behind it in the recency list. */
static void forget_slot(struct cattn_tree *tree, uint32_t slot)
{
    uint32_t parent = tree->slots[slot].parent;
    unlink_slot(tree, slot);
    free_slot(tree, slot);
    if (parent != CATTN_NONE && has_name(tree, parent) && cattn_order_is_over(tree, parent))
        cattn_tree_evict_from(tree, parent);
}

/* Undoes the pins of roots that lost their names, and frees what nobody refers to. */
static void sweep(struct cattn_tree *tree)
{
    for (uint32_t slot = tree->oldest; slot != CATTN_NONE;) {
        uint32_t before = tree->slots[slot].prev, next = tree->slots[slot].next;
        if (!has_name(tree, slot)) {
            forget_slot(tree, slot);
            next = before == CATTN_NONE ? tree->oldest : tree->slots[before].next;
        }
        slot = next;
    }
    for (uint32_t slot = 0; tree->n_pins && slot < tree->n_touched; slot++) {
        if (tree->slots[slot].root != CATTN_NONE && tree->slots[slot].pins && !has_name(tree, slot))
            remove_pins(tree, slot, tree->slots[slot].pins);
    }
}

/* What taking the name away from its root will need. */
static int prepare(struct cattn_tree *tree, const void *name, size_t length)
{
    uint32_t root = cattn_roots_find(&tree->roots, name, length);
    return root == CATTN_NONE ? CATTN_OK : cattn_roots_prepare(&tree->roots, root);
}

static int unprepare(struct cattn_tree *tree, const void *name, size_t length)
{
    uint32_t root = cattn_roots_find(&tree->roots, name, length);
    if (root != CATTN_NONE)
        cattn_roots_unprepare(&tree->roots, root);
    return CATTN_OK;
}

/* Takes the name away from its root; one with quotas goes to a new one, which prepare() made. */
static int retire_name(struct cattn_tree *tree, const void *name, size_t length)
{
    uint32_t root = cattn_roots_find(&tree->roots, name, length);
    cattn_ghosts_remove(&tree->ghosts, cattn_roots_hash(&tree->roots, name, length));
    if (root == CATTN_NONE)
        return CATTN_OK;
    struct cattn_root *record = cattn_roots_at(&tree->roots, root);
    if (cattn_roots_is_idle(record)) {
        record->hits = record->misses = record->evictions = 0;
        return CATTN_OK;
    }
    if (tree->events.call)
        cattn_events_cleared(tree, root);
    if (record->has_settings)
        cattn_roots_renew(&tree->roots, root);
    else
        cattn_roots_retire(&tree->roots, root);
    if (tree->order.ranks)
        cattn_order_refresh(tree, root);
    tree->revision++;
    return CATTN_OK;
}

/* Does it to all that read a name, then to the name, as long as that succeeds. */
static int for_readers(struct cattn_tree *tree, const void *name, size_t length,
                       int (*call)(struct cattn_tree *tree, const void *name, size_t length))
{
    const struct cattn_roots *settings = &tree->settings;
    uint32_t setting = cattn_roots_find(settings, name, length);
    uint32_t n_readers = setting == CATTN_NONE ? 0 : cattn_roots_at(settings, setting)->n_readers;
    int status = CATTN_OK;
    for (uint32_t i = 0; n_readers && !status; i++) {
        const struct cattn_root *reader = cattn_roots_at(settings, i);
        if (reader->name && reader->reads == setting) {
            status = call(tree, reader->name, reader->name_length);
            n_readers--;
        }
    }
    return status ? status : call(tree, name, length);
}

int cattn_tree_invalidate(struct cattn_tree *tree, const void *name, size_t length)
{
    uint64_t revision = tree->revision;
    if (for_readers(tree, name, length, prepare)) {
        for_readers(tree, name, length, unprepare);
        return CATTN_ENOMEM;
    }
    for_readers(tree, name, length, retire_name);
    if (tree->revision != revision)
        sweep(tree);
    return CATTN_OK;
}

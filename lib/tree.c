#include "tree.h"

#include "chunkattention.h"
#include "hash.h"
#include "memory.h"

#include <string.h>

#define PARTIAL_CANDIDATES 8

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
                                .seed = seed};
    cattn_roots_init(&tree->roots, seed);
    tree->index.mask = tree->firsts.mask = (uint32_t)(entries - 1);
    /* calloc leaves big arrays untouched until they are used */
    tree->slots = cattn_calloc(n_slots, sizeof(*tree->slots));
    tree->tokens = cattn_calloc(n_slots, chunk_tokens * sizeof(*tree->tokens));
    tree->index.entries = cattn_calloc(entries, sizeof(uint32_t));
    tree->firsts.entries = cattn_calloc(entries, sizeof(uint32_t));
    if (tree->slots && tree->tokens && tree->index.entries && tree->firsts.entries &&
        !cattn_ghosts_init(&tree->ghosts, n_slots))
        return CATTN_OK;
    cattn_tree_release(tree);
    return CATTN_ENOMEM;
}

void cattn_tree_release(struct cattn_tree *tree)
{
    cattn_roots_release(&tree->roots);
    cattn_ghosts_release(&tree->ghosts);
    cattn_events_close(&tree->events);
    cattn_free(tree->slots);
    cattn_free(tree->tokens);
    cattn_free(tree->index.entries);
    cattn_free(tree->firsts.entries);
    *tree = (struct cattn_tree){0};
}

/* ---- hashes and tables */

uint64_t cattn_tree_key(const struct cattn_tree *tree, uint32_t parent, uint32_t root)
{
    return parent != CATTN_NONE ? parent : tree->roots.records[root].id | UINT64_C(1) << 63;
}

uint32_t cattn_tree_hash(const struct cattn_tree *tree, uint64_t key, const int32_t *tokens, uint32_t n)
{
    if (tree->constant_hash)
        return 0;
    uint64_t hash = cattn_hash_mix(tree->seed, key);
    for (uint32_t i = 0; i < n; i++)
        hash = cattn_hash_mix(hash, (uint32_t)tokens[i]);
    return (uint32_t)hash;
}

/* Where an entry would stand if nothing else were in the table. */
static uint32_t home_of(const struct cattn_tree *tree, const struct cattn_table *table, uint32_t slot)
{
    const struct cattn_slot *x = &tree->slots[slot];
    return (table == &tree->index ? x->hash : x->first_hash) & table->mask;
}

static void insert_entry(const struct cattn_tree *tree, struct cattn_table *table, uint32_t slot)
{
    uint32_t i = home_of(tree, table, slot);
    while (table->entries[i])
        i = (i + 1) & table->mask;
    table->entries[i] = slot + 1;
}

static uint32_t *entry_of(const struct cattn_tree *tree, const struct cattn_table *table, uint32_t slot)
{
    uint32_t i = home_of(tree, table, slot);
    while (table->entries[i] != slot + 1)
        i = (i + 1) & table->mask;
    return &table->entries[i];
}

/* Closes the gap that an entry leaves: later ones move up unless that would put them before their home. */
static void remove_entry(const struct cattn_tree *tree, struct cattn_table *table, uint32_t slot)
{
    uint32_t gap = (uint32_t)(entry_of(tree, table, slot) - table->entries);
    for (uint32_t i = (gap + 1) & table->mask; table->entries[i]; i = (i + 1) & table->mask) {
        uint32_t home = home_of(tree, table, table->entries[i] - 1);
        if (((i - home) & table->mask) >= ((i - gap) & table->mask)) {
            table->entries[gap] = table->entries[i];
            gap = i;
        }
    }
    table->entries[gap] = 0;
}

static bool is_child(const struct cattn_tree *tree, uint32_t slot, uint32_t parent, uint32_t root)
{
    return tree->slots[slot].parent == parent && tree->slots[slot].root == root;
}

uint32_t cattn_tree_find(const struct cattn_tree *tree, uint32_t parent, uint32_t root, const int32_t *tokens,
                         uint32_t hash)
{
    const struct cattn_table *table = &tree->index;
    for (uint32_t i = hash & table->mask; table->entries[i]; i = (i + 1) & table->mask) {
        uint32_t slot = table->entries[i] - 1;
        if (tree->slots[slot].hash == hash && is_child(tree, slot, parent, root) &&
            !memcmp(cattn_tree_tokens(tree, slot), tokens, tree->chunk_tokens * sizeof(*tokens)))
            return slot;
    }
    return CATTN_NONE;
}

uint32_t cattn_tree_find_first(const struct cattn_tree *tree, uint32_t parent, uint32_t root, int32_t token)
{
    const struct cattn_table *table = &tree->firsts;
    uint32_t hash = cattn_tree_hash(tree, cattn_tree_key(tree, parent, root), &token, 1);
    for (uint32_t i = hash & table->mask; table->entries[i]; i = (i + 1) & table->mask) {
        uint32_t slot = table->entries[i] - 1;
        if (is_child(tree, slot, parent, root) && *cattn_tree_tokens(tree, slot) == token)
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

void cattn_tree_publish(struct cattn_tree *tree, uint32_t slot)
{
    struct cattn_slot *x = &tree->slots[slot];
    const int32_t *tokens = cattn_tree_tokens(tree, slot);
    uint64_t key = cattn_tree_key(tree, x->parent, x->root);
    uint32_t before = cattn_tree_find_first(tree, x->parent, x->root, tokens[0]);
    x->published = true;
    x->writer = 0;
    x->hash = cattn_tree_hash(tree, key, tokens, tree->chunk_tokens);
    x->first_hash = cattn_tree_hash(tree, key, tokens, 1);
    x->newer = CATTN_NONE;
    x->older = before;
    insert_entry(tree, &tree->index, slot);
    if (before != CATTN_NONE) {
        *entry_of(tree, &tree->firsts, before) = slot + 1;
        tree->slots[before].newer = slot;
    } else {
        insert_entry(tree, &tree->firsts, slot);
    }
    if (x->parent != CATTN_NONE)
        tree->slots[x->parent].children++;
    tree->roots.records[x->root].n_chunks++;
    if (tree->events.call)
        cattn_events_published(tree, slot);
}

void cattn_tree_unpublish(struct cattn_tree *tree, uint32_t slot)
{
    struct cattn_slot *x = &tree->slots[slot];
    if (tree->events.call)
        cattn_events_removed(tree, slot);
    remove_entry(tree, &tree->index, slot);
    if (x->newer != CATTN_NONE)
        tree->slots[x->newer].older = x->older;
    else if (x->older != CATTN_NONE)
        *entry_of(tree, &tree->firsts, slot) = x->older + 1;
    else
        remove_entry(tree, &tree->firsts, slot);
    if (x->older != CATTN_NONE)
        tree->slots[x->older].newer = x->newer;
    if (x->parent != CATTN_NONE)
        tree->slots[x->parent].children--;
    tree->roots.records[x->root].n_chunks--;
    x->published = false;
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
    tree->roots.records[x->root].n_evictable++;
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
    tree->roots.records[x->root].n_evictable--;
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
    tree->roots.records[root].n_slots++;
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
    tree->roots.records[root].n_slots--;
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
    if (x->published && tree->retain && tree->roots.records[x->root].current)
        push_newest(tree, slot);
    else
        free_slot(tree, slot);
}

void cattn_tree_set_fill(struct cattn_tree *tree, uint32_t slot, uint32_t fill)
{
    tree->stored_tokens += fill;
    tree->stored_tokens -= tree->slots[slot].fill;
    tree->slots[slot].fill = fill;
}

/* ---- eviction */

/* A whole 64 bits, and seldom asked for. */
static uint64_t ghost_of(const struct cattn_tree *tree, uint32_t parent, uint32_t root, const int32_t *tokens)
{
    uint64_t hash = cattn_hash_mix(tree->seed, cattn_tree_key(tree, parent, root));
    for (uint32_t i = 0; i < tree->chunk_tokens; i++)
        hash = cattn_hash_mix(hash, (uint32_t)tokens[i]);
    return hash;
}

bool cattn_tree_was_evicted(const struct cattn_tree *tree, uint32_t parent, uint32_t root, const int32_t *tokens)
{
    return cattn_ghosts_have(&tree->ghosts, ghost_of(tree, parent, root, tokens));
}

static void evict_slot(struct cattn_tree *tree, uint32_t slot)
{
    const struct cattn_slot *x = &tree->slots[slot];
    struct cattn_root *root = &tree->roots.records[x->root];
    cattn_ghosts_add(&tree->ghosts, ghost_of(tree, x->parent, x->root, cattn_tree_tokens(tree, slot)));
    if (root->n_chunks == 1)
        cattn_ghosts_add(&tree->ghosts, root->hash);
    root->evictions++;
    unlink_slot(tree, slot);
    free_slot(tree, slot);
    tree->evictions++;
}

/* Paths are released leaf first, so the oldest has no children. */
void cattn_tree_evict(struct cattn_tree *tree, uint32_t n)
{
    for (; n && tree->oldest != CATTN_NONE; n--)
        evict_slot(tree, tree->oldest);
}

/* ---- pins and namespaces */

/* The last of the whole chunks of the tokens; CATTN_NONE unless all are cached. */
static uint32_t find_leaf(const struct cattn_tree *tree, uint32_t root, const int32_t *tokens, size_t n)
{
    uint32_t slot = CATTN_NONE;
    for (size_t c = tree->chunk_tokens; n >= c; tokens += c, n -= c) {
        uint32_t hash = cattn_tree_hash(tree, cattn_tree_key(tree, slot, root), tokens, tree->chunk_tokens);
        slot = cattn_tree_find(tree, slot, root, tokens, hash);
        if (slot == CATTN_NONE)
            break;
    }
    return slot;
}

static void count_pinned(struct cattn_tree *tree, uint32_t slot, int more)
{
    tree->n_pinned += (uint32_t)more;
    tree->roots.records[tree->slots[slot].root].n_pinned += (uint32_t)more;
}

int cattn_tree_pin(struct cattn_tree *tree, const void *name, size_t length, const int32_t *tokens, size_t n)
{
    uint32_t root = cattn_roots_find(&tree->roots, name, length);
    uint32_t leaf = root == CATTN_NONE ? CATTN_NONE : find_leaf(tree, root, tokens, n);
    if (leaf == CATTN_NONE)
        return CATTN_ENOTFOUND;
    if (tree->n_pins == UINT32_MAX)
        return CATTN_ENOMEM;
    for (uint32_t slot = leaf; slot != CATTN_NONE; slot = tree->slots[slot].parent) {
        cattn_tree_acquire(tree, slot);
        count_pinned(tree, slot, !tree->slots[slot].pinned++);
    }
    tree->slots[leaf].pins++;
    tree->n_pins++;
    return CATTN_OK;
}

static void unpin_leaf(struct cattn_tree *tree, uint32_t leaf)
{
    tree->slots[leaf].pins--;
    tree->n_pins--;
    for (uint32_t slot = leaf; slot != CATTN_NONE;) {
        uint32_t parent = tree->slots[slot].parent;
        count_pinned(tree, slot, -!--tree->slots[slot].pinned);
        cattn_tree_unref(tree, slot);
        slot = parent;
    }
}

int cattn_tree_unpin(struct cattn_tree *tree, const void *name, size_t length, const int32_t *tokens, size_t n)
{
    uint32_t root = cattn_roots_find(&tree->roots, name, length);
    uint32_t leaf = root == CATTN_NONE ? CATTN_NONE : find_leaf(tree, root, tokens, n);
    if (leaf == CATTN_NONE || !tree->slots[leaf].pins)
        return CATTN_ENOTFOUND;
    unpin_leaf(tree, leaf);
    return CATTN_OK;
}

static void free_unreferenced(struct cattn_tree *tree, uint32_t root)
{
    for (uint32_t slot = tree->oldest; slot != CATTN_NONE;) {
        uint32_t next = tree->slots[slot].next;
        if (tree->slots[slot].root == root) {
            unlink_slot(tree, slot);
            free_slot(tree, slot);
        }
        slot = next;
    }
}

void cattn_tree_invalidate(struct cattn_tree *tree, const void *name, size_t length)
{
    uint32_t root = cattn_roots_find(&tree->roots, name, length);
    cattn_ghosts_remove(&tree->ghosts, cattn_roots_hash(&tree->roots, name, length));
    if (root == CATTN_NONE)
        return;
    cattn_roots_acquire(&tree->roots, root); /* the record stays until the walks are over */
    if (tree->events.call)
        cattn_events_cleared(tree, root);
    cattn_roots_retire(&tree->roots, root);
    free_unreferenced(tree, root);
    for (uint32_t slot = 0; tree->n_pins && slot < tree->n_touched; slot++) {
        while (tree->slots[slot].root == root && tree->slots[slot].pins)
            unpin_leaf(tree, slot);
    }
    cattn_roots_drop(&tree->roots, root);
}

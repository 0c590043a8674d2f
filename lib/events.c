#include "events.h"

#include "memory.h"
#include "tree.h"

int cattn_events_open(struct cattn_events *events, uint32_t n_slots,
                      void (*call)(void *context, const struct cattn_event *event), void *context)
{
    *events = (struct cattn_events){.call = call, .context = context};
    if (call)
        events->hashes = cattn_calloc(n_slots, sizeof(*events->hashes));
    return !call || events->hashes ? CATTN_OK : CATTN_ENOMEM;
}

void cattn_events_close(struct cattn_events *events)
{
    cattn_free(events->hashes);
    *events = (struct cattn_events){0};
}

/* ---- FNV-1a, whose numbers the header promises */

#define FNV_BASIS UINT64_C(0xcbf29ce484222325)

static uint64_t hash_byte(uint64_t hash, uint8_t byte)
{
    return (hash ^ byte) * UINT64_C(0x100000001b3);
}

static uint64_t hash_number(uint64_t hash, uint64_t number, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        hash = hash_byte(hash, (uint8_t)(number >> 8 * i));
    return hash;
}

static uint64_t hash_name(uint64_t hash, const struct cattn_root *root)
{
    hash = hash_number(hash, root->name_length, 8);
    for (size_t i = 0; i < root->name_length; i++)
        hash = hash_byte(hash, root->name[i]);
    return hash;
}

/* 0 stands for "no chunk before". */
static uint64_t hash_chunk(uint64_t hash, const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        hash = hash_number(hash, (uint32_t)tokens[i], 4);
    return hash ? hash : 1;
}

/* ---- telling */

static void tell(const struct cattn_tree *tree, uint32_t root, struct cattn_event *event)
{
    const struct cattn_root *record = cattn_roots_at(&tree->roots, root);
    event->size = sizeof(*event);
    event->ns = record->name;
    event->ns_len = record->name_length;
    tree->events.call(tree->events.context, event);
}

static void tell_chunk(const struct cattn_tree *tree, uint32_t slot, uint32_t kind)
{
    const struct cattn_slot *x = &tree->slots[slot];
    struct cattn_event event = {.kind = kind,
                                .n_tokens = tree->chunk_tokens,
                                .hash = tree->events.hashes[slot],
                                .parent = x->parent == CATTN_NONE ? 0 : tree->events.hashes[x->parent],
                                .tokens = cattn_tree_tokens(tree, slot)};
    tell(tree, x->root, &event);
}

void cattn_events_published(const struct cattn_tree *tree, uint32_t slot)
{
    const struct cattn_slot *x = &tree->slots[slot];
    const struct cattn_root *root = cattn_roots_at(&tree->roots, x->root);
    if (!root->current)
        return;
    uint64_t before = x->parent == CATTN_NONE ? FNV_BASIS : tree->events.hashes[x->parent];
    if (x->parent == CATTN_NONE || tree->slots[x->parent].root != x->root)
        before = hash_name(before, root);
    tree->events.hashes[slot] = hash_chunk(before, cattn_tree_tokens(tree, slot), tree->chunk_tokens);
    tell_chunk(tree, slot, CATTN_EVENT_PUBLISHED);
}

void cattn_events_removed(const struct cattn_tree *tree, uint32_t slot)
{
    if (cattn_roots_at(&tree->roots, tree->slots[slot].root)->current)
        tell_chunk(tree, slot, CATTN_EVENT_REMOVED);
}

void cattn_events_cleared(const struct cattn_tree *tree, uint32_t root)
{
    struct cattn_event event = {.kind = CATTN_EVENT_CLEARED};
    if (cattn_roots_at(&tree->roots, root)->n_chunks)
        tell(tree, root, &event);
}

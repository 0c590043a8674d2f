#include "events.h"

#include "memory.h"
#include "tree.h"

int cattn_events_open(struct cattn_events *events, uint32_t n_slots, uint32_t chunk_tokens,
                      void (*call)(void *context, const struct cattn_event *event), void *context)
{
    *events = (struct cattn_events){.call = call, .context = context};
    if (!call)
        return CATTN_OK;
    events->hashes = cattn_calloc(n_slots, sizeof(*events->hashes));
    events->tokens = cattn_malloc(chunk_tokens, sizeof(*events->tokens));
    events->extras = cattn_malloc(chunk_tokens, sizeof(*events->extras));
    if (events->hashes && events->tokens && events->extras)
        return CATTN_OK;
    cattn_events_close(events);
    return CATTN_ENOMEM;
}

void cattn_events_close(struct cattn_events *events)
{
    cattn_free(events->hashes);
    cattn_free(events->tokens);
    cattn_free(events->extras);
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

/* With the length in front. */
static uint64_t hash_bytes(uint64_t hash, const unsigned char *bytes, size_t length)
{
    hash = hash_number(hash, length, 8);
    for (size_t i = 0; i < length; i++)
        hash = hash_byte(hash, bytes[i]);
    return hash;
}

/* A caller's token has no upper bit: with it, bytes follow. */
static uint64_t hash_extra(const struct cattn_extras *extras, uint64_t hash, int32_t token)
{
    const struct cattn_interned *id = &extras->ids.records[cattn_extras_id(extras, token)];
    hash = hash_number(hash, (uint32_t)cattn_extras_token(extras, token) | UINT32_C(0x80000000), 4);
    return hash_bytes(hash, id->bytes, id->length);
}

/* 0 stands for "no chunk before". */
static uint64_t hash_chunk(const struct cattn_tree *tree, uint64_t hash, uint32_t slot)
{
    const int32_t *tokens = cattn_tree_tokens(tree, slot);
    bool extras = tree->slots[slot].extras;
    for (uint32_t i = 0; i < tree->chunk_tokens; i++)
        hash = extras && tokens[i] < 0 ? hash_extra(&tree->extras, hash, tokens[i])
                                       : hash_number(hash, (uint32_t)tokens[i], 4);
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

static struct cattn_extra range_of(const struct cattn_extras *extras, uint32_t first, uint32_t id)
{
    const struct cattn_interned *bytes = &extras->ids.records[id];
    return (struct cattn_extra){.first = first, .n = 1, .id = bytes->bytes, .id_len = bytes->length};
}

/* As the caller knows them: tokens, and ranges of them with equal bytes. */
static void show_extras(const struct cattn_tree *tree, const int32_t *tokens, struct cattn_event *event)
{
    const struct cattn_events *events = &tree->events;
    uint32_t before = CATTN_NONE; /* the id of the token before, if it has one */
    for (uint32_t i = 0; i < tree->chunk_tokens; i++) {
        uint32_t id = tokens[i] < 0 ? cattn_extras_id(&tree->extras, tokens[i]) : CATTN_NONE;
        events->tokens[i] = cattn_extras_token(&tree->extras, tokens[i]);
        if (id != CATTN_NONE && id == before)
            events->extras[event->n_extras - 1].n++;
        else if (id != CATTN_NONE)
            events->extras[event->n_extras++] = range_of(&tree->extras, i, id);
        before = id;
    }
    event->tokens = events->tokens;
    event->extras = events->extras;
}

static void tell_chunk(const struct cattn_tree *tree, uint32_t slot, uint32_t kind)
{
    const struct cattn_slot *x = &tree->slots[slot];
    struct cattn_event event = {.kind = kind,
                                .n_tokens = tree->chunk_tokens,
                                .hash = tree->events.hashes[slot],
                                .parent = x->parent == CATTN_NONE ? 0 : tree->events.hashes[x->parent],
                                .tokens = cattn_tree_tokens(tree, slot)};
    if (x->extras)
        show_extras(tree, event.tokens, &event);
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
        before = hash_bytes(before, root->name, root->name_length);
    tree->events.hashes[slot] = hash_chunk(tree, before, slot);
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

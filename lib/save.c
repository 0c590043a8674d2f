#include "save.h"

#include "file.h"
#include "lock.h"
#include "memory.h"

#include <string.h>

struct saver {
    const struct cattn_cache *cache;
    struct cattn_output output;
    uint32_t *chunks; /* slots of what is saved, parents before children */
    uint32_t n_chunks;
    uint32_t *numbers; /* by slot: of its chunk, + 1; 0: not saved */
    uint32_t *roots;   /* of what is saved */
    uint32_t n_roots;
    uint32_t *spaces; /* by root: its place among them, + 1 */
    uint32_t *ids;    /* extra identities that are saved */
    uint32_t n_ids;
    uint32_t *places;      /* by number of an extra identity: its place among them, + 1 */
    uint64_t n_extras;     /* tokens that have one */
    unsigned char *tokens; /* of one chunk, layer and KV head */
    size_t n_bytes;
};

/* ---- what is saved */

static void add_space(struct saver *saver, uint32_t root)
{
    if (saver->spaces[root])
        return;
    saver->roots[saver->n_roots++] = root;
    saver->spaces[root] = saver->n_roots;
}

static void add_extras(struct saver *saver, uint32_t slot)
{
    const struct cattn_tree *tree = &saver->cache->tree;
    for (uint32_t i = 0; tree->slots[slot].extras && i < tree->chunk_tokens; i++) {
        int32_t token = cattn_tree_tokens(tree, slot)[i];
        if (token >= 0)
            continue;
        uint32_t id = cattn_extras_id(&tree->extras, token);
        saver->n_extras++;
        if (saver->places[id])
            continue;
        saver->ids[saver->n_ids++] = id;
        saver->places[id] = saver->n_ids;
    }
}

/* The chunks from a pin upwards that are not in the list yet. */
static void add_path(struct saver *saver, uint32_t leaf)
{
    const struct cattn_slot *slots = saver->cache->tree.slots;
    uint32_t n = saver->n_chunks;
    for (uint32_t slot = leaf; slot != CATTN_NONE && !saver->numbers[slot]; slot = slots[slot].parent)
        n++;
    saver->n_chunks = n;
    for (uint32_t slot = leaf; slot != CATTN_NONE && !saver->numbers[slot]; slot = slots[slot].parent) {
        add_space(saver, slots[slot].root);
        add_extras(saver, slot);
        saver->numbers[slot] = n;
        saver->chunks[--n] = slot;
    }
}

static int list_chunks(struct saver *saver)
{
    const struct cattn_tree *tree = &saver->cache->tree;
    saver->chunks = cattn_malloc(tree->n_pinned, sizeof(*saver->chunks));
    saver->numbers = cattn_calloc(tree->n_touched, sizeof(*saver->numbers));
    saver->roots = cattn_malloc(tree->roots.n, sizeof(*saver->roots));
    saver->spaces = cattn_calloc(tree->roots.n, sizeof(*saver->spaces));
    saver->ids = cattn_malloc(tree->extras.ids.n, sizeof(*saver->ids));
    saver->places = cattn_calloc(tree->extras.ids.n, sizeof(*saver->places));
    saver->tokens = cattn_malloc(saver->n_bytes, 1);
    if (!saver->chunks || !saver->numbers || !saver->roots || !saver->spaces || !saver->ids || !saver->places ||
        !saver->tokens)
        return CATTN_ENOMEM;
    for (uint32_t slot = 0; slot < tree->n_touched; slot++) {
        if (tree->slots[slot].pins)
            add_path(saver, slot);
    }
    return CATTN_OK;
}

static uint64_t tree_bytes(const struct saver *saver)
{
    const struct cattn_tree *tree = &saver->cache->tree;
    uint64_t n = saver->n_chunks * (sizeof(struct cattn_save_chunk) + (uint64_t)tree->chunk_tokens * sizeof(int32_t));
    for (uint32_t i = 0; i < saver->n_roots; i++)
        n += sizeof(uint64_t) + cattn_roots_at(&tree->roots, saver->roots[i])->name_length;
    for (uint32_t i = 0; i < saver->n_ids; i++)
        n += sizeof(uint64_t) + tree->extras.ids.records[saver->ids[i]].length;
    return n + saver->n_extras * sizeof(struct cattn_save_extra);
}

/* ---- writing: what was written badly is found when the file is committed, if not before */

static int write_header(struct saver *saver, const void *model, size_t model_len)
{
    struct cattn_save_header header = cattn_save_header_of(saver->cache);
    header.n_chunks = saver->n_chunks;
    header.n_spaces = saver->n_roots;
    header.n_extras = saver->n_ids;
    header.model_bytes = model_len;
    header.tree_bytes = tree_bytes(saver);
    if (cattn_output_write(&saver->output, &header, sizeof(header)) || cattn_output_end_section(&saver->output) ||
        cattn_output_write(&saver->output, model, model_len))
        return CATTN_EIO;
    return cattn_output_end_section(&saver->output);
}

static uint32_t count_extras(const struct cattn_tree *tree, uint32_t slot)
{
    uint32_t n = 0;
    for (uint32_t i = 0; tree->slots[slot].extras && i < tree->chunk_tokens; i++)
        n += cattn_tree_tokens(tree, slot)[i] < 0;
    return n;
}

/* The identities, then the tokens as the caller knows them. */
static int write_extras(struct saver *saver, uint32_t slot)
{
    const struct cattn_tree *tree = &saver->cache->tree;
    const int32_t *tokens = cattn_tree_tokens(tree, slot);
    for (uint32_t i = 0; i < tree->chunk_tokens; i++) {
        if (tokens[i] >= 0)
            continue;
        struct cattn_save_extra extra = {i, saver->places[cattn_extras_id(&tree->extras, tokens[i])] - 1};
        if (cattn_output_write(&saver->output, &extra, sizeof(extra)))
            return CATTN_EIO;
    }
    for (uint32_t i = 0; i < tree->chunk_tokens; i++) {
        int32_t token = cattn_extras_token(&tree->extras, tokens[i]);
        if (cattn_output_write(&saver->output, &token, sizeof(token)))
            return CATTN_EIO;
    }
    return CATTN_OK;
}

static int write_node(struct saver *saver, uint32_t slot)
{
    const struct cattn_tree *tree = &saver->cache->tree;
    const struct cattn_slot *x = &tree->slots[slot];
    struct cattn_save_chunk chunk = {.parent = x->parent == CATTN_NONE ? CATTN_NONE : saver->numbers[x->parent] - 1,
                                     .space = saver->spaces[x->root] - 1,
                                     .pins = x->pins,
                                     .n_extras = count_extras(tree, slot)};
    if (cattn_output_write(&saver->output, &chunk, sizeof(chunk)))
        return CATTN_EIO;
    if (chunk.n_extras)
        return write_extras(saver, slot);
    return cattn_output_write(&saver->output, cattn_tree_tokens(tree, slot), tree->chunk_tokens * sizeof(int32_t));
}

static int write_bytes(struct saver *saver, const unsigned char *bytes, uint64_t length)
{
    if (cattn_output_write(&saver->output, &length, sizeof(length)))
        return CATTN_EIO;
    return cattn_output_write(&saver->output, bytes, (size_t)length);
}

static int write_tree(struct saver *saver)
{
    const struct cattn_tree *tree = &saver->cache->tree;
    int status = CATTN_OK;
    for (uint32_t i = 0; !status && i < saver->n_chunks; i++)
        status = write_node(saver, saver->chunks[i]);
    for (uint32_t i = 0; !status && i < saver->n_roots; i++) {
        const struct cattn_root *root = cattn_roots_at(&tree->roots, saver->roots[i]);
        status = write_bytes(saver, root->name, root->name_length);
    }
    for (uint32_t i = 0; !status && i < saver->n_ids; i++) {
        const struct cattn_interned *id = &tree->extras.ids.records[saver->ids[i]];
        status = write_bytes(saver, id->bytes, id->length);
    }
    return status ? status : cattn_output_end_section(&saver->output);
}

static int write_chunk(struct saver *saver, uint32_t slot)
{
    const struct cattn_cache *cache = saver->cache;
    for (uint32_t layer = 0; layer < cache->shape.n_layers; layer++) {
        for (uint32_t head = 0; head < cache->shape.n_kv_heads; head++) {
            cache->backend->get(cache->store, slot, layer, head, 0, cache->shape.chunk_tokens, saver->tokens);
            if (cattn_store_status(cache->backend, cache->store))
                return CATTN_EDEVICE;
            if (cattn_output_write(&saver->output, saver->tokens, saver->n_bytes))
                return CATTN_EIO;
        }
    }
    return cattn_output_end_section(&saver->output);
}

static int write_all(struct saver *saver, const void *model, size_t model_len)
{
    int status = write_header(saver, model, model_len);
    if (!status)
        status = write_tree(saver);
    for (uint32_t i = 0; !status && i < saver->n_chunks; i++)
        status = write_chunk(saver, saver->chunks[i]);
    return status;
}

static int save(struct saver *saver, const char *path, const void *model, size_t model_len)
{
    int status = list_chunks(saver);
    if (!status)
        status = cattn_output_create(&saver->output, path);
    if (status)
        return status;
    status = write_all(saver, model, model_len);
    if (!status)
        return cattn_output_commit(&saver->output);
    cattn_output_discard(&saver->output);
    return status;
}

static int save_pinned(const struct cattn_cache *cache, const char *path, const void *model, size_t model_len)
{
    if (!cache || !path || (!model && model_len))
        return CATTN_EINVAL;
    if (cattn_store_status(cache->backend, cache->store))
        return CATTN_EDEVICE;
    struct saver saver = {.cache = cache,
                          .n_bytes = cache->shape.chunk_tokens * cache->backend->token_bytes(&cache->shape)};
    int status = save(&saver, path, model, model_len);
    cattn_free(saver.chunks);
    cattn_free(saver.numbers);
    cattn_free(saver.roots);
    cattn_free(saver.spaces);
    cattn_free(saver.ids);
    cattn_free(saver.places);
    cattn_free(saver.tokens);
    return status;
}

int cattn_prefix_save(const cattn_cache *cache, const char *path, const void *model, size_t model_len)
{
    return CATTN_LOCKED(cache, save_pinned(cache, path, model, model_len));
}

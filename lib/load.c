/* Reading saved prefixes.  The file may be anything: first all of it is checked, then its chunks are cut into those of
 * this cache (nodes), and only when each of them has a slot and its bytes were found good a second time is anything
 * published. */
#include "save.h"

#include "file.h"
#include "hash.h"
#include "lock.h"
#include "memory.h"
#include "quota.h"
#include "readers.h"

#include <string.h>

#define MAX_CHUNK_TOKENS 65536
#define CRC_BYTES        4

/* What makes a chunk the one it is. */
struct key {
    uint32_t parent; /* CATTN_NONE: a first one */
    uint32_t space;
    const int32_t *tokens; /* those that have extras as numbers */
};

/* A chunk of the file. */
struct chunk {
    struct key key;
    unsigned char *tokens; /* where it has them: key.tokens */
    const unsigned char *extras;
    uint32_t n_extras;
    bool translated;      /* its tokens refer to their extras */
    uint32_t pins, depth; /* depth: chunks above it */
    uint32_t node;        /* the last one that ends in it or above it, or CATTN_NONE */
    uint32_t pieces;      /* the first of those cut from it, or CATTN_NONE */
    bool has_child;
};

/* A chunk of the cache. */
struct node {
    struct key key;
    uint32_t slot; /* CATTN_NONE: it is not cached yet */
    bool cached;   /* before */
    uint64_t pins;
};

/* Tokens `from` and on of a chunk become tokens `at` and on of a node, as many as the smaller of the two has. */
struct piece {
    uint32_t node, from, at;
    uint32_t next; /* of the same chunk, or CATTN_NONE */
};

struct bytes {
    const unsigned char *at;
    size_t length;
};

struct space {
    const unsigned char *name;
    size_t length;
    uint32_t root;    /* CATTN_NONE: not known, or not needed */
    bool used;        /* a chunk is in it */
    bool held;        /* root is referred to */
    uint32_t n_nodes; /* of it */
    uint32_t public;  /* the space that it reads, as its chunks go on below some of that; or CATTN_NONE */
};

/* An extra identity. */
struct id {
    uint32_t number; /* in this cache, with a reference */
    bool used;       /* a token has it */
};

/* Finds what is equal: open addressing over numbers + 1, at most half full. */
struct set {
    uint32_t *entries;
    size_t mask;
};

struct loader {
    struct cattn_cache *cache;
    struct cattn_input input;
    struct cattn_save_header header;
    uint64_t data_offset; /* where K and V begin, and the checksum up to there */
    uint32_t data_crc;
    unsigned char *tree;
    struct chunk *chunks;
    struct space *spaces;
    struct id *ids;
    uint32_t n_ids; /* that have a number */
    struct node *nodes;
    struct piece *pieces;
    uint32_t n_nodes, n_pieces;
    int32_t *joined;       /* tokens of nodes that are made of several chunks */
    struct set set;        /* of spaces, then of ids, of chunks, of nodes */
    unsigned char *tokens; /* of one chunk of the file, layer and KV head */
    size_t n_bytes;
};

/* ---- the first pass: header, model, checksums */

static int check_header(const struct loader *loader)
{
    const struct cattn_save_header *found = &loader->header;
    struct cattn_save_header expected = cattn_save_header_of(loader->cache);
    uint32_t c = expected.chunk_tokens, n = found->chunk_tokens;
    if (!n || n > MAX_CHUNK_TOKENS || (c % n && n % c))
        return CATTN_EFORMAT;
    expected.chunk_tokens = n;
    expected.n_chunks = found->n_chunks;
    expected.n_spaces = found->n_spaces;
    expected.n_extras = found->n_extras;
    expected.model_bytes = found->model_bytes;
    expected.tree_bytes = found->tree_bytes;
    return memcmp(&expected, found, sizeof(expected)) ? CATTN_EFORMAT : CATTN_OK;
}

static uint64_t blocks_per_chunk(const struct loader *loader)
{
    return (uint64_t)loader->header.n_layers * loader->header.n_kv_heads;
}

/* Whether the counts agree with the length of the file, and with the room that they have in it. */
static int check_length(const struct loader *loader)
{
    const struct cattn_save_header *header = &loader->header;
    uint64_t rest = loader->input.length, chunk = blocks_per_chunk(loader) * loader->n_bytes + CRC_BYTES;
    uint64_t node = sizeof(struct cattn_save_chunk) + (uint64_t)header->chunk_tokens * sizeof(int32_t);
    if (rest < sizeof(*header) + 3 * CRC_BYTES)
        return CATTN_EFORMAT;
    rest -= sizeof(*header) + 3 * CRC_BYTES;
    if (header->model_bytes > rest || header->tree_bytes > rest - header->model_bytes)
        return CATTN_EFORMAT;
    rest -= header->model_bytes + header->tree_bytes;
    if (rest / chunk != header->n_chunks || rest % chunk || header->tree_bytes / node < header->n_chunks ||
        header->tree_bytes / sizeof(uint64_t) < (uint64_t)header->n_spaces + header->n_extras ||
        header->tree_bytes > SIZE_MAX / 2)
        return CATTN_EFORMAT;
    return CATTN_OK;
}

static int read_header(struct loader *loader)
{
    int status = cattn_input_read(&loader->input, &loader->header, sizeof(loader->header));
    if (!status)
        status = cattn_input_end_section(&loader->input);
    if (!status)
        status = check_header(loader);
    loader->n_bytes = (size_t)loader->header.chunk_tokens * loader->header.token_bytes;
    return status ? status : check_length(loader);
}

static int check_model(struct loader *loader, const unsigned char *model, uint64_t length)
{
    unsigned char part[4096];
    if (loader->header.model_bytes != length)
        return CATTN_EFORMAT;
    while (length) {
        size_t n = length < sizeof(part) ? (size_t)length : sizeof(part);
        int status = cattn_input_read(&loader->input, part, n);
        if (status)
            return status;
        if (memcmp(part, model, n))
            return CATTN_EFORMAT;
        model += n;
        length -= n;
    }
    return cattn_input_end_section(&loader->input);
}

static int read_tree(struct loader *loader)
{
    size_t n = (size_t)loader->header.tree_bytes;
    loader->tree = cattn_malloc(n, 1);
    if (!loader->tree)
        return CATTN_ENOMEM;
    int status = cattn_input_read(&loader->input, loader->tree, n);
    loader->data_crc = loader->input.crc;
    loader->data_offset = sizeof(loader->header) + loader->header.model_bytes + n + 3 * CRC_BYTES;
    return status ? status : cattn_input_end_section(&loader->input);
}

static int check_data(struct loader *loader)
{
    loader->tokens = cattn_malloc(loader->n_bytes, 1);
    int status = loader->tokens ? CATTN_OK : CATTN_ENOMEM;
    for (uint32_t i = 0; !status && i < loader->header.n_chunks; i++) {
        for (uint64_t k = 0; !status && k < blocks_per_chunk(loader); k++)
            status = cattn_input_read(&loader->input, loader->tokens, loader->n_bytes);
        if (!status)
            status = cattn_input_end_section(&loader->input);
    }
    return status;
}

/* ---- sets */

static int empty_set(struct set *set, uint64_t n)
{
    size_t size = 2;
    while (size / 2 < n && size < SIZE_MAX / 2)
        size *= 2;
    cattn_free(set->entries);
    set->entries = cattn_calloc(size, sizeof(*set->entries));
    set->mask = size - 1;
    return set->entries ? CATTN_OK : CATTN_ENOMEM;
}

/* The entry of the one that is equal, or an empty one. */
static uint32_t *find_in_set(const struct loader *loader, uint64_t hash,
                             bool (*is_equal)(const struct loader *loader, uint32_t number, const void *what),
                             const void *what)
{
    const struct set *set = &loader->set;
    size_t i = (size_t)hash & set->mask;
    while (set->entries[i] && !is_equal(loader, set->entries[i] - 1, what))
        i = (i + 1) & set->mask;
    return &set->entries[i];
}

static uint64_t hash_key(const struct loader *loader, const struct key *key, uint32_t n)
{
    uint64_t hash = cattn_hash_mix(cattn_hash_mix(loader->cache->tree.seed, key->parent), key->space);
    for (uint32_t i = 0; i < n; i++)
        hash = cattn_hash_mix(hash, (uint32_t)key->tokens[i]);
    return hash;
}

static bool equal_keys(const struct key *a, const struct key *b, uint32_t n)
{
    return a->parent == b->parent && a->space == b->space && !memcmp(a->tokens, b->tokens, n * sizeof(int32_t));
}

static bool equals_space(const struct loader *loader, uint32_t number, const void *what)
{
    const struct space *a = &loader->spaces[number], *b = what;
    return a->length == b->length && (!a->length || !memcmp(a->name, b->name, a->length));
}

static bool equals_id(const struct loader *loader, uint32_t number, const void *what)
{
    return loader->ids[number].number == *(const uint32_t *)what;
}

static bool equals_chunk(const struct loader *loader, uint32_t number, const void *what)
{
    return equal_keys(&loader->chunks[number].key, what, loader->header.chunk_tokens);
}

static bool equals_node(const struct loader *loader, uint32_t number, const void *what)
{
    return equal_keys(&loader->nodes[number].key, what, loader->cache->shape.chunk_tokens);
}

/* ---- the tree of the file */

/* Takes n bytes; NULL: there are less. */
static unsigned char *take(unsigned char **at, const unsigned char *end, uint64_t n)
{
    unsigned char *bytes = *at;
    if ((uint64_t)(end - bytes) < n)
        return NULL;
    *at += n;
    return bytes;
}

/* Whether the extras of a chunk are some, in order, and its tokens such as callers give. */
static bool check_tokens(struct loader *loader, const struct chunk *chunk)
{
    uint32_t end = 0;
    for (uint32_t i = 0; i < chunk->n_extras; i++) {
        struct cattn_save_extra extra;
        memcpy(&extra, chunk->extras + i * sizeof(extra), sizeof(extra));
        if (extra.offset < end || extra.offset >= loader->header.chunk_tokens || extra.id >= loader->header.n_extras)
            return false;
        loader->ids[extra.id].used = true;
        end = extra.offset + 1;
    }
    return !cattn_tokens_negative(chunk->key.tokens, loader->header.chunk_tokens);
}

/* Chunk number i.  All that comes before it in the tree is made of 4 bytes, so its tokens are aligned. */
static int parse_chunk(struct loader *loader, uint32_t i, unsigned char **at, const unsigned char *end)
{
    const uint32_t c = loader->header.chunk_tokens;
    struct chunk *chunk = &loader->chunks[i];
    struct cattn_save_chunk found;
    const unsigned char *bytes = take(at, end, sizeof(found));
    if (!bytes)
        return CATTN_EFORMAT;
    memcpy(&found, bytes, sizeof(found));
    const unsigned char *extras = take(at, end, found.n_extras * (uint64_t)sizeof(struct cattn_save_extra));
    unsigned char *tokens = take(at, end, c * sizeof(int32_t));
    if (!extras || !tokens)
        return CATTN_EFORMAT;
    if ((found.parent != CATTN_NONE && found.parent >= i) || found.space >= loader->header.n_spaces)
        return CATTN_EFORMAT;
    *chunk = (struct chunk){.key = {found.parent, found.space, (const int32_t *)(const void *)tokens},
                            .tokens = tokens,
                            .extras = extras,
                            .n_extras = found.n_extras,
                            .pins = found.pins,
                            .node = CATTN_NONE,
                            .pieces = CATTN_NONE};
    loader->spaces[found.space].used = true;
    if (!check_tokens(loader, chunk))
        return CATTN_EFORMAT;
    if (found.parent == CATTN_NONE)
        return CATTN_OK;
    struct chunk *parent = &loader->chunks[found.parent];
    parent->has_child = true;
    chunk->depth = parent->depth + 1;
    return CATTN_OK;
}

/* Bytes with their length in front; at NULL: there are less. */
static struct bytes take_bytes(unsigned char **at, const unsigned char *end)
{
    uint64_t length = 0;
    const unsigned char *bytes = take(at, end, sizeof(length));
    if (bytes)
        memcpy(&length, bytes, sizeof(length));
    return (struct bytes){bytes ? take(at, end, length) : NULL, (size_t)length};
}

static int parse_space(struct loader *loader, uint32_t i, unsigned char **at, const unsigned char *end)
{
    struct bytes bytes = take_bytes(at, end);
    struct space *space = &loader->spaces[i];
    if (!bytes.at || !space->used)
        return CATTN_EFORMAT;
    *space = (struct space){
        .name = bytes.at, .length = bytes.length, .root = CATTN_NONE, .used = true, .public = CATTN_NONE};
    uint64_t hash = cattn_roots_hash(&loader->cache->tree.roots, bytes.at, space->length);
    uint32_t *entry = find_in_set(loader, hash, equals_space, space);
    if (*entry)
        return CATTN_EFORMAT;
    *entry = i + 1;
    return CATTN_OK;
}

/* Equal bytes get equal numbers. */
static int parse_id(struct loader *loader, uint32_t i, unsigned char **at, const unsigned char *end)
{
    struct bytes bytes = take_bytes(at, end);
    struct id *id = &loader->ids[i];
    if (!bytes.at || !bytes.length || !id->used)
        return CATTN_EFORMAT;
    if (cattn_extras_add_id(&loader->cache->tree.extras, bytes.at, bytes.length, &id->number))
        return CATTN_ENOMEM;
    loader->n_ids++;
    uint32_t *entry = find_in_set(loader, cattn_hash_mix(0, id->number), equals_id, &id->number);
    if (*entry)
        return CATTN_EFORMAT;
    *entry = i + 1;
    return CATTN_OK;
}

/* Tokens that have extras become numbers. */
static int translate_chunk(struct loader *loader, struct chunk *chunk)
{
    struct cattn_extras *extras = &loader->cache->tree.extras;
    int32_t *tokens = (int32_t *)(void *)chunk->tokens;
    int status = CATTN_OK;
    chunk->translated = true;
    for (uint32_t i = 0; !status && i < chunk->n_extras; i++) {
        struct cattn_save_extra extra;
        memcpy(&extra, chunk->extras + i * sizeof(extra), sizeof(extra));
        status = cattn_extras_add(extras, tokens[extra.offset], loader->ids[extra.id].number, &tokens[extra.offset]);
    }
    return status;
}

static int translate(struct loader *loader)
{
    int status = CATTN_OK;
    for (uint32_t i = 0; !status && i < loader->header.n_chunks; i++) {
        if (loader->chunks[i].n_extras)
            status = translate_chunk(loader, &loader->chunks[i]);
    }
    return status;
}

static void drop_extras(struct loader *loader)
{
    struct cattn_extras *extras = &loader->cache->tree.extras;
    for (uint32_t i = 0; loader->ids && i < loader->header.n_chunks; i++) {
        if (loader->chunks[i].translated)
            cattn_extras_drop(extras, loader->chunks[i].key.tokens, loader->header.chunk_tokens);
    }
    for (uint32_t i = 0; i < loader->n_ids; i++)
        cattn_extras_drop_id(extras, loader->ids[i].number);
}

/* Each chunk is there once, and each is needed by a pin. */
static int check_chunks(struct loader *loader)
{
    for (uint32_t i = 0; i < loader->header.n_chunks; i++) {
        const struct chunk *chunk = &loader->chunks[i];
        uint64_t hash = hash_key(loader, &chunk->key, loader->header.chunk_tokens);
        uint32_t *entry = find_in_set(loader, hash, equals_chunk, &chunk->key);
        if (*entry || (!chunk->has_child && !chunk->pins))
            return CATTN_EFORMAT;
        *entry = i + 1;
    }
    return CATTN_OK;
}

/* A space reads one other at most, which reads none. */
static int find_publics(struct loader *loader)
{
    for (uint32_t i = 0; i < loader->header.n_chunks; i++) {
        const struct key *key = &loader->chunks[i].key;
        uint32_t above = key->parent == CATTN_NONE ? key->space : loader->chunks[key->parent].key.space;
        struct space *space = &loader->spaces[key->space];
        if (above == key->space)
            continue;
        if (space->public != CATTN_NONE && space->public != above)
            return CATTN_EFORMAT;
        space->public = above;
    }
    for (uint32_t i = 0; i < loader->header.n_spaces; i++) {
        uint32_t public = loader->spaces[i].public;
        if (public != CATTN_NONE && loader->spaces[public].public != CATTN_NONE)
            return CATTN_EFORMAT;
    }
    return CATTN_OK;
}

/* Nobody comes to read a namespace by loading a file. */
static int check_publics(const struct loader *loader)
{
    for (uint32_t i = 0; i < loader->header.n_spaces; i++) {
        const struct space *space = &loader->spaces[i];
        if (space->public == CATTN_NONE)
            continue;
        const struct space *above = &loader->spaces[space->public];
        const struct cattn_root *public = cattn_readers_public(&loader->cache->tree, space->name, space->length);
        if (!public || public->name_length != above->length || memcmp(public->name, above->name, above->length))
            return CATTN_ESTATE;
    }
    return CATTN_OK;
}

static int parse_tree(struct loader *loader)
{
    const struct cattn_save_header *header = &loader->header;
    unsigned char *at = loader->tree;
    const unsigned char *end = at + header->tree_bytes;
    loader->chunks = cattn_calloc(header->n_chunks, sizeof(*loader->chunks));
    loader->spaces = cattn_calloc(header->n_spaces, sizeof(*loader->spaces));
    if (!loader->chunks || !loader->spaces || empty_set(&loader->set, header->n_spaces))
        return CATTN_ENOMEM;
    loader->ids = cattn_calloc(header->n_extras, sizeof(*loader->ids));
    if (!loader->ids)
        return CATTN_ENOMEM;
    int status = CATTN_OK;
    for (uint32_t i = 0; !status && i < header->n_chunks; i++)
        status = parse_chunk(loader, i, &at, end);
    for (uint32_t i = 0; !status && i < header->n_spaces; i++)
        status = parse_space(loader, i, &at, end);
    if (!status && empty_set(&loader->set, header->n_extras))
        return CATTN_ENOMEM;
    for (uint32_t i = 0; !status && i < header->n_extras; i++)
        status = parse_id(loader, i, &at, end);
    if (!status && (at != end || find_publics(loader)))
        status = CATTN_EFORMAT;
    if (!status)
        status = translate(loader);
    if (!status && empty_set(&loader->set, header->n_chunks))
        status = CATTN_ENOMEM;
    if (!status)
        status = check_chunks(loader);
    return status ? status : check_publics(loader);
}

/* ---- chunks are cut into nodes */

static uint32_t ratio(uint32_t a, uint32_t b)
{
    return a > b ? a / b : 1;
}

/* The node with this key, which is made if there is none. */
static uint32_t node_of(struct loader *loader, const struct key *key, bool *made)
{
    uint64_t hash = hash_key(loader, key, loader->cache->shape.chunk_tokens);
    uint32_t *entry = find_in_set(loader, hash, equals_node, key);
    *made = !*entry;
    if (*made) {
        loader->nodes[loader->n_nodes] = (struct node){.key = *key, .slot = CATTN_NONE};
        *entry = ++loader->n_nodes;
    }
    return *entry - 1;
}

static void add_piece(struct loader *loader, uint32_t chunk, struct piece piece)
{
    piece.next = loader->chunks[chunk].pieces;
    loader->pieces[loader->n_pieces] = piece;
    loader->chunks[chunk].pieces = loader->n_pieces++;
}

/* A chunk that holds one or more nodes.  Chunks that begin alike have their first nodes in common. */
static void split_chunk(struct loader *loader, uint32_t i)
{
    struct chunk *chunk = &loader->chunks[i];
    for (uint32_t from = 0; from < loader->header.chunk_tokens; from += loader->cache->shape.chunk_tokens) {
        bool made;
        struct key key = {chunk->node, chunk->key.space, chunk->key.tokens + from};
        chunk->node = node_of(loader, &key, &made);
        if (made)
            add_piece(loader, i, (struct piece){.node = chunk->node, .from = from});
    }
}

/* A chunk that is the last of those in a node, each of which gives a piece. */
static void join_chunks(struct loader *loader, uint32_t i)
{
    const uint32_t c = loader->cache->shape.chunk_tokens, n = loader->header.chunk_tokens;
    struct chunk *chunk = &loader->chunks[i];
    int32_t *tokens = loader->joined + (size_t)loader->n_nodes * c;
    struct key key = {chunk->node, chunk->key.space, tokens};
    for (uint32_t at = c, k = i; at > 0; k = loader->chunks[k].key.parent) {
        at -= n;
        memcpy(tokens + at, loader->chunks[k].key.tokens, n * sizeof(int32_t));
    }
    bool made; /* unless equal tokens are there twice, once behind public ones */
    chunk->node = node_of(loader, &key, &made);
    for (uint32_t at = c, k = i; made && at > 0; k = loader->chunks[k].key.parent) {
        at -= n;
        add_piece(loader, k, (struct piece){.node = chunk->node, .at = at});
    }
}

static int reserve_nodes(struct loader *loader)
{
    const uint32_t c = loader->cache->shape.chunk_tokens, n = loader->header.chunk_tokens;
    uint64_t n_nodes = 0;
    for (uint32_t i = 0; i < loader->header.n_chunks; i++)
        n_nodes += (loader->chunks[i].depth + UINT64_C(1)) % ratio(c, n) ? 0 : ratio(n, c);
    uint64_t n_pieces = n_nodes * ratio(c, n);
    if (n_pieces >= CATTN_NONE)
        return CATTN_ETOOBIG;
    loader->nodes = cattn_malloc((size_t)n_nodes, sizeof(*loader->nodes));
    loader->pieces = cattn_malloc((size_t)n_pieces, sizeof(*loader->pieces));
    loader->joined = cattn_malloc(c > n ? (size_t)n_nodes : 0, c * sizeof(int32_t));
    if (!loader->nodes || !loader->pieces || !loader->joined)
        return CATTN_ENOMEM;
    return empty_set(&loader->set, n_nodes);
}

static int make_nodes(struct loader *loader)
{
    const uint32_t c = loader->cache->shape.chunk_tokens, n = loader->header.chunk_tokens;
    int status = reserve_nodes(loader);
    if (status)
        return status;
    for (uint32_t i = 0; i < loader->header.n_chunks; i++) {
        struct chunk *chunk = &loader->chunks[i];
        if (chunk->key.parent != CATTN_NONE)
            chunk->node = loader->chunks[chunk->key.parent].node;
        if (c <= n)
            split_chunk(loader, i);
        else if ((chunk->depth + UINT64_C(1)) % (c / n) == 0)
            join_chunks(loader, i);
        /* a pin of a private namespace does not become one of the public chunks above it */
        if (chunk->node != CATTN_NONE && loader->nodes[chunk->node].key.space == chunk->key.space)
            loader->nodes[chunk->node].pins += chunk->pins;
    }
    return CATTN_OK;
}

/* ---- room */

static uint32_t parent_slot(const struct loader *loader, const struct node *node)
{
    return node->key.parent == CATTN_NONE ? CATTN_NONE : loader->nodes[node->key.parent].slot;
}

static uint64_t hash_of(const struct loader *loader, const struct node *node)
{
    const struct cattn_tree *tree = &loader->cache->tree;
    uint32_t root = loader->spaces[node->key.space].root;
    return cattn_tree_hash(tree, cattn_tree_above(tree, parent_slot(loader, node), root), node->key.tokens);
}

static void find_cached(struct loader *loader)
{
    struct cattn_tree *tree = &loader->cache->tree;
    for (uint32_t i = 0; i < loader->header.n_spaces; i++)
        loader->spaces[i].root = cattn_roots_find(&tree->roots, loader->spaces[i].name, loader->spaces[i].length);
    for (uint32_t i = 0; i < loader->n_nodes; i++) {
        struct node *node = &loader->nodes[i];
        uint32_t root = loader->spaces[node->key.space].root, parent = parent_slot(loader, node);
        if (root == CATTN_NONE || (parent == CATTN_NONE && node->key.parent != CATTN_NONE))
            continue;
        node->slot = cattn_tree_find(tree, parent, root, node->key.tokens, hash_of(loader, node));
        node->cached = node->slot != CATTN_NONE;
    }
}

/* After the demand was counted: a limit counts only for a namespace that takes slots, as in a step. */
static bool can_ever_fit(const struct loader *loader)
{
    const struct cattn_tree *tree = &loader->cache->tree;
    for (uint32_t i = 0; i < loader->header.n_spaces; i++) {
        const struct space *space = &loader->spaces[i];
        const struct cattn_root *root = space->root == CATTN_NONE ? NULL : cattn_roots_at(&tree->roots, space->root);
        if (root && root->limit && root->n_new && space->n_nodes > root->limit)
            return false;
    }
    return loader->n_nodes <= tree->n_slots;
}

/* *n_new: slots to be taken; they are the demand, too. */
static int count_slots(const struct loader *loader, uint32_t *n_new)
{
    struct cattn_tree *tree = &loader->cache->tree;
    uint64_t n_unreferenced = 0, n_pins = 0;
    *n_new = 0;
    for (uint32_t i = 0; i < loader->n_nodes; i++) {
        const struct node *node = &loader->nodes[i];
        struct space *space = &loader->spaces[node->key.space];
        bool is_idle = node->cached && !tree->slots[node->slot].refs;
        *n_new += !node->cached;
        n_unreferenced += is_idle;
        n_pins += node->pins;
        space->n_nodes++;
        if (tree->order.n_settings)
            cattn_demand_add(tree, space->root, !node->cached, is_idle);
    }
    if (!can_ever_fit(loader))
        return CATTN_ETOOBIG;
    if (*n_new > (uint64_t)tree->n_free + tree->n_evictable - n_unreferenced ||
        (tree->order.n_settings && (cattn_demand_above(tree) != CATTN_NONE || !cattn_demand_has_room(tree))))
        return CATTN_EFULL;
    return n_pins > UINT32_MAX - tree->n_pins ? CATTN_ENOMEM : CATTN_OK;
}

/* The records of the namespaces that are needed, each referred to. */
static int hold_spaces(struct loader *loader)
{
    struct cattn_roots *roots = &loader->cache->tree.roots;
    for (uint32_t i = 0; i < loader->n_nodes; i++) {
        struct space *space = &loader->spaces[loader->nodes[i].key.space];
        if (space->held)
            continue;
        if (cattn_readers_enter(&loader->cache->tree, space->name, space->length, &space->root))
            return CATTN_ENOMEM;
        cattn_roots_acquire(roots, space->root);
        space->held = true;
    }
    return CATTN_OK;
}

static void drop_spaces(struct loader *loader)
{
    for (uint32_t i = 0; loader->spaces && i < loader->header.n_spaces; i++) {
        if (loader->spaces[i].held)
            cattn_roots_drop(&loader->cache->tree.roots, loader->spaces[i].root);
    }
}

static void take_slots(struct loader *loader, uint32_t n_new)
{
    struct cattn_tree *tree = &loader->cache->tree;
    for (uint32_t i = 0; i < loader->n_nodes; i++) {
        if (loader->nodes[i].cached)
            cattn_tree_acquire(tree, loader->nodes[i].slot);
    }
    if (tree->order.n_settings)
        cattn_demand_meet(tree);
    else if (n_new > tree->n_free)
        cattn_tree_evict(tree, n_new - tree->n_free);
    for (uint32_t i = 0; i < loader->n_nodes; i++) {
        struct node *node = &loader->nodes[i];
        if (node->cached)
            continue;
        node->slot = cattn_tree_take(tree, parent_slot(loader, node), loader->spaces[node->key.space].root, 0);
        memcpy(cattn_tree_tokens(tree, node->slot), node->key.tokens, tree->chunk_tokens * sizeof(int32_t));
        cattn_tree_set_fill(tree, node->slot, tree->chunk_tokens);
        tree->slots[node->slot].dirty = tree->chunk_tokens;
    }
}

/* Slots that are not published are freed. */
static void drop_slots(struct loader *loader)
{
    for (uint32_t i = loader->n_nodes; i-- > 0;)
        cattn_tree_unref(&loader->cache->tree, loader->nodes[i].slot);
}

/* ---- the second pass */

/* The pieces of one layer and head of a chunk. */
static void put_pieces(struct loader *loader, const struct chunk *chunk, uint32_t layer, uint32_t head)
{
    const struct cattn_cache *cache = loader->cache;
    const uint32_t c = cache->shape.chunk_tokens, n = loader->header.chunk_tokens;
    for (uint32_t i = chunk->pieces; i != CATTN_NONE; i = loader->pieces[i].next) {
        const struct piece *piece = &loader->pieces[i];
        const struct node *node = &loader->nodes[piece->node];
        const unsigned char *tokens = loader->tokens + (size_t)piece->from * loader->header.token_bytes;
        if (!node->cached)
            cache->backend->put(cache->store, node->slot, layer, head, piece->at, c < n ? c : n, tokens);
    }
}

static int fill_from_chunk(struct loader *loader, const struct chunk *chunk)
{
    for (uint32_t layer = 0; layer < loader->header.n_layers; layer++) {
        for (uint32_t head = 0; head < loader->header.n_kv_heads; head++) {
            int status = cattn_input_read(&loader->input, loader->tokens, loader->n_bytes);
            if (status)
                return status;
            put_pieces(loader, chunk, layer, head);
        }
    }
    return cattn_input_end_section(&loader->input);
}

static int fill_slots(struct loader *loader)
{
    int status = CATTN_OK;
    cattn_input_seek(&loader->input, loader->data_offset, loader->data_crc);
    for (uint32_t i = 0; !status && i < loader->header.n_chunks; i++)
        status = fill_from_chunk(loader, &loader->chunks[i]);
    return status;
}

static void publish(struct loader *loader)
{
    struct cattn_tree *tree = &loader->cache->tree;
    for (uint32_t i = 0; i < loader->n_nodes; i++) {
        const struct node *node = &loader->nodes[i];
        if (!node->cached)
            cattn_tree_publish(tree, node->slot, hash_of(loader, node));
        if (node->pins)
            cattn_tree_add_pins(tree, node->slot, (uint32_t)node->pins);
    }
}

static uint64_t count_pinned_tokens(const struct loader *loader)
{
    const struct cattn_tree *tree = &loader->cache->tree;
    uint64_t n = 0;
    for (uint32_t i = 0; i < loader->n_nodes; i++)
        n += tree->slots[loader->nodes[i].slot].pinned > 0;
    return n * tree->chunk_tokens;
}

/* ---- all of it */

static int check_file(struct loader *loader, const void *model, size_t model_len)
{
    int status = read_header(loader);
    if (!status)
        status = check_model(loader, model, model_len);
    if (!status)
        status = read_tree(loader);
    if (!status)
        status = check_data(loader);
    return status ? status : parse_tree(loader);
}

static int enter(struct loader *loader)
{
    uint32_t n_new;
    int status = make_nodes(loader);
    if (status)
        return status;
    find_cached(loader);
    status = count_slots(loader, &n_new);
    if (!status)
        status = hold_spaces(loader);
    if (status)
        return status;
    take_slots(loader, n_new);
    status = n_new ? fill_slots(loader) : CATTN_OK;
    if (!status)
        status = cattn_store_sync(loader->cache->backend, loader->cache->store);
    if (!status)
        publish(loader);
    drop_slots(loader);
    return status;
}

static int load_pinned(struct cattn_cache *cache, const char *path, const void *model, size_t model_len,
                       uint64_t *n_tokens)
{
    if (!cache || !path || (!model && model_len))
        return CATTN_EINVAL;
    if (cache->open_step)
        return CATTN_ESTATE;
    if (cattn_store_status(cache->backend, cache->store))
        return CATTN_EDEVICE;
    struct loader loader = {.cache = cache};
    int status = cattn_input_open(&loader.input, path);
    if (status)
        return status;
    status = check_file(&loader, model, model_len);
    if (!status)
        status = enter(&loader);
    cattn_demand_clear(&cache->tree);
    if (!status && n_tokens)
        *n_tokens = count_pinned_tokens(&loader);
    drop_spaces(&loader);
    drop_extras(&loader);
    cattn_input_close(&loader.input);
    cattn_free(loader.tree);
    cattn_free(loader.chunks);
    cattn_free(loader.spaces);
    cattn_free(loader.ids);
    cattn_free(loader.nodes);
    cattn_free(loader.pieces);
    cattn_free(loader.joined);
    cattn_free(loader.set.entries);
    cattn_free(loader.tokens);
    return status;
}

int cattn_prefix_load(cattn_cache *cache, const char *path, const void *model, size_t model_len, uint64_t *n_tokens)
{
    return CATTN_LOCKED(cache, load_pinned(cache, path, model, model_len, n_tokens));
}

#include "saved_file.h"

#include <string.h>

enum { SUM = 4, HEADER = sizeof(struct cattn_save_header), NODE = sizeof(struct cattn_save_chunk) };

/* CRC-32 as in zlib, bit by bit. */
static uint32_t add_to_sum(uint32_t sum, const unsigned char *data, size_t n)
{
    sum = ~sum;
    for (size_t i = 0; i < n; i++) {
        sum ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0);
    }
    return ~sum;
}

static uint64_t chunk_bytes(const struct cattn_save_header *header)
{
    return (uint64_t)header->n_layers * header->n_kv_heads * header->chunk_tokens * header->token_bytes;
}

/* ---- checksums: of the header, the model, the tree and each chunk */

static size_t section_bytes(const struct cattn_save_header *header, size_t i)
{
    const uint64_t lengths[] = {HEADER, header->model_bytes, header->tree_bytes, chunk_bytes(header)};
    uint64_t n = lengths[i < 3 ? i : 3];
    return n < SIZE_MAX / 2 ? (size_t)n : SIZE_MAX / 2;
}

/* Calls visit with each sum that there is room for. */
static bool each_sum(unsigned char *data, size_t size, bool (*visit)(unsigned char *place, uint32_t sum))
{
    struct cattn_save_header header;
    uint32_t sum = 0;
    size_t at = 0;
    memcpy(&header, data, HEADER);
    for (size_t i = 0; at < size; i++) {
        size_t n = section_bytes(&header, i);
        if (n > size - at || size - at - n < SUM)
            return false;
        sum = add_to_sum(sum, data + at, n);
        if (!visit(data + at + n, sum))
            return false;
        at += n + SUM;
    }
    return true;
}

static bool compare_sum(unsigned char *place, uint32_t sum)
{
    return !memcmp(place, &sum, SUM);
}

static bool write_sum(unsigned char *place, uint32_t sum)
{
    memcpy(place, &sum, SUM);
    return true;
}

/* ---- reading */

static bool header_fits(const struct cattn_save_header *found, const struct cattn_save_header *cache)
{
    uint32_t n = found->chunk_tokens, c = cache->chunk_tokens;
    return !memcmp(found->magic, cache->magic, sizeof(found->magic)) && found->version == cache->version &&
           found->n_layers == cache->n_layers && found->n_kv_heads == cache->n_kv_heads &&
           found->head_dim == cache->head_dim && found->v_head_dim == cache->v_head_dim &&
           found->kv_dtype == cache->kv_dtype && found->token_bytes == cache->token_bytes && !found->n_extras &&
           !found->zero && n >= 1 && n <= 65536 && (n % c == 0 || c % n == 0);
}

/* Where the sections begin, if together they are as long as the file. */
static bool find_sections(struct saved *file)
{
    const struct cattn_save_header *header = &file->header;
    uint64_t length = HEADER + 3 * SUM;
    if (header->model_bytes > file->size || header->tree_bytes > file->size || header->n_chunks > file->size)
        return false;
    file->chunk_bytes = (size_t)chunk_bytes(header);
    file->tree = HEADER + SUM + (size_t)header->model_bytes + SUM;
    file->blocks = file->tree + (size_t)header->tree_bytes + SUM;
    length += header->model_bytes + header->tree_bytes + header->n_chunks * (chunk_bytes(header) + SUM);
    return length == file->size;
}

static bool model_fits(const struct saved *file)
{
    size_t n = strlen(SAVED_MODEL);
    return file->header.model_bytes == n && !memcmp(file->data + HEADER + SUM, SAVED_MODEL, n);
}

static size_t node_bytes(const struct saved *file)
{
    return NODE + file->header.chunk_tokens * sizeof(int32_t);
}

static bool node_fits(const struct saved *file, uint32_t i)
{
    struct cattn_save_chunk x = saved_chunk(file, i);
    if (x.n_extras || x.space >= file->header.n_spaces)
        return false;
    return x.parent == CATTN_NONE || (x.parent < i && saved_chunk(file, x.parent).space == x.space);
}

static bool is_twin(const struct saved *file, uint32_t i, uint32_t k)
{
    struct cattn_save_chunk a = saved_chunk(file, i), b = saved_chunk(file, k);
    return a.parent == b.parent && a.space == b.space &&
           !memcmp(saved_tokens(file, i), saved_tokens(file, k), file->header.chunk_tokens * sizeof(int32_t));
}

/* Each is there once, and wanted. */
static bool nodes_fit(const struct saved *file)
{
    for (uint32_t i = 0; i < file->header.n_chunks; i++) {
        bool wanted = saved_chunk(file, i).pins;
        if (!node_fits(file, i))
            return false;
        for (uint32_t k = 0; k < i; k++) {
            if (is_twin(file, i, k))
                return false;
        }
        for (uint32_t k = i + 1; !wanted && k < file->header.n_chunks; k++)
            wanted = saved_chunk(file, k).parent == i;
        if (!wanted)
            return false;
    }
    return true;
}

/* The name at the place given, which goes on to the next.  False: it does not end within the tree. */
static bool next_name(const struct saved *file, size_t *at, struct saved_name *name)
{
    size_t end = file->tree + (size_t)file->header.tree_bytes;
    if (end - *at < sizeof(name->length))
        return false;
    memcpy(&name->length, file->data + *at, sizeof(name->length));
    *at += sizeof(name->length);
    if (name->length > end - *at)
        return false;
    name->bytes = file->data + *at;
    *at += (size_t)name->length;
    return true;
}

static size_t names_begin(const struct saved *file)
{
    return file->tree + file->header.n_chunks * node_bytes(file);
}

static bool names_fit(const struct saved *file)
{
    size_t at = names_begin(file);
    struct saved_name name, other;
    for (uint32_t i = 0; i < file->header.n_spaces; i++) {
        if (!next_name(file, &at, &name))
            return false;
        for (uint32_t k = 0; k < i; k++) {
            other = saved_name(file, k);
            if (other.length == name.length && !memcmp(other.bytes, name.bytes, (size_t)name.length))
                return false;
        }
    }
    return at == file->tree + file->header.tree_bytes;
}

bool saved_read(struct saved *file, const unsigned char *data, size_t size, const struct cattn_save_header *cache)
{
    *file = (struct saved){.data = data, .size = size};
    if (size < HEADER + 3 * SUM)
        return false;
    memcpy(&file->header, data, HEADER);
    if (!header_fits(&file->header, cache) || !find_sections(file) || !model_fits(file) ||
        !each_sum((unsigned char *)data, size, compare_sum))
        return false;
    return file->header.n_chunks * node_bytes(file) <= file->header.tree_bytes && nodes_fit(file) && names_fit(file);
}

struct cattn_save_chunk saved_chunk(const struct saved *file, uint32_t i)
{
    struct cattn_save_chunk chunk;
    memcpy(&chunk, file->data + file->tree + i * node_bytes(file), NODE);
    return chunk;
}

const unsigned char *saved_tokens(const struct saved *file, uint32_t i)
{
    return file->data + file->tree + i * node_bytes(file) + NODE;
}

struct saved_name saved_name(const struct saved *file, uint32_t space)
{
    struct saved_name name = {NULL, 0};
    size_t at = names_begin(file);
    do
        next_name(file, &at, &name);
    while (space--);
    return name;
}

const unsigned char *saved_token(const struct saved *file, uint32_t i, uint32_t block, uint32_t at)
{
    size_t token = (size_t)block * file->header.chunk_tokens + at;
    return file->data + file->blocks + i * (file->chunk_bytes + SUM) + token * file->header.token_bytes;
}

/* ---- edits */

/* The next of some small numbers. */
static uint32_t draw(uint64_t *how, uint64_t n)
{
    uint64_t drawn = n ? *how % n : 0;
    *how = n ? *how / n : *how;
    return (uint32_t)drawn;
}

static void edit_header(struct cattn_save_header *header, uint64_t how)
{
    uint32_t change = draw(&how, 2) ? 1 : UINT32_MAX;
    switch (draw(&how, 8)) {
    case 0: header->n_chunks += change; break;
    case 1: header->n_spaces += change; break;
    case 2: header->tree_bytes += (uint64_t)(int32_t)change << draw(&how, 4); break;
    case 3: header->model_bytes += (uint64_t)(int32_t)change; break;
    case 4: header->chunk_tokens = draw(&how, 5) * header->chunk_tokens / 2; break;
    case 5: header->n_spaces = UINT32_MAX - draw(&how, 512); break;
    case 6: header->tree_bytes = UINT64_MAX - draw(&how, 512); break;
    default: ((uint32_t *)(void *)header)[draw(&how, HEADER / 4)] += change; break;
    }
}

/* All chunks of a namespace go to another one. */
static void move_space(const struct saved *file, unsigned char *nodes, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < file->header.n_chunks; i++) {
        struct cattn_save_chunk x = saved_chunk(file, i);
        if (x.space == from)
            x.space = to;
        memcpy(nodes + i * node_bytes(file), &x, NODE);
    }
}

static void edit_chunk(const struct saved *file, unsigned char *nodes, uint64_t how)
{
    uint32_t n = file->header.n_chunks, i = draw(&how, n), spaces = file->header.n_spaces;
    size_t bytes = node_bytes(file);
    const uint32_t parents[] = {i, i + 1, i - 1, n - 1, n, CATTN_NONE, draw(&how, n)};
    const uint32_t others[] = {spaces, spaces - 1, 0, draw(&how, spaces)}, pins[] = {0, 1, UINT32_MAX, UINT32_MAX - 9};
    struct cattn_save_chunk x = saved_chunk(file, i);
    switch (draw(&how, 6)) {
    case 0: x.parent = parents[draw(&how, 7)]; break;
    case 1: x.space = others[draw(&how, 4)]; break;
    case 2: x.pins = pins[draw(&how, 4)]; break;
    case 3: x.n_extras = 1; break;
    case 4: move_space(file, nodes, x.space, others[draw(&how, 4)]); return;
    default: { /* a twin, or nearly one */
        uint32_t twin = draw(&how, n);
        memcpy(nodes + i * bytes, nodes + twin * bytes, bytes);
        x = saved_chunk(file, twin);
        x.pins++;
    }
    }
    memcpy(nodes + i * bytes, &x, NODE);
}

/* Its length, or the first byte, which makes it equal to another one. */
static void edit_name(const struct saved *file, unsigned char *data, uint64_t how)
{
    size_t at = names_begin(file), begin = at;
    struct saved_name name = {NULL, 0};
    for (uint32_t i = draw(&how, file->header.n_spaces) + 1; i > 0; i--) {
        begin = at;
        if (!next_name(file, &at, &name))
            return;
    }
    const uint64_t lengths[] = {0, name.length + 1, name.length - 1, UINT64_MAX, UINT64_MAX - 8 - begin};
    uint32_t which = draw(&how, 8);
    if (which < 5)
        memcpy(data + begin, &lengths[which], sizeof(name.length));
    else if (name.length)
        data[begin + sizeof(name.length)] = (unsigned char)('a' + which % 2);
}

void saved_edit(unsigned char *data, size_t size, uint64_t how)
{
    struct saved file = {.data = data, .size = size};
    if (size < HEADER)
        return;
    memcpy(&file.header, data, HEADER);
    uint32_t what = draw(&how, 4);
    if (what == 0) {
        edit_header(&file.header, how);
        memcpy(data, &file.header, HEADER);
        return;
    }
    if (what == 1 && size > HEADER + SUM && draw(&how, 2)) { /* another model */
        data[HEADER + SUM] ^= 1;
        return;
    }
    if (!find_sections(&file) || names_begin(&file) > file.blocks - SUM || !file.header.n_chunks)
        return;
    if (what == 1)
        edit_name(&file, data, how);
    else
        edit_chunk(&file, data + file.tree, how);
}

/* ---- repair */

static void repair_shape(struct cattn_save_header *header, const struct cattn_save_header *cache)
{
    struct cattn_save_header repaired = *cache;
    repaired.chunk_tokens = header->chunk_tokens;
    repaired.n_chunks = header->n_chunks;
    repaired.n_spaces = header->n_spaces;
    repaired.model_bytes = header->model_bytes;
    repaired.tree_bytes = header->tree_bytes;
    *header = repaired;
}

static void repair_data(unsigned char *data, size_t *size, const struct cattn_save_header *header)
{
    if (header->n_chunks > SAVED_MAX || header->model_bytes > SAVED_MAX || header->tree_bytes > SAVED_MAX ||
        chunk_bytes(header) > SAVED_MAX)
        return;
    uint64_t wanted =
        HEADER + 3 * SUM + header->model_bytes + header->tree_bytes + header->n_chunks * (chunk_bytes(header) + SUM);
    if (wanted > SAVED_MAX)
        return;
    if (wanted > *size)
        memset(data + *size, 0, (size_t)wanted - *size);
    *size = (size_t)wanted;
}

static void repair_tree(struct cattn_save_header *header, size_t size)
{
    if (header->n_chunks > size || header->model_bytes > size || chunk_bytes(header) > size)
        return;
    uint64_t others = HEADER + 3 * SUM + header->model_bytes + header->n_chunks * (chunk_bytes(header) + SUM);
    if (others <= size)
        header->tree_bytes = size - others;
}

void saved_repair(unsigned char *data, size_t *size, const struct cattn_save_header *cache, unsigned what)
{
    struct cattn_save_header header;
    if (*size < HEADER)
        return;
    memcpy(&header, data, HEADER);
    if (what & SAVED_REPAIR_SHAPE)
        repair_shape(&header, cache);
    if (what & SAVED_REPAIR_TREE)
        repair_tree(&header, *size);
    memcpy(data, &header, HEADER);
    if (what & SAVED_REPAIR_DATA)
        repair_data(data, size, &header);
    if (what & SAVED_REPAIR_SUMS)
        each_sum(data, *size, write_sum);
}

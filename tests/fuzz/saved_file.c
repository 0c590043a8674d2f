#include "saved_file.h"

#include <string.h>

enum {
    SUM = 4,
    HEADER = sizeof(struct cattn_save_header),
    NODE = sizeof(struct cattn_save_chunk),
    EXTRA = sizeof(struct cattn_save_extra),
    TOKEN = sizeof(int32_t)
};

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
           found->kv_dtype == cache->kv_dtype && found->token_bytes == cache->token_bytes && !found->zero && n >= 1 &&
           n <= 65536 && (n % c == 0 || c % n == 0);
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

/* Where the tree ends. */
static size_t tree_end(const struct saved *file)
{
    return file->tree + (size_t)file->header.tree_bytes;
}

/* The chunks, each as long as it says. */
static bool find_nodes(struct saved *file)
{
    size_t at = file->tree, end = tree_end(file);
    for (uint32_t i = 0; i < file->header.n_chunks; i++) {
        struct cattn_save_chunk x;
        file->nodes[i] = (uint32_t)at;
        if (end - at < NODE)
            return false;
        memcpy(&x, file->data + at, NODE);
        uint64_t length = NODE + (uint64_t)x.n_extras * EXTRA + (uint64_t)file->header.chunk_tokens * TOKEN;
        if (end - at < length)
            return false;
        at += (size_t)length;
    }
    file->nodes[file->header.n_chunks] = (uint32_t)at;
    return true;
}

static uint64_t n_strings(const struct saved *file)
{
    return (uint64_t)file->header.n_spaces + file->header.n_extras;
}

/* Names and extra identities, up to the end of the tree. */
static bool find_strings(struct saved *file)
{
    size_t at = file->nodes[file->header.n_chunks], end = tree_end(file);
    for (uint64_t i = 0; i < n_strings(file); i++) {
        uint64_t length;
        file->strings[i] = (uint32_t)at;
        if (end - at < sizeof(length))
            return false;
        memcpy(&length, file->data + at, sizeof(length));
        at += sizeof(length);
        if (end - at < length)
            return false;
        at += (size_t)length;
    }
    file->strings[n_strings(file)] = (uint32_t)at;
    return at == end;
}

static struct saved_bytes string(const struct saved *file, uint64_t i)
{
    size_t begin = file->strings[i] + sizeof(uint64_t);
    return (struct saved_bytes){file->data + begin, file->strings[i + 1] - begin};
}

static bool equal_bytes(struct saved_bytes a, struct saved_bytes b)
{
    return a.length == b.length && (!a.length || !memcmp(a.at, b.at, a.length));
}

static struct cattn_save_extra extra(const struct saved *file, uint32_t i, uint32_t k)
{
    struct cattn_save_extra x;
    memcpy(&x, file->data + file->nodes[i] + NODE + k * EXTRA, EXTRA);
    return x;
}

/* By ascending offset, of tokens that are there, and of identities that are. */
static bool extras_fit(const struct saved *file, uint32_t i)
{
    int64_t last = -1;
    for (uint32_t k = 0; k < saved_chunk(file, i).n_extras; k++) {
        struct cattn_save_extra x = extra(file, i, k);
        if (x.offset <= last || x.offset >= file->header.chunk_tokens || x.id >= file->header.n_extras)
            return false;
        last = x.offset;
    }
    return true;
}

static bool tokens_fit(const struct saved *file, uint32_t i)
{
    for (uint32_t k = 0; k < file->header.chunk_tokens; k++) {
        int32_t token;
        memcpy(&token, saved_tokens(file, i) + k * TOKEN, TOKEN);
        if (token < 0)
            return false;
    }
    return true;
}

static bool node_fits(const struct saved *file, uint32_t i)
{
    struct cattn_save_chunk x = saved_chunk(file, i);
    if (x.space >= file->header.n_spaces || !extras_fit(file, i) || !tokens_fit(file, i))
        return false;
    return x.parent == CATTN_NONE || x.parent < i;
}

/* The namespace of what is above a chunk, where that is another one; or CATTN_NONE. */
static uint32_t space_above(const struct saved *file, uint32_t i)
{
    struct cattn_save_chunk x = saved_chunk(file, i);
    uint32_t above = x.parent == CATTN_NONE ? x.space : saved_chunk(file, x.parent).space;
    return above == x.space ? CATTN_NONE : above;
}

/* Whether no namespace reads two others, or one that reads itself. */
static bool publics_fit(const struct saved *file)
{
    for (uint32_t i = 0; i < file->header.n_chunks; i++) {
        uint32_t public = space_above(file, i), space = saved_chunk(file, i).space;
        for (uint32_t k = 0; public != CATTN_NONE && k < file->header.n_chunks; k++) {
            uint32_t other = space_above(file, k), reader = saved_chunk(file, k).space;
            if (other != CATTN_NONE && (reader == public || (reader == space && other != public)))
                return false;
        }
    }
    return true;
}

bool saved_crosses(const struct saved *file)
{
    for (uint32_t i = 0; i < file->header.n_chunks; i++) {
        if (space_above(file, i) != CATTN_NONE)
            return true;
    }
    return false;
}

/* Each is there once, and wanted. */
static bool nodes_fit(const struct saved *file)
{
    for (uint32_t i = 0; i < file->header.n_chunks; i++) {
        bool wanted = saved_chunk(file, i).pins;
        if (!node_fits(file, i))
            return false;
        for (uint32_t k = 0; k < i; k++) {
            if (saved_alike(file, i, k, file->header.chunk_tokens))
                return false;
        }
        for (uint32_t k = i + 1; !wanted && k < file->header.n_chunks; k++)
            wanted = saved_chunk(file, k).parent == i;
        if (!wanted)
            return false;
    }
    return true;
}

static bool has_string(const struct saved *file, uint32_t i, uint64_t wanted)
{
    struct cattn_save_chunk x = saved_chunk(file, i);
    bool found = x.space == wanted;
    for (uint32_t k = 0; k < x.n_extras; k++)
        found |= (uint64_t)extra(file, i, k).id + file->header.n_spaces == wanted;
    return found;
}

/* Names and extra identities, too; the latter have bytes. */
static bool strings_fit(const struct saved *file)
{
    for (uint64_t i = 0; i < n_strings(file); i++) {
        bool is_extra = i >= file->header.n_spaces, wanted = false;
        if (is_extra && !string(file, i).length)
            return false;
        for (uint64_t k = is_extra ? file->header.n_spaces : 0; k < i; k++) {
            if (equal_bytes(string(file, i), string(file, k)))
                return false;
        }
        for (uint32_t k = 0; !wanted && k < file->header.n_chunks; k++)
            wanted = has_string(file, k, i);
        if (!wanted)
            return false;
    }
    return true;
}

bool saved_read(struct saved *file, const unsigned char *data, size_t size, const struct cattn_save_header *cache)
{
    file->data = data;
    file->size = size;
    if (size < HEADER + 3 * SUM || size > SAVED_MAX)
        return false;
    memcpy(&file->header, data, HEADER);
    if (!header_fits(&file->header, cache) || !find_sections(file) || !model_fits(file) ||
        !each_sum((unsigned char *)data, size, compare_sum))
        return false;
    return find_nodes(file) && find_strings(file) && nodes_fit(file) && publics_fit(file) && strings_fit(file);
}

struct cattn_save_chunk saved_chunk(const struct saved *file, uint32_t i)
{
    struct cattn_save_chunk chunk;
    memcpy(&chunk, file->data + file->nodes[i], NODE);
    return chunk;
}

const unsigned char *saved_tokens(const struct saved *file, uint32_t i)
{
    return file->data + file->nodes[i + 1] - file->header.chunk_tokens * TOKEN;
}

struct saved_bytes saved_name(const struct saved *file, uint32_t space)
{
    return string(file, space);
}

struct saved_bytes saved_extra(const struct saved *file, uint32_t i, uint32_t at)
{
    for (uint32_t k = 0; k < saved_chunk(file, i).n_extras; k++) {
        struct cattn_save_extra x = extra(file, i, k);
        if (x.offset == at)
            return string(file, (uint64_t)file->header.n_spaces + x.id);
    }
    return (struct saved_bytes){NULL, 0};
}

bool saved_alike(const struct saved *file, uint32_t i, uint32_t k, uint32_t n)
{
    struct cattn_save_chunk a = saved_chunk(file, i), b = saved_chunk(file, k);
    if (a.parent != b.parent || a.space != b.space || memcmp(saved_tokens(file, i), saved_tokens(file, k), n * TOKEN))
        return false;
    for (uint32_t at = 0; at < n; at++) {
        if (!equal_bytes(saved_extra(file, i, at), saved_extra(file, k, at)))
            return false;
    }
    return true;
}

const unsigned char *saved_token(const struct saved *file, uint32_t i, uint32_t block, uint32_t at)
{
    size_t token = (size_t)block * file->header.chunk_tokens + at;
    return file->data + file->blocks + i * (file->chunk_bytes + SUM) + token * file->header.token_bytes;
}

/* ---- edits */

struct edit {
    struct saved *file; /* as it was */
    unsigned char *data;
    size_t *size;
    uint64_t how;
};

/* The next of some small numbers. */
static uint32_t draw(struct edit *edit, uint64_t n)
{
    uint64_t drawn = n ? edit->how % n : 0;
    edit->how = n ? edit->how / n : edit->how;
    return (uint32_t)drawn;
}

static void put_header(struct edit *edit)
{
    memcpy(edit->data, &edit->file->header, HEADER);
}

/* Other bytes in the place of n bytes of the tree. */
static void replace(struct edit *edit, size_t at, size_t n, const void *bytes, size_t n_bytes)
{
    static unsigned char copy[SAVED_MAX];
    if (*edit->size - n + n_bytes > SAVED_MAX)
        return;
    memcpy(copy, bytes, n_bytes);
    memmove(edit->data + at + n_bytes, edit->data + at + n, *edit->size - at - n);
    memcpy(edit->data + at, copy, n_bytes);
    *edit->size = *edit->size - n + n_bytes;
    edit->file->header.tree_bytes += n_bytes;
    edit->file->header.tree_bytes -= n;
    put_header(edit);
}

static void edit_header(struct edit *edit)
{
    struct cattn_save_header *header = &edit->file->header;
    uint32_t change = draw(edit, 2) ? 1 : UINT32_MAX;
    switch (draw(edit, 10)) {
    case 0: header->n_chunks += change; break;
    case 1: header->n_spaces += change; break;
    case 2: header->tree_bytes += (uint64_t)(int32_t)change << draw(edit, 4); break;
    case 3: header->model_bytes += (uint64_t)(int32_t)change; break;
    case 4: header->chunk_tokens = draw(edit, 5) * header->chunk_tokens / 2; break;
    case 5: header->n_spaces = UINT32_MAX - draw(edit, 512); break;
    case 6: header->tree_bytes = UINT64_MAX - draw(edit, 512); break;
    case 7: header->n_extras += change; break;
    case 8: header->n_extras = UINT32_MAX - draw(edit, 512); break;
    default: ((uint32_t *)(void *)header)[draw(edit, HEADER / 4)] += change; break;
    }
    put_header(edit);
}

static void put_chunk(struct edit *edit, uint32_t i, struct cattn_save_chunk x)
{
    memcpy(edit->data + edit->file->nodes[i], &x, NODE);
}

/* All chunks of a namespace go to another one. */
static void move_space(struct edit *edit, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < edit->file->header.n_chunks; i++) {
        struct cattn_save_chunk x = saved_chunk(edit->file, i);
        if (x.space == from)
            x.space = to;
        put_chunk(edit, i, x);
    }
}

/* Makes a chunk the twin of another one, or nearly. */
static void make_twin(struct edit *edit, uint32_t i, uint32_t k)
{
    const uint32_t *nodes = edit->file->nodes;
    struct cattn_save_chunk x = saved_chunk(edit->file, k);
    x.pins++;
    replace(edit, nodes[i], nodes[i + 1] - nodes[i], edit->data + nodes[k], nodes[k + 1] - nodes[k]);
    put_chunk(edit, i, x);
}

static void edit_chunk(struct edit *edit)
{
    const struct cattn_save_header *header = &edit->file->header;
    uint32_t n = header->n_chunks, i = draw(edit, n), spaces = header->n_spaces;
    const uint32_t parents[] = {i, i + 1, i - 1, n - 1, n, CATTN_NONE, draw(edit, n)};
    const uint32_t others[] = {spaces, spaces - 1, 0, draw(edit, spaces)};
    const uint32_t pins[] = {0, 1, UINT32_MAX, UINT32_MAX - 9};
    struct cattn_save_chunk x = saved_chunk(edit->file, i);
    switch (draw(edit, 5)) {
    case 0: x.parent = parents[draw(edit, 7)]; break;
    case 1: x.space = others[draw(edit, 4)]; break;
    case 2: x.pins = pins[draw(edit, 4)]; break;
    case 3: move_space(edit, x.space, others[draw(edit, 4)]); return;
    default: make_twin(edit, i, draw(edit, n)); return;
    }
    put_chunk(edit, i, x);
}

/* One more or less than there are, or as many as fit nowhere. */
static void count_extras(struct edit *edit, uint32_t i)
{
    struct cattn_save_chunk x = saved_chunk(edit->file, i);
    const uint32_t counts[] = {x.n_extras + 1, x.n_extras - 1, UINT32_MAX, UINT32_MAX / EXTRA + 1, 0};
    x.n_extras = counts[draw(edit, 5)];
    put_chunk(edit, i, x);
}

/* A token gets an extra identity, at a place behind those before it. */
static void add_extra(struct edit *edit, uint32_t i)
{
    struct cattn_save_chunk x = saved_chunk(edit->file, i);
    struct cattn_save_extra added = {.offset = draw(edit, edit->file->header.chunk_tokens)};
    uint32_t k = 0;
    added.id = draw(edit, edit->file->header.n_extras);
    while (k < x.n_extras && extra(edit->file, i, k).offset < added.offset)
        k++;
    x.n_extras++;
    put_chunk(edit, i, x);
    replace(edit, edit->file->nodes[i] + NODE + k * EXTRA, 0, &added, EXTRA);
}

static void edit_extra(struct edit *edit, uint32_t i, uint32_t k)
{
    const struct cattn_save_header *header = &edit->file->header;
    struct cattn_save_chunk chunk = saved_chunk(edit->file, i);
    struct cattn_save_extra x = extra(edit->file, i, k), other = extra(edit->file, i, draw(edit, chunk.n_extras));
    size_t at = edit->file->nodes[i] + NODE + k * EXTRA;
    const uint32_t c = header->chunk_tokens, ids = header->n_extras;
    const uint32_t offsets[] = {x.offset + 1, x.offset - 1, c, c - 1, 0, UINT32_MAX, other.offset};
    const uint32_t numbers[] = {ids, ids - 1, 0, UINT32_MAX, draw(edit, ids)};
    switch (draw(edit, 4)) {
    case 0: x.offset = offsets[draw(edit, 7)]; break;
    case 1: x.id = numbers[draw(edit, 5)]; break;
    case 2: x = other; break;
    default:
        chunk.n_extras--;
        put_chunk(edit, i, chunk);
        replace(edit, at, EXTRA, edit->data, 0);
        return;
    }
    memcpy(edit->data + at, &x, EXTRA);
}

static void edit_token(struct edit *edit, uint32_t i)
{
    const int32_t tokens[] = {-1, INT32_MIN, INT32_MAX, 0};
    uint32_t k = draw(edit, edit->file->header.chunk_tokens);
    memcpy(edit->data + (saved_tokens(edit->file, i) - edit->file->data) + k * TOKEN, &tokens[draw(edit, 4)], TOKEN);
}

/* Of a chunk that has extras, if there is one at or behind a place that is drawn. */
static void edit_extras(struct edit *edit)
{
    uint32_t n = edit->file->header.n_chunks, i = draw(edit, n), what = draw(edit, 6);
    while (i + 1 < n && !saved_chunk(edit->file, i).n_extras)
        i++;
    uint32_t n_extras = saved_chunk(edit->file, i).n_extras;
    if (what == 0)
        count_extras(edit, i);
    else if (what == 1)
        edit_token(edit, i);
    else if (what == 2 || !n_extras)
        add_extra(edit, i);
    else
        edit_extra(edit, i, draw(edit, n_extras));
}

/* One more, which may be new, at the end of the names or of the extra identities. */
static void add_string(struct edit *edit, uint32_t i)
{
    const struct saved *file = edit->file;
    bool is_name = i < file->header.n_spaces;
    size_t begin = file->strings[i], end = file->strings[i + 1];
    size_t at = file->strings[is_name ? file->header.n_spaces : n_strings(file)];
    *(is_name ? &edit->file->header.n_spaces : &edit->file->header.n_extras) += 1;
    replace(edit, at, 0, edit->data + begin, end - begin);
    if (draw(edit, 2) && end - begin > sizeof(uint64_t) && at + sizeof(uint64_t) < *edit->size)
        edit->data[at + sizeof(uint64_t)] ^= 64;
}

/* The last name or the last extra identity. */
static void remove_string(struct edit *edit, uint32_t i)
{
    struct saved *file = edit->file;
    bool is_name = i < file->header.n_spaces;
    uint64_t last = (is_name ? file->header.n_spaces : n_strings(file)) - 1;
    *(is_name ? &file->header.n_spaces : &file->header.n_extras) -= 1;
    replace(edit, file->strings[last], file->strings[last + 1] - file->strings[last], edit->data, 0);
}

/* A name or an extra identity becomes equal to another one, without its length. */
static void copy_string(struct edit *edit, uint32_t i, uint32_t k)
{
    const uint32_t *at = edit->file->strings;
    replace(edit, at[i], at[i + 1] - at[i], edit->data + at[k], at[k + 1] - at[k]);
}

/* A length that is wrong. */
static void stretch_string(struct edit *edit, uint32_t i)
{
    uint64_t length = string(edit->file, i).length, begin = edit->file->strings[i];
    const uint64_t lengths[] = {0, length + 1, length - 1, UINT64_MAX, UINT64_MAX - 8 - begin};
    memcpy(edit->data + begin, &lengths[draw(edit, 5)], sizeof(length));
}

/* The first byte. */
static void change_string(struct edit *edit, uint32_t i)
{
    if (string(edit->file, i).length)
        edit->data[edit->file->strings[i] + sizeof(uint64_t)] = (unsigned char)('a' + draw(edit, 2));
}

static void edit_string(struct edit *edit)
{
    static const uint64_t none = 0;
    uint32_t n = (uint32_t)n_strings(edit->file), i = draw(edit, n);
    const uint32_t *at = edit->file->strings;
    if (!n)
        return;
    switch (draw(edit, 8)) {
    case 0: add_string(edit, i); break;
    case 1: remove_string(edit, i); break;
    case 2: copy_string(edit, i, draw(edit, n)); break;
    case 3: replace(edit, at[i], at[i + 1] - at[i], &none, sizeof(none)); break;
    case 4:
    case 5: change_string(edit, i); break;
    default: stretch_string(edit, i); break;
    }
}

void saved_edit(unsigned char *data, size_t *size, uint64_t how)
{
    static struct saved file;
    struct edit edit = {&file, data, size, how};
    file.data = data;
    file.size = *size;
    if (*size < HEADER)
        return;
    memcpy(&file.header, data, HEADER);
    uint32_t what = draw(&edit, 5);
    if (what == 0) {
        edit_header(&edit);
        return;
    }
    if (what == 1 && *size > HEADER + SUM && !draw(&edit, 4)) { /* another model */
        data[HEADER + SUM] ^= 1;
        return;
    }
    if (!find_sections(&file) || !find_nodes(&file) || !find_strings(&file) || !file.header.n_chunks)
        return;
    if (what < 3)
        edit_string(&edit);
    else if (what == 3)
        edit_extras(&edit);
    else
        edit_chunk(&edit);
}

/* ---- repair */

static void repair_shape(struct cattn_save_header *header, const struct cattn_save_header *cache)
{
    struct cattn_save_header repaired = *cache;
    repaired.chunk_tokens = header->chunk_tokens;
    repaired.n_chunks = header->n_chunks;
    repaired.n_spaces = header->n_spaces;
    repaired.n_extras = header->n_extras;
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

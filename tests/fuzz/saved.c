/* Files of prefixes: an input is a choice of cache, and what is to be loaded into it, damaged and perhaps repaired so
 * that its checksums are good again.  A reader of its own says which files are good.  Those must be loaded, chunk by
 * chunk and byte by byte, and come out again when they are saved; the others change nothing. */
#define _DEFAULT_SOURCE 1
#include "fuzz.h"
#include "saved_cache.h"
#include "saved_file.h"

#include "lib/failing_memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const fuzz_name = "saved";
const int fuzz_needs_corpus = 1;

enum { MAX_BLOCK = 8192 };

static struct saved_choice choice;
static cattn_cache *cache;
static struct saved file, saved_again;
static char path[2][64]; /* of what is loaded, and of what is saved; in the folder that it runs in */
static unsigned char input[SAVED_MAX];
static size_t input_size;
static bool failed; /* an allocation of the load */

/* What was cached before, in namespace "a": a prompt, and its rival. */
static struct cached {
    struct saved_prompt prompt;
    size_t n;      /* its tokens in whole chunks; 0: it is not cached */
    bool held;     /* by a pin or a sequence */
    cattn_seq seq; /* 0: none */
} before[2];

/* A file need not be on the disk for this. */
int fsync(int descriptor);

int fsync(int descriptor)
{
    (void)descriptor;
    return 0;
}

static void remove_files(void)
{
    unlink(path[0]);
    unlink(path[1]);
}

static void name_files(void)
{
    if (*path[0])
        return;
    for (int i = 0; i < 2; i++)
        snprintf(path[i], sizeof(path[i]), "fuzz-saved-%ld-%d", (long)getpid(), i);
    atexit(remove_files);
}

static void write_input(void)
{
    int descriptor = open(path[0], O_WRONLY | O_CREAT | O_TRUNC, 0600);
    FUZZ_CHECK(descriptor >= 0 && write(descriptor, input, input_size) == (ssize_t)input_size, "%s: not written",
               path[0]);
    close(descriptor);
}

static unsigned char *read_file(const char *name, size_t *n)
{
    unsigned char *bytes = malloc(1 << 24);
    int descriptor = open(name, O_RDONLY);
    ssize_t got = bytes && descriptor >= 0 ? read(descriptor, bytes, 1 << 24) : -1;
    FUZZ_CHECK(got >= 0 && got < 1 << 24, "%s: not read", name);
    close(descriptor);
    *n = (size_t)got;
    return bytes;
}

/* The lowest descriptor that is free. */
static int free_descriptor(void)
{
    int descriptor = dup(0);
    if (descriptor >= 0)
        close(descriptor);
    return descriptor;
}

/* ---- all of a cache */

struct snapshot {
    struct cattn_stats stats;
    uint64_t drawing, slots, bytes;
    uint64_t ids, tokens; /* that have an extra identity */
};

static uint64_t mix(uint64_t hash, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static int draw(void *context, const char *text, size_t n)
{
    uint64_t *hash = context;
    *hash = mix(*hash, text, n);
    return 0;
}

static uint32_t n_blocks(void)
{
    return cache->shape.n_layers * cache->shape.n_kv_heads;
}

/* K and V of some tokens of a slot. */
static size_t get_block(uint32_t slot, uint32_t block, uint32_t begin, uint32_t n, unsigned char *bytes)
{
    size_t size = n * cache->backend->token_bytes(&cache->shape);
    uint32_t heads = cache->shape.n_kv_heads;
    FUZZ_CHECK(size <= MAX_BLOCK, "a block is too long");
    cache->backend->get(cache->store, slot, block / heads, block % heads, begin, n, bytes);
    return size;
}

static uint64_t hash_bytes(uint64_t hash, uint32_t slot)
{
    unsigned char bytes[MAX_BLOCK];
    for (uint32_t block = 0; block < n_blocks(); block++)
        hash = mix(hash, bytes, get_block(slot, block, 0, cache->shape.chunk_tokens, bytes));
    return hash;
}

static struct snapshot look(void)
{
    struct snapshot now;
    const struct cattn_tree *tree = &cache->tree;
    memset(&now, 0, sizeof(now));
    now.stats.size = sizeof(now.stats);
    FUZZ_CHECK(!cattn_cache_stats(cache, &now.stats), "stats");
    FUZZ_CHECK(!cattn_cache_dump_dot(cache, draw, &now.drawing), "dump_dot");
    FUZZ_CHECK(!cattn_cache_selfcheck(cache), "selfcheck");
    now.ids = tree->extras.ids.n_used;
    now.tokens = tree->extras.tokens.n_used;
    now.slots = mix(tree->oldest, tree->slots, tree->n_slots * sizeof(*tree->slots));
    for (uint32_t slot = 0; slot < tree->n_touched; slot++) {
        if (tree->slots[slot].published)
            now.bytes = hash_bytes(now.bytes, slot);
    }
    return now;
}

/* ---- what was there before */

static void cache_prompt(struct cached *x, bool keep)
{
    uint32_t c = choice.chunk_tokens;
    if (!saved_feed(cache, 1, &x->prompt, keep ? &x->seq : NULL))
        x->n = x->prompt.n / c * c;
    x->held = keep && x->n;
}

static void pin_prompt(struct cached *x)
{
    x->held = !cattn_prefix_pin(cache, "a", 1, x->prompt.tokens, x->n, &x->prompt.ext);
}

/* The rival comes first, so that the prompt takes what it has left. */
static void fill_cache(void)
{
    uint32_t c = choice.chunk_tokens;
    for (int i = 0; i < 2; i++) {
        before[i].n = 0;
        before[i].seq = 0;
        before[i].held = false;
        saved_prompt(&before[i].prompt, i ? c : 2 * c + c / 2 + 1, 0, choice.images);
        before[i].prompt.tokens[0] += i;
    }
    if (choice.rival)
        cache_prompt(&before[1], true);
    if (choice.before)
        cache_prompt(&before[0], choice.before == 3);
    if (choice.before == 2 && before[0].n)
        pin_prompt(&before[0]);
    if (!before[0].held && choice.flags & CATTN_NO_RETAIN)
        before[0].n = 0;
}

static struct saved_bytes extra_of(const struct saved_prompt *prompt, size_t at)
{
    for (size_t i = 0; i < prompt->ext.n_extras; i++) {
        const struct cattn_extra *x = &prompt->extras[i];
        if (at >= x->first && at - x->first < x->n)
            return (struct saved_bytes){x->id, x->id_len};
    }
    return (struct saved_bytes){NULL, 0};
}

/* The slots of the whole chunks in n tokens: how many are cached. */
static size_t match(struct saved_bytes name, const int32_t *tokens, size_t n, const struct cattn_ext *ext,
                    uint32_t *slots)
{
    int32_t *numbers;
    uint32_t root = cattn_roots_find(&cache->tree.roots, name.at, name.length);
    if (root == CATTN_NONE)
        return 0;
    FUZZ_CHECK(!cattn_prompt_enter(&cache->tree.extras, tokens, n, ext, &numbers), "no memory");
    size_t found = cattn_tree_match(&cache->tree, root, numbers ? numbers : tokens, n / choice.chunk_tokens, slots);
    cattn_prompt_leave(&cache->tree.extras, numbers, n);
    return found;
}

/* Of the K and V of what is held. */
static uint64_t hash_held(void)
{
    static const struct saved_bytes name = {(const unsigned char *)"a", 1};
    uint32_t slots[4];
    uint64_t hash = 0;
    for (int i = 0; i < 2; i++) {
        const struct cached *x = &before[i];
        if (!x->held)
            continue;
        size_t n = match(name, x->prompt.tokens, x->prompt.n, &x->prompt.ext, slots);
        FUZZ_CHECK(n == x->n / choice.chunk_tokens, "what was held is not cached any more");
        for (size_t k = 0; k < n; k++)
            hash = hash_bytes(hash, slots[k]);
    }
    return hash;
}

/* ---- what a good file must have become */

struct prefix {
    int32_t tokens[SAVED_MAX];
    struct cattn_extra extras[SAVED_MAX];
    struct cattn_ext ext;
    uint32_t chunks[SAVED_MAX]; /* that it consists of */
    size_t n;                   /* tokens */
    struct saved_bytes name;
};

static struct prefix prefix;

static struct saved_bytes extra_of_prefix(size_t at)
{
    uint32_t n = file.header.chunk_tokens;
    return saved_extra(&file, prefix.chunks[at / n], (uint32_t)(at % n));
}

/* The tokens from the root to the end of a chunk. */
static void read_prefix(uint32_t chunk)
{
    size_t c = file.header.chunk_tokens, depth = 0, at;
    for (uint32_t k = chunk; k != CATTN_NONE; k = saved_chunk(&file, k).parent)
        depth++;
    prefix.n = depth * c;
    prefix.name = saved_name(&file, saved_chunk(&file, chunk).space);
    at = depth;
    for (uint32_t k = chunk; at-- > 0; k = saved_chunk(&file, k).parent) {
        prefix.chunks[at] = k;
        memcpy(prefix.tokens + at * c, saved_tokens(&file, k), c * sizeof(int32_t));
    }
    prefix.ext = (struct cattn_ext){.size = sizeof(prefix.ext), .extras = prefix.extras};
    for (at = 0; at < prefix.n; at++) {
        struct saved_bytes id = extra_of_prefix(at);
        if (id.length)
            prefix.extras[prefix.ext.n_extras++] = (struct cattn_extra){at, 1, id.at, id.length};
    }
}

static bool begins_with_prefix(const struct saved_prompt *prompt, size_t n)
{
    if (prefix.name.length != 1 || *prefix.name.at != 'a' || memcmp(prompt->tokens, prefix.tokens, n * sizeof(int32_t)))
        return false;
    for (size_t i = 0; i < n; i++) {
        struct saved_bytes a = extra_of(prompt, i), b = extra_of_prefix(i);
        if (a.length != b.length || (a.length && memcmp(a.at, b.at, a.length)))
            return false;
    }
    return true;
}

/* What was cached before and begins with n tokens of the prefix; NULL: nothing. */
static const struct cached *find_before(size_t n)
{
    for (int i = 0; i < 2; i++) {
        if (n <= before[i].n && begins_with_prefix(&before[i].prompt, n))
            return &before[i];
    }
    return NULL;
}

/* The first chunk of the file that begins with the same n tokens at the same place: where chunks of the cache are
 * smaller these have one in common, which has the K and V of the first. */
static uint32_t first_alike(uint32_t chunk, size_t n)
{
    uint32_t k = 0;
    while (!saved_alike(&file, chunk, k, (uint32_t)n))
        k++;
    return k;
}

static void compare_token(uint32_t slot, uint32_t at_slot, uint32_t chunk, uint32_t at)
{
    unsigned char bytes[MAX_BLOCK];
    for (uint32_t block = 0; block < n_blocks(); block++) {
        size_t size = get_block(slot, block, at_slot, 1, bytes);
        FUZZ_CHECK(!memcmp(bytes, saved_token(&file, chunk, block, at), size),
                   "token %d of chunk %d is cached with other K and V", (int)at, (int)chunk);
    }
}

/* Chunk number i of the prefix. */
static void compare_chunk(uint32_t slot, size_t i)
{
    size_t c = choice.chunk_tokens, n = file.header.chunk_tokens;
    for (size_t at = i * c; at < (i + 1) * c; at++) {
        uint32_t chunk = prefix.chunks[at / n];
        if (c < n)
            chunk = first_alike(chunk, (i * c % n) + c);
        compare_token(slot, (uint32_t)(at - i * c), chunk, (uint32_t)(at % n));
    }
}

/* Its whole chunks are cached, and those that end in this chunk of the file and were not before have its K and V. */
static void check_chunk(uint32_t chunk)
{
    static uint32_t slots[SAVED_MAX];
    uint32_t c = choice.chunk_tokens;
    read_prefix(chunk);
    size_t n = prefix.n / c;
    FUZZ_CHECK(!n || match(prefix.name, prefix.tokens, prefix.n, &prefix.ext, slots) == n, "a chunk is missing");
    for (size_t i = (prefix.n - file.header.chunk_tokens) / c; i < n; i++) {
        if (!find_before((i + 1) * c))
            compare_chunk(slots[i], i);
    }
}

/* Pins of prefixes that have a whole chunk here. */
static uint64_t count_pins(void)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < file.header.n_chunks; i++) {
        read_prefix(i);
        n += prefix.n >= choice.chunk_tokens ? saved_chunk(&file, i).pins : 0;
    }
    return n;
}

static void check_contents(const struct snapshot *old, uint64_t n_tokens)
{
    struct snapshot now = look();
    for (uint32_t i = 0; i < file.header.n_chunks; i++)
        check_chunk(i);
    FUZZ_CHECK(now.stats.n_pins == old->stats.n_pins + count_pins(), "%d pins", (int)now.stats.n_pins);
    if (!old->stats.n_pins)
        FUZZ_CHECK(n_tokens == now.stats.pinned_slots * choice.chunk_tokens, "%d tokens", (int)n_tokens);
}

/* ---- what was loaded is saved, and what was saved is loaded */

static cattn_cache *load_again(const cattn_cache *from)
{
    struct saved_choice fresh = choice;
    struct cattn_stats stats = {.size = sizeof(stats)};
    FUZZ_CHECK(!cattn_cache_stats(from, &stats), "stats");
    fresh.n_slots = (uint32_t)stats.pinned_slots + 1;
    cattn_cache *made = saved_make(&fresh);
    int status = cattn_prefix_load(made, path[1], SAVED_MODEL, strlen(SAVED_MODEL), NULL);
    FUZZ_CHECK(!status, "what was saved is not loaded: %s", cattn_strerror(status));
    FUZZ_CHECK(!cattn_cache_selfcheck(made), "selfcheck of another cache");
    return made;
}

static void save(const cattn_cache *from)
{
    int status = cattn_prefix_save(from, path[1], SAVED_MODEL, strlen(SAVED_MODEL));
    FUZZ_CHECK(!status, "save: %s", cattn_strerror(status));
}

static void save_again(void)
{
    size_t n, n_again;
    save(cache);
    unsigned char *bytes = read_file(path[1], &n);
    struct cattn_save_header header = cattn_save_header_of(cache);
    FUZZ_CHECK(n > SAVED_MAX || saved_read(&saved_again, bytes, n, &header), "what is saved is no good file");
    cattn_cache *other = load_again(cache);
    save(other);
    unsigned char *again = read_file(path[1], &n_again);
    FUZZ_CHECK(n == n_again && !memcmp(bytes, again, n), "what was saved, loaded and saved again differs");
    free(bytes);
    free(again);
    cattn_cache_destroy(other);
}

/* Pins hold what they should and no more: when they are gone nothing is used. */
static void forget_all(void)
{
    struct cattn_stats stats = {.size = sizeof(stats)};
    for (int i = 0; i < 2; i++)
        FUZZ_CHECK(!before[i].seq || !cattn_seq_close(cache, before[i].seq), "close");
    for (uint32_t i = 0; i < file.header.n_spaces; i++) {
        struct saved_bytes name = saved_name(&file, i);
        FUZZ_CHECK(!cattn_namespace_invalidate(cache, name.at, name.length), "invalidate");
    }
    FUZZ_CHECK(!cattn_namespace_invalidate(cache, "a", 1), "invalidate");
    FUZZ_CHECK(!cattn_cache_stats(cache, &stats) && !stats.n_pins && !stats.used_slots, "something is still held");
    FUZZ_CHECK(!cache->tree.extras.ids.n_used, "an extra identity is still held");
    FUZZ_CHECK(!cattn_cache_selfcheck(cache), "selfcheck at the end");
}

/* ---- a load */

/* What the chunks of a good file are in the cache. */
struct need {
    uint64_t chunks;
    uint64_t cached, evictable; /* of them: before; of these: what nobody holds */
};

/* Chunk number i of the prefix, which ends in this chunk of the file. */
static void add_need(struct need *need, uint32_t chunk, size_t i)
{
    size_t c = choice.chunk_tokens, n = file.header.chunk_tokens;
    if (c < n && first_alike(chunk, i * c % n + c) != chunk)
        return;
    const struct cached *found = find_before((i + 1) * c);
    need->chunks++;
    need->cached += found != NULL;
    need->evictable += found && !found->held;
}

static struct need what_is_needed(void)
{
    struct need need = {0, 0, 0};
    for (uint32_t chunk = 0; chunk < file.header.n_chunks; chunk++) {
        read_prefix(chunk);
        for (size_t i = (prefix.n - file.header.chunk_tokens) / choice.chunk_tokens; i < prefix.n / choice.chunk_tokens;
             i++)
            add_need(&need, chunk, i);
    }
    return need;
}

/* What is said of a good file.  In these caches no namespace reads another one. */
static int expected_status(const struct snapshot *old)
{
    if (saved_crosses(&file))
        return CATTN_ESTATE;
    struct need need = what_is_needed();
    if (need.chunks > old->stats.n_slots)
        return CATTN_ETOOBIG;
    if (need.chunks - need.cached > old->stats.free_slots + old->stats.evictable_slots - need.evictable)
        return CATTN_EFULL;
    return old->stats.n_pins + count_pins() > UINT32_MAX ? CATTN_ENOMEM : CATTN_OK;
}

static void check_refusal(int status, const struct snapshot *old)
{
    struct snapshot now = look();
    FUZZ_CHECK(!memcmp(old, &now, sizeof(now)), "a load that failed (%s) changed something", cattn_strerror(status));
}

static void load(const struct cattn_save_header *header)
{
    struct snapshot old = look();
    uint64_t n_tokens = 77, held = hash_held();
    bool good = saved_read(&file, input, input_size, header);
    int expected = good ? expected_status(&old) : CATTN_EFORMAT;
    failing_memory_set(choice.failing);
    int status = cattn_prefix_load(cache, path[0], SAVED_MODEL, strlen(SAVED_MODEL), &n_tokens);
    failed = failing_memory_hit();
    failing_memory_set(0);
    fuzz_operations++;
    if (status == CATTN_ENOTSUP) /* a build that cannot load */
        return;
    FUZZ_CHECK(status == expected || (failed && status == CATTN_ENOMEM), "a %s file: %s instead of %s",
               good ? "good" : "bad", cattn_strerror(status), cattn_strerror(expected));
    if (status) {
        FUZZ_CHECK(n_tokens == 77, "a load that failed says %d tokens", (int)n_tokens);
        check_refusal(status, &old);
        return;
    }
    FUZZ_CHECK(!failed, "an allocation failed, and nothing was said");
    fuzz_operations += file.header.n_chunks;
    FUZZ_CHECK(hash_held() == held, "the load changed what was held");
    check_contents(&old, n_tokens);
    save_again();
    forget_all();
}

/* One cache and file.  edit: what is changed of it; 0: nothing. */
static void try(const uint8_t *bytes, const uint8_t *data, size_t size, uint64_t edit)
{
    size_t live = failing_memory_live();
    int descriptor = free_descriptor();
    choice = saved_choice(bytes);
    input_size = size;
    memcpy(input, data, size);
    cache = saved_make(&choice);
    fill_cache();
    struct cattn_save_header header = cattn_save_header_of(cache);
    if (edit)
        saved_edit(input, &input_size, edit);
    saved_repair(input, &input_size, &header, choice.repair);
    write_input();
    load(&header);
    cattn_cache_destroy(cache);
    FUZZ_CHECK(failing_memory_live() == live, "memory leaked");
    FUZZ_CHECK(free_descriptor() == descriptor, "a file is still open");
}

/* As the input says; and, drawn from all of its bytes, one thing of the file changed for another cache of its backend
 * and shape. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_begin();
    name_files();
    if (size < SAVED_CHOICES || size - SAVED_CHOICES > sizeof(input))
        return 0;
    const uint8_t *bytes = data + SAVED_CHOICES;
    uint64_t how = mix(UINT64_C(0xcbf29ce484222325), data, size);
    uint8_t other[SAVED_CHOICES] = {data[0] ^ (how & 0xe0), (uint8_t)(how >> 8), (uint8_t)(how >> 16),
                                    SAVED_REPAIR_SUMS | (how >> 24 & how >> 28 & 7), (uint8_t)(how >> 56)};
    try(data, bytes, size - SAVED_CHOICES, 0);
    try(other, bytes, size - SAVED_CHOICES, (how >> 24) + 1);
    return 0;
}
